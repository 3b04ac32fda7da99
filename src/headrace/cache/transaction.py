"""`Transaction`: what happens to the blocks of a cache while nobody else can change its index.

A planned span of a loader notes when each of its blocks is used next, pins them all, and reserves the room of those
that are to be kept and are not there. A block is claimed by the process that fetches it. A block that makes room for
others goes at once, unless somebody is still to read it: then it is leaving, and its file goes with its last pin.

Files go while nobody else can change the index, so that none goes that was fetched again meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.cache.eviction import (
    NEVER,
    NO_RUN,
    Claim,
    Eviction,
    KeptBlock,
    PlannedBlock,
    Policy,
    Wanted,
    block_of,
    file_name,
    is_pinned,
)
from headrace.cache.process import CacheProcess


class Transaction:
    """Changes of the index, and of the files that it lists, within `CacheProcess.changing`.

    Args:
        process: this process.
        policy: ``"plan"`` or ``"pin"``.
        limit_bytes: the most bytes of all blocks.
        may_write: whether new blocks may be kept.

    Attributes:
        num_evicted: how many blocks made room for others.
    """

    def __init__(self, process: CacheProcess, *, policy: Policy, limit_bytes: int, may_write: bool) -> None:
        self._process = process
        self._index = process.index
        self._policy = policy
        self._limit_bytes = limit_bytes
        self._may_write = may_write
        self._eviction = Eviction(process.index, policy=policy, limit_bytes=limit_bytes, lives=process.lives)
        self.num_evicted = 0

    def note_step(self, run: str, step: int, step_s: float) -> None:
        """Note in which step of a run this process is, and about how long a step takes."""
        entry = (self._process.owner, run, step, step_s)
        self._index.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", entry)

    def plan(self, run: str, span: int, blocks: Sequence[PlannedBlock]) -> set[str]:
        """Plan a span of a run, see `BlockStore.plan`, and return the names of the blocks that were reserved."""
        names = [block.wanted.name for block in blocks]
        rows = [(run, block.wanted.name, block.next_use) for block in blocks]
        self._index.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", rows)
        self._index.executemany("DELETE FROM uses WHERE run = ? AND name = ?", [(NO_RUN, name) for name in names])
        missing = [block for block in blocks if self._is_missing(block.wanted)]
        # Before room is made, since a block of this span may have to go.
        pins = [(self._process.owner, span, name) for name in names]
        self._index.executemany("INSERT OR IGNORE INTO pins VALUES (?, ?, ?)", pins)
        runs = self._eviction.runs()
        return {block.wanted.name for block in missing if self._reserve(block, run, runs)}

    def _is_missing(self, wanted: Wanted) -> bool:
        """Return whether a block is neither there nor coming; or is without what is wanted, and nobody reads it."""
        row = block_of(self._index, wanted.name)
        if row is None:
            return True
        return row.owner is None and not row.has(wanted) and not is_pinned(self._index, wanted.name)

    def _reserve(self, block: PlannedBlock, run: str, runs: Mapping[str, tuple[int, float]]) -> bool:
        """Keep room for a block that is to be kept, and return whether it is to be fetched.

        Of two files of the same block the one before is removed.
        """
        wanted, name = block.wanted, block.wanted.name
        begin, end = wanted.begin, wanted.end
        if block.next_use != NEVER:
            patience = self._eviction.patience(wanted.size, run, runs)
            more = (0, wanted.size) if patience is None else block.part(patience)
            begin, end = min(begin, more[0]), min(max(end, more[1]), wanted.size)
        if not self._may_write:
            return False
        before = block_of(self._index, name)
        room = 0 if before is None else before.num_bytes
        row = self._index.execute("SELECT first, bytes, digest, file FROM leaving WHERE name = ?", (name,)).fetchone()
        is_left = row is not None and row[0] <= wanted.begin and wanted.end <= row[0] + row[1]
        if not self._make_room(name, row[1] if is_left else end - begin - room):
            # Uses are noted for blocks that are there; this one's are noted anew before it is read again.
            if before is None:
                self._index.execute("DELETE FROM uses WHERE name = ?", (name,))
            return False
        if before is not None:
            self.remove(name)
        if row is not None:
            self._index.execute("DELETE FROM leaving WHERE name = ?", (name,))
        if is_left:
            first, num_bytes, digest, file = row
            kept = KeptBlock(name, num_bytes, None, digest, first, file, 1)
        else:
            if row is not None:
                self._process.unlink(name, row[3])
            file = file_name(name, wanted.size, begin, end)
            kept = KeptBlock(name, end - begin, self._process.owner, None, begin, file, 0)
        self._index.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
        self._index.execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (run, name, block.next_use))
        return not is_left

    def release(self, spans: Sequence[int]) -> None:
        """Remove the pins of spans, what of their blocks was only reserved, and blocks that are leaving."""
        for span in spans:
            which = (self._process.owner, span)
            pinned = self._index.execute("SELECT name FROM pins WHERE owner = ? AND span = ?", which).fetchall()
            self._index.execute("DELETE FROM pins WHERE owner = ? AND span = ?", which)
            for (name,) in pinned:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        """Remove what was kept of a block only for those who pinned it."""
        if is_pinned(self._index, name):
            return
        row = self._index.execute("SELECT file FROM leaving WHERE name = ?", (name,)).fetchone()
        if row is not None:
            self._index.execute("DELETE FROM leaving WHERE name = ?", (name,))
            self._process.unlink(name, row[0])
        # What was reserved, and nobody has read.
        reserved = "DELETE FROM blocks WHERE name = ? AND owner = ? AND is_begun = 0"
        self._index.execute(reserved, (name, self._process.owner))

    def claim(self, wanted: Wanted) -> Claim:
        """Return who fetches a block, see `BlockStore.claim`."""
        name, size = wanted.name, wanted.size
        bypass = Claim("bypass", wanted.begin, wanted.end)
        row = block_of(self._index, name)
        if row is not None:
            # Without an owner it was written since this process looked for it, unless its file was removed.
            is_there = row.owner is None and self._process.path(row.file).exists()
            if is_there or (row.is_begun and self._process.is_claimed(name, row.owner)):
                return Claim("theirs", 0, 0) if row.has(wanted) else bypass
            begin, end = min(row.first, wanted.begin), max(row.first + row.num_bytes, wanted.end)
            (used,) = self._index.execute("SELECT bytes FROM totals").fetchone()
            if used + (end - begin) - row.num_bytes > self._limit_bytes:
                return bypass
            self._index.execute(
                "UPDATE blocks SET owner = ?, digest = NULL, is_begun = 1, first = ?, bytes = ?, file = ?"
                " WHERE name = ?",
                (self._process.owner, begin, end - begin, file_name(name, size, begin, end), name),
            )
            self._process.claim(name)
            return Claim("ours", begin, end)
        if not self._may_write or is_pinned(self._index, name):
            return bypass
        if not self._make_room(name, size):
            # Uses are noted for blocks that are there; this one's are noted anew before it is read again.
            self._index.execute("DELETE FROM uses WHERE name = ?", (name,))
            return bypass
        kept = KeptBlock(name, size, self._process.owner, None, 0, name, 1)
        self._index.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
        if self._policy == "plan":
            known = self._index.execute("SELECT 1 FROM uses WHERE name = ?", (name,)).fetchone()
            if known is None:
                self._index.execute("INSERT INTO uses VALUES (?, ?, ?)", (NO_RUN, name, NEVER))
        self._process.claim(name)
        return Claim("ours", 0, size)

    def _make_room(self, name: str, num_bytes: int) -> bool:
        """Evict what makes room for a block; return False, and evict nothing, if the block is not to be kept."""
        victims = self._eviction.victims(name, num_bytes)
        if victims is None:
            return False
        for victim in victims:
            self._evict(victim)
        self.num_evicted += len(victims)
        return True

    def _evict(self, name: str) -> None:
        """Remove a block that makes room; its file stays while somebody is to read it."""
        row = block_of(self._index, name)
        if row is None or not row.is_begun or not is_pinned(self._index, name):
            # What was only reserved is read by ranges then.
            self.remove(name)
            return
        take = "INSERT OR REPLACE INTO leaving SELECT name, bytes, digest, first, file FROM blocks WHERE name = ?"
        self._index.execute(take, (name,))
        self._index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        self._index.execute("DELETE FROM uses WHERE name = ?", (name,))

    def finish(self, name: str, digest: str) -> None:
        """Note that a block which this process had claimed is written."""
        change = "UPDATE blocks SET owner = NULL, digest = ? WHERE name = ? AND owner = ?"
        self._index.execute(change, (digest, name, self._process.owner))

    def give_up(self, name: str) -> None:
        """Give back the room of a block which this process had claimed."""
        owner = self._process.owner
        self._index.execute("DELETE FROM blocks WHERE name = ? AND owner = ? AND is_begun = 1", (name, owner))

    def remove(self, name: str) -> None:
        """Remove a block."""
        row = block_of(self._index, name)
        self._index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        self._index.execute("DELETE FROM uses WHERE name = ?", (name,))
        if row is not None:
            self._process.unlink(name, row.file)

    def clear(self) -> int:
        """Remove all blocks that no living process is fetching, and return how many these were."""
        rows = self._index.execute("SELECT name, owner FROM blocks").fetchall()
        names = [name for name, owner in rows if not self._process.lives(owner)]
        for name in names:
            self.remove(name)
        for name, file in self._index.execute("SELECT name, file FROM leaving").fetchall():
            self._process.unlink(name, file)
        self._index.execute("DELETE FROM leaving")
        return len(names)

    def tidy(self) -> None:
        """Remove what processes left behind that died: blocks that they had claimed, and the runs that they fed."""
        rows = self._index.execute("SELECT name, owner FROM blocks WHERE owner IS NOT NULL").fetchall()
        for name, owner in rows:
            if not self._process.lives(owner):
                self.remove(name)
        for (owner,) in self._index.execute("SELECT DISTINCT owner FROM pins").fetchall():
            if not self._process.lives(owner):
                self._index.execute("DELETE FROM pins WHERE owner = ?", (owner,))
        for (name,) in self._index.execute("SELECT name FROM leaving").fetchall():
            self._let_go(name)
        self._eviction.runs()
