"""What was computed from data and is kept on disk: arrays in a folder, and indexes that say where samples begin.

Arrays that were computed from a store are kept in a folder, so that other processes and later starts can map them:

    folder/<name>/<array>.npy ...     each as NumPy writes it
    folder/<name>/kept.json           written last: size and xxh3_128 of the file of each array, the caller's own text
                                      (``meta``), and a hash of itself

The name is a hash of everything that decides the content. So the arrays found under it are never out of date, and two
processes that make them at the same time make the same ones. The folder appears as a whole, by one rename.

The files are not trusted: all bytes are hashed before an array is returned, and headers are parsed, not evaluated. This
takes 0.15 s a gigabyte in the page cache, or 0.12 s for 10^8 entries of 8 bytes. A start that only reads tokens, tars
or windows opens no such folder.

``X.tar.idx`` and ``X.jsonl.idx`` hold N + 1 little-endian 64-bit integers and no header: the byte where each sample
begins, and the byte where the last one ends. Energon writes both. `kept_index` keeps an index that is no such file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import (
    AnyPath,
    Reader,
    cache_folder,
    file_digest,
    hash_bytes,
    json_bytes,
    map_npy,
    output_errors,
    replace_file,
    sync_folder,
)
from headrace.io.kept import is_as_kept, keep_bytes
from headrace.stores.arguments import IntArray
from headrace.stores.store import ENDS_BYTES, AnyStore, Problem, read_ahead_of_fingerprints

KEPT_NAME: Final = "kept.json"
_VERSION: Final = 3
_STALE_S: Final = 24 * 3600.0
"""A folder that is still partial after this time was left behind by a process that ended."""

_log = logging.getLogger("headrace")


class KeptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of one array in ``kept.json``: size and hash of its file."""

    size: int
    xxh3_128: str


class KeptRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``kept.json``; ``meta`` is text of the caller.

    ``xxh3_128`` is a hash of the record itself, computed with this field empty.
    """

    arrays: dict[str, KeptFile]
    meta: str
    version: int = 0
    xxh3_128: str = ""


class _DamageError(Exception):
    """A kept file is damaged; ``problem`` names it and says what is wrong."""

    def __init__(self, path: Path, message: str) -> None:
        self.problem = Problem(path=str(path), place="", message=message)
        super().__init__(str(self.problem))


def keep_arrays(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], meta: bytes) -> None:
    """Write arrays and their JSON ``meta`` to ``folder/name``, whole or not at all; complete arrays there are kept.

    Raises:
        OutputError: the system reports an error.
    """
    partial = folder / _partial_name(name)
    with output_errors(partial, "create"):
        partial.mkdir(parents=True)
    try:
        files: dict[str, KeptFile] = {}
        for key, array in arrays.items():
            path = partial / f"{key}.npy"
            with output_errors(path, "write"), path.open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
                files[key] = KeptFile(path.stat().st_size, file_digest(path))
        kept = KeptRecord(files, meta.decode(), version=_VERSION)
        kept = msgspec.structs.replace(kept, xxh3_128=_own_hash(kept))
        with output_errors(partial, "write"):
            (partial / KEPT_NAME).write_bytes(json_bytes(kept))
            sync_folder(partial / KEPT_NAME)
            try:
                partial.rename(folder / name)
            except OSError as error:
                # Another process has written the same content first.
                if not (folder / name).exists():
                    raise
                if not (folder / name / KEPT_NAME).exists():
                    reason = f"{folder / name}: cannot be replaced: {error.strerror}; remove {folder / name}"
                    raise OutputError(f"{reason}, and it is made again") from error
        sync_folder(folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_stale(folder, name)


def find_arrays(folder: Path, name: str) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """Return the arrays under a name, mapped read-only, and their ``meta``; None if there are none.

    All bytes are hashed.

    Raises:
        StoreError: the arrays cannot be read, or are damaged: at least a bit differs from what was written.
    """
    place = folder / name
    try:
        return _checked(place)
    except _DamageError as damage:
        raise StoreError(f"{damage}; remove {place}, and it is made again") from damage.__cause__


def find_cache(folder: Path, name: str) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """Return the same as `find_arrays`, for arrays that can be made again: damaged ones are removed with a warning.

    Returns:
        The arrays and their ``meta``; None if there are none, or if they were removed.

    Raises:
        StoreError: the system cannot read the files.
    """
    place = folder / name
    try:
        found = _checked(place)
    except _DamageError as damage:
        _log.warning("%s; it is made again", damage)
        found = None
    if found is None and place.is_dir():
        old = place.with_name(_partial_name(name))
        with contextlib.suppress(OSError):
            place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
    return found


def check_arrays(folder: Path, name: str) -> list[Problem]:
    """Read everything under a name, and return each difference from what was written."""
    place = folder / name
    faults = []
    try:
        kept = _listed(place)
    except _DamageError as damage:
        return [damage.problem]
    if kept is None:
        raise StoreError(f"{place / KEPT_NAME}: cannot be read: it is missing")
    for key, file in kept.arrays.items():
        try:
            _array(place / f"{key}.npy", file)
        except _DamageError as damage:
            faults.append(damage.problem)
    return faults


def _checked(place: Path) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """Return the arrays in a folder and their meta; None if there are none."""
    kept = _listed(place)
    if kept is None:
        return None
    return {key: _array(place / f"{key}.npy", file) for key, file in kept.arrays.items()}, kept.meta.encode()


def _array(path: Path, file: KeptFile) -> NDArray[Any]:
    """Map one array and verify every byte."""
    try:
        found_bytes = path.stat().st_size
        if found_bytes != file.size:
            raise _DamageError(path, f"damaged: it has {found_bytes:,} bytes, but {file.size:,} were written")
        if file_digest(path) != file.xxh3_128:
            raise _DamageError(path, "damaged: its xxh3_128 differs from that of the file that was written")
        return map_npy(path)
    except FileNotFoundError as error:
        raise _DamageError(path, "missing") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _DamageError(path, f"damaged: {error}") from error


def _listed(place: Path) -> KeptRecord | None:
    """Parse ``kept.json``, and verify that nothing in it was changed since it was written; None if there is none."""
    path = place / KEPT_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        kept = msgspec.json.decode(data, type=KeptRecord)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _DamageError(path, f"damaged: {error}") from error
    if kept.version != _VERSION:
        raise _DamageError(path, f"has version {kept.version}; expected version {_VERSION}")
    if kept.xxh3_128 != _own_hash(kept) or json_bytes(kept) != data:
        raise _DamageError(path, "damaged: its content does not match its own hash")
    for key in kept.arrays:
        if not key.isidentifier():
            raise _DamageError(path, f"damaged: {key!r} is not a valid name of an array")
    return kept


def _own_hash(kept: KeptRecord) -> str:
    return hash_bytes(json_bytes(msgspec.structs.replace(kept, xxh3_128="")))


def _partial_name(name: str) -> str:
    return f".{name}.partial-{os.getpid()}-{time.monotonic_ns()}"


def kept_name(*facts: object) -> str:
    """Return a name for kept arrays: a hash of 128 bits, in hex, of facts that msgspec can encode."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(facts, order="sorted"))


def _remove_stale(folder: Path, name: str) -> None:
    for other in folder.glob(f".{name}.partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other, ignore_errors=True)


ENTRY: Final = np.dtype("<i8")
ENTRY_BYTES: Final = ENTRY.itemsize

INDEX_FOLDER: Final = ".headrace-index"
"""The folder beside a file in which an index is kept that is no file of its own."""

_KEPT_BYTES: Final = 8 << 20
"""The index of a smaller file is not kept: making it again takes no longer than reading it."""

_ENDS_BYTES: Final = 64 << 10

_FEW_FILES: Final = 64

Kept = tuple[Mapping[str, NDArray[Any]], bytes]
"""What an index consists of: arrays by name, and JSON."""


def write_offsets(path: AnyPath, offsets: ArrayLike) -> None:
    """Write (N + 1,) offsets, whole or not at all. An existing file is replaced.

    Raises:
        OutputError: the system or the store reports an error.
    """
    replace_file(path, offsets_bytes(offsets))


def offsets_bytes(offsets: ArrayLike) -> bytes:
    """Return the content of an index."""
    return np.ascontiguousarray(offsets, ENTRY).tobytes()


def read_offsets(path: str, using: Reader) -> IntArray:
    """Return the entries of an index, (N + 1,) int64, read-only; they are mapped if the reader maps.

    Raises:
        StoreError: the file cannot be read.
        ValueError: no index has this size; the message says what was found and what was expected.
    """
    data = using.whole(path)
    if not len(data) or len(data) % ENTRY_BYTES:
        raise ValueError(f"has {len(data)} bytes, but an index has 8 bytes a sample and 8 more")
    entries: IntArray = np.frombuffer(data, ENTRY)
    return entries


def with_ends(store: AnyStore, files: Sequence[str], using: Reader) -> str:
    """Return xxh3_128 of the ``layout_fingerprint`` of a store, and of the first and last 4 KiB of files.

    What more than 64 local files are known by is kept in the cache, by their paths, sizes and times of change.
    """
    read_ahead_of_fingerprints([store])
    layout = store.layout_fingerprint.encode()
    folder = None if using.reads_urls or len(files) <= _FEW_FILES else cache_folder("ends")
    place = None
    if folder is not None:
        with contextlib.suppress(OSError):  # the reader says what is wrong with the file
            place = folder / kept_name("ends", 2, [_mark(file) for file in files])
    if place is not None and place.is_file() and is_as_kept(place, f"the ends of {files[0]} and others"):
        return hash_bytes(layout + place.read_bytes())
    hasher = xxhash.xxh3_128()
    passing = using.for_pass()
    for file in files:
        hasher.update(passing.ends(file, ENDS_BYTES))
    digest = hasher.digest()
    if place is not None:
        # If it cannot be kept, the next start reads it again.
        with contextlib.suppress(OutputError):
            keep_bytes(place, digest)
    return hash_bytes(layout + digest)


def _mark(file: str) -> tuple[str, int, int]:
    status = Path(file).stat()
    return str(Path(file).absolute()), status.st_size, status.st_mtime_ns


def kept_index(path: str, using: Reader, kind: str, version: int, make: Callable[[], Kept]) -> Kept:
    """Return the index of a file: a kept one, or a new one, which is kept if the file has 8 MiB or more.

    It is kept in ``.headrace-index`` beside the file or, if that cannot be written, in ``$HEADRACE_CACHE`` or
    ``~/.cache/headrace``; that of an object is always kept there. It is found again by the file's name, size and
    modification time, and by a hash of the first and last bytes of the file.

    Args:
        path: the file.
        using: reads the file.
        kind: name of the kind of index.
        version: version of its arrays.
        make: makes the index.
    """
    size = using.size(path)
    if size < _KEPT_BYTES:
        return make()
    ends = hash_bytes(using.ends(path, _ENDS_BYTES))
    file = using.path_at(path)
    name = kept_name(kind, version, file.name, size, file.stat().st_mtime_ns, ends)
    cache = cache_folder("jsonl")
    folders = [] if cache is None else [cache]
    if isinstance(file, Path):
        folders.insert(0, file.absolute().parent / INDEX_FOLDER)
    for folder in folders:
        if (kept := find_cache(folder, name)) is not None:
            return kept
    began = time.monotonic()
    index = make()
    _log.info("%s: made its index in %.1f s", path, time.monotonic() - began)
    for folder in folders:
        # If the index cannot be kept, the next start only takes longer.
        with contextlib.suppress(OutputError):
            keep_arrays(folder, name, *index)
            break
    return index
