"""``headrace check`` of stores at URLs while the object store goes away: that is an error, and no fault of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrow_made
import made
import media_stores_made
from energon_made import write_files
from headrace.errors import StoreError
from headrace.stores import write_hdf5
from headrace.stores.energon import MediaRow, update_media
from memory_stores import Away, MemoryBucket

LISTS = pa.table({"input_ids": pa.array([[0, 1, 2, 3, 4], [5]], pa.list_(pa.int32()))})


def hdf5(folder: Path) -> None:
    folder.mkdir()
    write_hdf5(folder / "x.h5", {"tokens": [np.arange(5), np.arange(7)]})


def lines(folder: Path) -> None:
    folder.mkdir()
    (folder / "x.jsonl").write_text('{"tokens": [0, 1, 2]}\n{"tokens": [3, 4]}\n')


def parquet(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(LISTS, folder / "x.parquet")


def plain_files(folder: Path) -> None:
    folder.mkdir()
    names = {f"{number}.json": b"{}" for number in range(3)}
    update_media(write_files(folder, names), [MediaRow(name, "image", "{}") for name in names], [])


def samples(folder: Path) -> None:
    folder.mkdir()
    media_stores_made.lines(folder)


def tars(folder: Path) -> None:
    folder.mkdir()
    media_stores_made.plain(folder)


def mix(folder: Path) -> None:
    folder.mkdir()
    media_stores_made.ocr(folder / "ocr")
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (folder / "mix.yaml").write_text(f"{head}splits: {{train: {{path: ocr}}}}\n")


KINDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pairs": (made.one_key, ""),
    "pairs of two keys": (lambda folder: made.two_keys(folder, "indexed"), ""),
    "keyed": (lambda folder: made.two_keys(folder, "keyed"), ""),
    "hdf5": (hdf5, "/x.h5"),
    "lines": (lines, "/x.jsonl"),
    "parquet": (parquet, "/x.parquet"),
    "a saved dataset": (lambda folder: arrow_made.save(folder, LISTS, num_files=2), ""),
    "tars": (tars, ""),
    "energon": (media_stores_made.ocr, ""),
    "files": (plain_files, ""),
    "samples in lines": (samples, "/t.jsonl"),
    "a metadataset": (mix, "/mix.yaml"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_goes_away_is_no_fault(
    kind: str,
    run: Any,
    bucket: MemoryBucket,
    away: Away,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After any number of answers; in the end the store answers all that the check asks."""
    make, place = KINDS[kind]
    make(tmp_path / "made")
    url = bucket.upload(tmp_path / "made", "made") + place
    for num_answers in range(100):
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / f"cache{num_answers}"))
        away(num_answers)
        done = run("check", url)
        if done.exit_code == 0:
            break
        where = f"after {num_answers} answers: {done.output}"
        assert done.exit_code == StoreError.exit_code, where
        assert "the store is away" in done.stderr, where
        assert not done.stdout, where
    assert 3 < num_answers < 99
    assert "whole" in done.stdout
