"""URLs of objects as paths: `RemotePath` has the methods of `pathlib.Path`, and asks an `ObjectLookup` for the answers.

`bucket_of` divides a URL. This module talks to no store; `headrace.io.objects` does, and is loaded when the first URL
comes.
"""

from __future__ import annotations

import difflib
import errno
import fnmatch
import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from headrace.errors import ConfigError

_LISTED_AT_ONCE: Final = 32


class Bucket(NamedTuple):
    """Where an object lies: its store, and its key there.

    Attributes:
        scheme: ``s3``, ``gs``, ``az`` or ``http``.
        root: the URL of the bucket, container or server.
        key: the key within it; empty for the bucket itself.
    """

    scheme: str
    root: str
    key: str


def refuse_scheme(path: str, scheme: str, known: Sequence[str]) -> NoReturn:
    """Refuse a path whose scheme is none of the known ones, and name the nearest of these.

    Raises:
        ConfigError: always.
    """
    if scheme.lower() == "file://":
        raise ConfigError(f"{path}: the scheme {scheme} is not supported; leave out file:// and write the path itself")
    meant = difflib.get_close_matches(scheme.lower(), known, n=1, cutoff=0.8)
    hint = f" (did you mean {meant[0]}?)" if meant else ""
    if scheme.lower() == "msc://":
        hint = " (its profile names a bucket: give the URL of the object in that bucket)"
    raise ConfigError(
        f"{path}: the scheme {scheme} is not supported{hint}; paths must be local, or URLs of {', '.join(known)}:"
        f" copy or mount the data, and give the path of the copy (write ./{path} for a path in a local folder called"
        f" {scheme.removesuffix('//')})"
    )


def refuse_one_slash(path: str | PurePath) -> None:
    """Refuse ``s3:/bucket/key``, unless it is a `pathlib.Path` and there is a local folder called ``s3:``.

    Raises:
        ConfigError: see above.
    """
    scheme, _, rest = str(path).partition(":/")
    if isinstance(path, PurePath) and Path(f"{scheme}:").is_dir():
        return
    why = "a URL has two slashes: write"
    if isinstance(path, PurePath):
        why = "pathlib has made one slash of the two of a URL, or there was only one: pass a str"
    raise ConfigError(
        f"{path}: {why} {scheme.lower()}://{rest} (for a local folder called {scheme}:, give its absolute path)"
    )


def bucket_of(url: str) -> Bucket:
    """Divide a URL into its bucket and its key.

    Raises:
        ConfigError: the URL has no bucket, or holds credentials or a query.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    name, _, key = rest.partition("/")
    if not name:
        raise ConfigError(f"{url}: names no bucket; write {scheme}://BUCKET/KEY")
    if "@" in name:
        raise ConfigError(
            f"{scheme}://...@{name.rpartition('@')[2]}: credentials do not belong into a URL, which is printed and"
            " saved; pass them with Storage(options=...) or in the environment"
        )
    if scheme.startswith("http") and ("?" in key or "#" in key):
        raise ConfigError(
            f"{url.partition('?')[0]}?...: a URL with a query, as signed URLs have, cannot name a store of several"
            " files"
        )
    return Bucket("http" if scheme.startswith("http") else scheme, f"{scheme}://{name}", key.strip("/"))


class Status(NamedTuple):
    """The identity of an object, by which it is known that it did not change.

    Attributes:
        size: size in bytes.
        etag: what the store says stands for the content, without quotes; empty if it says nothing.
        modified_ns: when it was written, in nanoseconds since 1970; 0 if the store does not say.
    """

    size: int
    etag: str
    modified_ns: int

    def is_same(self, other: Status) -> bool:
        """Return whether another status can be that of the same content."""
        if self.size != other.size:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        return self.modified_ns == other.modified_ns or not (self.modified_ns and other.modified_ns)


class Stat(NamedTuple):
    """Size and time of an object, by the names that `os.stat` uses."""

    st_size: int
    st_mtime_ns: int


class ObjectLookup(Protocol):
    """Answers questions about objects, by their URLs."""

    def status(self, url: str) -> Status | None:
        """Return the identity of an object; None if there is none."""

    def known(self, url: str) -> Status:
        """Return the identity of an object; raises FileNotFoundError."""

    def expect(self, url: str, status: Status) -> None:
        """Take this for the identity of an object: what is read of another one raises StoreError."""

    def listing(self, url: str) -> tuple[list[str], list[str]]:
        """Return the URLs of the folders and of the objects right below a folder."""

    def look_up(self, urls: Sequence[str], folders: Sequence[str]) -> None:
        """Look up objects and list folders, all at the same time."""

    def below(self, url: str) -> list[str]:
        """Return the URLs of all objects below a folder."""

    def local_file(self, url: str) -> Path:
        """Return a local file with the bytes of an object."""

    def pieces(self, url: str) -> Iterator[memoryview]:
        """Yield the bytes of an object from its beginning."""

    def forget(self) -> None:
        """Forget what was looked up; the next look-up asks again."""


def missing(url: str) -> NoReturn:
    """Raise FileNotFoundError, as a file system would."""
    raise FileNotFoundError(errno.ENOENT, "there is no such object", url)


class RemotePath(os.PathLike[str]):
    """A URL with those methods of `pathlib.Path` that reading needs. Paths made from it ask the same `ObjectLookup`.

    A folder is what has objects below it. An HTTP server cannot list, so there a path that ends in a slash is one.
    ``str`` and `os.fspath` return the URL.

    Args:
        url: the URL.
        objects: what answers.
    """

    __slots__ = ("_is_marked", "_url", "objects")

    def __init__(self, url: str, objects: ObjectLookup) -> None:
        scheme, _, rest = url.partition("://")
        self._is_marked = rest.endswith("/")
        self._url = f"{scheme.lower()}://{'/'.join(part for part in rest.split('/') if part not in ('', '.'))}"
        self.objects = objects

    def __str__(self) -> str:
        return self._url

    __fspath__ = as_posix = __str__

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._url == other._url

    def __lt__(self, other: RemotePath) -> bool:
        return self._url < other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (self._url + "/" * self._is_marked, self.objects)

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        text = os.fspath(name)
        if "://" in text:
            return RemotePath(text, self.objects)
        bucket = bucket_of(self._url)
        # As on disk, "..", in a metadataset say, is the folder above; the folder above a bucket is the bucket.
        key = posixpath.normpath(f"/{bucket.key}/{text}").strip("/")
        return RemotePath(f"{bucket.root}/{key}" if key else bucket.root, self.objects)

    def at(self, url: str) -> RemotePath:
        """Return the path of another URL that is reached in the same way."""
        return RemotePath(url, self.objects)

    @property
    def name(self) -> str:
        """The last part of the key; empty for a bucket."""
        return bucket_of(self._url).key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that holds it; of a bucket, the bucket itself."""
        bucket = bucket_of(self._url)
        above = bucket.key.rpartition("/")[0]
        return RemotePath(f"{bucket.root}/{above}" if above else bucket.root, self.objects)

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        """All folders that hold it, the nearest first; the bucket is the last."""
        found = [self.parent]
        while found[-1].parent != found[-1]:
            found.append(found[-1].parent)
        return tuple(found)

    def with_name(self, name: str) -> RemotePath:
        """Return the path of a sibling."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another last suffix."""
        return self.parent / (self.stem + suffix)

    def absolute(self) -> RemotePath:
        """Return this path, since a URL is absolute."""
        return self

    resolve = absolute

    def relative_to(self, other: str | os.PathLike[str]) -> PurePosixPath:
        """Return the path below another; raises ValueError if it is not below it."""
        return PurePosixPath(bucket_of(self._url).root, bucket_of(self._url).key).relative_to(
            PurePosixPath(bucket_of(os.fspath(other)).root, bucket_of(os.fspath(other)).key)
        )

    def is_relative_to(self, other: str | os.PathLike[str]) -> bool:
        """Return whether the path is below another, or the same."""
        return f"{self._url}/".startswith(f"{os.fspath(other).rstrip('/')}/")

    def is_file(self) -> bool:
        """Return whether there is such an object."""
        return not self._is_marked and self.objects.status(self._url) is not None

    def is_dir(self) -> bool:
        """Return whether there are objects below it."""
        if self._url.startswith("http"):
            return self._is_marked
        return any(self.objects.listing(self._url))

    def exists(self) -> bool:
        """Return whether there is such an object or folder."""
        return self.is_file() or self.is_dir()

    def stat(self) -> Stat:
        """Return size and time of the object; raises FileNotFoundError."""
        found = self.objects.known(self._url)
        return Stat(found.size, found.modified_ns)

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the folders and objects right below; raises FileNotFoundError if there are none."""
        folders, files = self.objects.listing(self._url)
        if not folders and not files:
            missing(self._url)
        for url in (*folders, *files):
            yield RemotePath(url, self.objects)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the objects below that match a pattern, whose parts match parts; ``**`` matches any number of them."""
        wanted = pattern.split("/")
        for url in self.objects.below(self._url):
            if _matches(url[len(self._url) + 1 :].split("/"), wanted):
                yield RemotePath(url, self.objects)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the objects at any depth below that match a pattern."""
        return self.glob(f"**/{pattern}")

    def names_below(self) -> list[str]:
        """Return the names of all objects at any depth below, relative to this folder."""
        return [url[len(self._url) + 1 :] for url in self.objects.below(self._url)]

    def walk(self) -> Iterator[tuple[RemotePath, list[str], list[str]]]:
        """Yield every folder in and below this one, with the names of its folders and files, as `os.walk` does.

        Folders that lie in the same one are listed `_LISTED_AT_ONCE` at a time.
        """
        folders, files = self.objects.listing(self._url)
        names = [url.rpartition("/")[2] for url in folders]
        yield self, names, [url.rpartition("/")[2] for url in files]
        for first in range(0, len(names), _LISTED_AT_ONCE):
            some = [self / name for name in names[first : first + _LISTED_AT_ONCE]]
            self.objects.look_up([], list(map(str, some)))
            for folder in some:
                yield from folder.walk()

    def local_file(self) -> Path:
        """Return a local file with the same content, which is kept; raises as `ObjectLookup.local_file` does."""
        return self.objects.local_file(self._url)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the object from its beginning, which are fetched a few blocks ahead and not kept."""
        return self.objects.pieces(self._url)

    def read_bytes(self) -> bytes:
        """Return the content of the object, which is kept as a local file; raises as `local_file` does."""
        return self.local_file().read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of the object as a text; raises as `local_file` does."""
        return self.local_file().read_text(encoding)


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_matches(parts[at:], wanted[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])
