"""The files of a provenance table, and how one of them grows: a ``.npy`` whose header is written last.

The header takes 128 bytes at the begin, whatever the array's length, and is zeros until the array is complete. So an
array grows at its end, is cut back to a checkpoint by truncation, and opens only when it is finished.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import FileSum, file_sum, output_errors, partial_path

INFO_NAME = "provenance.json"
SPANS_NAME = "spans.npy"
SKIPPED_NAME = "skipped.npy"
ORDER_NAME = "order.npy"
IDS_NAME = "ids.npy"
ID_ENDS_NAME = "ids_ends.npy"

SPAN_COLUMNS = 5
SKIPPED_COLUMNS = 3

HEADER_BYTES = 128
_BUFFER_BYTES = 1 << 20
_MAGIC = b"\x93NUMPY\x01\x00"


class ProvenanceInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``provenance.json``: what the numbers of the arrays mean."""

    version: int
    num_documents: int
    reasons: tuple[str, ...]


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The first 128 bytes of a ``.npy`` of version 1.0, C order (numpy.lib.format)."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    length = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


class GrowingArray:
    """A ``.npy`` under construction, at ``.<name>.partial``; rows of ``columns`` items, or items.

    Args:
        path: the name it gets at the end.
        dtype: of the items; little-endian on disk.
        columns: items in a row; None makes the array one-dimensional.
        num_items: how many items there must be already, of which an earlier writer made sure; None begins anew.

    Raises:
        StoreError: fewer are there.
        OutputError: the system refuses.
    """

    def __init__(self, path: Path, dtype: str, *, columns: int | None = None, num_items: int | None = None) -> None:
        self.path = path
        self.partial = partial_path(path)
        self._dtype = np.dtype(dtype)
        self._columns = columns
        self.num_items = num_items or 0
        self._buffer = bytearray()
        with output_errors(self.path, "create"):
            if num_items is None:
                self.partial.unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
            elif not self.partial.exists() and self.path.exists():
                # A process that died between its last checkpoint and the end of the run had finished this one.
                self.path.rename(self.partial)
            elif not self.partial.exists():
                raise StoreError(
                    f"{self.partial}: missing since the last checkpoint: begin the run anew with --restart"
                )
            self._fd = os.open(self.partial, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if num_items is None else 0), 0o666)
        try:
            self._cut_back()
        except BaseException:
            self.close()
            raise

    def append(self, values: NDArray[Any]) -> None:
        """Add rows or items."""
        data = np.ascontiguousarray(values, self._dtype)
        self.num_items += data.size
        self._buffer += data.tobytes()
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def sync(self) -> None:
        """Bring all that was added to the disk."""
        self._flush()
        with output_errors(self.path, "write"):
            os.fsync(self._fd)

    def finish(self) -> None:
        """Write the header, bring everything to the disk, and close. The name stays that of a partial file."""
        self._flush()
        shape = (self.num_items,) if self._columns is None else (self.num_items // self._columns, self._columns)
        with output_errors(self.path, "write"):
            os.pwrite(self._fd, npy_header(self._dtype, shape), 0)
            os.fsync(self._fd)
        self.close()

    def give_name(self) -> FileSum:
        """Give the finished file its name, and read it once for its sums."""
        with output_errors(self.path, "rename"):
            if self.partial.exists():
                self.partial.rename(self.path)
        return file_sum(self.path)

    def close(self) -> None:
        """Close the file as it is on disk; what is not flushed is lost."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _cut_back(self) -> None:
        wanted = HEADER_BYTES + self.num_items * self._dtype.itemsize
        with output_errors(self.path, "write"):
            found = os.fstat(self._fd).st_size
            if self.num_items and found < wanted:
                raise StoreError(
                    f"{self.partial}: has {found:,} bytes, the last checkpoint {wanted:,}; it was cut short since: "
                    "begin the run anew with --restart"
                )
            os.ftruncate(self._fd, wanted)
            os.pwrite(self._fd, bytes(HEADER_BYTES), 0)
            os.lseek(self._fd, 0, os.SEEK_END)

    def _flush(self) -> None:
        with output_errors(self.path, "write"):
            view = memoryview(self._buffer)
            while len(view):
                view = view[os.write(self._fd, view) :]
        view.release()
        self._buffer = bytearray()
