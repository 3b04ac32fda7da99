"""Parquet files with columns of tokens: `ParquetStore` reads them in place.

A column of lists of numbers is a key, and each row a document; other columns are left out. Parquet packs and compresses
the values of a row group together, so that a document costs the decoding of its row group, unless that was read just
before. Convert what is read often and in any order.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader, local_file, reader, reader_at
from headrace.stores.arguments import IntArray, read_only
from headrace.stores.kept_arrays import Kept, kept_index
from headrace.stores.saved_dataset import MAIN_NAMES, dtype_of, is_of_numbers, lengths_in, load_pyarrow, values_in
from headrace.stores.segmented import SegmentedStore, cut_at_bounds
from headrace.stores.store import Problem, TokenArray

PARQUET_SUFFIX: Final = ".parquet"
_VERSION: Final = 1
_RECENT_GROUPS: Final = 8


class _Meta(msgspec.Struct, frozen=True):
    keys: tuple[str, ...]
    dtypes: tuple[str, ...]


class ParquetStore(SegmentedStore):
    """A ``.parquet`` file with columns of lists of numbers, in place. Needs pyarrow.

    The first opening decodes these columns once, to know where documents begin; for files of 8 MiB or more the result
    is kept. Reading a document decodes its row group; the 8 that were read last are kept decoded.

    Args:
        path: the file.
        key: the main key; by default ``"tokens"``, ``"input_ids"``, ``"sequence"``, ``"chosen"``, ``"prompts"``, or
            the first.
        using: the reader that an index which was kept is looked up with. The file itself is always mapped.

    Raises:
        StoreError: the file is malformed, a list or a number is null, or no column has lists of numbers.
        ConfigError: there is no such key.
        MissingExtraError: pyarrow is not installed.
    """

    format = "parquet"
    _main_names = MAIN_NAMES

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: str | Reader = "mmap") -> None:
        self.file = os.fspath(path)
        self._reader = reader(reader_at(path, using))
        self._reader.keep(self.file)
        self._opened: Any = None
        self._locks: dict[int, Lock] = {}
        self._recent: dict[tuple[int, str], Any] = {}
        arrays, data = kept_index(self.file, self._reader, "parquet", _VERSION, self._make_index)
        meta = msgspec.json.decode(data, type=_Meta)
        self._groups = {name: arrays[f"groups_{number}"] for number, name in enumerate(meta.keys)}
        bounds = {name: arrays[f"bounds_{number}"] for number, name in enumerate(meta.keys)}
        super().__init__(self.file, bounds, dict(zip(meta.keys, map(np.dtype, meta.dtypes), strict=True)), key)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The ``.parquet`` file."""
        return (self._reader.path_at(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the keys, their dtypes and lengths, and the first and last 4 KiB of each key. O(documents)."""
        return self._ends_fingerprint()

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Decode the file again, and compare the ids of the main key with the size of the vocabulary."""
        self.close()
        try:
            found, _ = self._make_index()
            same = [np.array_equal(found[f"bounds_{n}"], self._bounds[key]) for n, key in enumerate(self._dtypes)]
        except (StoreError, KeyError) as error:
            yield Problem.of(self.path, error)
            return
        if not all(same):
            yield Problem(path=self.path, place="", message="the file changed since it was opened; open it again")
            return
        yield from self._check_values(self.path, self._keys[0], None, vocab_size)

    def close(self) -> None:
        """Let go of the file. Arrays stay valid, and a later read opens it again."""
        self._opened, self._recent = None, {}
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(path=self.file, key=self._keys[0], using=self._reader, dtypes=self._assumed)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        cuts = cut_at_bounds(self._groups[key], np.array([begin]), end - begin)
        parts = zip(cuts.parts.tolist(), cuts.firsts.tolist(), cuts.lengths.tolist(), strict=True)
        pieces = [
            self._values(part, key).slice(first, count).to_numpy(zero_copy_only=False)
            for part, first, count in parts
            if count
        ]
        if len(pieces) == 1:
            return read_only(pieces[0])
        return read_only(np.concatenate(pieces) if pieces else np.empty(0, self._dtypes[key]))

    def _values(self, group: int, key: str) -> Any:
        found = self._recent.get((group, key))
        if found is None:
            found = values_in(self._lists(group, key), self.file, key)
            if len(self._recent) >= _RECENT_GROUPS:
                self._recent = {}
            self._recent[group, key] = found
        return found

    def _lists(self, group: int, key: str) -> Any:
        # One reader of pyarrow is for one thread at a time. A fork has its own lock: a thread may hold its parent's.
        with self._locks.setdefault(os.getpid(), Lock()), self._understood() as opened:
            column = opened.read_row_group(group, columns=[key], use_threads=False).column(key)
            return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    @contextlib.contextmanager
    def _understood(self) -> Iterator[Any]:
        """Give the open file, and raise StoreError for what pyarrow does not understand in it."""
        pyarrow = load_pyarrow(self.file)
        try:
            if self._opened is None:
                self._opened = importlib.import_module("pyarrow.parquet").ParquetFile(
                    local_file(self._reader.path_at(self.file)), memory_map=True
                )
            yield self._opened
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreError(f"{self.file}: the file cannot be read as Parquet: {error}") from error

    def _make_index(self) -> Kept:
        types = load_pyarrow(self.file).types
        with self._understood() as opened:
            schema, num_groups = opened.schema_arrow, opened.num_row_groups
        keys = [field.name for field in schema if is_of_numbers(types, field.type)]
        if not keys:
            raise StoreError(
                f"{self.file}: no column has lists of numbers; the columns are {', '.join(schema.names)}. Use headrace"
                " prepare to make tokens from text and messages"
            )
        arrays: dict[str, IntArray] = {}
        dtypes = []
        for number, key in enumerate(keys):
            counts = [np.zeros(1, np.int64)]
            sizes = [0]
            for group in range(num_groups):
                lists = self._lists(group, key)
                counts.append(lengths_in(lists))
                sizes.append(len(values_in(lists, self.file, key)))
            arrays[f"bounds_{number}"] = np.cumsum(np.concatenate(counts), dtype=np.int64)
            arrays[f"groups_{number}"] = np.cumsum(np.array(sizes, np.int64))
            dtypes.append(dtype_of(schema.field(key).type).name)
        return arrays, msgspec.json.encode(_Meta(tuple(keys), tuple(dtypes)))
