"""Lists of samples that are known to be bad, which stores leave out, see `SampleStore.without`.

    Energon datasets          ``exclude`` of the split file, as "SHARD/KEY"; Energon leaves these out too
    tar shards, .jsonl        ``headrace.quarantine.json`` in the folder of the file, for all files in that folder

The latter is JSON with ``format`` ("headrace.quarantine"), ``version`` (1) and ``samples``. Each sample has ``shard``
(the name of its file), ``index`` (its number in the file, counting samples that are left out), ``key`` and ``reason``.
There are no dates in it, so the same samples make the same bytes. At a URL the split file or the list is written again
by a PUT, as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError, StoreAwayError, StoreError
from headrace.io import AnyPath, json_bytes, read_small, remove_file, replace_file
from headrace.stores import energon
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.jsonl import JsonlSamplesStore
from headrace.stores.store import SampleStore
from headrace.stores.tar.store import TarStore

Listed = TarStore | JsonlSamplesStore
"""A store beside whose files such a list lies."""

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


def quarantined(store: Listed) -> Listed:
    """Return the store without the samples that the lists beside its files name; the store itself if they name none.

    This costs O(folders), and one read of the header of each listed sample.

    Raises:
        StoreError: a list is malformed or belongs to other data, or all samples are listed.
    """
    files = _files(store)
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
    return store.without(np.array(sorted(set(left_out)), np.int64))


def bad_samples(store: SampleStore) -> list[BadSample]:
    """Return the samples that are left out of a store, sorted by shard.

    Raises:
        ConfigError: stores of this kind have no list.
        StoreError: a list is malformed.
    """
    if isinstance(store, energon.EnergonStore):
        keys = _splits(store).excluded_keys(set(store.info.shard_counts))
        return sorted(BadSample(shard=shard, key=key) for shard, found in keys.items() for key in found)
    files = _file_of_shards(store)
    return sorted(
        msgspec.structs.replace(bad, shard=name)
        for name, file in files.items()
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
    return _change(store, bad, is_bad=True)


def remove_bad_samples(store: SampleStore, bad: Iterable[BadSample]) -> int:
    """Remove samples from the list, and return how many were on it. Raises the same errors as `add_bad_samples`."""
    return _change(store, bad, is_bad=False)


def _change(store: SampleStore, samples: Iterable[BadSample], *, is_bad: bool) -> int:
    """Add samples to the lists, or remove them, and return how many entries have changed."""
    if isinstance(store, energon.EnergonStore):
        return _change_split(store, {f"{sample.shard}/{sample.key}" for sample in samples}, is_bad)
    files = _file_of_shards(store)
    changed: dict[AnyPath, list[BadSample]] = {}
    for sample in samples:
        if sample.shard in files:
            file = files[sample.shard]
            index = _index(store.whole, sample) if is_bad else sample.index
            entry = msgspec.structs.replace(sample, shard=file.name, index=index)
            changed.setdefault(file.parent, []).append(entry)
        elif is_bad:
            raise ConfigError(
                f"{store.path}: has no shard {sample.shard!r}; its shards are {', '.join(store.shards[:20])}"
            )
    return sum(_write(folder, entries, is_bad) for folder, entries in changed.items())


def bad_sample(store: SampleStore, number: int, reason: str = "") -> BadSample:
    """Return the sample of a number as an entry for `add_bad_samples`. Raises IndexError if there is none."""
    shard = int(np.searchsorted(store.shard_bounds, number, side="right")) - 1
    return BadSample(shard=store.shards[shard], key=store.key(number), reason=reason)


def _file_of_shards(store: SampleStore) -> dict[str, AnyPath]:
    """Return the file of each shard. Raises ConfigError for a store that has no list."""
    if not isinstance(store, Listed):
        raise ConfigError(
            f"{store.path}: a {store.format} store has no list of bad samples: remove the files, or, for a join, list"
            " the samples in the datasets that it joins"
        )
    return dict(zip(store.shards, _files(store), strict=True))


def _files(store: Listed) -> tuple[AnyPath, ...]:
    return store.shard_files if isinstance(store, TarStore) else store.files[:1]


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


def _write(folder: AnyPath, entries: Sequence[BadSample], is_bad: bool) -> int:
    """Add samples to a folder's list, or remove those with their keys, and return how many entries have changed."""
    _look_anew(folder)
    before = {_identity(sample): sample for sample in _read(folder)}
    if is_bad:
        after = {**{_identity(entry): entry for entry in reversed(entries)}, **before}
    else:
        good = {(entry.shard, entry.key) for entry in entries}
        after = {identity: one for identity, one in before.items() if (one.shard, one.key) not in good}
    path = folder / QUARANTINE_NAME
    if not after and before:
        remove_file(path)
    elif after != before:
        listed = _List(samples=tuple(after[identity] for identity in sorted(after)))
        replace_file(path, json_bytes(listed, indent=1))
    return len(before.keys() ^ after.keys())


def _is_no_text(name: str) -> bool:
    """Return whether a name has bytes that are not UTF-8, which Python keeps as surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def _look_anew(folder: AnyPath) -> None:
    """Forget what is known of objects: others may have changed the list since the store was opened."""
    if not isinstance(folder, Path):
        folder.objects.forget()


def _change_split(store: energon.EnergonStore, names: set[str], is_bad: bool) -> int:
    """Change what the split file excludes; its parts do not change, but comments in the file are lost."""
    _look_anew(store.root)
    splits = _splits(store)
    after = splits.exclude | names if is_bad else splits.exclude - names
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
