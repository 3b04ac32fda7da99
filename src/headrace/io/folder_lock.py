"""A folder that one process at a time works in: a lock file in it, held for as long as the process lives."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

LOCK_NAME = "lock"


def claim_folder(folder: Path) -> IO[bytes]:
    """Make the folder if it is not there, and hold the lock in it; closing what is returned gives it back.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the system refuses.
    """
    # A run that ends removes its lock: one that was opened before that is a lock on nothing.
    while (lock := _try_claim(folder)) is None:
        pass
    return lock


def _try_claim(folder: Path) -> IO[bytes] | None:
    folder.mkdir(exist_ok=True)
    try:
        lock = (folder / LOCK_NAME).open("ab")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks: go on without.
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
