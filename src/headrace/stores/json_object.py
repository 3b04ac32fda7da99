"""AstrAI's first store, one JSON object of lists of lists; and what it shares with records a line."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader, reader
from headrace.stores.arguments import read_only
from headrace.stores.json_values import Kinds, Numbers, as_array, decode_record
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import Problem, TokenArray
from headrace.stores.values import check_values

if TYPE_CHECKING:
    from headrace.stores.jsonl import JsonlStore

_NESTED: Final = msgspec.json.Decoder(dict[str, list[Numbers]])


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
        return can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

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
        return reopened_by(self)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        return self._values[key][begin:end]


def can_be(has: np.dtype[Any], count: int, dtype: np.dtype[Any]) -> bool:
    """Whether ``count`` JSON numbers may as well be of another dtype: integers of float64, and none at all of any."""
    return has == dtype or not count or (has == np.int64 and dtype == np.float64)


def reopened_by(store: JsonlStore | JsonStore) -> tuple[Any, ...]:
    """For ``__reduce__``: the file is opened again, and refused if it has changed."""
    how = store._keys[0], store._reader, store._assumed
    return _reopen, (type(store), store.path, store.file, *how, store.fingerprint)


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


def _whole(path: str, using: Reader) -> bytes:
    return using.read_ranges(path, np.array([0]), np.array([using.size(path)])).tobytes()


def _decode_object(path: str, data: bytes) -> dict[str, list[Any]]:
    try:
        found: dict[str, list[Any]] = _NESTED.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            found = {key: [values] for key, values in decode_record(data)[0].items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise StoreError(
                f"{path}: no store of tokens, which is a JSON object with a list of lists of numbers for each key, or a"
                f" .jsonl with such a record a line: {error}; text is made into tokens by headrace prepare"
            ) from error
    if not found:
        raise StoreError(f"{path}: names no key; a store has at least one")
    return found
