"""`FilesystemStore`, which reads the files of a folder as samples, grouped by name like the members of a tar."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader, check_whole, natural_key, path_at, reader, safe_relative
from headrace.stores.arguments import IntArray, positions, sample_numbers
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.energon.sqlite_index import SqliteIndex
from headrace.stores.store import PartPlace, Problem, RawSample, SampleStore
from headrace.stores.tar.members import sample_part

SHARD: Final = "."
"""The name of the only shard: the folder itself."""


class _Listing(msgspec.Struct, frozen=True):
    """The samples of a folder: their keys, in order, and the file of each of their parts."""

    keys: list[str]
    parts: list[dict[str, str]]
    numbers: dict[str, int]


class FilesystemStore(SampleStore):
    """A folder of files: ``cats/0017.jpg`` and ``cats/0017.txt`` are the parts ``jpg`` and ``txt`` of ``cats/0017``.

    Samples are in the natural order of their names. `part` opens one file by its name without listing the folder.
    Reading samples needs a list of the folder, which is made at the first use. Hidden files and folders, and links that
    lead out of the folder, are left out.

    Args:
        path: the folder.
        using: ``"pread"`` or ``"mmap"``, or a `Reader`.

    Raises:
        StoreError: the path is not a folder.

    Example:
        >>> import pathlib
        >>> pathlib.Path("files").mkdir()
        >>> _ = pathlib.Path("files/0001.txt").write_text("a note")
        >>> headrace.stores.FilesystemStore("files")[0].parts
        {'txt': b'a note'}
    """

    format = "files"

    def __init__(self, path: str | os.PathLike[str], *, using: str | Reader = "pread") -> None:
        self.path = os.fspath(path)
        self._reader = reader(using)
        self.root = check_whole(path_at(path, using), "a folder of files with media metadata")
        if not self.root.is_dir():
            raise StoreError(f"{self.path}: not a folder; expected a folder of files")
        self._real = os.path.realpath(self.root)
        self._listed: _Listing | None = None
        index = self.root / META_FOLDER / INDEX_NAME
        self.index = SqliteIndex(index) if index.is_file() else None

    @property
    def shards(self) -> tuple[str, ...]:
        """One shard, the folder itself."""
        return (SHARD,)

    @property
    def shard_bounds(self) -> IntArray:
        """(2,) int64: 0 and the number of samples. The first use lists the folder."""
        return np.array([0, len(self._listing.keys)])

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of all samples, and the index of media metadata."""
        index = () if self.index is None else (self.index.path,)
        return (*index, *(self.root / name for parts in self._listing.parts for name in parts.values()))

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the names and sizes of the files. O(files), since a folder has no list of them."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for parts in self._listing.parts:
            for name in parts.values():
                hasher.update(repr((name, self._stat(name).st_size)).encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does."""
        found = []
        for index in positions(indices, len(self), f"{self.path}: sample numbers").tolist():
            names = self._listing.parts[index]
            content = {part: self._bytes(name) for part, name in names.items() if parts is None or part in parts}
            found.append(RawSample(self._listing.keys[index], SHARD, index, content))
        return found

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        return self._listing.keys[int(sample_numbers([index], len(self), self.path)[0])]

    def find(self, key: str) -> int:
        """Return the number of the sample with a key, from the list of the folder."""
        number = self._listing.numbers.get(key)
        if number is None:
            raise KeyError(f"{self.path}: no sample {key!r}")
        return number

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return the whole file of each part."""
        names = self._listing.parts[int(sample_numbers([index], len(self), self.path)[0])]
        return {part: PartPlace(str(self.root / name), 0, self._stat(name).st_size) for part, name in names.items()}

    def part(self, name: str) -> bytes:
        """Return the bytes of a file by its name relative to the folder.

        Raises:
            KeyError: there is no such file.
            StoreError: the name or a link leads out of the folder, or the file cannot be read.
        """
        safe_relative(name)
        if not (self.root / name).is_file():
            raise KeyError(f"{self.path}: no file {name!r}")
        return self._bytes(name)

    def media_metadata(self, name: str) -> dict[str, Any] | None:
        """Return the metadata of a media file by its name, None if it has none; see `SqliteIndex.media_metadata`.

        Raises:
            StoreError: the folder has no metadata of media.
        """
        if self.index is None:
            raise StoreError(
                f"{self.root / META_FOLDER / INDEX_NAME}: missing; gather media metadata with energon prepare-media"
            )
        return self.index.media_metadata(name)

    def check(self) -> Iterator[Problem]:
        """Read every file, and report metadata of media files that do not exist."""
        for parts in self._listing.parts:
            for name in parts.values():
                try:
                    self._bytes(name)
                except StoreError as error:
                    message = str(error)
                    yield Problem(path=str(self.root / name), place="", message=message.partition(": ")[2] or message)
        if self.index is not None and self.index.has_media:
            for row in self.index.media():
                if not (self.root / row.entry).is_file():
                    message = "media_metadata names a file that does not exist"
                    yield Problem(path=str(self.index.path), place=row.entry, message=message)

    def close(self) -> None:
        """Close the files and the index."""
        self._reader.close()
        if self.index is not None:
            self.index.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._listed is None:  # the folder is not listed only to compare it later
            return partial(type(self), self.path, using=self._reader), ()
        return self._reduced(path=self.path, using=self._reader)

    @property
    def _listing(self) -> _Listing:
        if self._listed is None:
            self._listed = _list(self.root, self._real)
        return self._listed

    def _bytes(self, name: str) -> bytes:
        place = str(self.root / name)
        _check_inside(place, self._real, name)
        return self._reader.read(place, 0, self._reader.size(place)).tobytes()

    def _stat(self, name: str) -> os.stat_result:
        try:
            return (self.root / name).stat()
        except OSError as error:
            raise StoreError(f"{self.root / name}: cannot be read: {error.strerror or error}") from error


def _check_inside(place: str, real: str, name: str) -> None:
    found = os.path.realpath(place)
    if not found.startswith(real.rstrip("/") + "/"):
        raise StoreError(f"{place}: {name!r} leads out of its folder, to {found}; copy the file into the folder")


def _list(root: Path, real: str) -> _Listing:
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else f"{inside}/"
        names += [prefix + file for file in files if not file.startswith(".")]
    names.sort(key=natural_key)
    found: dict[str, dict[str, str]] = {}
    for name in names:
        split = sample_part(name)
        place = root / name
        if split is None or (place.is_symlink() and not os.path.realpath(place).startswith(real.rstrip("/") + "/")):
            continue
        found.setdefault(split[0], {})[split[1]] = name
    return _Listing(list(found), list(found.values()), {key: number for number, key in enumerate(found)})
