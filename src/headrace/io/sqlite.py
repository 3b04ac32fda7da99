"""Connections to SQLite that are closed when nothing refers to them."""

from __future__ import annotations

import contextlib
import sqlite3


class Connection(sqlite3.Connection):
    """A connection that closes itself, as those of earlier Pythons did: since 3.13, one that is dropped open warns."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # it was never open
            self.close()
