"""How many micro-batches make a span: as many as are worth a hand-over, and as few as can be waited for."""

from __future__ import annotations

from headrace.loader.ragged import Cost

SPAN_BYTES = 4 << 20
"""A span holds about this much: enough to spread the cost of a hand-over, little enough to stay in the cache."""

SPAN_ROWS = 512
"""And at most so many samples, since short ones are many reads."""

SPAN_ROWS_HERE = 64
"""Of media that this process reads itself: of more that live at once, the garbage collector would look through all."""

SPAN_SECONDS = 0.02
"""And takes no longer, of samples of which it shows only when they are read: a hand-over costs a hundredth of it."""


class Pace:
    """The micro-batches of the next span.

    The first span has one, so that the first batch comes at once, and each at most twice as many as one before. What
    samples hold and cost is known of tokens, and learnt of media as their spans come back.

    Args:
        micro_batch_size: samples of a micro-batch.
        row_bytes: of a sample; None where that is not known before it is read.
        is_here: whether this process reads them itself.
    """

    def __init__(self, micro_batch_size: int, row_bytes: int | None, *, is_here: bool = False) -> None:
        rows = SPAN_ROWS_HERE if is_here and row_bytes is None else SPAN_ROWS
        self._most = rows // micro_batch_size
        self._is_known = row_bytes is not None
        if row_bytes is not None:
            self._most = min(self._most, SPAN_BYTES // max(1, row_bytes * micro_batch_size))
        self._next = 1
        self._share = 0.0

    def take(self) -> int:
        """How many the next span has, at least 1."""
        found = self._next
        if self._is_known:
            self._next = max(1, min(2 * found, self._most))
        return found

    def learn(self, num_micro_batches: int, cost: Cost | None) -> None:
        """What a span has cost. Samples differ, so that half of what is held against the next ones is from before."""
        if self._is_known or cost is None or not num_micro_batches:
            return
        share = max(cost.seconds / SPAN_SECONDS, cost.num_bytes / SPAN_BYTES) / num_micro_batches
        self._share = max(share, (share + self._share) / 2)
        fits = self._most if self._share * self._most <= 1 else int(1 / self._share)
        self._next = max(1, min(2 * num_micro_batches, fits, self._most))
