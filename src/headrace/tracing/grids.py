"""`step_grid`: a step as its micro-batches, ranks by micro-steps, with what each of them holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from headrace.datasets import RaggedDataset, Run
from headrace.datasets.dataset import CountedDataset, FixedDataset
from headrace.datasets.run import by_source
from headrace.errors import HeadraceError
from headrace.plan import IntArray
from headrace.tracing.history import History, Topology, Traced

COUNTED_SAMPLES: Final = 1 << 14
"""The most samples of a step that are counted."""


class HeldCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample, or the samples of a micro-batch, hold.

    Attributes:
        tokens: tokens that are no pads.
        places: tokens and pads; records are padded to the longest one of their micro-batch.
        supervised_tokens: tokens with a label; None where all samples are alike and nothing is counted.
        documents: documents, or pieces of them.
        pairs: pairs of tokens of which one attends to the other: l (l + 1) / 2 for a document of l tokens.
    """

    tokens: int
    places: int
    supervised_tokens: int | None
    documents: int | None
    pairs: int

    @property
    def fill(self) -> float:
        """The part of the places that hold tokens."""
        return self.tokens / self.places if self.places else 0.0


class GridCell(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch: the samples that one rank takes in one micro-step, as rows of ``samples`` of its `StepGrid`."""

    rank: int
    micro_step: int
    rows: tuple[int, ...]
    held: HeldCounts | None


class StepGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A step, divided among ranks.

    Attributes:
        step: the global step.
        topology: the ranks, and the samples in a micro-batch.
        samples: in the order of their positions, without what they are made of.
        held: what each of them holds; empty if it is not known.
        cells: the micro-batches, by rank and micro-step; empty if it is not known who takes which sample.
        notes: what is not known, and why.
    """

    step: int
    topology: Topology
    samples: tuple[Traced, ...]
    held: tuple[HeldCounts, ...]
    cells: tuple[GridCell, ...]
    notes: tuple[str, ...]


def step_grid(history: History, step: int, topology: Topology, run: Run | None = None) -> StepGrid:
    """Return a step as its micro-batches. Ranks take the samples as without `Balance`, of which the file says nothing.

    Args:
        history: the runs of the training.
        step: the global step.
        topology: the ranks, and the samples in a micro-batch.
        run: the run over its data that holds the step; with it, tokens are counted. O(samples of the step).

    Raises:
        ConfigError: there is no such step.

    Example:
        >>> dataset = headrace.PackedSequenceDataset(headrace.open("stores/web"), headrace.Packing(seq_len=512))
        >>> run = headrace.Run(dataset, global_batch_size=8)
        >>> topology = headrace.tracing.Topology(ranks=2, micro_batch_size=2)
        >>> grid = headrace.tracing.step_grid(headrace.tracing.history_of(run), 3, topology, run)
        >>> [(cell.rank, cell.micro_step, len(cell.rows)) for cell in grid.cells]
        [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
        >>> grid.cells[0].held.places
        1024
    """
    notes: list[str] = []
    vague = any(chapter.trace.is_vague for chapter in history.chapters)
    samples = history.step(step, topology=None if vague else topology, origins=False)
    if vague:
        notes.append("the lengths of records decide which step and which rank takes a sample (bucketing)")
    held: list[HeldCounts] = []
    positions = [sample.position for sample in samples if sample.position is not None]
    if run is None:
        notes.append("without the data, nothing is known of the tokens")
    elif len(samples) > COUNTED_SAMPLES:
        notes.append(f"more than {COUNTED_SAMPLES:,} samples, which are not counted")
    elif len(positions) == len(samples):
        try:
            held = held_by(run, np.array(positions, dtype=np.int64))
        except HeadraceError as error:
            notes.append(f"what the samples hold cannot be counted: {error}")
    is_ragged = run is not None and run.traits.is_ragged
    return StepGrid(
        step=step,
        topology=topology,
        samples=tuple(samples),
        held=tuple(held),
        cells=() if vague else tuple(_cells(samples, held, is_ragged=is_ragged)),
        notes=tuple(notes),
    )


def _cells(samples: Sequence[Traced], held: Sequence[HeldCounts], *, is_ragged: bool) -> list[GridCell]:
    rows: dict[tuple[int, int], list[int]] = {}
    for row, sample in enumerate(samples):
        rows.setdefault((sample.rank or 0, sample.micro_step or 0), []).append(row)
    return [
        GridCell(
            rank=rank,
            micro_step=micro_step,
            rows=tuple(mine),
            held=total([held[row] for row in mine], is_ragged=is_ragged) if held else None,
        )
        for (rank, micro_step), mine in sorted(rows.items())
    ]


def total(held: Sequence[HeldCounts], *, is_ragged: bool) -> HeldCounts:
    """Return what the samples of a micro-batch hold together."""
    columns = zip(*map(msgspec.structs.astuple, held), strict=True)
    sums: list[Any] = [None if None in column else sum(column) for column in columns]
    found = HeldCounts(**dict(zip(HeldCounts.__struct_fields__, sums, strict=True)))
    places = len(held) * max(one.places for one in held) if is_ragged else found.places
    return msgspec.structs.replace(found, places=places)


def held_by(run: Run, positions: IntArray) -> list[HeldCounts]:
    """Return what the samples at some positions hold, without reading them where possible; empty if it is not known."""
    located = run.locate(positions)
    found: list[HeldCounts | None] = [None] * len(positions)
    for source, rows in by_source(located.sources):
        mine = _of_source(run.datasets[source], located.addresses[rows])
        for row, one in zip(np.arange(len(positions))[rows].tolist(), mine, strict=False):
            found[row] = one
    return [one for one in found if one is not None] if None not in found else []


def _of_source(dataset: Any, addresses: IntArray) -> list[HeldCounts]:
    others: list[Any] = [[None] * len(addresses)] * 2
    if isinstance(dataset, CountedDataset):
        counts = dataset.count(addresses)
        tokens, places = counts.tokens, counts.tokens + counts.pads
        others = [counts.supervised_tokens.tolist(), counts.documents.tolist()]
    elif isinstance(dataset, FixedDataset) and "input_ids" in dataset.fields:
        tokens = places = np.full(len(addresses), dataset.fields["input_ids"][0][0], dtype=np.int64)
    elif isinstance(dataset, RaggedDataset) and dataset.traits.has_tokens:
        tokens = places = dataset.sample_lengths(addresses)
    else:
        return []
    columns = zip(tokens.tolist(), places.tolist(), *others, _pairs(dataset, addresses, tokens), strict=True)
    return [HeldCounts(**dict(zip(HeldCounts.__struct_fields__, row, strict=True))) for row in columns]


def _pairs(dataset: Any, addresses: IntArray, tokens: IntArray) -> list[int]:
    """Return the pairs of tokens that attend to each other; documents of a pack do not see each other."""
    if hasattr(dataset, "items") and len(addresses):
        items = dataset.items(addresses)
        lengths = items.lengths.astype(np.int64)
        sums: list[int] = np.add.reduceat(lengths * (lengths + 1) // 2, items.offsets[:-1]).tolist()
        return sums
    squares: list[int] = (tokens * (tokens + 1) // 2).tolist()
    return squares
