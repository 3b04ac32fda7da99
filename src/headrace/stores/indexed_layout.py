"""The bytes of Megatron's ``.idx``: header, arrays, and the rules that are checked in O(1).

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
    34+12N+8D    N      i8     a mode for each sequence, in a multimodal .idx only; of 2023-07 to 2023-10 as i32

fairseq's has neither D nor the document indices: 26 + 12 N bytes. Nothing but the size of the file says which it is.

Source: Megatron-Core 0.16, ``megatron/core/datasets/indexed_dataset.py``; fairseq, ``fairseq/data/indexed_dataset.py``.
The page ``docs/formats/indexed.md`` says what is refused, and why.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError, StoreError
from headrace.stores.indexed_arrays import Arrays, Place
from headrace.stores.indexed_dialects import AS_FOUND, Dialect, IndexedOptions, codes

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = struct.Struct("<9sQBQQ")
_FAIRSEQ_HEADER: Final = struct.Struct("<9sQBQ")


class Layout(msgspec.Struct, frozen=True):
    """Where the arrays of one ``.idx`` lie.

    Attributes:
        dtype_code: what the header says.
        num_sequences: N.
        num_bounds: D, documents + 1; 0 in fairseq's layout.
        dialect: says what the code means; ``"fairseq"`` is also the layout without documents.
        mode_bytes: bytes of a sequence's mode: 1, 4, or 0 where there are no modes.
    """

    dtype_code: int
    num_sequences: int
    num_bounds: int
    dialect: Dialect = "megatron"
    mode_bytes: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens in the ``.bin``."""
        return codes(self.dialect)[self.dtype_code]

    @property
    def has_documents(self) -> bool:
        """Whether the layout has document indices at all."""
        return self.dialect != "fairseq"

    @property
    def end(self) -> int:
        """Bytes of the whole ``.idx``."""
        return len(self.header()) + (12 + self.mode_bytes) * self.num_sequences + 8 * self.num_bounds

    @property
    def bounds_at(self) -> int:
        """Byte where the int64 document indices begin."""
        return len(self.header()) + 12 * self.num_sequences

    def header(self) -> bytes:
        """The first bytes, up to the sizes."""
        if not self.has_documents:
            return _FAIRSEQ_HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences)
        return HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.num_bounds)

    def arrays(self, *, with_documents: bool = True) -> Arrays:
        """The same for readers of all formats; without documents each sequence is one."""
        begin, count = len(self.header()), self.num_sequences
        after = self.bounds_at + 8 * self.num_bounds
        bounds = Place("document indices", self.bounds_at, "<i8", self.num_bounds)
        modes = Place("modes of sequences", after, "<i4" if self.mode_bytes == 4 else "i1", count)
        return Arrays(
            dtype=self.dtype,
            header_bytes=begin,
            sizes=Place("sizes of sequences", begin, "<i4", count),
            pointers=Place("pointers of sequences", begin + 4 * count, "<i8", count),
            bounds=bounds if self.has_documents and with_documents else None,
            modes=modes if self.mode_bytes else None,
            end=self.end,
        )

    def describe(self, begin: int, end: int) -> str:
        """What bytes ``begin`` to ``end`` of the ``.idx`` hold, in words."""
        return self.arrays().describe(begin, end)


def parse_header(path: str, header: bytes, idx_bytes: int, options: IndexedOptions = AS_FOUND) -> Layout:
    """The layout that the first 34 bytes of an ``.idx`` of this size tell of.

    What codes 6 and 7 mean they do not tell: without ``options.dialect`` the layout says ``"megatron"``.

    Raises:
        StoreError: not this format, or cut short, or not of the dialect; the message says which.
    """
    if header[: len(MAGIC)] != MAGIC:
        raise StoreError(f"{path}: an .idx begins with the 9 bytes {MAGIC!r}; found {header[: len(MAGIC)]!r}")
    if idx_bytes < _FAIRSEQ_HEADER.size:
        raise StoreError(f"{path}: cut short: {idx_bytes} bytes, the header alone has {HEADER.size}")
    _, version, code, sequences = _FAIRSEQ_HEADER.unpack_from(header)
    if version != VERSION:
        raise StoreError(f"{path}: byte 9: version {version} of the .idx is unknown; only {VERSION} is read")
    # fairseq writes 26 bytes of header, the same magic and version, and no documents.
    is_fairseq = idx_bytes == _FAIRSEQ_HEADER.size + 12 * sequences
    if is_fairseq != (options.dialect == "fairseq") and options.dialect is not None:
        has, way = ("no documents", "dialect='fairseq'") if is_fairseq else ("documents", "another dialect")
        raise StoreError(
            f"{path}: dialect={options.dialect!r} was asked for, but {idx_bytes} bytes for {sequences} sequences is a"
            f" layout with {has}; open it with {way}, or without one"
        )
    dialect: Dialect = "fairseq" if is_fairseq else options.dialect or "megatron"
    if not is_fairseq and idx_bytes < HEADER.size:
        raise StoreError(f"{path}: cut short: {idx_bytes} bytes, the header alone has {HEADER.size}")
    if code not in codes(dialect):
        known = ", ".join(f"{key} {dtype.name}" for key, dtype in codes(dialect).items())
        also = "; 9 and 10 are fairseq's, whose .idx has 26 + 12 N bytes" if code in codes("fairseq") else ""
        raise StoreError(f"{path}: byte 17: dtype code {code} is unknown; the codes are {known}{also}")
    if is_fairseq:
        return Layout(code, sequences, 0, dialect)
    bounds = HEADER.unpack_from(header)[-1]
    if bounds == 0:
        raise StoreError(f"{path}: byte 26: no document indices; even an empty store has one, 0")
    layout = Layout(code, sequences, bounds, dialect)
    if idx_bytes < layout.end:
        raise StoreError(
            f"{path}: cut short: {sequences} sequences and {bounds} document indices take {layout.end} bytes,"
            f" the file has {idx_bytes}"
        )
    mode_bytes = {layout.end + sequences: 1, layout.end + 4 * sequences: 4}.get(idx_bytes, 0) if sequences else 0
    return Layout(code, sequences, bounds, dialect, mode_bytes)


def dtype_code(dtype: DTypeLike, *, ids: bool = True) -> int:
    """Megatron's code of a dtype, of ids or of any numbers.

    Raises:
        ConfigError: a dtype without a code, or one that is not for ids.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype={dtype!r} is no dtype: {error}") from error
    fitting = {code: known for code, known in codes("megatron").items() if known.kind in "iu" or not ids}
    for code, known in fitting.items():
        if wanted == known:
            return code
    allowed = ", ".join(known.name for known in fitting.values())
    what = "tokens" if ids else "values"
    raise ConfigError(f"dtype {wanted.name} cannot hold {what} in the indexed format; it has {allowed}")


def optimal_dtype(vocab_size: int | None) -> np.dtype[Any]:
    """The dtype that Megatron writes for a vocabulary: uint16 below 65,500 ids, else (or unknown) int32."""
    return np.dtype("<u2" if vocab_size is not None and vocab_size < 65_500 else "<i4")
