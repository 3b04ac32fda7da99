"""``headrace merge``, ``convert`` and ``split``: their options, progress and reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import headrace
from headrace import inspect
from headrace.cli.command import Found, command
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over, show_tasks
from headrace.cli.options import Positive
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, plural, size

_MAX_STORES = 12


def run_copy(
    tool: Callable[..., headrace.copying.CopyReport],
    executor: ExecutorOptions,
    *,
    workers: int | None,
    dry_run: bool,
    quiet: bool,
) -> Found:
    """Run a tool as the options of the command line say, and return its report.

    Args:
        tool: a function that accepts ``workers``, ``dry_run``, ``plan_only`` and ``on_progress``.
        executor, workers: where the work is done.
        dry_run, quiet: as for all commands.
    """
    if not executor.is_local and not dry_run:
        report = tool(plan_only=True)
        if report.is_dry_run:
            return hand_over(executor, report.output, workers=workers, quiet=quiet)
        return tell(report, report.output, 0.0)
    with ProgressBar(quiet=quiet) as bar:
        report = tool(workers=workers or 1, dry_run=dry_run, on_progress=partial(show_tasks, bar))
        return tell(report, report.output, bar.elapsed_s)


def tell(report: headrace.copying.CopyReport, output: str, elapsed_s: float) -> Found:
    """Return the report of a copy."""
    import msgspec

    value = {**msgspec.to_builtins(report), "seconds": round(elapsed_s, 3)}
    return Found(value, summary(report, elapsed_s), notes=report.warnings)


def summary(report: headrace.copying.CopyReport, elapsed_s: float) -> list[inspect.Block]:
    """Return the report at the end of a run."""
    dtypes = ", ".join(dict.fromkeys(report.keys.values()))
    keys = "" if len(report.keys) == 1 else f", keys {', '.join(report.keys)}"
    pairs = [
        ("format", f"{report.format}, {dtypes}{keys}"),
        ("documents", count(report.documents)),
        ("tokens", count(report.tokens)),
    ]
    if report.is_dry_run:
        pairs += [("sources", plural(len(report.sources), "store")), ("dry run", "nothing was written")]
    else:
        read = f"{plural(len(report.inputs), 'file')}, {size(sum(file.size for file in report.inputs))}"
        pairs.append(("sources", f"{plural(len(report.sources), 'store')}, {read}"))
        pairs.append(("check", f"read back and compared, {duration(elapsed_s)}"))
    lines: list[inspect.Block] = [report.output, inspect.Pairs(pairs)]
    about = "about " if report.is_dry_run else ""
    for store in report.stores[:_MAX_STORES]:
        numbers = f"{plural(store.num_shards, 'shard')}, {about}{size(store.bytes)}"
        if store.name:
            numbers = f"{plural(store.documents, 'document')}, {plural(store.tokens, 'token')}, {numbers}"
        lines.append(f"{store.path}: {numbers}")
    if len(report.stores) > _MAX_STORES:
        lines.append(f"and {len(report.stores) - _MAX_STORES:,} more")
    return lines


@command("merge", "Join stores into one.", urls=("sources", "output"))
def merge(
    sources: Annotated[tuple[str, ...], "SRC..."],
    *,
    output: str,
    sort_by: headrace.copying.SortBy = "given",
    options: headrace.copying.CopyOptions,
    workers: Positive | None = None,
    executor: ExecutorOptions = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
) -> Found:
    """Join the documents of all stores SRC, one store after another, into shards in DIR.

    SRC is any store that headrace info reads. A folder of .bin/.idx without a headrace.json stands for all its pairs,
    part-9 before part-10. By default one shard is written; merged pairs are byte for byte what Megatron's
    merge_datasets.py writes. The result appears whole or not at all, and is read back and compared.

    Args:
        sort_by: order of the sources: given, name (as Megatron's tool sorts) or natural (numbers by value).
        workers: number of processes, each of which writes a shard at a time; by default 1, this one.
    """
    tool = partial(headrace.merge, sources, output, sort_by=sort_by, options=options)
    return run_copy(tool, executor, workers=workers, dry_run=dry_run, quiet=quiet)


@command("split", "Cut a store into several.", urls=("source", "destination"))
def split(
    source: Annotated[str, "SRC"],
    destination: Annotated[str, "DST"],
    *,
    split: Annotated[str, "SHARES|N"],
    era: Literal["core", "legacy"] = "core",
    names: Annotated[str | None, "A,B,C"] = None,
    options: headrace.copying.CopyOptions,
    workers: Positive | None = None,
    executor: ExecutorOptions = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
) -> Found:
    """Cut the store SRC into stores in folders below DST, each with its own headrace.json. No document is cut.

    With --split 969,30,1 the stores are DST/train, DST/valid and DST/test, with Megatron's borders, counted in
    documents. With --split N they are N, and have equal numbers of tokens. All appear together or not at all, and are
    read back and compared.

    Args:
        split: shares of training, validation and test, as 969,30,1; or a number of parts with equal numbers of tokens,
            as near as whole documents allow.
        era: version of Megatron's rounding: core, or legacy (DeepSpeed, NeoX, before Megatron-Core).
        names: names of the folders; by default train,valid,test, or part_00000 and so on.
        workers: number of processes, each of which writes a shard at a time; by default 1, this one.
    """
    into = int(split) if split.isdecimal() else split
    folders = None if names is None else names.split(",")
    tool = partial(headrace.split, source, destination, into=into, era=era, names=folders, options=options)
    return run_copy(tool, executor, workers=workers, dry_run=dry_run, quiet=quiet)


@command("convert", "Write a store in another format.", urls=("source", "destination"))
def convert(
    source: Annotated[str, "SRC"],
    destination: Annotated[str, "DST"],
    *,
    options: headrace.copying.CopyOptions,
    workers: Positive | None = None,
    executor: ExecutorOptions = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
) -> Found:
    """Write the documents of the store SRC into the folder DST with another format, dtype or size of shards.

    SRC is any store that headrace info reads, of any dialect. By default its shards and dtypes are kept. If the format
    cannot hold something, an error says what to do, or a note reports it. The result appears whole or not at all, and
    is read back and compared.

    Args:
        workers: number of processes, each of which writes a shard at a time; by default 1, this one.
    """
    if options.format is None:
        raise ConfigError("--format is missing: name the format of the result, indexed or keyed")
    tool = partial(headrace.convert, source, destination, format=options.format, options=options)
    return run_copy(tool, executor, workers=workers, dry_run=dry_run, quiet=quiet)
