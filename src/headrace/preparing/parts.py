"""A part: the documents and counts that a task makes of its range of the inputs, on their way into shards.

    TASK.part          all but the values of the documents: counts and arrays, as `save` writes them
    TASK.K.values      the values of column K, one document after another
    TASK.hashes        if duplicates are left out: the hashes of the documents, see `duplicates`

`PartBuilder` writes a part while its task runs: the values go to disk as they come, all else with the end. `read_saved`
and `read_values` read parts back, in a folder or at a URL. What they return was compared with its hash; the values of
each block of records have a hash of their own, so that some documents can be read without the others.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.serving import decoded, save
from headrace.errors import OutputError
from headrace.io import Reader, output_errors, write_all
from headrace.preparing.columns import IntArray, Row, count_ones
from headrace.preparing.documents import BLANK, Documents
from headrace.preparing.duplicates import DAMAGED, write_hashes
from headrace.preparing.ledger import BAD, PartInfo, SpanResult, Tally
from headrace.preparing.run_plan import Setup
from headrace.preparing.sources import Block

T = TypeVar("T")
_HASHED = struct.Struct("<QQ")
"""Where the values of a block of records end in their file, in bytes, and the xxh3_64 of them."""


class DocumentPart(msgspec.Struct, frozen=True):
    """All of a part but the values of its documents."""

    info: PartInfo
    arrays: dict[str, NDArray[Any]]

    def lengths(self, column: int) -> IntArray:
        """(n,) the number of values of each document in a column."""
        return self.arrays.get(f"lengths.{column}", np.zeros(0, np.int64))


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Documents of a part."""

    folder: str
    """The folder of the part, below the work folder."""

    task_index: int
    first: int
    """The documents ``[first, last)``, or those of them that are kept."""

    last: int
    kept: bytes | None = None
    """(n,) uint32, little-endian, ascending; None keeps all."""


def part_name(task_index: int) -> str:
    """The name of the file of a part that holds all but values."""
    return f"{task_index}.part"


def values_name(task_index: int, column: int) -> str:
    """The name of the file of the values of a column."""
    return f"{task_index}.{column}.values"


def hashes_name(task_index: int) -> str:
    """The name of the file of the hashes of the documents."""
    return f"{task_index}.hashes"


class _Values:
    """The file of the values of a column while it is written, and the ends and hashes of its blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with output_errors(path, "create"):
            self._file = path.open("wb", buffering=0)
        self._num_bytes = 0
        self.hashes = bytearray()

    def add(self, values: NDArray[Any]) -> None:
        """Append the values of a block."""
        data = np.ascontiguousarray(values).view(np.uint8).data
        with output_errors(self._path, "write"):
            write_all(self._file.write, data)
        self._num_bytes += len(data)
        self.hashes += _HASHED.pack(self._num_bytes, xxhash.xxh3_64_intdigest(data))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_saved(using: Reader, place: str, kind: type[T]) -> T:
    """Read a file that `save` has written, given its path or URL; of a part, all but values.

    Raises:
        OutputError: it is damaged.
        StoreError: it is missing, or cannot be read.
    """
    found = decoded(using.whole(place).tobytes(), kind)
    if found is None:
        raise OutputError(f"{place}: {DAMAGED}")
    return found


def read_values(using: Reader, place: str, hashes: bytes, dtype: np.dtype[Any], first: int, last: int) -> NDArray[Any]:
    """Read the values ``[first, last)`` of a column, given the path or URL of their file and its hashes.

    Raises:
        OutputError, StoreError: as `read_saved`.
    """
    begin, end = first * dtype.itemsize, last * dtype.itemsize
    if begin == end:
        return np.zeros(0, dtype)
    ends, wanted = np.frombuffer(hashes, np.uint64).reshape(-1, 2).T.tolist()
    blocks = range(bisect_right(ends, begin), bisect_left(ends, end) + 1)
    base = ends[blocks.start - 1] if blocks.start else 0
    data, at = using.read(place, base, min(ends[blocks[-1]], using.size(place)) - base), 0
    for block in blocks:
        until = ends[block] - base
        if xxhash.xxh3_64_intdigest(data[at:until].data) != wanted[block]:
            raise OutputError(f"{place}: {DAMAGED}")
        at = until
    return data[begin - base : end - base].view(dtype)


class PartBuilder:
    """A part that is being written. It has these arrays, for n documents and the columns 0, 1, ...:

    =================== ==================== =================================================================
    ``lengths.K``       (n,) int64           number of values of each document in column K
    ``domains``         (n,) int             if there are domains: the number of each document's domain
    ``trained``         (n,) int64           if there are masks: the ones in those of each document
    ``text_hashes``     (n, 2) uint64        if duplicates are dropped
    ``lines``           (n,) int64           if duplicates are dropped, and in recipes: line in the span
    ``ids``             (bytes,) uint8       if ids are stored: all in a row
    ``ids_lengths``     (n,) int64           bytes of each id
    ``skipped_lines``   (s,) int64           lines of all spans that are not documents
    ``skipped_reasons`` (s,) int64           index into the reasons
    =================== ==================== =================================================================

    As a context manager it closes its files.

    Raises:
        OutputError: the system refuses a write.
    """

    def __init__(self, setup: Setup, task_index: int) -> None:
        self._setup = setup
        self._task_index = task_index
        self._folder = Path(setup.results)
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        self._values = [
            _Values(self._folder / values_name(task_index, number))
            for number, column in enumerate(setup.plan.columns)
            if column.kind != "domain"
        ]
        self._spans: list[SpanResult] = []
        self._span = SpanResult(file=0)
        self.tally = Tally()
        """The counts so far."""
        self.errors: list[tuple[int, int, str]] = []
        self._reasons: dict[str, int] = {BLANK: 0, BAD: 1}
        self._domains: dict[str, int] = {}

    def begin_span(self, file: int) -> None:
        """Begin a span of this file."""
        self._span = SpanResult(file=file)

    def end_span(self, begin: int, end: int, xxh3_128: str) -> None:
        """End the span; ``[begin, end)`` was read of the file."""
        self._spans.append(msgspec.structs.replace(self._span, begin=begin, end=end, xxh3_128=xxh3_128))

    def add(self, block: Block, documents: Documents) -> None:
        """Add the documents of a block, and the counts of its other lines."""
        span, tally, num_bad = self._span, documents.tally, len(documents.bad)
        self.tally += tally
        self._span = msgspec.structs.replace(
            span,
            lines=span.lines + block.num_lines,
            blank_lines=span.blank_lines + block.num_blank,
            bad=span.bad + num_bad,
            documents=span.documents + tally.documents.read - num_bad,
            kept=span.kept + len(documents.lines),
            skipped=span.skipped + len(documents.skipped),
            split=span.split + tally.split,
        )
        self._add_rows(documents)
        if documents.text_hashes is not None:
            self._put("text_hashes", documents.text_hashes)
        if documents.text_hashes is not None or self._setup.plan.recipe is not None:
            self._put("lines", documents.lines)
        if documents.ids is not None:
            encoded = [name.encode() for name in documents.ids]
            self._put("ids", np.frombuffer(b"".join(encoded), np.uint8))
            self._put("ids_lengths", np.fromiter(map(len, encoded), np.int64, len(encoded)))
        if documents.skipped:
            codes = [self._reasons.setdefault(reason, len(self._reasons)) for _, reason in documents.skipped]
            self._put("skipped_lines", np.array([line for line, _ in documents.skipped], np.int64))
            self._put("skipped_reasons", np.array(codes, np.int64))
        self.errors += [(len(self._spans), record.line, record.message) for record in documents.bad]

    def _add_rows(self, documents: Documents) -> None:
        masks: list[Row] = []
        rows = zip(self._setup.plan.columns, documents.rows, strict=True)
        for number, (column, (values, lengths)) in enumerate(rows):
            if column.kind == "domain":
                own = [self._domains.setdefault(name, len(self._domains)) for name in documents.domains]
                self._put("domains", np.array(own, values.dtype).take(values))
                continue
            self._values[number].add(values)
            self._put(f"lengths.{number}", lengths)
            if column.kind == "mask":
                masks.append((values, lengths))
        if masks:
            self._put("trained", np.sum([count_ones(*row) for row in masks], axis=0))

    def write(self) -> tuple[str, ...]:
        """Complete the part; return the names of its files."""
        # Of one array at a time there are the pieces and the whole.
        arrays = {name: np.concatenate(self._arrays.pop(name)) for name in list(self._arrays)}
        names = [values_name(self._task_index, number) for number in range(len(self._values))]
        if self._setup.num_ranges and self.tally.documents.kept:
            names.append(hashes_name(self._task_index))
            write_hashes(self._folder / names[-1], self._setup.num_ranges, arrays["text_hashes"])
        info = PartInfo(
            task_index=self._task_index,
            spans=tuple(self._spans),
            tally=self.tally,
            errors=tuple(self.errors),
            reasons=tuple(self._reasons),
            domains=tuple(self._domains),
            hashes=tuple(bytes(values.hashes) for values in self._values),
        )
        names.append(part_name(self._task_index))
        save(self._folder / names[-1], DocumentPart(info, arrays))
        return tuple(names)

    def _put(self, name: str, array: NDArray[Any]) -> None:
        self._arrays.setdefault(name, []).append(array)

    def __enter__(self) -> PartBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        for values in self._values:
            values.close()
