"""Provenance: the input file and the line or row of each document of a prepared store.

It is a table in the folder ``provenance`` beside the manifest, of ``.npy`` files that `numpy.load` reads:

    spans.npy     (num_spans, 5) int64      first document, documents, input file, first line, lines
    skipped.npy   (num_skipped, 3) int64    span, line in the span, reason: each line that became no document
    order.npy     (num_documents,) int64    in another order than the input: the ordinal of each document
    ids.npy       (bytes,) uint8            the ids of all documents, UTF-8, in the order of the input
    ids_ends.npy  (num_documents,) int64    where each id ends
    provenance.json                         number of documents, and the reasons to which ``skipped`` refers

A *span* is a range of lines of one file that was read in one go. The *ordinal* of a document is its number in the order
of the input. Lines, and rows of Parquet, are counted from 0. The rows of the arrays are in the order of the input.

For example, let a span begin at line 100 with document 40, and let lines 1 and 2 of the span be skipped. Then line 100
is document 40 and line 103 is document 41. If a line became several documents, each one after the first is a span of
its own, with the same line.

While an array grows, the first 128 bytes of its file, which will hold the header, are zeros: it opens only when it is
finished.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import (
    FileSum,
    file_sum,
    local_file,
    map_npy,
    output_errors,
    path_at,
    read_small,
    sync_folder,
    write_json_file,
)
from headrace.stores.arguments import positions
from headrace.stores.store import IntArray, TokenArray

INFO_NAME = "provenance.json"
SPANS_NAME = "spans.npy"
SKIPPED_NAME = "skipped.npy"
ORDER_NAME = "order.npy"
IDS_NAME = "ids.npy"
ID_ENDS_NAME = "ids_ends.npy"

SPAN_COLUMNS = 5
SKIPPED_COLUMNS = 3

SEARCHED_BYTES = 1 << 30
"""The most bytes of ids, or of the order of a shuffled store, that a search reads."""

_SEARCHED_AT_ONCE = 1 << 22

HEADER_BYTES = 128
_BUFFER_BYTES = 1 << 20


class ProvenanceInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``provenance.json``."""

    version: int
    num_documents: int
    reasons: tuple[str, ...]


class GrowingArray:
    """A ``.npy`` that grows at its end. The bytes of its header are zeros until it is finished, so it does not open.

    Args:
        path: path of the file; an older file of this name is removed.
        dtype: dtype of the items; little-endian on disk.
        columns: number of items in a row; None makes the array one-dimensional.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(self, path: Path, dtype: str, *, columns: int | None = None) -> None:
        self.path = path
        self.num_items = 0
        self._dtype = np.dtype(dtype)
        self._columns = columns
        with output_errors(path, "create"):
            path.unlink(missing_ok=True)
            self._file = path.open("xb", buffering=_BUFFER_BYTES)
            self._file.write(bytes(HEADER_BYTES))

    def append(self, values: NDArray[Any]) -> None:
        """Append rows, or items if the array is one-dimensional."""
        data = np.ascontiguousarray(values, self._dtype)
        self.num_items += data.size
        with output_errors(self.path, "write"):
            self._file.write(data.tobytes())

    def finish(self) -> FileSum:
        """Write the header, bring everything to the disk, and close. The file is read once for its checksums."""
        shape = (self.num_items,) if self._columns is None else (self.num_items // self._columns, self._columns)
        with output_errors(self.path, "write"), self._file:
            self._file.seek(0)
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)
            self._file.flush()
            os.fsync(self._file.fileno())
        return file_sum(self.path)

    def discard(self) -> None:
        """Close and remove the file."""
        with contextlib.suppress(OSError):  # the system refuses what is still in the buffer
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class Provenance:
    """Looks up where documents come from. Opening it is O(1): the arrays are mapped, not read.

    Documents are numbered as in the store: over all shards of a key, in the order of the manifest.

    Args:
        folder: the folder ``provenance`` of a prepared store.

    Raises:
        StoreError: a file is missing or malformed.

    Example:
        >>> provenance = headrace.stores.Provenance("stores/web/provenance")
        >>> files, lines = provenance.locate(np.array([0, 1]))
        >>> lines.tolist()
        [0, 1]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = path_at(folder)
        info = self._load_info()
        self.num_documents = info.num_documents
        self.reasons = info.reasons
        self._spans = self._load(SPANS_NAME, "<i8", (None, SPAN_COLUMNS))
        self._skipped = self._load(SKIPPED_NAME, "<i8", (None, SKIPPED_COLUMNS))
        self._order = self._load_optional(ORDER_NAME, "<i8", (info.num_documents,))
        self._id_ends = self._load_optional(ID_ENDS_NAME, "<i8", (info.num_documents,))
        num_bytes = 0 if self._id_ends is None or not len(self._id_ends) else int(self._id_ends[-1])
        self._ids = self._load(IDS_NAME, "|u1", (num_bytes,)) if self._id_ends is not None else None
        covered = int(self._spans[-1, :2].sum()) if len(self._spans) else 0
        if covered != self.num_documents:
            raise StoreError(
                f"{self.folder / SPANS_NAME}: covers {covered:,} documents, but {INFO_NAME} counts"
                f" {self.num_documents:,}"
            )

    @property
    def is_shuffled(self) -> bool:
        """Whether the store has another order than the input."""
        return self._order is not None

    @property
    def has_ids(self) -> bool:
        """Whether ids are stored."""
        return self._ids is not None

    def ordinals(self, documents: ArrayLike) -> IntArray:
        """Return the number of each document in the order of the input, (n,) int64.

        Raises:
            IndexError: there is no such document.
        """
        chosen = positions(documents, self.num_documents, "documents")
        return chosen if self._order is None else np.asarray(self._order[chosen])

    def locate(self, documents: ArrayLike) -> tuple[IntArray, IntArray]:
        """Return input file and line of documents. O(log spans + log skipped lines of the span) each.

        Args:
            documents: (n,) int64, in ``[0, num_documents)``.

        Returns:
            (n,) int64, the index into the inputs of the manifest, and (n,) int64, the line or row, counted from 0.

        Raises:
            IndexError: there is no such document.
            StoreError: the files contradict each other.
        """
        ordinals = self.ordinals(documents)
        # A span without documents begins at the same document as the next span; the last of them has the document.
        spans = np.searchsorted(self._spans[:, 0], ordinals, side="right") - 1
        first_documents, _, files, first_lines, num_lines = self._spans[spans].T.reshape(SPAN_COLUMNS, -1)
        within = ordinals - first_documents
        lines = within + self._num_skipped_before(spans, within)
        if ((lines < 0) | (lines >= num_lines)).any():
            raise StoreError(f"{self.folder}: {SPANS_NAME} and {SKIPPED_NAME} contradict each other; one was changed")
        return np.asarray(files), first_lines + lines

    def ids(self, documents: ArrayLike) -> list[str]:
        """Return the id of each document.

        Raises:
            IndexError: there is no such document.
            StoreError: no ids are stored, or they are damaged.
        """
        if self._ids is None or self._id_ends is None:
            raise StoreError(f"{self.folder}: no ids are stored; prepare the store with --id-field to store them")
        found = []
        for ordinal in self.ordinals(documents).tolist():
            begin = int(self._id_ends[ordinal - 1]) if ordinal else 0
            try:
                found.append(self._ids[begin : int(self._id_ends[ordinal])].tobytes().decode())
            except UnicodeDecodeError:
                raise StoreError(f"{self.folder / IDS_NAME}: byte {begin}: not UTF-8; it was changed") from None
        return found

    def find_line(self, file: int, line: int) -> int | None:
        """Return the first document that a line of an input became; None if it became none.

        O(spans); in a shuffled store, a scan of the order, 8 bytes a document.

        Args:
            file: index into the inputs of the manifest.
            line: line or row, counted from 0.

        Raises:
            StoreError: the store is shuffled, and too large for the scan.
        """
        spans = self._spans
        for number in np.flatnonzero(
            (spans[:, 2] == file) & (spans[:, 3] <= line) & (line < spans[:, 3] + spans[:, 4])
        ).tolist():
            within = line - int(spans[number, 3])
            low, high = np.searchsorted(self._skipped[:, 0], [number, number + 1]).tolist()
            skipped = self._skipped[low:high, 1]
            before = int(np.searchsorted(skipped, within))
            if before == len(skipped) or skipped[before] != within:
                return self._of_ordinal(int(spans[number, 0]) + within - before)
        return None

    def find_id(self, name: str) -> int | None:
        """Return the first document with an id, in the order of the input; None if none has it. A scan of the ids.

        Raises:
            StoreError: no ids are stored; or there are more than `SEARCHED_BYTES` of them before it is found.
        """
        if self._ids is None or self._id_ends is None:
            raise StoreError(f"{self.folder}: no ids are stored; prepare the store with --id-field to store them")
        wanted = name.encode("utf-8", "surrogateescape")
        total = len(self._ids)
        if not wanted:
            empty = np.flatnonzero(np.diff(self._id_ends[: SEARCHED_BYTES // 8], prepend=0) == 0)
            return self._of_ordinal(int(empty[0])) if len(empty) else None
        for begin in range(0, min(total, SEARCHED_BYTES), _SEARCHED_AT_ONCE):
            # An id that begins in this piece ends in the overlap with the next one.
            end = min(begin + _SEARCHED_AT_ONCE, SEARCHED_BYTES)
            piece = self._ids[begin : end + len(wanted)].tobytes()
            at = piece.find(wanted)
            while 0 <= at < end - begin:
                ordinal = int(np.searchsorted(self._id_ends, begin + at, side="right"))
                first = int(self._id_ends[ordinal - 1]) if ordinal else 0
                if first == begin + at and int(self._id_ends[ordinal]) == first + len(wanted):
                    return self._of_ordinal(ordinal)
                at = piece.find(wanted, at + 1)
        if total > SEARCHED_BYTES:
            raise StoreError(
                f"{self.folder}: the id {name!r} is not among the first {SEARCHED_BYTES:,} bytes of ids, and no more "
                "are searched: ask by the number of the document"
            )
        return None

    def _of_ordinal(self, ordinal: int) -> int:
        """Return the number in the store of a document that is given by its number in the order of the input."""
        if self._order is None:
            return ordinal
        at_once = _SEARCHED_AT_ONCE // 8
        most = SEARCHED_BYTES // 8
        for begin in range(0, min(len(self._order), most), at_once):
            found = np.flatnonzero(self._order[begin : min(begin + at_once, most)] == ordinal)
            if len(found):
                return begin + int(found[0])
        raise StoreError(
            f"{self.folder}: the document is not among the first {SEARCHED_BYTES // 8:,} of this shuffled store, and "
            "no more are searched: ask by the number of the document"
        )

    def _num_skipped_before(self, spans: IntArray, within: IntArray) -> IntArray:
        """Return how many lines were skipped before document number ``within`` of each span, (n,).

        The i-th skipped line of a span, s(i), has s(i) - i documents before it, and this number never falls with i. So
        the lines with s(i) - i <= within come first, and a bisection counts them, for all documents at once.
        """
        rows, lines = self._skipped[:, 0], self._skipped[:, 1]
        firsts = np.searchsorted(rows, spans)
        begins, ends = firsts.copy(), np.searchsorted(rows, spans, side="right")
        while True:
            is_open = begins < ends
            if not is_open.any():
                return begins - firsts
            middles = np.where(is_open, (begins + ends) >> 1, 0)
            before = lines[middles] - (middles - firsts) <= within
            begins = np.where(is_open & before, middles + 1, begins)
            ends = np.where(is_open & ~before, middles, ends)

    def _load_info(self) -> ProvenanceInfo:
        path = self.folder / INFO_NAME
        try:
            info = msgspec.json.decode(read_small(path), type=ProvenanceInfo)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{path}: not a provenance table: {error}") from error
        if info.version != 1 or info.num_documents < 0:
            raise StoreError(
                f"{path}: has version {info.version} and {info.num_documents} documents; only version 1 is known, and"
                " the number may not be negative"
            )
        return info

    def _load(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> TokenArray:
        path = self.folder / name
        try:
            array: TokenArray = map_npy(local_file(path))
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise StoreError(f"{path}: not a complete .npy file: {error}") from error
        is_as_wanted = array.ndim == len(shape) and all(
            wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
        )
        if array.dtype != np.dtype(dtype) or not is_as_wanted:
            expected = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
            raise StoreError(
                f"{path}: holds {array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {expected}"
            )
        return array

    def _load_optional(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> TokenArray | None:
        return self._load(name, dtype, shape) if (self.folder / name).exists() else None


MAX_REASONS = 1000
"""A reason names a kind of document. If there are more reasons than this, they are messages about single documents."""

_DEFECT = "This is a defect of Headrace: please report it."


class ProvenanceWriter:
    """Appends to the arrays of a provenance table; the module `provenance` describes the layout. O(1) memory.

    A table opens only after `finish`, which writes ``provenance.json`` last. The writer is a context manager that
    removes its files unless `finish` was called. An older table in the folder is removed at the beginning. Only one
    writer may write a folder at a time.

    Args:
        folder: folder of the table; it is created if it does not exist.
        with_order: whether the store has another order than the input; then pass the order to `add_order`.
        with_ids: whether the records have ids; then pass them to `add_ids`.

    Raises:
        OutputError: the system reports an error.

    Example:
        >>> writer = headrace.stores.ProvenanceWriter("provenance", with_order=False, with_ids=False)
        >>> writer.add_span(0, 2, 0, 0, 3, np.array([1]), ["blank"])  # of 3 lines, line 1 was skipped
        >>> files = writer.finish()
        >>> headrace.stores.Provenance("provenance").locate(np.array([0, 1]))[1].tolist()
        [0, 2]
    """

    def __init__(self, folder: str | Path, *, with_order: bool, with_ids: bool) -> None:
        self.folder = Path(folder)
        columns = {SPANS_NAME: SPAN_COLUMNS, SKIPPED_NAME: SKIPPED_COLUMNS}
        names = [SPANS_NAME, SKIPPED_NAME, *([ORDER_NAME] * with_order), *([IDS_NAME, ID_ENDS_NAME] * with_ids)]
        self.num_documents = 0
        self._codes: dict[str, int] = {}
        self._arrays: dict[str, GrowingArray] = {}
        self._sums: tuple[FileSum, ...] | None = None
        with output_errors(self.folder, "create"):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / INFO_NAME).unlink(missing_ok=True)
        try:
            for name in names:
                dtype = "|u1" if name == IDS_NAME else "<i8"
                self._arrays[name] = GrowingArray(self.folder / name, dtype, columns=columns.get(name))
            sync_folder(self.folder / INFO_NAME)
        except BaseException:
            self.discard()
            raise

    def add_span(
        self,
        first_document: int,
        num_documents: int,
        file: int,
        first_line: int,
        num_lines: int,
        skipped_lines: IntArray,
        skipped_reasons: Sequence[str],
    ) -> None:
        """Add the next span of lines, in the order of the input.

        Args:
            first_document: ordinal of the span's first document, which is the number of documents added before.
            num_documents: number of lines that became documents.
            file: index into the inputs of the manifest.
            first_line: first line of the span, counted from 0 in the file.
            num_lines: number of all lines in the span.
            skipped_lines: (num_lines - num_documents,) lines that became no document, counted from 0 in the span,
                ascending.
            skipped_reasons: the reason for each skipped line.

        Raises:
            HeadraceError: the lines are not the documents plus the skipped lines, or documents are missing before it.
            ConfigError: there are more than `MAX_REASONS` different reasons.
        """
        skipped = np.asarray(skipped_lines, np.int64)
        is_ascending = bool((np.diff(skipped, prepend=-1, append=num_lines) > 0).all())
        is_sum = num_documents + len(skipped) == num_lines and len(skipped) == len(skipped_reasons)
        if not is_ascending or not is_sum or first_document != self.num_documents:
            raise HeadraceError(
                f"the provenance of input {file}, line {first_line + 1:,}, does not balance: {num_lines:,} lines, "
                f"{num_documents:,} documents from {first_document:,} on after {self.num_documents:,}, "
                f"{len(skipped):,} skipped lines with {len(skipped_reasons):,} reasons. {_DEFECT}"
            )
        spans = self._arrays[SPANS_NAME]
        if len(skipped):
            rows = np.empty((len(skipped), SKIPPED_COLUMNS), np.int64)
            rows[:, 0] = spans.num_items // SPAN_COLUMNS
            rows[:, 1] = skipped
            rows[:, 2] = np.fromiter(map(self._code, skipped_reasons), np.int64, len(skipped))
            self._arrays[SKIPPED_NAME].append(rows)
        spans.append(np.array([self.num_documents, num_documents, file, first_line, num_lines]))
        self.num_documents += num_documents

    def add_order(self, ordinals: IntArray) -> None:
        """Add the next documents of the store, as their ordinals in the order of the input."""
        if len(ordinals) and not 0 <= int(ordinals.min()) <= int(ordinals.max()) < self.num_documents:
            raise HeadraceError(
                f"the order of the documents names ordinals from {int(ordinals.min())} to {int(ordinals.max())}; there "
                f"are {self.num_documents} documents. {_DEFECT}"
            )
        self._arrays[ORDER_NAME].append(ordinals)

    def add_ids(self, ids: Sequence[str]) -> None:
        """Add the ids of the next documents, in the order of the input."""
        encoded = [text.encode() for text in ids]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        data = self._arrays[IDS_NAME]
        self._arrays[ID_ENDS_NAME].append(data.num_items + np.cumsum(lengths))
        data.append(np.frombuffer(b"".join(encoded), np.uint8))

    def finish(self) -> tuple[FileSum, ...]:
        """Complete the files, and return their checksums in the order of their names.

        Raises:
            HeadraceError: the number of ordinals or of ids differs from the number of documents.
            OutputError: the system reports an error.
        """
        if self._sums is not None:
            return self._sums
        for name in (ORDER_NAME, ID_ENDS_NAME):
            if name in self._arrays and self._arrays[name].num_items != self.num_documents:
                raise HeadraceError(
                    f"{self.folder / name}: {self._arrays[name].num_items:,} entries for {self.num_documents:,} "
                    f"documents. {_DEFECT}"
                )
        sums = [array.finish() for array in self._arrays.values()]
        sync_folder(self.folder / INFO_NAME)
        info = ProvenanceInfo(version=1, num_documents=self.num_documents, reasons=tuple(self._codes))
        write_json_file(self.folder / INFO_NAME, info)
        sums.append(file_sum(self.folder / INFO_NAME))
        self._sums = tuple(sorted(sums, key=lambda file: file.name))
        return self._sums

    def discard(self) -> None:
        """Remove all files. After `finish` this does nothing."""
        if self._sums is None:
            for array in self._arrays.values():
                array.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def _code(self, reason: str) -> int:
        code = self._codes.setdefault(reason, len(self._codes))
        if code >= MAX_REASONS:
            raise ConfigError(
                f"documents are dropped for more than {MAX_REASONS:,} different reasons; the last one is {reason!r}: "
                "make the filter return a few kinds of reasons, without names and numbers of single records"
            )
        return code
