"""`headrace.split`: Megatron's borders, equal parts, names, and all of the source in order."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
import made
from copies_made import content, documents, drawn, pair
from headrace.copying import CopyOptions, copied_documents
from headrace.errors import ConfigError
from headrace.plan.megatron.sampling import split_ranges
from headrace.stores import load_manifest


@pytest.mark.parametrize("era", ["core", "legacy"])
def test_the_parts_of_megatrons_split(tmp_path: Path, era: str) -> None:
    """49 documents: core and legacy differ by one."""
    source = pair(tmp_path / "a", [[[number]] for number in range(49)])
    report = headrace.split(source, tmp_path / era, into="969,30,1", era=era)  # type: ignore[arg-type]
    ranges = split_ranges("969,30,1", 49, era=era)  # type: ignore[arg-type]
    names = ("train", "valid", "test")
    for name, part in zip(names, ranges, strict=True):
        assert part is not None
        assert documents(tmp_path / era / name) == [[number] for number in range(*part)]
        assert load_manifest(tmp_path / era / name).options["copy"]["request"]["part"] == name
    assert [store.documents for store in report.stores] == [47 + (era == "legacy"), 2 - (era == "legacy"), 0]
    assert report.warnings == ("test has no documents",)


def test_equal_parts_are_all_of_the_source(tmp_path: Path) -> None:
    source = drawn(tmp_path / "a", 1, 60)
    report = headrace.split(source, tmp_path / "parts", into=5, options=CopyOptions(shards=30))
    everything = documents(source)
    names = [f"part_{part:05d}" for part in range(5)]
    assert [store.name for store in report.stores] == names
    assert [one for name in names for one in documents(tmp_path / "parts" / name)] == everything
    longest = max(map(len, everything))
    assert all(abs(store.tokens - report.tokens / 5) <= longest for store in report.stores)
    assert all(store.num_shards > 1 for store in report.stores)
    for store in report.stores:
        manifest = load_manifest(store.path)
        part = documents(Path(store.path))
        for document, found in enumerate(copied_documents(manifest, range(len(part)))):
            assert everything[found.document] == part[document]


def test_all_keys_are_cut_at_the_same_documents(tmp_path: Path) -> None:
    source = made.two_keys(tmp_path / "a", "keyed")
    headrace.split(source, tmp_path / "out", into="2,1", names=["big", "small"])
    whole, big, small = (content(path) for path in (source, tmp_path / "out" / "big", tmp_path / "out" / "small"))
    assert whole == {key: big[key] + small[key] for key in whole}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["big", "small"]
    manifest = load_manifest(tmp_path / "out" / "big")
    assert manifest.tokenizer == load_manifest(source).tokenizer


def test_documents_of_several_sequences_are_not_cut(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8]]])
    report = headrace.split(source, tmp_path / "out", into="1,1")
    assert documents(tmp_path / "out" / "train") == [[1, 2], [3, 4]]
    assert "Megatron counts sequences" in report.warnings[0]
    assert not headrace.split(source, tmp_path / "parts", into=2).warnings


def test_parts_that_keep_the_shards_of_the_source(tmp_path: Path) -> None:
    for number in range(2):
        pair(tmp_path / "in" / str(number), [[[1]], [[2]]])
    options = CopyOptions(shards="source")
    halves = headrace.split(tmp_path / "in", tmp_path / "a", into=2, options=options).stores
    assert [store.num_shards for store in halves] == [1, 1]
    unequal = headrace.split(tmp_path / "in", tmp_path / "b", into="3,1", options=options).stores
    assert [store.num_shards for store in unequal] == [2, 1]


def test_a_split_is_replaced_as_a_whole(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[number]] for number in range(10)])
    headrace.split(source, tmp_path / "out", into="8,1,1")
    headrace.split(source, tmp_path / "out", into=2, options=CopyOptions(overwrite=True))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part_00000", "part_00001"]


def test_what_cannot_be(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    for into, names, message in [
        (0, None, "0 parts: at least one"),
        (2, ["a"], "1 names are given for 2 parts"),
        (2, ["a", "a"], "two parts have the same name"),
        (2, ["a", "../b"], "'../b' cannot name a folder"),
        (2, ["a", ".b"], "'.b' cannot name a folder"),
        (2, ["a", "b/c"], "'b/c' cannot name a folder"),
        ("8,1,1", ["a", "b"], "give one for each of its 3 parts"),
        ("x", None, "the split is 'x'"),
        ("0,0", None, "at least one share must be above 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            headrace.split(source, tmp_path / "out", into=into, names=names)
    assert not (tmp_path / "out").exists()
