"""Group the files of a folder into samples with keys, parts and captions.

`checked_key` and `file_sample` are pure functions that turn names of files into keys and names of parts.

The files below the root of an input: those of a local folder, or the objects below a URL.

A file is opened where its first bytes decide something, and read as a whole when its shard is written.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
import xxhash

from headrace.errors import InputError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, Storage, holds, natural_key, path_at, reader_of, safe_relative
from headrace.io.finding import names_below, open_found, status_of
from headrace.io.remote import Status
from headrace.preparing.sources import RecordSpec, SourceFile, Span, counted_from, open_span, record_noun
from headrace.samples.media.decoding.av_decoder import AV_EXTENSIONS
from headrace.samples.media.decoding.decoder import guess_extension
from headrace.stores.tar.members import sample_part

SPEC = RecordSpec(fields=(), whole=True)
"""How tables are read: as whole records."""

KeyDots = Literal["error", "replace", "part"]
NUMBER_DIGITS = 9

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (8, b"WEBP", "webp"),
    (0, b"GIF8", "gif"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"\x00\x00\x00\x0cjP  ", "jp2"),
    (4, b"ftypavif", "avif"),
    (4, b"ftyphei", "heic"),
    (0, b"BM", "bmp"),
)
HEAD_BYTES = 64


class BadNameError(ValueError):
    """A name that cannot be a key. The message says why, and what to do."""


def image_part(head: bytes) -> str | None:
    """Return the extension of an image by its first `HEAD_BYTES` bytes; None if its format is unknown."""
    return next((name for at, magic, name in _MAGIC if head[at : at + len(magic)] == magic), None)


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
        BadNameError: the name cannot be a key.
    """
    folder, slash, base = key.rpartition("/")
    if "." in base.lstrip(".") or base.startswith("."):
        if dots != "replace":
            raise BadNameError(
                f"the key {key!r} has a dot in its last component, where readers cut it; --key-dots replace writes _"
            )
        key = folder + slash + base.replace(".", "_")
    try:
        safe_relative(key)
        key.encode()
    except StoreError:
        raise BadNameError(
            f"{key!r} cannot be a key: it is not a plain relative name (empty, absolute, with .. or a backslash)"
        ) from None
    except UnicodeEncodeError:
        raise BadNameError(f"{key!r} cannot be a key: it is not UTF-8") from None
    if sample_part(f"{key}.x") != (key, "x"):
        raise BadNameError(
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


class SampleFiles(NamedTuple):
    """The files of one sample, and the row of the captions that describes them."""

    name: str
    files: tuple[tuple[str, ListedFile], ...]
    """Pairs of the name of a part and its file."""
    row: dict[str, Any] | None = None
    bad: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a folder, in natural order of their names."""

    files: tuple[ListedFile, ...]

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)

    @property
    def xxh3_128(self) -> str:
        """Hash of the names, sizes and times of change of all files; of objects, that of their ETags."""
        hasher = xxhash.xxh3_128()
        for file in self.files:
            stamp = file.etag or file.mtime_ns
            hasher.update(f"{file.name}\0{file.size}\0{stamp}\n".encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()


def listed(name: str, path: AnyPath) -> ListedFile:
    """Return an existing file by the name that it has below its folder; raises OSError if it is not there."""
    size, etag, modified_ns = status_of(path)
    return ListedFile(name, size, modified_ns, etag)


def list_folder(folder: str, using: str | Reader = "mmap") -> Listing:
    """List all files below a folder. Links are followed and names that begin with a dot are skipped.

    It takes about 5 us per file.

    Args:
        folder: the folder; also a URL.
        using: what lists a URL.

    Raises:
        InputError: a folder cannot be read, or a link is broken.
        StoreError: the store of the URL cannot be reached, or does not list.
    """
    try:
        place = path_at(folder, using)
        files = [listed(name, place / name) for name in sorted(names_below(place), key=natural_key)]
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    return Listing(files=tuple(files))


def group_files(
    listing: Listing, dots: KeyDots, captions: dict[str, tuple[int, dict[str, Any]]] | None
) -> tuple[list[SampleFiles], list[str], list[str]]:
    """Group the files of a folder.

    Returns:
        The samples in the order of their names, the files that belong to no sample, and the captions without a file.
    """
    groups: dict[str, list[tuple[str, ListedFile]]] = {}
    ignored: list[str] = []
    for file in listing.files:
        found = file_sample(file.name, dots)
        if found is None:
            ignored.append(file.name)
        else:
            groups.setdefault(found[0], []).append((found[1], file))
    unmatched = None if captions is None else dict(captions)
    samples = []
    for name, files in groups.items():
        row, bad = None, ""
        if unmatched is not None:
            rows = [unmatched.pop(file.name)[1] for _, file in files if file.name in unmatched]
            bad = "no row of the captions names it" if not rows else "several rows of the captions name its files"
            row, bad = (rows[0], "") if len(rows) == 1 else (None, bad)
        samples.append(SampleFiles(name, tuple(files), row, bad))
    return samples, ignored, list(unmatched or ())


def load_captions(
    file: SourceFile, column_of: Callable[[dict[str, Any]], str]
) -> dict[str, tuple[int, dict[str, Any]]]:
    """Read a table of captions into memory.

    Returns:
        For each name of a file the number of its row, and the row without that name.

    Raises:
        InputError: a row cannot be read, names no file, or names a file that another row names too.
    """
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    noun = record_noun(file.format, "document")
    column = ""
    for block in open_span(file, Span(0, 0, file.extent), SPEC).blocks():
        if block.bad:
            raise InputError(f"{file.name}, {noun} {block.bad[0].line + counted_from(noun):,}: {block.bad[0].message}")
        for line, record in zip(block.lines.tolist(), block.records or [], strict=True):
            column = column or column_of(dict(record))
            row = dict(record)
            name = row.pop(column, None)
            place = f"{file.name}, {noun} {line + counted_from(noun):,}"
            if not isinstance(name, str) or not name:
                raise InputError(f"{place}: column {column!r} must name a file, found {name!r:.80}")
            name = name.removeprefix("./")
            if name in found:
                raise InputError(f"{place}: file {name!r} is already described by {noun} {found[name][0]:,}")
            found[name] = line + counted_from(noun), row
    return found


CHUNK_BYTES: Final = 4 << 20
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
        try:
            found = file if file.etag else self.find(file.name)
        except OSError as error:
            raise InputError(f"{self.root}/{file.name}: cannot be read: {error.strerror or error}") from error
        if found != file:
            raise InputError(f"{self.root}/{file.name}: the file changed during the run; run again when it is complete")

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
    try:
        with path.open("rb", buffering=0) as file:
            while left and (data := file.read(min(left, CHUNK_BYTES))):
                left -= len(data)
                yield data
            changed = bool(left or file.read(1)) or path.stat().st_mtime_ns != found.modified_ns
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}. Nothing was written.") from error
    if changed:
        raise InputError(
            f"{path}: the file changed during the run: it had {found.size:,} bytes. Wait until it is complete, then run"
            " again with --restart."
        )


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
