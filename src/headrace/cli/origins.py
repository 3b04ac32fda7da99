"""``headrace where``, ``trace`` and ``account``: where documents come from, and what a training run was fed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from headrace import inspect, tracing
from headrace.cli.command import Found, command, group
from headrace.errors import ConfigError
from headrace.inspect.figures import count, plural

if TYPE_CHECKING:
    from headrace.datasets.origins import Origin


@command("where", "Say where documents come from.", urls=("path",))
def where(
    path: Annotated[str, "PATH"], documents: Annotated[tuple[str, ...], "DOC..."], *, read_all: bool = False
) -> Found:
    """Say which line or row of which input each document DOC of the store at PATH comes from.

    PATH is a folder that headrace prepare wrote, with documents counted from 0 over all its shards, or the prefix of
    one shard, with documents counted within it. If the input still exists, its text is shown. For stores that headrace
    merge, convert or split wrote, the origin is traced through the stores that they were copied from. For tar shards
    DOC is a sample: its key, or its number over all shards.

    Args:
        read_all: show the whole text, however much of the input must be read for it.
    """
    found = inspect.where(path, documents, read_all=read_all)
    return Found(found, found.shown(whole_texts=read_all))


@command("step", "The samples of a global step.")
def step_command(
    step: Annotated[int, "N"], *, rank: int | None = None, samples: bool = False, options: inspect.TraceOptions
) -> Found:
    """List the samples of global step N: position, source, epoch, number, and the documents or the key of each.

    If the store was prepared from files, file and line are listed too; with --ranks also the rank and the micro-step
    that read each sample.

    The units of a framed run are known only once it has run. For such a run the command lists, from its --journal, the
    units of the step and the frame of each; with --samples also the samples that may be in each unit.
    From Python, framed_history finds out which of these are in it.

    Args:
        rank: with --ranks, show only the samples of this rank.
        samples: for framed runs, list all samples that may be in each unit.
    """
    sources, history = options.opened(step)
    asked = {"run": options.run, "step": step}
    if isinstance(history, tracing.FramedHistory):
        units = history.step(step, topology=options.topology, rank=rank, samples=samples)
        report = units_report(options.run, step, units, sources.notes)
        return Found({**asked, "units": units, "notes": sources.notes}, report)
    fed = inspect.with_inputs(history.step(step, topology=options.topology, rank=rank))
    report = step_report(options.run, step, fed, sources.notes)
    return Found({**asked, "samples": fed, "notes": sources.notes}, report)


@command("sample", "The steps that see a sample.", urls=("source",))
def sample_command(
    source: Annotated[str, "SOURCE"],
    sample: Annotated[str, "SAMPLE"],
    *,
    document: bool = False,
    key: bool = False,
    until_step: int | None = None,
    limit: int = 20,
    options: inspect.TraceOptions,
) -> Found:
    """Say at which steps a sample of SOURCE comes, in all epochs.

    SOURCE is the path of the source in the blend, as web/en, or a dot if there is only one source. SAMPLE is the number
    of the sample in its dataset, counted from 0, or its key.

    The search ends at --until-step, else at --state, else at the end of the run. In a run without an end it covers
    --limit more epochs.

    For a framed run the command says between which steps the sample comes, as far as its --journal goes.

    Args:
        document: SAMPLE is a document: find all samples that hold it.
        key: SAMPLE is a key, even if it looks like a number.
        until_step: look only at the steps before this one.
        limit: maximum number of times to show; all are counted.
    """
    run, topology = options.run, options.topology
    sources, history = options.opened()
    asked = _asked(sample, "document" if document else "key" if key else None)
    if not isinstance(history, tracing.FramedHistory):
        times = history.sample(source, **asked, until_step=until_step, limit=limit, topology=topology)
    elif document or (until_step, topology) != (None, None):
        raise ConfigError(
            f"the last run in {run} is framed: --document, --until-step and --ranks do not apply to it; give the number"
            " or the key of a sample, which is looked up to the end of the journals"
        )
    else:
        times = history.sample(source, **asked, limit=limit)
    shown = inspect.with_inputs(list(times.shown))
    notes = [*times.notes, *sources.notes]
    found = {"count": times.count, "until_step": times.until_step, "shown": shown, "notes": notes}
    what = f"{next(iter(asked))} {sample}".replace("index", "sample")
    report = sample_report(f"{run}: {what} of {source}", times, shown, notes)
    return Found({"run": run, "source": source, **asked, **found}, report)


trace = group(
    "trace",
    "Say what a step was fed, and which steps see a sample.",
    "Say what a step of a training run was fed, or which steps see a sample: before, during and after the run.\n\n"
    "The answers are computed from the file that save_run wrote. Data are opened only to find the documents and keys "
    "of the samples. Both commands have --run, --state, --no-data and --json.",
    *(step_command, sample_command),
)


def _asked(sample: str, kind: str | None) -> dict[str, Any]:
    """Return SAMPLE as a number or a key; without an option, digits without leading zeros are a number."""
    is_number = sample.isascii() and sample.isdigit()
    if kind == "document":
        if not is_number:
            raise click.UsageError(f"{sample!r} is not the number of a document, which is counted from 0")
        return {"document": int(sample)}
    if kind == "key" or not is_number or (sample[0] == "0" and len(sample) > 1):
        return {"key": sample}
    return {"index": int(sample)}


MAX_PIECES = 3
"""Maximum number of documents that a line names; ``--json`` has all of them."""


def step_report(run: str, step: int, samples: Sequence[tracing.Traced], notes: Sequence[str]) -> list[inspect.Block]:
    """Return the report of a step, with one sample per line."""
    head = f"{run}: step {count(step)}: {plural(len(samples), 'sample')}"
    if samples and samples[0].position is None:
        first, last = count(samples[0].step), count(samples[0].last_step)
        head = (
            f"{run}: steps {first} to {last}: {plural(len(samples), 'sample')}; which of them are in step "
            f"{count(step)} is decided by lengths (bucketing): ask headrace.tracing.trace_step"
        )
    return [head, *_table(samples, _COLUMNS), *_noted(notes)]


def units_report(run: str, step: int, units: Sequence[tracing.TracedUnit], notes: Sequence[str]) -> list[inspect.Block]:
    """Return the report of a step of a framed run: one unit per line, then the samples that may be in each."""
    inner = {name: cell for name, cell in _COLUMNS.items() if name != "unit"}
    samples = [
        inspect.Titled(f"unit {count(unit.unit)}", _table(inspect.with_inputs(unit.samples), inner))
        for unit in units
        if unit.samples
    ]
    head = f"{run}: step {count(step)}: {plural(len(units), 'unit')}"
    return [head, *_table(units, _UNIT_COLUMNS), *samples, *_noted(notes)]


def sample_report(
    head: str, times: tracing.Times, shown: Sequence[tracing.Traced], notes: Sequence[str]
) -> list[inspect.Block]:
    """Return the report of a sample, with one time per line."""
    line = f"{head}: {plural(times.count, 'time')} before step {count(times.until_step)}"
    # Several outputs of one position of a framed run may be shown.
    rest = times.count - len(
        {number if traced.position is None else (traced.run, traced.position) for number, traced in enumerate(shown)}
    )
    more = [f"  and {plural(rest, 'more time')} (--limit)"] if rest > 0 else []
    columns = {name: cell for name, cell in _COLUMNS.items() if name != "source"}
    return [line, *_table(shown, columns), *more, *_noted(notes)]


def _table(rows: Sequence[Any], columns: Mapping[str, Callable[[Any], str]]) -> list[inspect.Tabular]:
    """Return a table with a line for each row, without empty columns; nothing if there are no rows."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return [inspect.Tabular.used(list(columns), cells, [_PIECES])] if rows else []


def _counted(number: int | None) -> str:
    return "" if number is None else count(number)


def _plain(number: int | None) -> str:
    return "" if number is None else str(number)


_SEEN = {None: "", True: "yes", False: "no"}
_PIECES = ""
"""The heading of the last column, which names documents or a key."""

_UNIT_COLUMNS: dict[str, Callable[[tracing.TracedUnit], str]] = {
    "unit": lambda unit: count(unit.unit),
    "lane": lambda unit: count(unit.lane),
    "frame": lambda unit: count(unit.frame),
    "positions": lambda unit: f"{count(unit.first_position)} to {count(unit.last_position)}",
    "carried": lambda unit: count(unit.num_carried),
    "rank": lambda unit: _plain(unit.rank),
    "micro-step": lambda unit: _plain(unit.micro_step),
    "seen": lambda unit: _SEEN[unit.seen],
}


def _step(sample: tracing.Traced) -> str:
    return count(sample.step) + ("" if sample.last_step == sample.step else f" to {count(sample.last_step)}")


_COLUMNS: dict[str, Callable[[tracing.Traced], str]] = {
    "step": _step,
    "position": lambda sample: _counted(sample.position),
    "source": lambda sample: sample.source,
    "epoch": lambda sample: count(sample.epoch),
    "sample": lambda sample: count(sample.index),
    "unit": lambda sample: _counted(sample.unit),
    "output": lambda sample: _counted(sample.output),
    "rank": lambda sample: _plain(sample.rank),
    "micro-step": lambda sample: _plain(sample.micro_step),
    "seen": lambda sample: _SEEN[sample.seen],
    _PIECES: lambda sample: _pieces(sample),
}


def _pieces(sample: tracing.Traced) -> str:
    named = list(map(_piece, sample.origins[:MAX_PIECES]))
    if (rest := len(sample.origins) - MAX_PIECES) > 0:
        named.append(f"and {count(rest)} more")
    if sample.num_masked:
        named.append(f"{count(sample.num_masked)} masked" if named else "wholly masked")
    return "; ".join(named)


def _piece(origin: Origin) -> str:
    if origin.key is not None:
        what = f"{origin.key}, {origin.shard}"
    else:
        what = f"document {count(origin.document or 0)}"
        if origin.begin is not None and origin.tokens is not None:
            what += f" [{origin.begin}:{origin.begin + origin.tokens}]"
    return what if origin.input is None else f"{what}, {origin.input} {origin.unit} {count(origin.number or 0)}"


def _noted(notes: Sequence[str]) -> list[str]:
    return [f"  note: {note}" for note in notes]


@command("account", "Say what a run was fed, or where two runs part.")
def account(
    files: Annotated[tuple[str, ...], "FILE..."],
    *,
    until_step: int | None = None,
    exact: bool = False,
    no_data: bool = False,
) -> Found:
    """Say what the run in FILE, which save_run wrote, was fed before a step.

    For each source the account says how many samples, documents and tokens were fed, how often its samples were seen,
    and where each sample of the present epoch is: fed, still to come, skipped, or excluded. For each chapter of the run
    it says the mix as it was planned and as it came. What is marked with ~ is an estimate.

    Two files are compared: the first step at which their runs are fed otherwise, and the setting that makes it so.

    Args:
        files: the file of a run, or of two runs.
        until_step: count what was fed before this step; by default until the end of the run.
        exact: read and count what would be estimated.
        no_data: open no store; tokens and documents are not counted.
    """
    if len(files) > 2 or (len(files) == 2 and (until_step is not None or exact)):
        raise click.UsageError("give one file; or two to compare them, without --until-step and --exact")
    if len(files) == 2:
        found = tracing.first_difference(*(tracing.filed_run(file, read_data=False) for file in files))
        told = "the same from begin to end" if found is None else found.message
        report = [f"{files[0]} -> {files[1]}: {told}"]
        return Found({"files": files, "difference": found}, report)
    answer = tracing.account(tracing.filed_run(files[0], read_data=not no_data), until_step, exact=exact)
    return Found(answer, [*inspect.account_blocks(files[0], answer)])
