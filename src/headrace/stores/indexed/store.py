"""`IndexedStore`, which reads one shard of Megatron's ``.bin`` and ``.idx``, and the check of such a shard."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader, reader, reader_at
from headrace.stores.arguments import (
    by_keys,
    check_range,
    check_ranges,
    document_number,
    positions,
    read_only,
)
from headrace.stores.checking import Faults, check_file, check_values
from headrace.stores.indexed.index import (
    CHUNK,
    ContiguousStream,
    Index,
    ScatteredStream,
    Stream,
    check_bounds,
    examine,
    is_contiguous,
    token_ids,
)
from headrace.stores.indexed.layout import AS_FOUND, IndexedOptions, open_index
from headrace.stores.kept_arrays import kept_index
from headrace.stores.manifest import MANIFEST_NAME, Manifest, entry_beside, load_manifest
from headrace.stores.segmented import RangesStore, tokens_at
from headrace.stores.store import ENDS_BYTES, Extents, IntArray, KeyList, Problem, TokenArray
from headrace.stores.written import OutputShard


def check_sums(prefix: str, vouched: OutputShard, index: Index | None, stream: Stream | None) -> Iterator[Problem]:
    """Compare sizes and hashes of both files with the manifest; a block that differs is named with its content."""
    data, idx = vouched.files
    yield from check_file(prefix + ".bin", data, holds=partial(_in_bin, index, stream))
    yield from check_file(prefix + ".idx", idx, holds=partial(_in_idx, index))


def _in_idx(index: Index | None, begin: int, end: int) -> str:
    """Describe what a range of the ``.idx`` holds."""
    return "" if index is None else f" ({index.arrays.describe(begin, end)})"


def _in_bin(index: Index | None, stream: Stream | None, begin: int, end: int) -> str:
    """Describe which documents have bytes in a range of the ``.bin``."""
    if index is None or stream is None:
        return ""
    itemsize = index.dtype.itemsize
    if type(stream) is ContiguousStream:
        first, last = begin // itemsize, min(end - 1, index.last_byte - 1) // itemsize
        numbers = index.documents_of(stream.sequences(np.array([first, last]))) if first <= last else np.zeros(0, int)
    else:
        count = len(index.sizes)
        pointers, sizes = index.pointers.read(0, count), index.sizes.read(0, count)
        inside = (sizes > 0) & (pointers < end) & (pointers + sizes * itemsize > begin)
        numbers = index.documents_of(np.flatnonzero(inside))
    return f" (in documents {numbers.min()} to {numbers.max()})" if len(numbers) else " (in no document)"


def check_indexed(
    prefix: str,
    using: Reader,
    *,
    opened: Callable[[Reader], Index],
    vouched: OutputShard | None,
    vocab_size: int | None,
) -> Iterator[Problem]:
    """Yield every fault of ``<prefix>.bin`` and ``<prefix>.idx``, and of the manifest beside them.

    The manifest is only loaded if ``vouched`` is None. The index is opened again with ``opened``, so the state of an
    open store does not matter. This takes one pass over the ``.idx``, and one pass over the ``.bin`` for each of these:
    checksums, if a manifest lists the shard; and ids, if ``vocab_size`` is set.
    """
    with contextlib.closing(copy.copy(using)) as using:  # a copy has no files open
        vouched, problems = entry_beside(using.path_at(prefix), "indexed", vouched)
        yield from problems
        path = prefix + ".bin"
        index, stream = None, None
        try:
            bin_bytes = using.size(path)
            index = opened(using)
            faults = list(_check_index(index, bin_bytes))
            yield from faults
            stream = examine(index) if not faults else None
        except StoreError as error:
            yield Problem.of(prefix, error)
        if vouched is not None:
            yield from check_sums(prefix, vouched, index, stream)
        if index is not None and stream is not None:
            yield from _check_coverage(path, index, stream, bin_bytes)
            if vouched is not None:
                yield from _check_counts(prefix, vouched, index, stream)
            if vocab_size is not None and (vouched is None or all(info.ids for info in vouched.keys.values())):
                yield from _check_ids(path, using, index, stream, vocab_size)


def _check_index(index: Index, bin_bytes: int) -> Iterator[Problem]:
    """Check every pointer, size and document index."""
    count, itemsize = len(index.sizes), index.dtype.itemsize
    faults = Faults(index.path, "document indices")
    for begin in range(0, index.num_documents, CHUNK):
        bounds = index.bounds.read(begin, min(begin + CHUNK, index.num_documents) + 1)
        wrong = (bounds[1:] < bounds[:-1]) | (bounds[1:] > count) | (bounds[1:] < 0)
        for at in faults.to_name(wrong):
            message = (
                f"goes from sequence {bounds[at]} to {bounds[at + 1]}; document indices may not decrease and must be"
                f" within 0 to {count}"
            )
            yield Problem(path=index.path, place=f"document {begin + at}", message=message)
    yield from faults.rest()
    faults = Faults(index.path, "sequences")
    for begin in range(0, count, CHUNK):
        # Not read(), which refuses sizes that are too large; here they are named.
        sizes = index.sizes.stored(begin, min(begin + CHUNK, count)).astype(np.int64)
        pointers = index.pointers.read(begin, min(begin + CHUNK, count))
        wrong = (sizes < 0) | (pointers < 0) | (sizes > (bin_bytes - pointers) // itemsize)
        for at in faults.to_name(wrong):
            message = f"{sizes[at]} tokens from byte {pointers[at]} on do not lie in the .bin of {bin_bytes} bytes"
            yield Problem(path=index.path, place=_sequence(index, begin + at), message=message)
    yield from faults.rest()


def _check_coverage(path: str, index: Index, stream: Stream, bin_bytes: int) -> Iterator[Problem]:
    """Find bytes that belong to no document. O(sequences) memory if the stream is scattered."""
    if index.size > index.arrays.end:
        message = f"{index.size - index.arrays.end} unused bytes after the document indices"
        yield Problem(path=index.path, place=f"byte {index.arrays.end}", message=message)
    if type(stream) is ContiguousStream:
        gaps = [(index.last_byte, bin_bytes)]
    else:
        count = len(index.sizes)
        begins = index.pointers.read(0, count)
        ends = begins + index.sizes.read(0, count) * index.dtype.itemsize
        order = np.argsort(begins, kind="stable")
        covered = np.concatenate(([0], np.maximum.accumulate(ends[order])))
        nexts = np.concatenate((begins[order], [bin_bytes]))
        holes = np.flatnonzero(nexts > covered)
        gaps = list(zip(covered[holes].tolist(), nexts[holes].tolist(), strict=True))
    faults = Faults(path, "gaps")
    for at in faults.to_name(np.array([begin < end for begin, end in gaps])):
        begin, end = gaps[at]
        message = f"{end - begin} bytes outside of any document"
        yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    yield from faults.rest()


def _check_counts(prefix: str, vouched: OutputShard, index: Index, stream: Stream) -> Iterator[Problem]:
    """Compare the shard with the numbers in its manifest's entry."""
    facts = {
        "documents": (vouched.documents, index.num_documents),
        "tokens": (vouched.tokens, stream.num_tokens),
        "dtype": ("/".join(key.dtype for key in vouched.keys.values()), index.dtype.name),
        "contiguous": (vouched.contiguous, vouched.contiguous and type(stream) is ContiguousStream),
    }
    if index.arrays.bounds is None:  # opened with each sequence as a document, so the numbers differ
        del facts["documents"]
    for name, (listed, found) in facts.items():
        if listed != found:
            yield Problem(path=prefix, place="", message=f"{name}: the manifest says {listed}, the shard has {found}")


def _check_ids(path: str, using: Reader, index: Index, stream: Stream, vocab_size: int) -> Iterator[Problem]:
    """Find ids outside the vocabulary, the first one in each document."""

    def read(begin: int, end: int) -> TokenArray:
        stored = using.read_ranges(path, *stream.ranges(np.array([begin]), end - begin)).view(index.dtype)
        return token_ids(stored, index.arrays.shift, path)

    def find(tokens: IntArray) -> IntArray:
        return index.documents_of(stream.sequences(tokens))

    try:
        yield from check_values(path, index.dtype, read, stream.num_tokens, find, vocab_size)
    except StoreError as error:
        yield Problem.of(path, error)


def _sequence(index: Index, sequence: int) -> str:
    return f"document {index.documents_of(np.array([sequence]))[0]}, sequence {sequence}"


def manifest_entry(prefix: str, using: Reader) -> OutputShard | None:
    """Return the entry of the manifest beside a shard; None if there is none or it is damaged, as `check` reports."""
    path = using.path_at(prefix).parent / MANIFEST_NAME
    try:
        status = path.stat()
        return _manifest(path.parent, status.st_mtime_ns, status.st_size).shard(using.path_at(prefix).name)
    except (OSError, StoreError):
        return None


@functools.lru_cache(maxsize=4)
def _manifest(folder: AnyPath, modified_ns: int, size: int) -> Manifest:
    # Time and size are only part of the cache's key, so that a changed file is loaded again.
    return load_manifest(folder)


def listed_dtype(shard: OutputShard) -> str:
    """Return the dtype that the manifest lists for the tokens of a shard."""
    return "/".join(key.dtype for key in shard.keys.values())


def listed_numbers(shard: OutputShard) -> str:
    """Describe a shard by the numbers that the manifest lists."""
    return numbers(listed_dtype(shard), shard.documents, shard.tokens, *(file.size for file in shard.files))


def numbers(dtype: str, documents: int, tokens: int, bin_bytes: int, idx_bytes: int) -> str:
    """Describe a shard by its numbers."""
    return f"{documents} documents, {tokens} {dtype} tokens, .bin of {bin_bytes} and .idx of {idx_bytes} bytes"


_KEYS = ("tokens",)
_LONG: Final = 1 << 24
"""From so many sequences on, a pass takes long enough for its outcome to be kept."""


class IndexedStore(RangesStore):
    """One shard in the layout of Megatron's ``IndexedDataset``. Opening it is O(1).

    A document is one or several sequences, or none. Sequences are read where their pointers say, which need not be
    contiguous. When the token *stream* is first used (`num_tokens`, `fetch`, `gather`, `find_documents`,
    `document_begins`), one pass over the ``.idx`` finds out whether they are, at 2 to 3 ns a sequence, unless a
    ``headrace.json`` beside the shard says so. From 2^24 sequences on, the outcome is kept in ``.headrace-index``
    beside the file, or in the cache folder. If they are not contiguous, prefix sums of 8 bytes a sequence are held in
    memory. `document` never needs the pass.

    Args:
        prefix: the path without ``.bin`` and ``.idx``.
        using: ``"mmap"`` (documents are views without a copy) or ``"pread"``, or a `Reader`.
        vouched: the shard's entry in a manifest; by default the manifest beside the shard is used, if there is one.
        options: the dialect, and what a document is, if the bytes do not tell.

    Attributes:
        index: the arrays of the ``.idx``, for use within ``headrace.stores``.

    Raises:
        StoreError: a file is missing or malformed; the message says what was found and what was expected.

    Example:
        >>> store = headrace.stores.IndexedStore("data/web")
        >>> bool(len(store.document(0)) == store.lengths[0])
        True
    """

    format = "indexed"

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        using: str | Reader = "mmap",
        vouched: OutputShard | None = None,
        options: IndexedOptions = AS_FOUND,
    ) -> None:
        using = reader_at(prefix, using)
        self.path = self.prefix = os.fspath(prefix)
        self.options = options
        self._reader = reader(using)
        self._bin = self.prefix + ".bin"
        self._vouched = vouched
        self._stream: Stream | None = None
        self._bounds_unchecked = False
        self._bin_bytes = self._reader.size(self._bin)
        self.index = self._open_index(self._reader)
        self._dtype = self.index.dtype
        self._dtypes = {_KEYS[0]: self._dtype}
        self._shift = self.index.arrays.shift
        if vouched is not None and not self._agrees(vouched):
            raise StoreError(
                f"{self.prefix}: not the shard that the manifest lists: found {self._found()}, but the manifest lists"
                f" {listed_numbers(vouched)} ({self._found_in()})"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The only key, ``"tokens"``."""
        return _KEYS

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of the ``.bin``."""
        return self._dtypes

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The ``.bin`` and the ``.idx``."""
        return self._reader.path_at(self._bin), self._reader.path_at(self.index.path)

    @property
    def data_files(self) -> tuple[str, ...]:
        """The ``.bin``."""
        return (self._bin,)

    def extents(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> Extents:
        """Return one range of the ``.bin`` for each; raises ConfigError if the sequences are not contiguous."""
        stream = self._use_stream()
        if type(stream) is not ContiguousStream:
            raise self._unplaced()
        check_ranges(begins, lengths, stream.num_tokens)
        itemsize = self._dtype.itemsize
        return Extents.of_file(self, 0, begins * itemsize, lengths * itemsize)

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones. O(1)."""
        return self.index.num_documents

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents. The first use may look at the whole ``.idx``."""
        return self._use_stream().num_tokens

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens in each document. Computing it takes 8 bytes a sequence more."""
        sizes, bounds = self.index.sizes, self.index.bounds.read(0, len(self.index.bounds))
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes.read(0, len(sizes)), out=ends[1:])
        if bounds.min() < 0 or bounds.max() > len(sizes):
            raise StoreError(
                f"{self.index.path}: document indices lie outside 0 to {len(sizes)}, the number of sequences"
            )
        return np.diff(ends[bounds])

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the format, dtype, counts, sizes of both files, and their first and last 4 KiB."""
        index = self.index
        # Later facts are only appended if they are set, so that the same files keep their fingerprint across versions.
        facts = (
            self.format,
            self._dtype.str,
            len(index.sizes),
            len(index.bounds),
            self._bin_bytes,
            index.size,
            *(("sequences",) if index.arrays.bounds is None else ()),
            *((self._shift,) if self._shift else ()),
        )
        hasher = xxhash.xxh3_128(repr(facts).encode())
        for path, size in ((self._bin, self._bin_bytes), (self.index.path, self.index.size)):
            hasher.update(self._reader.ends(path, ENDS_BYTES, size))
        return hasher.hexdigest()

    @property
    def num_sequences(self) -> int:
        """Number of sequences, including empty ones. O(1)."""
        return len(self.index.sizes)

    @property
    def sequence_lengths(self) -> TokenArray:
        """(N,) number of tokens in each sequence, read-only, in the dtype of the file (int32; older formats int64)."""
        return self.index.sizes.array()

    @property
    def sequence_pointers(self) -> TokenArray:
        """(N,) int64: the byte of the ``.bin`` where each sequence begins."""
        pointers = self.index.pointers
        is_stored = self.index.arrays.pointers.scale == 1
        return pointers.array() if is_stored else read_only(pointers.read(0, len(pointers)))

    @property
    def document_indices(self) -> TokenArray:
        """(num_documents + 1,) int64: 0, then the number of sequences up to the end of each document."""
        return self.index.bounds.array()

    @property
    def modes(self) -> TokenArray | None:
        """(N,) int8 (int32 in files of 2023): the kind of each sequence of a multimodal store, or None."""
        return None if self.index.modes is None else self.index.modes.array()

    def sequence(self, index: int, offset: int = 0, length: int | None = None) -> TokenArray:
        """Return (length,) tokens of one sequence from ``offset`` on, by default to its end; a view if mapped.

        Raises:
            IndexError: there is no such sequence, or the range is not within it.
        """
        number = document_number(index, self.num_sequences, "sequence")
        size, begin = self.index.sequence(number)
        if size < 0:
            raise StoreError(f"{self.index.path}: sequence {number} has {size} tokens; sizes may not be negative")
        count = size - offset if length is None else length
        if not 0 <= offset <= offset + count <= size:
            raise IndexError(
                f"tokens {offset} to {offset + count} are out of range; sequence {number} has {size} tokens"
            )
        itemsize = self._dtype.itemsize
        return self._read_bytes(begin + offset * itemsize, count * itemsize, f"sequence {number}")

    def sequences(self, numbers: IntArray) -> list[TokenArray]:
        """Return the tokens of several sequences, in the order of ``numbers``, with one read of the index for all.

        Raises:
            IndexError: there is no such sequence.
        """
        numbers = positions(numbers, self.num_sequences, "sequences")
        num_bytes = self.index.sizes.take(numbers) * self._dtype.itemsize
        rows = zip(numbers.tolist(), self.index.pointers.take(numbers).tolist(), num_bytes.tolist(), strict=True)
        return [self._read_bytes(begin, length, f"sequence {number}") for number, begin, length in rows]

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """Return the (length,) tokens of one document; a view if the file is mapped and its sequences are adjacent."""
        number = document_number(index, self.num_documents)
        return by_keys(lambda _: self._read_document(number), keys, _KEYS)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """Return the (end - begin,) tokens of the stream, without a copy if the file is mapped and contiguous."""
        check_range(begin, end, self._use_stream().num_tokens)
        return by_keys(lambda _: self._read_stream(begin, end), keys, _KEYS)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) tokens in a new array; about 2 us plus copying if mapped and contiguous."""
        stream = self._use_stream()
        if self._range_of(_KEYS[0]) is not None:
            return super().gather(begins, length)
        begins = positions(begins, max(0, stream.num_tokens - length + 1), "begins")
        return self._read_ranges(*stream.ranges(begins, length)).reshape(len(begins), length)

    def document_buffers(self, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[memoryview]:
        """Return ranges of documents; if each sequence is a document, the pointers are used without a pass before."""
        whole = None if self._shift else self._reader.kept(self._bin, "tokens", self._whole_tokens)
        if whole is None or self.index.arrays.bounds is not None or self._stream is not None:
            return super().document_buffers(documents, begins, lengths)
        documents = positions(documents, self.num_documents, "documents")
        offsets = self.index.pointers.take(documents)
        firsts = offsets // self._dtype.itemsize + begins
        if (offsets % self._dtype.itemsize).any() or (offsets < 0).any() or (firsts > len(whole) - lengths).any():
            return super().document_buffers(documents, begins, lengths)
        view = whole.data
        return [view[begin:end] for begin, end in zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)]

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Yield the lengths of all documents, computed from the sizes of their sequences."""
        index = self.index.for_pass()
        for first in range(0, self.num_documents, num_documents):
            end = min(first + num_documents, self.num_documents)
            if index.arrays.bounds is None:  # each sequence is a document
                yield index.sizes.read(first, end)
                continue
            bounds = index.bounds.read(first, end + 1)
            low, high = int(bounds[0]), int(bounds[-1])
            if int(np.diff(bounds).min()) < 0 or low < 0 or high > len(index.sizes):
                raise StoreError(
                    f"{index.path}: document indices decrease or exceed the number of sequences, {len(index.sizes)}"
                )
            sizes = index.sizes.read(low, high)
            if high - low == len(bounds) - 1 and bool((bounds[1:] - bounds[:-1] == 1).all()):
                yield sizes
                continue
            ends = np.zeros(len(sizes) + 1, np.int64)
            np.cumsum(sizes, out=ends[1:])
            yield np.diff(ends[bounds - low])

    def find_documents(self, begins: IntArray) -> IntArray:
        """Return the non-empty document that holds each token, (n,) int64. About 3 us each if mapped."""
        stream = self._use_documents()
        return self.index.documents_of(stream.sequences(positions(begins, stream.num_tokens, "begins")))

    def document_begins(self, documents: IntArray) -> IntArray:
        """Return the token where each document begins, (n,) int64; for ``num_documents``, ``num_tokens``."""
        documents = positions(documents, self.num_documents + 1, "documents")
        return self._use_documents().begins(self.index.bounds.take(documents))

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every rule of the format, every id, and all bytes if a manifest beside the shard lists it."""
        return check_indexed(
            self.prefix, self._reader, opened=self._open_index, vouched=self._vouched, vocab_size=vocab_size
        )

    def close(self) -> None:
        """Close both files. Arrays stay valid, and a later read opens the files again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(prefix=self.prefix, using=self._reader, vouched=self._vouched, options=self.options)

    def _range_of(self, key: str) -> tuple[str, int] | None:
        is_as_stored = type(self._use_stream()) is ContiguousStream and not self._shift
        return (self._bin, 0) if is_as_stored else None

    def _open_index(self, using: Reader) -> Index:
        using.keep(self.prefix + ".idx")
        return open_index(using, self.prefix + ".idx", using.size(self._bin), self.options)

    def _use_stream(self) -> Stream:
        # No lock is needed: if two threads both look, they find the same.
        if self._stream is None:
            vouched = self._vouched or manifest_entry(self.prefix, self._reader)
            trusted = vouched is not None and vouched.contiguous and self._agrees(vouched)
            if trusted:
                self._stream = ContiguousStream(self.index)
            else:
                follows = self._once("contiguous", lambda: is_contiguous(self.index.for_pass()))
                self._stream = (ContiguousStream if follows else ScatteredStream)(self.index)
                self._bounds_unchecked = True
        return self._stream

    def _once(self, what: str, look: Callable[[], bool | None]) -> bool:
        """Return what a pass over the ``.idx`` finds out; that of a long one is kept for other processes and starts."""
        if len(self.index.sizes) < _LONG:
            return bool(look())
        kind = f"indexed {what} {self.options} {self._dtype.name} {self._bin_bytes}"
        _, found = kept_index(self.index.path, self._reader, kind, 1, lambda: ({}, str(bool(look())).encode()))
        return found == b"True"

    def _whole_tokens(self, data: NDArray[np.uint8]) -> TokenArray:
        """Return the mapped ``.bin`` as tokens, without bytes at its end that make no whole token."""
        return data[: len(data) - len(data) % self._dtype.itemsize].view(self._dtype)

    def _use_documents(self) -> Stream:
        """Return the stream, after a check that the document indices do not decrease."""
        stream = self._use_stream()
        if self._bounds_unchecked:
            self._once("documents", lambda: check_bounds(self.index))
            self._bounds_unchecked = False
        return stream

    def _agrees(self, shard: OutputShard) -> bool:
        """Return whether a manifest's entry has the numbers of the files. O(1)."""
        sizes = [file.size for file in shard.files]
        # If each sequence is a document by option, the manifest's number does not apply.
        documents = self.num_documents if self.index.arrays.bounds is not None else shard.documents
        listed = (listed_dtype(shard), shard.documents, sizes)
        if listed != (self._dtype.name, documents, [self._bin_bytes, self.index.size]):
            return False
        if not shard.contiguous:
            return True
        begins_at_0 = not len(self.index.pointers) or self.index.pointers.read(0, 1)[0] == 0
        return bool(begins_at_0) and self.index.last_byte == shard.tokens * self._dtype.itemsize

    def _found_in(self) -> str:
        """Say where the numbers come from that differ from those of the manifest."""
        pointers = self.index.pointers
        first = int(pointers.read(0, 1)[0]) if len(pointers) else 0
        begins = f", whose first document begins at byte {first:,}" if first else ""
        return f"found in {Path(self.index.path).name}{begins}"

    def _found(self) -> str:
        tokens = self.index.last_byte // self._dtype.itemsize
        return numbers(self._dtype.name, self.num_documents, tokens, self._bin_bytes, self.index.size)

    def _read_document(self, number: int) -> TokenArray:
        index, itemsize = self.index, self._dtype.itemsize
        first, last = index.bounds.read(number, number + 2).tolist()
        if not 0 <= first <= last <= len(index.sizes):
            raise StoreError(
                f"{index.path}: document {number} goes from sequence {first} to {last} of {len(index.sizes)};"
                " document indices may not decrease"
            )
        if first == last:
            return read_only(np.empty(0, self._dtype))
        lengths = index.sizes.read(first, last) * itemsize
        offsets = index.pointers.read(first, last)
        if last - first == 1 or np.array_equal(offsets[1:], offsets[:-1] + lengths[:-1]):
            return self._read_bytes(int(offsets[0]), int(lengths.sum()), f"document {number}")
        return read_only(self._read_ranges(offsets, lengths))

    def _read_stream(self, begin: int, end: int) -> TokenArray:
        stream, itemsize = self._use_stream(), self._dtype.itemsize
        if type(stream) is ContiguousStream:
            return self._read_bytes(begin * itemsize, (end - begin) * itemsize, "the stream")
        offsets, lengths = stream.ranges(np.array([begin]), end - begin)
        return read_only(self._read_ranges(offsets, lengths))

    def _read_ranges(self, offsets: IntArray, lengths: IntArray) -> TokenArray:
        """Read byte ranges one after another as tokens, into a new array."""
        return token_ids(
            self._reader.read_ranges(self._bin, offsets, lengths).view(self._dtype), self._shift, self._bin
        )

    def _read_bytes(self, offset: int, length: int, what: str) -> TokenArray:
        """Return one byte range as tokens, read-only; a view if the file is mapped."""
        if length and not (0 <= offset <= self._bin_bytes - length and length > 0):
            raise StoreError(
                f"{self._bin}: {what} lies at bytes {offset} to {offset + length}; the file has {self._bin_bytes} bytes"
            )
        stored = tokens_at(self._reader, self._bin, self._dtype, offset, length)
        return read_only(token_ids(stored, self._shift, self._bin)) if self._shift else stored
