"""`PackedSequenceDataset`: documents of a store packed into samples of fixed length.

`PackedRows` lays the pieces of many packs out as rows and makes the fields of all rows at once. The plan of packs over
the documents of a store is made, kept in a cache folder, and found again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, whole
from headrace.datasets.dataset import CountedDataset, Counts, Fields, FixedDataset, Sample, Traits
from headrace.datasets.exclusions import ExcludedDocuments, Held, is_in
from headrace.datasets.loss_masks import AUTO, Labels, check_store, shown_mask, used_mask
from headrace.datasets.origins import Origins, checked, document_spans, pieces
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import cache_folder
from headrace.plan import IntArray, KeyArray
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.packing import (
    CHUNK,
    PLAN_VERSION,
    Packing,
    PackingLedger,
    PackItems,
    PackPlan,
    PackPlanMeta,
    own_lengths,
    plan_packs,
)
from headrace.plan.segments import IGNORED_LABEL, cu_seqlens
from headrace.stores import Store, find_cache, keep_arrays, kept_name
from headrace.stores.store import Extents

if TYPE_CHECKING:
    from headrace.datasets.recipes import Maker


class Ranges(dict[int, memoryview]):
    """Maps a length to the numbers 0 to length - 1: a view made once, as a look-up costs a third of making it."""

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


class PackedRows(NamedTuple):
    """Where each piece lies in rows of ``row_tokens`` places; the pieces of all rows follow one another.

    ``lengths`` and ``gaps`` (pieces,) int64: the tokens of each piece, and the pads that follow it. ``ends`` (pieces,)
    int64: the place after the last token of each piece, counted over all rows. ``tails`` (rows,) int64: the pads at the
    end of each row, which are a segment of their own.
    """

    row_tokens: int
    lengths: IntArray
    gaps: IntArray
    ends: IntArray
    tails: IntArray

    @classmethod
    def of(cls, offsets: IntArray, lengths: IntArray, *, row_tokens: int, segment_multiple: int) -> PackedRows:
        """Lay pieces out in rows, each row from its beginning: row i has the pieces from ``offsets[i]`` on."""
        gaps = -lengths % segment_multiple
        tails = row_tokens - np.add.reduceat(lengths + gaps, offsets[:-1])
        gaps[offsets[1:] - 1] += tails
        # Pieces and pads of a row add up to row_tokens, so that their running sums are places over all rows.
        return cls(row_tokens, lengths, gaps, np.cumsum(lengths + gaps) - gaps, tails)

    @property
    def pads(self) -> IntArray:
        """(pads,) int64: the places of all pads, counted over all rows."""
        gaps = self.gaps
        places: IntArray = np.arange(gaps.sum()) + np.repeat(self.ends + gaps - np.cumsum(gaps), gaps)
        return places

    def concatenate(self, pieces: list[memoryview], pad: NDArray[Any]) -> NDArray[Any]:
        """(rows * row_tokens,) read-only: pieces and pads in their places, in the dtype that they share.

        ``pad`` is (row_tokens,) of pad values. Joining bytes costs half of ``np.concatenate``, and a third of casting
        each piece on the way.
        """
        parts, padding = list(pieces), pad.data
        behind = np.flatnonzero(self.gaps)[::-1]
        # From the last gap to the first, so that an insertion does not move the places that are still to be filled.
        for piece, gap in zip(behind.tolist(), self.gaps[behind].tolist(), strict=True):
            parts.insert(piece + 1, padding[:gap])
        return np.frombuffer(b"".join(parts), dtype=pad.dtype)

    def write_positions(self, ranges: Ranges, out: IntArray) -> None:
        """Fill (rows * row_tokens,) ``out`` with 0, 1, 2, ..., from 0 again in each segment."""
        widths = (self.lengths + self.gaps).tolist()
        out[:] = np.frombuffer(b"".join(map(ranges.__getitem__, widths)), dtype=ranges.dtype)
        for row in np.flatnonzero(self.tails).tolist():
            end, tail = (row + 1) * self.row_tokens, int(self.tails[row])
            out[end - tail : end] = ranges[tail]


_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_PACK_BITS = 32
_CHUNK = 1 << 16
SURVEYED_DOCUMENTS = 1 << 24
"""Most documents whose lengths are looked at once more before a run, in about 0.1 s."""
_log = logging.getLogger("headrace")


class PackedSequenceDataset(FixedDataset, CountedDataset):
    """Sample i is pack i of a plan over the lengths of a store's documents.

    Fields, each (seq_len,):

    - ``input_ids`` int64: documents one after another, then pads of ``padding_idx``;
    - ``labels`` int64: for each token the next one of its document; -100 where there is none (at the last token of a
      document; with ``border_labels="keep"`` it has the next document's first token), at pads, and where the store's
      loss mask is 0 for the token to be predicted. With ``labels="same"`` a label is the token at its own place, for
      models that shift labels themselves, such as those of Hugging Face; the first token of a segment has none;
    - ``loss_mask`` bool: where the label is not -100;
    - ``position_ids`` int64: from 0 again in each segment, which is a document and its own pads, or the pads at the
      end;
    - ``document_ids`` int64: the number of each token's document in the store, -1 at pads.

    Single items also have ``seq_lens`` (segments,) int32, their prefix sums ``cu_seqlens`` (segments + 1,) int32 from 0
    to seq_len, and ``max_seqlen``, an int.

    If a document was cut, the last token of a piece has the document's next token as its label, so that no label is
    lost. With ``labels="same"`` there is no place for that label, and each cut costs one.

    The plan is made in the constructor (see `headrace.plan.packing.plan_packs` for its cost), or memory-mapped if it
    was kept before.

    Args:
        store: an open store of tokens.
        packing: length of the packs and how they are filled.
        padding_idx: token id of pads.
        loss_mask_key: the parallel key that is 1 at tokens to train on. ``"auto"`` uses the loss mask of the store, if
            it has one: ``loss_mask``, or ``chosen_mask`` for ``chosen``, and so on. None trains on every token.
        border_labels: ``"mask"`` or ``"keep"``: whether a document's last token has a label, see above.
        labels: ``"next"`` or ``"same"``, see above.
        plan_folder: folder where plans are kept. By default plans of over a million documents are kept in
            ``$HEADRACE_CACHE`` or ``~/.cache/headrace``; smaller ones are not, since making them takes less than a
            tenth of a second.

    Raises:
        ConfigError: a document is too long and the packing has no policy for it, no document has tokens, or a key or
            value is unknown.

    Example:
        >>> store = headrace.open("stores/web")
        >>> packing = headrace.Packing(seq_len=512, strategy="best_fit_split")
        >>> dataset = headrace.PackedSequenceDataset(store, packing)
        >>> dataset[0]["input_ids"].shape, int(dataset[0]["cu_seqlens"][-1])
        ((512,), 512)
        >>> dataset.ledger.lost_tokens
        0
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
        check_store(store)
        if not isinstance(packing, Packing):
            raise ConfigError(f"packing is {packing!r}; expected a Packing, such as headrace.Packing(seq_len=4096)")
        check_choice("border_labels", border_labels, ("mask", "keep"))
        self.store = store
        self.packing = packing
        self.padding_idx = whole(padding_idx, "padding_idx")
        self._keep_borders = border_labels == "keep"
        check_choice("labels", labels, get_args(Labels))
        self.labels = labels
        self.loss_mask_key = used_mask(store, loss_mask_key)
        self._lengths = StoreLengths(store)
        self.plan = make_plan(store, self._lengths, packing, None if plan_folder is None else Path(plan_folder))
        if not len(self.plan):
            raise ConfigError(f"{store.path} has no documents to pack into {packing.seq_len:,} tokens")
        self._ranges = Ranges(packing.seq_len)
        self._number_dtype = np.int32 if store.num_documents < 1 << 31 else np.int64
        self._pad = np.zeros(packing.seq_len, dtype=store.dtypes[store.keys[0]])
        self._log_packing()

    def _log_packing(self) -> None:
        """Log the packing before the first step, as a warning if tokens are lost."""
        level = logging.WARNING if self.ledger.lost_tokens else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s: %s", self.store.path, self.describe())

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def seq_len(self) -> int:
        """Number of tokens in a sample, pads included."""
        return self.packing.seq_len

    @property
    def ledger(self) -> PackingLedger:
        """Where every document and token of the store went."""
        return self.plan.ledger

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of the arrays that are read for each sample."""
        dtypes = dict.fromkeys(("input_ids", "labels", "position_ids", "document_ids"), _INT64)
        return {name: ((self.seq_len,), dtype) for name, dtype in {**dtypes, "loss_mask": _BOOL}.items()}

    @property
    def pad_id(self) -> int:
        """The ``padding_idx``."""
        return self.padding_idx

    def without(self, documents: IntArray, pad_id: int) -> ExcludedDocuments:
        """Return the packs with some documents masked out."""
        return ExcludedDocuments(self, _PackMask(self, documents), documents, pad_id)

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(
            is_packed=True,
            is_counted=True,
            is_unshifted=self.labels == "same",
            holds_interpreter=True,
        )

    @cached_property
    def has_unsupervised_samples(self) -> bool:
        """Whether a pack may have no label: if there is a mask, or a piece of one token. One pass over the lengths."""
        # Packs of ``wrapped`` are cut anywhere.
        is_cut = self.packing.strategy == "wrapped" or self.seq_len == 1
        if self.loss_mask_key is not None or is_cut or len(self._lengths) > SURVEYED_DOCUMENTS:
            return True
        return any((own_lengths(chunk, self.packing) == 1).any() for chunk in self._lengths.chunks())

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens in a pack, without pads."""
        return self.ledger.num_tokens / len(self)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples. Labels are in it only if they differ from the first default."""
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

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker) -> PackedSequenceDataset:
        """Return the packs of a recipe."""
        options = {name: recipe[name] for name in ("padding_idx", "loss_mask_key", "border_labels")}
        packing = msgspec.convert(recipe["packing"], Packing)
        return cls(maker.store(), packing, labels=recipe.get("labels", "next"), **options)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the number of the pack; with ``repack`` the higher bits hold 30 bits of the epoch's key."""
        if keys is None or not self.packing.repack:
            return indices
        # The bit above the pack says that there is a key: without a key no documents change places.
        return indices | ((keys >> np.uint64(34)).astype(np.int64) << (_PACK_BITS + 1)) | (1 << _PACK_BITS)

    def items(self, addresses: IntArray) -> PackItems:
        """Return the pieces in the packs at some addresses."""
        if not self.packing.repack:
            return self.plan.items(addresses)
        packs = addresses & ((1 << _PACK_BITS) - 1)
        if not (addresses >> _PACK_BITS).any():
            return self.plan.items(packs)
        return self.plan.items(packs, (addresses >> (_PACK_BITS + 1)).astype(np.uint64))

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the pieces of documents in each pack."""
        items = self.items(addresses)
        return pieces(self.store, items.offsets, items.documents, items.begins, items.lengths)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of all pieces, with the token that a document goes on with, and those of the loss mask."""
        items = self.items(addresses)
        packs = np.repeat(np.arange(len(addresses), dtype=np.int64), np.diff(items.offsets))
        lengths = items.lengths + items.continues
        keys = (None,) if self.loss_mask_key is None else (None, self.loss_mask_key)
        parts = [self.store.extents(items.starts, lengths, key) for key in keys]
        return [part._replace(rows=packs[part.rows]) for part in parts]

    def holders(self, documents: IntArray | int, *, as_labels: bool = False) -> IntArray:
        """Return the packs of some documents; with ``repack``, all that may hold them. One pass over the plan."""
        asked = np.array([checked(self.store, one) for one in np.atleast_1d(documents).tolist()], dtype=np.int64)
        found, lengths = self._packs_with(asked)
        if self.packing.repack:
            # Documents change places with others of the same length, counted with the pads of their segments; pieces
            # cut off into full packs stay.
            found = np.union1d(found, self._packs_with(None, lengths)[0])
        return found

    def _packs_with(self, documents: IntArray | None, lengths: IntArray = NOTHING) -> tuple[IntArray, IntArray]:
        """Return the packs with pieces of some documents, or with segments of some lengths, and the lengths found."""
        packs: list[IntArray] = [np.empty(0, dtype=np.int64)]
        found: list[IntArray] = [np.empty(0, dtype=np.int64)]
        multiple = self.packing.segment_multiple
        for first in range(0, len(self), _CHUNK):
            some = np.arange(first, min(first + _CHUNK, len(self)), dtype=np.int64)
            items = self.plan.items(some)
            segments = -(-items.lengths // multiple) * multiple
            wanted = is_in(segments, lengths) if documents is None else is_in(items.documents, documents)
            hits = np.flatnonzero(wanted)
            packs.append(some[np.searchsorted(items.offsets, hits, side="right") - 1])
            found.append(np.unique(segments[hits]))
        return np.unique(np.concatenate(packs)), np.unique(np.concatenate(found))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the packs at ``addresses`` into ``rows`` of ``out``."""
        if isinstance(rows, slice):
            parts = {name: values[rows] for name, values in out.items()}
            if all(values.flags.c_contiguous for values in parts.values()):
                self._assemble(addresses, parts)
                return
        apart = {name: np.empty((len(addresses), *values.shape[1:]), values.dtype) for name, values in out.items()}
        self._assemble(addresses, apart)
        for name, values in apart.items():
            out[name][rows] = values

    def _assemble(self, addresses: IntArray, out: Sample) -> None:
        if not len(addresses):
            return
        items = self.items(addresses)
        layout = self.layout(items)
        flat = {name: values.reshape(-1) for name, values in out.items()}
        ids, labels, mask, documents = (flat[name] for name in ("input_ids", "labels", "loss_mask", "document_ids"))
        tokens = layout.concatenate(self.store.buffers(items.starts, items.lengths), self._pad)
        ids[:] = tokens
        labels[:-1] = tokens[1:]
        mask[:] = True
        # The label of a piece's last token: the next token of its document if the document goes on; else none, or with
        # border_labels="keep" the next token in the pack. Labels are closed while they are in the processor's cache.
        last = layout.ends - 1
        closed = last[~self._labelled(items)]
        labels[closed] = IGNORED_LABEL
        mask[closed] = False
        # np.repeat makes a copy of its own, which has half the bytes if the numbers fit into int32.
        documents[:] = np.repeat(items.documents.astype(self._number_dtype), layout.lengths + layout.gaps)
        if len(pads := layout.pads):
            ids[pads], labels[pads], mask[pads], documents[pads] = self.padding_idx, IGNORED_LABEL, False, -1
        layout.write_positions(self._ranges, flat["position_ids"])
        if self.labels == "next" and items.continues.any():
            labels[last[items.continues]] = self._next_values(items, self.store.keys[0])
        if self.loss_mask_key is not None:
            self._mask_labels(self.loss_mask_key, items, layout, labels, mask)
        if self.labels == "same":
            # Shifting over the flat array is right at the borders: the last label of a row is -100, and the first label
            # of the next row must be.
            for row, none in ((labels, IGNORED_LABEL), (mask, False)):
                row[1:] = row[:-1].copy()
                row[0] = none

    def _mask_labels(
        self, key: str, items: PackItems, layout: PackedRows, labels: NDArray[Any], mask: NDArray[Any]
    ) -> None:
        """Remove the labels of tokens that the store's mask does not train."""
        marks = self.store.buffers(items.starts, items.lengths, key)
        # A label is the next token, and the mask of that token decides.
        wanted = np.zeros(len(mask), dtype=bool)
        wanted[:-1] = layout.concatenate(marks, np.zeros(self.seq_len, self.store.dtypes[key]))[1:] != 0
        if items.continues.any():
            wanted[layout.ends[items.continues] - 1] = self._next_values(items, key) != 0
        mask &= wanted
        labels[~mask] = IGNORED_LABEL

    def _next_values(self, items: PackItems, key: str) -> NDArray[Any]:
        """(n,): the value of a key behind each piece whose document goes on, at least one."""
        after = (items.starts + items.lengths)[items.continues]
        return _joined(self.store, after, np.ones_like(after), key)

    def layout(self, items: PackItems) -> PackedRows:
        """Return where pieces lie in the rows of their packs."""
        return PackedRows.of(
            items.offsets, items.lengths, row_tokens=self.seq_len, segment_multiple=self.packing.segment_multiple
        )

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens, supervised tokens, pads and pieces of each pack. Reads nothing but a loss mask in use."""
        items = self.items(addresses)
        return self.count_kept(items, np.ones(len(items.documents), dtype=np.bool_))

    def count_kept(self, items: PackItems, kept: NDArray[np.bool_]) -> Counts:
        """Count the packs of pieces, of which only those that are ``kept``, (pieces,), are trained on."""
        sums = _prefix_sums(items.lengths)
        # A piece predicts all its tokens but the first, and the one after its last if there is a label for it.
        labelled = self._labelled(items)
        if self.loss_mask_key is None:
            inside, after = items.lengths - 1, labelled
        else:
            marks = np.append(_joined(self.store, items.starts, items.lengths, self.loss_mask_key) != 0, False)
            inside = np.diff(_prefix_sums(marks[:-1])[sums]) - marks[sums[:-1]]
            # The mask of the token behind each piece.
            after = np.append(marks[sums[1:-1]], False)
            if items.continues.any():
                after[items.continues] = self._next_values(items, self.loss_mask_key) != 0
            after = after & labelled
        # The label after a piece is a token of its own document, or else of the next piece.
        followed = items.continues | np.append(kept[1:], True)
        columns = items.lengths * kept, (inside + (after & followed)) * kept, kept
        tokens, supervised, documents = (np.diff(_prefix_sums(column)[items.offsets]) for column in columns)
        return Counts(tokens, supervised, self.seq_len - tokens, documents)

    def _labelled(self, items: PackItems) -> NDArray[np.bool_]:
        """(pieces,): whether a piece's last token has a label, from its document or, with kept borders, the next."""
        # With labels="same" the document's next token is in another row, where it is the first of its segment.
        continues = items.continues if self.labels == "next" else np.zeros_like(items.continues)
        if not self._keep_borders:
            return continues
        followed: NDArray[np.bool_] = (items.lengths % self.packing.segment_multiple == 0) & ~items.continues
        followed[items.offsets[1:] - 1] = False
        return continues | followed

    def __getitems__(self, indices: Any) -> list[Sample]:
        """Return the samples at ``indices``, read as one batch."""
        return [with_segments(sample) for sample in super().__getitems__(indices)]

    def describe(self) -> str:
        """Describe in one line how the documents are packed, how full the packs are, and what was lost."""
        ledger, packing = self.ledger, self.packing
        packed = ledger.raw_documents - ledger.empty_documents - ledger.dropped_documents
        labels = ", labels not shifted" if self.labels == "same" else ""
        local = "" if packing.window_documents is None else f" by windows of {packing.window_documents:,} documents"
        most = f", at most {packing.max_documents:,} documents" if packing.max_documents else ""
        return (
            f"packs of {self.seq_len:,} tokens ({packing.strategy}{local}{most}): {packed:,} documents, "
            f"{packed / len(self):,.1f} a pack, fill {ledger.fill:.2%}, "
            f"{ledger.split_documents:,} documents split, {ledger.lost_share:.2%} of the tokens lost{labels}"
            f"{shown_mask(self.store, self.loss_mask_key)}"
        )


class _PackMask:
    """Finds documents in packs by the numbers of their pieces."""

    def __init__(self, dataset: PackedSequenceDataset, documents: IntArray) -> None:
        self._dataset = dataset
        self._documents = documents

    def held(self, addresses: IntArray) -> Held:
        """Return where the documents are in the packs at some addresses; the token after a pack counts as kept."""
        dataset = self._dataset
        items = dataset.items(addresses)
        found = is_in(items.documents, self._documents)
        rows = np.flatnonzero(np.diff(_prefix_sums(found)[items.offsets]))
        if not len(rows):
            return Held(rows, np.zeros((0, dataset.seq_len + 1), dtype=np.bool_))
        layout = dataset.layout(items)
        ends = layout.ends[found]
        marks = np.zeros(len(addresses) * dataset.seq_len + 1, dtype=np.int8)
        marks[ends - layout.lengths[found]] = 1
        marks[ends] -= 1
        places = np.cumsum(marks, dtype=np.int8)[:-1].reshape(-1, dataset.seq_len)[rows] != 0
        return Held(rows, np.pad(places, ((0, 0), (0, 1))))

    def count(self, addresses: IntArray) -> Counts:
        """Count the packs; tokens of the documents count as pads. Reads nothing but a loss mask in use."""
        items = self._dataset.items(addresses)
        return self._dataset.count_kept(items, ~is_in(items.documents, self._documents))


def with_segments(sample: Sample) -> Sample:
    """Return a packed sample with its ``seq_lens``, ``cu_seqlens`` and ``max_seqlen``."""
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


KEPT_DOCUMENTS = 1_000_000
"""Plans of more documents are kept by default: making one again takes over a tenth of a second."""


class StoreLengths:
    """The lengths of a store's documents, in the form that a planner reads. Holds nothing in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return self._store.num_documents

    def chunks(self) -> Iterator[IntArray]:
        """Yield the lengths of some documents at a time."""
        return self._store.length_chunks(CHUNK)

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Return two (n,) int64 arrays: where documents begin in the token stream, and their lengths."""
        return document_spans(self._store, documents)


def make_plan(store: Store, lengths: StoreLengths, packing: Packing, folder: Path | None) -> PackPlan:
    """Return the plan of a store's packs: a kept one, memory-mapped, or a new one, which is then kept.

    If ``folder`` is None, plans of over ``KEPT_DOCUMENTS`` documents are kept in the cache folder, if it can be
    written.

    Raises:
        ConfigError: as `plan_packs`.
        StoreError: a kept plan is damaged.
        OutputError: ``folder`` cannot be written.
    """
    asked = folder is not None
    if folder is None and store.num_documents > KEPT_DOCUMENTS:
        folder = cache_folder("packs")
    if folder is None:
        return plan_packs(lengths, packing)
    name = plan_name(store, packing)
    try:
        found = find_cache(folder, name)
    except StoreError as error:
        # The default cache is optional: a user who may not read it does without.
        if asked or not isinstance(error.__cause__, PermissionError):
            raise
        return plan_packs(lengths, packing)
    if found is not None:
        try:
            meta = _meta(store, found[1])
        except (msgspec.DecodeError, UnicodeError, ConfigError, ValueError) as error:
            raise StoreError(f"{folder / name}: {error}; remove it, and it will be made again") from error
        return PackPlan(meta, found[0], lengths)
    plan = plan_packs(lengths, packing)
    try:
        keep_arrays(folder, name, plan.arrays, msgspec.json.encode(plan.meta))
    except HeadraceError:
        # Without the default cache only time is lost; a folder that the user named must be writable.
        if asked:
            raise
        return plan
    # Map the file instead of keeping the arrays, so that the processes of a machine share one copy.
    kept = find_cache(folder, name)
    return plan if kept is None else PackPlan(plan.meta, kept[0], lengths)


def _meta(store: Store, data: bytes) -> PackPlanMeta:
    meta = msgspec.json.decode(data, type=PackPlanMeta)
    if (meta.num_documents, meta.ledger.raw_tokens) != (store.num_documents, store.num_tokens):
        raise ValueError(
            f"the plan is over {meta.num_documents:,} documents of {meta.ledger.raw_tokens:,} tokens, and "
            f"{store.path} has {store.num_documents:,} documents of {store.num_tokens:,} tokens"
        )
    return meta


def plan_name(store: Store, packing: Packing) -> str:
    """Return the name of a kept plan: 128 bits over the store's content, the packing and the plan version."""
    return kept_name("packs", PLAN_VERSION, store.fingerprint, store.num_documents, msgspec.to_builtins(packing))
