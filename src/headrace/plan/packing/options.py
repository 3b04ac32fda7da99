"""The options of packing: `Packing` and its allowed values."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.config import check_fields
from headrace.errors import ConfigError

Strategy = Literal["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]
OverLong = Literal["error", "split", "truncate_left", "truncate_right", "drop"]

MAX_DOCUMENTS = (1 << 32) - 2
"""The most documents in one plan: their numbers are stored in 32 bits."""

MAX_SEQ_LEN = 1 << 22
"""The longest pack, 4 Mi tokens."""


class Packing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How documents become packs of ``seq_len`` tokens.

    ``strategy``:
        ``best_fit``        best-fit decreasing: each document, longest first, goes into the fullest pack that has room
                            (among several, the one that reached this room first), as in TRL's ``bfd``;
        ``best_fit_split``  the same, but over-long documents are split first, as in TRL's ``bfd_split``;
        ``first_fit``       in the order of the store, each document goes into the first pack that has room;
        ``greedy``          in the order of the store, a new pack begins when the next document does not fit, as in
                            torchtune;
        ``wrapped``         all documents one after another, cut every ``seq_len`` tokens.

    ``over_long`` says what happens to a document that is longer than a pack:
        ``error``           a ConfigError counts and names these documents;
        ``split``           it is split into pieces of ``seq_len`` tokens and a shorter last one, each of which is
                            packed like a document;
        ``truncate_right``  it keeps only its first ``seq_len`` tokens;
        ``truncate_left``   it keeps only its last ``seq_len`` tokens;
        ``drop``            it is left out.
    ``best_fit_split`` and ``wrapped`` always split.

    ``window_documents`` packs each window of this many neighbouring documents separately, so that the order of packs
    stays close to that of the store; None packs the whole set at once.

    ``repack`` lets documents of equal length change places in every epoch, so that other documents share a pack. It
    works with ``best_fit`` and ``best_fit_split`` over the whole set, whose packs depend only on the lengths.

    ``segment_multiple`` pads every segment to a multiple of this many tokens; context parallelism over C ranks needs
    2 * C.

    ``max_documents`` is the most documents in a pack, each piece of a split one counted; None is as many as there is
    room for. A pack that has so many is full. It does not go with ``wrapped``.

    Raises:
        ConfigError: a value is unknown, or values do not go together.

    Example:
        >>> packing = headrace.Packing(seq_len=512, strategy="best_fit_split")
        >>> packed = headrace.PackedSequenceDataset(headrace.open("stores/web"), packing)
        >>> packed[0]["input_ids"].shape
        (512,)
    """

    seq_len: int = msgspec.field(name="max_seq_len")  # the name in recipes and files
    strategy: Strategy = "best_fit"
    over_long: OverLong = "error"
    window_documents: int | None = None
    repack: bool = False
    segment_multiple: int = 1
    # Left unset if None, so that recipes, hashes and names of plans are as before there was this option.
    max_documents: int | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown value, or for values that do not go together."""
        check_fields(self)
        if self.max_documents is None:
            msgspec.structs.force_setattr(self, "max_documents", msgspec.UNSET)
        elif self.max_documents is not msgspec.UNSET and self.max_documents < 1:
            raise ConfigError(f"max_documents is {self.max_documents}; it is at least 1, or None")
        if not 1 <= self.seq_len <= MAX_SEQ_LEN:
            raise ConfigError(f"seq_len is {self.seq_len}; allowed are 1 to {MAX_SEQ_LEN:,}")
        if self.window_documents is not None and self.window_documents < 1:
            raise ConfigError(f"window_documents is {self.window_documents}; it is at least 1, or None")
        if self.segment_multiple < 1 or self.seq_len % self.segment_multiple:
            raise ConfigError(
                f"segment_multiple is {self.segment_multiple}; it must be at least 1 and divide seq_len "
                f"{self.seq_len:,}, so that whole segments fill a pack"
            )
        self._check_strategy()

    def _check_strategy(self) -> None:
        """Raise ConfigError for an option that the strategy does not allow."""
        if self.cuts and self.over_long not in ("error", "split"):
            raise ConfigError(
                f"the strategy {self.strategy!r} splits documents: over_long={self.over_long!r} does not go with it; "
                "use 'split' or leave over_long out"
            )
        is_windowed = self.window_documents is not None
        if self.repack and (self.strategy not in ("best_fit", "best_fit_split") or is_windowed):
            raise ConfigError(
                "repack lets documents of equal length change places, which works only with the packs of best_fit and "
                "best_fit_split over the whole set: use one of these without window_documents, or leave repack out"
            )
        if self.strategy == "wrapped" and (is_windowed or self.segment_multiple > 1 or self.max_documents):
            raise ConfigError(
                "the strategy 'wrapped' allows neither window_documents (its packs follow the order of the store "
                "anyway) nor segment_multiple nor max_documents (it leaves no place empty): leave them out"
            )

    @property
    def cuts(self) -> bool:
        """Whether the strategy itself splits documents, whatever ``over_long`` says."""
        return self.strategy in ("best_fit_split", "wrapped")

    @property
    def splits(self) -> bool:
        """Whether over-long documents become several pieces."""
        return self.over_long == "split" or self.strategy == "best_fit_split"

    @property
    def most_pieces(self) -> int:
        """``max_documents``, or 0 if packs never hold more: each piece takes at least one unit of the ``capacity``."""
        return self.max_documents if self.max_documents and self.max_documents < self.capacity else 0

    @property
    def capacity(self) -> int:
        """The room of a pack, in units of ``segment_multiple`` tokens."""
        return self.seq_len // self.segment_multiple
