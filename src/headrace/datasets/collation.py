"""Records of different lengths as one batch: cut, padded, and laid out on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError
from headrace.plan import IntArray

Side = Literal["right", "left"]


class Collation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How records come to one length.

    ``max_length`` is the most tokens of a record, None for any; ``over_long`` says what becomes of longer ones:
    ``"error"``, ``"truncate_right"`` (the end is lost) or ``"truncate_left"`` (the beginning is lost).

    Batches are padded to the longest record in them, or with ``pad_to="max_length"`` all to that, with ``padding_idx``,
    on the ``side``; None is the usual one: left for prompts that are generated from, right for all else.
    ``multiple_of`` rounds the length of the longest up.
    """

    max_length: int | None = None
    over_long: Literal["error", "truncate_right", "truncate_left"] = "error"
    pad_to: Literal["longest", "max_length"] = "longest"
    multiple_of: int = 1
    side: Side | None = None
    padding_idx: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes below 1, unknown values, and lengths that contradict each other."""
        allowed = {
            "over_long": ("error", "truncate_right", "truncate_left"),
            "pad_to": ("longest", "max_length"),
            "side": ("right", "left", None),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(map(repr, values))}")
        index(self.padding_idx)
        if index(self.multiple_of) < 1 or (self.max_length is not None and index(self.max_length) < 1):
            raise ConfigError(
                f"max_length and multiple_of are at least 1, found {self.max_length} and {self.multiple_of}"
            )
        if self.max_length is None and (self.pad_to == "max_length" or self.over_long != "error"):
            raise ConfigError(
                f"pad_to={self.pad_to!r} and over_long={self.over_long!r} need max_length, the most tokens of a record"
            )
        if self.pad_to == "max_length" and self.max_length is not None and self.max_length % self.multiple_of:
            raise ConfigError(
                f"max_length {self.max_length} is no multiple of {self.multiple_of}, and all is padded to it"
            )

    def kept(self, lengths: IntArray) -> IntArray:
        """(n,) int64: how many tokens are kept of records of these lengths."""
        return lengths if self.max_length is None else np.minimum(lengths, self.max_length)

    def cut(self, values: NDArray[Any]) -> NDArray[Any]:
        """What is kept of one record; all of it where over-long ones are an error, which are refused before."""
        if self.max_length is None or len(values) <= self.max_length:
            return values
        return values[-self.max_length :] if self.over_long == "truncate_left" else values[: self.max_length]

    def width(self, longest: int) -> int:
        """The length of all rows of a batch, of the longest record in it."""
        if self.pad_to == "max_length" and self.max_length is not None:
            return self.max_length
        return -(-longest // self.multiple_of) * self.multiple_of


class Grid(NamedTuple):
    """Where the tokens of n rows lie: ``is_token`` (n, width) bool, and ``lengths`` (n,) int64, tokens of each row."""

    is_token: NDArray[np.bool_]
    lengths: IntArray
    side: Side

    @classmethod
    def of(cls, lengths: Sequence[int] | IntArray, width: int, side: Side) -> Grid:
        """Rows of these lengths, padded on a side.

        Raises:
            ConfigError: a row is longer than the width.
        """
        sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
        if sizes.size and int(sizes.max()) > width:
            raise ConfigError(f"sample {int(sizes.argmax())} has {sizes.max():,} tokens, and {width:,} have room")
        columns = np.arange(width)
        is_token = columns < sizes[:, None] if side == "right" else columns >= (width - sizes)[:, None]
        return cls(is_token, sizes, side)

    def filled(self, rows: Sequence[ArrayLike], fill: int, dtype: type) -> NDArray[Any]:
        """(n, width): the values of each row in their places, and ``fill`` elsewhere."""
        out: NDArray[Any] = np.full(self.is_token.shape, fill, dtype=dtype)
        if len(rows):
            out[self.is_token] = np.concatenate(rows)
        return out

    def positions(self) -> IntArray:
        """(n, width) int64: 0, 1, 2, ... over the tokens of a row, and from 0 again over its pads."""
        count = self.is_token.shape[1]
        if self.side == "right":
            begins = np.where(self.is_token, 0, self.lengths[:, None])
        else:
            begins = np.where(self.is_token, (count - self.lengths)[:, None], 0)
        return np.arange(count, dtype=np.int64) - begins
