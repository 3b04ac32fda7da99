"""Records of tokens as JSON, one a line; and AstrAI's first store, one JSON object of lists of lists."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader, reader
from headrace.stores.arguments import read_only
from headrace.stores.cutting import cut_at
from headrace.stores.json_values import Kinds, Numbers, as_array, decode_record
from headrace.stores.jsonl_index import line_index, make_index
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import Problem, TokenArray
from headrace.stores.values import check_values

SUFFIXES: Final = (".jsonl", ".json")
_RECENT_RECORDS = 32

_NESTED: Final = msgspec.json.Decoder(dict[str, list[Numbers]])


class JsonlStore(SegmentedStore):
    """One ``.jsonl`` file: a record a line, ``{"tokens": [1, 2, 3], "loss_mask": [0, 1, 1]}``. For small data.

    Integers are int64, with a fraction anywhere in a key float64, true and false bool. The first opening is a pass
    over the file, whose result is kept for files of 8 MiB or more; a document is then one read of its line, and about
    100 ns a number of all its keys.

    Args:
        path: the file.
        key: the main key.
        using: how to read, ``"mmap"`` or ``"pread"``; or a reader.

    Raises:
        StoreError: missing, or a line that is no record; names the line.
        ConfigError: there is no such key.
    """

    format = "jsonl"

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: str | Reader = "mmap") -> None:
        self.file = os.fspath(path)
        self._reader = reader(using)
        self._index = line_index(self.file, self._reader)
        self._recent: dict[int, dict[str, TokenArray]] = {}
        super().__init__(self.file, self._index.bounds, self._index.dtypes, key)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (Path(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the hash of the whole file and the main key."""
        return xxhash.xxh3_128_hexdigest(repr((self.format, self._keys[0], self._index.xxh3_128)).encode())

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """float64, where integers were seen, and anything where all lists are empty."""
        return _can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """The same store with other dtypes of some keys, each of which it can be."""
        other = super().with_dtypes(dtypes)
        other._recent = {}
        return other

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Read every line again and compare it with the index; ids of the main key."""
        using = copy.copy(self._reader)
        try:
            found = make_index(self.file, using)
        except StoreError as error:
            yield Problem(path=self.file, place="", message=str(error).removeprefix(f"{self.file}: "))
            return
        finally:
            using.close()
        if found.xxh3_128 != self._index.xxh3_128:
            yield Problem(path=self.file, place="", message="was changed since it was indexed; open it again")
            return
        yield from check_values(
            self.file,
            self._dtypes[self._keys[0]],
            lambda begin, end: self._read(begin, end, self._keys[0]),
            self._main_bounds,
            vocab_size,
        )

    def close(self) -> None:
        """Let go of the file; arrays stay valid, and a later read opens it again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = self._keys[0], self._reader, self._assumed
        return _reopen, (type(self), self.path, self.file, *how, self.fingerprint)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        parts = zip(*(part.tolist() for part in cut_at(self._bounds[key], np.array([begin]), end - begin)), strict=True)
        pieces = [self._record(number)[key][first : first + count] for number, first, count in parts if count]
        if len(pieces) == 1:
            return pieces[0]
        return read_only(np.concatenate(pieces) if pieces else np.empty(0, self._dtypes[key]))

    def _record(self, number: int) -> dict[str, TokenArray]:
        found = self._recent.get(number)
        if found is None:
            found = self._parse(number)
            if len(self._recent) >= _RECENT_RECORDS:
                self._recent = {}
            self._recent[number] = found
        return found

    def _parse(self, number: int) -> dict[str, TokenArray]:
        begin, end = int(self._index.offsets[number]), int(self._index.ends[number])
        line = self._reader.read_ranges(self.file, np.array([begin]), np.array([end - begin])).tobytes()
        try:
            found = {key: as_array(values, self._dtypes[key]) for key, values in decode_record(line)[0].items()}
            lengths = {key: int(np.diff(bounds[number : number + 2])[0]) for key, bounds in self._bounds.items()}
            if {key: len(values) for key, values in found.items()} == lengths:
                return found
            problem = f"other lists than those of {lengths} numbers that its index tells of"
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, KeyError) as error:
            problem = str(error)
        raise StoreError(
            f"{self.file}: document {number}, byte {begin}: {problem}; the index is not of this file, remove it"
        )


class JsonStore(SegmentedStore):
    """One JSON object ``{"tokens": [[1, 2], [3]], ...}`` a file, as AstrAI 1.3.5 and 1.3.6 wrote it.

    A list of numbers in place of a list of lists is one document. All is in memory, as it was there. Arguments and
    errors as of `JsonlStore`; dtypes too.
    """

    format = "json"

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: str | Reader = "mmap") -> None:
        self.file = os.fspath(path)
        self._reader = reader(using)
        data = _whole(self.file, self._reader)
        self._hash = xxhash.xxh3_128_hexdigest(data)
        lists = _decode_object(self.file, data)
        kinds = Kinds()
        for name, documents in lists.items():
            for number, values in enumerate(documents):
                kinds.add(name, values, f"{self.file}: document {number}")
        dtypes = {name: kinds.dtype(name) for name in lists}
        self._values = {
            name: read_only(
                np.concatenate([np.empty(0, dtypes[name]), *(as_array(one, dtypes[name]) for one in documents)])
            )
            for name, documents in lists.items()
        }
        bounds = {
            name: np.cumsum([0, *(len(values) for values in documents)], dtype=np.int64)
            for name, documents in lists.items()
        }
        super().__init__(self.file, bounds, dtypes, key)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (Path(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the hash of the whole file and the main key."""
        return xxhash.xxh3_128_hexdigest(repr((self.format, self._keys[0], self._hash)).encode())

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """As of `JsonlStore`."""
        return _can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """The same store with other dtypes of some keys, each of which it can be."""
        other = super().with_dtypes(dtypes)
        other._values = {key: read_only(values.astype(other._dtypes[key])) for key, values in self._values.items()}
        return other

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """The values in memory."""
        return self._values[self._known(key)]

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Whether the file is still what was read, and its ids, of the main key."""
        using = copy.copy(self._reader)
        try:
            if xxhash.xxh3_128_hexdigest(_whole(self.file, using)) != self._hash:
                yield Problem(path=self.file, place="", message="was changed since it was opened; open it again")
        except StoreError as error:
            yield Problem(path=self.file, place="", message=str(error).removeprefix(f"{self.file}: "))
        finally:
            using.close()
        key = self._keys[0]
        values = self._values[key]
        yield from check_values(
            self.file, values.dtype, lambda begin, end: values[begin:end], self._main_bounds, vocab_size
        )

    def close(self) -> None:
        """Let go of the file; the values stay."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = self._keys[0], self._reader, self._assumed
        return _reopen, (type(self), self.path, self.file, *how, self.fingerprint)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        return self._values[key][begin:end]


def _can_be(has: np.dtype[Any], count: int, dtype: np.dtype[Any]) -> bool:
    return has == dtype or not count or (has == np.int64 and dtype == np.float64)


def open_json(path: str | os.PathLike[str], *, key: str | None = None, using: str | Reader = "mmap") -> SegmentedStore:
    """The store of a ``.json`` or ``.jsonl`` file: one object of lists of lists, or a record a line.

    Raises:
        StoreError: neither; says what was expected.
        ConfigError: there is no such key.
    """
    name = os.fspath(path)
    using = reader(using)
    if name.endswith(".json") or _is_object(name, using):
        return JsonStore(name, key=key, using=using)
    return JsonlStore(name, key=key, using=using)


def _is_object(path: str, using: Reader) -> bool:
    """Whether a ``.jsonl`` is one JSON object over all of it, of lists of lists: AstrAI gave that name to both."""
    size = using.size(path)
    length = min(size, 4096)
    head = using.read_ranges(path, np.array([0]), np.array([length])).tobytes()
    # The first value of a record begins with a number or ends; the one of an object begins with another list.
    values = b"".join(head.split()).partition(b":")[2]
    return values.startswith(b"[[")


def _whole(path: str, using: Reader) -> bytes:
    return using.read_ranges(path, np.array([0]), np.array([using.size(path)])).tobytes()


def _decode_object(path: str, data: bytes) -> dict[str, list[Any]]:
    try:
        found: dict[str, list[Any]] = _NESTED.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            found = {key: [values] for key, values in decode_record(data)[0].items()}
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise StoreError(
                f"{path}: no store of tokens, which is a JSON object with a list of lists of numbers for each key, or a"
                f" .jsonl with such a record a line: {error}; text is made into tokens by headrace prepare"
            ) from error
    if not found:
        raise StoreError(f"{path}: names no key; a store has at least one")
    return found


def _reopen(
    kind: type[JsonlStore] | type[JsonStore],
    path: str,
    file: str,
    key: str,
    using: Reader,
    assumed: dict[str, np.dtype[Any]],
    fingerprint: str,
) -> SegmentedStore:
    store = kind(file, key=key, using=using).with_dtypes(assumed)
    store.path = path
    if store.fingerprint != fingerprint:
        raise StoreError(f"{file}: has changed since the store was handed to this process; open it again")
    return store
