"""``headrace prepare energon``: index tars, a JSONL file, a metadataset or a folder of media for Energon, in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace import inspect, preparing
from headrace.cli import prepare_shared as shared
from headrace.cli.command import Found, command
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over, show_tasks
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, plural

if TYPE_CHECKING:
    from headrace.preparing.energon import EnergonReport

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
) -> Found:
    """Prepare the dataset at PATH in place, as energon prepare does; see docs/energon.md.

    PATH is a folder of .tar shards or of plain media, a .jsonl, or the .yaml of a metadataset. All of these may be at
    a URL. The first run of a folder of shards needs a split; samples are crude, unless --sample-type is given. When it
    is run again, only new and changed shards are read.
    """
    from headrace.preparing.energon import plan_energon, prepare_energon

    if len(inputs) != 1:
        raise ConfigError(f"only one folder or file at a time is prepared in place; found {len(inputs)}")
    path = inputs[0]
    shared.check_errors(options.errors, "malformed shard")
    if not executor.is_local:
        with ProgressBar(quiet=quiet) as bar:
            plan_energon(path, options=options, on_notice=bar.notice)
        return hand_over(executor, path, workers=options.workers, quiet=quiet)
    with ProgressBar(quiet=quiet) as bar:
        if path.endswith(".yaml") and ("://" in path or Path(path).is_file()):
            report = _joins(path, options, bar.notice)
        else:
            show = partial(show_tasks, bar)
            report = prepare_energon(path, options=options, on_progress=show, on_notice=bar.notice)
        elapsed_s = bar.elapsed_s
    return tell(report, path, elapsed_s)


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


def tell(report: EnergonReport, output: str, elapsed_s: float) -> Found:
    """Return the report at the end of a run or job."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(report)
    found["split"] = {part: {"shards": shards, "samples": samples} for part, (shards, samples) in report.split.items()}
    return Found({**found, "seconds": round(elapsed_s, 3)}, summary(report, elapsed_s))


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
