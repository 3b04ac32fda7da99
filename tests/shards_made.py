"""Folders and tables of small media, and `prepare_shards` with workers inside this process."""

from __future__ import annotations

import base64
import contextlib
import csv
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tars_made
from headrace.preparing.shards import ShardOptions, prepare_shards
from headrace.stores import Manifest
from headrace.testing.work import inline as workers_inside

PNG = b"\x89PNG\r\n\x1a\n"
JPG = b"\xff\xd8\xff"
Samples = Mapping[str, Mapping[str, bytes]]


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Small spans of tables, and workers in this process."""
    with workers_inside(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.preparing.shards.plan.choose_task_bytes", lambda size: 700)
        patch.setattr("headrace.preparing.shards.packing._AT_ONCE", 7)
        yield


def image(number: int, head: bytes = JPG) -> bytes:
    """Bytes that begin as an image, of a size of their own."""
    return head + bytes([number % 256]) * (20 + number * 37 % 900)


def rows(count: int) -> list[dict[str, Any]]:
    """Rows of a table: name of a file, caption, and something else."""
    return [
        {
            "id": f"s{number}",
            "file": f"pictures/{number:03d}.jpg",
            "caption": f"caption {number} é",
            "score": number / 4,
        }
        for number in range(count)
    ]


def write_pictures(folder: Path, count: int) -> None:
    """The files of `rows`."""
    (folder / "pictures").mkdir(parents=True)
    for number in range(count):
        (folder / "pictures" / f"{number:03d}.jpg").write_bytes(image(number))


def write_table(path: Path, records: list[dict[str, Any]]) -> None:
    """A table in the format of its name; bytes are base64 where it has none."""
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows([{name: _text(value) for name, value in record.items()} for record in records])
    elif path.suffix == ".jsonl":
        lines = [{name: _text(value) for name, value in record.items()} for record in records]
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(records)
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=9)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                for batch in table.to_batches(max_chunksize=9):
                    file.write_batch(batch)


def _text(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def tar_of(samples: Samples) -> bytes:
    """A shard as `tarfile` writes it."""
    return tars_made.tar_bytes(tars_made.members_of(list(samples.items())), tarfile.PAX_FORMAT)


def read_all(folder: Path) -> dict[str, dict[str, bytes]]:
    """All samples of the shards, by `tarfile`, in order."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("shard-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                folder_name, _, base = member.name.rpartition("/")
                key, _, part = base.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(f"{folder_name}/{key}" if folder_name else key, {})[part] = file.read()
    return found


def prepare(inputs: Path | list[Path], output: Path, options: ShardOptions, **changes: Any) -> Manifest:
    """`prepare_shards` with some options changed."""
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return prepare_shards(inputs, output, options=msgspec.structs.replace(options, **changes))
