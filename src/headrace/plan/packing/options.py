"""How documents are packed, as the user says it."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from headrace.errors import ConfigError

Strategy = Literal["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]
OverLong = Literal["error", "split", "truncate_left", "truncate_right", "drop"]

MAX_DOCUMENTS = (1 << 32) - 2
"""Documents of one plan: their numbers are stored in 32 bits."""

MAX_SEQ_LEN = 1 << 22
"""Longest pack: 4 Mi tokens."""


class Packing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How documents become packs of ``seq_len`` tokens.

    ``strategy``:
        ``best_fit``        best-fit decreasing: each document, longest first, into the fullest pack that has room (of
                            several the one that came to this room first), as TRL's ``bfd``;
        ``best_fit_split``  the same, over-long documents cut first, as TRL's ``bfd_split``;
        ``first_fit``       in the order of the store, each document into the first pack that has room;
        ``greedy``          in the order of the store, a new pack when the next document does not fit, as torchtune;
        ``wrapped``         all documents one after another, cut every ``seq_len`` tokens.

    ``over_long`` is what a document longer than a pack becomes:
        ``error``           a ConfigError that counts and names them;
        ``split``           pieces of ``seq_len`` tokens and a last one, each packed as a document of its own;
        ``truncate_right``  its first ``seq_len`` tokens;  ``truncate_left``  its last;
        ``drop``            nothing.
    ``best_fit_split`` and ``wrapped`` cut by themselves.

    ``window_documents`` packs every so many neighbours for themselves, so that the order of packs stays near that of
    the store; None packs the whole set at once.
    ``repack`` exchanges documents of equal length anew in each epoch, so that not the same ones meet each time; for
    ``best_fit`` and ``best_fit_split`` over the whole set, whose packs depend on the lengths alone.
    ``segment_multiple`` pads every document to a multiple of so many tokens, for context parallelism over C ranks to
    one of 2 * C.

    Raises:
        ConfigError: an unknown value, or values that do not go together.
    """

    seq_len: int = msgspec.field(name="max_seq_len")  # the name in recipes and files
    strategy: Strategy = "best_fit"
    over_long: OverLong = "error"
    window_documents: int | None = None
    repack: bool = False
    segment_multiple: int = 1

    def __post_init__(self) -> None:
        """Check each value, and what does not go together."""
        for name in ("seq_len", "segment_multiple", "window_documents"):
            value = getattr(self, name)
            if not isinstance(value, int) and not (value is None and name == "window_documents"):
                raise ConfigError(f"{name} is {value!r}; expected an integer")
        if not 1 <= self.seq_len <= MAX_SEQ_LEN:
            raise ConfigError(f"seq_len is {self.seq_len}; allowed are 1 to {MAX_SEQ_LEN:,}")
        if self.strategy not in get_args(Strategy):
            raise ConfigError(f"strategy is {self.strategy!r}; allowed are {_listed(Strategy)}")
        if self.over_long not in get_args(OverLong):
            raise ConfigError(f"over_long is {self.over_long!r}; allowed are {_listed(OverLong)}")
        if self.window_documents is not None and self.window_documents < 1:
            raise ConfigError(f"window_documents is {self.window_documents}; it is at least 1, or None")
        if self.segment_multiple < 1 or self.seq_len % self.segment_multiple:
            raise ConfigError(
                f"segment_multiple is {self.segment_multiple}; it is at least 1 and divides seq_len "
                f"{self.seq_len:,}, so that a pack is filled by whole segments"
            )
        if self.cuts and self.over_long not in ("error", "split"):
            raise ConfigError(f"{self.strategy} cuts documents: over_long={self.over_long!r} does not go with it")
        if self.repack and (self.strategy not in ("best_fit", "best_fit_split") or self.window_documents is not None):
            raise ConfigError(
                "repack exchanges documents of equal length, which leaves the packs of best_fit and best_fit_split "
                "over the whole set as they are, and no others: choose one of these, or leave repack out"
            )
        if self.strategy == "wrapped" and (self.window_documents is not None or self.segment_multiple > 1):
            raise ConfigError("wrapped takes no window_documents (it is local) and no segment_multiple")

    @property
    def cuts(self) -> bool:
        """Whether the strategy cuts documents by itself."""
        return self.strategy in ("best_fit_split", "wrapped")

    @property
    def splits(self) -> bool:
        """Whether over-long documents become several pieces."""
        return self.over_long == "split" or self.strategy == "best_fit_split"

    @property
    def capacity(self) -> int:
        """Room of a pack, in units of ``segment_multiple`` tokens."""
        return self.seq_len // self.segment_multiple


def _listed(kind: object) -> str:
    return ", ".join(map(repr, get_args(kind)))
