"""Which shard is of which part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_made import write_tar
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.preparing.energon.finishing import assign_parts, bring_up_to_date
from headrace.preparing.energon.scanning import find_shards
from headrace.stores.energon import read_splits

NAMES = [f"s{number:02d}.tar" for number in range(12)]


@pytest.mark.parametrize(
    ("count", "ratio", "sizes"),
    [
        (3, (8, 1, 1), [2, 0, 1]),
        (12, (8, 1, 1), [9, 1, 2]),
        (10, (0.5, 0.2, 0.3), [5, 2, 3]),
        (7, (1,), [7, 0, 0]),
        (7, (1, 1), [3, 4, 0]),
        (1, (0, 0, 1), [0, 0, 1]),
    ],
)
def test_a_ratio(count: int, ratio: tuple[float, ...], sizes: list[int]) -> None:
    parts = assign_parts(NAMES[:count], SplitChoice(ratio=ratio))
    assert list(parts) == ["train", "val", "test"]
    assert [len(listed) for listed in parts.values()] == sizes
    assert [name for listed in parts.values() for name in listed] == NAMES[:count]


def test_shuffled_as_energon_does() -> None:
    parts = assign_parts(NAMES, SplitChoice(ratio=(1, 1, 0), shuffle=True))
    order = [7, 5, 2, 8, 9, 6, 11, 3, 4, 0, 1, 10]
    assert parts == {
        "train": [NAMES[at] for at in order[:6]],
        "val": [NAMES[at] for at in order[6:]],
        "test": [],
    }


def test_patterns(tmp_path: Path) -> None:
    names = ["train/a0.tar", "train/a1.tar", "val/a0.tar", "old/train/a0.tar"]
    choice = SplitChoice(parts=(("train", "train/{a0,a1}"), ("val", r"val/a\d"), ("train", ".*0"), ("none", "x")))
    assert assign_parts(names, choice) == {
        "train": ["train/a0.tar", "train/a1.tar", "val/a0.tar", "old/train/a0.tar"],
        "val": ["val/a0.tar"],
        "none": [],
    }
    for name in names:
        write_tar(tmp_path / name, [(f"{name[:-4]}.txt", b"")])
    notices: list[str] = []
    options = EnergonOptions(split=SplitChoice(parts=(("val", "val/"),)))
    prepare_energon(tmp_path, options=options, on_notice=notices.append)
    assert read_splits(tmp_path).parts == {"val": ("val/a0.tar",)}
    assert any("3 shards are in no part of the split: old/train/a0.tar, train/a0.tar" in notice for notice in notices)


@given(
    st.lists(st.sampled_from(NAMES), unique=True).map(sorted),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from(NAMES))),
)
def test_brought_up_to_date(names: list[str], before: dict[str, list[str]]) -> None:
    known = {name for listed in before.values() for name in listed}
    new = [name for name in names if name not in known]
    after = bring_up_to_date(before, names, new, SplitChoice())
    target = next(iter(before), "train")
    for part, listed in before.items():
        kept = [name for name in listed if name in names]
        assert after[part] == kept + (new if part == target else [])
    assert list(after)[: len(before)] == list(before)
    assert bring_up_to_date(after, names, [], SplitChoice()) == after


def test_the_order_of_shards(tmp_path: Path) -> None:
    """As Energon sorts what it finds: by folders and names, not as strings."""
    names = [
        "b.tar",
        "a/x.tar",
        "a-b.tar",
        ".h/y.tar",
        ".z.tar",
        "a.tar",
        "A.tar",
        "s10.tar",
        "s9.tar",
        "a/.nv-meta/q.tar",
    ]
    for name in names:
        write_tar(tmp_path / name, [])
    (tmp_path / "dir.tar").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = find_shards(tmp_path, None, refuse_compressed=True, on_notice=print)
    wanted = ["A.tar", "a/x.tar", "a-b.tar", "a.tar", "b.tar", "link/x.tar", "s10.tar", "s9.tar"]
    assert [tar.name for tar in found] == wanted
    found = find_shards(tmp_path, "x", refuse_compressed=True, on_notice=print)
    assert [tar.name for tar in found] == [name for name in wanted if "x" not in name]
