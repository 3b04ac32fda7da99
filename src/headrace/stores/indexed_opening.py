"""Opens Megatron's or fairseq's ``.idx``, and decides what its bytes leave open."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.indexed_dialects import AS_FOUND, DIALECTS, FLOAT_CODES, Dialect, IndexedOptions, codes
from headrace.stores.indexed_index import CHUNK, Column, Index
from headrace.stores.indexed_layout import HEADER, Layout, parse_header


def open_index(reader: Reader, path: str, bin_bytes: int, options: IndexedOptions = AS_FOUND) -> Index:
    """The index of ``<prefix>.idx`` beside a ``.bin`` of this size. O(1), but O(N) for floating-point numbers.

    Warns:
        UserWarning: with ``documents="sequences"``, where the documents are lost.

    Raises:
        StoreError: malformed, or what the options say is not so, or they must say more.
    """
    size = reader.size(path)
    begin = np.zeros(1, np.int64)
    header = reader.read_ranges(path, begin, begin + min(size, HEADER.size)).tobytes()
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


def _decided(reader: Reader, path: str, layout: Layout, bin_bytes: int, asked: Dialect | None) -> Dialect:
    """The dialect whose number for this code has the size that the ``.bin`` shows; the one asked for if it may be."""
    code, count = layout.dtype_code, layout.num_sequences
    sizes = Column(reader, path, len(layout.header()), "<i4", count)
    total = sum(int(sizes.read(at, min(at + CHUNK, count)).sum()) for at in range(0, count, CHUNK))
    meanings: dict[Dialect, np.dtype[Any]] = {name: codes(name)[code] for name in DIALECTS if name != "fairseq"}
    fits = [name for name, dtype in meanings.items() if total * dtype.itemsize == bin_bytes]
    if asked is not None:
        if fits and asked not in fits:
            raise StoreError(
                f"{path}: byte 17: dtype code {code} is {meanings[asked].name} with dialect={asked!r}, but {total}"
                f" numbers take {bin_bytes} bytes in the .bin: they are {meanings[fits[0]].name}; open it with"
                f" dialect={fits[0]!r}, or without one"
            )
        return asked
    if fits:
        return fits[0]
    says = ", ".join(f"{dtype.name} with dialect={name!r}" for name, dtype in meanings.items())
    raise StoreError(
        f"{path}: byte 17: dtype code {code} means different numbers to different tools, and {total} numbers in a .bin"
        f" of {bin_bytes} bytes do not tell which; choose: {says}"
    )


def _check_fairseq(index: Index, bin_bytes: int) -> None:
    """Megatron's index that was cut in the right place has the size of fairseq's; its pointers then begin elsewhere."""
    first = int(index.pointers.read(0, 1)[0]) if len(index.pointers) else 0
    if first != 0 or index.last_byte != bin_bytes:
        raise StoreError(
            f"{index.path}: {index.size} bytes = 26 + 12 x {len(index.sizes)} sequences is the size of fairseq's"
            f" layout, whose sequences fill the .bin; found bytes {first} to {index.last_byte} of {bin_bytes}: this"
            " is an .idx of Megatron that was cut short, or the .bin is another's"
        )


def _warn_if_lost(reader: Reader, path: str, layout: Layout) -> None:
    bounds = Column(reader, path, layout.bounds_at, "<i8", layout.num_bounds)
    first, last = bounds.take(np.array([0, layout.num_bounds - 1])).tolist()
    if first != 0 or last != layout.num_sequences:
        warnings.warn(
            f"{path}: the documents are lost (their indices go from {first} to {last}, not from 0 to"
            f" {layout.num_sequences}): each sequence is taken as a document, as documents='sequences' asks",
            stacklevel=2,
        )
