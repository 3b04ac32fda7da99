"""Joins: without the faults of Energon's, and refused where they would be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from energon_prepared import prepared
from headrace.errors import ConfigError, InputError, StoreError
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import Join, JoinColumn, Nonmatch, cache_folder, write_join
from headrace.stores.energon.joined import join_name


def shard(*keys: str, part: str = "txt", size: int = 3) -> list[tuple[str, bytes]]:
    return [(f"{key}.{part}", f"{key} {part}".ljust(size).encode()) for key in keys]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Train and val of the same layout, whose joins differ: Energon takes one for the other."""
    first = {"0.tar": shard("a", "b"), "1.tar": shard("c"), "2.tar": shard("d", "e"), "3.tar": shard("f")}
    prepared(tmp_path / "first", first, {"train": ["1.tar", "0.tar"], "val": ["3.tar", "2.tar"]})
    keys = {"0.tar": "ca", "1.tar": "bd", "2.tar": "e"}
    second = {name: shard(*some, part="cap") for name, some in keys.items()}
    splits = {"train": ["0.tar", "1.tar"], "val": ["2.tar", "1.tar"], "none": ["2.tar"]}
    prepared(tmp_path / "second", second, splits)
    return tmp_path


def columns(root: Path, first: str, second: str, nonmatch: Nonmatch = "error") -> list[JoinColumn]:
    return [
        JoinColumn(store=EnergonStore(root / "first", split_part=first)),
        JoinColumn(store=EnergonStore(root / "second", split_part=second), nonmatch=nonmatch),
    ]


def pairs(root: Path, joined: list[JoinColumn]) -> list[tuple[str | None, ...]]:
    store = JoinedStore(joined, root / "cache")
    assert list(store.check()) == []
    rows = store.read_joined(np.arange(len(store)))
    return [tuple(None if sample is None else sample.key for sample in row) for row in rows]


def test_two_splits_have_an_index_each(root: Path) -> None:
    train, val = columns(root, "train", "train", "none"), columns(root, "val", "val", "none")
    first, second = write_join(root / "cache", train), write_join(root / "cache", val)
    assert first.path.name == join_name(train)  # which is Energon's
    assert join_name(train) == join_name(val)
    assert second.path.name == join_name(val, with_split=True)
    assert pairs(root, train) == [("c", "c"), ("a", "a"), ("b", "b")]
    assert pairs(root, val) == [("f", None), ("d", "d"), ("e", "e")]
    assert (second.rows, second.skipped, second.missing) == (3, 0, (0, 1))
    # Again, in any order, the same files are there.
    assert [write_join(root / "cache", one).path for one in (val, train)] == [second.path, first.path]
    assert len(list((root / "cache").iterdir())) == 2


def test_the_index_of_another_split_is_refused(root: Path) -> None:
    train, val = columns(root, "train", "train", "none"), columns(root, "val", "val", "none")
    write_join(root / "cache", train)
    with pytest.raises(StoreError, match="join_index_"):
        JoinedStore(val, root / "cache")


def test_skip(root: Path) -> None:
    joined = columns(root, "val", "val", "skip")
    join = write_join(root / "cache", joined)
    assert (join.rows, join.skipped) == (2, 1)
    assert pairs(root, joined) == [("d", "d"), ("e", "e")]
    store = JoinedStore(joined, root / "cache")
    assert store.find("e") == 1
    with pytest.raises(KeyError, match="left"):
        store.find("f")


@pytest.mark.parametrize(("second", "message"), [("val", "'f'.*second.*'val'.*key"), ("none", "another")])
def test_a_missing_partner_is_an_error_and_nothing_is_written(root: Path, second: str, message: str) -> None:
    joined = columns(root, "val" if second == "val" else "train", second)
    with pytest.raises(InputError, match=message):
        write_join(root / "cache", joined)
    assert list((root / "cache").iterdir()) == []


def test_a_partner_in_another_split_is_none(root: Path) -> None:
    """Energon's prepare fails here, and leaves a half index that it takes for a whole one later."""
    joined = columns(root, "val", "none", "none")
    write_join(root / "cache", joined)
    assert pairs(root, joined) == [("f", None), ("d", None), ("e", "e")]
    store = JoinedStore(joined, root / "cache")
    assert [list(sample.parts) for sample in store] == [["0.txt"], ["0.txt"], ["0.txt", "1.cap"]]
    assert [list(sample.parts) for sample in store.read(np.arange(3), ["1.cap"])] == [[], [], ["1.cap"]]
    assert list(store.places(2)) == ["0.txt", "1.cap"]


def test_excluded_samples(root: Path) -> None:
    for name, entries in (("first", "[1.tar/c, 3.tar]"), ("second", "[1.tar/b, 0.tar/x, 1.tar/z]")):
        split = root / name / ".nv-meta/split.yaml"
        split.write_text(split.read_text().replace("[]", entries))
    joined = columns(root, "train", "train", "none")
    # The list is hashed in one order, whatever the order in the file.
    assert join_name(joined) == join_name(columns(root, "train", "train", "none"))
    write_join(root / "cache", joined)
    assert pairs(root, joined) == [("a", "a"), ("b", None)]
    joined = columns(root, "val", "val", "error")  # a shard that is left out counts in the list, and has no samples
    write_join(root / "cache", joined)
    assert pairs(root, joined) == [("d", "d"), ("e", "e")]


def test_rows_of_shards_that_were_prepared_again(root: Path) -> None:
    joined = columns(root, "train", "train", "none")
    path = write_join(root / "cache", joined).path
    uuid = (root / "first/.nv-meta/index.uuid").read_bytes()
    first = {"0.tar": shard("a", "b", size=600), "1.tar": shard("c"), "2.tar": shard("d", "e"), "3.tar": shard("f")}
    prepared(root / "first", first, {"train": ["1.tar", "0.tar"]})
    assert (root / "first/.nv-meta/index.uuid").read_bytes() != uuid
    with pytest.raises(StoreError, match="missing"):
        JoinedStore(columns(root, "train", "train", "none"), root / "cache")
    path.rename(root / "cache" / join_name(columns(root, "train", "train", "none"), with_split=True))
    store = JoinedStore(columns(root, "train", "train", "none"), root / "cache")
    with pytest.raises(StoreError, match=r"1.*1024.*0"):
        store[1]
    assert [problem.place for problem in store.check()] == ["row 1"]


def test_rows_that_join_other_keys(root: Path) -> None:
    joined = columns(root, "train", "train", "none")
    path = write_join(root / "cache", joined).path
    data = bytearray(path.read_bytes())
    zeroth, first = slice(16 + 24, 16 + 48), slice(16 + 72, 16 + 96)  # the secondary places of rows 0 and 1
    data[zeroth], data[first] = data[first], data[zeroth]
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"0.*different"):
        JoinedStore(joined, root / "cache")
    path.rename(root / "cache" / join_name(joined, with_split=True))
    with pytest.raises(StoreError, match=r"0.*'c'.*'a'"):
        JoinedStore(joined, root / "cache")[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "b''"),
        (b"JIDX0002" + bytes(8), "b'JIDX0002'"),
        (b"JIDX0001" + (3).to_bytes(8, "little"), "3.*2"),
        (b"JIDX0001" + (2).to_bytes(8, "little") + bytes(40), "40"),
        (b"JIDX0001" + (2).to_bytes(8, "little"), "0.*3"),
        (b"JIDX0001" + (2).to_bytes(8, "little") + b"\xff" * 144, "row.*0.*first"),
    ],
)
def test_malformed(root: Path, data: bytes, message: str) -> None:
    joined = columns(root, "train", "train")
    (root / "cache").mkdir()
    (root / "cache" / join_name(joined)).write_bytes(data)
    with pytest.raises(StoreError, match=message):
        JoinedStore(joined, root / "cache")


def test_what_cannot_be_joined(root: Path) -> None:
    first, second = columns(root, "train", "train", "none")
    with pytest.raises(ConfigError, match="nonmatch"):
        write_join(root / "cache", [second, first])
    with pytest.raises(ConfigError, match="different"):
        write_join(root / "cache", [JoinColumn(store=first.store, name="1"), second])
    with pytest.raises(ConfigError, match="dataset"):
        write_join(root / "cache", [])
    with pytest.raises(ConfigError, match=r"most.*11"):
        write_join(root / "cache", [first, *[JoinColumn(store=second.store, nonmatch="none")] * 11])
    (root / "second/.nv-meta/index.uuid").unlink()
    with pytest.raises(StoreError, match=r"index\.uuid"):
        write_join(root / "cache", [first, second])
    (root / "second/.nv-meta/index.uuid").write_text("x")
    (root / "second/.nv-meta/index.sqlite").unlink()
    again = JoinColumn(store=EnergonStore(root / "second", split_part="train"), nonmatch="none")
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        write_join(root / "cache", [first, again])


def test_three_columns(root: Path) -> None:
    third = {"x.tar": shard("e", "c", "b", part="json")}
    prepared(root / "third", third)
    names = ("image", "caption", "facts")
    stores = [*(column.store for column in columns(root, "train", "train")), EnergonStore(root / "third")]
    joined = [
        JoinColumn(store=store, name=name, nonmatch="none" if number else "error")
        for number, (store, name) in enumerate(zip(stores, names, strict=True))
    ]
    assert cache_folder(root / "mix.yaml") == root / "mix.yaml.cache"
    path = root / "cache" / join_name(joined)
    assert write_join(root / "cache", joined) == Join(path=path, rows=3, skipped=0, missing=(0, 0, 1))
    assert pairs(root, joined) == [("c", "c", "c"), ("a", "a", None), ("b", "b", "b")]
    with JoinedStore(joined, root / "cache") as store:
        assert list(store[0].parts) == ["image.txt", "caption.cap", "facts.json"]


def test_which_bytes_a_row_lies_in(root: Path) -> None:
    """The ranges of each column hold its parts, and are those of the column's own store."""
    joined = columns(root, "val", "val", "none")
    write_join(root / "cache", joined)
    store = JoinedStore(joined, root / "cache")
    rows = np.array([2, 0, 1, 0])
    for name, column, found in zip(store.names, joined, store.column_extents(rows), strict=True):
        there = [at for at, row in enumerate(rows.tolist()) if any(p.startswith(f"{name}.") for p in store.places(row))]
        assert found.rows.tolist() == there
        own = column.store.extents(np.array([column.store.find(store.key(int(rows[at]))) for at in there]))
        for mine, theirs in zip(found[2:], own[2:], strict=True):
            assert mine.tolist() == theirs.tolist()
    with pytest.raises(IndexError):
        store.column_extents(np.array([len(store)]))
