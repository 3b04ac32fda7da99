"""Reads ``.nv-meta/index.sqlite``, which has the place of each sample by its key, and of each part by its name.

Every schema since Energon 5.3 is supported: ``samples`` with or without ``id``, ``sample_parts`` since 7.0, and the
tables of media since 7.3. Training does not need the index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from headrace.errors import StoreError

BATCH_ROWS: Final = 10_000


class SampleRow(NamedTuple):
    """A row of ``samples``: number of the shard in the info file, key, number and range in the tar of the sample."""

    shard: int
    key: str
    sample: int
    offset: int
    size: int


class PartRow(NamedTuple):
    """A row of ``sample_parts``: the range of the content of one part in the tar, without its header."""

    shard: int
    sample: int
    part: str
    offset: int
    size: int


class MediaRow(NamedTuple):
    """A row of ``media_metadata``: ``kind`` is ``"av"`` or ``"image"``, ``facts`` is the metadata as JSON."""

    entry: str
    kind: str
    facts: str


class SqliteIndex:
    """The index of a dataset, read-only, as it was at the first query. It is safe in threads and across a fork.

    Args:
        path: path of the ``index.sqlite``.

    Raises:
        StoreError: at the first query: the file is missing, is not a database, or lacks the tables of the query.

    Example:
        >>> import pathlib
        >>> index = headrace.stores.energon.SqliteIndex(pathlib.Path("shards/.nv-meta/index.sqlite"))
        >>> first = next(index.samples())
        >>> first.shard, first.sample, first.offset
        (0, 0, 0)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = _Connections()
        self._tables: dict[str, tuple[str, ...]] | None = None

    @property
    def has_samples(self) -> bool:
        """Whether it has the samples; the index of a folder of files has only metadata of media."""
        return "samples" in self.tables

    @property
    def has_parts(self) -> bool:
        """Whether it has the parts of the samples, as since Energon 7.0."""
        return self.has_samples and "sample_parts" in self.tables

    @property
    def has_media(self) -> bool:
        """Whether it has metadata of media, as is possible since Energon 7.3."""
        return "media_metadata" in self.tables

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The columns of each table by its name."""
        if self._tables is None:
            names = [row[0] for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
            found = {}
            for name in names:
                found[name] = tuple(row[0] for row in self._rows("SELECT name FROM pragma_table_info(?)", name))
            self._tables = found
        return self._tables

    def sample(self, key: str) -> SampleRow | None:
        """Return where the sample with a key lies, the first one if there are several; None if there is none."""
        return next(iter(self.samples_of(key)), None)

    def samples_of(self, key: str) -> list[SampleRow]:
        """Return the samples with a key: none, one, or several in indices from before Energon 7.3."""
        self._need("samples")
        rows = self._rows(f"{_SAMPLES} WHERE sample_key = ? ORDER BY tar_file_id, sample_index", key)
        found = [SampleRow._make(row) for row in rows]
        for row in found:
            if type(row.shard) is not int or type(row.sample) is not int:
                raise StoreError(
                    f"{self.path}: samples: the row of key {key!r} has values that are not numbers: {row}; prepare the"
                    " dataset again"
                )
        return found

    def samples(self, shard: int | None = None) -> Iterator[SampleRow]:
        """Yield all samples, or those of one shard, in the order of shards and samples."""
        self._need("samples")
        where = "" if shard is None else " WHERE tar_file_id = ?"
        order = " ORDER BY tar_file_id, sample_index"
        return map(SampleRow._make, self._rows(_SAMPLES + where + order, *([] if shard is None else [shard])))

    def part(self, key: str, part: str) -> PartRow | None:
        """Return where a part lies; if several have the same name, the last one, as when a sample is read."""
        self._need("sample_parts")
        rows = self._rows(
            "SELECT p.tar_file_id, p.sample_index, p.part_name, p.content_byte_offset, p.content_byte_size"
            " FROM samples s JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index"
            " WHERE s.sample_key = ? AND p.part_name = ? ORDER BY p.tar_file_id, p.content_byte_offset DESC LIMIT 1",
            key,
            part,
        )
        return next(map(PartRow._make, rows), None)

    def parts(self, shard: int) -> Iterator[PartRow]:
        """Yield the parts of the samples of a shard, in the order of the tar."""
        self._need("sample_parts")
        return map(
            PartRow._make,
            self._rows(
                "SELECT tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
                " WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset",
                shard,
            ),
        )

    def media_metadata(self, entry: str) -> dict[str, Any] | None:
        """Return the metadata of one media file, ``{"type": "image", "width": 640, ...}``; None if it has none.

        Args:
            entry: name of the member of the tar, or of the file relative to its folder.

        Raises:
            StoreError: the dataset has no metadata of media.
        """
        self._need("media_metadata")
        sql = "SELECT entry_key, metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"
        row = next(map(MediaRow._make, self._rows(sql, entry)), None)
        return None if row is None else {"type": row.kind, **self._facts(row)}

    def media(self) -> Iterator[MediaRow]:
        """Yield all rows of media metadata, in the order of the table."""
        self._need("media_metadata")
        rows = self._rows("SELECT entry_key, metadata_type, metadata_json FROM media_metadata ORDER BY rowid")
        return map(MediaRow._make, rows)

    def media_filters(self) -> list[tuple[str, str]]:
        """Return the filters that found the media: strategy (``EXTENSION``, ``HEADER``, ``GLOB``) and patterns."""
        if "media_filters" not in self.tables:
            return []
        return list(self._rows("SELECT strategy, patterns FROM media_filters ORDER BY filter_id"))

    def close(self) -> None:
        """Close the file. A later query opens it again."""
        self._local.close()

    def __reduce__(self) -> tuple[type[SqliteIndex], tuple[Path]]:
        return type(self), (self.path,)

    def _facts(self, row: MediaRow) -> dict[str, Any]:
        try:
            return msgspec.json.decode(row.facts or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{self.path}: media_metadata of {row.entry!r}: {error}") from error

    def _need(self, table: str) -> None:
        if table not in self.tables:
            command = "headrace prepare or energon prepare" if table != "media_metadata" else "energon prepare-media"
            raise StoreError(
                f"{self.path}: has no table {table}; its tables are {', '.join(self.tables) or 'none'}; make it with"
                f" {command}"
            )

    def _rows(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            cursor = self._local.get(self.path).execute(sql, values)
            try:
                while rows := cursor.fetchmany(BATCH_ROWS):
                    yield from rows
            finally:
                cursor.close()
        except UnicodeEncodeError:
            return  # the name is not UTF-8, so it cannot be in an index
        except (sqlite3.Error, UnicodeDecodeError) as error:
            hint = "" if self.path.is_file() else "; the file is missing, prepare the dataset again"
            raise StoreError(f"{self.path}: cannot be read: {error}{hint}") from error


class _Connections(threading.local):
    """Keeps one connection for each thread and process, since connections of SQLite do not survive a fork."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def get(self, path: Path) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():
            self._connection = open_read_only(path)
            self._process = os.getpid()
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that neither locks nor writes, and does not check whether the file changes."""
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)


_SAMPLES: Final = "SELECT tar_file_id, sample_key, sample_index, byte_offset, byte_size FROM samples"
