"""Files that are created once: of several processes that create the same file, on any hosts, one succeeds.

The content is written and synced under a name of its own, and then hard-linked to the final name, which fails if that
exists. A server may carry out the link and lose its reply, so that the call is repeated and reports that the name
exists; the number of links of our own file tells. Where a file system has no hard links, the final name is opened with
``O_EXCL``. The last line of every such file is the hash of the rest: a file without the right hash is still being
written, or was torn when its writer died. If it stays as it is for some seconds it is removed, and the creation is
tried again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Final

import xxhash

from headrace.io.atomic import output_errors, sync_folder, write_all
from headrace.io.paths import read_small

_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_TRAILER_BYTES: Final = 18
_WAIT_S: Final = 0.01
_TORN_AFTER_S: Final = 5.0
"""How long a file without the right hash must stay as it is before its writer counts as dead."""


def unique_name() -> str:
    """Return a name that no other process has: host, process and a random number."""
    return f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"


def create_once(path: Path, data: bytes, *, lasts: bool = True) -> bool:
    """Create a file with this content, and return whether it was this call that created it.

    The folder must exist. The file is on the disk when the call returns True, unless it need not last when the machine
    ends. `read_once` reads it.

    Raises:
        OutputError: the system reports an error; the file may exist nevertheless, as after a kill.
    """
    data = data + _trailer(data)
    own = path.with_name(f".{path.name}.{unique_name()}.tmp")
    seen: tuple[int, ...] | None = None
    since = time.monotonic()
    with output_errors(path, "create"):
        try:
            _write(own, data, lasts=lasts)
            while not (is_ours := _created(own, path, data)) and read_once(path) is None:
                # Its writer died, or writes this very moment, or our host does not show the file yet.
                if (now := _looks(path)) != seen or now is None:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since >= _TORN_AFTER_S:
                    _remove_torn(path)
                time.sleep(_WAIT_S)
        finally:
            with contextlib.suppress(OSError):
                own.unlink()
    if is_ours and lasts:
        sync_folder(path)
    return is_ours


def read_once(path: Path) -> bytes | None:
    """Return the content of a file that `create_once` created; None if there is none, or it was torn.

    Raises:
        OutputError: the file cannot be read.
    """
    try:
        data = read_small(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        with output_errors(path, "read"):
            raise error
    content = data[:-_TRAILER_BYTES]
    return content if data[-_TRAILER_BYTES:] == _trailer(content) else None


def _trailer(content: bytes) -> bytes:
    """The last line of a file, which is its hash."""
    return b"\n" + xxhash.xxh3_64_hexdigest(content).encode() + b"\n"


def _looks(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written, or another takes its name; None if there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _remove_torn(path: Path) -> None:
    """Remove a file whose writer died; what a slow writer still writes goes to no name."""
    aside = path.with_name(f".{path.name}.{unique_name()}.torn")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if read_once(aside) is None:
            aside.unlink()
        else:
            # Another removed the torn file first, and this is the whole one that took its place.
            aside.rename(path)


def _write(path: Path, data: bytes, *, lasts: bool = True) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(lambda view: os.write(descriptor, view), data)
        if lasts:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _created(own: Path, path: Path, data: bytes) -> bool:
    """Give the file of our own its final name, unless another has it."""
    try:
        os.link(own, path)
    except FileExistsError:
        # Ours has a second name only if the link was made, and its reply was lost.
        return own.stat().st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _write(path, data)
        except FileExistsError:
            return False
        # Another may have taken it for torn while we wrote.
        return path.read_bytes() == data if path.exists() else False
    return True
