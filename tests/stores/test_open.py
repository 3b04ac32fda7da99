"""What a path means, and what is refused there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
import made
from headrace.errors import ConfigError, StoreError
from headrace.io import OPEN_FILES
from headrace.stores import CombinedStore, IndexedStore, KeyedStore, ShardedStore
from headrace.testing.stores import numbered_documents
from token_shards import vouch_for, write_keyed, write_raw, write_shard


def make(prefix: Path, *lengths: int, dtype: str = "uint16") -> None:
    prefix.parent.mkdir(exist_ok=True, parents=True)
    write_shard(prefix, numbered_documents(list(lengths), dtype), dtype)


@pytest.mark.parametrize("name", ["x.v1.0", "x.v1.0.bin", "x.v1.0.idx", ".", "./"])
def test_the_ways_to_name_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make(tmp_path / "x.v1.0", 1, 2)
    monkeypatch.chdir(tmp_path)
    store = stores.open(name)
    assert isinstance(store, IndexedStore)
    assert store.path == name
    assert store.lengths.tolist() == [1, 2]


def test_a_folder_in_natural_order(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 255)  # a longer name than this cannot be looked for
    for number in (0, 1, 2, 9, 10, 11):
        make(folder / f"s{number}", number + 1)
    (folder / ".hidden.idx").touch()
    (folder / "README").touch()
    (folder / "sub.d").mkdir()
    store = stores.open(folder)
    assert isinstance(store, ShardedStore)
    assert store.path == str(folder)
    assert store.lengths.tolist() == [1, 2, 3, 10, 11, 12]


@pytest.mark.parametrize("other", ["B.BIN", "B.IDX", "b.Idx", "sub/B.H5", "B.JSONL", "b.Parquet"])
def test_a_file_whose_ending_is_in_upper_case_is_not_left_out(tmp_path: Path, other: str) -> None:
    for name in (f"a{Path(other).suffix.lower()}", other):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(StoreError, match=rf"'{Path(other).name}'"):
        stores.open(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"nothing.*x\.bin.*x\.idx"),
        (["x.bin"], r"x\.idx.*missing.*x\.bin"),
        (["x.idx"], r"x\.bin.*missing.*x\.idx"),
        (["x"], "format"),
        (["x/"], "without"),
        (["x/a.bin"], r"a\.idx.*missing.*a\.bin"),
        (["x/a.idx"], r"a\.bin.*missing.*a\.idx"),
        (["x/a.idx", "x.idx"], r"folder.*prefix.*x\.idx.*x/"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    with pytest.raises(StoreError, match=message):
        stores.open(tmp_path / "x")


def test_a_cache_folder_of_the_same_name_is_not_meant(tmp_path: Path) -> None:
    make(tmp_path / "x", 4)
    (tmp_path / "x" / "cache").mkdir(parents=True)
    assert stores.open(tmp_path / "x").lengths.tolist() == [4]
    with pytest.raises(StoreError, match="without"):
        stores.open(f"{tmp_path}/x/")


def test_shards_of_different_dtypes(tmp_path: Path) -> None:
    make(tmp_path / "a", 1)
    make(tmp_path / "b", 1, dtype="int32")
    with pytest.raises(StoreError, match=r"uint16.*int32"):
        stores.open(tmp_path)


class TestManifest:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b", "a", "sub/c"):
            make(tmp_path / name, len(name), 0, 2)
        vouch_for(tmp_path, [IndexedStore(tmp_path / name) for name in ("b", "sub/c", "a")])
        make(tmp_path / "not-listed", 9)
        return tmp_path

    def test_lists_what_is_opened_in_its_order(self, folder: Path) -> None:
        assert stores.open(folder).lengths.tolist() == [1, 0, 2, 5, 0, 2, 1, 0, 2]

    def test_a_listed_file_is_another_or_missing(self, folder: Path) -> None:
        make(folder / "a", 7)
        with pytest.raises(StoreError, match=r"1.*7.*uint16"):
            stores.open(folder)
        (folder / "sub" / "c.bin").unlink()
        with pytest.raises(StoreError, match=r"sub/c\.bin.*headrace\.json"):
            stores.open(folder)

    def test_a_changed_manifest(self, folder: Path) -> None:
        path = folder / "headrace.json"
        path.write_bytes(path.read_bytes().replace(b"in.jsonl", b"on.jsonl"))
        with pytest.raises(StoreError, match="changed"):
            stores.open(folder)
        # A shard on its own opens: the manifest is then not needed, and check reports it.
        assert stores.open(folder / "a").num_tokens == 3
        assert [Path(problem.path).name for problem in stores.open(folder / "a").check()] == ["headrace.json"]

    @pytest.mark.parametrize("whole", [True, False])
    def test_vouches_for_contiguity(self, folder: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
        def refuse(_: object) -> None:
            raise AssertionError("the pass over the .idx was to be skipped")

        monkeypatch.setattr("headrace.stores.indexed.store.is_contiguous", refuse)
        store = stores.open(folder if whole else folder / "b")
        assert store.gather(np.array([1]), 2).tolist() == [[2, 3]]
        with pytest.raises(AssertionError, match="skipped"):
            stores.open(folder / "not-listed").num_tokens  # noqa: B018

    def test_does_not_vouch_for_other_bytes(self, folder: Path) -> None:
        write_raw(folder / "b", "uint16", [1, 2], [4, 0], [0, 1, 2], bytes([1, 0, 2, 0, 3, 0]))
        assert stores.open(folder / "b").fetch(0, 3).tolist() == [3, 1, 2]

    @pytest.mark.parametrize("pointers", [[2, 0], [2, 2]])
    def test_may_say_that_a_shard_is_not_contiguous(self, tmp_path: Path, pointers: list[int]) -> None:
        write_raw(tmp_path / "x", "uint16", [1, 1], pointers, [0, 1, 2], bytes([1, 0, 2, 0]))
        wanted = [pointer // 2 + 1 for pointer in pointers]
        vouch_for(tmp_path, [IndexedStore(tmp_path / "x")], contiguous=False)
        for path in (tmp_path, tmp_path / "x"):
            assert stores.open(path).fetch(0, 2).tolist() == wanted
        # One that says otherwise is not believed where the ends of the arrays contradict.
        vouch_for(tmp_path, [IndexedStore(tmp_path / "x")], contiguous=True)
        with pytest.raises(StoreError, match="manifest"):
            stores.open(tmp_path)
        assert stores.open(tmp_path / "x").fetch(0, 2).tolist() == wanted


class TestKeyed:
    def test_shards_at_any_depth_in_natural_order(self, tmp_path: Path) -> None:
        for number, name in enumerate(["b/shard_0010", "b/shard_2", "a10/x/y", "a9", "b"]):
            (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            write_keyed(tmp_path / "data" / name, tokens=("uint8", numbered_documents([number + 1], "uint8")))
        (tmp_path / "data" / ".headrace" / "shard").mkdir(parents=True)
        (tmp_path / "data" / ".headrace" / "shard" / "meta.json").touch()
        write_keyed(tmp_path / "linked", tokens=("uint8", numbered_documents([9], "uint8")))
        (tmp_path / "data" / "z").symlink_to(tmp_path / "linked")
        (tmp_path / "data" / "a9" / "loop").symlink_to(tmp_path / "data")
        store = stores.open(tmp_path / "data")
        assert store.lengths.tolist() == [4, 3, 5, 2, 1, 9]
        assert store.path == str(tmp_path / "data")

    @pytest.mark.parametrize("name", ["s", "s/", "s/meta.json"])
    def test_the_ways_to_name_one_shard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        write_keyed(tmp_path / "s", ids=("uint8", numbered_documents([3], "uint8")))
        monkeypatch.chdir(tmp_path)
        store = stores.open(name)
        assert isinstance(store, KeyedStore)
        assert (store.path, store.folder, store.keys) == (name, "s", ("ids",))
        assert [file.name for file in store.files] == ["ids.bin", "meta.json"]

    def test_what_lies_beside_it_is_not_passed_over(self, tmp_path: Path) -> None:
        write_keyed(tmp_path / "s", ids=("uint8", numbered_documents([3], "uint8")))
        (tmp_path / "x.h5").touch()
        with pytest.raises(StoreError, match=r"s/meta\.json.*x\.h5"):
            stores.open(tmp_path)
        (tmp_path / "x.h5").unlink()
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "meta.json").write_text('{"step": 5}')
        with pytest.raises(StoreError, match=r"checkpoint/meta\.json.*meta\.json"):
            stores.open(tmp_path)
        make(tmp_path / "s", 4)
        with pytest.raises(StoreError, match="prefix"):
            stores.open(tmp_path / "s")
        assert stores.open(f"{tmp_path}/s/").lengths.tolist() == [3]
        make(tmp_path / "s" / "ids", 3)
        with pytest.raises(StoreError, match=r"meta\.json"):
            stores.open(f"{tmp_path}/s/")


class TestSeveralKeys:
    def test_all_of_them_or_one(self, tmp_path: Path) -> None:
        folder = made.two_keys(tmp_path / "store", "indexed")
        store = stores.open(folder)
        assert isinstance(store, CombinedStore)
        assert (store.path, store.keys) == (str(folder), ("title", "body"))
        assert [len(values) for values in store.document(2, ["title", "body"]).values()] == [2, 0]
        assert stores.open(folder, key="title").lengths.tolist() == [1, 0, 2]
        assert stores.open(folder, key="body").lengths.tolist() == [4, 6, 0]
        for key in ("text", "tokens"):
            with pytest.raises(ConfigError, match=rf"'{key}'.*'title'.*'body'"):
                stores.open(folder, key=key)
        assert {key: store.num_tokens for key, store in stores.open_keys(folder).items()} == {"title": 3, "body": 10}

    def test_the_only_key_may_be_named(self, tmp_path: Path) -> None:
        folder = made.one_key(tmp_path / "store")
        for key in (None, "text", "tokens"):
            assert stores.open(folder, key=key).num_documents == 100
        with pytest.raises(ConfigError, match=r"'title'.*'text'"):
            stores.open(folder, key="title")
        assert list(stores.open_keys(folder)) == ["text"]

    def test_of_bare_pairs_the_key_is_tokens(self, tmp_path: Path) -> None:
        make(tmp_path / "x", 3)
        for path in (tmp_path, tmp_path / "x"):
            assert stores.open(path, key="tokens").num_tokens == 3
            with pytest.raises(ConfigError, match=r"'text'.*'tokens'"):
                stores.open(path, key="text")
            assert list(stores.open_keys(path)) == ["tokens"]

    def test_a_keyed_entry_does_not_speak_of_a_pair_of_its_name(self, tmp_path: Path) -> None:
        folder = made.two_keys(tmp_path / "store", "keyed")
        make(folder / "shard_0000", 7)
        store = stores.open(f"{folder}/shard_0000.bin")
        assert store.num_tokens == 7
        assert list(store.check()) == []
        assert stores.open(folder).num_documents == 3


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_more_stores_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(OPEN_FILES, "max_open", 4)
    OPEN_FILES.make_room()  # whatever other tests have opened
    opened = []
    for number in range(12):
        make(tmp_path / f"{number}", 2, 0, 3)
        opened.append(stores.open(tmp_path / f"{number}", reader=reader))
    for store in opened[::3] + opened[::-2]:
        assert store.gather(np.array([1, 0]), 2).tolist() == [[2, 3], [1, 2]]
        assert store.find_documents(np.array([2])).tolist() == [2]
        assert len(OPEN_FILES) <= 4
