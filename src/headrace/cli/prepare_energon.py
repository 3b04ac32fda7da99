"""``headrace prepare energon``: index tars, a JSONL file, a metadataset or a folder of media for Energon, in place."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from headrace import inspect, preparing
from headrace.cli import prepare_shared as shared
from headrace.cli.command import Found, command
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over, show_tasks
from headrace.cli.options import read
from headrace.cli.progress import ProgressBar, notes
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, plural

if TYPE_CHECKING:
    from headrace.preparing.energon import EnergonReport
    from headrace.preparing.energon.scanning import Peek

_SHOWN = 5


@command(
    "energon", "Make tars, a JSONL or a metadataset ready for Energon, in place.", urls=("inputs",),
    kind=shared.Subcommand,
)  # fmt: skip
def energon(
    inputs: Annotated[tuple[str, ...], "PATH"] = (),
    *,
    options: preparing.EnergonOptions,
    executor: ExecutorOptions = LOCAL,
    quiet: bool = False,
    as_json: bool = False,
) -> Found:
    """Prepare the dataset at PATH in place, as energon prepare does; see docs/energon.md.

    PATH is a folder of .tar shards or of plain media, a .jsonl, or the .yaml of a metadataset. All of these may be at
    a URL. On a terminal, what is missing is asked for, except for a URL. When it is run again, only new and changed
    shards are read.
    """
    from headrace.preparing.energon import plan_energon, prepare_energon

    if len(inputs) != 1:
        raise ConfigError(f"only one folder or file at a time is prepared in place; found {len(inputs)}")
    path = inputs[0]
    shared.check_errors(options.errors, "malformed shard")
    if is_terminal() and not (quiet or as_json) and "://" not in path:
        options = ask(Path(path), options)
    if not executor.is_local:
        with ProgressBar(quiet=quiet) as bar:
            plan_energon(path, options=options, on_notice=notes(bar, quiet=quiet))
        return hand_over(executor, path, workers=options.workers, quiet=quiet)
    with ProgressBar(quiet=quiet) as bar:
        note = notes(bar, quiet=quiet)
        if path.endswith(".yaml") and ("://" in path or Path(path).is_file()):
            report = _joins(path, options, note)
        else:
            report = prepare_energon(path, options=options, on_progress=partial(show_tasks, bar), on_notice=note)
        elapsed_s = bar.elapsed_s
    return tell(report, path, elapsed_s, quiet=quiet)


def _joins(path: str, options: preparing.EnergonOptions, note: Callable[[str], None]) -> EnergonReport:
    """Make the indices of the joins of a metadataset."""
    from headrace.datasets.metadataset import load_dataset
    from headrace.io import check_new
    from headrace.preparing.energon import EnergonReport
    from headrace.preparing.energon.options import check_options, check_plain

    check_options(options)
    check_plain(path, options)
    check_new(path, overwrite=False)
    joins = load_dataset(path).prepare()
    for place, join in joins.items():
        without = f", {join.skipped:,} without a partner left out" if join.skipped else ""
        note(f"{place}: {join.rows:,} joined samples{without}")
    if not joins:
        note(f"{path}: holds no join, so there is nothing to prepare")
    return EnergonReport(
        kind="metadataset",
        path=path,
        samples=sum(join.rows for join in joins.values()),
        written=tuple(sorted({str(join.path) for join in joins.values()})),
    )


def is_terminal() -> bool:
    """Whether questions can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def tell(report: EnergonReport, output: str, elapsed_s: float, *, quiet: bool) -> Found:
    """Return the report at the end of a run or job."""
    return Found(result(report, elapsed_s), summary(report, elapsed_s))


def result(report: EnergonReport, elapsed_s: float) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(report)
    found["split"] = {part: {"shards": shards, "samples": samples} for part, (shards, samples) in report.split.items()}
    return {**found, "seconds": round(elapsed_s, 3)}


def summary(report: EnergonReport, elapsed_s: float) -> list[inspect.Block]:
    """Return the report at the end of a run."""
    if report.kind == "jsonl":
        return [f"{report.path}: {plural(report.samples, 'record')}, indexed in {duration(elapsed_s)}"]
    if report.kind == "metadataset":
        return [f"{report.path}: {plural(len(report.written), 'join')}, {plural(report.samples, 'joined sample')}"]
    if report.kind == "media":
        return [f"{report.path}: metadata of {count(report.media or 0)} media in {plural(report.samples, 'file')}"]
    lines = [f"{report.path}: {plural(report.samples, 'sample')} in {plural(report.shards, 'shard')}"]
    rows = [
        ("shards", f"{count(report.read)} read, {count(report.unchanged)} unchanged, {count(report.removed)} removed")
    ]
    rows += [
        (part, f"{plural(shards, 'shard')}, {plural(samples, 'sample')}")
        for part, (shards, samples) in report.split.items()
    ]
    more = ", ..." if len(report.parts) > 2 * _SHOWN else ""
    rows.append(("parts", ", ".join(report.parts[: 2 * _SHOWN]) + more))
    if report.media is not None:
        rows.append(("media", f"metadata of {count(report.media)}"))
    rows.append(("written", ", ".join(report.written) if report.written else "nothing, all files are unchanged"))
    rows.append(("time", duration(elapsed_s)))
    return [*lines, inspect.Pairs(rows), *_left_out(report)]


def _left_out(report: EnergonReport) -> list[str]:
    lines = []
    if report.faults:
        lines.append(f"malformed: {plural(len(report.faults), 'shard')}; samples are missing or cannot be read")
        for name, faults in list(report.faults.items())[:_SHOWN]:
            lines.append(f"  {name}: sample {faults[0].sample}, byte {faults[0].byte:,}: {faults[0].message}")
    if report.duplicates:
        lines.append(f"duplicate keys: {plural(len(report.duplicates), 'sample')}")
        for found in report.duplicates[:_SHOWN]:
            lines.append(f"  {found.key!r}: {found.shard}, first in {found.first_shard}")
    return lines


_CRUDE = "CrudeWebdataset"
_MAX_PARTS = 10


def ask(path: Path, options: preparing.EnergonOptions) -> preparing.EnergonOptions:
    """Ask for the split and the sample type where they are missing, and return the completed options.

    Raises:
        HeadraceError: the folder cannot be read, or it holds no tars.
    """
    import msgspec

    from headrace.preparing.energon.options import check_options
    from headrace.preparing.energon.scanning import find_shards, peek
    from headrace.stores.energon.splits import find_splits

    if not path.is_dir() or options.index_only or options.media_only:
        return options
    check_options(options)
    asks_split = not options.split.ratio and not options.split.parts and find_splits(path) is None
    choice = options.dataset
    asks_type = choice.sample_type is None and not choice.skip and not (path / ".nv-meta" / choice.name).exists()
    if not asks_split and not asks_type:
        return options
    tars = find_shards(path, options.exclude, refuse_compressed=True, on_notice=click.echo)
    names = [tar.name for tar in tars]
    click.echo(f"{path}: {plural(len(names), 'tar')}, from {names[0]} to {names[-1]}; --exclude REGEX leaves some out")
    if asks_split:
        ratio = _ask_ratio()
        options = msgspec.structs.replace(options, split=msgspec.structs.replace(options.split, ratio=ratio))
    if asks_type:
        found = peek(path, names)
        if found is not None:
            _show(found)
        name, field_map = _ask_type(found)
        dataset = msgspec.structs.replace(choice, skip=name is None, sample_type=name, field_map=field_map)
        options = msgspec.structs.replace(options, dataset=dataset)
    return options


def _ask_ratio() -> tuple[float, ...]:
    while True:
        text = click.prompt("Shares of train, val and test, as 8,1,1 (--split-ratio)", type=str)
        try:
            ratio: tuple[float, ...] = read(text, tuple[float, ...], "split_ratio")
        except ValueError as error:
            click.echo(str(error))
            continue
        if len(ratio) == 3 and all(share >= 0 for share in ratio) and sum(ratio) > 0:
            return ratio
        click.echo("Write three numbers, each 0 or more and not all of them 0.")


def _show(found: Peek) -> None:
    for key, parts, content in found.samples:
        click.echo(f"{found.shard}: sample {key!r} has {', '.join(parts)}")
        if content is not None:
            click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    more = " and more" if len(found.parts) > _MAX_PARTS else ""
    click.echo(f"Parts of this shard: {', '.join(found.parts[:_MAX_PARTS])}{more}")


def _ask_type(found: Peek | None) -> tuple[str | None, dict[str, str]]:
    """Ask for the sample type and the field map; the type is None if no ``dataset.yaml`` is wanted."""
    from headrace.samples.media import SAMPLE_TYPES

    if not click.confirm("Write a dataset.yaml, which names the sample type? (--skip-dataset-yaml)", default=True):
        return None, {}
    names = [_CRUDE, *SAMPLE_TYPES]
    for number, name in enumerate(names):
        click.echo(f"{number:3}. {name}" + (" (parts as they are, for a cooker)" if name == _CRUDE else ""))
    chosen = click.prompt(
        "Number of the sample type (--sample-type)", type=click.IntRange(0, len(names) - 1), default=0
    )
    name = names[chosen]
    return name, {} if name == _CRUDE else _ask_fields(name, found)


def _ask_fields(name: str, found: Peek | None) -> dict[str, str]:
    from headrace.samples.media import SAMPLE_TYPES, sources_of
    from headrace.samples.media.mapper import parse_field

    click.echo(
        "For each field write the part that it comes from: jpg, json[caption][0], or jpg,png for either (--field-map)"
    )
    field_map: dict[str, str] = {}
    for field in dataclasses.fields(SAMPLE_TYPES[name]):
        if field.name.startswith("__"):
            continue
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        while True:
            note = "" if is_needed else ", empty for none"
            text = click.prompt(
                f"{field.name} ({field.type}{note})", default=None if is_needed else "", show_default=False
            )
            if not text:
                break
            try:
                parts = sources_of({field.name: parse_field(text, field.name)})[field.name]
            except ConfigError as error:
                click.echo(str(error))
                continue
            missing = [part for part in parts if found is not None and part not in found.parts]
            if not missing or click.confirm(f"{', '.join(missing)}: no such part in this shard; use it anyway?"):
                field_map[field.name] = text
                break
    return field_map
