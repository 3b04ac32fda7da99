"""From the names that a user gives to the files that are meant, whether they are local or objects of a store.

expand        a name, braces or a pattern  -> the names that there are, each with what it came from
matching      a pattern                    -> the names that it matches, in natural order
names_below   a folder                     -> the relative names of all files at any depth
real_name     a name                       -> what is the same for all names of the same file
status_of     a path                       -> size, ETag and time, by which a file is known again
folder_of_all files                        -> the folder that holds them all; `names_in` gives their names there
each          files                        -> the results of a function, of objects many at a time
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import ConfigError
from headrace.io.paths import expand_braces, natural_key
from headrace.io.places import AnyPath, is_url, path_at, reader_at
from headrace.io.readers import Reader
from headrace.io.remote import Status

if TYPE_CHECKING:
    from headrace.io.storage import Storage

_AT_ONCE: Final = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


def reader_among(paths: Sequence[str | os.PathLike[str]], storage: Storage | None) -> str | Reader:
    """Return the reader for paths of which some, or none, are URLs; the storage is for those.

    Raises:
        ConfigError: as `reader_at`.
    """
    return reader_at(list(paths), "mmap", storage_for(paths, storage))


def storage_for(paths: str | Sequence[str | os.PathLike[str]], storage: Storage | None) -> Storage | None:
    """Return how the stores of paths are reached: a storage, if any of them is a URL."""
    return storage if any(map(is_url, [paths] if isinstance(paths, str) else paths)) else None


def remote_among(paths: Iterable[str]) -> list[str]:
    """Return those of some paths that are URLs, since it pays to ask for many of them at the same time."""
    return list(filter(is_url, paths))


def expand(argument: str, using: str | Reader) -> Iterator[tuple[str, list[str]]]:
    """Yield each name that an argument stands for, with the files and folders that it matches: none if it is not there.

    An argument that exists stands for itself, since a file may have braces or brackets in its name. Otherwise its
    braces are expanded, and those names that do not exist are patterns.

    Raises:
        ConfigError: braces do not match, or there are too many names.
        OSError: a folder cannot be searched.
        StoreError: the store of a URL cannot be reached, or does not list.
    """
    for name in [argument] if path_at(argument, using).exists() else expand_braces(argument):
        if path_at(name, using).exists():
            yield name, [name]
        else:
            yield name, matching(name, using) if glob.has_magic(name) else []


def matching(pattern: str, using: str | Reader) -> list[str]:
    """Return the names that a pattern matches, by `natural_key`. Names that begin with a dot are left out.

    ``*`` matches files and folders, and ``**`` files at any depth. At a URL both match objects only.
    """
    parts = pattern.split("/")
    first = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    folder = "/".join(parts[:first])
    place = path_at(folder, using)
    if isinstance(place, Path):
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - keeps names as given
        if "**" in pattern:  # it also matches the folders above the files
            found = [name for name in found if not Path(name).is_dir()] or found
    else:
        names = map(str, place.glob("/".join(parts[first:])))
        found = [name for name in names if not _is_hidden(name.removeprefix(f"{place}/"))]
    return sorted(found, key=natural_key)


def names_below(folder: AnyPath) -> Iterator[str]:
    """Yield the relative names of all files at any depth below a folder, without those below a leading dot.

    Links are followed, also broken ones; loops are not. What is no file, such as a FIFO, is found, too, so that whoever
    reads it says so.

    Raises:
        OSError: a folder cannot be read.
        StoreError: the store of a URL cannot be reached, or does not list.
    """
    if isinstance(folder, Path):
        return _local_names(str(folder), "", frozenset())
    return (name for name in folder.names_below() if not _is_hidden(name))


def _local_names(folder: str, relative: str, above: frozenset[str]) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _local_names(entry.path, f"{relative}{entry.name}/", above | {real})
        else:
            yield f"{relative}{entry.name}"


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def folder_of_all(names: Sequence[str]) -> str:
    """Return the deepest folder that holds all of these files.

    Raises:
        ConfigError: some are local, and some are objects, or they are in several buckets.
    """
    if any(map(is_url, names)):
        parts = [name.split("/")[:-1] for name in names]
        shared = [each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False))]
        if len(shared) < 3:
            raise ConfigError(f"{names[0]} and others: files of one store must lie in one bucket: open several stores")
        return "/".join(shared)
    return os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])  # noqa: PTH100, PTH120 - 10,000s


def names_in(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names of files relative to the folder that `folder_of_all` has found."""
    if is_url(folder):
        return [name[len(folder) + 1 :] for name in names]
    return [os.path.relpath(name, folder) for name in names]


def is_found(text: str) -> bool:
    """Return whether a text is the URL of an object, which is not asked for, or the path of something that is there."""
    return is_url(text) or Path(text).exists()


def real_name(name: str | os.PathLike[str]) -> str:
    """Return what stands for a file or folder, whatever name it was given, so that one named twice is noticed."""
    path = path_at(name)
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


def status_of(path: AnyPath) -> Status:
    """Return size, ETag and time of a file or object; of one with an ETag no time.

    A listing and a look-up may round the time of an object differently.

    Raises:
        OSError: there is none, or it cannot be looked up.
        StoreError: the store of a URL cannot be reached.
    """
    if isinstance(path, Path):
        found = path.stat()
        return Status(found.st_size, "", found.st_mtime_ns)
    status = path.objects.known(str(path))
    return status._replace(modified_ns=0) if status.etag else status


def open_found(
    path: str, expected: Status, storage: Storage | None, *, end: int | None = None, in_order: bool = True
) -> RawIOBase:
    """Open a file that was found, unbuffered. Of an object, all reads raise StoreError if it has changed since.

    Args:
        path: the file.
        expected: what it was.
        storage: how the store of a URL is reached.
        end: the byte up to which it is read, as far as that is known.
        in_order: whether it is read in order.

    Raises:
        OSError: it cannot be opened.
    """
    if not is_url(path):
        return Path(path).open("rb", buffering=0)
    made: RawIOBase = resolve_name("headrace.io.objects.reader:ObjectFile")(
        path, expected, storage, end=end, in_order=in_order
    )
    return made


def each(function: Callable[[Item], Result], items: Sequence[Item], paths: Iterable[object]) -> Generator[Result]:
    """Yield the result of a function for each item, in order; 32 are made at a time if any of the paths is a URL.

    Raises:
        Exception: what the function raises for the first item at which it does.
    """
    if not any(map(is_url, paths)):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-find") as threads:
        yield from threads.map(function, items)
