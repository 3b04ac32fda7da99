"""`SegmentedStore`, the base of stores that hold the bounds of all documents in memory, and helpers to read ranges."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headrace.config import unknown_name
from headrace.errors import ConfigError
from headrace.io import Reader
from headrace.stores.arguments import (
    IntArray,
    by_keys,
    check_range,
    check_ranges,
    document_number,
    not_parallel,
    positions,
    read_only,
)
from headrace.stores.checking import check_values, vocab_of
from headrace.stores.store import MAIN, Cuts, Extents, KeyList, Problem, Store, TokenArray, cut_at
from headrace.stores.written import OutputShard


class SegmentedStore(Store):
    """A store of several keys that holds the bounds of each key's documents in memory, 8 bytes a document and key.

    The main key is the one that was chosen, or else ``"tokens"``, ``"sequence"``, ``"chosen"`` or ``"prompts"``, or
    else the first. Another key is *parallel* to it if its documents have the same lengths; `fetch` reads only parallel
    keys. `document` reads any key that has the same number of documents.

    Args:
        path: the path that was opened.
        bounds: for each key (documents + 1,) int64, prefix sums of the lengths of its documents.
        dtypes: the dtype of each key.
        key: the main key; None for the default.

    Raises:
        ConfigError: there is no such key.
    """

    _main_names: ClassVar[tuple[str, ...]] = (MAIN, "sequence", "chosen", "prompts")
    """AstrAI's names for ids. The first of these names that the store has is the main key, unless one is chosen."""

    def __init__(
        self, path: str, bounds: Mapping[str, IntArray], dtypes: Mapping[str, np.dtype[Any]], key: str | None
    ) -> None:
        self.path = path
        self._bounds = dict(bounds)
        self._dtypes = dict(dtypes)
        self._assumed: dict[str, np.dtype[Any]] = {}
        self._set_main(key)

    @property
    def keys(self) -> tuple[str, ...]:
        """The main key, then the others in the order of the file."""
        return self._keys

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key."""
        return {key: self._dtypes[key] for key in self._keys}

    @property
    def num_documents(self) -> int:
        """Number of documents of the main key, including empty ones. O(1)."""
        return self._num_documents(self._keys[0])

    @property
    def num_tokens(self) -> int:
        """Number of values of the main key. O(1)."""
        return self._num_values(self._keys[0])

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: number of values in each document of the main key."""
        return np.diff(self._bounds_of(self._keys[0]))

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """Return the (length,) values of one document.

        Raises:
            IndexError: the index is out of range.
            ConfigError: the store does not have a key, or the key has a different number of documents.
        """
        number = document_number(index, self.num_documents)
        return by_keys(lambda key: self._read_document(number, key), keys, self._keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """Return the (end - begin,) values of the stream.

        Raises:
            IndexError: unless ``0 <= begin <= end <= num_tokens``.
            ConfigError: the store does not have a key, or the key is not parallel to the main one.
        """
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda key: self._read_stream(begin, end, key), keys, self._keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) values of the main key in a new array."""
        checked = self._checked_begins(begins, length)
        out = np.empty((len(checked), length), self._dtypes[self._keys[0]])
        for row, begin in enumerate(checked.tolist() if length else ()):
            out[row] = self._read(begin, begin + length, self._keys[0])
        return out

    def find_documents(self, begins: IntArray) -> IntArray:
        """Return the non-empty document that holds each value of the main key, (n,) int64."""
        begins = positions(begins, self.num_tokens, "begins")
        return np.searchsorted(self._bounds_of(self._keys[0]), begins, side="right") - 1

    def document_begins(self, documents: IntArray) -> IntArray:
        """Return where each document begins in the main key, (n,) int64; for ``num_documents``, ``num_tokens``."""
        return self._bounds_of(self._keys[0])[positions(documents, self.num_documents + 1, "documents")]

    def with_main(self, key: str) -> Self:
        """Return the same store with another main key; it shares the files. O(keys).

        Raises:
            ConfigError: there is no such key.
        """
        other = self._twin()
        other._set_main(key)
        return other

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Return whether the values of a key can be read as a dtype, given what the file says about it."""
        return self._dtypes[key] == dtype

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """Return the same store with other dtypes for some keys; `can_be` must be true for each of them."""
        other = self._twin()
        other._assumed = {**self._assumed, **dtypes}
        other._dtypes = {**self._dtypes, **dtypes}
        return other

    @abstractmethod
    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        """Return (end - begin,) values of a key's own stream, read-only; the range is known to be within it."""

    def _check_values(
        self, path: str, key: str, vouched: OutputShard | None, vocab_size: int | None
    ) -> Iterator[Problem]:
        """Yield the first wrong value in each document of a key; see `check_values`."""
        bounds, dtype = self._bounds_of(key), self._dtypes[key]
        return check_values(
            path,
            dtype,
            lambda begin, end: self._read(begin, end, key),
            int(bounds[-1]),
            lambda values: np.searchsorted(bounds, values, side="right") - 1,
            vocab_of(key, dtype, self._keys[0], vouched, vocab_size),
        )

    def _bounds_of(self, key: str) -> IntArray:
        """Return where the documents of a key begin, and where the last one ends, (documents + 1,) int64."""
        return self._bounds[key]

    def _num_documents(self, key: str) -> int:
        return len(self._bounds[key]) - 1

    def _num_values(self, key: str) -> int:
        return int(self._bounds[key][-1])

    @classmethod
    def _construct(cls, *, dtypes: Mapping[str, np.dtype[Any]] | None = None, **arguments: Any) -> Self:
        return cls(**arguments).with_dtypes(dtypes or {})

    def _set_main(self, key: str | None) -> None:
        if key is None:
            key = next((name for name in self._main_names if name in self._dtypes), next(iter(self._dtypes)))
        if key not in self._dtypes:
            raise unknown_name(self.path, "key", key, self._dtypes)
        self._keys = (key, *(name for name in self._dtypes if name != key))
        self._parallel = {key}

    def _checked_begins(self, begins: IntArray, length: int) -> IntArray:
        return positions(begins, max(0, self.num_tokens - length + 1), "begins")

    def _known(self, key: str | None) -> str:
        name = super()._known(key)
        self._check_parallel(name)
        return name

    def _read_document(self, number: int, key: str) -> TokenArray:
        if self._num_documents(key) != self.num_documents:
            raise ConfigError(
                f"{self.path}: key {key!r} has {self._num_documents(key)} documents, but the main key"
                f" {self._keys[0]!r} has {self.num_documents}; open the store with key={key!r} to read it"
            )
        begin, end = self._bounds_of(key)[number : number + 2].tolist()
        return self._read(begin, end, key) if begin < end else read_only(np.empty(0, self._dtypes[key]))

    def _read_stream(self, begin: int, end: int, key: str) -> TokenArray:
        self._check_parallel(key)
        return self._read(begin, end, key) if begin < end else read_only(np.empty(0, self._dtypes[key]))

    def _check_parallel(self, key: str) -> None:
        if key in self._parallel:
            return
        main = self._keys[0]
        if self._num_values(key) != self.num_tokens:
            difference = f"has {self._num_values(key)} values, but the main key {main!r} has {self.num_tokens}"
        elif not np.array_equal(self._bounds_of(key), self._bounds_of(main)):
            difference = f"has documents of other lengths than the main key {main!r}"
        else:
            self._parallel.add(key)
            return
        raise not_parallel(self.path, key, difference)


class RangesStore(Store):
    """A store in which all values of a key may lie in one range of a file, which is read without a library.

    They are views if the file is mapped, and many ranges of them are read together if it is not.
    """

    _reader: Reader
    _dtypes: dict[str, np.dtype[Any]]

    @abstractmethod
    def _range_of(self, key: str) -> tuple[str, int] | None:
        """Return the file that holds the values of a key, and the byte where they begin; None if they lie apart."""

    @property
    def data_files(self) -> tuple[str, ...]:
        """The file of each key, each once; raises ConfigError if the values of a key lie apart."""
        return tuple(dict.fromkeys(self._placed(key)[0] for key in self.keys))

    def extents(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> Extents:
        """Return one range of the file of the key for each; raises ConfigError if its values lie apart."""
        name = self._known(key)
        path, offset = self._placed(name)
        check_ranges(begins, lengths, self.num_tokens)
        itemsize = self._dtypes[name].itemsize
        return Extents.of_file(self, self.data_files.index(path), offset + begins * itemsize, lengths * itemsize)

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """Return the mapped values of a key that do not lie apart."""
        name = self._known(key)
        place = self._range_of(name)
        if place is None or self._reader.view(place[0]) is None:
            return None
        dtype = self._dtypes[name]
        return tokens_at(self._reader, place[0], dtype, place[1], self.num_tokens * dtype.itemsize)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) values of the main key in a new array, if they do not lie apart."""
        dtype, (path, offset) = self._dtypes[self.keys[0]], self._placed(self.keys[0])
        make = functools.partial(windows, dtype=dtype, num_tokens=self.num_tokens, length=length, offset=offset)
        rows = self._reader.kept(path, (length, offset, dtype), make)
        if rows is not None:
            return rows[positions(begins, len(rows), "begins")]
        begins = positions(begins, max(0, self.num_tokens - length + 1), "begins")
        lengths = np.full(len(begins), length * dtype.itemsize, np.int64)
        data = self._reader.read_ranges(path, offset + begins * dtype.itemsize, lengths)
        return data.view(dtype).reshape(len(begins), length)

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """Return ranges of the stream: views if it is mapped; otherwise those of one file are read together."""
        name = self._known(key)
        place = self._range_of(name)
        if place is None or self._reader.view(place[0]) is not None:
            return super().buffers(begins, lengths, key)
        check_ranges(begins, lengths, self.num_tokens)
        dtype = self._dtypes[name]
        data = self._reader.read_ranges(place[0], place[1] + begins * dtype.itemsize, lengths * dtype.itemsize)
        view, ends = read_only(data.view(dtype)).data, np.cumsum(lengths).tolist()
        return [view[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]

    def _placed(self, key: str) -> tuple[str, int]:
        place = self._range_of(key)
        if place is None:
            raise self._unplaced()
        return place


def tokens_at(reader: Reader, path: str, dtype: np.dtype[Any], offset: int, num_bytes: int) -> TokenArray:
    """Return the tokens of a byte range that lies in the file, read-only: a view if the reader maps."""
    if num_bytes == 0:
        return read_only(np.empty(0, dtype))
    mapped = reader.view(path)
    if mapped is not None:
        return np.frombuffer(mapped, dtype, num_bytes // dtype.itemsize, offset)
    return read_only(reader.read(path, offset, num_bytes).view(dtype))


def windows(data: NDArray[np.uint8], dtype: np.dtype[Any], num_tokens: int, length: int, offset: int = 0) -> TokenArray:
    """Return every window of a mapped stream as (num_tokens - length + 1, length) overlapping rows, without a copy."""
    num_windows = max(0, num_tokens - length + 1)
    if num_windows == 0 or length == 0:
        return np.empty((num_windows, length), dtype)
    return np.ndarray((num_windows, length), dtype, data, offset, (dtype.itemsize, dtype.itemsize))


def cut_at_bounds(bounds: IntArray, begins: IntArray, length: int) -> Cuts:
    """Cut ranges of a stream at the bounds of its parts: (parts + 1,) int64, prefix sums of their lengths from 0 on."""
    return cut_at(
        begins, length, lambda tokens: np.searchsorted(bounds, tokens, side="right") - 1, lambda parts: bounds[parts]
    )
