"""Where the record batches of an Arrow IPC file lie, and how many rows each has, without reading any.

pyarrow does not tell, and to ask it for a batch decompresses it. The footer and the head of each batch are
FlatBuffers (https://flatbuffers.dev/internals): a table begins with the distance back to its vtable, which holds for
each field the distance from the table's begin, 0 for a field that is absent. The tables read here, from Arrow's
``File.fbs`` and ``Message.fbs``:

    Footer        field 3: recordBatches, a vector of Block (offset int64, metaDataLength int32, 4 bytes of
                  padding, bodyLength int64)
    Message       field 2: header, here a RecordBatch
    RecordBatch   field 0: length int64, its rows

At the end of the file stand the footer, its size as int32, and ``ARROW1``.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

import numpy as np

TAIL = struct.Struct("<i6s")
_BLOCK = np.dtype([("offset", "<i8"), ("metadata_bytes", "<i4"), ("", "<i4"), ("body_bytes", "<i8")])
_CONTINUATION = b"\xff\xff\xff\xff"


class BatchPlace(NamedTuple):
    """One record batch of a file."""

    offset: int
    num_bytes: int
    num_rows: int


def read_batch_places(data: bytes | mmap.mmap) -> list[BatchPlace]:
    """The record batches of the Arrow file that these bytes (a memory map, say) are.

    Raises:
        ValueError: the footer makes no sense.
    """
    view = memoryview(data)
    try:
        footer_bytes, magic = TAIL.unpack(view[-TAIL.size :])
        end = len(view) - TAIL.size
        if magic != b"ARROW1" or not 0 < footer_bytes <= end:
            raise ValueError("no footer at the end")
        footer = view[end - footer_bytes : end]
        vector = _field(footer, _root(footer), 3)
        if not vector:
            return []
        vector += _uint32(footer, vector)
        blocks = np.frombuffer(footer, _BLOCK, _uint32(footer, vector), vector + 4)
        return [
            BatchPlace(offset, metadata_bytes + body_bytes, _num_rows(view[offset : offset + metadata_bytes]))
            for offset, metadata_bytes, body_bytes in zip(
                *(blocks[name].tolist() for name in ("offset", "metadata_bytes", "body_bytes")), strict=True
            )
        ]
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"its footer makes no sense: {error}") from error


def _num_rows(metadata: memoryview) -> int:
    # Before Arrow 0.15 the size came without the marker.
    message = metadata[8 if metadata[:4] == _CONTINUATION else 4 :]
    header = _field(message, _root(message), 2)
    batch = header + _uint32(message, header)
    length = _field(message, batch, 0)
    return int(struct.unpack_from("<q", message, length)[0]) if length else 0


def _root(data: memoryview) -> int:
    return _uint32(data, 0)


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is, or 0."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise IndexError(f"a table at byte {table:,} has no vtable")
    size, place = int(struct.unpack_from("<H", data, vtable)[0]), 4 + 2 * number
    distance = int(struct.unpack_from("<H", data, vtable + place)[0]) if place < size else 0
    return table + distance if distance else 0


def _uint32(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
