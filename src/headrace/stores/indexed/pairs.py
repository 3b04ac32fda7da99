"""Opens a pair of ``.bin`` and ``.idx`` of any format that uses these names, and reads the two older formats.

`TntStore` reads the older layout of fairseq and of Megatron-LM (until 2023-09), which they call "lazy" and "cached". It
is little-endian without padding. N is the number of items, which Headrace calls sequences.

    offset          bytes     type   content
    0               8         bytes  "TNTIDX" and two NULs
    8               8         u64    version, 1
    16              16        u64 2  dtype code (fairseq's), bytes of an element
    32              16        u64 2  N, number of sizes: N if each item has one dimension
    48              8         u64    D, documents + 1: only in Megatron's; all that follows then begins 8 bytes later
    48              8 (N+1)   i64    dimensions up to each item: 0, 1, ... N
    56 + 8N         8 (N+1)   i64    elements up to each item in the .bin
    64 + 16N        8 N       i64    tokens of each item
    64 + 24N        8 D       i64    only in Megatron's (at 72 + 24N): items up to the end of each document

fairseq stores each id plus 1, as its predecessor in Lua did; Megatron's copies store the ids. An index with D is
Megatron's. An index without D may be fairseq's, or that of an early copy, from before Megatron had documents, so the
user has to say which.

Source: fairseq, ``fairseq/data/indexed_dataset.py``; Megatron-LM until ``34ac1ad05e``, ``indexed_dataset.py``.

`AlephAlphaStore` reads Aleph Alpha's ``MemoryMapDataset``, in which a document is one pair (start, length):

    .bin         the tokens, nothing else
    .idx         N pairs (start, length) of the index dtype, both in elements, no header
    .meta.json   {"dtype": "int32", "index_dtype": "int64", "document_count": N}; it is written last

Source: Aleph-Alpha/scaling, ``src/scaling/core/data/memory_map.py``. Its variant for images (``pb_memory_map.py``)
counts bytes of protobuf messages, which are not tokens.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from headrace.config import nearest_path
from headrace.errors import StoreError
from headrace.io import AnyPath, Reader, path_at, reader, reader_at
from headrace.stores.indexed.index import CHUNK, ArrayPlace, Arrays, Index, IntegerColumn
from headrace.stores.indexed.layout import AS_FOUND, FLOAT_CODES, MAGIC, IndexedOptions, known_dtype
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.store import ENDS_BYTES, Problem

TNT_MAGIC: Final = b"TNTIDX\x00\x00"
_HEADER: Final = struct.Struct("<8sQQQQQ")
_KIND: Final = "the older 'cached' layout (TNTIDX)"


class TntStore(IndexedStore):
    """One shard in the older layout. Arguments and costs are those of `IndexedStore`.

    With ``options.dialect="fairseq"``, 1 is subtracted from each stored number, so documents are copies. Without a
    dialect, an index with documents is read as Megatron's, and an index without documents is refused, since nothing
    tells whether it stores ids or ids + 1.

    Example:
        >>> import pathlib
        >>> np.array([5, 6, 7], "<i4").tofile("old.bin")
        >>> header = b"TNTIDX\\0\\0" + np.array([1, 4, 4, 2, 2], "<u8").tobytes()  # version, code, bytes, items, sizes
        >>> arrays = np.array([0, 1, 2, 0, 1, 3, 1, 2], "<i8").tobytes()  # dimensions, elements, sizes
        >>> _ = pathlib.Path("old.idx").write_bytes(header + arrays)
        >>> options = headrace.stores.IndexedOptions(dialect="megatron")
        >>> headrace.stores.TntStore("old", options=options).document(1).tolist()
        [6, 7]
    """

    format = "tntidx"

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check the shard as `IndexedStore` does, and that every item has one dimension."""
        place = ArrayPlace("dimensions", self.index.arrays.header_bytes, "<i8", self.num_sequences)
        dimensions = IntegerColumn(self._reader, self.index.path, place)
        for begin in range(0, len(dimensions), CHUNK):
            found = dimensions.read(begin, min(begin + CHUNK, len(dimensions)))
            wrong = np.flatnonzero(found != np.arange(begin, begin + len(found)))
            if len(wrong):
                at = begin + int(wrong[0])
                message = f"begins at dimension {found[wrong[0]]} instead of {at}; items must have one dimension each"
                yield Problem(path=self.index.path, place=f"sequence {at}", message=message)
                break
        yield from super().check(vocab_size=vocab_size)

    def _open_index(self, using: Reader) -> Index:
        path = self.prefix + ".idx"
        size = using.size(path)
        head = using.read(path, 0, min(size, 56)).tobytes()
        arrays = _arrays(path, head, size, self.options)
        index = Index(using, path, arrays, using.size(self._bin))
        total = IntegerColumn(using, path, ArrayPlace("total", arrays.pointers.end, "<i8", 1))
        end = int(total.read(0, 1)[0]) * arrays.dtype.itemsize
        if end != index.last_byte:
            raise StoreError(
                f"{path}: byte {arrays.pointers.end}: the elements end at byte {end} of the .bin, but the last item"
                f" ends at byte {index.last_byte}; in {_KIND} both are the same"
            )
        return index


def _arrays(path: str, head: bytes, idx_bytes: int, options: IndexedOptions) -> Arrays:
    dtype, count = _parse_header(path, head)
    without = _HEADER.size + 8 * (3 * count + 2)
    num_bounds = int.from_bytes(head[_HEADER.size :], "little")
    has_documents = idx_bytes == without + 8 + 8 * num_bounds
    if not has_documents and idx_bytes != without:
        raise StoreError(
            f"{path}: cut short, or not {_KIND}: {count} items take {without} bytes, or"
            f" {without + 8 + 8 * num_bounds} with {num_bounds} document indices, but the file has {idx_bytes}"
        )
    if has_documents and options.dialect == "fairseq":
        raise StoreError(
            f"{path}: dialect='fairseq' was requested, but this index has documents, so it is Megatron's; open it"
            " without a dialect"
        )
    if not has_documents and options.dialect is None:
        raise StoreError(
            f"{path}: this is {_KIND} without documents: fairseq stores ids + 1, early copies in Megatron the ids"
            " themselves, and the index does not tell which; open it with dialect='fairseq' or dialect='megatron'"
        )
    header = _HEADER.size + 8 * has_documents
    pointers = header + 8 * (count + 1)
    sizes = pointers + 8 * (count + 1)
    bounds = ArrayPlace("document indices", sizes + 8 * count, "<i8", num_bounds)
    return Arrays(
        dtype=dtype,
        header_bytes=header,
        sizes=ArrayPlace("sizes of sequences", sizes, "<i8", count),
        pointers=ArrayPlace("pointers of sequences", pointers, "<i8", count, scale=dtype.itemsize),
        bounds=bounds if has_documents and options.documents == "indices" else None,
        end=idx_bytes,
        shift=int(options.dialect == "fairseq"),
    )


def _parse_header(path: str, head: bytes) -> tuple[np.dtype[Any], int]:
    """Return the dtype of the elements and the number of items, which must have one dimension each."""
    if len(head) < _HEADER.size:
        raise StoreError(f"{path}: cut short: it has {len(head)} bytes, but the header of {_KIND} takes {_HEADER.size}")
    _, version, code, element_bytes, count, num_sizes = _HEADER.unpack_from(head)
    if version != 1:
        raise StoreError(f"{path}: byte 8: version {version} of {_KIND} is unknown; only 1 is supported")
    dtype = known_dtype(path, 16, code, "fairseq", f" of {_KIND}")
    if dtype.itemsize != element_bytes:
        floats = "; such files of floating-point numbers are not supported" if code in FLOAT_CODES else ""
        raise StoreError(
            f"{path}: byte 24: an element has {element_bytes} bytes, but {dtype.name} has {dtype.itemsize}{floats}"
        )
    if num_sizes != count:
        raise StoreError(
            f"{path}: byte 40: {num_sizes} sizes for {count} items: items of several dimensions are not documents of"
            " tokens, and are not supported"
        )
    return dtype, count


META_SUFFIX: Final = ".meta.json"
_MAX_META_BYTES: Final = 1 << 16
_INDEX_DTYPES: Final = ("int32", "int64", "uint32", "uint64")
_DTYPES: Final = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float32", "float64")


class _Meta(msgspec.Struct, frozen=True):
    """The content of ``.meta.json``; other fields are ignored."""

    dtype: str
    index_dtype: str
    document_count: int


class AlephAlphaStore(IndexedStore):
    """One shard of Aleph Alpha's format. Arguments and costs are those of `IndexedStore`.

    Example:
        >>> import pathlib
        >>> np.array([5, 6, 7], "<i4").tofile("pair.bin")
        >>> np.array([[0, 1], [1, 2]], "<i8").tofile("pair.idx")  # start and length of each document
        >>> meta = '{"dtype": "int32", "index_dtype": "int64", "document_count": 2}'
        >>> _ = pathlib.Path("pair.meta.json").write_text(meta)
        >>> headrace.stores.AlephAlphaStore("pair").document(1).tolist()
        [6, 7]
    """

    format = "aleph-alpha"

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The ``.bin``, the ``.idx`` and the ``.meta.json``."""
        return (*super().files, self._reader.path_at(self.prefix + META_SUFFIX))

    def _open_index(self, using: Reader) -> Index:
        path = self.prefix + ".idx"
        meta = _read_meta(using, self.prefix + META_SUFFIX)
        index_dtype: np.dtype[Any] = np.dtype(meta.index_dtype).newbyteorder("<")
        item, size = index_dtype.itemsize, using.size(path)
        if size != 2 * item * meta.document_count:
            raise StoreError(
                f"{path}: {meta.document_count} documents take {2 * item * meta.document_count} bytes, a start and a"
                f" length of {meta.index_dtype} each, but the file has {size}: it was cut short, or the"
                f" {META_SUFFIX} belongs to another store"
            )
        dtype: np.dtype[Any] = np.dtype(meta.dtype).newbyteorder("<")
        count = meta.document_count
        arrays = Arrays(
            dtype=dtype,
            header_bytes=0,
            sizes=ArrayPlace("lengths of documents", item, index_dtype.str, count, stride=2 * item),
            pointers=ArrayPlace(
                "starts of documents", 0, index_dtype.str, count, stride=2 * item, scale=dtype.itemsize
            ),
            end=size,
        )
        return Index(using, path, arrays, using.size(self._bin))


def _read_meta(using: Reader, path: str) -> _Meta:
    data = using.read(path, 0, min(using.size(path), _MAX_META_BYTES)).tobytes()
    try:
        meta = msgspec.json.decode(data, type=_Meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{path}: Aleph Alpha's builder does not write such a file ({error}); expected dtype, index_dtype and"
            " document_count"
        ) from error
    for name, found, allowed in (("dtype", meta.dtype, _DTYPES), ("index_dtype", meta.index_dtype, _INDEX_DTYPES)):
        if found not in allowed:
            raise StoreError(f"{path}: {name} {found!r} is unknown; allowed are {', '.join(allowed)}")
    if meta.document_count < 0:
        raise StoreError(f"{path}: document_count {meta.document_count} is negative")
    return meta


SUFFIXES = (".bin", ".idx")


def open_pair(
    prefix: str | os.PathLike[str], *, using: str | Reader = "mmap", options: IndexedOptions = AS_FOUND
) -> IndexedStore:
    """Open ``<prefix>.bin`` and ``<prefix>.idx``. The first bytes of the ``.idx`` decide which format it is.

    Raises:
        StoreError: one of the two files is missing, or they are malformed.
    """
    using = reader(reader_at(prefix, using))
    found = [suffix for suffix in SUFFIXES if path_at(f"{prefix}{suffix}", using).is_file()]
    if not found:
        raise StoreError(f"{prefix}: nothing is there{nearest_path(prefix)}; expected {prefix}.bin and {prefix}.idx")
    for suffix in SUFFIXES:
        if suffix not in found:
            raise StoreError(
                f"{prefix}{suffix}: missing beside {prefix}{found[0]}; a store needs both files (an interrupted write"
                " or copy leaves only one)"
            )
    return _kind(str(prefix), using)(prefix, using=using, options=options)


def _kind(prefix: str, using: Reader) -> type[IndexedStore]:
    using.keep_all([f"{prefix}.idx"], {f"{prefix}.bin": ENDS_BYTES})
    magic = using.read(f"{prefix}.idx", 0, min(len(MAGIC), using.size(f"{prefix}.idx"))).tobytes()
    if magic.startswith(TNT_MAGIC):
        return TntStore
    # Aleph Alpha's index has no magic bytes: its first number is a start, 0.
    if magic != MAGIC and path_at(prefix + META_SUFFIX, using).is_file():
        return AlephAlphaStore
    return IndexedStore
