"""Forecast of packing: the figures of each strategy's plan for a source, from one pass over its lengths."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.packing.fitting import first_fit, next_fit, place
from headrace.plan.packing.options import OverLong, Packing, Strategy


class StrategyForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one strategy for the documents of a source, as the ledger of its plan would state them."""

    strategy: Strategy
    over_long: OverLong
    """What happens to over-long documents; strategies that do not split are forecast with ``truncate_right``."""

    documents: int
    """How many documents were counted, from the first one on."""

    packs: int
    fill: float
    """The share of the places in packs that hold tokens."""

    documents_per_pack: float
    """The mean number of documents with tokens in a pack; a split document counts once."""

    cut_documents: int
    """Documents that are split or truncated."""

    cut_share: float
    """The share of the documents that are split or truncated."""

    lost_tokens: int
    lost_share: float
    """The share of the tokens that is in no pack."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of every strategy for the documents of a source."""

    seq_len: int = msgspec.field(name="max_seq_len")  # the name in reports as JSON
    documents: int
    tokens: int
    over_long_documents: int
    """Documents that are longer than a pack."""

    longest: int
    strategies: tuple[StrategyForecast, ...]


def forecast(lengths: Iterable[IntArray], seq_len: int, *, first_fit_documents: int) -> Forecast:
    """Return the figures of all strategies, equal to those of `plan_packs` over the whole set.

    ``lengths`` yields arrays, one chunk of documents each. Documents longer than a pack are split by
    ``best_fit_split`` and ``wrapped``, and truncated on the right by the others. Takes one pass and about 100 ns of CPU
    a document, in bounded memory; ``first_fit`` takes 1 to 3 us a document and so counts only the first
    ``first_fit_documents``.

    Raises:
        ConfigError: ``seq_len`` is out of range, or a length is below 0.
    """
    Packing(seq_len=seq_len)  # checks the range of seq_len
    seen, first = _Tally(seq_len), _Tally(seq_len)
    greedy, wrapped = _Greedy(seq_len), _Wrapped(seq_len)
    kept: list[IntArray] = []
    for chunk in lengths:
        if int(chunk.min(initial=0)) < 0:
            raise ConfigError(f"a document has {int(chunk.min())} tokens; lengths must be at least 0")
        some = chunk.astype(np.int64, copy=False)
        clipped = seen.add(some)
        greedy.add(clipped)
        wrapped.add(some)
        if room := max(0, first_fit_documents - first.documents):
            own = first.add(some[:room])
            kept.append(own[own > 0].astype(np.int32))
    sizes = np.concatenate([np.zeros(0, dtype=np.int32), *kept])
    return Forecast(
        seq_len=seq_len,
        documents=seen.documents,
        tokens=seen.tokens,
        over_long_documents=seen.over_long,
        longest=seen.longest,
        strategies=(
            seen.truncated("greedy", greedy.packs),
            seen.truncated("best_fit", place(seen.counts).num_packs),
            seen.cut("best_fit_split", seen.full_pieces + place(seen.split_counts()).num_packs, seen.over_long),
            first.truncated("first_fit", len(first_fit(sizes, seq_len)[1])),
            seen.cut("wrapped", -(-seen.tokens // seq_len), wrapped.cut),
        ),
    )


class _Tally:
    """Sums and a histogram of the documents so far."""

    def __init__(self, seq_len: int) -> None:
        self._size = seq_len
        self.counts: IntArray = np.zeros(seq_len + 1, dtype=np.int64)
        """(seq_len + 1,) int64: documents by length; documents longer than a pack count at ``seq_len``."""
        self._remainders: IntArray = np.zeros(seq_len, dtype=np.int64)
        self._over_long_pieces = 0
        self.documents = self.tokens = self.over_long = self.over_long_tokens = self.longest = 0

    def add(self, lengths: IntArray) -> IntArray:
        """Count documents of these lengths; return the lengths after truncation."""
        self.documents += len(lengths)
        self.tokens += int(lengths.sum())
        longest = int(lengths.max(initial=0))
        self.longest = max(self.longest, longest)
        if longest > self._size:
            over = lengths[lengths > self._size]
            self.over_long += len(over)
            self.over_long_tokens += int(over.sum())
            self._over_long_pieces += int((over // self._size).sum())
            _count(self._remainders, over % self._size)
            lengths = np.minimum(lengths, self._size)
        _count(self.counts, lengths)
        return lengths

    @property
    def full_pieces(self) -> int:
        """Pieces of ``seq_len`` tokens if over-long documents are split, documents of exactly that length included."""
        return self._over_long_pieces + int(self.counts[-1]) - self.over_long

    def split_counts(self) -> IntArray:
        """``counts`` of the pieces other than the full ones."""
        counts = self.counts.copy()
        counts[-1] = 0
        counts[:-1] += self._remainders
        return counts

    def truncated(self, strategy: Strategy, packs: int) -> StrategyForecast:
        lost = self.over_long_tokens - self.over_long * self._size
        return self._figures(strategy, "truncate_right", packs, cut=self.over_long, lost=lost)

    def cut(self, strategy: Strategy, packs: int, cut: int) -> StrategyForecast:
        return self._figures(strategy, "split", packs, cut=cut, lost=0)

    def _figures(self, strategy: Strategy, over_long: OverLong, packs: int, *, cut: int, lost: int) -> StrategyForecast:
        return StrategyForecast(
            strategy=strategy,
            over_long=over_long,
            documents=self.documents,
            packs=packs,
            fill=(self.tokens - lost) / max(1, packs * self._size),
            documents_per_pack=(self.documents - int(self.counts[0])) / max(1, packs),
            cut_documents=cut,
            cut_share=cut / max(1, self.documents),
            lost_tokens=lost,
            lost_share=lost / max(1, self.tokens),
        )


def _count(counts: IntArray, values: IntArray) -> None:
    # Only as long as the longest value: a pack may have millions of tokens, and few documents are that long.
    found = np.bincount(values)
    counts[: len(found)] += found


class _Greedy:
    """Next-fit over chunks: the open pack enters the next chunk as one document with its number of tokens."""

    def __init__(self, seq_len: int) -> None:
        self._size = seq_len
        self._closed = self._open_tokens = 0

    def add(self, lengths: IntArray) -> None:
        lengths = np.concatenate([[self._open_tokens], lengths])
        firsts = next_fit(lengths, self._size)
        if len(firsts) > 1:
            self._closed += len(firsts) - 2
            self._open_tokens = int(lengths[firsts[-2] :].sum())

    @property
    def packs(self) -> int:
        return self._closed + (self._open_tokens > 0)


class _Wrapped:
    """Counts the documents that are cut if all are laid one after another and a pack ends every ``seq_len`` tokens."""

    def __init__(self, seq_len: int) -> None:
        self._size = seq_len
        self._begin = 0
        self.cut = 0

    def add(self, lengths: IntArray) -> None:
        last = np.cumsum(lengths)
        last += self._begin - 1
        num_tokens = int(lengths.sum())
        # A document is cut if its first token lies before the pack of its last one. For an empty document, the formula
        # places the first token after the last, so that it never counts.
        self.cut += int(np.count_nonzero(last - lengths + 1 < last // self._size * self._size))
        self._begin += num_tokens
