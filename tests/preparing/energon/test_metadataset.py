"""The joins of metadatasets: found wherever they are, here or at URLs; none is made of what cannot be joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore import delete

from energon_made import write_tar
from headrace.compat.energon import prepare_metadataset as energons
from headrace.datasets.metadataset import JoinedSource, load_dataset, prepare_metadataset, sources
from headrace.datasets.metadataset.opening import join_store
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.preparing.energon import (
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    plan_energon,
    prepare_energon,
)
from memory_stores import MemoryBucket, Stopped, sent_files, stop_at, watched

JOIN = "{join: [{path: a}, {path: b, nonmatch: skip}]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of two shards each, one for a part; a sample of ``a`` has no partner in ``b``."""
    root = tmp_path / "data"
    split = SplitChoice(parts=(("train", "0"), ("val", "1")))
    for name, part, missing in (("a", "jpg", 9), ("b", "txt", 2)):
        for shard in (0, 1):
            members = [(f"k{shard}{at}.{part}", b"x" * (700 * shard + at)) for at in range(4) if at != missing]
            write_tar(root / f"{name}/{shard}.tar", members)
        prepare_energon(root / name, options=EnergonOptions(split=split))
    return root


def write(root: Path, splits: str, name: str = "meta.yaml") -> Path:
    (root / name).write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {splits}\n")
    return root / name


def prepare(folder: Path, splits: str) -> tuple[EnergonReport, list[str]]:
    notices: list[str] = []
    return prepare_energon(write(folder, splits), on_notice=notices.append), notices


JOINER = "joiner: {__module__: megatron.energon, __class__: TextSample}"
NAMED = f"{JOIN[:-1]}, {JOINER}}}"


@pytest.mark.parametrize(
    ("splits", "shard"),
    [
        (f"{{train: {{blend: [{{weight: 1, blend: [{NAMED}]}}]}}}}", 0),
        (f"{{train: {{concat: [{{limit: 2, blend: [{{blend_epochized: [{NAMED}]}}]}}]}}}}", 0),
        (f"{{train: {{datasets: [{{blend: [{NAMED}]}}]}}}}", 0),
        (f"{{train: {{blend: [{NAMED}], split_part: val}}}}", 1),
        (f"{{train: {{concat: [{{limit: 2, blend: [{{concat: [{NAMED}]}}], split_part: val}}]}}}}", 1),
        (f"{{train: {{concat: [{{blend_epochized: [{NAMED[:-1]}, split_part: train}}], split_part: val}}]}}}}", 0),
        ("{train: {blend: [{path: inner.yaml}], split_part: val}}", 1),
        ("{train: {concat: [{blend_epochized: [{path: inner.yaml}]}]}}", 0),
        ("{train: {path: FILE/inner.yaml, split_part: val}}", 1),
        (f"{{train: {NAMED.replace('path: a', 'path: FILE/a')}}}", 0),
        (f"{{train: {{join: {{one: {{path: a}}, two: {{path: b, nonmatch: skip}}}}, {JOINER}}}}}", 0),
    ],
)
def test_joins_are_made_where_a_run_looks_for_them(folder: Path, splits: str, shard: int) -> None:
    """Inline in other nodes, through files, and of the part that is said around them."""
    write(folder, f"{{train: {{blend: [{{concat: [{NAMED}]}}]}}, val: {NAMED}}}", "inner.yaml")
    prepare(folder, splits.replace("FILE", f"file://{folder}"))
    (joined,) = sources(load_dataset(folder / "meta.yaml").tree("train"))
    assert isinstance(joined, JoinedSource)
    rows = join_store(joined).read_joined(np.arange(3))
    assert [[sample.key for sample in row if sample] for row in rows] == [[f"k{shard}{at}"] * 2 for at in (0, 1, 3)]


def test_a_join_in_each_of_two_splits_and_none(folder: Path) -> None:
    report, notices = prepare(folder, f"{{train: {JOIN}, val: {JOIN}}}")
    assert (report.samples, len(report.written), len(notices)) == (6, 2, 2)
    assert all("3 joined samples, 1 without a partner left out" in notice for notice in notices)
    report, notices = prepare(folder, "{train: {path: a}}")
    assert (report.written, report.samples) == ((), 0)
    assert "holds no join" in notices[0]


# Joins at URLs: the index of the local run beside the file, whatever is at a URL.


def indexes(bucket: MemoryBucket) -> dict[str, bytes]:
    return {name: data for name, data in bucket.content("ds").items() if ".cache/" in name}


def made_here(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.cache/*")}


SPLITS = {
    "two splits": f"{{train: {NAMED}, val: {NAMED}}}",
    "in blends": f"{{train: {{blend: [{{weight: 1, path: a}}, {NAMED}]}}, val: {{blend_epochized: [{NAMED}]}}}}",
    "named": NAMED.replace("join: [{path: a}, {", "join: {one: {path: a}, two: {").replace("skip}]", "skip}}"),
    "nested": "{train: {blend: [{path: inner.yaml, split_part: val}]}}",
    "nothing": "{train: {path: a}}",
}
SPLITS["named"] = f"{{train: {SPLITS['named']}}}"


@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_the_index_of_the_local_run(bucket: MemoryBucket, folder: Path, splits: str) -> None:
    write(folder, f"{{train: {NAMED}, val: {NAMED}}}", "inner.yaml")
    path = write(folder, splits)
    url = bucket.upload(folder, "ds")
    here: list[str] = []
    there: list[str] = []
    wanted = prepare_energon(path, on_notice=here.append)
    found = prepare_energon(f"{url}/meta.yaml", on_notice=there.append)
    assert indexes(bucket) == made_here(folder)
    assert [one.replace(url, str(folder)) for one in there] == here
    assert (found.samples, found.kind) == (wanted.samples, "metadataset")
    assert [one.replace(url, str(folder)) for one in found.written] == list(wanted.written)
    # What is there already is not written again, under the eyes of a run.
    with sent_files() as sent:
        assert prepare_energon(f"{url}/meta.yaml") == found
    assert sent == []


@pytest.mark.parametrize("where", ["a URL", "a URL beside local data", "here beside data at URLs"])
@pytest.mark.parametrize("prepare", [prepare_energon, prepare_metadataset, energons])
def test_whatever_is_at_a_url(bucket: MemoryBucket, folder: Path, where: str, prepare: Any) -> None:
    path = write(folder, f"{{train: {NAMED}}}")
    prepare(path)
    wanted = set(made_here(folder).values())
    (old,) = (folder / "meta.yaml.cache").iterdir()
    old.unlink()
    url = bucket.upload(folder, "ds")
    text = path.read_text()
    if where == "here beside data at URLs":
        path.write_text(text.replace("path: ", f"path: {url}/"))
        prepare(path)
        assert (set(made_here(folder).values()), indexes(bucket)) == (wanted, {})
        return
    if where == "a URL beside local data":
        bucket.put(
            "ds/meta.yaml", text.replace("path: a", f"path: {folder}/a").replace("path: b", "path: ../ds/b").encode()
        )
    prepare(f"{url}/meta.yaml")
    assert (set(indexes(bucket).values()), made_here(folder)) == (wanted, {})


def test_indexes_that_no_join_uses_are_removed(bucket: MemoryBucket, folder: Path) -> None:
    """Of two splits, one has the name of Energon's. When both are gone, the next one gets it."""
    path = write(folder, f"{{train: {NAMED}, val: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    bucket.put("ds/meta.yaml.cache/notes.txt", b"mine")
    for splits in (f"{{train: {NAMED}, val: {NAMED}}}", f"{{val: {NAMED}}}", "{train: {path: a}}", f"{{val: {NAMED}}}"):
        bucket.put("ds/meta.yaml", write(folder, splits).read_bytes())
        prepare_energon(path)
        prepare_energon(f"{url}/meta.yaml")
        assert indexes(bucket) == {**made_here(folder), "meta.yaml.cache/notes.txt": b"mine"}


def test_a_run_that_ends_at_any_moment(bucket: MemoryBucket, folder: Path) -> None:
    path = write(folder, f"{{train: {NAMED}, val: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    prepare_energon(path)
    wanted = made_here(folder)
    moments = 0
    while True:
        try:
            with watched(stop_at(moments)):
                prepare_energon(f"{url}/meta.yaml")
            break
        except Stopped:
            moments += 1
        assert set(indexes(bucket).values()) <= set(wanted.values())
        prepare_energon(f"{url}/meta.yaml")
        assert indexes(bucket) == wanted
        delete(bucket.store, [f"ds/{name}" for name in wanted])
    assert moments == len(wanted)


@pytest.mark.parametrize(
    ("splits", "kind", "message"),
    [
        ("{train: {join: [{path: a}, {path: b}]}}", InputError, "partner"),
        ("{train: {join: [{path: a, split: x}, {path: b}]}}", StoreError, "'split_part'"),
        ("{train: {join: [{path: a}, {nonmatch: skip}]}}", StoreError, "path"),
        ("{train: {join: [{path: a}, {path: b, nonmatch: maybe}]}}", StoreError, "nonmatch"),
        ("{train: {join: [{path: a, split_part: test}, {path: b}]}}", StoreError, "'test'"),
        ("{train: {join: [{path: gone}, {path: b}]}}", StoreError, "gone"),
        ("{train: {path: meta.yaml}}", StoreError, "itself"),
        ("{train: {path: none.yaml}}", StoreError, r"none\.yaml"),
        ("{train: {blend: a}}", StoreError, "list"),
        ("5", StoreError, "map"),
    ],
)
def test_what_cannot_be_joined(
    bucket: MemoryBucket, folder: Path, splits: str, kind: type[HeadraceError], message: str
) -> None:
    """Here and at a URL."""
    path = write(folder, splits)
    url = bucket.upload(folder, "ds")
    with pytest.raises(kind, match=message) as wanted:
        prepare_energon(path)
    with pytest.raises(kind) as found:
        prepare_energon(f"{url}/meta.yaml")
    assert str(found.value).replace(url, str(folder)) == str(wanted.value)
    assert not list(folder.glob("meta.yaml.cache/join_index_*"))
    assert indexes(bucket) == {}


def test_what_does_not_go(bucket: MemoryBucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, f"{{train: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    with pytest.raises(ConfigError, match=r"meta.yaml"):
        plan_energon(f"{url}/meta.yaml")
    with pytest.raises(ConfigError, match="server"):
        prepare_energon("http://127.0.0.1:9/meta.yaml")
    with pytest.raises(ConfigError, match="gathered"):
        prepare_energon(f"{url}/meta.yaml", options=EnergonOptions(media=MediaFilter(strategy="EXTENSION")))
    monkeypatch.setattr("tempfile.tempdir", str(folder / "none"))
    with pytest.raises(OutputError, match="folder"):
        prepare_energon(f"{url}/meta.yaml")
    assert indexes(bucket) == {}
