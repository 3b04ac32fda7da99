"""Lists of samples that are known to be bad, and `QuarantinedStore`, a store of samples without them.

    Energon datasets          ``exclude`` of the split file, as "SHARD/KEY"; Energon leaves these out too
    tar shards, .jsonl        ``headrace.quarantine.json`` in the folder of the file, for all files in that folder

The latter is JSON with ``format`` ("headrace.quarantine"), ``version`` (1) and ``samples``. Each sample has ``shard``
(the name of its file), ``index`` (its number in the file, counting samples that are left out), ``key`` and ``reason``.
There are no dates in it, so the same samples make the same bytes. At a URL the split file or the list is written again
by a PUT, as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, json_bytes, read_small, remove_file, replace_file
from headrace.stores import energon
from headrace.stores.arguments import IntArray, positions, sample_numbers
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.jsonl import JsonlSamplesStore
from headrace.stores.store import Numbering, PartPlace, Problem, RawSample, SampleStore
from headrace.stores.tar.store import TarStore


class QuarantinedStore(SampleStore):
    """A store without its bad samples; the others are numbered without gaps. Reading costs the same as in the store.

    The samples that are left out are part of the fingerprint, so a run that is resumed after the list has changed is
    refused.

    Args:
        inner: the store.
        left_out: (n,) int64, numbers of the samples to leave out, ascending, without repeats.

    Raises:
        StoreError: no sample is left.
    """

    def __init__(self, inner: SampleStore, left_out: IntArray) -> None:
        self.inner = inner
        self.path = inner.path
        self.left_out = left_out
        self._numbering = Numbering(np.diff(inner.shard_bounds), left_out)
        if not len(self):
            raise StoreError(f"{self.path}: all of its {len(inner):,} samples are left out as bad; none is left")

    @property
    def format(self) -> str:  # type: ignore[override]
        """The format of the inner store."""
        return self.inner.format

    @property
    def num_left_out(self) -> int:
        """Number of samples that are left out."""
        return len(self.left_out)

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards of the inner store."""
        return self.inner.shards

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64, without the samples that are left out."""
        return self._numbering.bounds

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files of the inner store."""
        return self.inner.files

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The readers of the inner store."""
        return self.inner.readers

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the inner store's fingerprint and of the numbers of the samples that are left out."""
        return self._hashed(self.inner.fingerprint)

    @property
    def layout_fingerprint(self) -> str:
        """The same of the inner store's layout."""
        return self._hashed(self.inner.layout_fingerprint)

    def _hashed(self, inner: str) -> str:
        hasher = xxhash.xxh3_128(inner.encode())
        hasher.update(self.left_out.tobytes())
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does."""
        return self.inner.read(self._inner(positions(indices, len(self), f"{self.path}: sample numbers")), parts)

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        return self.inner.key(self._inner_number(index))

    def find(self, key: str) -> int:
        """Return the number of the sample with a key; KeyError if the first sample with this key is left out."""
        number = self.inner.find(key)
        shard = int(np.searchsorted(self.inner.shard_bounds, number, side="right")) - 1
        found = self._numbering.number(shard, number - int(self.inner.shard_bounds[shard]))
        if found is None:
            raise KeyError(f"{self.path}: sample {key!r} is left out as bad")
        return found

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part of a sample lies."""
        return self.inner.places(self._inner_number(index))

    def check(self) -> Iterator[Problem]:
        """Check the inner store, including the samples that are left out."""
        return self.inner.check()

    def close(self) -> None:
        """Close the files of the inner store."""
        self.inner.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self.left_out)

    def _inner(self, numbers: IntArray) -> IntArray:
        shards, indices = self._numbering.places(numbers)
        return self.inner.shard_bounds[shards] + indices

    def _inner_number(self, index: int) -> int:
        return int(self._inner(sample_numbers([index], len(self), self.path))[0])


QUARANTINE_NAME: Final = "headrace.quarantine.json"


class BadSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True):
    """A sample to leave out.

    Attributes:
        shard: the sample's file; in a list its name in the folder, elsewhere the store's name for it.
        index: number of the sample in the file; -1 if unknown, as in Energon's lists.
        key: key of the sample.
        reason: why it is left out; empty if unknown.
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
    """Return the store without the samples that the lists beside its files name; the store itself if they name none.

    This costs O(folders), and one read of the header of each listed sample.

    Raises:
        StoreError: a list is malformed or belongs to other data, or all samples are listed.
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
                    found = f"now has the key {store.key(number)!r}" if begin <= number < end else "does not exist"
                    raise StoreError(
                        f"{file.parent / QUARANTINE_NAME}: sample {bad.index:,} of {bad.shard} is listed with the key"
                        f" {bad.key!r}, but {found}: the file has changed; remove the list, and check again which"
                        " samples are bad"
                    )
                left_out.append(number)
    if not left_out:
        return store
    if isinstance(store, TarStore):
        # A store that was just opened must hold no file open, but the keys above were read. To close its reader, which
        # others may share, would forget what was looked up.
        for path in store.files:
            store.readers[0].release(str(path))
    return QuarantinedStore(store, np.array(sorted(set(left_out)), np.int64))


def bad_samples(store: SampleStore) -> list[BadSample]:
    """Return the samples that are left out of a store, sorted by shard.

    Raises:
        ConfigError: stores of this kind have no list.
        StoreError: a list is malformed.
    """
    if isinstance(store, energon.EnergonStore):
        keys = _splits(store).excluded_keys(set(store.info.shard_counts))
        return sorted(BadSample(shard=shard, key=key) for shard, found in keys.items() for key in found)
    listing = _listing(store)
    return sorted(
        msgspec.structs.replace(bad, shard=name)
        for name, file in dict(zip(listing.shards, shard_files(listing), strict=True)).items()
        for bad in _read(file.parent)
        if bad.shard == file.name
    )


def add_bad_samples(store: SampleStore, bad: Iterable[BadSample]) -> int:
    """Add samples to the list, and return how many were not on it before.

    Shards have the names that the store gives them. The list is written at once. A dataset that is open does not
    change; open it again to leave the samples out.

    Raises:
        ConfigError: stores of this kind have no list, or there is no such shard or sample, or its key is not UTF-8; or
            the store is on a web server.
        OutputError: the list cannot be written.
    """
    bad = list(bad)
    for sample in bad:
        if _is_no_text(f"{sample.shard}/{sample.key}"):
            raise ConfigError(
                f"{store.path}: the key {sample.key!r} in {sample.shard!r} is not UTF-8, which the lists of bad samples"
                " are: no sample was added; rename or remove this one in its file"
            )
    if isinstance(store, energon.EnergonStore):
        return _change_split(store, {f"{sample.shard}/{sample.key}": True for sample in bad})
    listing = _listing(store)
    files = dict(zip(listing.shards, shard_files(listing), strict=True))
    added: dict[AnyPath, list[BadSample]] = {}
    for sample in bad:
        if sample.shard not in files:
            raise ConfigError(
                f"{store.path}: has no shard {sample.shard!r}; its shards are {', '.join(listing.shards[:20])}"
            )
        file = files[sample.shard]
        index = _index(listing, sample)
        added.setdefault(file.parent, []).append(msgspec.structs.replace(sample, shard=file.name, index=index))
    return sum(_write(folder, {_identity(sample): sample for sample in reversed(new)}) for folder, new in added.items())


def remove_bad_samples(store: SampleStore, bad: Iterable[BadSample]) -> int:
    """Remove samples from the list, and return how many were on it. Raises the same errors as `add_bad_samples`."""
    if isinstance(store, energon.EnergonStore):
        return _change_split(store, {f"{sample.shard}/{sample.key}": False for sample in bad})
    listing = _listing(store)
    files = dict(zip(listing.shards, shard_files(listing), strict=True))
    removed = {(files[sample.shard], sample.key) for sample in bad if sample.shard in files}
    number = 0
    for folder in {file.parent for file in files.values()}:
        changes = {
            _identity(sample): None for sample in _read(folder) if (folder / sample.shard, sample.key) in removed
        }
        number += _write(folder, changes) if changes else 0
    return number


def shard_files(store: SampleStore) -> tuple[AnyPath, ...]:
    """Return the file of each shard of a tar store or of a store of a ``.jsonl``."""
    return store.shard_files if isinstance(store, TarStore) else store.files[:1]


def bad_sample(store: SampleStore, number: int, reason: str = "") -> BadSample:
    """Return the sample of a number as an entry for `add_bad_samples`. Raises IndexError if there is none."""
    shard = int(np.searchsorted(store.shard_bounds, number, side="right")) - 1
    return BadSample(shard=store.shards[shard], key=store.key(number), reason=reason)


def _listing(store: SampleStore) -> TarStore | JsonlSamplesStore:
    inner = store.inner if isinstance(store, QuarantinedStore) else store
    if isinstance(inner, TarStore | JsonlSamplesStore):
        return inner
    raise ConfigError(
        f"{store.path}: a {store.format} store has no list of bad samples: remove the files, or, for a join, list the"
        " samples in the datasets that it joins"
    )


def _index(store: SampleStore, bad: BadSample) -> int:
    """Return the number of a sample in its shard."""
    shard = store.shards.index(bad.shard)
    begin, end = store.shard_bounds[shard : shard + 2].tolist()
    try:
        if begin <= (number := store.find(bad.key)) < end:
            return int(number - begin)
        # An earlier shard has the same key.
        return next(at for at in range(end - begin) if store.key(begin + at) == bad.key)
    except (KeyError, StopIteration):
        raise ConfigError(f"{store.path}: {bad.shard} has no sample with the key {bad.key!r}") from None


def _identity(bad: BadSample) -> tuple[str, int, str]:
    return bad.shard, bad.index, bad.key


def _read(folder: AnyPath) -> tuple[BadSample, ...]:
    path = folder / QUARANTINE_NAME
    try:
        data = read_small(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return msgspec.json.decode(data, type=_List).samples
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: not a list of bad samples: {error}; write it with headrace quarantine") from error


def _write(folder: AnyPath, changes: Mapping[tuple[str, int, str], BadSample | None]) -> int:
    """Add samples to a folder's list, or remove those that are None, and return how many entries differ."""
    _look_anew(folder)
    before = {_identity(sample): sample for sample in _read(folder)}
    after = {identity: sample for identity, sample in before.items() if changes.get(identity, sample) is not None}
    after |= {identity: sample for identity, sample in changes.items() if sample is not None and identity not in before}
    path = folder / QUARANTINE_NAME
    if after:
        listed = _List(samples=tuple(after[identity] for identity in sorted(after)))
        if after != before:
            replace_file(path, json_bytes(listed, indent=1))
    elif before:
        remove_file(path)
    return len(before.keys() ^ after.keys())


def _is_no_text(name: str) -> bool:
    """Return whether a name has bytes that are not UTF-8, which Python keeps as surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def _look_anew(folder: AnyPath) -> None:
    """Forget what is known of objects: others may have changed the list since the store was opened."""
    if not isinstance(folder, Path):
        folder.objects.forget()


def _change_split(store: energon.EnergonStore, changes: Mapping[str, bool]) -> int:
    """Change what the split file excludes; its parts do not change, but comments in the file are lost."""
    _look_anew(store.root)
    splits = _splits(store)
    after = (splits.exclude - {name for name, wanted in changes.items() if not wanted}) | {
        name for name, wanted in changes.items() if wanted
    }
    if after != splits.exclude:
        name = str(splits.path.relative_to(store.root / META_FOLDER))
        energon.write_splits(store.root, splits.parts, exclude=sorted(after), split_config=name)
    return len(after ^ splits.exclude)


def _splits(store: energon.EnergonStore) -> energon.Splits:
    try:
        return energon.read_splits(store.root, store.split_config)
    except StoreAwayError:
        raise
    except StoreError as error:
        raise ConfigError(f"{store.path}: excluded samples are listed in the split file: {error}") from error
