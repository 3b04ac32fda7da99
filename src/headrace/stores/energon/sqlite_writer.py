"""Writes ``.nv-meta/index.sqlite`` and ``index.uuid`` with the same rows as Energon, in the order of the shards."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.errors import InputError, OutputError
from headrace.io import atomic_write, output_errors, sync, sync_folder, temporary_path
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER, UUID_NAME
from headrace.stores.energon.sqlite_index import MediaRow, read_only_uri
from headrace.stores.tar.scan import ScannedShard

UUID_SPACE: Final = uuid.UUID("6b1c1c53-6cd9-5c39-8a0e-3a6d2f7c9d10")
"""The namespace of the uuids that Headrace makes; their names in it are digests of the content of an index."""

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
_COPY: Final = (
    """INSERT OR IGNORE INTO samples SELECT :shard, sample_key, sample_index, byte_offset, byte_size
        FROM earlier.samples WHERE tar_file_id = :earlier ORDER BY sample_index""",
    """INSERT INTO sample_parts SELECT :shard, sample_index, part_name, content_byte_offset, content_byte_size
        FROM earlier.sample_parts WHERE tar_file_id = :earlier ORDER BY sample_index, content_byte_offset""",
)
_COPY_MEDIA: Final = """INSERT OR REPLACE INTO media_metadata
    SELECT m.entry_key, m.metadata_type, m.metadata_json FROM earlier.samples s
    CROSS JOIN earlier.sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
    CROSS JOIN earlier.media_metadata m ON m.entry_key = s.sample_key || '.' || p.part_name
    WHERE s.tar_file_id = :earlier ORDER BY s.sample_index, p.content_byte_offset"""
_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -65536")


class Duplicate(NamedTuple):
    """A sample with the key of an earlier one: its shard and number, and those of the earlier sample."""

    key: str
    shard: int
    sample: int
    first_shard: int
    first_sample: int


class AddedShard(NamedTuple):
    """The result of adding a shard: a digest of its samples, and the duplicates that were left out."""

    digest: bytes
    duplicates: tuple[Duplicate, ...]


class EarlierShard(NamedTuple):
    """A shard in an earlier index: path of the index, number of the shard in it, and digest of the shard."""

    path: Path
    shard: int
    digest: bytes
    with_media: bool


class SqliteWriter:
    """Writes the index of a dataset, one shard at a time. It appears whole, with its uuid, or not at all.

    The uuid is derived from the content of the index (Energon's is random), so the same shards have the same uuid. As a
    context manager it commits at the end.

    Args:
        root: the folder of the dataset.

    Raises:
        OutputError: the system reports an error.

    Example:
        >>> import pathlib
        >>> from headrace.stores.tar.scan import scan_shard
        >>> from headrace.stores.tar.writer import TarWriter
        >>> pathlib.Path("notes/.nv-meta").mkdir(parents=True)
        >>> with TarWriter("notes/0.tar") as tar:
        ...     offset = tar.add("0001", {"txt": b"a note"})
        >>> with headrace.stores.energon.SqliteWriter(pathlib.Path("notes")) as writer:
        ...     added = writer.add_shard(0, scan_shard("notes/0.tar"))
        >>> headrace.stores.energon.SqliteIndex(pathlib.Path("notes/.nv-meta/index.sqlite")).sample("0001").offset
        0
    """

    def __init__(self, root: Path) -> None:
        self.path = root / META_FOLDER / INDEX_NAME
        self._temporary = temporary_path(self.path)
        self._digest = hashlib.blake2b(digest_size=32)
        self._is_attached = False
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
        """Add the samples of a shard. About 4 us a sample and 1 us a part.

        Args:
            shard: the shard's number in the info file.
            scanned: the shard's samples.
            skip_duplicates: whether to leave out samples whose keys are already there, and to return them; otherwise
                they are an error.

        Raises:
            InputError: a key is already there, in this shard or another; or a name is not UTF-8.
            OutputError: the system reports an error.
        """
        begins = scanned.offsets[:-1].tolist()
        sizes = np.diff(scanned.offsets).tolist()
        rows = list(zip(repeat(shard), scanned.keys, range(len(begins)), begins, sizes, strict=False))
        samples = np.repeat(np.arange(len(begins)), np.diff(scanned.part_bounds)).tolist()
        places = scanned.part_offsets.tolist(), scanned.part_sizes.tolist()
        part_rows = list(zip(repeat(shard), samples, scanned.part_names, *places, strict=False))
        base, last = self._connection(), self._last_row()
        with _errors(self.path):
            try:
                base.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?)", rows)
                base.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", part_rows)
            except UnicodeEncodeError as error:
                raise InputError(
                    f"shard {shard}, counted from 0 as in the info file: the name {error.object!r} is not UTF-8, which"
                    " an index cannot hold; rename the member"
                ) from error
            duplicates = self._left_out(scanned.keys, shard, last)
        if duplicates and not skip_duplicates:
            one = duplicates[0]
            raise InputError(
                f"key {one.key!r} occurs twice: in sample {one.first_sample} of shard {one.first_shard} and in sample"
                f" {one.sample} of shard {shard}, counted from 0 as in the info file; keys must be unique in a dataset"
            )
        digest = hashlib.blake2b(digest_size=16)
        for facts in (scanned.offsets, scanned.part_bounds, scanned.part_offsets, scanned.part_sizes):
            digest.update(len(facts).to_bytes(8, "little") + np.ascontiguousarray(facts, "<i8").tobytes())
        for names in (scanned.keys, scanned.part_names):
            digest.update(b"".join(_named(name) for name in names))
        self._digest.update(shard.to_bytes(8, "little") + digest.digest())
        return AddedShard(digest.digest(), duplicates)

    def copy_shard(self, shard: int, earlier: EarlierShard) -> AddedShard:
        """Copy the samples of a shard, and the metadata of its media, from an earlier index.

        This makes the same rows as `add_shard` that leaves out duplicates, but in a third of the time, and without a
        look at the shard.

        Args:
            shard: the shard's number in the info file now.
            earlier: where its rows are. All shards must be copied from the same index.

        Raises:
            OutputError: the system reports an error.
        """
        base, last, values = self._connection(), self._last_row(), {"shard": shard, "earlier": earlier.shard}
        with _errors(self.path):
            if not self._is_attached:
                base.execute("ATTACH ? AS earlier", (read_only_uri(earlier.path),))
                self._is_attached = True
            for sql in (*_COPY, *((*_MEDIA_TABLES, _COPY_MEDIA) if earlier.with_media else ())):
                base.execute(sql, values)
            sql = "SELECT sample_key FROM earlier.samples WHERE tar_file_id = :earlier ORDER BY sample_index"
            duplicates = self._left_out([row[0] for row in base.execute(sql, values)], shard, last)
        self._digest.update(shard.to_bytes(8, "little") + earlier.digest)
        return AddedShard(earlier.digest, duplicates)

    def add_media(self, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]] = ()) -> None:
        """Add metadata of media files, and the filters that found them. The first call creates the tables.

        Raises:
            OutputError: the system reports an error.
        """
        with _errors(self.path):
            _insert_media(self._connection(), rows, filters)

    def commit(self) -> str:
        """Give the files their final names, and return the uuid.

        Raises:
            OutputError: the system reports an error.
        """
        base = self._connection()
        try:
            with _errors(self.path):
                for index in _INDICES:
                    base.execute(index)
                base.execute("COMMIT")
                base.close()
                self._base = None
                sync(self._temporary)
                name = str(uuid.uuid5(UUID_SPACE, self._digest.hexdigest()))
                place = self.path.with_name(UUID_NAME)
                # A join is found by the uuid. Remove the old uuid first, so that it never lies beside the new index.
                place.unlink(missing_ok=True)
                self._temporary.rename(self.path)
                sync_folder(self.path)
            atomic_write(place, name.encode())
        finally:
            self.discard()
        return name

    def discard(self) -> None:
        """Remove what was written. After a commit this does nothing."""
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
            raise OutputError(f"{self.path}: the index is already written")
        return self._base

    def _last_row(self) -> int:
        found = self._connection().execute("SELECT max(rowid) FROM samples").fetchone()[0]
        return found or 0

    def _left_out(self, keys: Sequence[str], shard: int, last: int) -> tuple[Duplicate, ...]:
        """Return which samples of a shard were there already; rows after ``last`` are those that it has added."""
        if self._last_row() - last == len(keys):
            return ()
        base = self._connection()
        own = {row[0] for row in base.execute("SELECT sample_index FROM samples WHERE rowid > ?", (last,))}
        sql = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?"
        return tuple(
            Duplicate(key, shard, sample, *base.execute(sql, (key,)).fetchone())
            for sample, key in enumerate(keys)
            if sample not in own
        )


def update_media(root: Path, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]]) -> None:
    """Add metadata of media files to the index of a dataset, or create the index of a folder of files.

    Existing metadata of the same entries is replaced. Everything else stays, including the uuid. A copy of the index is
    changed and then replaces the old one.

    Raises:
        OutputError: the system reports an error.
    """
    path = root / META_FOLDER / INDEX_NAME
    temporary = temporary_path(path)
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
            sync(temporary)
            temporary.rename(path)
            sync_folder(path)
    finally:
        temporary.unlink(missing_ok=True)


def _insert_media(base: sqlite3.Connection, rows: Iterable[MediaRow], filters: Iterable[tuple[str, str]]) -> None:
    for table in _MEDIA_TABLES:
        base.execute(table)
    base.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
    base.executemany("INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", filters)


def _named(name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")
    return len(data).to_bytes(4, "little") + data


@contextmanager
def _errors(path: Path) -> Iterator[Any]:
    """Turn errors of SQLite and of the system into an OutputError."""
    try:
        with output_errors(path, "write"):
            yield
    except sqlite3.Error as error:
        raise OutputError(f"{path}: cannot write: {error}") from error
