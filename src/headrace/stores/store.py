"""The interfaces of stores: `Store` of tokens, `SampleStore` of samples, and `AnyStore`, which both share.

`Extents` say which bytes of which files samples lie in, found without reading them: what a run reads is planned so.

`cut_at` cuts ranges of a stream where its parts begin, and `Numbering` leaves out samples that are listed as bad.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, Final, NamedTuple, Self, overload

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader
from headrace.stores.arguments import (
    MAIN,
    IntArray,
    KeyList,
    TokenArray,
    check_ranges,
    known_key,
    positions,
    sample_numbers,
)

__all__ = ["MAIN", "IntArray", "KeyList", "Problem", "SampleStore", "Store", "TokenArray"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that ``check`` found.

    Attributes:
        path: the file.
        place: where in the file, as exactly as the check can tell (``"byte 1048576"``, ``"document 17"``); may be
            empty.
        message: what is wrong.
    """

    path: str
    place: str
    message: str

    @classmethod
    def of(cls, path: str, error: Exception, place: str = "") -> Problem:
        """Return an error in reading a file as a problem of the file, whose path the message need not repeat.

        Raises:
            StoreAwayError: this is the error; no file is to blame if its store gives no answer.
        """
        if isinstance(error, StoreAwayError):
            raise error
        return cls(path=path, place=place, message=str(error).removeprefix(f"{path}: "))

    def __str__(self) -> str:
        return f"{self.path}: {self.place}: {self.message}" if self.place else f"{self.path}: {self.message}"


class Cuts(NamedTuple):
    """The pieces of ranges of a stream that was cut where its parts begin; each field is (pieces,) int64.

    Attributes:
        ranges: the number of the range.
        parts: the number of the part.
        firsts: the first token of the piece, counted in its part.
        columns: the same, counted in its range.
        lengths: number of tokens; 0 for an empty part between two others.
    """

    ranges: IntArray
    parts: IntArray
    firsts: IntArray
    columns: IntArray
    lengths: IntArray


def cut_at(
    begins: IntArray, length: int, find: Callable[[IntArray], IntArray], begins_of: Callable[[IntArray], IntArray]
) -> Cuts:
    """Cut ranges of a stream where its parts begin.

    For example, parts of 3, 0 and 6 tokens begin at 0, 3 and 3. The ranges of 5 tokens from 0 and 4 on are cut into
    tokens 0..2 of part 0, nothing of part 1, and tokens 0..1 of part 2; and tokens 1..5 of part 2.

    Args:
        begins: (n,) int64, the first token of each range; all ranges lie within the stream.
        length: number of tokens in each range.
        find: returns the part that holds each of some tokens; it is not empty.
        begins_of: returns the token where each of some parts begins.
    """
    if length == 0 or not len(begins):
        return Cuts(*[np.zeros(0, np.int64)] * 5)
    firsts = find(begins)
    counts = find(begins + (length - 1)) - firsts + 1
    ends = np.cumsum(counts)
    ranges = np.repeat(np.arange(len(begins)), counts)
    parts = np.arange(len(ranges)) - np.repeat(ends - counts, counts) + firsts[ranges]
    behind = begins_of(parts) - begins[ranges]
    columns = np.maximum(behind, 0)
    # A piece ends where the next one of its range begins, the last one at the end of the range.
    stops = np.append(columns[1:], 0)
    stops[ends - 1] = length
    return Cuts(ranges, parts, columns - behind, columns, stops - columns)


class Extents(NamedTuple):
    """Ranges of the files of one store; all arrays are (n,) int64.

    Attributes:
        store: the store; file f is ``store.data_files[f]``.
        rows: the sample that each range belongs to, numbered within the call.
        files: the file of each range.
        begins: the byte where each range begins.
        ends: the byte behind each range.
    """

    store: AnyStore
    rows: IntArray
    files: IntArray
    begins: IntArray
    ends: IntArray

    @classmethod
    def of_file(cls, store: AnyStore, file: int, begins: IntArray, lengths: IntArray) -> Extents:
        """Return one range of the same file for each row."""
        rows = np.arange(len(begins), dtype=np.int64)
        return cls(store, rows, np.full_like(rows, file), begins, begins + lengths)

    @classmethod
    def joined(cls, store: AnyStore, parts: Sequence[Extents]) -> Extents:
        """Return the ranges of several parts, whose rows and files are those of this store."""
        empty = np.zeros(0, dtype=np.int64)
        columns = (np.concatenate([empty, *column]) for column in list(zip(*parts, strict=True))[1:])
        return cls(store, *columns) if parts else cls(store, empty, empty, empty, empty)


ENDS_BYTES: Final = 4096
"""The bytes at both ends of a file by which it is known; JSON lines of samples have more of them."""

READING_AHEAD: Final = "headrace.stores.reading_ahead"  # loaded when the first URL comes


def read_ahead_of_fingerprints(stores: Iterable[AnyStore]) -> None:
    """Fetch at the same time what the fingerprints of stores will read, as far as it is remote."""
    remote = [store for store in stores if any(one.reads_urls for one in store.readers)]
    if remote:
        resolve_name(f"{READING_AHEAD}:read_of_fingerprints")(remote)


class AnyStore(ABC):
    """What stores of tokens and stores of samples share. A pickled store is opened again where it is unpickled."""

    format: ClassVar[str]
    """Name of the layout, as ``headrace info`` prints it."""

    path: str
    """The path that was opened, as the user wrote it."""

    @property
    @abstractmethod
    def files(self) -> tuple[AnyPath, ...]:
        """All files of the store."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that identifies the content, wherever the files lie. O(1) a shard."""

    @property
    def layout_fingerprint(self) -> str:
        """`fingerprint`, or for samples what it was before it saw contents: hex digest of where the samples lie."""
        return self.fingerprint

    @property
    def contents_fingerprint(self) -> str:
        """`fingerprint`, or one that sees contents too, where this depends on the place of the files."""
        return self.fingerprint

    @property
    def readers(self) -> tuple[Reader, ...]:
        """What reads the files; none if a library maps them."""
        found = getattr(self, "_reader", None)
        return () if found is None else (found,)

    @property
    def data_files(self) -> tuple[str, ...]:
        """The paths of the files that hold tokens or samples, without indexes; `Extents` name them by number.

        Raises:
            ConfigError: it is not known where in the files of this layout the data lie.
        """
        raise self._unplaced()

    def data_sizes(self) -> IntArray:
        """(data_files,) int64: the bytes of each of ``data_files``; raises the same error. O(1) a file."""
        return np.array([self.readers[0].size(file) for file in self.data_files], dtype=np.int64)

    def data_file(self, file: int) -> tuple[Reader, str]:
        """Return one of ``data_files``, by its number, and what reads it; raises the same error."""
        return self.readers[0], self.data_files[file]

    def _unplaced(self) -> ConfigError:
        return ConfigError(
            f"{self.path}: it is not known which bytes of a store of the format {self.format} a sample lies in; this is"
            " known for pairs of .bin and .idx whose documents lie one after another, keyed stores, raw tokens, tars,"
            " Energon datasets of tars and folders of files: convert the data with `headrace convert`"
        )

    @abstractmethod
    def close(self) -> None:
        """Close the files. What was returned stays valid."""

    def with_path(self, path: str) -> Self:
        """Return the same store with the path as the user wrote it; it shares the files."""
        twin = self._twin()
        twin.path = path
        return twin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _twin(self) -> Self:
        # copy.copy would open the files again, as pickling does.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _reduced(self, **arguments: Any) -> tuple[Any, ...]:
        """Return the result of ``__reduce__`` of a store that these arguments of its constructor open again."""
        return self._open_again, (arguments, self.path, self._identity())

    def _identity(self) -> str:
        """Return what must be the same when the store is opened again."""
        return self.fingerprint

    @classmethod
    def _construct(cls, **arguments: Any) -> Self:
        return cls(**arguments)

    @classmethod
    def _open_again(cls, arguments: dict[str, Any], path: str, identity: str) -> Self:
        store = cls._construct(**arguments)
        if store._identity() != identity:
            raise StoreError(f"{store.path}: has changed since the store was passed to this process; open it again")
        return store.with_path(path)


class Store(AnyStore):
    """Documents of tokens on disk, addressed by document or as one stream of tokens.

    The *token stream* of a key is the sequence of its documents, in the order of their numbers. Opening a store costs
    O(1) a shard: header, sizes and the last entries are validated, but documents are not read. Arrays that a store
    returns are read-only, unless a method says otherwise, and stay valid after the store is closed or collected.
    """

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """Names of the token streams. The first is the main key, which can also be called ``"tokens"``."""

    @property
    @abstractmethod
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key on disk."""

    @property
    def opening(self) -> dict[str, Any]:
        """The options of `headrace.open` without which the documents at its path would be others."""
        return {}

    @property
    @abstractmethod
    def num_documents(self) -> int:
        """Number of documents, including empty ones. O(1)."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens in the stream of the main key."""

    @property
    @abstractmethod
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens in each document. Each call takes O(num_documents) memory."""

    @overload
    def document(self, index: int) -> TokenArray: ...
    @overload
    def document(self, index: int, keys: str | None) -> TokenArray: ...
    @overload
    def document(self, index: int, keys: KeyList) -> dict[str, TokenArray]: ...
    @abstractmethod
    def document(self, index: int, keys: str | KeyList | None = None) -> TokenArray | dict[str, TokenArray]:
        """Return the (length,) tokens of one document: an array for one key, a dict of arrays for several.

        Args:
            index: number of the document; negative numbers count from the end.
            keys: one key or several; by default the main key.

        Raises:
            IndexError: the index is out of range.
        """

    @overload
    def fetch(self, begin: int, end: int, keys: str | None = None) -> TokenArray: ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyList) -> dict[str, TokenArray]: ...
    @abstractmethod
    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> TokenArray | dict[str, TokenArray]:
        """Return the tokens ``[begin, end)`` of the stream: an array for one key, a dict of arrays for several.

        Raises:
            IndexError: unless ``0 <= begin <= end <= num_tokens``.
        """

    @abstractmethod
    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) tokens in the dtype on disk: row i holds the stream from ``begins[i]`` on.

        The array is new and writable. Training reads through this method, with one call a batch.
        """

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """Return the whole stream as a read-only view of (num_tokens,), or None if that would need a copy. O(1)."""
        return None

    def pieces(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[TokenArray]:
        """Return the (lengths[i],) tokens of each range of the stream, from ``begins[i]`` on, in order.

        The arrays are views where the store can make them.

        Raises:
            IndexError: a range is not within the stream.
            ConfigError: the store does not have the key, or the key is not parallel to the main one.
        """
        return [np.asarray(buffer) for buffer in self.buffers(begins, lengths, key)]

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """Return the same as ``pieces``, as buffers; these are made and joined in two thirds of the time of arrays.

        Packed samples are read through this method, which takes about 0.1 us a range if the store is mapped. It raises
        the same errors as ``pieces``.
        """
        ends = (begins + lengths).tolist()
        stream = self.stream_view(key)
        if stream is None:
            return [self.fetch(begin, end, key).data for begin, end in zip(begins.tolist(), ends, strict=True)]
        check_ranges(begins, lengths, len(stream))
        view = stream.data
        return [view[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)]

    def document_buffers(self, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[memoryview]:
        """Return ``lengths[i]`` tokens of each document, from its token ``begins[i]`` on, as buffers.

        All three arguments are (n,) int64.

        Raises:
            IndexError: there is no such document, or a range is not within the stream.
        """
        return self.buffers(self.document_begins(documents) + begins, lengths)

    def extents(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> Extents:
        """Return which bytes hold each range of the stream; the arguments are those of ``pieces``. Reads no tokens.

        Raises:
            ConfigError: it is not known, see ``data_files``; or as ``pieces``.
        """
        raise self._unplaced()

    def with_main(self, key: str) -> Store | None:
        """Return a store of the same files whose main key is ``key``; None if it has to be opened again for that."""
        return self if key == self.keys[0] else None

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Yield the values of ``lengths`` for at most ``num_documents`` documents at a time, in bounded memory."""
        for first in range(0, self.num_documents, num_documents):
            end = min(first + num_documents, self.num_documents)
            yield np.diff(self.document_begins(np.arange(first, end + 1)))

    @abstractmethod
    def find_documents(self, begins: IntArray) -> IntArray:
        """Return the number of the document that holds each token of the stream, (n,) int64. O(log documents) each."""

    @abstractmethod
    def document_begins(self, documents: IntArray) -> IntArray:
        """Return where each document begins in the token stream, (n,) int64; for ``num_documents``, ``num_tokens``."""

    def cut_windows(self, begins: IntArray, length: int) -> Cuts:
        """Cut the windows of ``length`` tokens that begin at ``begins`` at documents; see `cut_at`."""
        return cut_at(begins, length, self.find_documents, self.document_begins)

    @abstractmethod
    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Read everything and yield what is wrong; with ``vocab_size`` also ids outside ``[0, vocab_size)``."""

    def _known(self, key: str | None) -> str:
        """Return the name of a key whose stream can be read beside that of the main one, which is the default."""
        return self.keys[0] if key is None else known_key(key, self.keys)

    def __len__(self) -> int:
        return self.num_documents

    def __repr__(self) -> str:
        return f"<{self.format} store {self.path!r}: {self.num_documents:,} documents, {self.num_tokens:,} tokens>"


class RawSample(msgspec.Struct, frozen=True, gc=False):
    """One sample as it lies on disk.

    Attributes:
        key: name of the sample, unique in the store; folders are part of it (``"cats/0017"``).
        shard: the shard that holds the sample, relative to the store.
        index: number of the sample in that shard, counting excluded samples.
        parts: bytes of each part by name, in the order of the file (``{"jpg": b"...", "txt": b"..."}``).
    """

    key: str
    shard: str
    index: int
    parts: dict[str, bytes]


class PartPlace(NamedTuple):
    """Where the bytes of a part lie: in the range ``[offset, offset + size)`` of a file."""

    file: str
    offset: int
    size: int


class SampleStore(AnyStore):
    """Samples on disk, each with a key and named parts, addressed by number.

    Samples are numbered through all shards, in the order of the store. Opening costs at most O(1) a shard; samples are
    not read. A store is safe in threads and across a fork.

    Samples that are listed as bad beside the files, see `headrace.stores.quarantine`, are left out: the others are
    numbered without gaps, reading costs the same, and the samples that are left out are part of the fingerprint, so
    that a run which is resumed after the list has changed is refused.
    """

    _numbering: Numbering
    _whole: Self | None = None

    @property
    @abstractmethod
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, relative to the store, in order. A shard that is listed twice appears twice."""

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the samples ``[bounds[s], bounds[s + 1])``, without those left out."""
        return self._numbering.bounds

    @property
    def num_left_out(self) -> int:
        """Number of samples that are left out."""
        return len(self._numbering.left_out)

    @property
    def whole(self) -> Self:
        """The store with the samples that `without` has left out."""
        return self._whole or self

    def without(self, left_out: IntArray) -> Self:
        """Return the store without some of its samples; it shares the files.

        Args:
            left_out: (n,) int64, numbers of samples of ``whole``, rising.

        Raises:
            StoreError: no sample is left.
        """
        twin = self._twin()
        twin.__dict__.pop("fingerprint", None)
        twin._whole = self.whole
        twin._numbering = Numbering(np.diff(self.whole.shard_bounds), left_out)
        if not len(twin):
            raise StoreError(f"{self.path}: all of its {len(left_out):,} samples are left out as bad; none is left")
        return twin

    @abstractmethod
    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, in the order of ``indices``. Training reads through this, with one call a batch.

        Args:
            indices: (n,) int64 in [0, len); samples that lie next to each other are read together.
            parts: names of the parts to read; None reads all. A sample may lack some of them.

        Raises:
            IndexError: there is no such sample.
            InputError: a sample is malformed; the message names shard, key and byte.
            StoreError: a file is missing, changed or cut short.
        """

    @abstractmethod
    def key(self, index: int) -> str:
        """Return the key of one sample; raises the same errors as ``read``."""

    @abstractmethod
    def find(self, key: str) -> int:
        """Return the number of the sample with a key, the first one if there are several.

        Raises:
            KeyError: there is none.
        """

    @abstractmethod
    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part of a sample lies, in the order of the file; raises the same errors as ``read``."""

    def extents(self, indices: IntArray) -> Extents:
        """Return which bytes hold each of some samples, all parts together; reads indexes, but no samples.

        Raises:
            IndexError: there is no such sample.
            ConfigError: it is not known, see ``data_files``.
            StoreError: an index is missing or malformed.
        """
        raise self._unplaced()

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """Read everything and yield what is wrong."""

    def _reduced_whole(self, **arguments: Any) -> tuple[Any, ...]:
        """Return the result of ``__reduce__`` of a store that `without` may have made of what the arguments open."""
        if not self.num_left_out:
            return self._reduced(**arguments)
        return self.whole.with_path(self.path).without, (self._numbering.left_out,)

    def _located(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the shard of each sample, and its index there, counting samples that are left out; both (n,) int64."""
        return self._numbering.places(positions(numbers, len(self), f"{self.path}: sample numbers"))

    def _locate(self, index: int) -> tuple[int, int]:
        shards, indices = self._located(sample_numbers([index], len(self), self.path))
        return int(shards[0]), int(indices[0])

    def __len__(self) -> int:
        return int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> RawSample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[RawSample]:
        """Return the samples at ``indices``; negative ones count from the end. ``torch.utils.data`` calls this."""
        return self.read(sample_numbers(indices, len(self), self.path))

    def __repr__(self) -> str:
        return f"<{self.format} store {self.path!r}: {len(self):,} samples in {len(self.shards):,} shards>"


_NONE: Final[IntArray] = np.empty(0, np.int64)


class Numbering:
    """Converts sample numbers to shards and back. *Raw* numbers include the samples that are left out, numbers do not.

    For example, with counts (3, 2) and raw sample 1 left out, the numbers 0, 1, 2, 3 are raw 0, 2, 3, 4, and the bounds
    are 0, 2, 4.

    Args:
        counts: (shards,) int64, number of samples in each shard.
        left_out: raw numbers of the samples that are left out, sorted, without repeats; by default none.

    Attributes:
        raw_bounds: (shards + 1,) int64, raw number of the first sample of each shard, and the total.
        bounds: the same, without the samples that are left out.
    """

    def __init__(self, counts: IntArray, left_out: IntArray = _NONE) -> None:
        self.raw_bounds: IntArray = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.left_out = left_out
        self._before = left_out - np.arange(len(left_out))
        self.bounds: IntArray = self.raw_bounds - np.searchsorted(left_out, self.raw_bounds)
        self.bounds.flags.writeable = False

    def places(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return for each number its shard, and its index in the shard counting samples left out; both (n,) int64."""
        if len(self._before):
            numbers = numbers + np.searchsorted(self._before, numbers, side="right")
        shards = np.searchsorted(self.raw_bounds, numbers, side="right") - 1
        return shards, numbers - self.raw_bounds[shards]

    def number(self, shard: int, index: int) -> int | None:
        """Return the number of a sample of a shard; None if it is left out."""
        raw = int(self.raw_bounds[shard]) + index
        at = int(np.searchsorted(self.left_out, raw))
        if at < len(self.left_out) and self.left_out[at] == raw:
            return None
        return raw - at

    def found(self, shard: int, index: int, what: str) -> int:
        """Return the number of a sample of a shard; KeyError if it is left out, with ``what`` it is."""
        number = self.number(shard, index)
        if number is None:
            raise KeyError(f"{what} is left out as bad")
        return number

    def hashed(self, fingerprint: str) -> str:
        """Return xxh3_128 of a fingerprint and of the numbers that are left out; the fingerprint itself if none is."""
        if not len(self.left_out):
            return fingerprint
        hasher = xxhash.xxh3_128(fingerprint.encode())
        hasher.update(self.left_out.tobytes())
        return hasher.hexdigest()
