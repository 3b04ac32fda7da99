"""Writes files that appear whole or not at all, and locks folders.

A file is written under a temporary name, synced and renamed, and then its folder is synced. `claim_folder` lets one
process at a time work in a folder, through a lock file that is held for as long as the process lives.
`write_json_file` writes JSON documents that people may read. `replace_file` and its kin also change objects.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from headrace.errors import OutputError
from headrace.io.checksum import FileHasher, FileSum
from headrace.io.places import AnyPath, check_local

if TYPE_CHECKING:
    from headrace.io.remote import RemotePath


def write_all(write: Callable[[memoryview], int], data: bytes | bytearray | memoryview) -> None:
    """Call ``write`` until it has taken all bytes; the system may take only some of them at a time."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[write(rest) :]
    # The buffer of a bytearray cannot change its size while a view of it is alive.
    rest.release()


class AtomicFile:
    """A file that appears under its name complete or not at all, and replaces a file that was there before.

    The bytes go to ``.<name>.<pid>.<random>.tmp`` in the same folder. As a context manager it commits at the end and
    removes the temporary file on any exception. A process that is killed leaves at most the temporary file behind.

    Args:
        path: the final path of the file.
        resumable: write to ``.<name>.partial``, the same name each time, so that the next process writes over what a
            killed one has left. Only one process at a time may write it.
        lasts: whether it is on the disk once it has its name. A loss of power may tear one that is not: a kept file,
            say, which is compared with its digest.

    Raises:
        OutputError: the system reports an error (no space, no permission, no such folder); the message names path and
            reason.

    Example:
        >>> with headrace.io.AtomicFile("notes.txt") as file:
        ...     file.write(b"a note")
        >>> file.sum.size
        6
    """

    def __init__(self, path: str | Path, *, resumable: bool = False, lasts: bool = True) -> None:
        check_local(path)
        self.path = Path(path)
        self.lasts = lasts
        self.temporary = self.path.with_name(f".{self.path.name}.partial") if resumable else temporary_path(self.path)
        self._hasher = FileHasher()
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | (os.O_TRUNC if resumable else os.O_EXCL)
        with output_errors(self.path, "create"):
            self._fd = os.open(self.temporary, flags, 0o666)

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._hasher.size

    @property
    def sum(self) -> FileSum:
        """Size and checksums of the bytes written so far. They need no second pass."""
        return self._hasher.sum(self.path.name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Nothing is buffered, so write large pieces."""
        view = memoryview(data)
        if not view.nbytes:  # an empty view cannot be cast
            return
        view = view.cast("B")
        self._hasher.update(view)
        with output_errors(self.path, "write"):
            write_all(partial(os.write, self._fd), view)

    def commit(self) -> None:
        """Bring all bytes to the disk and give the file its final name."""
        commit([self])

    def discard(self) -> None:
        """Remove the temporary file. After a commit this does nothing."""
        self.close()
        with contextlib.suppress(OSError):
            self.temporary.unlink()

    def sync(self) -> None:
        """Bring all bytes to the disk, if the file is to last, and close the temporary file."""
        if self._fd >= 0:
            if self.lasts:
                with output_errors(self.path, "write"):
                    os.fsync(self._fd)
            self.close()

    def close(self) -> None:
        """Close the temporary file without removing it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with output_errors(self.path, "close"):
                os.close(fd)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


def temporary_path(path: Path) -> Path:
    """Return a new name beside a file, ``.<name>.<pid>.<random>.tmp``, under which it is written."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def commit(files: Sequence[AtomicFile]) -> None:
    """Give several files of one folder their final names, in order, so that the last appears only when all are there.

    A store that needs all its files is then never seen as whole when it is not. If older files of the same names exist,
    all but the first are removed beforehand (the last one first), so that old and new files never mix. On an exception,
    all temporary files and all files that this call has renamed are removed.

    Args:
        files: the files, in the order in which they appear.

    Raises:
        OutputError: the system reports an error.
    """
    renamed: list[Path] = []
    try:
        for file in files:
            file.sync()
        for file in reversed(files[1:]):
            _remove_old(file.path)
        for file in files:
            with output_errors(file.path, "rename"):
                file.temporary.rename(file.path)
            renamed.append(file.path)
            if file.lasts:
                sync_folder(file.path)
    except BaseException:
        for file in files:
            with contextlib.suppress(OutputError):
                file.discard()
        for path in reversed(renamed):
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a whole file, which appears complete or not at all.

    Whatever interrupts it, the path then holds either the old file or the new one.

    Raises:
        OutputError: the system reports an error.
    """
    file = AtomicFile(path)
    try:
        file.write(data)
        file.sync()
        with output_errors(file.path, "rename"):
            file.temporary.rename(file.path)
    except BaseException:
        file.discard()
        raise
    sync_folder(file.path)


@contextlib.contextmanager
def output_errors(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names the path, the action and the reason."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot {action}: {error.strerror or error}") from error


def _remove_old(path: Path) -> None:
    with output_errors(path, "replace"), contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path)


def sync_folder(path: Path) -> None:
    """Sync the folder of a file, so that the names in it are on the disk.

    Raises:
        OutputError: the system reports an error.
    """
    with output_errors(path, "sync the folder of"):
        sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file that is closed, or a folder, to the disk; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


LOCK_NAME = "lock"


def claim_folder(folder: Path) -> IO[bytes]:
    """Create the folder if it does not exist, and lock it. Closing the returned file releases the lock.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the system reports another error.
    """
    # A run that ends removes its lock file. If we opened that file just before, our lock protects nothing: try again.
    while (lock := _try_claim(folder)) is None:
        pass
    return lock


def _try_claim(folder: Path) -> IO[bytes] | None:
    try:
        folder.mkdir(exist_ok=True)
        try:
            lock = (folder / LOCK_NAME).open("ab")
        except FileNotFoundError:
            return None
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # it was made just now, or is not empty
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks; then continue without one.
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            lock.close()
            raise
    try:
        is_current = os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK_NAME).stat())
    except FileNotFoundError:
        is_current = False
    if is_current:
        return lock
    lock.close()
    return None


def json_bytes(value: Any, *, indent: int = 2, order: Literal["sorted"] | None = None) -> bytes:
    """Return a value as an indented JSON document with a line break at its end; ``order`` sorts the keys."""
    return msgspec.json.format(msgspec.json.encode(value, order=order), indent=indent) + b"\n"


def as_read_back(value: Any) -> Any:
    """Return a value as it is after writing it as JSON and reading it again: dicts, lists, texts, numbers and None."""
    return msgspec.json.decode(msgspec.json.encode(value))


def write_json_file(path: str | os.PathLike[str], value: Any, *, indent: int = 2) -> None:
    """Write a value as an indented JSON document.

    Raises:
        OutputError: the system reports an error; an older file of this name is unchanged.
    """
    check_local(path)
    atomic_write(Path(path), json_bytes(value, indent=indent))


def replace_file(path: AnyPath, data: bytes) -> None:
    """Write a whole file or object, which appears complete or not at all, in the place of what was there.

    Raises:
        OutputError: the system or the store refuses it.
        ConfigError: it is the URL of a web server.
    """
    if isinstance(path, Path):
        atomic_write(path, data)
    else:
        _change(path, lambda writer: writer.put({str(path): data}))


def move_file(made: Path, path: AnyPath) -> None:
    """Put a file of the same disk into the place of what was there; at a URL, upload it. One that is gone was moved.

    Raises:
        OutputError: the system or the store refuses it.
        ConfigError: it is the URL of a web server.
    """
    if not isinstance(path, Path):
        _change(path, lambda writer: writer.put_files({str(path): made}))
    elif made.exists():
        with output_errors(path, "replace"):
            made.rename(path)


def remove_file(path: AnyPath) -> None:
    """Remove a file or object, which need not be there; raises as `replace_file` does."""
    if isinstance(path, Path):
        with output_errors(path, "remove"):
            path.unlink(missing_ok=True)
    else:
        _change(path, lambda writer: writer.delete([str(path)]))


def _change(path: RemotePath, change: Callable[[Any], Any]) -> None:
    """Change an object, and forget what was looked up."""
    change(resolve_name("headrace.io.objects.writer:writer_of")(path))  # loaded when the first URL comes
    path.objects.forget()
