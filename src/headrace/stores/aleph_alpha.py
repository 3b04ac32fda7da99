"""Aleph Alpha's ``MemoryMapDataset``: ``.bin``, ``.idx`` and ``.meta.json``.

    .bin         the tokens, nothing else
    .idx         N pairs (start, length) of the index dtype, both in elements, no header
    .meta.json   {"dtype": "int32", "index_dtype": "int64", "document_count": N}; it is written last

A document is one pair; there are no sequences below it.

Source: Aleph-Alpha/scaling, ``src/scaling/core/data/memory_map.py``. Its variant for images (``pb_memory_map.py``)
counts bytes of protobuf messages, which are no tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_arrays import Arrays, Place
from headrace.stores.indexed_index import Index

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
            sizes=Place("lengths of documents", item, index_dtype.str, count, stride=2 * item),
            pointers=Place("starts of documents", 0, index_dtype.str, count, stride=2 * item, scale=dtype.itemsize),
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
