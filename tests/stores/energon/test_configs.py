"""The small files of a dataset: YAML, braces, info, split, dataset.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.io.paths import MAX_EXPANDED
from headrace.stores.energon import read_dataset, read_info, read_splits, write_splits
from headrace.stores.energon.config_file import read_yaml
from headrace.stores.energon.dataset_yaml import DatasetConfig
from headrace.stores.energon.splits import collapse, expand, split_part

GOLDEN = Path(__file__).parents[2] / "golden/energon"


READ_BY_ENERGON = json.loads((GOLDEN / "yaml.json").read_text())
TWICE = ["a: 1\na: 2\n", {"a": 2}]
"""Energon keeps the last of two equal keys; here they are refused, see `test_yaml_that_is_malformed`."""


@pytest.mark.parametrize(("text", "wanted"), [case for case in READ_BY_ENERGON if case != TWICE])
def test_yaml_is_read_as_energon_reads_it(text: str, wanted: Any) -> None:
    found = read_yaml(text.encode(), "x.yaml")
    assert found == wanted
    assert repr(found) == repr(wanted)  # 1 == 1.0 == True


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a:\nb: 1\n", {"a": None, "b": 1}), ("---\na: 1\n", {"a": 1}), ("", None), ("- a\n-\n", ["a", None])],
)
def test_yaml_that_energon_fails_on(text: str, wanted: Any) -> None:
    assert read_yaml(text.encode(), "x.yaml") == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b: 1\n", "YAML.*line.*2"),
        ("\ta: 1\n", "YAML"),
        ("a: 1\n---\nb: 2\n", "documents"),
        ("? [1]\n: 2\n", "line.*1.*key"),
        ("a: 1\nb: {x: 1, y: 2,\n  x: 3}\n", "line.*3.*'x'"),
        (TWICE[0], "line.*2.*'a'"),
        ("a: 1\n'a': 2\n", "line.*2.*'a'"),
        ("[" * 200 + "]" * 200, "100"),
        ("a: \x00", "YAML"),
    ],
)
def test_yaml_that_is_malformed(text: str, message: str) -> None:
    with pytest.raises(StoreError, match=rf"x\.yaml.*{message}"):
        read_yaml(text.encode(), "x.yaml")


def test_bombs_of_aliases_do_not_grow() -> None:
    text = "a: &a [x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    assert read_yaml(text.encode(), "x")["h"] == ["*g"] * 3


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("s.tar", ["s.tar"]),
        ("s{08..10}", ["s08", "s09", "s10"]),
        ("s{8..10}", ["s8", "s9", "s10"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{1..-1}", ["1", "0", "-1"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{a..e..2}{1,2}", ["a1", "a2", "c1", "c2", "e1", "e2"]),
        ("p{2.{5..6},3.{2,3}}", ["p2.5", "p2.6", "p3.2", "p3.3"]),
        ("a{b}c", ["a{b}c"]),
        ("a{{1,2}}", ["a{1}", "a{2}"]),
        (r"a\{1,2\}", ["a{1,2}"]),
        (r"{a\,b,c}", ["a,b", "c"]),
        ("{,x}y", ["y", "xy"]),
        ("{}", ["{}"]),
        ("{1..3..0}", ["1", "2", "3"]),
    ],
)
def test_braces(pattern: str, wanted: list[str]) -> None:
    assert expand(pattern, "x") == wanted


TOO_MANY = ["{1..1000001}", "{0..99999}{0..99999}", "{{0..999},a}{0..9999}", "{1..99999999999}"]


@pytest.mark.parametrize(
    ("pattern", "named"),
    [*((one, "braces") for one in ("{a", "a}", "{1{2,3}")), *((one, f"{MAX_EXPANDED:,}") for one in TOO_MANY)],
)
def test_braces_that_are_refused(pattern: str, named: str) -> None:
    with pytest.raises(StoreError, match=named):
        expand(pattern, "x")


@given(st.lists(st.from_regex(r"[a-b_]{0,2}[0-9]{1,3}[a_]?[0-9]{0,2}\.tar", fullmatch=True), max_size=12))
@settings(max_examples=cases(20, 200), deadline=None)
def test_collapsed_names_stand_for_the_names(names: list[str]) -> None:
    patterns = collapse(sorted(names))
    assert [name for pattern in patterns for name in expand(pattern, "x")] == sorted(names)
    assert len(patterns) <= len(names)


def test_collapsed_as_energon_does() -> None:
    names = ["a_08", "a_09", "a_10", "b", "c_9", "c_10", "1_1", "1_2", "2_2", "2_3", "3_3"]
    assert collapse(names) == ["a_{08..10}", "b", "c_9", "c_10", "1_{1..2}", "2_{2..3}", "3_3"]


def meta(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / ".nv-meta").mkdir(exist_ok=True)
    (tmp_path / ".nv-meta" / name).write_text(text)
    return tmp_path


def test_info_of_before_7(tmp_path: Path) -> None:
    root = meta(tmp_path, ".info.yaml", "energon_version: 5.3\nshard_counts:\n  a/b.tar: 3\n  c.tar: 0\n")
    info = read_info(root)
    assert (info.energon_version, info.shard_counts) == ("5.3", {"a/b.tar": 3, "c.tar": 0})
    meta(root, ".info.json", '{"shard_counts": {"d.tar": 1}}')
    assert read_info(root).shard_counts == {"d.tar": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"shard_counts": {}, "shard_count": 1}', "shard_count.*'shard_counts'"),
        ('{"energon_version": "7"}', "shard_counts"),
        ('{"shard_counts": []}', "map.*list"),
        ('{"shard_counts": {"a.tar": -1}}', r"'a\.tar'.*number"),
        ('{"shard_counts": {"a.tar": true}}', "True"),
        ('{"shard_counts": {"../a.tar": 1}}', "leave"),
        ('{"shard_counts": {"/a.tar": 1}}', "leave"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ('{"shard_counts": {"a.tar": 1, "b.tar": 2, "a.tar": 3}}', r"'a\.tar'.*twice"),
    ],
)
def test_info_that_is_malformed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StoreError, match=r"\.info\.json"):
        read_info(tmp_path)
    with pytest.raises(StoreError, match=rf"\.info\.json.*{message}"):
        read_info(meta(tmp_path, ".info.json", text))


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    root = meta(tmp_path, ".info.json", '{"shard_counts": {"a.tar": 1}, "mine": 1}')
    with pytest.raises(StoreError, match="mine is unknown"):
        read_info(root)


def test_split_files_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"split\.yaml.*split\.json"):
        read_splits(tmp_path)
    meta(tmp_path, "split.json", '{"split_parts": {"train": ["a.tar"]}}')
    assert read_splits(tmp_path).parts == {"train": ("a.tar",)}
    meta(tmp_path, "split.yaml", "split_parts: {train: ['b{0..1}.tar', b0.tar]}\nexclude: ['b{1..2}.tar', b0.tar/k]")
    splits = read_splits(tmp_path)
    assert splits.parts == {"train": ("b0.tar", "b1.tar", "b0.tar")}
    assert splits.exclude == {"b1.tar", "b2.tar", "b0.tar/k"}
    meta(tmp_path, "mine.json", '{"split_parts": {"x": []}}')
    assert read_splits(tmp_path, "mine.json").parts == {"x": ()}
    with pytest.raises(StoreError, match=r"other\.yaml"):
        read_splits(tmp_path, "other.yaml")
    meta(tmp_path, "mine.txt", "")
    with pytest.raises(StoreError, match=r"mine\.txt"):
        read_splits(tmp_path, "mine.txt")
    for name in ("../x.yaml", "/x.yaml"):
        with pytest.raises(ConfigError, match="relative"):
            read_splits(tmp_path, name)


def test_shards_that_come_twice_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Energon reads such a shard as often as it is listed, without a word."""
    meta(tmp_path, ".info.json", '{"shard_counts": {"a0.tar": 1, "a1.tar": 1, "b.tar": 1}}')
    parts = "{train: ['a{0..1}.tar', a1.tar], val: [a1.tar, b.tar], test: [], small: [a0.tar]}"
    meta(tmp_path, "split.yaml", f"split_parts: {parts}")
    said = {}
    for part in ("train", "val", "small"):
        caplog.clear()
        split_part(read_splits(tmp_path), part, read_info(tmp_path))
        said[part] = [record.getMessage().partition("split.yaml: ")[2] for record in caplog.records]
    shared = "train and val share shards: a1.tar; samples are in both"
    twice = "part 'train' lists shards several times: a1.tar; their samples come as often in an epoch"
    assert said == {"train": [twice, shared], "val": [shared], "small": []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("split_part: {}", "split_part.*'split_parts'"),
        ("exclude: []", "split_parts"),
        ("split_parts: {train: a.tar}", r"train.*list.*'a\.tar'"),
        ("split_parts: {train: [1]}", "item.*0.*1"),
        ("split_parts: {train: [a.tar], train: [b.tar]}", "line.*1.*'train'"),
        ("split_parts: {train: ['a{']}", r"train.*'a\{'"),
        ("a", "map"),
    ],
)
def test_splits_that_are_malformed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read_splits(meta(tmp_path, "split.yaml", text))


def test_parts(tmp_path: Path) -> None:
    root = meta(tmp_path, ".info.json", '{"shard_counts": {"a/1.tar": 1, "a/2.tar": 2, "a": 3}}')
    text = (
        "split_parts: {train: [a/2.tar, a/1.tar, a], x: [b.tar], y: [], z: [a/1.tar]}\nexclude: [a/1.tar, a/2.tar/k/1]"
    )
    splits, info = read_splits(meta(root, "split.yaml", text)), read_info(root)
    part = split_part(splits, "train", info)
    assert part.listed == ("a/2.tar", "a/1.tar", "a")
    assert part.shards == ("a/2.tar", "a")
    # Both may hold slashes: the shard "a" may have a sample of this key.
    assert part.keys == {"a/2.tar": {"k/1"}, "a": {"1.tar", "2.tar/k/1"}}
    with pytest.raises(ConfigError, match=r"'trian'.*'train'"):
        split_part(splits, "trian", info)
    with pytest.raises(StoreError, match=r"'b\.tar'.*info\.json"):
        split_part(splits, "x", info)
    for name in "yz":
        with pytest.raises(StoreError, match=f"'{name}'"):
            split_part(splits, name, info)


def test_names_with_braces_are_written_so_that_they_are_read_back(tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    names = ["a{1}.tar", "a{2}.tar", "b\\1.tar", "c{1,2}.tar", "{.tar"]
    for name in ("split.yaml", "split.json"):
        write_splits(tmp_path, {"train": names, "no": []}, exclude=["a{1}.tar"], split_config=name)
        splits = read_splits(tmp_path, name)
        assert (list(splits.parts["train"]), splits.parts["no"], splits.exclude) == (names, (), {"a{1}.tar"})
    with pytest.raises(ConfigError, match="json"):
        write_splits(tmp_path, {}, split_config="x.txt")


TYPED = "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"


def dataset_of(root: Path, text: str, name: str = "dataset.yaml") -> DatasetConfig:
    found = read_dataset(meta(root, name, text), name)
    assert found is not None
    return found


def test_datasets(tmp_path: Path) -> None:
    assert read_dataset(tmp_path) is None
    with pytest.raises(StoreError, match=r"mine\.yaml.*dataset_config"):
        read_dataset(tmp_path, "mine.yaml")
    found = dataset_of(tmp_path, TYPED + "field_map: {image: jpg, caption: 'txt,json[c]'}")
    assert (found.kind, str(found.sample_type)) == ("typed", "megatron.energon.CaptioningSample")
    assert found.field_map == {"image": "jpg", "caption": "txt,json[c]"}
    loaded = TYPED + "sample_loader: s.py:load\npart_filter: [jpg]\nshuffle_over_epochs: 2"
    found = dataset_of(tmp_path, loaded, "l.yaml")
    assert (found.sample_loader, found.part_filter) == ("s.py:load", ("jpg",))
    assert found.options == {"shuffle_over_epochs": 2}
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {a: yes, b: 'yes'}"
    found = dataset_of(tmp_path, crude)
    assert (found.kind, found.subflavors, found.sample_type) == ("crude", {"a": True, "b": "yes"}, None)
    found = dataset_of(tmp_path, "__module__: megatron.energon\n__class__: VQAWebdataset\nfield_map: {image: jpg}")
    assert (found.kind, found.sample_type and found.sample_type.name) == ("typed", "VQASample")
    found = dataset_of(tmp_path, "__module__: my.code\n__class__: Mine\nanything: 1")
    assert (found.kind, str(found.class_ref), found.options) == ("other", "my.code.Mine", {"anything": 1})
    functions = "sample_loader: {__module__: m, __function__: f}\npart_filter: {__module__: m, __function__: g}"
    found = dataset_of(tmp_path, TYPED + functions)
    assert (str(found.sample_loader), str(found.part_filter)) == ("m.f", "m.g")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("field_map: {image: jpg}", "sample_type.*CrudeWebdataset"),
        (TYPED, "neither.*field_map.*sample_loader"),
        (TYPED + "field_map: {}\nsample_loader: x.py", "both.*field_map.*sample_loader"),
        (TYPED + "sample_loader: x.py", "part_filter"),
        (TYPED + "field_map: {image: jpg}\npart_filter: [jpg]", "part_filter.*sample_loader"),
        (TYPED + "fieldmap: {image: jpg}", "fieldmap.*'field_map'"),
        (TYPED + "field_map: {image: 1}", "image.*part"),
        ("sample_type: CaptioningSample\nfield_map: {}", "sample_type.*map.*str"),
        ("sample_type: {__class__: X}\nfield_map: {}", "sample_type.*__module__.*__class__"),
        ("sample_type: {__module__: a, __function__: f}\nfield_map: {}", r"class.*a\.f"),
        ("__module__: megatron.energon", "__module__.*__class__"),
        ("__module__: 1\n__class__: X", "__module__.*1"),
        ("__module__: m\n__class__: CrudeWebdataset\nfield_map: {}", "field_map.*CrudeWebdataset"),
        ("__module__: m\n__class__: VQAWebdataset\n" + TYPED, "VQAWebdataset.*VQASample.*sample_type"),
        ("subflavors: 3", "subflavors.*map"),
        (TYPED + "field_map:\n  image: jpg\n  image: png", "'image'.*twice"),
        (TYPED + "sample_loader: 3\npart_filter: [a]", r"file\.py:name"),
        ("", "map.*null"),
    ],
)
def test_datasets_that_are_malformed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StoreError, match=rf"/\.nv-meta/dataset\.yaml.*{message}"):
        read_dataset(meta(tmp_path, "dataset.yaml", text))
