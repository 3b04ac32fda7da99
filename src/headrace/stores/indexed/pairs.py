"""Opens a pair of ``.bin`` and ``.idx``, whichever of the formats that share these names it is.

The older layout of fairseq and of Megatron-LM (until 2023-09), which they call "lazy" and "cached".

All little-endian, no padding. N is the number of items, which are Headrace's sequences.

    offset          bytes     type   content
    0               8         bytes  "TNTIDX" and two NULs
    8               8         u64    version, 1
    16              16        u64 2  dtype code (fairseq's), bytes of an element
    32              16        u64 2  N, number of sizes: N where each item has one dimension
    48              8         u64    D, documents + 1: in Megatron's only; all that follows then begins 8 bytes later
    48              8 (N+1)   i64    dimensions up to each item: 0, 1, ... N
    56 + 8N         8 (N+1)   i64    elements up to each item in the .bin
    64 + 16N        8 N       i64    tokens of each item
    64 + 24N        8 D       i64    in Megatron's only (at 72 + 24N): items up to the end of each document

fairseq stores each id plus 1, as its ancestor in Lua did; Megatron's copies store the ids. An index with D is
Megatron's. One without may also be an early copy's, from before Megatron had documents, so it has to be said.

Source: fairseq, ``fairseq/data/indexed_dataset.py``; Megatron-LM until ``34ac1ad05e``, ``indexed_dataset.py``.

Aleph Alpha's ``MemoryMapDataset``: ``.bin``, ``.idx`` and ``.meta.json``.

    .bin         the tokens, nothing else
    .idx         N pairs (start, length) of the index dtype, both in elements, no header
    .meta.json   {"dtype": "int32", "index_dtype": "int64", "document_count": N}; it is written last

A document is one pair; there are no sequences below it.

Source: Aleph-Alpha/scaling, ``src/scaling/core/data/memory_map.py``. Its variant for images (``pb_memory_map.py``)
counts bytes of protobuf messages, which are no tokens.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader, reader
from headrace.stores.indexed.index import CHUNK, ArrayPlace, Arrays, Index, IntegerColumn
from headrace.stores.indexed.layout import AS_FOUND, FLOAT_CODES, MAGIC, IndexedOptions, codes
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.store import Problem

TNT_MAGIC: Final = b"TNTIDX\x00\x00"
_HEADER: Final = struct.Struct("<8sQQQQQ")
_KIND: Final = "the older 'cached' layout (TNTIDX)"


class TntStore(IndexedStore):
    """One shard in the older layout. Arguments and costs as of `IndexedStore`.

    With ``options.dialect="fairseq"`` 1 is subtracted from what is stored, so that documents are copies. Without a
    dialect an index with documents is taken as Megatron's, and one without is refused: nothing tells the two apart.
    """

    format = "tntidx"

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """As of `IndexedStore`; and every item has one dimension."""
        dimensions = IntegerColumn(
            self._reader, self.index.path, self.index.arrays.header_bytes, "<i8", self.num_sequences
        )
        for begin in range(0, len(dimensions), CHUNK):
            found = dimensions.read(begin, min(begin + CHUNK, len(dimensions)))
            wrong = np.flatnonzero(found != np.arange(begin, begin + len(found)))
            if len(wrong):
                at = begin + int(wrong[0])
                message = f"begins with dimension {found[wrong[0]]}; items of one dimension count 0, 1, 2, ..."
                yield Problem(path=self.index.path, place=f"sequence {at}", message=message)
                break
        yield from super().check(vocab_size=vocab_size)

    def _open_index(self, using: Reader) -> Index:
        path = self.prefix + ".idx"
        size = using.size(path)
        head = using.read_ranges(path, np.zeros(1, np.int64), np.array([min(size, 56)])).tobytes()
        arrays = _arrays(path, head, size, self.options)
        index = Index(using, path, arrays, using.size(self._bin))
        total = IntegerColumn(using, path, arrays.pointers.end, "<i8", 1)
        end = int(total.read(0, 1)[0]) * arrays.dtype.itemsize
        if end != index.last_byte:
            raise StoreError(
                f"{path}: byte {arrays.pointers.end}: {_KIND} ends with the elements of all items; found that they end"
                f" at byte {end} of the .bin, the last item at byte {index.last_byte}"
            )
        return index


def _arrays(path: str, head: bytes, idx_bytes: int, options: IndexedOptions) -> Arrays:
    if idx_bytes < _HEADER.size:
        raise StoreError(f"{path}: cut short: {idx_bytes} bytes, the header of {_KIND} has {_HEADER.size}")
    _, version, code, element_bytes, count, num_sizes = _HEADER.unpack_from(head)
    if version != 1:
        raise StoreError(f"{path}: byte 8: version {version} of {_KIND} is unknown; only 1 is read")
    known = codes("fairseq")
    if code not in known:
        listed = ", ".join(f"{key} {dtype.name}" for key, dtype in known.items())
        raise StoreError(f"{path}: byte 16: dtype code {code} of {_KIND} is unknown; the codes are {listed}")
    if known[code].itemsize != element_bytes:
        floats = "; such files of floating-point numbers are not read" if code in FLOAT_CODES else ""
        raise StoreError(
            f"{path}: byte 24: an element has {element_bytes} bytes, {known[code].name} has {known[code].itemsize}"
            f"{floats}"
        )
    if num_sizes != count:
        raise StoreError(
            f"{path}: byte 40: {num_sizes} sizes for {count} items: items of several dimensions are not documents of"
            " tokens, and not read"
        )
    without = _HEADER.size + 8 * (3 * count + 2)
    num_bounds = struct.unpack_from("<Q", head, _HEADER.size)[0] if idx_bytes >= _HEADER.size + 8 else 0
    has_documents = idx_bytes == without + 8 + 8 * num_bounds
    if not has_documents and idx_bytes != without:
        raise StoreError(
            f"{path}: cut short, or not {_KIND}: {count} items take {without} bytes, with {num_bounds} document indices"
            f" {without + 8 + 8 * num_bounds}; the file has {idx_bytes}"
        )
    if has_documents and options.dialect == "fairseq":
        raise StoreError(
            f"{path}: dialect='fairseq' was asked for, but this index has documents, which only Megatron's has; open it"
            " without a dialect"
        )
    if not has_documents and options.dialect is None:
        raise StoreError(
            f"{path}: {_KIND} without documents: fairseq stores ids + 1, early copies in Megatron the ids themselves,"
            " and the index does not tell which; open it with dialect='fairseq' or dialect='megatron'"
        )
    header = _HEADER.size + (8 if has_documents else 0)
    pointers = header + 8 * (count + 1)
    sizes = pointers + 8 * (count + 1)
    bounds = ArrayPlace("document indices", sizes + 8 * count, "<i8", num_bounds)
    return Arrays(
        dtype=known[code],
        header_bytes=header,
        sizes=ArrayPlace("sizes of sequences", sizes, "<i8", count),
        pointers=ArrayPlace("pointers of sequences", pointers, "<i8", count, scale=element_bytes),
        bounds=bounds if has_documents and options.documents == "indices" else None,
        end=idx_bytes,
        shift=1 if options.dialect == "fairseq" else 0,
    )


META_SUFFIX: Final = ".meta.json"
_MAX_META_BYTES: Final = 1 << 16
_INDEX_DTYPES: Final = ("int32", "int64", "uint32", "uint64")
_DTYPES: Final = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float32", "float64")


class _Meta(msgspec.Struct, frozen=True):
    """What ``.meta.json`` holds; other fields are left alone."""

    dtype: str
    index_dtype: str
    document_count: int


class AlephAlphaStore(IndexedStore):
    """One shard of Aleph Alpha's format. Arguments and costs as of `IndexedStore`."""

    format = "aleph-alpha"

    @property
    def files(self) -> tuple[Path, ...]:
        """The ``.bin``, the ``.idx`` and the ``.meta.json``."""
        return (*super().files, Path(self.prefix + META_SUFFIX))

    def _open_index(self, using: Reader) -> Index:
        path = self.prefix + ".idx"
        meta = _read_meta(using, self.prefix + META_SUFFIX)
        index_dtype: np.dtype[Any] = np.dtype(meta.index_dtype).newbyteorder("<")
        item, size = index_dtype.itemsize, using.size(path)
        if size != 2 * item * meta.document_count:
            raise StoreError(
                f"{path}: {meta.document_count} documents take {2 * item * meta.document_count} bytes, a start and a"
                f" length of {meta.index_dtype} each; the file has {size}: it was cut short, or"
                f" {META_SUFFIX} is another's"
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
    size = using.size(path)
    data = using.read_ranges(path, np.zeros(1, np.int64), np.array([min(size, _MAX_META_BYTES)])).tobytes()
    try:
        meta = msgspec.json.decode(data, type=_Meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{path}: is not what Aleph Alpha's builder writes ({error}); expected dtype, index_dtype and"
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
    """The store of ``<prefix>.bin`` and ``<prefix>.idx``; the first bytes of the ``.idx`` say which format it is.

    Raises:
        StoreError: one of the two is missing, or they are malformed.
    """
    found = [suffix for suffix in SUFFIXES if Path(f"{prefix}{suffix}").is_file()]
    if not found:
        raise StoreError(f"{prefix}: nothing is there; expected {prefix}.bin and {prefix}.idx")
    for suffix in SUFFIXES:
        if suffix not in found:
            raise StoreError(
                f"{prefix}{suffix}: missing beside {prefix}{found[0]}; a store is the pair of both (an interrupted"
                " write or copy leaves one alone)"
            )
    return _kind(str(prefix))(prefix, using=reader(using), options=options)


def _kind(prefix: str) -> type[IndexedStore]:
    try:
        with Path(prefix + ".idx").open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise StoreError(f"{prefix}.idx: cannot be opened: {error.strerror}") from error
    if magic.startswith(TNT_MAGIC):
        return TntStore
    # Aleph Alpha's index has no magic: its first number is a start, 0.
    if magic != MAGIC and Path(prefix + META_SUFFIX).is_file():
        return AlephAlphaStore
    return IndexedStore
