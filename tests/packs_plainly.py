"""What packs should be, by plain loops over single documents; and packings and lengths drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import packs_made
from headrace.datasets import PackedSequenceDataset
from headrace.datasets.dataset import Sample
from headrace.plan.packing import Packing, PackItems

FIELDS = ["input_ids", "labels", "position_ids", "document_ids", "loss_mask"]


class Piece(NamedTuple):
    """Tokens ``[begin, begin + length)`` of a document; ``continues``: the document goes on in another pack."""

    document: int
    begin: int
    length: int
    continues: bool


def best_fit(sizes: Sequence[int], capacity: int, most: int = 0) -> list[list[int]]:
    """Best-fit decreasing, quadratic: of equal sizes the first first, of equal rooms the one that came to it first.

    Here and below a pack of ``most`` pieces takes no more, unless this is 0.
    """
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # the room that is left, and when it came to be
    for now, number in enumerate(sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))):
        open_packs = [pack for pack, held in enumerate(packs) if not most or len(held) < most]
        fitting = [(*rooms[pack], pack) for pack in open_packs if rooms[pack][0] >= sizes[number]]
        if fitting:
            room, _, pack = min(fitting)
            packs[pack].append(number)
            rooms[pack] = room - sizes[number], now
        else:
            packs.append([number])
            rooms.append((capacity - sizes[number], now))
    return packs


def first_fit(sizes: Sequence[int], capacity: int, most: int = 0) -> list[list[int]]:
    """In the order of arrival, each into the first pack that has room."""
    packs: list[list[int]] = []
    for number, size in enumerate(sizes):
        for pack in packs:
            if sum(sizes[one] for one in pack) + size <= capacity and len(pack) != most:
                pack.append(number)
                break
        else:
            packs.append([number])
    return packs


def next_fit(sizes: Sequence[int], capacity: int, most: int = 0) -> list[list[int]]:
    """In the order of arrival, a new pack where the next one does not fit."""
    packs: list[list[int]] = []
    for number, size in enumerate(sizes):
        if not packs or sum(sizes[one] for one in packs[-1]) + size > capacity or len(packs[-1]) == most:
            packs.append([])
        packs[-1].append(number)
    return packs


def wrapped(lengths: Sequence[int], seq_len: int) -> list[list[Piece]]:
    """Documents one after another, cut where a pack is full."""
    packs: list[list[Piece]] = []
    room = 0
    for document, length in enumerate(lengths):
        begin = 0
        while begin < length:
            if not room:
                packs.append([])
                room = seq_len
            taken = min(room, length - begin)
            packs[-1].append(Piece(document, begin, taken, begin + taken < length))
            begin, room = begin + taken, room - taken
    return packs


def pieces(document: int, length: int, packing: Packing) -> list[Piece]:
    """What becomes of one document."""
    size = packing.seq_len
    if length <= size:
        return [Piece(document, 0, length, False)] if length else []
    if packing.over_long == "split" or packing.strategy == "best_fit_split":
        begins = range(0, length, size)
        return [Piece(document, begin, min(size, length - begin), begin + size < length) for begin in begins]
    begins_at = {"truncate_right": 0, "truncate_left": length - size}
    return [Piece(document, begins_at[packing.over_long], size, False)] if packing.over_long in begins_at else []


def packs(lengths: Sequence[int], packing: Packing) -> list[list[Piece]]:
    """All packs of a packing, in order."""
    if packing.strategy == "wrapped":
        return wrapped(lengths, packing.seq_len)
    found = []
    window = packing.window_documents or max(1, len(lengths))
    for first in range(0, len(lengths), window):
        documents = range(first, min(first + window, len(lengths)))
        cut = [piece for document in documents for piece in pieces(document, lengths[document], packing)]
        strategy = {"greedy": next_fit, "first_fit": first_fit}.get(packing.strategy, best_fit)
        if strategy is best_fit and packing.window_documents is None:
            # Full pieces are the first packs. Without padded segments they are, anyway: no other is as long and cut.
            cut.sort(key=lambda piece: not _is_full(piece, lengths, packing))
        sizes = [-(-piece.length // packing.segment_multiple) for piece in cut]
        chosen = strategy(sizes, packing.capacity, packing.max_documents or 0)
        found += [[cut[number] for number in pack] for pack in chosen]
    return found


def _is_full(piece: Piece, lengths: Sequence[int], packing: Packing) -> bool:
    splits = packing.over_long == "split" or packing.strategy == "best_fit_split"
    return splits and piece.length == packing.seq_len <= lengths[piece.document]


def unpacked(items: PackItems) -> list[list[Piece]]:
    """The pieces of each pack as a plan gives them."""
    columns = (items.documents, items.begins, items.lengths, items.continues)
    every = [Piece(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    bounds = items.offsets.tolist()
    return [every[begin:end] for begin, end in pairwise(bounds)]


def rows(
    packs: Sequence[Sequence[Piece]],
    documents: Sequence[Sequence[int]],
    packing: Packing,
    *,
    marks: Sequence[Sequence[int]] | None = None,
    keep_borders: bool = False,
) -> list[list[packs_made.Piece]]:
    """Packs with their tokens, for ``packs_made.make`` to lay out; ``marks`` are 1 at tokens that are trained on."""

    def label(document: int, at: int) -> int | None:
        return documents[document][at] if marks is None or marks[document][at] else None

    found = []
    for pack in packs:
        row = []
        for number, piece in enumerate(pack):
            end = piece.begin + piece.length
            after = label(piece.document, end) if piece.continues else None
            pads = -piece.length % packing.segment_multiple
            if keep_borders and not piece.continues and not pads and number + 1 < len(pack):
                after = label(pack[number + 1].document, pack[number + 1].begin)
            row.append(
                packs_made.Piece(
                    document=piece.document,
                    tokens=tuple(documents[piece.document][piece.begin : end]),
                    trained=tuple(label(piece.document, at) is not None for at in range(piece.begin, end)),
                    after=after,
                    pads=pads,
                )
            )
        found.append(row)
    return found


def check_samples(
    dataset: PackedSequenceDataset,
    documents: list[list[int]],
    indices: np.ndarray,
    keys: np.ndarray | None = None,
    marks: list[list[int]] | None = None,
) -> None:
    """Batch, items and counts of some packs are those of a plain assembly."""
    addresses = dataset.locate(indices, keys)
    if keys is None:
        every = packs([len(document) for document in documents], dataset.packing)
        assert len(dataset) == len(every)
        mine = [every[index] for index in indices.tolist()]
    else:  # tests/plan/packing/test_fitting.py shows that these are right
        mine = unpacked(dataset.items(addresses))
    keep_borders = dataset.recipe["border_labels"] == "keep"
    laid_out = rows(mine, documents, dataset.packing, marks=marks, keep_borders=keep_borders)
    wanted = packs_made.make(laid_out, dataset.seq_len, padding_idx=dataset.padding_idx)
    batch = dataset.read(addresses)
    assert list(batch) == list(dataset.fields) == sorted(FIELDS, key=list(batch).index)
    for name in FIELDS:
        assert batch[name].dtype == wanted[name].dtype
        assert batch[name].tolist() == wanted[name].tolist(), name
    counts = dataset.count(addresses)
    tokens = [sum(piece.length for piece in pack) for pack in mine]
    assert counts.tokens.tolist() == tokens
    assert counts.supervised_tokens.tolist() == wanted["loss_mask"].sum(axis=1).tolist()
    assert counts.pads.tolist() == [dataset.seq_len - some for some in tokens]
    assert counts.documents.tolist() == [len(pack) for pack in mine]
    if keys is None:
        for index, row in zip(indices[:2].tolist(), laid_out, strict=False):
            _same_item(dataset[index], packs_made.item(row, dataset.seq_len, padding_idx=dataset.padding_idx))


def _same_item(found: Sample, wanted: dict[str, Any]) -> None:
    for name in (*FIELDS, "seq_lens", "cu_seqlens"):
        assert found[name].dtype == wanted[name].dtype
        assert found[name].tolist() == wanted[name].tolist(), name
    assert type(found["max_seqlen"]) is int
    assert found["max_seqlen"] == wanted["max_seqlen"]
    assert len(found) == len(FIELDS) + 3


@st.composite
def packings(draw: st.DrawFn, *, most_units: int = 20) -> Packing:
    """Any packing whose options go together and that refuses no document."""
    strategy: Any = draw(st.sampled_from(["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]))
    cuts = strategy in ("best_fit_split", "wrapped")
    multiple = 1 if strategy == "wrapped" else draw(st.sampled_from([1, 1, 1, 2, 4]))
    window = None if strategy == "wrapped" else draw(st.none() | st.integers(1, 30))
    return Packing(
        seq_len=multiple * draw(st.integers(1, most_units)),
        strategy=strategy,
        over_long="split" if cuts else draw(st.sampled_from(["split", "truncate_left", "truncate_right", "drop"])),
        window_documents=window,
        repack=strategy.startswith("best_fit") and window is None and draw(st.booleans()),
        segment_multiple=multiple,
        max_documents=None if strategy == "wrapped" else draw(st.none() | st.integers(1, 5) | st.integers(1, 30)),
    )


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[int], Packing]:
    """A packing, and lengths that matter to it: none, all equal, equal to it, a little more, and many times as long."""
    packing = draw(packings())
    size = packing.seq_len
    some = st.integers(0, draw(st.sampled_from([1, size, size + 1, 3 * size + 1])))
    edges = st.sampled_from([0, 1, size - 1, size, size + 1, 2 * size, 2 * size + 1])
    equal = st.integers(0, 2 * size).flatmap(lambda length: st.lists(st.just(length), max_size=30))
    return draw(st.lists(some | edges, max_size=40) | equal), packing


class ChunkedLengths:
    """Lengths that come in chunks of given sizes, again and again, in any dtype of integers."""

    def __init__(self, lengths: Sequence[int], sizes: Sequence[int], dtype: str = "int64") -> None:
        self._lengths = np.array(lengths, dtype=dtype)
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._lengths)

    def chunks(self) -> Iterator[np.ndarray]:
        at = turn = 0
        while at < len(self):
            size = self._sizes[turn % len(self._sizes)]
            yield self._lengths[at : at + size]
            at, turn = at + size, turn + 1

    def spans(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = self._lengths.astype(np.int64)
        return (np.cumsum(lengths) - lengths)[documents], lengths[documents]
