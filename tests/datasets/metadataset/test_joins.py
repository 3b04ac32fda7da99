"""The indices of joins: made wherever these are, here or at URLs; none is made of what cannot be joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore import delete

from energon_made import write_tar
from headrace.compat.energon import prepare_metadataset
from headrace.datasets.metadataset import JoinedSource, load_dataset, sources
from headrace.datasets.metadataset.opening import join_store
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.io import Storage
from headrace.io.objects import client
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.stores.energon import Join
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


def prepare(path: Path | str) -> dict[str, Join]:
    return load_dataset(path).prepare()


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
        ("{train: {datasets: [{path: inner.yaml, weight: 2, subflavor: x}]}}", 0),
        (f"{{train: {NAMED.replace('path: a', 'path: FILE/a')}}}", 0),
        (f"{{train: {{join: {{one: {{path: a}}, two: {{path: b, nonmatch: skip}}}}, {JOINER}}}}}", 0),
    ],
)
def test_joins_are_made_where_a_run_looks_for_them(folder: Path, splits: str, shard: int) -> None:
    """Inline in other nodes, through files, and of the part that is said around them."""
    write(folder, f"{{train: {{blend: [{{concat: [{NAMED}]}}]}}, val: {NAMED}}}", "inner.yaml")
    prepare(write(folder, splits.replace("FILE", f"file://{folder}")))
    (joined,) = sources(load_dataset(folder / "meta.yaml").tree("train"))
    assert isinstance(joined, JoinedSource)
    rows = join_store(joined).read_joined(np.arange(3))
    assert [[sample.key for sample in row if sample] for row in rows] == [[f"k{shard}{at}"] * 2 for at in (0, 1, 3)]


def test_the_places_of_joins(folder: Path) -> None:
    """A join that stands in several places is in each of them, and is made once."""
    inner = write(folder, f"{{train: {NAMED}, val: {NAMED}}}", "inner.yaml")
    of_val = f"{NAMED[:-1]}, split_part: val}}"
    splits = f"{{train: {{blend: [{NAMED}, {{path: a}}, {of_val}]}}, val: {{concat: [{NAMED}, {{path: inner.yaml}}]}}}}"
    path = write(folder, splits)
    joins = prepare(path)
    outer = ("splits.train.blend[0]", "splits.train.blend[2]", "splits.val.concat[0]")
    assert list(joins) == [*(f"{path}: {place}" for place in outer), f"{inner}: splits.val"]
    train, val, same, nested = joins.values()
    assert val is same
    assert {train.path.parent, val.path.parent} == {folder / "meta.yaml.cache"}
    assert nested.path.parent == folder / "inner.yaml.cache"
    assert [(join.rows, join.skipped) for join in joins.values()] == [(3, 1)] * 4
    assert prepare(write(folder, "{train: {path: a}}")) == {}


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
    wanted = prepare(path)
    found = prepare(f"{url}/meta.yaml")
    assert indexes(bucket) == made_here(folder)
    assert [place.replace(url, str(folder)) for place in found] == list(wanted)
    assert [join.rows for join in found.values()] == [join.rows for join in wanted.values()]
    assert [str(join.path).replace(url, str(folder)) for join in found.values()] == [
        str(join.path) for join in wanted.values()
    ]
    # What is there already is not written again, under the eyes of a run.
    with sent_files() as sent:
        assert prepare(f"{url}/meta.yaml") == found
    assert sent == []


@pytest.mark.parametrize("where", ["a URL", "a URL beside local data", "here beside data at URLs"])
@pytest.mark.parametrize("prepare", [prepare, prepare_metadataset])
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


@pytest.mark.parametrize("is_local", [False, True])
def test_a_storage_is_used_for_all_objects(bucket: MemoryBucket, folder: Path, is_local: bool) -> None:
    url = bucket.upload(folder, "ds")
    path = write(folder, f"{{train: {NAMED.replace('path: ', f'path: {url}/')}}}")
    bucket.put("ds/meta.yaml", path.read_bytes())
    bucket.put("ds/meta.yaml.cache/join_index_0.bin", b"of a join that is gone")
    connect, used = client.connect, []

    def connect_as_said(root: str, scheme: str, storage: Storage, **options: Any) -> Any:
        used.append(storage.region)
        return connect(root, scheme, storage, **options)

    with pytest.MonkeyPatch.context() as patch:  # which ends before that of the bucket
        patch.setattr(client, "connect", connect_as_said)
        load_dataset(path if is_local else f"{url}/meta.yaml", storage=Storage(region="mars")).prepare()
    assert set(used) == {"mars"}
    assert len(made_here(folder) if is_local else indexes(bucket)) == 1


def test_indexes_that_no_join_uses_are_removed(bucket: MemoryBucket, folder: Path) -> None:
    """Of two splits, one has the name of Energon's. When both are gone, the next one gets it."""
    path = write(folder, f"{{train: {NAMED}, val: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    bucket.put("ds/meta.yaml.cache/notes.txt", b"mine")
    for splits in (f"{{train: {NAMED}, val: {NAMED}}}", f"{{val: {NAMED}}}", "{train: {path: a}}", f"{{val: {NAMED}}}"):
        bucket.put("ds/meta.yaml", write(folder, splits).read_bytes())
        prepare(path)
        prepare(f"{url}/meta.yaml")
        assert indexes(bucket) == {**made_here(folder), "meta.yaml.cache/notes.txt": b"mine"}


def test_indexes_that_others_may_use_stay(folder: Path) -> None:
    """Those of other splits of a nested file; all if a join cannot be made; and all beside the file of a dict."""
    inner = write(folder, f"{{train: {NAMED}, val: {NAMED}}}", "inner.yaml")
    prepare(inner)
    prepare(write(folder, "{train: {path: inner.yaml}}"))
    wanted = made_here(folder)
    assert len(wanted) == 2
    with pytest.raises(HeadraceError):
        prepare(write(folder, f"{{train: {NAMED.replace('path: b', 'path: gone')}}}", "inner.yaml"))
    load_dataset({"splits": {"train": {"path": "a"}}}, path=inner).prepare()
    assert made_here(folder) == wanted


def test_a_run_that_ends_at_any_moment(bucket: MemoryBucket, folder: Path) -> None:
    path = write(folder, f"{{train: {NAMED}, val: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    prepare(path)
    wanted = made_here(folder)
    moments = 0
    while True:
        try:
            with watched(stop_at(moments)):
                prepare(f"{url}/meta.yaml")
            break
        except Stopped:
            moments += 1
        assert set(indexes(bucket).values()) <= set(wanted.values())
        prepare(f"{url}/meta.yaml")
        assert indexes(bucket) == wanted
        delete(bucket.store, [f"ds/{name}" for name in wanted])
    assert moments == len(wanted)


@pytest.mark.parametrize(
    ("splits", "kind", "message"),
    [
        (f"{{train: {{join: [{{path: a}}, {{path: b}}], {JOINER}}}}}", InputError, "partner"),
        (f"{{train: {{join: [{{path: a, split: x}}, {{path: b}}], {JOINER}}}}}", ConfigError, "'split_part'"),
        (f"{{train: {{join: [{{path: a}}, {{nonmatch: skip}}], {JOINER}}}}}", ConfigError, "path"),
        (f"{{train: {{join: [{{path: a}}, {{path: b, nonmatch: maybe}}], {JOINER}}}}}", ConfigError, "nonmatch"),
        (f"{{train: {{join: [{{path: a, split_part: test}}, {{path: b}}], {JOINER}}}}}", ConfigError, "'test'"),
        (f"{{train: {{join: [{{path: gone}}, {{path: b}}], {JOINER}}}}}", ConfigError, "gone"),
        (f"{{train: {JOIN}}}", ConfigError, "joiner"),
        ("{train: {path: meta.yaml}}", ConfigError, "itself"),
        ("{train: {path: none.yaml}}", StoreError, r"none\.yaml"),
        (f"{{train: {NAMED}, val: {{path: inner.yaml}}}}", ConfigError, "'val'"),
        ("{train: {blend: a}}", ConfigError, "list"),
        ("5", ConfigError, "splits"),
    ],
)
def test_what_cannot_be_joined(
    bucket: MemoryBucket, folder: Path, splits: str, kind: type[HeadraceError], message: str
) -> None:
    """Here and at a URL."""
    write(folder, f"{{train: {NAMED}}}", "inner.yaml")
    path = write(folder, splits)
    url = bucket.upload(folder, "ds")
    with pytest.raises(kind, match=message) as wanted:
        prepare(path)
    with pytest.raises(kind) as found:
        prepare(f"{url}/meta.yaml")
    assert str(found.value).replace(url, str(folder)) == str(wanted.value)
    assert not list(folder.glob("meta.yaml.cache/join_index_*"))
    assert indexes(bucket) == {}


def test_without_a_temporary_folder(bucket: MemoryBucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, f"{{train: {NAMED}}}")
    url = bucket.upload(folder, "ds")
    monkeypatch.setattr("tempfile.tempdir", str(folder / "none"))
    with pytest.raises(OutputError, match="folder"):
        prepare(f"{url}/meta.yaml")
    assert indexes(bucket) == {}
