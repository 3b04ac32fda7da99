"""Writes a join index from the ``index.sqlite`` files of several datasets, to a folder or to a URL."""

from __future__ import annotations

import filecmp
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import AnyPath, AtomicFile, RemotePath, local_file, output_errors, remove_file
from headrace.io.atomic import move_file
from headrace.stores.energon.joined import MAGIC, JoinColumn, check_columns, join_name
from headrace.stores.energon.sqlite_index import BATCH_ROWS, open_read_only, read_only_uri
from headrace.stores.energon.store import EnergonStore

MAX_COLUMNS: Final = 11
"""SQLite can attach ten databases to a first one."""

_NONE: Final = (-1, -1, -1)


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A join index that was written.

    Attributes:
        path: path or URL of the index.
        rows: number of joined samples.
        skipped: number of primary samples that were left out because a partner is missing.
        missing: for each column, the number of rows without it.
    """

    path: AnyPath
    rows: int
    skipped: int
    missing: tuple[int, ...]


def write_join(folder: AnyPath, columns: Sequence[JoinColumn]) -> Join:
    """Join datasets by key and write the index. About 4 us a row and column.

    The folder may be at a URL, and so may the datasets: their ``index.sqlite`` are fetched whole, and kept. The index
    is then made in a temporary folder on this host, and uploaded; one that is there already with the same rows stays.

    The index gets Energon's name if that is free, so that Energon reads it. If the join of another split of the same
    datasets already has this name, the index gets a name that depends on the split. Rows are in the order of the
    primary dataset. The index only appears once all rows are found to be valid.

    Raises:
        InputError: a sample has no partner in the split of a column with nonmatch ``"error"``, or two samples have the
            same key.
        StoreError: a dataset has no ``index.sqlite`` with its samples.
        ConfigError: the columns cannot be joined, or the folder is on a web server.
        OutputError: the system or the store reports an error.
    """
    check_columns(columns)
    if len(columns) > MAX_COLUMNS:
        raise ConfigError(f"a join of {len(columns)} datasets was requested; at most {MAX_COLUMNS} are allowed")
    ours, theirs = folder / join_name(columns, with_split=True), folder / join_name(columns)
    with _made_in(folder) as here:
        made, counts = here / ours.name, _Counts(len(columns))
        with AtomicFile(made) as file:
            file.write(MAGIC + np.array([len(columns)], "<i8").tobytes())
            for rows in _rows(columns, counts):
                try:
                    file.write(np.array(rows, "<i8").tobytes())
                except (TypeError, ValueError, OverflowError) as error:
                    raise StoreError(
                        f"{columns[0].store.path}: an index.sqlite has a place that is not a number: {error}"
                    ) from error
        if isinstance(folder, RemotePath):
            folder.objects.forget()  # others may have written there since it was looked at
        is_free = not theirs.is_file() or _is_same(theirs, made)
        place = theirs if is_free else ours
        # A run may be reading one that is there.
        if not (place.is_file() and _is_same(place, made)):
            move_file(made, place)
        if is_free and ours.is_file():  # from a time when the other name was taken, or made just now
            remove_file(ours)
    return Join(path=place, rows=counts.rows, skipped=counts.skipped, missing=tuple(counts.missing))


@contextmanager
def _made_in(folder: AnyPath) -> Iterator[Path]:
    """Yield where an index is made: in its folder, or for a URL in a temporary one on this host."""
    if isinstance(folder, Path):
        with output_errors(folder, "create"):
            folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with output_errors(Path("$TMPDIR"), "make a folder in"):
        made = TemporaryDirectory(prefix="headrace-join-")
    with made as here:
        yield Path(here)


def _is_same(there: AnyPath, here: Path) -> bool:
    with output_errors(here, "compare"):
        return there.stat().st_size == here.stat().st_size and filecmp.cmp(local_file(there), here, shallow=False)


class _Counts:
    def __init__(self, num_columns: int) -> None:
        self.rows = self.skipped = 0
        self.missing = [0] * num_columns


def _rows(columns: Sequence[JoinColumn], counts: _Counts) -> Iterator[list[list[tuple[int, int, int]]]]:
    first = columns[0].store
    try:
        with closing(open_read_only(_index(first))) as base:
            for number, column in enumerate(columns):
                if number:
                    base.execute(f"ATTACH ? AS base{number}", (read_only_uri(_index(column.store)),))
                _select(base, number, column.store)
                _check_unique(base, number, column.store)
            cursor = base.execute(_query(len(columns)))
            while found := cursor.fetchmany(BATCH_ROWS):
                rows = [row for row in (_row(values, columns, counts) for values in found) if row is not None]
                counts.rows += len(rows)
                if rows:
                    yield rows
    except sqlite3.Error as error:
        raise StoreError(f"{first.path}: the index.sqlite files cannot be joined: {error}") from error


def _index(store: EnergonStore) -> AnyPath:
    if store.index is None or not store.index.has_samples:
        raise StoreError(
            f"{store.path}: has no index.sqlite with its samples, which a join needs; prepare the dataset again"
        )
    return store.index.path


def _select(base: sqlite3.Connection, number: int, store: EnergonStore) -> None:
    """Create tables of a column's shards with their places in its split, and of the samples that are left out."""
    numbers = {name: at for at, name in enumerate(store.info.shard_counts)}
    wanted, part = set(store.shards), store.part_shards
    places = [(numbers[name], place) for place, name in enumerate(part.listed) if name in wanted]
    if number:  # the samples of a shard that is listed twice occur twice; the first one is the partner
        places = list({shard: (shard, place) for shard, place in reversed(places)}.values())
    base.execute(f"CREATE TEMP TABLE shards{number} (tar_file_id INTEGER, place INTEGER)")
    base.executemany(f"INSERT INTO shards{number} VALUES (?, ?)", places)
    base.execute(f"CREATE INDEX temp.by_shard{number} ON shards{number}(tar_file_id, place)")
    base.execute(f"CREATE TEMP TABLE left{number} (tar_file_id INTEGER, key TEXT, PRIMARY KEY (tar_file_id, key))")
    keys = [(numbers[shard], key) for shard, keys in part.keys.items() for key in sorted(keys)]
    base.executemany(f"INSERT INTO left{number} VALUES (?, ?)", keys)


def _check_unique(base: sqlite3.Connection, number: int, store: EnergonStore) -> None:
    # Since Energon 7.3 the table does not allow a key twice.
    name = _schema(number)
    found = base.execute(
        f"SELECT s.sample_key FROM {name}.samples s WHERE s.tar_file_id IN (SELECT tar_file_id FROM shards{number})"
        f" AND {_kept(number)} GROUP BY s.sample_key HAVING COUNT(*) > 1 LIMIT 1"
    ).fetchone()
    if found is not None:
        raise InputError(f"{store.path}: cannot be joined: key {found[0]!r} occurs twice; keys must be unique")


def _query(num_columns: int) -> str:
    """Return the query for key and place of each primary sample, in order, and shard and place of its partners.

    The place of a partner is null if its shard is not in the split, or if the partner is left out.
    """
    selected, joined = ["s.sample_key", "o.place", "s.byte_offset", "s.byte_size"], []
    for number in range(1, num_columns):
        selected += [f"s{number}.tar_file_id", f"o{number}.place", f"s{number}.byte_offset", f"s{number}.byte_size"]
        joined.append(
            f" LEFT JOIN base{number}.samples s{number} ON s{number}.sample_key = s.sample_key"
            f" LEFT JOIN shards{number} o{number} ON o{number}.tar_file_id = s{number}.tar_file_id"
            f" AND {_kept(number, f's{number}')}"
        )
    return (
        f"SELECT {', '.join(selected)} FROM shards0 o CROSS JOIN main.samples s ON s.tar_file_id = o.tar_file_id"
        f"{''.join(joined)} WHERE {_kept(0)} ORDER BY o.place, s.sample_index"
    )


def _kept(number: int, alias: str = "s") -> str:
    same = f"x.tar_file_id = {alias}.tar_file_id AND x.key = {alias}.sample_key"
    return f"NOT EXISTS (SELECT 1 FROM left{number} x WHERE {same})"


def _schema(number: int) -> str:
    return f"base{number}" if number else "main"


def _row(values: tuple[Any, ...], columns: Sequence[JoinColumn], counts: _Counts) -> list[tuple[int, int, int]] | None:
    row = [values[1:4]]
    absent = []
    for number in range(1, len(columns)):
        shard, *place = values[4 * number : 4 * number + 4]
        if place[0] is None:
            if columns[number].nonmatch == "skip":
                counts.skipped += 1
                return None
            absent.append((number, shard))
            row.append(_NONE)
        else:
            row.append(tuple(place))
    for number, shard in absent:
        if columns[number].nonmatch == "error":
            store = columns[number].store
            where = "has no such key" if shard is None else "has it in another part, or excludes it"
            raise InputError(
                f"{columns[0].store.path}: sample {values[0]!r} has no partner in {store.path},"
                f" split_part {store.split_part!r}, which {where}; with nonmatch: skip such samples are"
                " left out, and with nonmatch: none they are kept"
            )
        counts.missing[number] += 1
    return row
