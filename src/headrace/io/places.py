"""Places: local paths, and URLs of objects in stores such as S3.

A place travels as a string, or as whatever path the caller gave. Only where a file system is asked for something does
it become a path: `pathlib.Path` for a local one, and for a URL a `RemotePath`, which has the same methods. The code
that talks to object stores is in `headrace.io.objects`, and is loaded when the first URL comes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.io.paths import check_kind
from headrace.io.readers import Reader

if TYPE_CHECKING:
    from headrace.io.remote import RemotePath
    from headrace.io.storage import Storage

    AnyPath = Path | RemotePath
else:
    AnyPath = Path

SCHEMES: Final = ("s3://", "gs://", "az://", "http://", "https://")
"""What the URL of an object begins with."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ONE_SLASH: Final = re.compile(r"(s3|gs|az|https?):/(?!/)", re.IGNORECASE)
_OBJECTS: Final = "headrace.io.objects"
_REMOTE: Final = "headrace.io.remote"


def is_url(path: object) -> bool:
    """Return whether a path is the URL of an object that can be read; a path with any other scheme is none."""
    if isinstance(path, os.PathLike) and not isinstance(path, PurePath):
        path = os.fspath(path)
    return isinstance(path, str) and "://" in path and path.lower().startswith(SCHEMES)


def check_local(*paths: object) -> None:
    """Refuse paths with a scheme, such as ``s3://bucket/data``, where only local files can be used.

    Without this check, ``s3://bucket`` would mean a local folder called ``s3:``; write ``./s3:/bucket`` for such a
    folder. Lists and tuples are searched; values of other types are ignored.

    Raises:
        ConfigError: a path has a scheme, including ``file://``, or is a URL with one slash, see `check_readable`.
    """
    check_readable(*paths)
    for path in paths:
        if isinstance(path, list | tuple):
            check_local(*path)
        elif is_url(path):
            raise ConfigError(
                f"{path}: the scheme {_scheme(str(path))} is not supported; paths must be local here, where"
                " neither reading from object stores nor writing to them is possible; copy or mount the data, or"
                f" upload the output (write ./{path} for a path in a local folder called"
                f" {_scheme(str(path)).removesuffix('//')})"
            )


def check_readable(*paths: object) -> None:
    """Refuse paths whose scheme cannot be read. Local paths and URLs of objects are allowed.

    A URL with one slash is refused too: it is a slip, or `pathlib` has made it, and would mean a local folder called
    ``s3:``. A `pathlib.Path` is allowed if there is such a folder, since ``./s3:/x`` is the same path.

    Raises:
        ConfigError: a path has another scheme, including ``file://``, or is a URL with one slash.
    """
    for path in paths:
        if isinstance(path, list | tuple):
            check_readable(*path)
        elif isinstance(path, str) and not is_url(path) and _SCHEME.match(path):
            resolve_name(f"{_REMOTE}:refuse_scheme")(path, _scheme(path), SCHEMES)
        elif isinstance(path, str | PurePath) and _ONE_SLASH.match(str(path)):
            resolve_name(f"{_REMOTE}:refuse_one_slash")(path)


def check_storage(storage: Storage | None, *paths: object) -> None:
    """Refuse paths whose scheme is not known, and a storage where all paths are local.

    Raises:
        ConfigError: see above.
    """
    check_readable(*paths)
    given = [one for path in paths for one in (path if isinstance(path, list | tuple) else [path])]
    if storage is not None and not any(map(is_url, given)):
        raise ConfigError(
            f"{given[0]}: storage says how to reach an object store, and all paths are local: leave it out"
        )


def _scheme(path: str) -> str:
    found = _SCHEME.match(path)
    return "" if found is None else found[0]


def path_at(path: str | os.PathLike[str], using: str | Reader = "mmap") -> AnyPath:
    """Return a path with methods: a `pathlib.Path`, or for a URL a `RemotePath`, which asks the store.

    Args:
        path: a local path, a URL, or a path that this function returned.
        using: the reader with which the store is reached; by name, the environment says how.
    """
    if not is_url(path):
        return path if isinstance(path, Path) else Path(path)
    found: AnyPath = resolve_name(f"{_OBJECTS}:remote_path")(path, using)
    return found


def path_in(folder: str | os.PathLike[str], name: str, using: str | Reader = "mmap") -> AnyPath:
    """Return a path that was given in a folder: in it, unless it is absolute or a URL; ``using`` as for `path_at`."""
    return path_at(name, using) if is_url(name) or Path(name).is_absolute() else path_at(folder, using) / name


def folder_of(*paths: str) -> str:
    """Return the folder in which these paths are given now; empty if all are absolute or URLs, see `path_in`."""
    return "" if all(is_url(path) or Path(path).is_absolute() for path in paths) else str(Path.cwd())


def local_file(path: AnyPath) -> Path:
    """Return a local file with the same content: the path itself, or a copy of the object, which is kept.

    Raises:
        FileNotFoundError: there is no such object.
        StoreError: the object cannot be read.
    """
    return path if isinstance(path, Path) else path.local_file()


def can_list(folder: AnyPath) -> bool:
    """Return whether what is in a folder can be found out; a web server does not tell."""
    return isinstance(folder, Path) or not str(folder).startswith("http")


def read_whole(path: AnyPath) -> bytes:
    """Return the content of a file, or of an object, which is not kept.

    Raises:
        FileNotFoundError: there is no such file or object.
        OSError, StoreError: it cannot be read.
    """
    if isinstance(path, Path):
        check_kind(path)
        return path.read_bytes()
    return b"".join(path.pieces())


def walk(folder: AnyPath, *, followlinks: bool = False) -> Iterator[tuple[AnyPath, list[str]]]:
    """Yield every folder in and below a folder, with the names of its files. Names that begin with a dot are left out.

    With ``followlinks``, no folder comes twice, since a link may lead back to a folder above it.
    """
    seen = set()
    walked = os.walk(folder, followlinks=followlinks) if isinstance(folder, Path) else folder.walk()
    for found, folders, files in walked:
        if isinstance(found, str) and followlinks:
            status = os.stat(found)  # noqa: PTH116 - it is a string
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield path_at(found), [name for name in files if not name.startswith(".")]


@runtime_checkable
class ReadCache(Protocol):
    """What files are read through, as `headrace.Cache`."""

    def reader(self, inner: str | Reader) -> Reader:
        """Return a reader that keeps what another one reads."""


def reader_at(
    path: object, using: str | Reader, storage: Storage | None = None, cache: ReadCache | None = None
) -> str | Reader:
    """Return the reader for a path: for a URL, or a list with one, a reader of objects; otherwise ``using``.

    With a cache it is one that reads through it. Local files are then read by ``"pread"`` and not ``"mmap"``.

    Raises:
        ConfigError: ``using`` reads only local files, and the path is a URL; or ``storage`` is set, and the path is
            local; or ``cache`` is none, or ``using`` maps files.
    """
    found = _reader_at(path, using, storage)
    if cache is None:
        return found
    if not isinstance(cache, ReadCache):
        raise ConfigError(f"cache is {cache!r:.80}; expected a Cache, as headrace.Cache('/nvme/data', limit='1TB')")
    return cache.reader("pread" if found == "mmap" else found)


def _reader_at(path: object, using: str | Reader, storage: Storage | None) -> str | Reader:
    paths = path if isinstance(path, list | tuple) else [path]
    check_storage(storage, *paths)
    if not any(map(is_url, paths)):
        return using
    if not isinstance(using, str):
        if not using.reads_urls:
            raise ConfigError(
                f"{path}: {using!r} reads local files only; leave reader out, or pass a headrace.io.ObjectReader"
            )
        if storage is not None:
            raise ConfigError(f"{path}: storage and a reader were given; the reader has a storage of its own")
        return using
    if using not in ("mmap", "pread"):
        raise ConfigError(f"reader={using!r} is unknown; the readers are 'mmap', 'pread'")
    made: Reader = resolve_name(f"{_OBJECTS}:reader_for")(paths, storage)
    return made


def reader_of(storage: Storage | None) -> str | Reader:
    """Return a reader of objects of a storage, which reads local files too; ``"mmap"`` without a storage."""
    if storage is None:
        return "mmap"
    made: Reader = resolve_name(f"{_OBJECTS}:ObjectReader")(storage)
    return made


def check_new(url: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ConfigError for a URL to which no output can be written, or whose output would be replaced."""
    if not can_list(path_at(url)):
        raise ConfigError(f"{url}: objects are written to s3://, gs:// and az://, not to a web server")
    if overwrite:
        raise ConfigError(
            f"{url}: overwrite is for local outputs: objects may be in use, and are not replaced; name another place,"
            " or remove what is there"
        )
