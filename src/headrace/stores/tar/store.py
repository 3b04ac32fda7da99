"""Plain tars of samples, as webdataset writes them, with or without an index."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import xxhash

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import Reader
from headrace.stores.arguments import IntArray, positions
from headrace.stores.checking import Faults
from headrace.stores.sample_store import PartPlace, RawSample, SampleStore
from headrace.stores.store import Problem
from headrace.stores.tar.index import IndexWhere, KeyTable, shard_indexes
from headrace.stores.tar.names import TarPaths, common_root, find_tars
from headrace.stores.tar.scan import TarFault
from headrace.stores.tar.shards import TarShards

_PROBES: Final = 8
"""Entries of each index that go into the fingerprint, besides the last."""


class TarStore(SampleStore):
    """Tars whose members ``<key>.<part>`` make samples, addressed by number.

    A tar without a fresh ``.tar.idx`` is indexed when it is opened, by a pass over its headers of about 3 us a member;
    the index is kept beside it, or where that cannot be written in ``$HEADRACE_CACHE`` or ``~/.cache/headrace``. A file
    that is there already is never replaced. A key may be there twice: `find` gives the first, and `check` tells.

    Args:
        path: a tar, a folder (all ``*.tar`` below, in natural order), a pattern (``train-{000..127}.tar``, ``*.tar``),
            or a list of these.
        using: how to read, ``"mmap"`` or ``"pread"``; or a reader.
        hidden: take ``dir/.hid`` for a sample ``dir/``, as Energon does.
        index: where an index that is made is kept: ``"beside"``, ``"cache"``, or ``"memory"``, which keeps none.
        faulty: of a tar that is damaged or cut short, ``"error"`` refuses it; ``"skip"`` takes the samples before the
            fault, and tells of it in ``faults``.

    Raises:
        StoreError: nothing is there, or it cannot be read.
        InputError: a tar is faulty, or compressed.
        ConfigError: an unknown option.
    """

    format = "tar"

    def __init__(
        self,
        path: TarPaths,
        *,
        using: str | Reader = "mmap",
        hidden: bool = True,
        index: IndexWhere = "beside",
        faulty: Literal["error", "skip"] = "error",
    ) -> None:
        if index not in get_args(IndexWhere) or faulty not in ("error", "skip"):
            raise ConfigError(
                f"index={index!r}, faulty={faulty!r}: allowed are index='beside', 'cache' or 'memory', and"
                " faulty='error' or 'skip'"
            )
        self._opened = path if isinstance(path, str | os.PathLike) else tuple(path)
        self._options: dict[str, Any] = {"hidden": hidden, "index": index, "faulty": faulty}
        tars = find_tars(path)
        self.path = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{tars[0]} and {len(tars) - 1} more"
        root = common_root(tars)
        names = [os.path.relpath(tar, root) for tar in tars]
        self._indexes = shard_indexes(tars, where=index, hidden=hidden, skip=faulty == "skip")
        counts = np.array([one.count for one in self._indexes], np.int64)
        places = _Places([one.place for one in self._indexes])
        self._shards = TarShards(root, names, counts, using=using, hidden=hidden, index=places)
        self._bounds = np.concatenate(([0], np.cumsum(counts)))
        self._bounds.flags.writeable = False
        self._table: KeyTable | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        """The tars, relative to the deepest folder that holds them all."""
        return self._shards.names

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the samples ``[bounds[s], bounds[s + 1])``."""
        return self._bounds

    @property
    def files(self) -> tuple[Path, ...]:
        """The tars and their indexes."""
        return self._shards.files

    @property
    def shard_files(self) -> tuple[Path, ...]:
        """The tar of each shard."""
        return tuple(Path(self._shards.path(shard)) for shard in range(len(self.shards)))

    @property
    def faults(self) -> dict[str, tuple[TarFault, ...]]:
        """Shard -> what is wrong with it, of those that were taken as far as they could be read."""
        return {name: one.faults for name, one in zip(self.shards, self._indexes, strict=True) if one.faults}

    @property
    def fingerprint(self) -> str:
        """xxh3_128 over the names of the shards, their sizes, numbers of samples, and nine entries of each index.

        It tells data from other data by where samples lie: contents that were changed and kept all lengths are the same
        to it. O(1) a shard.
        """
        hasher = xxhash.xxh3_128(self.format.encode())
        for shard, (name, one) in enumerate(zip(self.shards, self._indexes, strict=True)):
            probes = np.linspace(0, one.count, _PROBES + 1).astype(np.int64)
            facts = (name, one.size, one.count, self._shards.offsets(shard)[probes].tolist())
            hasher.update(repr(facts).encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Samples by number; see `SampleStore.read`. 5 to 8 us a small sample of two parts, in any order."""
        indices = positions(indices, len(self), "sample")
        shards = np.searchsorted(self._bounds, indices, side="right") - 1
        return self._shards.read(shards, indices - self._bounds[shards], parts)

    def key(self, index: int) -> str:
        """The key of one sample."""
        return self._shards.key(*self._locate(index))

    def find(self, key: str) -> int:
        """The number of the sample of a key, the first of several. The first call reads all headers."""
        for number in self._keys().candidates(key):
            if self.key(number) == key:
                return number
        raise KeyError(key)

    def places(self, index: int) -> dict[str, PartPlace]:
        """Where each part of a sample lies."""
        return self._shards.places(*self._locate(index))

    def check(self) -> Iterator[Problem]:
        """Read all headers and yield what is wrong with tars, indexes and keys. Contents have no checksum in a tar."""
        sound = True
        for shard in range(len(self.shards)):
            for problem in self._shards.check(shard):
                sound = False
                yield problem
        try:
            yield from self._repeated_keys()
        except HeadraceError as error:
            if sound:  # else it was told
                yield Problem(path=self.path, place="", message=str(error))

    def close(self) -> None:
        """Let go of the files. Samples handed out stay valid."""
        self._shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._opened, self._shards.reader, self._options, self.path, self.fingerprint)

    def _locate(self, index: int) -> tuple[int, int]:
        (number,) = positions(np.array([index]), len(self), "sample").tolist()
        shard = int(np.searchsorted(self._bounds, number, side="right")) - 1
        return shard, number - int(self._bounds[shard])

    def _keys(self) -> KeyTable:
        if self._table is None:
            keys = (key for shard in range(len(self.shards)) for key in self._shards.keys(shard))
            self._table = KeyTable(keys, len(self))
        return self._table

    def _repeated_keys(self) -> Iterator[Problem]:
        faults = Faults(self.path, "keys")
        for numbers in self._keys().repeated():
            keys = [self.key(number) for number in numbers]
            for first, key in zip(numbers, keys, strict=True):
                same = [number for number, other in zip(numbers, keys, strict=True) if other == key]
                if first == same[0] and len(same) > 1 and faults.to_name(np.array([True])):
                    where = ", ".join(f"{self.shards[shard]} sample {at}" for shard, at in map(self._locate, same[:5]))
                    message = f"key {key!r} is there {len(same)} times: {where}; a key names one sample"
                    yield Problem(path=self.path, place=f"sample {first}", message=message)
        yield from faults.rest()


class _Places:
    """The place of the index of each shard, as a function that pickles."""

    def __init__(self, places: list[Any]) -> None:
        self._places = places

    def __call__(self, shard: int) -> Any:
        return self._places[shard]


def _reopen(opened: TarPaths, using: Reader, options: dict[str, Any], path: str, fingerprint: str) -> TarStore:
    store = TarStore(opened, using=using, **options)
    if store.fingerprint != fingerprint:
        raise StoreError(f"{path}: changed since the store was pickled; open it again")
    return store
