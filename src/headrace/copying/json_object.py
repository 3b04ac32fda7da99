"""AstrAI's first store, one JSON object of lists of lists, as a source to be converted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.arguments import read_only
from headrace.stores.checking import check_values
from headrace.stores.json.index import Kinds, Numbers, as_array, decode_record, json_can_be
from headrace.stores.json.store import JSON_SUFFIXES, is_object
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import Problem, TokenArray
from headrace.stores.written import META_NAME

_NESTED: Final = msgspec.json.Decoder(dict[str, list[Numbers]])


def is_json_object(path: str | os.PathLike[str], using: Reader) -> bool:
    """Whether a file is one JSON object, by its name, or by its beginning: AstrAI gave the name ``.jsonl`` to both."""
    place = Path(path)
    if place.suffix not in JSON_SUFFIXES or place.name in (META_NAME, MANIFEST_NAME) or not place.is_file():
        return False
    return place.suffix == ".json" or is_object(str(place), using)


class JsonObjectStore(SegmentedStore):
    """One JSON object ``{"tokens": [[1, 2], [3]], ...}`` in a file, as AstrAI 1.3.5 and 1.3.6 wrote it.

    A list of numbers in place of a list of lists is one document. Everything is in memory, as it was there.

    Args:
        path: the file.
        key: the main key.
        using: reads the file, once.

    Raises:
        StoreError: it is no such object; says what was expected.
        ConfigError: there is no such key.
    """

    format = "json"

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: Reader) -> None:
        self.file = os.fspath(path)
        data = using.read_ranges(self.file, np.array([0]), np.array([using.size(self.file)])).tobytes()
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
        """float64, where integers were seen, and anything where all lists are empty."""
        return json_can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """The same store with other dtypes of some keys, each of which it can be."""
        other = super().with_dtypes(dtypes)
        other._values = {key: read_only(values.astype(other._dtypes[key])) for key, values in self._values.items()}
        return other

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """The values in memory."""
        return self._values[self._known(key)]

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Whether the ids of the main key are in the vocabulary."""
        key = self._keys[0]
        values = self._values[key]
        yield from check_values(
            self.file, values.dtype, lambda begin, end: values[begin:end], self._main_bounds, vocab_size
        )

    def close(self) -> None:
        """The file is closed already; the values stay."""

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
                f"{path}: no store of tokens, which is a JSON object with a list of lists of numbers for each key, or a"
                f" .jsonl with such a record a line: {error}; text is made into tokens by headrace prepare"
            ) from error
    if not found:
        raise StoreError(f"{path}: names no key; a store has at least one")
    return found
