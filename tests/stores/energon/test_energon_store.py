"""What of a dataset is opened, in which order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from energon_made import write_tar
from energon_prepared import prepared
from headrace.errors import ConfigError, InputError, StoreError
from headrace.stores import EnergonStore
from headrace.stores.store import Numbering
from memory_stores import MemoryBucket, round_trips


def shard(*keys: str) -> list[tuple[str, bytes]]:
    return [(f"{key}.txt", key.encode()) for key in keys]


SHARDS = {"a.tar": shard("a0", "a1", "a2"), "b/b.tar": shard("b0", "b1"), "c.tar": shard("c0")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    splits = {"train": ["c.tar", "a.tar", "c.tar"], "val": ["b/b.tar"], "both": ["a.tar", "b/b.tar"]}
    return prepared(tmp_path, SHARDS, splits, ["a.tar/a1", "b/b.tar/b0", "b/b.tar/a2"])


def keys(store: EnergonStore) -> list[str]:
    return [sample.key for sample in store.read(np.arange(len(store)))]


@pytest.mark.parametrize("with_index", [True, False])
def test_parts(root: Path, with_index: bool, caplog: pytest.LogCaptureFixture) -> None:
    if not with_index:
        (root / ".nv-meta/index.sqlite").unlink()
    store = EnergonStore(root, split_part="train")
    assert keys(store) == ["c0", "a0", "a2", "c0"]
    assert store.shards == ("c.tar", "a.tar", "c.tar")
    assert store.shard_bounds.tolist() == [0, 1, 3, 4]
    assert [store.read(np.array([1, 2]))[at].index for at in (0, 1)] == [0, 2]  # excluded samples are counted
    assert [store.find(key) for key in ("c0", "a0", "a2")] == [0, 1, 2]
    for key in ("a1", "b1", "x"):
        with pytest.raises(KeyError, match=rf"'{key}'"):
            store.find(key)
    assert store.num_left_out == 1
    assert keys(EnergonStore(root)) == ["a0", "a1", "a2", "b0", "b1", "c0"]
    (told,) = caplog.messages
    assert "part 'train' lists shards several times: c.tar" in told
    assert keys(EnergonStore(root, split_part="both")) == ["a0", "a2", "b1"]
    assert "excludes b/b.tar/a2, but there is no such sample" in caplog.text


def test_opening_looks_at_no_shard(tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    counts = {f"s/{number:05d}.tar": 10_000 for number in range(10_000)}
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": counts}))
    (tmp_path / ".nv-meta/split.yaml").write_text("split_parts: {train: ['s/{00000..09999}.tar']}")
    store = EnergonStore(tmp_path, split_part="train")
    assert len(store) == 100_000_000
    with pytest.raises(StoreError, match=r"s/01234\.tar"):
        store[12_345_678]


def test_options_that_do_not_fit(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"'trian'.*'train'"):
        EnergonStore(root, split_part="trian")
    with pytest.raises(ConfigError, match="split_part"):
        EnergonStore(root, split_config="split.yaml")


def test_a_part_of_any_shard_by_its_name(root: Path) -> None:
    store = EnergonStore(root, split_part="val")
    assert store.part("a1.txt") == b"a1"
    for name in ("a1.jpg", "none.txt", "nodot"):
        with pytest.raises(KeyError, match=name):
            store.part(name)
    (root / ".nv-meta/index.sqlite").unlink()
    store = EnergonStore(root, split_part="val")
    assert store.part("b1.txt") == b"b1"
    with pytest.raises(KeyError):
        store.part("b1.jpg")
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        store.media_metadata("b1.txt")


def test_subflavors(root: Path) -> None:
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {source: web}"
    assert EnergonStore(root).dataset is None
    (root / ".nv-meta/dataset.yaml").write_text(crude)
    assert EnergonStore(root).subflavors == {"source": "web"}
    (root / ".nv-meta/other.yaml").write_text(crude.replace("web", "book"))
    assert EnergonStore(root, dataset_config="other.yaml").subflavors == {"source": "book"}


def test_a_missing_index_of_a_shard(root: Path) -> None:
    (root / "c.tar.idx").unlink()
    store = EnergonStore(root, split_part="train")
    assert store[1].key == "a0"
    with pytest.raises(StoreError, match=r"c\.tar\.idx"):
        store[0]


def test_a_missing_split_file(root: Path) -> None:
    (root / ".nv-meta/split.yaml").unlink()
    with pytest.raises(StoreError, match=r"split\.yaml"):
        EnergonStore(root, split_part="train")
    assert len(EnergonStore(root)) == 6


def test_counts_that_differ_from_the_index(root: Path) -> None:
    """Energon never reads the samples that the info file does not count."""
    info = root / ".nv-meta/.info.json"
    info.write_text(json.dumps({"shard_counts": {"a.tar": 2, "b/b.tar": 2, "c.tar": 1}}))
    with pytest.raises(StoreError, match=r"a\.tar.*2.*3"):
        EnergonStore(root)[0]
    (root / "c.tar.idx").write_bytes(b"1234567")
    with pytest.raises(StoreError, match=r"c\.tar\.idx.*7"):
        EnergonStore(root)[4]


def test_an_index_of_other_shards(root: Path) -> None:
    write_tar(root / "a.tar", shard("a0", "x1", "a2"))
    store = EnergonStore(root)
    with pytest.raises(StoreError, match=r"index\.sqlite.*'a1'.*1"):
        store.find("a1")
    (problem,) = store.check()
    assert problem.path.endswith("index.sqlite")
    assert problem.place == "a.tar: sample 1"


def test_check(root: Path) -> None:
    assert list(EnergonStore(root).check()) == []
    (root / ".nv-meta/index.sqlite").write_bytes(b"no database, but long enough to be looked at" * 30)
    (problem,) = EnergonStore(root).check()
    assert "cannot be read: file is not a database" in problem.message


def test_compressed_shards(root: Path) -> None:
    for name in ("a.tgz", "a.tar.gz"):
        (root / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {name: 1}}))
        with pytest.raises(InputError, match="gzip"):
            EnergonStore(root)


def test_a_shard_that_is_no_tar_is_refused(root: Path) -> None:
    (root / "two.jsonl").write_text('{"ids": [1, 2]}')
    (root / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {"a.tar": 3, "two.jsonl": 1}}))
    with pytest.raises(StoreError, match=r"\.info\.json.*'two\.jsonl'.*tar"):
        EnergonStore(root)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_those_of_a_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, rng.integers(1, 8))
    total = int(counts.sum())
    left_out = np.flatnonzero(rng.random(total) < rng.choice([0.0, 0.3, 1.0]))
    places = [(shard, index) for shard, count in enumerate(counts.tolist()) for index in range(count)]
    kept = [place for raw, place in enumerate(places) if raw not in left_out]
    numbering = Numbering(counts, left_out)
    assert numbering.bounds[-1] == len(kept)
    shards, indices = numbering.places(np.arange(len(kept)))
    assert list(zip(shards.tolist(), indices.tolist(), strict=True)) == kept
    assert np.diff(numbering.bounds).tolist() == [sum(at == shard for at, _ in kept) for shard in range(len(counts))]
    for place in places:
        assert numbering.number(*place) == (kept.index(place) if place in kept else None)


def test_the_indexes_of_all_shards_are_asked_for_together(
    root: Path, bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store then fetches them at the same time, not each when it is its turn."""
    found = {}
    for most in (0, 24):
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / str(most)))
        monkeypatch.setattr("headrace.stores.energon.store._FEW_INDEXES", most)
        store = EnergonStore(bucket.upload(root, f"ds-{most}"), split_part="train")
        with round_trips() as trips:
            assert len(store.fingerprint) == 32
        found[most] = trips.number, trips.requests
    assert found[0] == (1, 3), "that of a.tar was read to find what is left out; and both ends of the tars"
    assert found[24] == (0, 0), "they came with the files of .nv-meta"
