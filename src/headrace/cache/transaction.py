"""`Transaction`: what happens to the blocks of a cache while nobody else can change its index.

A block is claimed by the process that fetches it. It is kept while there is room, for its *label*: the folder of its
file, or a node to which samples are dealt. Each process says by which labels it reads. Blocks of labels by which no
living process reads make room for others, in the order in which they came; no other block goes. `PASSING` is a label by
which nobody reads, for blocks whose samples come together and not again for long.

Files go while nobody else can change the index, so that none goes that was fetched again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import xxhash

from headrace.cache.process import CacheProcess

Fetcher = Literal["ours", "theirs", "bypass"]
"""Who fetches a block: this process, another one, or nobody."""

PASSING: Final = ""

_UNUSED: Final = "SELECT label FROM totals WHERE bytes > 0 EXCEPT SELECT label FROM uses ORDER BY label DESC"
_OLDEST: Final = "SELECT name, bytes FROM blocks WHERE label = ? AND owner IS NULL ORDER BY number"


class CacheBlock(NamedTuple):
    """A block of a file: its name and its bytes, and the label for which it is kept; None if it is not to be kept."""

    name: str
    size: int
    label: str | None


def block_name(identity: str, number: int) -> str:
    """Return the name of a block of the file of an identity: a hash of 128 bits, and the number of the block."""
    return f"{xxhash.xxh3_128_hexdigest(identity.encode())}-{number}"


class Transaction:
    """Changes of the index, and of the files that it lists, within `CacheProcess.changing`.

    Args:
        process: this process.
        limit_bytes: the most bytes of all blocks.
        may_write: whether new blocks may be kept.

    Attributes:
        num_evicted: how many blocks made room for others.
    """

    def __init__(self, process: CacheProcess, *, limit_bytes: int, may_write: bool) -> None:
        self._process = process
        self._index = process.index
        self._limit_bytes = limit_bytes
        self._may_write = may_write
        self.num_evicted = 0

    def use(self, label: str) -> None:
        """Note that this process reads by a label."""
        self._index.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (self._process.owner, label))

    def use_none(self) -> None:
        """Forget by which labels this process reads."""
        self._index.execute("DELETE FROM uses WHERE owner = ?", (self._process.owner,))

    def claim(self, block: CacheBlock) -> Fetcher:
        """Return who fetches a block, see `BlockStore.claim`."""
        name, owner = block.name, self._process.owner
        row = self._index.execute("SELECT owner FROM blocks WHERE name = ?", (name,)).fetchone()
        if row is not None:
            # Without an owner it was written since this process looked for it, unless its file was removed.
            is_there = row[0] is None and self._process.path(name).exists()
            if is_there or (row[0] is not None and self._process.is_claimed(name, row[0])):
                return "theirs"
            self._index.execute("UPDATE blocks SET owner = ?, digest = NULL WHERE name = ?", (owner, name))
        elif self._may_write and block.label is not None and self._make_room(block.size):
            add = "INSERT INTO blocks (name, bytes, label, owner) VALUES (?, ?, ?, ?)"
            self._index.execute(add, (name, block.size, block.label, owner))
        else:
            return "bypass"
        self._process.claim(name)
        return "ours"

    def _make_room(self, num_bytes: int) -> bool:
        """Evict what makes room for a block; return False, and evict nothing, if there is not enough of it."""
        (used,) = self._index.execute("SELECT COALESCE(SUM(bytes), 0) FROM totals").fetchone()
        missing = used + num_bytes - self._limit_bytes
        victims: list[str] = []
        if missing > 0:
            for name, victim_bytes in self._unused():
                victims.append(name)
                missing -= victim_bytes
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for name in victims:
            self.remove(name)
        self.num_evicted += len(victims)
        return True

    def _unused(self) -> Iterator[tuple[str, int]]:
        """Yield the blocks that may go, those that pass last, and of each label the oldest first."""
        for (label,) in self._index.execute(_UNUSED).fetchall():
            yield from self._index.execute(_OLDEST, (label,))

    def finish(self, name: str, digest: str) -> None:
        """Note that a block which this process had claimed is written."""
        change = "UPDATE blocks SET owner = NULL, digest = ? WHERE name = ? AND owner = ?"
        self._index.execute(change, (digest, name, self._process.owner))

    def give_up(self, name: str) -> None:
        """Give back the room of a block which this process had claimed."""
        self._index.execute("DELETE FROM blocks WHERE name = ? AND owner = ?", (name, self._process.owner))

    def remove(self, name: str) -> None:
        """Remove a block."""
        self._index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        self._process.unlink(name)

    def clear(self) -> int:
        """Remove all blocks that no living process is fetching, and return how many these were."""
        rows = self._index.execute("SELECT name, owner FROM blocks").fetchall()
        names = [name for name, owner in rows if not self._process.lives(owner)]
        for name in names:
            self.remove(name)
        return len(names)

    def tidy(self) -> None:
        """Remove what processes left behind that died: blocks that they had claimed, and labels by which they read."""
        rows = self._index.execute("SELECT name, owner FROM blocks WHERE owner IS NOT NULL").fetchall()
        for name, owner in rows:
            if not self._process.lives(owner):
                self.remove(name)
        for (owner,) in self._index.execute("SELECT DISTINCT owner FROM uses").fetchall():
            if not self._process.lives(owner):
                self._index.execute("DELETE FROM uses WHERE owner = ?", (owner,))
