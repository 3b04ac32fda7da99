"""A plan of packs, and the ledger that accounts for every token.

The plan says which pieces of which documents lie in pack p, for many packs at a time. The ledger says where every
document and token of the source went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.packing.lengths import Lengths, own_begins, own_lengths
from headrace.plan.packing.options import Packing
from headrace.plan.permutation import permute_each


class PackingLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of the documents and tokens of one source, which always balance.

    ``raw_documents = empty + whole + split + truncated + dropped`` documents, and
    ``raw_tokens = packed + split_remainder + truncated + dropped`` tokens.
    """

    raw_documents: int
    empty_documents: int
    whole_documents: int
    """Documents that lie whole in one pack."""
    split_documents: int
    """Documents that were cut into pieces, all of which are packed."""
    truncated_documents: int
    """Documents that are packed without the tokens that ``truncated_tokens`` counts."""
    dropped_documents: int
    """Documents that are not packed at all."""

    raw_tokens: int
    packed_tokens: int
    """Tokens in packs, without ``split_remainder_tokens``."""
    split_remainder_tokens: int
    """Tokens in packs that belong to the last pieces of documents that were split."""
    truncated_tokens: int
    """Tokens of truncated documents that were cut off and are in no pack."""
    dropped_tokens: int
    """Tokens of dropped documents."""

    num_packs: int
    pad_tokens: int
    """Pads that fill the packs up."""

    @property
    def num_tokens(self) -> int:
        """Tokens in packs, without pads."""
        return self.packed_tokens + self.split_remainder_tokens

    @property
    def lost_tokens(self) -> int:
        """Tokens in no pack."""
        return self.truncated_tokens + self.dropped_tokens

    @property
    def lost_share(self) -> float:
        """The share of the raw tokens that is in no pack."""
        return self.lost_tokens / self.raw_tokens if self.raw_tokens else 0.0

    @property
    def fill(self) -> float:
        """The share of the places in packs that hold tokens and not pads."""
        return self.num_tokens / max(1, self.num_tokens + self.pad_tokens)

    def verify(self) -> None:
        """Raise HeadraceError unless the counts balance; an imbalance would be a fault of Headrace itself."""
        documents = (
            self.empty_documents
            + self.whole_documents
            + self.split_documents
            + self.truncated_documents
            + self.dropped_documents
        )
        tokens = self.packed_tokens + self.split_remainder_tokens + self.truncated_tokens + self.dropped_tokens
        if (documents, tokens) != (self.raw_documents, self.raw_tokens):
            raise HeadraceError(
                f"the plan of packs does not balance: it accounts for {documents:,} documents and {tokens:,} tokens, "
                f"but the source has {self.raw_documents:,} and {self.raw_tokens:,}. This is a defect of Headrace: "
                "please report it"
            )


PLAN_VERSION = 1
"""Version of the packing algorithms; a change to the contents of any pack raises it."""


class PackPlanMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a plan but its arrays; JSON-safe."""

    version: int = PLAN_VERSION
    packing: Packing
    num_documents: int
    num_packs: int
    num_full: int
    """How many packs, at the beginning, hold a single full piece each (``best_fit`` with splitting)."""
    lengths_xxh3_128: str
    """Hash of the lengths that were planned, as little-endian int64."""
    ledger: PackingLedger


class PackItems(NamedTuple):
    """The pieces in some packs, in order; pack i has the pieces ``offsets[i]`` to ``offsets[i + 1] - 1``.

    ``offsets`` is (num_packs + 1,) int64, all others are (num_pieces,). A piece holds the tokens
    ``[begin, begin + length)`` of a document: ``documents``, ``begins`` and ``lengths`` int64. ``starts`` int64 is
    where the piece begins in the stream of all tokens. ``continues`` bool says whether the document continues in
    another pack.
    """

    offsets: IntArray
    documents: IntArray
    begins: IntArray
    lengths: IntArray
    starts: IntArray
    continues: NDArray[np.bool_]


class PackPlan:
    """Which pieces of which documents lie in each pack; `plan_packs` makes one.

    A document's own piece has the number of the document; the f-th full piece of all has the number of documents plus
    f. A plan has some of these arrays:

    - ``bounds`` (num_packs + 1,) uint32 and ``pieces`` (num_pieces,) uint32: pack after pack, the numbers of its
      pieces, or with ``repack`` their ranks by length; without ``pieces`` the pieces are in the order of their numbers;
    - ``long_documents`` and ``long_ends``, (documents with full pieces,) uint32: the numbers of these documents, and
      prefix sums of how many full pieces they have;
    - ``by_length`` (num_pieces,) uint32: documents by the length of their own piece, longest first, and
      ``class_begins`` (distinct lengths + 1,) uint32: where each length begins among them;
    - ``ends`` (num_documents,) int64: where each document ends in the token stream, for ``wrapped``.

    They take at most 8 bytes a piece, and 4 more with ``repack``.

    Example:
        >>> from headrace.plan.packing import plan_packs
        >>> plan = plan_packs(np.array([3, 4, 2, 5]), headrace.Packing(seq_len=8))
        >>> items = plan.items(np.arange(len(plan)))
        >>> items.offsets.tolist(), items.documents.tolist()
        ([0, 2, 4], [3, 0, 1, 2])
    """

    def __init__(self, meta: PackPlanMeta, arrays: Mapping[str, NDArray[Any]], lengths: Lengths) -> None:
        self.meta = meta
        self.arrays = dict(arrays)
        self._lengths = lengths

    def __len__(self) -> int:
        return self.meta.num_packs

    @property
    def packing(self) -> Packing:
        """The options with which the documents were packed."""
        return self.meta.packing

    @property
    def ledger(self) -> PackingLedger:
        """The counts that say where every document and token went."""
        return self.meta.ledger

    @property
    def num_bytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def items(self, packs: IntArray, keys: KeyArray | None = None) -> PackItems:
        """Return the pieces of (n,) int64 packs.

        With ``repack``, documents of equal length change places by ``keys``, (n,) uint64, the key of the epoch of each
        pack; without keys they stay.
        """
        if "ends" in self.arrays:
            return self._wrapped(packs)
        offsets, pieces = self._pieces(packs, keys)
        num_full = self.meta.num_full
        # Without full pieces, every piece has the number of its document, and the steps below are skipped.
        is_full = pieces >= self.meta.num_documents if num_full or "long_ends" in self.arrays else None
        documents = pieces
        if is_full is not None:
            ends = self.arrays["long_ends"]
            number = pieces[is_full] - self.meta.num_documents
            place = np.searchsorted(ends, number.astype(ends.dtype), side="right")
            documents = pieces.copy()
            documents[is_full] = self.arrays["long_documents"][place]
        document_begins, document_lengths = self._lengths.spans(documents)
        begins, lengths = own_begins(document_lengths, self.packing), own_lengths(document_lengths, self.packing)
        continues = np.zeros(len(documents), dtype=bool)
        if is_full is not None:
            size = self.packing.seq_len
            # Full pieces are numbered document by document: the first of a document follows the last of the one before.
            firsts = np.where(place > 0, ends[place - 1], 0).astype(np.int64)
            begins[is_full] = (number - firsts) * size
            lengths[is_full] = size
            continues[is_full] = begins[is_full] + size < document_lengths[is_full]
        return PackItems(offsets, documents, begins, lengths, document_begins + begins, continues)

    def _pieces(self, packs: IntArray, keys: KeyArray | None) -> tuple[IntArray, IntArray]:
        """The (num_packs + 1,) int64 offsets and the (num_pieces,) int64 numbers of the pieces of some packs."""
        num_full, bounds = self.meta.num_full, self.arrays["bounds"]
        full = packs < num_full if num_full else None
        if full is not None and full.all():
            return np.arange(len(packs) + 1, dtype=np.int64), self.meta.num_documents + packs
        inner = packs if full is None else np.where(full, 0, packs - num_full)
        first = bounds[inner].astype(np.int64)
        counts = bounds[inner + 1] - first
        if full is not None:
            counts[full] = 1
        offsets = np.zeros(len(packs) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        # Packs of one full piece look up a wrong piece here, which is replaced at the end: this avoids a second path.
        pieces = np.arange(int(offsets[-1])) + np.repeat(first - offsets[:-1], counts)
        if "pieces" in self.arrays:
            pieces = self.arrays["pieces"][pieces].astype(np.int64)
        if "by_length" in self.arrays:
            if keys is not None:
                pieces = self._exchanged(pieces, np.repeat(keys, counts))
            pieces = self.arrays["by_length"][pieces].astype(np.int64)
        if full is not None:
            pieces[offsets[:-1][full]] = self.meta.num_documents + packs[full]
        return offsets, pieces

    def _exchanged(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        """Permute ranks by length among the ranks of the same length, by the key of their epoch."""
        begins = self.arrays["class_begins"]
        of = np.searchsorted(begins, ranks.astype(begins.dtype), side="right") - 1
        first = begins[of].astype(np.int64)
        sizes = begins[of + 1].astype(np.int64) - first
        return first + permute_each(ranks - first, sizes, derive_array(keys, of))

    def _wrapped(self, packs: IntArray) -> PackItems:
        """The pieces of packs that are slices of the token stream, for ``wrapped``."""
        ends = self.arrays["ends"]
        size = self.packing.seq_len
        begin = packs * size
        end = np.minimum(begin + size, ends[-1] if len(ends) else 0)
        first = np.searchsorted(ends, begin, side="right")
        counts = np.searchsorted(ends, end, side="left") - first + 1
        documents = np.arange(counts.sum(), dtype=np.int64)
        offsets = np.zeros(len(packs) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        documents += np.repeat(first - offsets[:-1], counts)
        until = ends[documents]
        since = np.where(documents > 0, ends[documents - 1], 0)
        low = np.maximum(since, np.repeat(begin, counts))
        high = np.minimum(until, np.repeat(end, counts))
        some = high > low
        kept = np.zeros(len(documents) + 1, dtype=np.int64)
        np.cumsum(some, out=kept[1:])
        low, high, since, until = low[some], high[some], since[some], until[some]
        return PackItems(kept[offsets], documents[some], low - since, high - low, low, high < until)
