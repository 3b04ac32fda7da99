"""Documents of a store packed into samples of fixed length, whose pieces are laid out as rows.

Pieces of documents laid out as rows: the fields of packed samples, many rows at a time.
"""

from __future__ import annotations

import logging
import os
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Counts, Dataset, Fields, Origins, Sample, checked, pieces
from headrace.datasets.loss_masks import AUTO, Labels, check_labels, shown_mask, used_mask
from headrace.datasets.pack_plans import StoreLengths, make_plan
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.packing import Packing, PackingLedger, PackItems
from headrace.plan.segments import IGNORED_LABEL, cu_seqlens
from headrace.stores import Store


class Ranges(dict[int, memoryview]):
    """length -> 0 .. length - 1, each a view that is made once: to look it up costs a third of making it."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._longest = longest
        self.dtype = np.dtype(np.uint16 if longest <= 1 << 16 else np.int32)
        self._numbers = np.arange(longest, dtype=self.dtype).data

    def __missing__(self, length: int) -> memoryview:
        self[length] = self._numbers[:length]
        return self[length]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._longest,)


class Pads(NamedTuple):
    """All pads: their places, counted over all rows, and their positions in their segments; (pads,) int64 each."""

    places: IntArray
    positions: IntArray


class PackedRows(NamedTuple):
    """Where each piece lies in rows of ``row_tokens`` places; pieces of all rows, one after another.

    ``offsets`` (rows + 1,) int64: row i has the pieces ``offsets[i]`` to ``offsets[i + 1]``. ``lengths`` and
    ``segments`` (pieces,) int64: tokens of each piece, and its places with the pads that belong to it. ``ends``
    (pieces,) int64: the place after the last token of each, counted over all rows. ``tails`` (rows,) int64: pads at the
    end of each row. ``widths`` (pieces,) int64: the places from each piece to the next, all pads among them.
    """

    row_tokens: int
    offsets: IntArray
    lengths: IntArray
    segments: IntArray
    ends: IntArray
    tails: IntArray
    widths: IntArray

    @classmethod
    def of(cls, offsets: IntArray, lengths: IntArray, *, row_tokens: int, segment_multiple: int) -> PackedRows:
        """Lay pieces out in rows, each row from its beginning."""
        segments = lengths if segment_multiple == 1 else -(-lengths // segment_multiple) * segment_multiple
        tails = row_tokens - np.add.reduceat(segments, offsets[:-1])
        widths = segments.copy()
        widths[offsets[1:] - 1] += tails
        # The widths of a row fill it, so that their sums are places.
        return cls(row_tokens, offsets, lengths, segments, np.cumsum(widths) - widths + lengths, tails, widths)

    @property
    def is_full(self) -> bool:
        """Whether there are no pads."""
        return int(self.lengths.sum()) == len(self.tails) * self.row_tokens

    def concatenate(self, pieces: list[memoryview], pad: NDArray[Any]) -> NDArray[Any]:
        """(rows * row_tokens,) read-only: pieces and pads in their places, in the dtype that they share.

        ``pad`` is (row_tokens,) of whatever pads are. To join bytes costs half of ``np.concatenate``, and a third of
        casting each piece on the way.
        """
        parts, padding = list(pieces), pad.data
        gaps = self.widths - self.lengths
        behind = np.flatnonzero(gaps)[::-1]
        # From the last one on: what is inserted moves no place that is still to come.
        for piece, gap in zip(behind.tolist(), gaps[behind].tolist(), strict=True):
            parts.insert(piece + 1, padding[:gap])
        return np.frombuffer(b"".join(parts), dtype=pad.dtype)

    def positions(self, ranges: Ranges) -> NDArray[Any]:
        """(rows * row_tokens,) read-only: 0, 1, 2, ... from 0 again at each piece; not right yet at ``pads``."""
        return np.frombuffer(b"".join(map(ranges.__getitem__, self.widths.tolist())), dtype=ranges.dtype)

    def pads(self) -> Pads:
        """Those of the pieces, which go on counting, and those at the ends of rows, which count from 0."""
        rows = np.flatnonzero(self.tails)
        counts = self.tails[rows]
        begins = (rows + 1) * self.row_tokens - counts
        first = np.zeros_like(counts)
        if self.segments is not self.lengths:
            counts = np.concatenate([self.segments - self.lengths, counts])
            begins, first = np.concatenate([self.ends, begins]), np.concatenate([self.lengths, first])
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Pads(numbers + np.repeat(begins, counts), numbers + np.repeat(first, counts))


_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_PACK_BITS = 32
_CHUNK = 1 << 16
_log = logging.getLogger("headrace")


class PackedSequenceDataset(Dataset):
    """Sample i is pack i of a plan over the lengths of a store's documents.

    Fields, each (seq_len,):

    - ``input_ids`` int64: documents one after another, then pads of ``padding_idx``;
    - ``labels`` int64: for each token the next one of its document; -100 where there is none (the last token of a
      document; with ``border_labels="keep"`` the next document's first token), at pads, and where the store's loss mask
      is 0 for the token that is to be predicted. With ``labels="same"`` a label is the token beside it, as Hugging
      Face's models want it, which shift by themselves; the first token of a segment has none;
    - ``loss_mask`` bool: where the label is not -100;
    - ``position_ids`` int64: from 0 again in each segment, that is a document and its own pads, or the pads at the end;
    - ``document_ids`` int64: the store's number of each token's document, -1 at pads.

    Items have besides ``seq_lens`` (segments,) int32, ``cu_seqlens`` (segments + 1,) int32, their prefix sums from 0 to
    seq_len, and ``max_seqlen``, an int.

    A piece of a document that was cut has the document's next token as the label of its last one: nothing is lost. With
    ``labels="same"`` that label has no place, and each cut costs one.

    The plan is made at once (see `headrace.plan.packing.plan_packs` for its cost), or mapped where it was kept before.

    Args:
        store: where the documents are.
        packing: how they are packed.
        padding_idx: the id of pads.
        loss_mask_key: the parallel key of the store that is 1 at tokens that are trained on: ``"auto"`` the loss mask
            that it has, if it has one (``loss_mask``, or ``chosen_mask`` of ``chosen`` and so on); None trains on every
            token.
        border_labels: whether a document's last token has a label.
        labels: what a label stands beside.
        plan_folder: where plans are kept; by default those of over a million documents in ``$HEADRACE_CACHE``, or
            ``~/.cache/headrace``, and smaller ones nowhere, since to make them takes less than a tenth of a second.

    Raises:
        ConfigError: over-long documents and no policy for them, no documents with tokens, an unknown key or value.
    """

    def __init__(
        self,
        store: Store,
        packing: Packing,
        *,
        padding_idx: int = 0,
        loss_mask_key: str | None = AUTO,
        border_labels: Literal["mask", "keep"] = "mask",
        labels: Labels = "next",
        plan_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        if not isinstance(packing, Packing):
            raise ConfigError(f"packing is {packing!r}; expected a Packing, as headrace.Packing(seq_len=4096)")
        if border_labels not in ("mask", "keep"):
            raise ConfigError(f"border_labels is {border_labels!r}; allowed are 'mask', 'keep'")
        self.store = store
        self.packing = packing
        self.padding_idx = index(padding_idx)
        self._keep_borders = border_labels == "keep"
        check_labels(labels)
        self.labels = labels
        self.loss_mask_key = used_mask(store, loss_mask_key)
        self._lengths = StoreLengths(store)
        self.plan = make_plan(store, self._lengths, packing, None if plan_folder is None else Path(plan_folder))
        if not len(self.plan):
            raise ConfigError(f"{store.path} has no documents to pack into {packing.seq_len:,} tokens")
        self._ranges = Ranges(packing.seq_len)
        self._number_dtype = np.int32 if store.num_documents < 1 << 31 else np.int64
        self._pad = np.zeros(packing.seq_len, dtype=store.dtypes[store.keys[0]])
        self._say()

    def _say(self) -> None:
        """What was lost is said before the first step."""
        level = logging.WARNING if self.ledger.lost_tokens else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s: %s", self.store.path, self.describe())

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def seq_len(self) -> int:
        """Tokens of a sample, pads included."""
        return self.packing.seq_len

    @property
    def ledger(self) -> PackingLedger:
        """Where every document and token of the store went."""
        return self.plan.ledger

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype)."""
        dtypes = dict.fromkeys(("input_ids", "labels", "position_ids", "document_ids"), _INT64)
        return {name: ((self.seq_len,), dtype) for name, dtype in {**dtypes, "loss_mask": _BOOL}.items()}

    @property
    def is_packed(self) -> bool:
        """Samples are made of segments."""
        return True

    @property
    def is_unshifted(self) -> bool:
        """With ``labels="same"``."""
        return self.labels == "same"

    @property
    def is_masked(self) -> bool:
        """Whether there is a loss mask."""
        return self.loss_mask_key is not None

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean tokens of a pack, without pads."""
        return self.ledger.num_tokens / len(self)

    @property
    def deviation_tokens_per_sample(self) -> float:
        """The standard deviation of the same."""
        return self.plan.meta.deviation_tokens

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples; labels are in it where they are not as they always were."""
        recipe: dict[str, Any] = {
            "kind": "packed_sequences",
            "version": self.plan.meta.version,
            "store": self.store.fingerprint,
            "num_tokens": self.store.num_tokens,
            "lengths": self.plan.meta.lengths_xxh3_128,
            "packing": msgspec.to_builtins(self.packing),
            "padding_idx": self.padding_idx,
            "loss_mask_key": self.loss_mask_key,
            "border_labels": "keep" if self._keep_borders else "mask",
        }
        if self.labels == "same":
            recipe["labels"] = self.labels
        return recipe

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the pack, and with ``repack`` 30 bits of the epoch's key above it."""
        if keys is None or not self.packing.repack:
            return indices
        # The lowest bit says that there is a key: without one nothing is exchanged.
        return indices | ((keys >> np.uint64(34)).astype(np.int64) << (_PACK_BITS + 1)) | (1 << _PACK_BITS)

    def items(self, addresses: IntArray) -> PackItems:
        """The pieces in the packs at some addresses."""
        if not self.packing.repack:
            return self.plan.items(addresses)
        packs = addresses & ((1 << _PACK_BITS) - 1)
        if not (addresses >> _PACK_BITS).any():
            return self.plan.items(packs)
        return self.plan.items(packs, (addresses >> (_PACK_BITS + 1)).astype(np.uint64))

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The pieces of documents in each pack."""
        items = self.items(addresses)
        return pieces(self.store, items.offsets, items.documents, items.begins, items.lengths)

    def holders(self, document: int) -> IntArray:
        """The packs of a document; with ``repack`` all that may get it in some epoch. One pass over the plan."""
        checked(self.store, document)
        found, lengths = self._packs_with("documents", [document])
        if self.packing.repack:
            # Documents change places with those of the same length; what is cut off in full packs stays.
            found = np.union1d(found, self._packs_with("lengths", lengths)[0])
        return found

    def _packs_with(self, name: str, values: list[int]) -> tuple[IntArray, list[int]]:
        """The packs with a piece of which something is one of some values, and the lengths of such pieces."""
        packs: list[IntArray] = [np.empty(0, dtype=np.int64)]
        lengths: set[int] = set()
        for first in range(0, len(self), _CHUNK):
            some = np.arange(first, min(first + _CHUNK, len(self)), dtype=np.int64)
            items = self.plan.items(some)
            there = np.flatnonzero(np.isin(getattr(items, name), values))
            packs.append(some[np.searchsorted(items.offsets, there, side="right") - 1])
            lengths.update(items.lengths[there].tolist())
        return np.unique(np.concatenate(packs)), sorted(lengths)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the packs at ``addresses`` into ``rows`` of ``out``."""
        if isinstance(rows, slice) and all(values[rows].flags.c_contiguous for values in out.values()):
            self._assemble(addresses, {name: values[rows] for name, values in out.items()})
            return
        apart = {name: np.empty((len(addresses), *values.shape[1:]), values.dtype) for name, values in out.items()}
        self._assemble(addresses, apart)
        for name, values in apart.items():
            out[name][rows] = values

    def _assemble(self, addresses: IntArray, out: Sample) -> None:
        if not len(addresses):
            return
        items = self.items(addresses)
        packing = self.packing
        layout = PackedRows.of(
            items.offsets, items.lengths, row_tokens=self.seq_len, segment_multiple=packing.segment_multiple
        )
        flat = {name: values.reshape(-1) for name, values in out.items()}
        ids, labels, mask = flat["input_ids"], flat["labels"], flat["loss_mask"]
        positions, documents = flat["position_ids"], flat["document_ids"]
        tokens = layout.concatenate(self.store.buffers(items.starts, items.lengths), self._pad)
        ids[:] = tokens
        labels[:-1] = tokens[1:]
        positions[:] = layout.positions(self._ranges)
        # Half the bytes where the numbers of documents fit: what is repeated is written once more.
        documents[:] = np.repeat(items.documents.astype(self._number_dtype), layout.widths)
        mask[:] = True
        if not layout.is_full:
            pads = layout.pads()
            ids[pads.places] = self.padding_idx
            labels[pads.places] = IGNORED_LABEL
            mask[pads.places] = False
            positions[pads.places] = pads.positions
            documents[pads.places] = -1
        last = layout.ends - 1
        # The last token of a piece: what follows in its document where it goes on, else nothing, unless it is asked to
        # have what follows in the pack.
        closed = last[~self._labelled(items)]
        labels[closed] = IGNORED_LABEL
        mask[closed] = False
        going_on = np.flatnonzero(items.continues & (self.labels == "next"))
        if len(going_on):
            after = items.starts[going_on] + items.lengths[going_on]
            labels[last[going_on]] = np.concatenate(self.store.pieces(after, np.ones_like(after)))
        if self.loss_mask_key is not None:
            self._mask_labels(self.loss_mask_key, items, layout, labels, mask)
        if self.labels == "same":
            # The last label of a row is -100, and so the first one of the next.
            for row, none in ((labels, IGNORED_LABEL), (mask, False)):
                row[1:] = row[:-1].copy()
                row[0] = none

    def _mask_labels(
        self, key: str, items: PackItems, layout: PackedRows, labels: NDArray[Any], mask: NDArray[Any]
    ) -> None:
        """Leave out the labels of tokens that the store says are not trained on."""
        marks = self.store.buffers(items.starts, items.lengths, key)
        # A label is the token after its own, and it is that token's mark that counts.
        wanted = np.zeros(len(mask), dtype=bool)
        wanted[:-1] = layout.concatenate(marks, np.zeros(self.seq_len, self.store.dtypes[key]))[1:] != 0
        going_on = np.flatnonzero(items.continues)
        if len(going_on):
            after = items.starts[going_on] + items.lengths[going_on]
            wanted[layout.ends[going_on] - 1] = _joined(self.store, after, np.ones_like(after), key) != 0
        mask &= wanted
        labels[~mask] = IGNORED_LABEL

    def count(self, addresses: IntArray) -> Counts:
        """Of each pack: tokens, supervised tokens, pads, pieces; reads nothing but marks, with a ``loss_mask_key``."""
        items = self.items(addresses)
        sums = _prefix_sums(items.lengths)
        tokens = np.diff(sums[items.offsets])
        # A piece predicts all its tokens but the first, and the one after its last where there is a label for it.
        labelled = self._labelled(items)
        if self.loss_mask_key is None:
            supervised = items.lengths - 1 + labelled
        else:
            marks = np.append(_joined(self.store, items.starts, items.lengths, self.loss_mask_key) != 0, False)
            trained = np.diff(_prefix_sums(marks[:-1])[sums]) - marks[sums[:-1]]
            supervised = trained + self._marks_after(self.loss_mask_key, items, marks[sums[:-1]]) * labelled
        return Counts(
            tokens, np.diff(_prefix_sums(supervised)[items.offsets]), self.seq_len - tokens, np.diff(items.offsets)
        )

    def _labelled(self, items: PackItems) -> NDArray[np.bool_]:
        """(pieces,): whether the last token of a piece has a label, in its document or, if asked to, behind it."""
        # What the document goes on with is in another row, and beside itself it is the first of its segment.
        continues = items.continues if self.labels == "next" else np.zeros_like(items.continues)
        if not self._keep_borders:
            return continues
        followed: NDArray[np.bool_] = (items.lengths % self.packing.segment_multiple == 0) & ~items.continues
        followed[items.offsets[1:] - 1] = False
        return continues | followed

    def _marks_after(self, key: str, items: PackItems, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(pieces,): the mark of what each piece's last token predicts; ``first`` are those of the first tokens."""
        after = np.append(first[1:], False)
        going_on = np.flatnonzero(items.continues)
        if len(going_on):
            places = items.starts[going_on] + items.lengths[going_on]
            after[going_on] = _joined(self.store, places, np.ones_like(places), key) != 0
        return after

    def __getitem__(self, number: int) -> Sample:
        return with_segments(super().__getitem__(number))

    def __getitems__(self, indices: Any) -> list[Sample]:
        """The samples at ``indices``, read as one batch."""
        return [with_segments(sample) for sample in super().__getitems__(indices)]

    def describe(self) -> str:
        """One line: how the documents are packed, how full, and what was lost."""
        ledger, packing = self.ledger, self.packing
        packed = ledger.raw_documents - ledger.empty_documents - ledger.dropped_documents
        labels = ", labels beside their own tokens" if self.labels == "same" else ""
        local = "" if packing.window_documents is None else f" by windows of {packing.window_documents:,} documents"
        return (
            f"packs of {self.seq_len:,} tokens ({packing.strategy}{local}): {packed:,} documents, "
            f"{packed / len(self):,.1f} a pack, fill {ledger.fill:.2%}, "
            f"{ledger.split_documents:,} documents split, {ledger.lost_share:.2%} of the tokens lost{labels}"
            f"{shown_mask(self.store, self.loss_mask_key)}"
        )


def with_segments(sample: Sample) -> Sample:
    """A packed sample with its ``seq_lens``, ``cu_seqlens`` and ``max_seqlen``."""
    bounds = cu_seqlens(sample["position_ids"])
    lengths = np.diff(bounds)
    extra: dict[str, Any] = {"seq_lens": lengths, "cu_seqlens": bounds, "max_seqlen": int(lengths.max())}
    return {**sample, **extra}


def _joined(store: Store, begins: IntArray, lengths: IntArray, key: str) -> NDArray[Any]:
    """(tokens,) read-only: the values of a key in ranges of the stream, one after another."""
    return np.frombuffer(b"".join(store.buffers(begins, lengths, key)), store.dtypes[key])


def _prefix_sums(values: NDArray[Any]) -> IntArray:
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
