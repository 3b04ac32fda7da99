"""``headrace merge``, ``convert`` and ``split``: their options, progress and reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

import headrace
from headrace.cli.command import check_shards, dialect_options, json_option, print_found
from headrace.cli.job import ExecutorOptions, JobCommand, hand_over, show_tasks
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, size

if TYPE_CHECKING:
    from headrace.copying import CopyOptions, CopyReport

F = TypeVar("F", bound=Callable[..., Any])

_MAX_STORES = 12
_AS_GIVEN = ("dialect", "documents", "bin_dtype", "eod", "bos", "drop_modes", "overwrite")

_OPTIONS = (
    click.option(
        "--dtype",
        metavar="[KEY=]NAME",
        multiple=True,
        help="Dtype on disk of all keys, or of one; values that do not fit are an error.",
    ),
    click.option("--shard-tokens", metavar="N", type=int, help="Maximum number of tokens per shard."),
    click.option("--single", is_flag=True, help="Write one shard of any size."),
    click.option(
        "--drop-modes", is_flag=True, help="Leave out modes of multimodal sequences if the format cannot hold them."
    ),
    partial(dialect_options, bin_dtype="bin_dtype"),
    click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(min=1),
        help="Number of processes, each of which writes a shard at a time (default: 1, this one).",
    ),
    click.option("--overwrite", is_flag=True, help="Replace existing stores once the new ones are complete."),
    click.option("--dry-run", is_flag=True, help="Report what would be written, but write nothing."),
    click.option("--quiet", "-q", is_flag=True, help="Show no progress, notes or summary."),
    json_option,
)


def copy_options(command: F) -> F:
    """Add the options that all three commands have."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def format_option(*, required: bool) -> Callable[[F], F]:
    """Return the option ``--format``; if it is not required, the default is the format of the sources."""
    default = "" if required else " (default: the format of the sources)"
    return click.option(
        "--format",
        "format_name",
        type=click.Choice(["indexed", "keyed"]),
        required=required,
        help=f".bin and .idx, or .bin and meta.json{default}.",
    )


def run_copy(tool: Callable[..., CopyReport], given: dict[str, Any], **more: Any) -> None:
    """Run a tool with the options of the command line, and print its report.

    Args:
        tool: a function that accepts ``options``, ``workers``, ``dry_run``, ``plan_only`` and ``on_progress``.
        given: where the copy is made, and the values of the options of `copy_options`.
        more: other fields of `CopyOptions`.
    """
    executor: ExecutorOptions = given["executor"]
    quiet, as_json = given["quiet"], given["as_json"]
    options = _copy_options(given, more)
    if not executor.is_local and not given["dry_run"]:
        report = tool(options=options, plan_only=True)
        if report.is_dry_run:
            hand_over(executor, report.output, workers=given["workers"], quiet=quiet, as_json=as_json)
        else:
            tell(report, report.output, 0.0, quiet=quiet, as_json=as_json)
        return
    with ProgressBar(quiet=quiet) as bar:
        report = tool(
            options=options,
            workers=given["workers"] or 1,
            dry_run=given["dry_run"],
            on_progress=partial(show_tasks, bar),
        )
        elapsed_s = bar.elapsed_s
    tell(report, report.output, elapsed_s, quiet=quiet, as_json=as_json)


def tell(report: CopyReport, output: str, elapsed_s: float, *, quiet: bool, as_json: bool) -> None:
    """Print the report of a copy."""
    import msgspec

    if not quiet:
        for warning in report.warnings:
            click.echo(f"note: {warning}", err=True)
    found = {**msgspec.to_builtins(report), "seconds": round(elapsed_s, 3)}
    print_found(found, summary(report, elapsed_s), as_json=as_json, quiet=quiet)


def _copy_options(given: dict[str, Any], more: dict[str, Any]) -> CopyOptions:
    check_shards(given)
    return headrace.copying.CopyOptions(
        dtype=_dtypes(given["dtype"]),
        shards="single" if given["single"] else given["shard_tokens"],
        **{name: given[name] for name in _AS_GIVEN},
        **more,
    )


def _dtypes(given: tuple[str, ...]) -> str | dict[str, str] | None:
    """Parse ``int32``, or ``labels=int32 loss_mask=bool``."""
    if not given:
        return None
    named = {key: name for key, _, name in (part.rpartition("=") for part in given)}
    if len(named) < len(given):
        raise ConfigError(f"--dtype is given twice for the same key: {' '.join(given)}")
    if "" in named and len(named) > 1:
        raise ConfigError(f"--dtype {' '.join(given)}: give either one dtype for all keys, or KEY=NAME for each")
    return named.get("", named)


def summary(report: CopyReport, elapsed_s: float) -> list[str]:
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
    lines = [report.output, *listing(pairs)]
    about = "about " if report.is_dry_run else ""
    for store in report.stores[:_MAX_STORES]:
        numbers = f"{plural(store.num_shards, 'shard')}, {about}{size(store.bytes)}"
        if store.name:
            numbers = f"{plural(store.documents, 'document')}, {plural(store.tokens, 'token')}, {numbers}"
        lines.append(f"{store.path}: {numbers}")
    if len(report.stores) > _MAX_STORES:
        lines.append(f"and {len(report.stores) - _MAX_STORES:,} more")
    return lines


@click.command(cls=JobCommand, urls=("sources", "output"), name="merge", short_help="Join stores into one.")
@click.argument("sources", metavar="SRC...", nargs=-1)
@click.option("--output", "-o", metavar="DIR", help="Folder or URL for the result; it must be new or empty.")
@click.option(
    "--sort-by",
    type=click.Choice(["given", "name", "natural"]),
    default="given",
    help="Order of the sources: given, name (as Megatron's tool sorts) or natural (numbers by value; default: given).",
)
@format_option(required=False)
@click.option(
    "--allow-different-tokenizers",
    is_flag=True,
    help="Join stores of different tokenisers; the result then names no tokeniser.",
)
@copy_options
def merge(
    sources: tuple[str, ...],
    output: str | None,
    sort_by: str,
    format_name: str | None,
    allow_different_tokenizers: bool,
    **given: Any,
) -> None:
    """Join the documents of all stores SRC, one store after another, into shards in DIR.

    SRC is any store that headrace info reads. A folder of .bin/.idx without a headrace.json stands for all its pairs,
    part-9 before part-10. By default one shard is written; merged pairs are byte for byte what Megatron's
    merge_datasets.py writes. The result appears whole or not at all, and is read back and compared.
    """
    if not sources:
        raise ConfigError("no SRC is given: name at least one store")
    if output is None:
        raise ConfigError("--output DIR is missing: name the folder for the result")
    tool = functools.partial(headrace.merge, sources, output, sort_by=sort_by)  # type: ignore[arg-type]
    run_copy(tool, given, format=format_name, allow_different_tokenizers=allow_different_tokenizers)


@click.command(cls=JobCommand, urls=("source", "destination"), name="split", short_help="Cut a store into several.")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--split", "shares", metavar="SHARES", help="Shares of training, validation and test, as 969,30,1.")
@click.option(
    "--parts",
    metavar="N",
    type=int,
    help="Make N parts with equal numbers of tokens, as near as whole documents allow.",
)
@click.option(
    "--era",
    type=click.Choice(["core", "legacy"]),
    default="core",
    help="Version of Megatron's rounding: core, or legacy (DeepSpeed, NeoX, before Megatron-Core; default: core).",
)
@click.option("--names", metavar="A,B,C", help="Names of the folders (default: train,valid,test, or part_00000, ...).")
@format_option(required=False)
@copy_options
def split(
    source: str,
    destination: str,
    shares: str | None,
    parts: int | None,
    era: str,
    names: str | None,
    format_name: str | None,
    **given: Any,
) -> None:
    """Cut the store SRC into stores in folders below DST, each with its own headrace.json. No document is cut.

    With --split 969,30,1 the stores are DST/train, DST/valid and DST/test, with Megatron's borders, counted in
    documents. With --parts N they have equal numbers of tokens. All appear together or not at all, and are read back
    and compared.
    """
    if (shares is None) == (parts is None):
        raise ConfigError("give either --split SHARES, as 969,30,1, or --parts N")
    tool = functools.partial(
        headrace.split,
        source,
        destination,
        into=shares if parts is None else parts,  # type: ignore[arg-type]
        era=era,  # type: ignore[arg-type]
        names=None if names is None else names.split(","),
    )
    run_copy(tool, given, format=format_name)


@click.command(
    cls=JobCommand, urls=("source", "destination"), name="convert", short_help="Write a store in another format."
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@format_option(required=True)
@copy_options
def convert(source: str, destination: str, format_name: str, **given: Any) -> None:
    """Write the documents of the store SRC into the folder DST with another format, dtype or size of shards.

    SRC is any store that headrace info reads, of any dialect. By default its shards and dtypes are kept. If the format
    cannot hold something, an error says what to do, or a note reports it. The result appears whole or not at all, and
    is read back and compared.
    """
    tool = functools.partial(headrace.convert, source, destination, format=format_name)  # type: ignore[arg-type]
    run_copy(tool, given)
