"""`TarStore`, which reads plain tars of samples, as webdataset writes them, with or without an index."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import xxhash

from headrace.errors import ConfigError, HeadraceError
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
"""How many entries of each index go into the fingerprint, in addition to the last one."""


class TarStore(SampleStore):
    """Samples made of the members ``<key>.<part>`` of tars, addressed by number.

    A tar without an up-to-date ``.tar.idx`` is indexed when it is opened, by a pass over its headers that takes about 3
    us a member. The index is kept beside the tar or, if that cannot be written, in ``$HEADRACE_CACHE`` or
    ``~/.cache/headrace``; an existing file beside the tar is never replaced. If a key occurs twice, `find` returns the
    first sample and `check` reports it.

    Args:
        path: a tar, a folder (all ``*.tar`` below, in natural order), a pattern (``train-{000..127}.tar``, ``*.tar``),
            or a list of these.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        hidden: whether ``dir/.hid`` belongs to a sample ``dir/``, as in Energon.
        index: where new indexes are kept: ``"beside"``, ``"cache"``, or ``"memory"``, which writes none.
        faulty: for a tar that is damaged or cut short, ``"error"`` raises an error; ``"skip"`` uses the samples before
            the fault, and lists the fault in ``faults``.

    Raises:
        StoreError: nothing is there, or it cannot be read.
        InputError: a tar is faulty or compressed.
        ConfigError: an option is unknown.

    Example:
        >>> store = headrace.stores.TarStore("shards")
        >>> len(store), sorted(store[0].parts)
        (20, ['jpg', 'txt'])
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
        self._tars = path if isinstance(path, str | os.PathLike) else tuple(path)
        self._options: dict[str, Any] = {"hidden": hidden, "index": index, "faulty": faulty}
        tars = find_tars(path)
        self.path = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{tars[0]} and {len(tars) - 1} more"
        root = common_root(tars)
        names = [os.path.relpath(tar, root) for tar in tars]
        self._indexes = shard_indexes(tars, where=index, hidden=hidden, skip=faulty == "skip")
        counts = np.array([shard.count for shard in self._indexes], np.int64)
        places = [shard.place for shard in self._indexes].__getitem__
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
        """The faults of shards of which only the samples before the fault are used, by shard."""
        return {name: index.faults for name, index in zip(self.shards, self._indexes, strict=True) if index.faults}

    @property
    def fingerprint(self) -> str:
        """xxh3_128 over the names of the shards, their sizes, numbers of samples, and nine entries of each index.

        It identifies data by where samples lie, so it does not notice changed contents if all lengths are the same.
        O(1) a shard.
        """
        hasher = xxhash.xxh3_128(self.format.encode())
        for shard, (name, index) in enumerate(zip(self.shards, self._indexes, strict=True)):
            probes = np.linspace(0, index.count, _PROBES + 1).astype(np.int64)
            facts = (name, index.size, index.count, self._shards.offsets(shard)[probes].tolist())
            hasher.update(repr(facts).encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does. 5 to 8 us a small sample of two parts, in any order."""
        indices = positions(indices, len(self), "sample")
        shards = np.searchsorted(self._bounds, indices, side="right") - 1
        return self._shards.read(shards, indices - self._bounds[shards], parts)

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        return self._shards.key(*self._locate(index))

    def find(self, key: str) -> int:
        """Return the number of the first sample with a key. The first call reads all headers."""
        for number in self._keys().candidates(key):
            if self.key(number) == key:
                return number
        raise KeyError(key)

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part of a sample lies."""
        return self._shards.places(*self._locate(index))

    def check(self) -> Iterator[Problem]:
        """Read all headers and yield what is wrong with tars, indexes and keys. A tar has no checksums of contents."""
        sound = True
        for shard in range(len(self.shards)):
            for problem in self._shards.check(shard):
                sound = False
                yield problem
        try:
            yield from self._repeated_keys()
        except HeadraceError as error:
            if sound:  # otherwise the fault was already reported
                yield Problem(path=self.path, place="", message=str(error))

    def close(self) -> None:
        """Close the files. Samples that were returned stay valid."""
        self._shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(path=self._tars, using=self._shards.reader, **self._options)

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
                    message = f"key {key!r} occurs {len(same)} times: {where}; keys must be unique"
                    yield Problem(path=self.path, place=f"sample {first}", message=message)
        yield from faults.rest()
