"""Datasets without their bad samples: the contract of stores, the lists, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

from energon_prepared import prepared
from headrace.errors import ConfigError, StoreError
from headrace.stores import EnergonStore, JoinedStore, SampleStore, open as open_store
from headrace.stores.quarantine import (
    QUARANTINE_NAME,
    BadSample,
    add_bad_samples,
    bad_sample,
    bad_samples,
    remove_bad_samples,
)
from headrace.testing.samples import Samples, SampleStoreContract
from tars_made import members_of, write_tar


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def without(path: Path, is_bad: str) -> SampleStore:
    """What lies at a path, the samples left out whose keys begin so."""
    with open_store(path) as store:
        bad = [bad_sample(store, number) for number in range(len(store)) if store.key(number).startswith(is_bad)]
        add_bad_samples(store, bad)
    opened: SampleStore = open_store(path)
    return opened


class TestQuarantined(SampleStoreContract):
    """Bad samples between all others, first and last."""

    def write(self, folder: Path, samples: Samples) -> Path:
        for shard, begin in enumerate(range(0, len(samples), 9)):
            members = [(f"zbad/{shard}-first.txt", b"bad")]
            for at, sample in enumerate(samples[begin : begin + 9]):
                members += members_of([sample])
                members += [(f"zbad/{shard}-{at}.txt", b"bad")] * (at % 3 == 0)
            write_tar(folder / f"{shard}.tar", members)
        return folder

    def open(self, path: Path) -> SampleStore:
        if (path / QUARANTINE_NAME).exists():
            found: SampleStore = open_store(path)
        else:
            found = without(path, "zbad/")
        assert found.num_left_out
        return found


def tars(root: Path, *shards: str) -> Path:
    for name in shards:
        keys = [f"{Path(name).name[0]}{number}" for number in range(4)]
        write_tar(root / name, [(f"{key}.txt", key.encode()) for key in keys])
    return root


def keys(path: Path | list[Path]) -> list[str]:
    with open_store(path) as store:
        return [store.key(number) for number in range(len(store))]


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_lists_are_sets(tmp_path_factory: pytest.TempPathFactory, added: set[int], removed: set[int]) -> None:
    root = tars(tmp_path_factory.mktemp("tars"), "a.tar", "sub/b.tar", "sub/c.tar")
    every = keys(root)
    with open_store(root) as store:
        bad = [bad_sample(store, number, "why") for number in sorted(added)]
        back = [bad_sample(store, number) for number in sorted(removed)]
        whole = store.fingerprint
        assert add_bad_samples(store, bad) == len(added)
        assert add_bad_samples(store, bad[::-1]) == 0
        assert remove_bad_samples(store, back) == len(added & removed)
        left_out = added - removed
        assert {one.key for one in bad_samples(store)} == {every[number] for number in left_out}
        assert {one.reason for one in bad_samples(store)} <= {"why"}
    if len(left_out) == len(every):
        with pytest.raises(StoreError, match=r"12.*samples"):
            keys(root)
        return
    assert keys(root) == [key for number, key in enumerate(every) if number not in left_out]
    with open_store(root) as store:
        assert (store.fingerprint == whole) == (not left_out)
        if left_out:  # states of runs have this hash
            numbers = np.array(sorted(left_out), np.int64).tobytes()
            assert store.fingerprint == xxhash.xxh3_128_hexdigest(whole.encode() + numbers)
        assert len(list(store.check())) == 0
        if left_out:
            assert store.num_left_out == len(left_out)
            with pytest.raises(KeyError, match="left"):
                store.find(every[min(left_out)])
    present = {path.parent.name for path in root.rglob(QUARANTINE_NAME)}
    assert present == {"sub" if number >= 4 else root.name for number in left_out}


def test_a_list_is_of_a_folder_however_it_is_opened(tmp_path: Path) -> None:
    root = tars(tmp_path, "a.tar", "b.tar")
    with open_store(root / "b.tar") as store:
        add_bad_samples(store, [BadSample(shard="b.tar", key="b2")])
    data = (tmp_path / QUARANTINE_NAME).read_bytes()
    assert json.loads(data)["samples"] == [{"shard": "b.tar", "index": 2, "key": "b2", "reason": ""}]
    rest = ["b0", "b1", "b3"]
    assert keys(root / "b.tar") == rest
    assert keys([root / "b.tar", root / "a.tar", root / "b.tar"]) == [*rest, "a0", "a1", "a2", "a3", *rest]
    assert keys(root / "{a,b}.tar")[4:] == rest
    assert keys(root / "a.tar") == ["a0", "a1", "a2", "a3"]
    with open_store(root / "a.tar") as store:
        assert not store.num_left_out
        assert bad_samples(store) == []
    with open_store(root) as store:  # without that sample now
        before = store.fingerprint
        assert add_bad_samples(store, [bad_sample(store, 0)]) == 1
        assert [one.key for one in bad_samples(store)] == ["a0", "b2"]
        assert store.fingerprint == before
    with open_store(root) as store:
        assert store.fingerprint != before


def test_keys_that_are_there_twice(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, [("x.txt", name.encode()), ("y.txt", b"")])
    with open_store(tmp_path) as store:
        add_bad_samples(store, [BadSample(shard="b.tar", key="x")])
    with open_store(tmp_path) as store:
        assert [f"{one.shard}/{one.key}" for one in store] == ["a.tar/x", "a.tar/y", "b.tar/y"]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(5)))
    found = without(path, "3")
    assert [found[number].parts["json"] for number in (2, 3)] == [b'{"text": "2"}', b'{"text": "4"}']
    assert [found.key(number) for number in range(len(found))] == ["0", "1", "2", "4"]
    assert [found.find(key) for key in "0124"] == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="left out"):
        found.find("3")


def test_what_is_left_is_known_where_it_lies(tmp_path: Path) -> None:
    """So that samples can be dealt to the caches that have them; only whole stores could say it."""
    found = without(tars(tmp_path, "a.tar", "b.tar"), "a1")
    every = np.arange(len(found))
    placed = found.extents(every)
    whole = found.whole.extents(np.array([0, 2, 3, 4, 5, 6, 7]))
    assert placed.begins.tolist() == whole.begins.tolist()
    assert (placed.rows.tolist(), placed.files.tolist()) == (every.tolist(), whole.files.tolist())
    assert found.data_files == found.whole.data_files


def test_data_that_changed_under_a_list(tmp_path: Path) -> None:
    root = tars(tmp_path, "a.tar")
    without(root, "a2").close()
    for members, now in (([("b.txt", b"")], "exist"), ([(f"b{n}.txt", b"") for n in range(3)], "'b2'")):
        write_tar(root / "a.tar", members)
        for index in root.glob("*.idx"):
            index.unlink()
        with pytest.raises(StoreError, match=rf"{QUARANTINE_NAME}.*2.*a\.tar.*{now}"):
            open_store(root)
    (root / QUARANTINE_NAME).write_text('{"samples": [], "version": 2}')
    with pytest.raises(StoreError, match=rf"{QUARANTINE_NAME}"):
        open_store(root)


def test_of_energon_it_is_what_energon_excludes(tmp_path: Path) -> None:
    names = ("a.tar", "b{1}.tar")
    prepared(tmp_path, {name: [(f"{name[0]}{n}.txt", b"") for n in range(3)] for name in names})
    split = tmp_path / ".nv-meta" / "split.yaml"
    parts = {"train": EnergonStore(tmp_path, split_part="train").shards}
    with EnergonStore(tmp_path) as store:
        bad = [BadSample(shard="a.tar", key="a1"), BadSample(shard="b{1}.tar", key="b0")]
        assert add_bad_samples(store, bad) == 2
        assert add_bad_samples(store, bad[:1]) == 0
        assert [(one.shard, one.key) for one in bad_samples(store)] == [("a.tar", "a1"), ("b{1}.tar", "b0")]
    with EnergonStore(tmp_path, split_part="train") as store:
        assert store.shards == parts["train"]
        assert [store.key(number) for number in range(len(store))] == ["a0", "a2", "b1", "b2"]
        assert remove_bad_samples(store, bad[1:]) == 1
    with EnergonStore(tmp_path, split_part="train") as store:
        assert len(store) == 5
    split.unlink()
    with EnergonStore(tmp_path) as store, pytest.raises(ConfigError, match="excluded"):
        add_bad_samples(store, bad)


def test_what_has_no_list(tmp_path: Path) -> None:
    root = tars(tmp_path, "a.tar")
    with open_store(root) as store:
        with pytest.raises(ConfigError, match=r"'c\.tar'"):
            add_bad_samples(store, [BadSample(shard="c.tar", key="a0")])
        with pytest.raises(ConfigError, match=r"a\.tar.*'c0'"):
            add_bad_samples(store, [BadSample(shard="a.tar", key="c0")])
    assert not (root / QUARANTINE_NAME).exists()
    joined = object.__new__(JoinedStore)
    joined.path = os.fspath(root)
    with pytest.raises(ConfigError, match="samples"):
        bad_samples(joined)


def test_a_key_that_is_no_text(tmp_path: Path) -> None:
    """No list could hold it, so nothing is listed; this ended in an error of Python's."""
    write_tar(tmp_path / "a.tar", [("x.txt", b"x"), ("\udcff.txt", b"y")])
    with open_store(tmp_path) as store:
        bad = [bad_sample(store, number) for number in range(2)]
        with pytest.raises(ConfigError, match=r"'\\udcff'.*'a.tar'.*UTF-8"):
            add_bad_samples(store, bad)
        assert bad_samples(store) == []
