"""`FilesystemStore`, which reads the files of a folder as samples, grouped by name like the members of a tar.

At a URL the folder is listed once, which also says what each object is, and each file is read by a GET.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader, RemotePath, can_list, natural_key, reader, reader_at, safe_relative
from headrace.stores.arguments import IntArray, positions, sample_numbers
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.energon.sqlite_index import SqliteIndex
from headrace.stores.kept_arrays import with_ends
from headrace.stores.store import Extents, Numbering, PartPlace, Problem, RawSample, SampleStore
from headrace.stores.tar.members import sample_part

_log = logging.getLogger("headrace")

_KNOWN_FILES: Final = 64
SHARD: Final = "."
"""The name of the only shard: the folder itself."""


_CHECKED_FILES: Final = 32
_CHECKED_BYTES: Final = 64 << 20
"""How much `FilesystemStore.check` reads at a time, as far as one file is not more."""


class _Listing(msgspec.Struct, frozen=True):
    """The samples of a folder: their keys, in order, and the file of each of their parts.

    ``names`` has the files of all samples; those of sample i are ``names[bounds[i]:bounds[i + 1]]``.
    """

    keys: list[str]
    parts: list[dict[str, str]]
    numbers: dict[str, int]
    names: list[str]
    bounds: IntArray


class FilesystemStore(SampleStore):
    """A folder of files: ``cats/0017.jpg`` and ``cats/0017.txt`` are the parts ``jpg`` and ``txt`` of ``cats/0017``.

    Samples are in the natural order of their names. `part` opens one file by its name without listing the folder.
    Reading samples needs a list of the folder, which is made at the first use. Hidden files and folders, and links that
    lead out of the folder, are left out.

    The folder may be a URL; the list is then one LIST, a page for each thousand files, and takes some 500 bytes a file.
    A web server cannot list: there the samples consist of the files of which ``.nv-meta/index.sqlite`` has metadata,
    and a HEAD asks for each.

    Args:
        path: the folder, or the URL of one; that of a folder on a web server ends in a slash.
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
        self._reader = reader(reader_at(path, using))
        self.root = self._reader.path_at(self.path)
        index = self.root / META_FOLDER / INDEX_NAME
        self.index = SqliteIndex(index) if index.is_file() else None
        if self.index is None and not self.root.is_dir():
            more = "" if can_list(self.root) else ", whose URL ends in a slash on a web server"
            raise StoreError(f"{self.path}: not a folder; expected a folder of files{more}")
        self._real = os.path.realpath(self.root) if isinstance(self.root, Path) else None
        self._listed: _Listing | None = None
        self._sizes: IntArray | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        """One shard, the folder itself."""
        return (SHARD,)

    @cached_property
    def _numbering(self) -> Numbering:  # type: ignore[override]
        """The number of samples. The first use lists the folder."""
        return Numbering(np.array([len(self._listing.keys)]))

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """All files of all samples, and the index of media metadata."""
        index = () if self.index is None else (self.index.path,)
        return (*index, *(self.root / name for name in self._listing.names))

    @property
    def data_files(self) -> tuple[str, ...]:
        """All files of all samples, in the order of the samples."""
        return tuple(map(self._place, self._listing.names))

    def data_sizes(self) -> IntArray:
        """(data_files,) int64: the bytes of each file. The first use looks at every local file."""
        if self._sizes is None:
            self._sizes = np.array([self._stat(name).st_size for name in self._listing.names], dtype=np.int64)
        return self._sizes

    def data_file(self, file: int) -> tuple[Reader, str]:
        """Return a file, and what reads it."""
        return self._reader, self._place(self._listing.names[file])

    def extents(self, indices: IntArray) -> Extents:
        """Return the whole file of each part."""
        numbers = positions(indices, len(self), f"{self.path}: sample numbers")
        bounds = self._listing.bounds
        counts = np.diff(bounds)[numbers]
        rows = np.repeat(np.arange(len(numbers), dtype=np.int64), counts)
        ends = np.cumsum(counts)
        files = np.arange(len(rows), dtype=np.int64) + np.repeat(bounds[numbers] - (ends - counts), counts)
        return Extents(self, rows, files, np.zeros_like(files), self.data_sizes()[files])

    @property
    def contents_fingerprint(self) -> str:
        """xxh3_128 of ``fingerprint``, and of the first and last 4 KiB of 64 files, spread evenly.

        At a URL, where each of these would be a GET, ``fingerprint`` itself.
        """
        if isinstance(self.root, RemotePath):
            return self.fingerprint
        files = self.data_files
        numbers = np.unique(np.linspace(0, len(files) - 1, min(len(files), _KNOWN_FILES)).astype(int))
        return with_ends(self, [files[number] for number in numbers], self._reader)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the names and sizes of the files. O(files), since a folder has no list of them."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for name, size in zip(self._listing.names, self.data_sizes().tolist(), strict=True):
            hasher.update(repr((name, size)).encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does."""
        numbers = positions(indices, len(self), f"{self.path}: sample numbers").tolist()
        wanted = [
            {part: name for part, name in self._listing.parts[index].items() if parts is None or part in parts}
            for index in numbers
        ]
        contents = iter(self._contents(name for names in wanted for name in names.values()))
        return [
            RawSample(self._listing.keys[index], SHARD, index, {part: next(contents) for part in names})
            for index, names in zip(numbers, wanted, strict=True)
        ]

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
        return {part: PartPlace(self._place(name), 0, self._stat(name).st_size) for part, name in names.items()}

    def part(self, name: str) -> bytes:
        """Return the bytes of a file by its name relative to the folder.

        Raises:
            KeyError: there is no such file.
            StoreError: the name or a link leads out of the folder, or the file cannot be read.
        """
        safe_relative(name)
        if not (self.root / name).is_file():
            raise KeyError(f"{self.path}: no file {name!r}")
        return self._contents([name])[0]

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
        names: list[str] = []
        num_bytes = 0
        for name in self._listing.names:
            try:
                size = self._stat(name).st_size
            except StoreError as error:
                yield Problem.of(self._place(name), error)
                continue
            if names and (len(names) == _CHECKED_FILES or num_bytes + size > _CHECKED_BYTES):
                yield from self._unreadable(names)
                names, num_bytes = [], 0
            names.append(name)
            num_bytes += size
        yield from self._unreadable(names)
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
            self._listed = _grouped(self._names())
        return self._listed

    def _names(self) -> Iterable[str]:
        """Return the names of all files that are not hidden."""
        if isinstance(self.root, Path):
            return _local_names(self.root, str(self._real))
        if can_list(self.root):
            return [name for name in self.root.names_below() if _is_plain(name)]
        rows = [] if self.index is None or not self.index.has_media else self.index.media()
        found = [safe_relative(row.entry) for row in rows]
        names = [name for name in found if _is_plain(name) and sample_part(name) is not None]
        if not names:
            raise StoreError(
                f"{self.path}: a web server does not list its files, and {self.root / META_FOLDER / INDEX_NAME} names"
                " none: files can be read by their names only. Gather media metadata with headrace prepare energon"
                " --media-only before the upload, or put the folder into an object store"
            )
        _log.warning(
            "%s: a web server does not list its files; the samples consist of the %d files with media metadata, without"
            " others beside them, such as texts",
            *(self.path, len(names)),
        )
        # Their sizes are needed sooner or later, and to ask for one after another takes long.
        self._reader.look_up(list(map(self._place, names)))
        return names

    def _contents(self, names: Iterable[str]) -> list[bytes]:
        places = []
        for name in names:
            places.append(self._place(name))
            if self._real is not None:
                _check_inside(places[-1], self._real, name)
        # Each array goes as soon as it is copied, so that a batch of large files does not take twice its size.
        found = self._reader.read_files(places)[::-1]
        return [found.pop().tobytes() for _ in places]

    def _unreadable(self, names: list[str]) -> Iterator[Problem]:
        """Read some files together, and if that fails one by one, and yield those that cannot be read."""
        try:
            self._contents(names)
        except StoreError:
            for name in names:
                try:
                    self._contents([name])
                except StoreError as error:
                    yield Problem.of(self._place(name), error)

    def _place(self, name: str) -> str:
        return str(self.root / name)

    def _stat(self, name: str) -> Any:
        try:
            return (self.root / name).stat()
        except OSError as error:
            raise StoreError(f"{self.root / name}: cannot be read: {error.strerror or error}") from error


def _is_plain(name: str) -> bool:
    """Return whether neither a file nor a folder around it is hidden."""
    return not any(part.startswith(".") for part in name.split("/"))


def _check_inside(place: str, real: str, name: str) -> None:
    found = os.path.realpath(place)
    if not _is_inside(found, real):
        raise StoreError(f"{place}: {name!r} leads out of its folder, to {found}; copy the file into the folder")


def _is_inside(place: str, folder: str) -> bool:
    return place.startswith(folder.rstrip("/") + "/")


def _local_names(root: Path, real: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else f"{inside}/"
        for file in files:
            place = Path(folder, file)
            if not (file.startswith(".") or (place.is_symlink() and not _is_inside(os.path.realpath(place), real))):
                yield prefix + file


def _grouped(names: Iterable[str]) -> _Listing:
    found: dict[str, dict[str, str]] = {}
    for name in sorted(names, key=natural_key):
        split = sample_part(name)
        if split is not None:
            found.setdefault(split[0], {})[split[1]] = name
    return _Listing(
        keys=list(found),
        parts=list(found.values()),
        numbers={key: number for number, key in enumerate(found)},
        names=[name for parts in found.values() for name in parts.values()],
        bounds=np.cumsum([0, *map(len, found.values())], dtype=np.int64),
    )
