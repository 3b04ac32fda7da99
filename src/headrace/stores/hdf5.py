"""One HDF5 file of documents of several keys, as AstrAI kept them up to 1.3.11."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader, check_local, reader
from headrace.stores.arguments import read_only
from headrace.stores.cutting import cut_at
from headrace.stores.hdf5_layout import DatasetOrder, check_order, missing_numbers, read_layout
from headrace.stores.keyed_layout import key_dtype
from headrace.stores.manifest import MANIFEST_NAME, load_manifest
from headrace.stores.manifest_output import OutputShard
from headrace.stores.mapped import tokens_at
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import IntArray, Problem, TokenArray
from headrace.stores.sums import check_file
from headrace.stores.values import check_values

_ENDS_BYTES = 4096


class Hdf5Store(SegmentedStore):
    """One ``.h5`` file. A document is a dataset of a key; keys and parallel keys are those of `SegmentedStore`.

    Opening it costs about 40 us a dataset, with h5py; values are then read without it, as views where mapped.

    Args:
        path: the file.
        key: the main key.
        using: how to read, ``"mmap"`` or ``"pread"``; or a reader.
        order: of the datasets: ``"number"``, data_2 before data_10; ``"name"``, data_10 before data_2, which is how
            AstrAI read files with more than ten.
        vouched: the manifest's entry.

    Raises:
        StoreError: missing, torn, or not in this layout; says what was found and where.
        ConfigError: there is no such key or order.
        MissingExtraError: h5py is not installed.
    """

    format = "hdf5"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        order: DatasetOrder = "number",
        vouched: OutputShard | None = None,
    ) -> None:
        check_local(path)
        check_order(order)
        self.file = os.fspath(path)
        self._reader = reader(using)
        self._order: DatasetOrder = order
        self._vouched = vouched
        self._segments = read_layout(self.file, self._reader.size(self.file), order)
        super().__init__(
            self.file,
            {name: segments.bounds for name, segments in self._segments.items()},
            {name: segments.dtype for name, segments in self._segments.items()},
            key,
        )
        if vouched is not None:  # of a key without datasets only the manifest knows the dtype
            silent = [name for name, segments in self._segments.items() if not segments.names and name in vouched.keys]
            self._assumed = {name: key_dtype(vouched.keys[name].dtype) for name in silent}
            self._dtypes.update(self._assumed)
        for fault in self._disagreements():
            raise StoreError(f"{self.file}: not the shard that the manifest lists: {fault}")

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (Path(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the keys, their dtypes and documents, and the first and last 4 KiB of each. O(documents)."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for key in self._keys:
            segments = self._segments[key]
            hasher.update(repr((key, self._dtypes[key].str)).encode())
            hasher.update(segments.bounds.tobytes())
            total = int(segments.bounds[-1])
            length = min(total, _ENDS_BYTES // segments.dtype.itemsize)
            for begin in (0, total - length) if length else ():
                hasher.update(self._read(begin, begin + length, key).tobytes())
        return hasher.hexdigest()

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """The mapped values of a key that is all in one dataset, as AstrAI's pipeline wrote them."""
        name = self._known(key)
        segments = self._segments[name]
        total = int(segments.bounds[-1])
        if np.count_nonzero(np.diff(segments.bounds)) > 1 or self._reader.view(self.file) is None:
            return None
        return self._read(0, total, name) if total else read_only(np.empty(0, self._dtypes[name]))

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) values of the main key, a fresh array: one call of the reader."""
        checked = self._checked_begins(begins, length)
        values = self._read_parts(checked, length, self._keys[0])
        return values.reshape(len(checked), length)

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Anything, where a key has no datasets."""
        return self._dtypes[key] == dtype or not self._segments[key].names

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Every rule of the layout, bools, ids, and every byte if a manifest beside the file vouches for it.

        Ids are those of the main key, and of all keys of integers that a manifest says hold ids. The file is opened
        anew, so what the store has seen before does not matter.
        """
        vouched = self._vouched
        place = Path(self.file)
        if vouched is None and (place.parent / MANIFEST_NAME).exists():
            try:
                entry = load_manifest(place.parent).shard(place.stem)
                vouched = entry if entry is not None and entry.format == self.format else None
            except StoreError as error:
                yield Problem(path=str(place.parent / MANIFEST_NAME), place="", message=str(error))
        if vouched is not None:
            for file in vouched.files:
                yield from check_file(place.with_name(file.name), file)
        try:
            store = Hdf5Store(
                self.file, key=self._keys[0], using=copy.copy(self._reader), order=self._order, vouched=vouched
            )
        except StoreError as error:
            yield Problem(path=self.file, place="", message=str(error).removeprefix(f"{self.file}: "))
            return
        with store:
            for key in store.keys:
                yield from store._check_key(key, vouched, vocab_size)

    def close(self) -> None:
        """Let go of the file; arrays stay valid, and a later read opens it again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = {"key": self._keys[0], "using": self._reader, "order": self._order, "vouched": self._vouched}
        return _reopen, (self.path, self.file, how, self._assumed, self.fingerprint)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        segments = self._segments[key]
        first = int(np.searchsorted(segments.bounds, begin, side="right")) - 1
        if end > segments.bounds[first + 1]:
            return read_only(self._read_parts(np.array([begin]), end - begin, key))
        item = segments.dtype.itemsize
        offset = int(segments.offsets[first]) + (begin - int(segments.bounds[first])) * item
        return tokens_at(self._reader, self.file, segments.dtype, offset, (end - begin) * item)

    def _read_parts(self, begins: IntArray, length: int, key: str) -> TokenArray:
        segments = self._segments[key]
        item = self._dtypes[key].itemsize
        parts, firsts, counts = cut_at(segments.bounds, begins, length)
        found = self._reader.read_ranges(self.file, segments.offsets[parts] + firsts * item, counts * item)
        return found.view(self._dtypes[key])

    def _check_key(self, key: str, vouched: OutputShard | None, vocab_size: int | None) -> Iterator[Problem]:
        segments = self._segments[key]
        for name in missing_numbers(segments)[:1]:
            yield Problem(path=self.file, place=f"/{key}", message=f"{name} is missing among {len(segments.names)}")
        info = None if vouched is None else vouched.keys.get(key)
        main = key == self._keys[0]
        has_ids = main if info is None else info.ids and (main or self._dtypes[key].kind in "iu")
        yield from check_values(
            self.file,
            self._dtypes[key],
            lambda begin, end: self._read(begin, end, key),
            segments.bounds,
            vocab_size if has_ids else None,
        )

    def _disagreements(self) -> Iterator[str]:
        """What the manifest's entry says otherwise."""
        if self._vouched is None:
            return
        found = {key: (dtype.name, int(self._bounds[key][-1])) for key, dtype in self.dtypes.items()}
        listed = {key: (info.dtype, info.tokens) for key, info in self._vouched.keys.items()}
        if (found, self.num_documents) != (listed, self._vouched.documents):
            yield f"found {self.num_documents} documents, {found}, listed {self._vouched.documents} and {listed}"
        sizes = [file.size for file in self._vouched.files]
        if sizes != [self._reader.size(self.file)]:
            yield f"it has {self._reader.size(self.file)} bytes, listed {sizes[0]}"


def _reopen(
    path: str, file: str, how: dict[str, Any], assumed: dict[str, np.dtype[Any]], fingerprint: str
) -> Hdf5Store:
    store = Hdf5Store(file, **how).with_dtypes(assumed)
    store.path = path
    if store.fingerprint != fingerprint:
        raise StoreError(f"{file}: has changed since the store was handed to this process; open it again")
    return store
