"""The files that a process holds open: a bounded number, the least recently used let go first."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class FilePool:
    """At most ``max_open`` open files; a file that is let go closes when its last user (a read, a view) is done.

    There is no lock: each step is one operation on the OrderedDict, which is atomic, so a fork in the middle of
    another thread's call leaves nothing locked in the child, and a finaliser may enter the pool again. Two threads
    that miss the same file both open it, and one of the two is let go.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._files: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: Hashable) -> Any:
        """The open file of this key, which is now the most recently used, or None."""
        file = self._files.get(key)
        if file is not None:
            # In the path of every read, where `suppress` would cost as much as all the rest.
            try:  # noqa: SIM105
                self._files.move_to_end(key)
            except KeyError:  # another thread has let it go since; our reference keeps it open
                pass
        return file

    def make_room(self) -> None:
        """Let go of the least recently used files until one more may be opened."""
        with contextlib.suppress(KeyError):
            while len(self._files) >= self.max_open:
                self._files.popitem(last=False)

    def put(self, key: Hashable, file: Any) -> None:
        """Keep an open file."""
        self._files[key] = file

    def drop(self, key: Hashable) -> None:
        """Let go of a file, if it is there."""
        self._files.pop(key, None)


OPEN_FILES = FilePool(256)
"""The files of all readers of this process; set its ``max_open`` to allow more or fewer."""
