"""What a cache keeps and what makes room for it, from the next uses of blocks in the index of its folder.

    blocks      (name, bytes, owner, digest, first, file, is_begun): bytes ``first`` to ``first + bytes`` of a block
    uses        (run, name, next): the step in which a run uses a block next; for no run, a block that nobody knows
    runs        (owner, run, step, step_s): where each process is in its run
    pins        (owner, span, name): a process is going to read a block
    leaving     blocks that made room for others, and are still to be read

Everything here happens within a `Transaction`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import xxhash

Policy = Literal["plan", "pin"]
Fetcher = Literal["ours", "theirs", "bypass"]

NEVER: Final = 1 << 62
"""The next use of a block that is not used again."""

NO_RUN: Final = ""
"""Stands for a run in the uses of blocks that no run has told of."""

_CANDIDATES: Final = 16
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS blocks (
    name TEXT PRIMARY KEY, bytes INTEGER NOT NULL, owner TEXT, digest TEXT, first INTEGER NOT NULL,
    file TEXT NOT NULL, is_begun INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (id INTEGER PRIMARY KEY CHECK (id = 0), bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO totals VALUES (0, 0);
CREATE TRIGGER IF NOT EXISTS more AFTER INSERT ON blocks BEGIN
    UPDATE totals SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER IF NOT EXISTS fewer AFTER DELETE ON blocks BEGIN
    UPDATE totals SET bytes = bytes - OLD.bytes; END;
CREATE TRIGGER IF NOT EXISTS longer AFTER UPDATE OF bytes ON blocks BEGIN
    UPDATE totals SET bytes = bytes + NEW.bytes - OLD.bytes; END;
CREATE TABLE IF NOT EXISTS pins (
    owner TEXT NOT NULL, span INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (owner, span, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pins_by_name ON pins (name);
CREATE TABLE IF NOT EXISTS leaving (
    name TEXT PRIMARY KEY, bytes INTEGER NOT NULL, digest TEXT, first INTEGER NOT NULL, file TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    owner TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL, step_s REAL NOT NULL,
    PRIMARY KEY (owner, run)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uses (
    run TEXT NOT NULL, name TEXT NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_next ON uses (run, next);
CREATE INDEX IF NOT EXISTS by_name ON uses (name);
"""


class Wanted(NamedTuple):
    """A part of a block that is to be read: the block's name and size, and begin and end of the part within it."""

    name: str
    size: int
    begin: int
    end: int


class MissingBlock(NamedTuple):
    """A block for which room is kept and which is to be fetched: its file, its number there, and what is read of it."""

    path: str
    number: int
    wanted: Wanted


class BlockPart(NamedTuple):
    """Some bytes of a block: its file, its number there, and begin and end within it."""

    path: str
    number: int
    begin: int
    end: int


class Claim(NamedTuple):
    """Who fetches a block, and which part of it: this process, another one, or nobody (``"bypass"``)."""

    who: Fetcher
    begin: int
    end: int


class PlannedBlock(NamedTuple):
    """A block that a loader is going to read.

    Attributes:
        wanted: what is read of it.
        next_use: the step after that in which it is used next, or ``NEVER``.
        part: returns the part of it that is read until it is not used for so many steps.
    """

    wanted: Wanted
    next_use: int
    part: Callable[[float], tuple[int, int]]


class KeptBlock(NamedTuple):
    """A block in the index."""

    name: str
    num_bytes: int
    owner: str | None
    digest: str | None
    first: int
    file: str
    is_begun: int

    def has(self, wanted: Wanted) -> bool:
        """Return whether all that is wanted is in the part that is kept."""
        return self.first <= wanted.begin and wanted.end <= self.first + self.num_bytes


def block_of(index: sqlite3.Connection, name: str) -> KeptBlock | None:
    """Return a block in the index; None if it is not there."""
    row = index.execute("SELECT * FROM blocks WHERE name = ?", (name,)).fetchone()
    return None if row is None else KeptBlock(*row)


def is_pinned(index: sqlite3.Connection, name: str) -> bool:
    """Return whether a process is going to read a block."""
    return index.execute("SELECT 1 FROM pins WHERE name = ? LIMIT 1", (name,)).fetchone() is not None


def file_name(name: str, size: int, begin: int, end: int) -> str:
    """Return the name of the file of a part of a block; a whole one is named as the block."""
    return name if (begin, end) == (0, size) else f"{name}@{begin}-{end}"


def block_name(identity: str, number: int) -> str:
    """Return the name of a block of the file of an identity: a hash of 128 bits, and the number of the block."""
    return f"{xxhash.xxh3_128_hexdigest(identity.encode())}-{number}"


class Eviction:
    """Chooses which blocks make room for others, by their next uses.

    Args:
        index: the index, within a transaction.
        policy: ``"plan"`` or ``"pin"``.
        limit_bytes: the most bytes of all blocks.
        lives: says whether the process of an owner lives.
    """

    def __init__(
        self, index: sqlite3.Connection, *, policy: Policy, limit_bytes: int, lives: Callable[[str], bool]
    ) -> None:
        self._index = index
        self._policy = policy
        self._limit_bytes = limit_bytes
        self._lives = lives

    def victims(self, name: str, size: int) -> list[str] | None:
        """Return the blocks that make room for a block; None if it is not to be kept."""
        (used,) = self._index.execute("SELECT bytes FROM totals").fetchone()
        missing = used + size - self._limit_bytes
        if self._policy == "pin":
            return [] if missing <= 0 else None
        runs = self.runs()
        due = self._due(name, runs)
        if due == NEVER:
            return None
        if missing <= 0:
            return []
        found: list[str] = []
        for victim, victim_bytes, victim_due in self._last_used(runs):
            if due is None or (victim_due is not None and victim_due <= due):
                return None
            found.append(victim)
            missing -= victim_bytes
            if missing <= 0:
                return found
        return None

    def runs(self) -> dict[str, tuple[int, float]]:
        """Return each run that a living process feeds, with its step and the seconds of a step; forget the others."""
        found: dict[str, tuple[int, float]] = {}
        gone = set()
        for owner, run, step, step_s in self._index.execute("SELECT owner, run, step, step_s FROM runs").fetchall():
            if not self._lives(owner):
                self._index.execute("DELETE FROM runs WHERE owner = ?", (owner,))
                gone.add(run)
            elif run not in found or step < found[run][0]:
                found[run] = step, step_s
        for run in gone - found.keys():
            # Their blocks belong to no run now, and are the first to go.
            rest = "INSERT OR IGNORE INTO uses SELECT ?, name, ? FROM uses WHERE run = ?"
            self._index.execute(rest, (NO_RUN, NEVER, run))
            self._index.execute("DELETE FROM uses WHERE run = ?", (run,))
        return found

    def _due(self, name: str, runs: Mapping[str, tuple[int, float]]) -> float | None:
        """Return the seconds until some run uses a block, ``NEVER`` if none does; None if no run knows it.

        With a single run these are steps, which are exact.
        """
        found: float | None = None
        for run, (step, step_s) in runs.items():
            row = self._index.execute("SELECT next FROM uses WHERE run = ? AND name = ?", (run, name)).fetchone()
            if row is not None:
                unit = step_s if len(runs) > 1 else 1.0
                due = NEVER if row[0] >= NEVER else max(0, row[0] - step) * unit
                found = due if found is None else min(found, due)
        return found

    def _last_used(self, runs: Mapping[str, tuple[int, float]]) -> Iterator[tuple[str, int, float | None]]:
        """Yield blocks with their sizes, and when they are used next; those first that no run knows, then the last."""
        order = (
            "SELECT blocks.name, bytes FROM uses CROSS JOIN blocks ON blocks.name = uses.name"
            " WHERE run = ? AND (owner IS NULL OR is_begun = 0) ORDER BY next DESC LIMIT ?"
        )
        wanted = _CANDIDATES
        seen: set[str] = set()
        while True:
            rows: dict[str, int] = {}
            for run in (NO_RUN, *runs):
                rows |= dict(self._index.execute(order, (run, wanted)).fetchall())
            dues = [(self._due(name, runs), name) for name in sorted(rows.keys() - seen)]
            if not dues:
                return
            for due, name in sorted(dues, key=lambda one: NEVER + 1 if one[0] is None else one[0], reverse=True):
                seen.add(name)
                yield name, rows[name], due
            wanted *= 4

    def patience(self, size: int, run: str, runs: Mapping[str, tuple[int, float]]) -> float | None:
        """Return for how many steps a block is kept without a use: until that of the last one that is there.

        None if there is still room for a block of this size.
        """
        (used,) = self._index.execute("SELECT bytes FROM totals").fetchone()
        if used + size <= self._limit_bytes:
            return None
        due = next((due for _, _, due in self._last_used(runs)), None)
        if due is None or due >= NEVER:
            return float("inf")
        return due if len(runs) == 1 else due / runs[run][1]
