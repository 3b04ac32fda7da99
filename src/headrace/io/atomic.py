"""Writes that are whole or not there: a temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from headrace.errors import OutputError
from headrace.io.checksum import FileHasher, FileSum


class AtomicFile:
    """A file that appears under its name complete, or not at all; a file that was there before is replaced.

    The bytes go to ``.<name>.<pid>.<random>.tmp`` in the same folder. As a context manager it commits at the end
    and removes the temporary file on any exception. A process that is killed leaves at most the temporary file.

    Raises:
        OutputError: the system refuses (no space, no permission, no such folder); names path and reason.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        self._hasher = FileHasher()
        with output_errors(self.path, "create"):
            self._fd = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._hasher.size

    @property
    def sum(self) -> FileSum:
        """Size and checksums of the bytes written so far; they cost no second pass."""
        return self._hasher.sum(self.path.name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Not buffered: write large pieces."""
        view = memoryview(data)
        if not view.nbytes:  # which cannot be cast
            return
        view = view.cast("B")
        self._hasher.update(view)
        with output_errors(self.path, "write"):
            while len(view):
                view = view[os.write(self._fd, view) :]

    def commit(self) -> None:
        """Give the file its name."""
        commit([self])

    def discard(self) -> None:
        """Remove the temporary file. Nothing happens after a commit."""
        self.close()
        with contextlib.suppress(OSError):
            self.temporary.unlink()

    def sync(self) -> None:
        """Bring all bytes to the disk and close the temporary file."""
        if self._fd >= 0:
            with output_errors(self.path, "write"):
                os.fsync(self._fd)
            self.close()

    def close(self) -> None:
        """Close the temporary file, which stays as it is."""
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


def commit(files: Sequence[AtomicFile]) -> None:
    """Give several files of one folder their names, in order, so that the last appears only when all are there.

    A store that needs all its files is then never seen as whole when it is not. Of an older group of the same
    names all but the first are removed beforehand (the last one first), so that old and new never mix.
    On an exception all temporary files are removed, and the names that this call had given.

    Raises:
        OutputError: the system refuses.
    """
    given: list[Path] = []
    try:
        for file in files:
            file.sync()
        for file in reversed(files[1:]):
            _remove_old(file.path)
        for file in files:
            with output_errors(file.path, "rename"):
                file.temporary.rename(file.path)
            given.append(file.path)
            _sync_folder(file.path)
    except BaseException:
        for file in files:
            with contextlib.suppress(OutputError):
                file.discard()
        for path in reversed(given):
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a whole file, which appears complete or not at all.

    Raises:
        OutputError: the system refuses.
    """
    with AtomicFile(path) as file:
        file.write(data)


@contextlib.contextmanager
def output_errors(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names the path, what was tried, and the reason."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot {action}: {error.strerror or error}") from error


def _remove_old(path: Path) -> None:
    with output_errors(path, "replace"), contextlib.suppress(FileNotFoundError):
        path.unlink()
        _sync_folder(path)


def _sync_folder(path: Path) -> None:
    with output_errors(path, "sync the folder of"):
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
