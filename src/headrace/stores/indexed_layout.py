"""The bytes of Megatron's ``.idx``: header, arrays, dtype codes; and the rules that are checked in O(1).

All little-endian, no padding. N is the number of sequences, D the number of documents *plus one*.

    offset       bytes  type   content
    0            9      bytes  "MMIDIDX" and two NULs
    9            8      u64    version, 1
    17           1      u8     dtype code
    18           8      u64    N
    26           8      u64    D
    34           4 N    i32    tokens of each sequence
    34+4N        8 N    i64    byte of the .bin where each sequence begins
    34+12N       8 D    i64    0, then the number of sequences up to the end of each document; the last is N

Source: Megatron-Core 0.16, ``megatron/core/datasets/indexed_dataset.py``. The page ``docs/formats/indexed.md`` says
what is refused, and why.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError, StoreError

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = struct.Struct("<9sQBQQ")

_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}


class Layout(msgspec.Struct, frozen=True):
    """Where the arrays of one ``.idx`` lie."""

    dtype_code: int
    num_sequences: int
    num_bounds: int
    """Entries of ``document_indices``: documents + 1."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens in the ``.bin``."""
        return _DTYPES[self.dtype_code]

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return self.num_bounds - 1

    @property
    def sizes_at(self) -> int:
        """Byte where the int32 sizes of the sequences begin."""
        return HEADER.size

    @property
    def pointers_at(self) -> int:
        """Byte where the int64 pointers of the sequences begin."""
        return HEADER.size + 4 * self.num_sequences

    @property
    def bounds_at(self) -> int:
        """Byte where the int64 document indices begin."""
        return HEADER.size + 12 * self.num_sequences

    @property
    def end(self) -> int:
        """Bytes of the whole ``.idx``."""
        return self.bounds_at + 8 * self.num_bounds

    def header(self) -> bytes:
        """The first 34 bytes."""
        return HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.num_bounds)

    def describe(self, begin: int, end: int) -> str:
        """What bytes ``begin`` to ``end`` of the ``.idx`` hold, in words."""
        parts = [
            ("header", "", 0, HEADER.size, HEADER.size),
            ("sizes", " of sequences", self.sizes_at, self.pointers_at, 4),
            ("pointers", " of sequences", self.pointers_at, self.bounds_at, 8),
            ("document indices", "", self.bounds_at, self.end, 8),
        ]
        found = []
        for name, of, first, last, item in parts:
            low, high = max(begin, first), min(end, last)
            if low < high:
                numbers = f"{of} {(low - first) // item} to {(high - 1 - first) // item}" if name != "header" else ""
                found.append(name + numbers)
        return ", ".join(found) or "nothing that is used"


def parse_header(path: str, header: bytes, idx_bytes: int) -> Layout:
    """The layout that the first 34 bytes of an ``.idx`` of this size tell of.

    Raises:
        StoreError: not this format, or a variant of it that is refused; the message says which.
    """
    if header[: len(MAGIC)] != MAGIC:
        found = header[: len(MAGIC)]
        lazy = "; it is fairseq's older 'cached' layout (TNTIDX), which is not read" if found[:6] == b"TNTIDX" else ""
        raise StoreError(f"{path}: an .idx begins with the 9 bytes {MAGIC!r}; found {found!r}{lazy}")
    # fairseq writes 26 bytes of header, and the same magic and version: an empty one is shorter than ours.
    if idx_bytes >= 26:
        _, version, code, sequences = struct.unpack_from("<9sQBQ", header)
        if version != VERSION:
            raise StoreError(f"{path}: byte 9: version {version} of the .idx is unknown; only {VERSION} is read")
        if idx_bytes == 26 + 12 * sequences:
            raise StoreError(
                f"{path}: this is fairseq's layout of the .idx ({idx_bytes} bytes = 26 + 12 x {sequences} sequences),"
                " which has no documents and is not read; build it again with Headrace or Megatron"
            )
    if idx_bytes < HEADER.size:
        raise StoreError(f"{path}: cut short: {idx_bytes} bytes, the header alone has {HEADER.size}")
    _, _, code, sequences, bounds = HEADER.unpack(header)
    if code not in _DTYPES:
        known = ", ".join(f"{key} {dtype.name}" for key, dtype in _DTYPES.items())
        raise StoreError(f"{path}: byte 17: dtype code {code} is unknown; the codes are {known}")
    layout = Layout(code, sequences, bounds)
    if bounds == 0:
        raise StoreError(f"{path}: byte 26: no document indices; even an empty store has one, 0")
    if idx_bytes < layout.end:
        raise StoreError(
            f"{path}: cut short: {sequences} sequences and {bounds} document indices take {layout.end} bytes,"
            f" the file has {idx_bytes}"
        )
    if sequences and idx_bytes == layout.end + sequences:
        raise StoreError(
            f"{path}: a multimodal .idx, with a mode for each of the {sequences} sequences after the document"
            " indices; this version of Headrace does not read modes"
        )
    return layout


def dtype_code(dtype: DTypeLike) -> int:
    """Megatron's code of a dtype of tokens.

    Raises:
        ConfigError: a dtype without a code, or one that is not for tokens.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype={dtype!r} is no dtype: {error}") from error
    for code, known in _DTYPES.items():
        if wanted == known and known.kind in "iu":
            return code
    allowed = ", ".join(known.name for known in _DTYPES.values() if known.kind in "iu")
    raise ConfigError(f"dtype {wanted.name} cannot hold tokens in the indexed format; it has {allowed}")


def optimal_dtype(vocab_size: int | None) -> np.dtype[Any]:
    """The dtype that Megatron writes for a vocabulary: uint16 below 65,500 ids, else (or unknown) int32."""
    return np.dtype("<u2" if vocab_size is not None and vocab_size < 65_500 else "<i4")
