"""Group the files of a folder into samples with keys and parts.

`checked_key` and `file_sample` are pure functions that turn names of files into keys and names of parts.

The files below the root of an input: those of a local folder, or the objects below a URL.

A file is opened where its first bytes decide something, and read as a whole when its shard is written.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Generator, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec
import xxhash

from headrace.errors import StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, Storage, holds, natural_key, path_at, reader_of, safe_relative
from headrace.io.finding import names_below, open_found, status_of
from headrace.io.remote import Status
from headrace.preparing.sources import RecordSpec
from headrace.preparing.sources.source_file import check_same, input_errors
from headrace.samples.media.decoding.av_decoder import AV_EXTENSIONS
from headrace.samples.media.decoding.decoder import guess_extension
from headrace.stores.tar.members import sample_part

SPEC = RecordSpec(fields=(), whole=True)
"""How tables are read: as whole records."""

KeyDots = Literal["error", "replace", "part"]
NUMBER_DIGITS = 9

_IMAGES = {name: name for name in ("jpg", "png", "webp", "gif", "jp2", "avif", "bmp")} | {"tif": "tiff"}
HEAD_BYTES = 64


class BadEntryError(ValueError):
    """A row, or a group of files, that cannot become a sample. The message says what was found, and what to do."""


def image_part(head: bytes) -> str | None:
    """Return the extension of an image by its first `HEAD_BYTES` bytes; None if its format is unknown."""
    return "heic" if head[4:11] == b"ftyphei" else _IMAGES.get(guess_extension(head) or "")


def av_part(head: bytes, name: str = "") -> str | None:
    """Return the extension of sound or video by the name of its file, or else by its first `HEAD_BYTES` bytes."""
    ends = (name.rpartition(".")[2].lower(), guess_extension(head))
    return next((end for end in ends if end in AV_EXTENSIONS), None)


def numbered(number: int) -> str:
    """Return the key of a sample that has no name: its number with nine digits."""
    return f"{number:0{NUMBER_DIGITS}d}"


def checked_key(key: str, dots: KeyDots) -> str:
    """Check a key and return it; with ``replace``, dots in its last component become ``_``.

    Raises:
        BadEntryError: the name cannot be a key.
    """
    folder, slash, base = key.rpartition("/")
    if "." in base.lstrip(".") or base.startswith("."):
        if dots != "replace":
            raise BadEntryError(
                f"the key {key!r} has a dot in its last component, where readers cut it; --key-dots replace writes _"
            )
        key = folder + slash + base.replace(".", "_")
    try:
        safe_relative(key)
        key.encode()
    except StoreError:
        raise BadEntryError(
            f"{key!r} cannot be a key: it is not a plain relative name (empty, absolute, with .. or a backslash)"
        ) from None
    except UnicodeEncodeError:
        raise BadEntryError(f"{key!r} cannot be a key: it is not UTF-8") from None
    if sample_part(f"{key}.x") != (key, "x"):
        raise BadEntryError(
            f"{key!r} cannot be a key: readers skip names that begin with __...__ or contain a line break"
        )
    return key


def file_sample(name: str, dots: KeyDots) -> tuple[str, str] | None:
    """Return the key of the sample that a file belongs to and the name of its part; None if it belongs to no sample.

    ``cats/01.jpg`` is part ``jpg`` of ``cats/01``. With ``part``, ``cats/01.seg.png`` is part ``seg.png`` of
    ``cats/01``, as webdataset reads it. Otherwise it is part ``png`` of ``cats/01.seg``, whose dot `checked_key` then
    refuses or replaces.
    """
    found = sample_part(name, hidden=False)
    if found is None or dots == "part" or "." not in found[1]:
        return found
    key, _, part = name.rpartition(".")
    return key, part


class ListedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file below a folder. Its name is the relative path with slashes."""

    name: str
    size: int
    mtime_ns: int
    etag: str = ""

    @property
    def status(self) -> Status:
        """What reads expect."""
        return Status(self.size, self.etag, self.mtime_ns)


def listed(name: str, path: AnyPath) -> ListedFile:
    """Return an existing file by the name that it has below its folder; raises OSError if it is not there."""
    size, etag, modified_ns = status_of(path)
    return ListedFile(name, size, modified_ns, etag)


def list_folder(folder: str, using: str | Reader = "mmap") -> tuple[ListedFile, ...]:
    """List all files below a folder by `natural_key`. Links are followed and names that begin with a dot are skipped.

    It takes about 5 us per file.

    Args:
        folder: the folder; also a URL.
        using: what lists a URL.

    Raises:
        InputError: a folder cannot be read, or a link is broken.
        StoreError: the store of the URL cannot be reached, or does not list.
    """
    place = path_at(folder, using)
    with input_errors(None):
        return tuple(listed(name, place / name) for name in sorted(names_below(place), key=natural_key))


def hash_of(files: Iterable[ListedFile]) -> str:
    """Return a hash of the names, sizes and times of change of files; of objects, that of their ETags."""
    hasher = xxhash.xxh3_128()
    for file in files:
        stamp = file.etag or file.mtime_ns
        hasher.update(f"{file.name}\0{file.size}\0{stamp}\n".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()


Groups = dict[str, list[tuple[str, ListedFile]]]
"""For each sample of a folder its files, each with the name of its part."""


def group_files(files: Iterable[ListedFile], dots: KeyDots) -> tuple[Groups, list[str]]:
    """Group the files of a folder; return the samples in the order of their names, and files that belong to none."""
    groups: Groups = {}
    ignored: list[str] = []
    for file in files:
        found = file_sample(file.name, dots)
        if found is None:
            ignored.append(file.name)
        else:
            groups.setdefault(found[0], []).append((found[1], file))
    return groups, ignored


CHUNK_BYTES: Final = 4 << 20
GONE: Final = Status(0, "", 0)
_MAX_KEY_BYTES: Final = 1024
"""The longest name of an object."""


class FilesBelow:
    """The files below a root. Nothing is remembered of them, since there may be any number.

    Args:
        root: absolute path of the folder, or its URL.
        storage: how the store of a URL is reached; None goes by the environment.
    """

    def __init__(self, root: str, storage: Storage | None) -> None:
        self.root = root
        self._storage = storage

    def find(self, name: str) -> ListedFile | None:
        """Return the file of a relative name; None if what has this name is not a file. Of an object: one HEAD.

        Raises:
            OSError, ValueError: there is none.
            StoreError: the store cannot be reached.
        """
        path = self._at(name)
        found = listed(name, path)
        return found if path.is_file() else None

    def holds(self, value: str) -> bool:
        """Return whether any text is the relative name of a file.

        Raises:
            StoreError: the store cannot be reached.
        """
        if not isinstance(path_at(self.root), Path) and not _may_be_key(value):
            return False
        return holds(self._at(value).is_file)

    def check(self, file: ListedFile) -> None:
        """Look whether a file is as it was when it was listed.

        Raises:
            InputError: it has changed since. Of an object with an ETag, the reads say so.
        """
        with input_errors(f"{self.root}/{file.name}"):
            found = file if file.etag else self.find(file.name)
        check_same(f"{self.root}/{file.name}", file.status, GONE if found is None else found.status)

    def open(self, file: ListedFile, *, num_bytes: int | None) -> BinaryIO:
        """Open a file.

        Args:
            file: the file.
            num_bytes: how many bytes will be read, from the first on; None if that is not known.

        Raises:
            OSError: it cannot be opened.
        """
        path = str(self._at(file.name))
        return io.BufferedReader(open_found(path, file.status, self._storage, end=num_bytes))

    def _at(self, name: str) -> AnyPath:
        # Each path has look-ups of its own.
        return path_at(self.root, reader_of(self._storage)) / name


def contents_of(files: Iterable[tuple[str, ListedFile]], storage: Storage | None) -> Generator[Iterator[Any]]:
    """Yield the bytes of each file, in pieces that are used up before the next file; some objects are fetched ahead.

    Args:
        files: the folder, or the URL, of each file, and what it was when it was found.
        storage: how the store of a URL is reached.

    Raises:
        InputError: a file cannot be read, or has changed.
        StoreError: the same of an object.
    """
    places, wanted = itertools.tee((path_at(root) / file.name, file.status) for root, file in files)
    with contextlib.closing(_fetched(wanted, storage)) as objects:
        for path, found in places:
            yield _local_bytes(path, found) if isinstance(path, Path) else _next_bytes(objects, found.size)


def _fetched(files: Iterable[tuple[AnyPath, Status]], storage: Storage | None) -> Generator[Any]:
    objects = import_module("headrace.io.objects.lookups")
    urls = ((str(path), found) for path, found in files if not isinstance(path, Path))
    parts = (part for url, found in urls for part in objects.parts_of(url, found))
    yield from objects.Objects(storage).in_turn(parts)


def _next_bytes(objects: Iterator[Any], size: int) -> Iterator[Any]:
    while size:
        try:
            data = next(objects)
        except StoreAwayError:
            raise
        except StoreError as error:
            raise StoreError(f"{error}. If objects were replaced, run again with --restart.") from None
        size -= len(data)
        yield data


def _local_bytes(path: Path, found: Status) -> Iterator[bytes]:
    left = found.size
    with input_errors(str(path)), path.open("rb", buffering=0) as file:
        while left and (data := file.read(min(left, CHUNK_BYTES))):
            left -= len(data)
            yield data
        check_same(str(path), found, status_of(path), "Wait until it is complete, then run again with --restart.")


def digests(files: Iterable[tuple[str, ListedFile]], storage: Storage | None) -> Iterator[bytes]:
    """Yield the xxh3_128 of each file; takes and raises what `contents_of` does."""
    for pieces in contents_of(files, storage):
        hasher = xxhash.xxh3_128()
        for data in pieces:
            hasher.update(data)
        yield hasher.digest()


def _may_be_key(name: str) -> bool:
    try:
        return len(safe_relative(name).encode(errors="replace")) <= _MAX_KEY_BYTES
    except StoreError:
        return False
