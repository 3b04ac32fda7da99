"""The older layout of fairseq and of Megatron-LM (until 2023-09), which they call "lazy" and "cached".

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
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_arrays import Arrays, Place
from headrace.stores.indexed_dialects import FLOAT_CODES, IndexedOptions, codes
from headrace.stores.indexed_index import CHUNK, Column, Index
from headrace.stores.store import Problem

MAGIC: Final = b"TNTIDX\x00\x00"
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
        dimensions = Column(self._reader, self.index.path, self.index.arrays.header_bytes, "<i8", self.num_sequences)
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
        total = Column(using, path, arrays.pointers.end, "<i8", 1)
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
    bounds = Place("document indices", sizes + 8 * count, "<i8", num_bounds)
    return Arrays(
        dtype=known[code],
        header_bytes=header,
        sizes=Place("sizes of sequences", sizes, "<i8", count),
        pointers=Place("pointers of sequences", pointers, "<i8", count, scale=element_bytes),
        bounds=bounds if has_documents and options.documents == "indices" else None,
        end=idx_bytes,
        shift=1 if options.dialect == "fairseq" else 0,
    )
