"""What ``headrace trace`` says of samples, for people and as JSON, and the lines of files they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.cli.figures import count, plural, table
from headrace.cli.origin import find_origins
from headrace.cli.sample_origin import find_sample_origins, find_shards
from headrace.datasets.dataset import Origin
from headrace.datasets.tracing.answers import Times, Traced, TracedUnit
from headrace.errors import HeadraceError

MAX_PIECES = 3
"""Of the documents in a sample, those that a line names; ``--json`` has all."""

_Input = tuple[str, str, int]


def with_inputs(samples: Sequence[Traced]) -> list[Traced]:
    """The same with file and line of each document or sample of media whose store keeps where it comes from."""
    wanted: dict[str, dict[int | str, None]] = {}
    for sample in samples:
        for origin in sample.origins:
            if (name := _name(origin)) is not None:
                wanted.setdefault(origin.store, {})[name] = None
    known = {(store, name): found for store, names in wanted.items() for name, found in _inputs(store, list(names))}

    def told(origin: Origin) -> Origin:
        name = _name(origin)
        found = None if name is None else known.get((origin.store, name))
        if found is None:
            return origin
        return msgspec.structs.replace(origin, input=found[0], unit=found[1], number=found[2])

    return [msgspec.structs.replace(sample, origins=tuple(map(told, sample.origins))) for sample in samples]


def as_builtins(samples: Sequence[Traced] | Sequence[TracedUnit]) -> list[dict[str, Any]]:
    """Samples or units for JSON."""
    found: list[dict[str, Any]] = msgspec.to_builtins(samples)
    return found


def step_report(run: str, step: int, samples: Sequence[Traced], notes: Sequence[str]) -> list[str]:
    """The samples of a step, one a line."""
    head = f"{run}: step {count(step)}: {plural(len(samples), 'sample')}"
    if samples and samples[0].position is None:
        first, last = count(samples[0].step), count(samples[0].last_step)
        head = (
            f"{run}: steps {first} to {last}: {plural(len(samples), 'sample')}; which of them are in step "
            f"{count(step)} is decided by lengths (bucketing): ask Run.trace_step"
        )
    return [head, *_rows(samples, with_source=True), *_noted(notes)]


def units_report(run: str, step: int, units: Sequence[TracedUnit], notes: Sequence[str]) -> list[str]:
    """The units of a step of a framed run, one a line, and below each the samples that may be in it."""
    head = f"{run}: step {count(step)}: {plural(len(units), 'unit')}"
    columns = {
        "unit": [count(one.unit) for one in units],
        "lane": [count(one.lane) for one in units],
        "frame": [count(one.frame) for one in units],
        "positions": [f"{count(one.first_position)} to {count(one.last_position)}" for one in units],
        "carried": [count(one.num_carried) for one in units],
        "rank": ["" if one.rank is None else str(one.rank) for one in units],
        "micro-step": ["" if one.micro_step is None else str(one.micro_step) for one in units],
        "seen": ["" if one.seen is None else "yes" if one.seen else "no" for one in units],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    lines = table([list(kept), *zip(*kept.values(), strict=True)]) if units else []
    found = [head, *lines[:1]]
    for line, one in zip(lines[1:], units, strict=True):
        found += [line, *(f"  {row}" for row in _rows(with_inputs(one.samples), with_source=True, with_unit=False))]
    return [*found, *_noted(notes)]


def sample_report(head: str, times: Times, shown: Sequence[Traced], notes: Sequence[str]) -> list[str]:
    """When a sample comes, one time a line."""
    line = f"{head}: {plural(times.count, 'time')} before step {count(times.until_step)}"
    # Of a framed run, several outputs of a position may be shown.
    rest = times.count - len(
        {number if one.position is None else (one.run, one.position) for number, one in enumerate(shown)}
    )
    more = [f"  and {plural(rest, 'more time')} (--limit)"] if rest > 0 else []
    return [line, *_rows(shown, with_source=False), *more, *_noted(notes)]


def _rows(samples: Sequence[Traced], *, with_source: bool, with_unit: bool = True) -> list[str]:
    if not samples:
        return []
    columns = {
        "step": [_step(one) for one in samples],
        "position": ["" if one.position is None else count(one.position) for one in samples],
        "source": [one.source for one in samples] if with_source else [],
        "epoch": [count(one.epoch) for one in samples],
        "sample": [count(one.index) for one in samples],
        "unit": ["" if one.unit is None else count(one.unit) for one in samples] if with_unit else [],
        "output": ["" if one.output is None else count(one.output) for one in samples],
        "rank": ["" if one.rank is None else str(one.rank) for one in samples],
        "micro-step": ["" if one.micro_step is None else str(one.micro_step) for one in samples],
        "seen": ["" if one.seen is None else "yes" if one.seen else "no" for one in samples],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    lines = table([list(kept), *zip(*kept.values(), strict=True)])
    return [lines[0], *(f"{line}  {_pieces(one)}".rstrip() for line, one in zip(lines[1:], samples, strict=True))]


def _step(sample: Traced) -> str:
    return count(sample.step) + ("" if sample.last_step == sample.step else f" to {count(sample.last_step)}")


def _pieces(sample: Traced) -> str:
    named = "; ".join(map(_piece, sample.origins[:MAX_PIECES]))
    rest = len(sample.origins) - MAX_PIECES
    return named + (f"; and {count(rest)} more" if rest > 0 else "")


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


def _name(origin: Origin) -> int | str | None:
    return origin.document if origin.key is None else origin.key


def _inputs(store: str, names: list[int | str]) -> Iterable[tuple[int | str, _Input]]:
    """File, unit and number for each document or key, as far as the store tells."""
    try:
        if (shards := find_shards(store)) is not None:
            samples = find_sample_origins(store, shards, list(map(str, names)))
            return [(name, (one.input, one.unit, one.number)) for name, one in zip(names, samples, strict=True)]
        documents = find_origins(store, [int(name) for name in names], with_texts=False)
    except (HeadraceError, ValueError):
        # Not made by `headrace prepare`, or without provenance: documents and keys are all that is known.
        return []
    return [(name, (one.input, one.unit, one.number)) for name, one in zip(names, documents, strict=True)]
