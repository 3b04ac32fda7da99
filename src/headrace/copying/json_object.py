"""The first store format of AstrAI, one JSON object of lists of lists, as a source of `convert`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader
from headrace.stores.arguments import read_only
from headrace.stores.json.index import Kinds, Numbers, as_array, decode_record, json_can_be
from headrace.stores.json.store import JSON_SUFFIXES, is_object
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import Problem, TokenArray
from headrace.stores.written import META_NAME

_NESTED: Final = msgspec.json.Decoder(dict[str, list[Numbers]])


def is_json_object(path: str | os.PathLike[str], using: Reader) -> bool:
    """Whether a file is one JSON object, by its name or its beginning. AstrAI named both kinds ``.jsonl``."""
    place = using.path_at(os.fspath(path))
    if place.suffix not in JSON_SUFFIXES or place.name in (META_NAME, MANIFEST_NAME) or not place.is_file():
        return False
    return place.suffix == ".json" or is_object(str(place), using)


class JsonObjectStore(SegmentedStore):
    """One JSON object ``{"tokens": [[1, 2], [3]], ...}`` in a file, as AstrAI 1.3.5 and 1.3.6 wrote it.

    A list of numbers instead of a list of lists is one document. The whole file is kept in memory, as AstrAI did.

    Args:
        path: the file.
        key: the main key; None means the first.
        using: the reader of the file, which is read once.

    Raises:
        StoreError: the file does not hold such an object.
        ConfigError: there is no such key.
    """

    format = "json"

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: Reader) -> None:
        self.file = os.fspath(path)
        self._using = using
        data = using.read(self.file, 0, using.size(self.file)).tobytes()
        self._hash = xxhash.xxh3_128_hexdigest(data)
        lists = _decode_object(self.file, data)
        kinds = Kinds()
        for name, documents in lists.items():
            for number, values in enumerate(documents):
                kinds.add(name, values, f"{self.file}: document {number}")
        dtypes = {name: kinds.dtype(name) for name in lists}
        self._values = {
            name: read_only(
                np.concatenate([np.empty(0, dtypes[name]), *(as_array(values, dtypes[name]) for values in documents)])
            )
            for name, documents in lists.items()
        }
        bounds = {
            name: np.cumsum([0, *(len(values) for values in documents)], dtype=np.int64)
            for name, documents in lists.items()
        }
        super().__init__(self.file, bounds, dtypes, key)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The one file of the store."""
        return (self._using.path_at(self.file),)

    @property
    def fingerprint(self) -> str:
        """Hash (xxh3_128) of the content of the file and the main key."""
        return xxhash.xxh3_128_hexdigest(repr((self.format, self._keys[0], self._hash)).encode())

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Whether a key can have this dtype: float64 if it holds integers, any dtype if all its lists are empty."""
        return json_can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """Return the store with other dtypes of some keys; each must be one that `can_be` allows."""
        other = super().with_dtypes(dtypes)
        other._values = {key: read_only(values.astype(other._dtypes[key])) for key, values in self._values.items()}
        return other

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """Return the values of a key, which are in memory."""
        return self._values[self._known(key)]

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check that the ids of the main key are in the vocabulary."""
        yield from self._check_values(self.file, self._keys[0], None, vocab_size)

    def close(self) -> None:
        """Do nothing: the file is closed already, and the values stay in memory."""

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        return self._values[key][begin:end]


def _decode_object(path: str, data: bytes) -> dict[str, list[Any]]:
    try:
        found: dict[str, list[Any]] = _NESTED.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            found = {key: [values] for key, values in decode_record(data)[0].items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise StoreError(
                f"{path}: not a store of tokens: {error}; expected a JSON object with a list of lists of numbers for"
                f" each key, or a .jsonl with one such record per line. headrace prepare makes tokens of text"
            ) from error
    if not found:
        raise StoreError(f"{path}: has no key; a store has at least one")
    return found
