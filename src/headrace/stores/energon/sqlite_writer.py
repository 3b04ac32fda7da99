"""Writes ``.nv-meta/index.sqlite`` and ``index.uuid``: the same rows as Energon, in the order of the shards."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np

from headrace.errors import InputError, OutputError
from headrace.io import atomic_write, output_errors, sync_folder
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER, UUID_NAME
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.tar.scan import ScannedShard

UUID_SPACE: Final = uuid.UUID("6b1c1c53-6cd9-5c39-8a0e-3a6d2f7c9d10")
"""Names of ours within it are digests of the content of an index."""

_TABLES: Final = (
    """CREATE TABLE samples (
        tar_file_id INTEGER NOT NULL,
        sample_key TEXT NOT NULL UNIQUE,
        sample_index INTEGER NOT NULL,
        byte_offset INTEGER,
        byte_size INTEGER
    )""",
    """CREATE TABLE sample_parts (
        tar_file_id INTEGER,
        sample_index INTEGER,
        part_name TEXT,
        content_byte_offset INTEGER,
        content_byte_size INTEGER
    )""",
)
_MEDIA_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS media_metadata (
        entry_key TEXT PRIMARY KEY,
        metadata_type TEXT NOT NULL,
        metadata_json TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS media_filters (
        filter_id INTEGER PRIMARY KEY AUTOINCREMENT,
        strategy TEXT NOT NULL,
        patterns TEXT,
        created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP,
        UNIQUE(strategy, patterns)
    )""",
)
_INDICES: Final = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    """CREATE INDEX idx_sample_parts_full
        ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)""",
)
_COPY_MEDIA: Final = """INSERT OR REPLACE INTO media_metadata
    SELECT m.entry_key, m.metadata_type, m.metadata_json FROM earlier.samples s
    CROSS JOIN earlier.sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
    CROSS JOIN earlier.media_metadata m ON m.entry_key = s.sample_key || '.' || p.part_name
    WHERE s.tar_file_id = :earlier ORDER BY s.sample_index, p.content_byte_offset"""
_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -65536")


class Duplicate(NamedTuple):
    """A sample whose key an earlier one has: its shard and number, and those of the earlier one."""

    key: str
    shard: int
    sample: int
    first_shard: int
    first_sample: int


class AddedShard(NamedTuple):
    """What became of a shard: a digest of what was added, and the samples that were left out."""

    digest: bytes
    duplicates: tuple[Duplicate, ...]


class EarlierShard(NamedTuple):
    """A shard in an index of before: its number there, and the digest that `SqliteWriter.add_shard` gave."""

    path: Path
    shard: int
    digest: bytes
    with_media: bool


class SqliteWriter:
    """Writes the index of a dataset a shard at a time; it appears whole, with its uuid, or not at all.

    The uuid is made of the content of the index (Energon's is random), so the same shards give the same one. As a
    context manager it commits at the end.

    Args:
        root: the folder of the dataset.

    Raises:
        OutputError: the system refuses.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / META_FOLDER / INDEX_NAME
        self._temporary = _temporary(self.path)
        self._digest = hashlib.blake2b(digest_size=32)
        self._earlier: Path | None = None
        with _errors(self.path):
            self._base: sqlite3.Connection | None = sqlite3.connect(self._temporary, isolation_level=None, uri=True)
            try:
                for pragma in _PRAGMAS:
                    self._base.execute(f"PRAGMA {pragma}")
                self._base.execute("BEGIN")
                for table in _TABLES:
                    self._base.execute(table)
            except BaseException:
                self.discard()
                raise

    def add_shard(self, shard: int, scanned: ScannedShard, *, skip_duplicates: bool = False) -> AddedShard:
        """Add the samples of a shard, which has its place in the info file; about 4 us a sample and 1 us a part.

        Args:
            shard: its number.
            scanned: its samples.
            skip_duplicates: a sample whose key is there already is left out, and told; else it is an error.

        Raises:
            InputError: a key is there already, in this shard or another; or a name is not UTF-8.
            OutputError: the system refuses.
        """
        begins = scanned.offsets[:-1].tolist()
        sizes = np.diff(scanned.offsets).tolist()
        rows = list(zip(repeat(shard), scanned.keys, range(len(begins)), begins, sizes, strict=False))
        samples = np.repeat(np.arange(len(begins)), np.diff(scanned.part_bounds)).tolist()
        places = scanned.part_offsets.tolist(), scanned.part_sizes.tolist()
        part_rows = list(zip(repeat(shard), samples, scanned.part_names, *places, strict=False))
        base = self._connection()
        last = self._last_row() if skip_duplicates else 0
        with _errors(self.path):
            try:
                base.executemany(f"INSERT OR {_on_conflict(skip_duplicates)} INTO samples VALUES (?, ?, ?, ?, ?)", rows)
            except sqlite3.IntegrityError as error:
                raise InputError(self._duplicate(rows)) from error
            except UnicodeEncodeError as error:
                raise _unwritable(shard, error) from error
            try:
                base.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", part_rows)
            except UnicodeEncodeError as error:
                raise _unwritable(shard, error) from error
        digest = hashlib.blake2b(digest_size=16)
        for facts in (scanned.offsets, scanned.part_bounds, scanned.part_offsets, scanned.part_sizes):
            digest.update(len(facts).to_bytes(8, "little") + np.ascontiguousarray(facts, "<i8").tobytes())
        for names in (scanned.keys, scanned.part_names):
            digest.update(b"".join(_named(name) for name in names))
        duplicates = (
            self._left_out(((row[1], row[2]) for row in rows), len(rows), shard, last) if skip_duplicates else ()
        )
        self._take(shard, digest.digest())
        return AddedShard(digest.digest(), duplicates)

    def copy_shard(self, shard: int, earlier: EarlierShard, *, skip_duplicates: bool = False) -> AddedShard:
        """Add the samples of a shard, and the metadata of its media, as an earlier index has them; quicker, and the
        shard is not read. The same rows come of it as of `add_shard`.

        Args:
            shard: its number now.
            earlier: where its rows are. All shards that are copied are of one index.
            skip_duplicates: as of `add_shard`.

        Raises:
            InputError: a key is there already.
            OutputError: the system refuses.
        """
        base = self._connection()
        last = self._last_row() if skip_duplicates else 0
        with _errors(self.path):
            self._attach(base, earlier.path)
            values = {"shard": shard, "earlier": earlier.shard}
            try:
                base.execute(
                    f"INSERT OR {_on_conflict(skip_duplicates)} INTO samples SELECT :shard, sample_key, sample_index,"
                    " byte_offset, byte_size FROM earlier.samples WHERE tar_file_id = :earlier ORDER BY sample_index",
                    values,
                )
            except sqlite3.IntegrityError as error:
                raise InputError(self._duplicate(self._earlier_rows(base, shard, earlier))) from error
            base.execute(
                "INSERT INTO sample_parts SELECT :shard, sample_index, part_name, content_byte_offset,"
                " content_byte_size FROM earlier.sample_parts WHERE tar_file_id = :earlier"
                " ORDER BY sample_index, content_byte_offset",
                values,
            )
            if earlier.with_media:
                for table in _MEDIA_TABLES:
                    base.execute(table)
                base.execute(_COPY_MEDIA, values)
        duplicates: tuple[Duplicate, ...] = ()
        if skip_duplicates:
            rows = self._earlier_rows(base, shard, earlier)
            duplicates = self._left_out(((row[1], row[2]) for row in rows), len(rows), shard, last)
        self._take(shard, earlier.digest)
        return AddedShard(earlier.digest, duplicates)

    def add_media(self, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]] = ()) -> None:
        """Add metadata of media files, and by what they were found; the tables are made by the first call.

        Raises:
            OutputError: the system refuses.
        """
        with _errors(self.path):
            _insert_media(self._connection(), rows, filters)

    def commit(self) -> str:
        """Give the files their names, and return the uuid.

        Raises:
            OutputError: the system refuses.
        """
        base = self._connection()
        try:
            with _errors(self.path):
                for index in _INDICES:
                    base.execute(index)
                base.execute("COMMIT")
                base.close()
                self._base = None
                _sync(self._temporary)
                name = str(uuid.uuid5(UUID_SPACE, self._digest.hexdigest()))
                place = self.path.with_name(UUID_NAME)
                # A join is found by the uuid: the old one goes first, so that it never stands beside the new index.
                place.unlink(missing_ok=True)
                self._temporary.rename(self.path)
                sync_folder(self.path)
            atomic_write(place, name.encode())
        finally:
            self.discard()
        return name

    def discard(self) -> None:
        """Remove what was written. Nothing happens after a commit."""
        base, self._base = self._base, None
        if base is not None:
            base.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> SqliteWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def _connection(self) -> sqlite3.Connection:
        if self._base is None:
            raise OutputError(f"{self.path}: was written already")
        return self._base

    def _take(self, shard: int, digest: bytes) -> None:
        self._digest.update(shard.to_bytes(8, "little") + digest)

    def _attach(self, base: sqlite3.Connection, index: Path) -> None:
        if self._earlier is None:
            place = f"file:{quote(str(index.absolute()))}?mode=ro&immutable=1"
            base.execute("ATTACH ? AS earlier", (place,))
            self._earlier = index

    def _earlier_rows(
        self, base: sqlite3.Connection, shard: int, earlier: EarlierShard
    ) -> list[tuple[int, str, int, int, int]]:
        sql = (
            "SELECT ?, sample_key, sample_index, byte_offset, byte_size FROM earlier.samples WHERE tar_file_id = ?"
            " ORDER BY sample_index"
        )
        return base.execute(sql, (shard, earlier.shard)).fetchall()

    def _last_row(self) -> int:
        found = self._connection().execute("SELECT max(rowid) FROM samples").fetchone()[0]
        return found or 0

    def _left_out(self, rows: Iterable[tuple[str, int]], num_rows: int, shard: int, last: int) -> tuple[Duplicate, ...]:
        """Which of the rows of a shard were there already, where those behind the row ``last`` are its own."""
        base = self._connection()
        if self._last_row() - last == num_rows:
            return ()
        own = {row[0] for row in base.execute("SELECT sample_index FROM samples WHERE rowid > ?", (last,))}
        found = []
        for key, sample in rows:
            if sample not in own:
                sql = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?"
                found.append(Duplicate(key, shard, sample, *base.execute(sql, (key,)).fetchone()))
        return tuple(found)

    def _duplicate(self, rows: list[tuple[int, str, int, int, int]]) -> str:
        """Which key is there twice; of the batch that failed some rows may have been inserted."""
        seen: dict[str, tuple[int, int]] = {}
        for shard, key, index, _, _ in rows:
            found = seen.get(key)
            if found is None:
                sql = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ? AND tar_file_id != ?"
                found = self._connection().execute(sql, (key, shard)).fetchone()
            if found is not None:
                return (
                    f"key {key!r} is there twice: sample {found[1]} of shard {found[0]} and sample {index} of shard"
                    f" {shard}, counted from 0 as in the info file; a key names one sample of a dataset"
                )
            seen[key] = (shard, index)
        return "a sample without a key"


def update_media(root: Path, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]]) -> None:
    """Add metadata of media files to the index of a dataset, or make an index of a folder of files.

    What is there of the same entries is replaced, all else stays, the uuid too. The index is written anew beside the
    old one.

    Raises:
        OutputError: the system refuses.
    """
    path = root / META_FOLDER / INDEX_NAME
    temporary = _temporary(path)
    try:
        with _errors(path):
            path.parent.mkdir(exist_ok=True)
            if path.exists():
                shutil.copyfile(path, temporary)
            with closing(sqlite3.connect(temporary, isolation_level=None)) as base:
                base.execute("PRAGMA journal_mode = MEMORY")
                base.execute("BEGIN")
                _insert_media(base, rows, filters)
                base.execute("COMMIT")
            _sync(temporary)
            temporary.rename(path)
            sync_folder(path)
    finally:
        temporary.unlink(missing_ok=True)


def _insert_media(base: sqlite3.Connection, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]]) -> None:
    for table in _MEDIA_TABLES:
        base.execute(table)
    base.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
    base.executemany("INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", filters)


def _unwritable(shard: int, error: UnicodeEncodeError) -> InputError:
    return InputError(
        f"shard {shard}, counted from 0 as in the info file: the name {error.object!r} is not UTF-8, and an index holds"
        " no other; rename the member"
    )


def _on_conflict(skip_duplicates: bool) -> str:
    return "IGNORE" if skip_duplicates else "ABORT"


def _named(name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")
    return len(data).to_bytes(4, "little") + data


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _errors(path: Path) -> Iterator[Any]:
    """Turn what SQLite and the system refuse into an OutputError."""
    try:
        with output_errors(path, "write"):
            yield
    except sqlite3.Error as error:
        raise OutputError(f"{path}: cannot write: {error}") from error
