"""``.nv-meta/index.sqlite``: the place of each sample by its key, and of each part by its name; read and searched.

`SqliteIndex` reads it. `KeyLookup` finds samples by key in it or, if there is none, in the shards. `check_index`
compares it with the shards.

Every schema since Energon 5.3 is supported: ``samples`` with or without ``id``, ``sample_parts`` since 7.0, and the
tables of media since 7.3. Training does not need the index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from headrace.errors import HeadraceError, InputError, StoreAwayError, StoreError
from headrace.io import AnyPath, local_file
from headrace.io.sqlite import Connection
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER, Info
from headrace.stores.store import Problem
from headrace.stores.tar.store import TarShards

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

    def __init__(self, path: AnyPath) -> None:
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

    def __reduce__(self) -> tuple[type[SqliteIndex], tuple[AnyPath]]:
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

    def get(self, path: AnyPath) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():
            self._connection = open_read_only(path)
            self._process = os.getpid()
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def open_read_only(path: AnyPath) -> sqlite3.Connection:
    """Open a connection that neither locks nor writes, and does not check whether the file changes."""
    return sqlite3.connect(read_only_uri(path), uri=True, check_same_thread=False, factory=Connection)


def read_only_uri(path: AnyPath) -> str:
    """Return the URI by which SQLite opens or attaches a file as `open_read_only` does."""
    return f"file:{quote(str(local_file(path).absolute()))}?mode=ro&immutable=1"


_SAMPLES: Final = "SELECT tar_file_id, sample_key, sample_index, byte_offset, byte_size FROM samples"


class KeyLookup:
    """Finds samples by key in some shards of a dataset.

    Args:
        root: the folder of the dataset.
        all_names: names of all shards in the info file, in whose order the index numbers them.
        shards: the shards to search, each once.
    """

    def __init__(self, root: AnyPath, all_names: Sequence[str], shards: TarShards) -> None:
        self.path = root / META_FOLDER / INDEX_NAME
        self.index = SqliteIndex(self.path) if self.path.is_file() else None
        self._all_names = all_names
        self._names = shards.names
        self._places = {name: at for at, name in enumerate(shards.names)}
        self._shards = shards

    def places(self, key: str) -> Iterator[tuple[int, int]]:
        """Yield shard and index of each sample with a key; each one is verified by reading it.

        Raises:
            StoreError: the index belongs to other shards.
        """
        if self.index is None or not self.index.has_samples:
            yield from self._shards.find(key)
            return
        for row in self.index.samples_of(key):
            at = self._places.get(self._all_names[row.shard]) if 0 <= row.shard < len(self._all_names) else None
            if at is not None:
                self._verify(key, at, row.sample)
                yield at, row.sample

    def indices(self, at: int, keys: frozenset[str]) -> dict[int, str]:
        """Return the key of each sample with one of the keys in a shard, by index; raises as `places` does."""
        if self.index is None or not self.index.has_samples:
            return {index: key for index, key in enumerate(self._shards.keys(at)) if key in keys}
        found = {index: key for key in sorted(keys) for shard, index in self.places(key) if shard == at}
        # An index holds a key only once. If two shards have the key, an exclude means the sample of the later shard.
        if missing := keys - set(found.values()):
            found |= {index: key for index, key in enumerate(self._shards.keys(at)) if key in missing}
        return found

    def stale(self, what: str) -> StoreError:
        """Return the error for an index that belongs to other shards."""
        return StoreError(
            f"{self.path}: {what}; the index belongs to other shards: prepare the dataset again, or remove the index"
        )

    def _verify(self, key: str, at: int, index: int) -> None:
        try:
            found = self._shards.key(at, index)
        except (IndexError, InputError) as error:
            raise self.stale(f"names sample {index} of {self._names[at]}, which cannot be read") from error
        if found != key:
            raise self.stale(f"has the key {key!r} for sample {index} of {self._names[at]}, whose key is {found!r}")


def check_index(index: SqliteIndex, info: Info, shards: TarShards) -> Iterator[Problem]:
    """Compare every row of ``samples`` with the headers and indices of shards, and yield the first fault of each."""
    path = str(index.path)
    numbers = {name: number for number, name in enumerate(info.shard_counts)}
    try:
        if not index.has_samples:
            return
        for at, name in enumerate(shards.names):
            fault = _fault(index, numbers[name], at, shards)
            if fault is not None:
                place, message = fault
                yield Problem(path=path, place=f"{name}: {place}" if place else name, message=message)
    except HeadraceError as error:
        yield Problem.of(path, error)


def _fault(index: SqliteIndex, number: int, at: int, shards: TarShards) -> tuple[str, str] | None:
    try:
        keys, offsets = shards.keys(at), shards.offsets(at).tolist()
    except StoreAwayError:
        raise
    except HeadraceError:
        return None  # the check of the shard reports this
    rows = list(index.samples(number))
    for row, place in zip(rows, range(len(keys)), strict=False):
        wanted = (place, keys[place], offsets[place], offsets[place + 1] - offsets[place])
        found = (row.sample, row.key, row.offset, row.size)
        if found != wanted:
            message = f"(index, key, byte, size) is {found}, but {wanted} in the shard; prepare the dataset again"
            return f"sample {place}", message
    if len(rows) != len(keys):
        return "", f"has {len(rows):,} samples, but the shard has {len(keys):,}; prepare the dataset again"
    return _part_fault(index.parts(number), len(keys), at, shards) if index.has_parts else None


def _part_fault(rows: Iterator[PartRow], count: int, at: int, shards: TarShards) -> tuple[str, str] | None:
    row = next(rows, None)
    for sample in range(count):
        found = {}
        while row is not None and row.sample == sample:
            found[row.part] = (row.offset, row.size)  # if several have the same name, the last one counts
            row = next(rows, None)
        wanted = {part: (place.offset, place.size) for part, place in shards.places(at, sample).items()}
        if found != wanted:
            message = f"its parts (byte, size) are {found}, but {wanted} in the shard; prepare the dataset again"
            return f"sample {sample}", message
    if row is None:
        return None
    return f"sample {row.sample}", f"part {row.part!r} is not in the shard; prepare the dataset again"
