"""The layout of an ``.idx`` of Megatron or fairseq, and the dialects, which differ in the meaning of dtype codes.

The file is little-endian without padding. N is the number of sequences, D the number of documents *plus one*.

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

fairseq's has neither D nor the document indices: 26 + 12 N bytes. Only the size of the file tells the two apart.

The dialects differ in the meaning of the dtype codes and in what they leave out:

code                      1..5, 8   6         7         9, 10
megatron                  same      float64   float32   -         Megatron-Core, Megatron-LM since 2023-06
deepspeed                 same      float64   float64   -         Megatron-DeepSpeed, older Megatron-LM
neox                      same      float32   float64   -         GPT-NeoX, Aleph Alpha's copy of it
fairseq                   same      float64   float64   uint32, uint64   no documents in its index

Source: Megatron-Core 0.16, ``megatron/core/datasets/indexed_dataset.py``; fairseq, ``fairseq/data/indexed_dataset.py``.
The page ``docs/formats/indexed.md`` lists what is refused, and why.
"""

from __future__ import annotations

import struct
import warnings
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.config import check_choice
from headrace.errors import ConfigError, StoreError
from headrace.io import Reader
from headrace.stores.arguments import as_dtype
from headrace.stores.indexed.index import CHUNK, ArrayPlace, Arrays, Index, IntegerColumn

Dialect = Literal["megatron", "deepspeed", "neox", "fairseq"]
Documents = Literal["indices", "sequences"]

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
FLOAT_CODES: Final = (6, 7)

_SAME: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_OWN: Final[dict[Dialect, dict[int, str]]] = {
    "megatron": {6: "<f8", 7: "<f4"},
    "deepspeed": {6: "<f8", 7: "<f8"},
    "neox": {6: "<f4", 7: "<f8"},
    "fairseq": {6: "<f8", 7: "<f8", 9: "<u4", 10: "<u8"},
}
_CODES: Final[dict[Dialect, dict[int, np.dtype[Any]]]] = {
    dialect: {code: np.dtype(name) for code, name in sorted({**_SAME, **own}.items())} for dialect, own in _OWN.items()
}


class IndexedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read a pair of ``.bin`` and ``.idx`` if its bytes leave that open.

    Attributes:
        dialect: which program wrote the pair; None decides by the bytes, and raises an error if they do not tell.
        documents: with ``"indices"``, documents are those of the index; with ``"sequences"``, each sequence is a
            document, whatever the index says. So a pair whose documents were lost by a tool opens too.

    Example:
        >>> options = headrace.stores.IndexedOptions(documents="sequences")
        >>> store = headrace.stores.IndexedStore("data/web", options=options)
        >>> store.num_documents == store.num_sequences
        True
    """

    dialect: Dialect | None = None
    documents: Documents = "indices"

    def __post_init__(self) -> None:
        if self.dialect is not None:
            check_choice("dialect", self.dialect, DIALECTS)
        check_choice("documents", self.documents, get_args(Documents))


AS_FOUND: Final = IndexedOptions()


def codes(dialect: Dialect) -> dict[int, np.dtype[Any]]:
    """Return the dtypes of a dialect by their codes."""
    return dict(_CODES[dialect])


def code_of(dtype: DTypeLike, dialect: Dialect) -> int:
    """Return the code that a dialect writes for a dtype.

    Raises:
        ConfigError: it is not a dtype, or the readers of the dialect do not know it; the message lists those they know.
    """
    wanted = as_dtype(dtype)
    for code, known in _CODES[dialect].items():
        if wanted == known:
            return code
    known_names = ", ".join(dict.fromkeys(known.name for known in _CODES[dialect].values()))
    where = " (fairseq's readers know it: dialect='fairseq')" if wanted in _CODES["fairseq"].values() else ""
    raise ConfigError(
        f"dtype {wanted.name} is unknown to readers of the {dialect} dialect{where}; they know {known_names}"
    )


MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = struct.Struct("<9sQBQQ")
_FAIRSEQ_HEADER: Final = struct.Struct("<9sQBQ")


class IdxLayout(msgspec.Struct, frozen=True):
    """Where the arrays of one ``.idx`` lie.

    Attributes:
        dtype_code: dtype code in the header.
        num_sequences: N.
        num_bounds: D, documents + 1; 0 in fairseq's layout.
        dialect: decides the meaning of the code; ``"fairseq"`` is also the layout without documents.
        mode_bytes: bytes of each sequence's mode, 1 or 4; 0 if there are no modes.
    """

    dtype_code: int
    num_sequences: int
    num_bounds: int
    dialect: Dialect = "megatron"
    mode_bytes: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens in the ``.bin``."""
        return codes(self.dialect)[self.dtype_code]

    @property
    def has_documents(self) -> bool:
        """Whether the layout has document indices."""
        return self.dialect != "fairseq"

    @property
    def end(self) -> int:
        """Number of bytes in the whole ``.idx``."""
        return len(self.header()) + (12 + self.mode_bytes) * self.num_sequences + 8 * self.num_bounds

    @property
    def bounds_at(self) -> int:
        """The byte where the int64 document indices begin."""
        return len(self.header()) + 12 * self.num_sequences

    def header(self) -> bytes:
        """Return the bytes before the sizes."""
        if not self.has_documents:
            return _FAIRSEQ_HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences)
        return HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.num_bounds)

    def arrays(self, *, with_documents: bool = True) -> Arrays:
        """Return the places of the arrays; with ``with_documents=False``, each sequence is a document."""
        begin, count = len(self.header()), self.num_sequences
        after = self.bounds_at + 8 * self.num_bounds
        bounds = ArrayPlace("document indices", self.bounds_at, "<i8", self.num_bounds)
        modes = ArrayPlace("modes of sequences", after, "<i4" if self.mode_bytes == 4 else "i1", count)
        return Arrays(
            dtype=self.dtype,
            header_bytes=begin,
            sizes=ArrayPlace("sizes of sequences", begin, "<i4", count),
            pointers=ArrayPlace("pointers of sequences", begin + 4 * count, "<i8", count),
            bounds=bounds if self.has_documents and with_documents else None,
            modes=modes if self.mode_bytes else None,
            end=self.end,
        )

    def describe(self, begin: int, end: int) -> str:
        """Describe what the bytes ``begin`` to ``end`` of the ``.idx`` hold."""
        return self.arrays().describe(begin, end)


def parse_header(path: str, header: bytes, idx_bytes: int, options: IndexedOptions = AS_FOUND) -> IdxLayout:
    """Parse the layout from the first 34 bytes of an ``.idx`` of this size.

    They do not tell what the codes 6 and 7 mean: without ``options.dialect`` the layout's dialect is ``"megatron"``.

    Raises:
        StoreError: the file is not of this format, is cut short, or is not of the dialect; the message says which.
    """
    if header[: len(MAGIC)] != MAGIC:
        raise StoreError(f"{path}: an .idx begins with the 9 bytes {MAGIC!r}; found {header[: len(MAGIC)]!r}")
    if idx_bytes < _FAIRSEQ_HEADER.size:
        raise StoreError(f"{path}: cut short: it has {idx_bytes} bytes, but the header alone takes {HEADER.size}")
    _, version, code, sequences = _FAIRSEQ_HEADER.unpack_from(header)
    if version != VERSION:
        raise StoreError(f"{path}: byte 9: version {version} of the .idx is unknown; only {VERSION} is supported")
    dialect = _dialect_by_size(path, idx_bytes, sequences, options.dialect)
    known_dtype(path, 17, code, dialect)
    if dialect == "fairseq":
        return IdxLayout(code, sequences, 0, dialect)
    bounds = HEADER.unpack_from(header)[-1]
    if bounds == 0:
        raise StoreError(f"{path}: byte 26: there are no document indices; even an empty store has one, which is 0")
    layout = IdxLayout(code, sequences, bounds, dialect)
    if idx_bytes < layout.end:
        raise StoreError(
            f"{path}: cut short: {sequences} sequences and {bounds} document indices take {layout.end} bytes,"
            f" but the file has {idx_bytes}"
        )
    # Without sequences all three sizes are 0, and the last one counts: there are no modes.
    mode_bytes = {sequences: 1, 4 * sequences: 4, 0: 0}.get(idx_bytes - layout.end, 0)
    return msgspec.structs.replace(layout, mode_bytes=mode_bytes)


def _dialect_by_size(path: str, idx_bytes: int, sequences: int, requested: Dialect | None) -> Dialect:
    """Return fairseq's dialect or the requested one, as the size of the file says; Megatron's if none was requested."""
    # fairseq writes 26 bytes of header, the same magic and version, and no documents.
    is_fairseq = idx_bytes == _FAIRSEQ_HEADER.size + 12 * sequences
    if requested is not None and is_fairseq != (requested == "fairseq"):
        found, right = ("no documents", "dialect='fairseq'") if is_fairseq else ("documents", "another dialect")
        raise StoreError(
            f"{path}: dialect={requested!r} was requested, but {idx_bytes} bytes for {sequences} sequences mean a"
            f" layout with {found}; open it with {right}, or without a dialect"
        )
    if is_fairseq:
        return "fairseq"
    if idx_bytes < HEADER.size:
        raise StoreError(f"{path}: cut short: it has {idx_bytes} bytes, but the header alone takes {HEADER.size}")
    return requested or "megatron"


def known_dtype(path: str, at: int, code: int, dialect: Dialect, of: str = "") -> np.dtype[Any]:
    """Return the dtype of the code at a byte of an ``.idx``.

    Raises:
        StoreError: the dialect has no such code; the message lists those that it has.
    """
    known = _CODES[dialect]
    if code in known:
        return known[code]
    listed = ", ".join(f"{key} {dtype.name}" for key, dtype in known.items())
    also = "; 9 and 10 are codes of fairseq, whose .idx has 26 + 12 N bytes" if code in _CODES["fairseq"] else ""
    raise StoreError(f"{path}: byte {at}: dtype code {code}{of} is unknown; the codes are {listed}{also}")


def dtype_code(dtype: DTypeLike, *, ids: bool = True) -> int:
    """Return Megatron's code of a dtype; ``ids`` restricts it to the dtypes of ids.

    Raises:
        ConfigError: the dtype has no code, or is not one for ids.
    """
    wanted = as_dtype(dtype)
    fitting = {code: known for code, known in codes("megatron").items() if known.kind in "iu" or not ids}
    for code, known in fitting.items():
        if wanted == known:
            return code
    allowed = ", ".join(known.name for known in fitting.values())
    what = "tokens" if ids else "values"
    raise ConfigError(f"dtype {wanted.name} cannot hold {what} in the indexed format; allowed are {allowed}")


def optimal_dtype(vocab_size: int | None) -> np.dtype[Any]:
    """Return the dtype that Megatron writes for a vocabulary: uint16 below 65,500 ids, otherwise int32."""
    return np.dtype("<u2" if vocab_size is not None and vocab_size < 65_500 else "<i4")


def open_index(reader: Reader, path: str, bin_bytes: int, options: IndexedOptions = AS_FOUND) -> Index:
    """Open the index ``<prefix>.idx`` beside a ``.bin`` of this size. O(1), but O(N) for floating-point numbers.

    Warns:
        UserWarning: the documents are lost, and ``documents="sequences"`` is used.

    Raises:
        StoreError: the index is malformed, contradicts the options, or needs an option to be read.
    """
    size = reader.size(path)
    header = reader.read(path, 0, min(size, HEADER.size)).tobytes()
    layout = parse_header(path, header, size, options)
    if layout.dtype_code in FLOAT_CODES and layout.has_documents:
        layout = msgspec.structs.replace(layout, dialect=_decided(reader, path, layout, bin_bytes, options.dialect))
    with_documents = options.documents == "indices"
    index = Index(reader, path, layout.arrays(with_documents=with_documents), bin_bytes)
    if not layout.has_documents:
        _check_fairseq(index, bin_bytes)
    elif not with_documents:
        _warn_if_lost(reader, path, layout)
    return index


def _decided(reader: Reader, path: str, layout: IdxLayout, bin_bytes: int, requested: Dialect | None) -> Dialect:
    """Find the dialect whose dtype for this code fits the size of the ``.bin``; use the requested one if possible."""
    code, count = layout.dtype_code, layout.num_sequences
    sizes = IntegerColumn(reader, path, layout.arrays().sizes)
    total = sum(int(sizes.read(at, min(at + CHUNK, count)).sum()) for at in range(0, count, CHUNK))
    meanings: dict[Dialect, np.dtype[Any]] = {name: codes(name)[code] for name in DIALECTS if name != "fairseq"}
    fits = [name for name, dtype in meanings.items() if total * dtype.itemsize == bin_bytes]
    if requested is not None:
        if fits and requested not in fits:
            raise StoreError(
                f"{path}: byte 17: dtype code {code} is {meanings[requested].name} with dialect={requested!r}, but"
                f" {total} numbers take {bin_bytes} bytes in the .bin: they are {meanings[fits[0]].name}; open it with"
                f" dialect={fits[0]!r}, or without a dialect"
            )
        return requested
    if fits:
        return fits[0]
    choices = ", ".join(f"{dtype.name} with dialect={name!r}" for name, dtype in meanings.items())
    raise StoreError(
        f"{path}: byte 17: dtype code {code} means different dtypes in different tools, and {total} numbers in a .bin"
        f" of {bin_bytes} bytes do not tell which; choose: {choices}"
    )


def _check_fairseq(index: Index, bin_bytes: int) -> None:
    """Raise StoreError if the pointers do not fit, as in an index of Megatron cut short to the size of fairseq's."""
    first = int(index.pointers.read(0, 1)[0]) if len(index.pointers) else 0
    if first != 0 or index.last_byte != bin_bytes:
        raise StoreError(
            f"{index.path}: {index.size} bytes = 26 + 12 x {len(index.sizes)} sequences is the size of fairseq's"
            f" layout, whose sequences fill the .bin; but here they fill bytes {first} to {index.last_byte} of"
            f" {bin_bytes}: this is an .idx of Megatron that was cut short, or the .bin belongs to another .idx"
        )


def _warn_if_lost(reader: Reader, path: str, layout: IdxLayout) -> None:
    bounds = IntegerColumn(reader, path, ArrayPlace("", layout.bounds_at, "<i8", layout.num_bounds))
    first, last = bounds.take(np.array([0, layout.num_bounds - 1])).tolist()
    if first != 0 or last != layout.num_sequences:
        warnings.warn(
            f"{path}: the documents are lost (their indices go from {first} to {last}, not from 0 to"
            f" {layout.num_sequences}): each sequence is a document, because of documents='sequences'",
            stacklevel=2,
        )
