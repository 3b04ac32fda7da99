"""``X.jsonl.idx``: where the records of a JSON lines file begin, as Energon writes it since 7.2.

N + 1 little-endian 64-bit integers, no header. Entry 0 is 0, entry i the begin of record i, entry N the size of the
file. Blank lines belong to the record before them, those at the begin to the first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InputError, OutputError, StoreError
from headrace.io import Reader, atomic_write, reader
from headrace.stores.jsonl_index import INDEX_FOLDER, cache_folders
from headrace.stores.kept_arrays import find_cache, keep_arrays, kept_name
from headrace.stores.types import IntArray

SUFFIX: Final = ".jsonl.idx"
_ENTRY: Final = np.dtype("<i8")
_CHUNK_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 8 << 20
_ENDS_BYTES: Final = 64 << 10
_VERSION: Final = 1
_NEWLINE, _OPEN, _CLOSE, _RETURN = b"\n{}\r"
_log = logging.getLogger("headrace")


def index_place(path: str | Path) -> Path:
    """Where the index of a file lies: beside it."""
    return Path(path).with_suffix(SUFFIX)


def indexed_lines(path: str, using: Reader, *, strict: bool = True) -> IntArray:
    """(N + 1,) int64: the index beside a file, or one in the cache, or by a pass over the file.

    Raises:
        StoreError: the file is missing; or ``strict`` and its index is of another file.
        InputError: a line is no JSON object.
    """
    size = using.size(path)
    place = index_place(path)
    if place.is_file():
        offsets, fault = _entries(place, size, using)
        if fault is None:
            return offsets
        message = f"{place}: {fault}; make it anew with headrace prepare or energon prepare"
        if strict:
            raise StoreError(message + ", or open the file with strict=False")
        _log.warning("%s; it is not used", message)
    return _cached(path, size, using)


def write_lines(path: str | Path, using: str | Reader = "pread") -> int:
    """Write the index of a file beside it, byte for byte as Energon does, and return the number of records.

    Raises:
        InputError: a line is no JSON object.
        StoreError: the file is missing.
        OutputError: the system refuses.
    """
    offsets = scan_lines(str(path), reader(using).for_pass())
    atomic_write(index_place(path), offsets.astype(_ENTRY).tobytes())
    return len(offsets) - 1


def scan_lines(path: str, using: Reader) -> IntArray:
    """(N + 1,) int64 by a pass over a file, about 2 ns a byte.

    Raises:
        InputError: a line that does not begin with ``{`` and end with ``}``, or no record at all.
        StoreError: it cannot be read.
    """
    size = using.size(path)
    found: list[IntArray] = []
    rest = np.empty(0, np.uint8)
    lines = 0
    for begin in range(0, size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, size - begin)
        data = using.read_ranges(path, np.array([begin]), np.array([length]))
        if begin + length < size:
            whole = length - int(np.argmax(data[::-1] == _NEWLINE))
            if whole == length and data[-1] != _NEWLINE:  # the line goes on
                rest = np.concatenate((rest, data))
                continue
        else:
            whole = length
        chunk = np.concatenate((rest, data[:whole])) if len(rest) else data[:whole]
        lines += _records(chunk, begin + whole - len(chunk), lines, path, found)
        rest = data[whole:]
    offsets = np.concatenate(found) if found else np.empty(0, np.int64)
    if not len(offsets):
        raise InputError(f"{path}: holds no record; expected JSON objects, one a line")
    offsets[0] = 0
    return np.concatenate((offsets, [size]))


def read_lines(path: str, using: Reader, *, first_only: bool = False) -> Iterator[tuple[int, bytes]]:
    """First byte and bytes of each line that is not blank, or of the first one."""
    size = using.size(path)
    offset, rest = 0, b""
    step = 4096 if first_only else _CHUNK_BYTES
    begin = 0
    while begin < size:
        length = min(step, size - begin)
        data = using.read_ranges(path, np.array([begin]), np.array([length])).tobytes()
        begin, step = begin + length, min(2 * step, _CHUNK_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield offset, line.strip()
                if first_only:
                    return
            offset += len(line) + 1
    if rest.strip():
        yield offset, rest.strip()


def _records(data: NDArray[np.uint8], first_byte: int, lines: int, path: str, found: list[IntArray]) -> int:
    """Append where the records of whole lines begin; returns the number of lines."""
    ends = np.flatnonzero(data == _NEWLINE)
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    begins = np.concatenate(([0], ends[:-1] + 1))
    last = np.maximum(ends - 1, 0)
    last = np.where((data[last] == _RETURN) & (last > begins), last - 1, last)
    kept = (ends - begins >= 2) & (data[np.minimum(begins, len(data) - 1)] == _OPEN) & (data[last] == _CLOSE)
    # What is not plainly a record is looked at line by line: blank ones, and those with blanks around the record.
    for line in np.flatnonzero(~kept).tolist():
        text = data[begins[line] : ends[line]].tobytes().strip()
        if text and not (text.startswith(b"{") and text.endswith(b"}") and len(text) > 1):
            raise InputError(
                f"{path}: line {lines + line + 1}, byte {first_byte + int(begins[line])}: no JSON object from {{ to }}:"
                f" {text[:40]!r}; expected one a line"
            )
        kept[line] = bool(text)
    found.append(begins[kept] + first_byte)
    return len(ends)


def _entries(place: Path, size: int, using: Reader) -> tuple[IntArray, str | None]:
    """The entries of an index, and what is wrong with them; its ends are looked at."""
    data = using.view(str(place))
    if data is None:
        length = using.size(str(place))
        data = using.read_ranges(str(place), np.array([0]), np.array([length]))
    if len(data) < 2 * _ENTRY.itemsize or len(data) % _ENTRY.itemsize:
        return np.empty(0, np.int64), f"{len(data)} bytes, which is no index: 8 bytes a record and 8 more"
    # The array holds the mapping; the pool need not.
    using.release(str(place))
    offsets: IntArray = np.frombuffer(data, _ENTRY)
    if offsets[0] != 0 or offsets[-1] != size:
        return offsets, f"goes from byte {offsets[0]} to {offsets[-1]}, the file from 0 to {size}"
    return offsets, None


def _cached(path: str, size: int, using: Reader) -> IntArray:
    if size < _KEPT_BYTES:
        return scan_lines(path, using.for_pass())
    length = min(size, _ENDS_BYTES)
    ends = using.read_ranges(path, np.array([0, size - length]), np.array([length, length]))
    status = Path(path).stat()
    hashed = xxhash.xxh3_128_hexdigest(ends.tobytes())
    name = kept_name("jsonl samples", _VERSION, Path(path).name, size, status.st_mtime_ns, hashed)
    folders = [Path(path).absolute().parent / INDEX_FOLDER, *cache_folders()]
    for folder in folders:
        if (kept := find_cache(folder, name)) is not None:
            return kept[0]["offsets"]
    offsets = scan_lines(path, using.for_pass())
    _log.info("%s: indexed %s records", path, f"{len(offsets) - 1:,}")
    for folder in folders:
        # An index that cannot be kept costs the next start its time only.
        with contextlib.suppress(OutputError):
            keep_arrays(folder, name, {"offsets": offsets}, b"{}")
            break
    return offsets
