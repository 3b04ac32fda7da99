"""Energon datasets in a store in memory, and on disk: their files, without what differs between two runs."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import media_made
import stored
from energon_made import PNG
from memory_stores import MemoryBucket

MEDIA = {**media_made.files(), ".hidden/b.jpg": PNG, "large.bin": bytes(300_000), "large.mp4": PNG + bytes(300_000)}
FEW = {f"shards/{shard:02d}.tar": [(f"{shard}_{n}.txt", b"text" * n) for n in range(1, 5)] for shard in range(4)}


def upload(bucket: MemoryBucket, root: Path, pattern: str = "*.tar") -> str:
    return bucket.upload(root, "ds", pattern)


STATE, INDEX = ".nv-meta/headrace.json", ".nv-meta/index.sqlite"


def made_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """All files but the tars and media, without what tells shards from later ones, and when media were gathered.

    That is times, ETags and hashes in the state, and the time in the index.
    """
    found = {name: data for name, data in files.items() if not name.endswith(".tar") and name not in MEDIA}
    if STATE in found:
        known = rb'"mtime_ns": \d+|"etag": "[^"]*"|"xxh3_128": "\w+"|"xxh3_64": \[[^]]*\]|[ ,\n]'
        found[STATE] = re.sub(known, b"", found[STATE])
    if b"media_filters" in found.get(INDEX, b""):
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.deserialize(found[INDEX])
            rows = "\n".join(base.iterdump()).encode()
        # SQLite counts also what it leaves out, of a run that goes on.
        found[INDEX] = re.sub(rb"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d'|\('media_filters',\d+\)", b"", rows)
    return found


def local(root: Path) -> dict[str, bytes]:
    return made_of(stored.files(root))


def remote(bucket: MemoryBucket) -> dict[str, bytes]:
    return made_of(bucket.content("ds"))
