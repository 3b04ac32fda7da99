"""`KeyedStore`, which reads one shard of AstrAI's keyed format, and the check of such a shard."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader, reader, reader_at
from headrace.stores.arguments import MAIN
from headrace.stores.checking import check_file, check_values, vocab_of
from headrace.stores.keyed.layout import META_NAME, KeyLayout, parse_bounds, parse_meta
from headrace.stores.manifest import entry_beside
from headrace.stores.segmented import RangesStore, SegmentedStore, tokens_at
from headrace.stores.store import ENDS_BYTES, IntArray, Problem, TokenArray, read_ahead_of_fingerprints
from headrace.stores.written import OutputShard


def check_keyed(
    folder: str, using: Reader, *, main: str, vouched: OutputShard | None, vocab_size: int | None
) -> Iterator[Problem]:
    """Yield every fault of a folder's ``meta.json`` and of the ``.bin`` of each key.

    The files are opened again, so the state of an open store does not matter. Each of these takes one pass over the
    ``.bin``: checksums, if a manifest lists the shard; values of ``bool``; and ids, if ``vocab_size`` is set.
    """
    with contextlib.closing(copy.copy(using)) as using:  # a copy has no files open
        place = using.path_at(folder)
        vouched, problems = entry_beside(place, "keyed", vouched)
        yield from problems
        meta = str(place / META_NAME)
        layouts: dict[str, KeyLayout] = {}
        bounds: dict[str, IntArray] = {}
        try:
            data = using.read(meta, 0, using.size(meta)).tobytes()
            layouts = parse_meta(meta, data)
            for key, layout in layouts.items():
                if layout.num_documents is not None:
                    bounds[key] = parse_bounds(meta, data, key)
        except StoreError as error:
            yield Problem.of(meta, error)
        if vouched is not None:
            for file in vouched.files:
                yield from check_file(place / file.name, file)
            if layouts:
                for fault, message in _disagreements(vouched, layouts):
                    yield Problem(path=folder, place=fault, message=message)
        for key, layout in layouts.items():
            vocab = vocab_of(key, layout.dtype, main, vouched, vocab_size)
            yield from _check_key(folder, using, layout, bounds.get(key), vocab)


def _disagreements(vouched: OutputShard, layouts: Mapping[str, KeyLayout]) -> Iterator[tuple[str, str]]:
    """Yield place and message of each difference of numbers from the manifest's entry. O(keys)."""
    counts = {layout.num_documents for layout in layouts.values()} - {None}
    for count in counts - {vouched.documents}:
        yield "", f"documents: the manifest says {vouched.documents}, the shard has {count}"
    listed = {key: f"{info.tokens} of {info.dtype}" for key, info in vouched.keys.items()}
    found = {key: f"{layout.num_tokens} of {layout.dtype.name}" for key, layout in layouts.items()}
    for key in sorted(listed.keys() | found.keys()):
        if listed.get(key) != found.get(key):
            message = f"the manifest says {listed.get(key, 'nothing')}, the shard has {found.get(key, 'nothing')}"
            yield f"key {key!r}", message


def _check_key(
    folder: str, using: Reader, layout: KeyLayout, bounds: IntArray | None, vocab_size: int | None
) -> Iterator[Problem]:
    path = str(using.path_at(folder) / f"{layout.key}.bin")
    try:
        size = using.size(path)
    except StoreError as error:
        yield Problem.of(path, error)
        return
    if size != layout.num_bytes:
        message = (
            f"{layout.num_tokens} values of {layout.dtype.name} take {layout.num_bytes} bytes, but the file has {size}"
        )
        yield Problem(path=path, place="", message=message)
    if size < layout.num_bytes:
        return

    def read(begin: int, end: int) -> TokenArray:
        item = layout.dtype.itemsize
        return using.read(path, begin * item, (end - begin) * item).view(layout.dtype)

    def find(values: IntArray) -> IntArray:
        return np.zeros(len(values), np.int64) if bounds is None else np.searchsorted(bounds, values, side="right") - 1

    yield from check_values(path, layout.dtype, read, layout.num_tokens, find, vocab_size)


class KeyedStore(RangesStore, SegmentedStore):
    """One shard of the keyed format. Opening it takes one scan of ``meta.json``, about 3 ns a byte.

    `num_documents`, `num_tokens`, `lengths` and `gather` refer to the *main* key. It is ``"tokens"`` or else the first
    key in ``meta.json``, unless another is chosen, and can always be called ``"tokens"``. Another key is *parallel* if
    it has the same number of values. `fetch` reads only parallel keys, since otherwise position i of one stream says
    nothing about position i of the other. `document` reads any key, by its own offsets.

    A key without offsets uses those of the first key that has offsets and the same number of values. If there is none,
    all of its values are one document, or no document if it is empty.

    Args:
        folder: the folder of ``meta.json``.
        key: the main key; None for the default.
        using: ``"mmap"`` (documents are views without a copy) or ``"pread"``, or a `Reader`.
        vouched: the shard's entry in a manifest.

    Raises:
        StoreError: a file is missing or malformed; the message says what was found and what was expected.
        ConfigError: there is no such key.

    Example:
        >>> with headrace.stores.KeyedWriter("pairs", dtypes={"sequence": "int32", "loss_mask": "bool"}) as writer:
        ...     values = {"sequence": np.array([5, 6, 7]), "loss_mask": np.array([0, 1, 1])}
        ...     writer.add_documents(values, dict.fromkeys(values, np.array([1, 2])))
        ...     shard = writer.finish()
        >>> headrace.stores.KeyedStore("pairs").document(1, keys="loss_mask").tolist()
        [True, True]
    """

    format = "keyed"
    _main_names = (MAIN,)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        vouched: OutputShard | None = None,
    ) -> None:
        using = reader_at(folder, using)
        self.folder = os.fspath(folder)
        self._reader = reader(using)
        self._vouched = vouched
        self._meta = self._file(META_NAME)
        self._meta_bytes = self._reader.size(self._meta)
        data = self._read_meta()
        self._meta_hash = xxhash.xxh3_128_hexdigest(data)
        self._layouts = parse_meta(self._meta, data)
        if vouched is not None:
            faults = [f"{place or META_NAME}: {message}" for place, message in _disagreements(vouched, self._layouts)]
            if faults:
                raise StoreError(f"{self.folder}: not the shard that the manifest lists: {'; '.join(faults)}")
        self._bins = {name: self._file(f"{name}.bin") for name in self._layouts}
        self._sources = {name: self._bounds_source(layout) for name, layout in self._layouts.items()}
        # The bounds are parsed when they are first needed.
        super().__init__(self.folder, {}, {name: layout.dtype for name, layout in self._layouts.items()}, key)
        for name in self._keys:
            layout, size = self._layouts[name], self._reader.size(self._bins[name])
            if size < layout.num_bytes:
                raise StoreError(
                    f"{self._bins[name]}: cut short: {layout.num_tokens} values of {layout.dtype.name} take"
                    f" {layout.num_bytes} bytes, but the file has {size}"
                )
        for file in vouched.files if vouched is not None else ():
            size = self._reader.size(self._file(file.name))
            if size != file.size:
                raise StoreError(
                    f"{self.folder}: not the shard that the manifest lists: {file.name} has {size} bytes, but the"
                    f" manifest lists {file.size}"
                )

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The ``.bin`` of each key, and ``meta.json``."""
        return tuple(map(self._reader.path_at, [*(self._bins[key] for key in self._keys), self._meta]))

    def _file(self, name: str) -> str:
        return str(self._reader.path_at(self.folder) / name)

    @property
    def has_offsets(self) -> bool:
        """Whether the shard has offsets for the main key; without them, all of its values are one document."""
        return self._sources[self._keys[0]].num_documents is not None

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of ``meta.json``, the order of the keys, and the first and last 4 KiB of each ``.bin``."""
        read_ahead_of_fingerprints([self])
        hasher = xxhash.xxh3_128(repr((self.format, self._keys, self._meta_hash)).encode())
        for key in self._keys:
            hasher.update(self._reader.ends(self._bins[key], ENDS_BYTES, self._layouts[key].num_bytes))
        return hasher.hexdigest()

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every rule of the format, the ids, and all bytes if a manifest beside the shard lists it.

        Ids are checked in the main key, or in all integer keys that hold ids according to the manifest.
        """
        return check_keyed(self.folder, self._reader, main=self._keys[0], vouched=self._vouched, vocab_size=vocab_size)

    def close(self) -> None:
        """Close all files. Arrays stay valid, and a later read opens the files again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(folder=self.folder, key=self._keys[0], using=self._reader, vouched=self._vouched)

    def _read_meta(self) -> bytes:
        # Release it after reading: a mapping would count as memory of this process for as long as the store lives.
        data = self._reader.read(self._meta, 0, self._meta_bytes).tobytes()
        self._reader.release(self._meta)
        return data

    def _bounds_source(self, layout: KeyLayout) -> KeyLayout:
        """Return the layout whose offsets a key uses."""
        if layout.num_documents is not None:
            return layout
        with_offsets = (other for other in self._layouts.values() if other.num_documents is not None)
        return next((other for other in with_offsets if other.num_tokens == layout.num_tokens), layout)

    def _set_main(self, key: str | None) -> None:
        super()._set_main(key)
        self._parallel = {name for name in self._keys if self._num_values(name) == self.num_tokens}

    def _num_documents(self, key: str) -> int:
        source = self._sources[key]
        found = source.num_documents
        return int(source.num_tokens > 0) if found is None else found

    def _num_values(self, key: str) -> int:
        return self._layouts[key].num_tokens

    def _bounds_of(self, key: str) -> IntArray:
        # No lock is needed: if two threads both parse, they find the same.
        source = self._sources[key]
        if source.key not in self._bounds:
            if source.num_documents is not None:
                bounds = parse_bounds(self._meta, self._read_meta(), source.key)
            else:
                bounds = np.array([0, source.num_tokens] if source.num_tokens else [0], np.int64)
            self._bounds[source.key] = bounds
        return self._bounds[source.key]

    def _range_of(self, key: str) -> tuple[str, int]:
        return self._bins[key], 0

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        dtype = self._dtypes[key]
        return tokens_at(self._reader, self._bins[key], dtype, begin * dtype.itemsize, (end - begin) * dtype.itemsize)
