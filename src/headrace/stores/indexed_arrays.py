"""Where the arrays of an index lie in its file: what all formats with a ``.bin`` and an ``.idx`` have in common."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.stores.types import TokenArray


class Place(msgspec.Struct, frozen=True):
    """One array of little-endian integers.

    Attributes:
        name: what its entries are.
        offset: byte of the first.
        dtype: as NumPy writes it.
        count: entries.
        stride: bytes from one entry to the next; 0 where they are adjacent.
        scale: what each entry is to be multiplied by: the format counts elements, we count bytes.
    """

    name: str
    offset: int
    dtype: str
    count: int
    stride: int = 0
    scale: int = 1

    @property
    def step(self) -> int:
        """Bytes from one entry to the next."""
        return self.stride or np.dtype(self.dtype).itemsize

    @property
    def end(self) -> int:
        """Byte behind the last entry."""
        return self.offset + ((self.count - 1) * self.step + np.dtype(self.dtype).itemsize if self.count else 0)


class Arrays(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of one ``.idx``.

    Attributes:
        dtype: of the tokens in the ``.bin``.
        header_bytes: bytes before the arrays.
        sizes: (N,) tokens of each sequence.
        pointers: (N,) where each sequence begins in the ``.bin``.
        bounds: (D,) sequences up to the beginning of each document; None where each sequence is a document.
        modes: (N,) a number for the kind of each sequence; None where there is none.
        end: bytes of the file that mean something.
        shift: what is to be subtracted from a stored number to have the token.
    """

    dtype: np.dtype[Any]
    header_bytes: int
    sizes: Place
    pointers: Place
    bounds: Place | None = None
    modes: Place | None = None
    end: int
    shift: int = 0

    def describe(self, begin: int, end: int) -> str:
        """What bytes ``begin`` to ``end`` of the ``.idx`` hold, in words."""
        found = ["header"] if begin < min(end, self.header_bytes) else []
        for place in (self.sizes, self.pointers, self.bounds, self.modes):
            if place is not None:
                low, high = max(begin, place.offset), min(end, place.end)
                if low < high:
                    first, last = (low - place.offset) // place.step, (high - 1 - place.offset) // place.step
                    found.append(f"{place.name} {first} to {last}")
        return ", ".join(found) or "nothing that is used"


def token_ids(stored: TokenArray, shift: int, path: str) -> TokenArray:
    """The tokens that stored numbers mean; a fresh array where they are shifted.

    Raises:
        StoreError: a stored number that no token gives.
    """
    if not shift:
        return stored
    if not stored.all():
        raise StoreError(
            f"{path}: holds the number 0, which a file of ids + 1 never does; open it with dialect='megatron', which"
            " takes the ids as they are"
        )
    ids: TokenArray = stored - stored.dtype.type(shift)
    return ids
