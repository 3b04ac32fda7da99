"""Known bad samples: their lists, and a store of samples without them.

    Energon datasets          ``exclude`` of the split file, as "SHARD/KEY": Energon leaves them out, too
    tar shards, .jsonl        ``headrace.quarantine.json`` in the folder of the file, for all files there

The second is JSON: ``format`` ("headrace.quarantine"), ``version`` (1) and ``samples``, each with ``shard``, its file
in the folder, ``index``, its number there, counted with those that are left out, ``key`` and ``reason``. No dates: the
same samples make the same bytes.

A store of samples without those that are known to be bad.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreError
from headrace.io import atomic_write
from headrace.stores.arguments import IntArray, positions, sample_numbers
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.jsonl import JsonlSamplesStore
from headrace.stores.energon.lookup import Numbering
from headrace.stores.energon.splits import Splits, excluded_keys, read_splits, write_splits
from headrace.stores.energon.store import EnergonStore
from headrace.stores.sample_store import PartPlace, RawSample, SampleStore
from headrace.stores.store import Problem
from headrace.stores.tar.store import TarStore


class QuarantinedStore(SampleStore):
    """The samples of a store that are not left out, numbered without gaps. Reading costs what it costs there.

    What is left out is part of the fingerprint: a run that goes on after a change is told so.

    Args:
        inner: the store.
        left_out: (n,) int64, numbers of its samples, rising, each once.

    Raises:
        StoreError: nothing is left.
    """

    def __init__(self, inner: SampleStore, left_out: IntArray) -> None:
        self.inner = inner
        self.path = inner.path
        self.left_out = left_out
        self._numbering = Numbering(np.diff(inner.shard_bounds), left_out)
        if not len(self):
            raise StoreError(f"{self.path}: all of its {len(inner):,} samples are left out as bad; nothing is there")

    @property
    def format(self) -> str:  # type: ignore[override]
        """That of the store."""
        return self.inner.format

    @property
    def num_left_out(self) -> int:
        """Samples that are left out."""
        return len(self.left_out)

    @property
    def shards(self) -> tuple[str, ...]:
        """Those of the store."""
        return self.inner.shards

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64, without the samples that are left out."""
        return self._numbering.bounds

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the store."""
        return self.inner.files

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of that of the store, and of what is left out."""
        hasher = xxhash.xxh3_128(self.inner.fingerprint.encode())
        hasher.update(self.left_out.tobytes())
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """See `SampleStore.read`."""
        return self.inner.read(self._inner(positions(indices, len(self), f"{self.path}: sample numbers")), parts)

    def key(self, index: int) -> str:
        """The key of a sample."""
        return self.inner.key(self._one(index))

    def find(self, key: str) -> int:
        """The number of the sample of a key; KeyError where the first of that key is left out."""
        number = self.inner.find(key)
        shard = int(np.searchsorted(self.inner.shard_bounds, number, side="right")) - 1
        found = self._numbering.number(shard, number - int(self.inner.shard_bounds[shard]))
        if found is None:
            raise KeyError(f"{self.path}: sample {key!r} is left out as bad")
        return found

    def places(self, index: int) -> dict[str, PartPlace]:
        """Where each part of a sample lies."""
        return self.inner.places(self._one(index))

    def check(self) -> Iterator[Problem]:
        """Check the store, with the samples that are left out."""
        return self.inner.check()

    def close(self) -> None:
        """Let go of the files."""
        self.inner.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self.left_out)

    def _inner(self, numbers: IntArray) -> IntArray:
        shards, indices = self._numbering.places(numbers)
        return self.inner.shard_bounds[shards] + indices

    def _one(self, index: int) -> int:
        return int(self._inner(sample_numbers([index], len(self), self.path))[0])


QUARANTINE_NAME: Final = "headrace.quarantine.json"


class BadSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True):
    """A sample that is to be left out.

    Attributes:
        shard: its file; in a list by its name in the folder, elsewhere as the store names it.
        index: its number in the file; -1 where that is not known, as in Energon's lists.
        key: its key.
        reason: why; "" where that is not known.
    """

    shard: str
    index: int = -1
    key: str
    reason: str = ""


class _List(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["headrace.quarantine"] = "headrace.quarantine"
    version: Literal[1] = 1
    samples: tuple[BadSample, ...]


def quarantined(store: TarStore | JsonlSamplesStore) -> SampleStore:
    """The store without the samples that the lists beside its files name; itself where there are none.

    O(folders), and a look at the head of each of these samples.

    Raises:
        StoreError: a list is malformed or of other data; all samples are listed.
    """
    files = shard_files(store)
    lists = {folder: _read(folder) for folder in {file.parent for file in files}}
    if not any(lists.values()):
        return store
    left_out = []
    for shard, file in enumerate(files):
        begin, end = store.shard_bounds[shard : shard + 2].tolist()
        for bad in lists[file.parent]:
            if bad.shard == file.name:
                number = begin + bad.index
                if not begin <= number < end or store.key(number) != bad.key:
                    found = f"is {store.key(number)!r}" if begin <= number < end else "is not there"
                    raise StoreError(
                        f"{file.parent / QUARANTINE_NAME}: sample {bad.index:,} of {bad.shard}, of the key {bad.key!r},"
                        f" {found}: the file has changed; check what is bad anew, and remove the list"
                    )
                left_out.append(number)
    if not left_out:
        return store
    # An opened store has no file open.
    store.close()
    return QuarantinedStore(store, np.array(sorted(set(left_out)), np.int64))


def bad_samples(store: SampleStore) -> list[BadSample]:
    """Those that are left out of a store, by shard.

    Raises:
        ConfigError: such a store has no list.
        StoreError: a list is malformed.
    """
    if isinstance(store, EnergonStore):
        exclude = _splits(store).exclude
        keys = excluded_keys(exclude, set(store.info.shard_counts))
        return sorted(BadSample(shard=shard, key=key) for shard, found in keys.items() for key in found)
    listing = _listing(store)
    return sorted(
        msgspec.structs.replace(bad, shard=name)
        for name, file in dict(zip(listing.shards, shard_files(listing), strict=True)).items()
        for bad in _read(file.parent)
        if bad.shard == file.name
    )


def add_bad_samples(store: SampleStore, bad: Iterable[BadSample]) -> int:
    """Put samples on the list; how many were not there. Open the dataset again to have it without them.

    Shards are as the store names them. The file is written at once; who has the dataset open sees no change.

    Raises:
        ConfigError: such a store has no list, or no such shard or sample.
        OutputError: it cannot be written.
    """
    if isinstance(store, EnergonStore):
        return _change_split(store, {f"{one.shard}/{one.key}": True for one in bad})
    listing = _listing(store)
    files = dict(zip(listing.shards, shard_files(listing), strict=True))
    added: dict[Path, list[BadSample]] = {}
    for one in bad:
        if one.shard not in files:
            raise ConfigError(f"{store.path}: has no shard {one.shard!r}")
        file = files[one.shard]
        index = _index(listing, one)
        added.setdefault(file.parent, []).append(msgspec.structs.replace(one, shard=file.name, index=index))
    return sum(_write(folder, {_sign(one): one for one in reversed(new)}) for folder, new in added.items())


def remove_bad_samples(store: SampleStore, bad: Iterable[BadSample]) -> int:
    """Take samples off the list again; how many were there. Raises as `add_bad_samples`."""
    if isinstance(store, EnergonStore):
        return _change_split(store, {f"{one.shard}/{one.key}": False for one in bad})
    listing = _listing(store)
    files = dict(zip(listing.shards, shard_files(listing), strict=True))
    gone = {(files[one.shard], one.key) for one in bad if one.shard in files}
    number = 0
    for folder in {file.parent for file in files.values()}:
        signs = {_sign(one): None for one in _read(folder) if (folder / one.shard, one.key) in gone}
        number += _write(folder, signs) if signs else 0
    return number


def shard_files(store: SampleStore) -> tuple[Path, ...]:
    """The file of each shard."""
    return store.shard_files if isinstance(store, TarStore) else store.files[:1]


def bad_sample(store: SampleStore, number: int, reason: str = "") -> BadSample:
    """The sample of a number, of which `add_bad_samples` can be told. Raises IndexError: there is none."""
    shard = int(np.searchsorted(store.shard_bounds, number, side="right")) - 1
    return BadSample(shard=store.shards[shard], key=store.key(number), reason=reason)


def _listing(store: SampleStore) -> TarStore | JsonlSamplesStore:
    inner = store.inner if isinstance(store, QuarantinedStore) else store
    if isinstance(inner, TarStore | JsonlSamplesStore):
        return inner
    raise ConfigError(
        f"{store.path}: a {store.format} store has no list of bad samples: take the files away, or of a join list them"
        " in the datasets that it joins"
    )


def _index(store: SampleStore, bad: BadSample) -> int:
    """The number of a sample in its shard."""
    shard = store.shards.index(bad.shard)
    begin, end = store.shard_bounds[shard : shard + 2].tolist()
    try:
        if begin <= (number := store.find(bad.key)) < end:
            return int(number - begin)
        # A key that an earlier shard has, too.
        return next(at for at in range(end - begin) if store.key(begin + at) == bad.key)
    except (KeyError, StopIteration):
        raise ConfigError(f"{store.path}: {bad.shard} has no sample with the key {bad.key!r}") from None


def _sign(bad: BadSample) -> tuple[str, int, str]:
    return bad.shard, bad.index, bad.key


def _read(folder: Path) -> tuple[BadSample, ...]:
    path = folder / QUARANTINE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return msgspec.json.decode(data, type=_List).samples
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: no list of bad samples: {error}; write it with headrace quarantine") from error


def _write(folder: Path, changes: Mapping[tuple[str, int, str], BadSample | None]) -> int:
    """Add or, with None, remove; how many differ."""
    before = {_sign(one): one for one in _read(folder)}
    after = {sign: one for sign, one in before.items() if changes.get(sign, one) is not None}
    after |= {sign: one for sign, one in changes.items() if one is not None and sign not in before}
    path = folder / QUARANTINE_NAME
    if after:
        listed = _List(samples=tuple(after[sign] for sign in sorted(after)))
        if after != before:
            atomic_write(path, msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n")
    elif before:
        path.unlink()
    return len(before.keys() ^ after.keys())


def _change_split(store: EnergonStore, changes: Mapping[str, bool]) -> int:
    """Change what the split file excludes; its parts are written as they are, comments are lost."""
    splits = _splits(store)
    after = (splits.exclude - {name for name, wanted in changes.items() if not wanted}) | {
        name for name, wanted in changes.items() if wanted
    }
    if after != splits.exclude:
        name = str(splits.path.relative_to(store.root / META_FOLDER))
        write_splits(store.root, splits.parts, exclude=sorted(after), split_config=name)
    return len(after ^ splits.exclude)


def _splits(store: EnergonStore) -> Splits:
    try:
        return read_splits(store.root, store.split_config)
    except StoreError as error:
        raise ConfigError(f"{store.path}: what is left out stands in the split file: {error}") from error
