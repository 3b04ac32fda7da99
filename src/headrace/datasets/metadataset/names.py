"""Names of the entries of a metadataset: their parts of the paths from which orders are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.datasets.metadataset.description import Entry, JoinEntry, MixEntry, PathEntry
from headrace.errors import ConfigError

_SUFFIXES = (".yaml", ".jsonl", ".json", ".h5", ".hdf5", ".tar", ".bin", ".idx")


def names_of(children: Sequence[Entry]) -> tuple[str, ...]:
    """A name for each entry: the one it has, else the last part of its path; further ones of a name get ``-2``, ``-3``.

    They do not depend on entries of other names, so that to add or remove an entry leaves their orders alone.

    Raises:
        ConfigError: two entries say the same name.
    """
    given = [child.name for child in children if child.name is not None]
    for child in children:
        if child.name is not None and given.count(child.name) > 1:
            raise ConfigError(f"{child.where}: the name {child.name!r} is there twice; names are different")
    taken = set(given)
    found = []
    for child in children:
        name = child.name
        if name is None:
            stem = name = _own_name(child)
            number = 1
            while name in taken:
                number += 1
                name = f"{stem}-{number}"
            taken.add(name)
        found.append(name)
    return tuple(found)


def _own_name(entry: Entry) -> str:
    if isinstance(entry, PathEntry):
        return _stem(entry.path)
    if isinstance(entry, JoinEntry):
        return "+".join(_stem(column.path) for column in entry.columns)
    return entry.kind if isinstance(entry, MixEntry) else "source"


def _stem(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2]
    for suffix in _SUFFIXES:
        last = last.removesuffix(suffix)
    return last if last.strip(".") else "source"
