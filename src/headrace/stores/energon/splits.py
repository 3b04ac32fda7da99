"""Reads and writes ``.nv-meta/split.yaml``, which lists the shards of each part, and what is excluded.

Names in it may have braces: `headrace.io.expand_braces` reads them, as Energon's ``braceexpand`` does, and `collapse`
writes them.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import msgspec
import yaml

from headrace.config import nearest_or_known
from headrace.errors import ConfigError, StoreError, some
from headrace.io import AnyPath, expand_braces, replace_file
from headrace.stores.energon.config_file import (
    JSON_SPLIT_NAME,
    META_FOLDER,
    SPLIT_NAME,
    Info,
    as_map,
    as_strings,
    read_config,
    refuse_unknown,
)


def expand(pattern: str, where: str) -> list[str]:
    """Return the names that a pattern stands for; as `expand_braces`, but a StoreError names ``where`` it stands."""
    try:
        return expand_braces(pattern)
    except ConfigError as error:
        raise StoreError(f"{where}: {error}") from error


def collapse(names: list[str]) -> list[str]:
    """Return the names, in order, with runs of them as ranges, as Energon writes a split file.

    Within a run, one number in the name counts up by one, always with the same number of digits.

        >>> collapse(["a_08.tar", "a_09.tar", "a_10.tar", "b.tar"])
        ['a_{08..10}.tar', 'b.tar']
    """
    found: list[str] = []
    at = 0
    while at < len(names):
        begin, pieces, slot = at, _pieces(names[at]), None
        at += 1
        last = pieces
        while at < len(names):
            following = _pieces(names[at])
            counted = _counted(last, following)
            if counted is None or slot not in (None, counted):
                break
            slot, last = counted, following
            at += 1
        if slot is None:
            found.append(names[begin])
        else:
            found.append("".join([*pieces[:slot], f"{{{pieces[slot]}..{last[slot]}}}", *pieces[slot + 1 :]]))
    return found


def _pieces(name: str) -> list[str]:
    """Split a name into text and runs of digits, which alternate; the runs have odd indices."""
    return re.split(r"(\d+)", name)


def _counted(before: list[str], after: list[str]) -> int | None:
    """Return the index of the only number that differs, if it is greater by one with the same number of digits."""
    if len(before) != len(after) or before[::2] != after[::2]:
        return None
    # Numbers are compared by value, as in Energon: 01 and 1 are the same number.
    differing = [place for place in range(1, len(before), 2) if int(before[place]) != int(after[place])]
    if len(differing) != 1:
        return None
    place = differing[0]
    counts = len(before[place]) == len(after[place]) and int(after[place]) == int(before[place]) + 1
    return place if counts else None


DEFAULT_PART = "train"
_APART: Final = ("train", "val", "test")
"""Parts that should share no sample."""
_log = logging.getLogger("headrace")


class Splits(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a dataset, with braces expanded.

    Attributes:
        parts: the shards of each part, in order; a shard that is listed twice appears twice.
        exclude: entries that are left out of every part: ``"<shard>"`` a shard, ``"<shard>/<key>"`` one sample.
        path: the file from which this was read.
    """

    parts: dict[str, tuple[str, ...]]
    exclude: frozenset[str]
    path: AnyPath

    def excluded_keys(self, shards: set[str]) -> dict[str, frozenset[str]]:
        """Return the keys that are excluded in each of some shards."""
        # Energon compares `shard/key` as a whole, and both may contain slashes, so every cut that names a shard counts.
        found: dict[str, set[str]] = {}
        for entry in self.exclude:
            at = entry.find("/")
            while at >= 0:
                if entry[:at] in shards:
                    found.setdefault(entry[:at], set()).add(entry[at + 1 :])
                at = entry.find("/", at + 1)
        return {shard: frozenset(keys) for shard, keys in found.items()}


class SplitPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a dataset.

    Attributes:
        listed: its shards in order, including excluded ones; join indices number the shards so.
        shards: its shards in order, without excluded ones.
        keys: for each shard the keys of its samples that are left out.
        exclude: everything that the split file excludes, also in other parts.
    """

    listed: tuple[str, ...]
    shards: tuple[str, ...]
    keys: dict[str, frozenset[str]]
    exclude: frozenset[str] = frozenset()


def read_splits(root: AnyPath, split_config: str | None = None) -> Splits:
    """Read the split file of a dataset: ``split.yaml``, or else ``split.json``; or a file of another name.

    Raises:
        StoreError: the file is missing or malformed.
        ConfigError: the name leaves ``.nv-meta``.
    """
    found = find_splits(root, split_config)
    if found is None:
        name = split_config or SPLIT_NAME
        instead = "" if split_config else f", and there is no {JSON_SPLIT_NAME} either"
        raise StoreError(
            f"{root / META_FOLDER / name}: missing{instead}; a split file lists the shards of train, val and test;"
            " headrace prepare or energon prepare writes it"
        )
    return found


def find_splits(root: AnyPath, split_config: str | None = None) -> Splits | None:
    """Read the split file as `read_splits` does; None if it is missing."""
    names = (split_config,) if split_config else (SPLIT_NAME, JSON_SPLIT_NAME)
    for name in names:
        path = config_path(root, name)
        try:
            found = read_config(path)
        except FileNotFoundError:
            continue
        return _checked(as_map(found, str(path)), path)
    return None


def config_path(root: AnyPath, name: str) -> AnyPath:
    """Return the path of a configuration of a dataset by its name, which comes from the user.

    Raises:
        ConfigError: the name leaves ``.nv-meta``.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"{name!r}: a configuration must be named relative to {root / META_FOLDER}, without ..")
    return root / META_FOLDER / name


def split_part(splits: Splits, name: str, info: Info) -> SplitPart:
    """Return one part of a dataset.

    Raises:
        ConfigError: there is no part of this name.
        StoreError: a shard is not in the info file, or no shards are left.
    """
    if name not in splits.parts:
        raise ConfigError(f"{splits.path}: no part {name!r}{nearest_or_known(name, splits.parts)}")
    listed = splits.parts[name]
    shards = tuple(shard for shard in listed if shard not in splits.exclude)
    for shard in shards:
        if shard not in info.shard_counts:
            close = nearest_or_known(shard, info.shard_counts)
            raise StoreError(
                f"{splits.path}: part {name!r}: shard {shard!r} is not in {info.path}{close}; prepare the dataset again"
            )
    if not shards:
        what = "all of its shards are excluded" if listed else "the split file lists none"
        raise StoreError(f"{splits.path}: part {name!r} has no shards: {what}")
    for message in repeated(splits.parts, name):
        _log.warning("%s: %s", splits.path, message)
    keys = splits.excluded_keys(set(shards))
    return SplitPart(listed=listed, shards=shards, keys=keys, exclude=splits.exclude)


def repeated(parts: Mapping[str, Sequence[str]], name: str) -> list[str]:
    """Say which shards a part lists several times, and which it shares with ``train``, ``val`` or ``test``."""
    found = []
    if twice := [shard for shard, count in Counter(parts[name]).items() if count > 1]:
        found.append(
            f"part {name!r} lists shards several times: {some(twice)}; their samples come as often in an epoch"
        )
    for pair in combinations(_APART, 2):
        if name in pair and (both := set(parts.get(pair[0], ())).intersection(parts.get(pair[1], ()))):
            found.append(f"{' and '.join(pair)} share shards: {some(sorted(both))}; samples are in both")
    return found


def whole(info: Info) -> SplitPart:
    """Return all shards of a dataset as one part, in the order of its info file."""
    shards = tuple(info.shard_counts)
    return SplitPart(listed=shards, shards=shards, keys={})


def write_splits(
    root: AnyPath, parts: Mapping[str, Sequence[str]], *, exclude: Sequence[str] = (), split_config: str | None = None
) -> None:
    """Write a split file, byte for byte as Energon does, with runs of names as ranges.

    Raises:
        OutputError: the system or the store reports an error.
        ConfigError: the name ends in neither ``.yaml`` nor ``.json``, or the folder is on a web server.
    """
    path = config_path(root, split_config or SPLIT_NAME)
    content = {
        "split_parts": {name: collapse([_escaped(shard) for shard in shards]) for name, shards in parts.items()},
        "exclude": [_escaped(name) for name in exclude],
    }
    if path.suffix == ".json":
        data = json.dumps(content, indent=2)
    elif path.suffix == ".yaml":
        data = yaml.dump(content, sort_keys=False)
    else:
        raise ConfigError(f"{path}: the name of a split file must end in .yaml or .json")
    replace_file(path, data.encode())


def _escaped(name: str) -> str:
    """Return the pattern of one name. Energon does not escape braces, so it reads other names than it wrote."""
    return "".join(f"\\{character}" if character in "\\{}" else character for character in name)


def _checked(found: dict[str, object], path: AnyPath) -> Splits:
    where = str(path)
    refuse_unknown(found, ("split_parts", "exclude"), where)
    if "split_parts" not in found:
        raise StoreError(f"{where}: has no split_parts, which must list the shards of each part")
    parts = {}
    for name, patterns in as_map(found["split_parts"], f"{where}: split_parts").items():
        inside = f"{where}: split_parts: {name}"
        parts[name] = tuple(shard for pattern in as_strings(patterns, inside) for shard in expand(pattern, inside))
    inside = f"{where}: exclude"
    exclude = frozenset(
        entry for pattern in as_strings(found.get("exclude", []), inside) for entry in expand(pattern, inside)
    )
    return Splits(parts=parts, exclude=exclude, path=path)
