"""The joins of metadatasets: found wherever they are, and none is made of what cannot be joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from energon_made import write_tar
from headrace.datasets.metadataset import JoinedSource, load_dataset, sources
from headrace.datasets.metadataset.opening import join_store
from headrace.errors import InputError, StoreError
from headrace.preparing.energon import EnergonOptions, EnergonReport, SplitChoice, prepare_energon
from headrace.stores.energon import EnergonStore, JoinColumn, JoinedStore

SPLIT = SplitChoice(parts=(("train", "0"), ("val", "1")))
JOIN = "{join: [{path: a}, {path: b, nonmatch: skip}]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, part, missing in (("a", "jpg", 9), ("b", "txt", 2)):
        for shard in (0, 1):
            members = [(f"k{shard}{at}.{part}", b"x" * (700 * shard + at)) for at in range(4) if at != missing]
            write_tar(tmp_path / f"{name}/{shard}.tar", members)
        prepare_energon(tmp_path / name, options=EnergonOptions(split=SPLIT))
    return tmp_path


def prepare(folder: Path, splits: str, name: str = "meta.yaml") -> tuple[EnergonReport, list[str]]:
    (folder / name).write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {splits}\n")
    notices: list[str] = []
    return prepare_energon(folder / name, on_notice=notices.append), notices


@pytest.mark.parametrize(
    "splits",
    [
        f"{{train: {JOIN}, val: {JOIN}}}",
        f"{{train: {{blend: [{{weight: 1, path: a}}, {JOIN}]}}, val: {{blend_epochized: [{JOIN}]}}}}",
        f"{{train: {{datasets: [{JOIN}]}}, val: {JOIN}}}",
        "{train: {join: {one: {path: a}, two: {path: b, nonmatch: skip}}}, val: " + JOIN + "}",
    ],
)
def test_joins_of_two_splits(folder: Path, splits: str) -> None:
    report, notices = prepare(folder, splits)
    assert (report.samples, len(report.written), len(notices)) == (6, 2, 2)
    assert all("3 joined samples, 1 without a partner left out" in notice for notice in notices)
    for part, shard in (("train", 0), ("val", 1)):
        columns = [
            JoinColumn(store=EnergonStore(folder / name, split_part=part), nonmatch=nonmatch)
            for name, nonmatch in (("a", "error"), ("b", "skip"))
        ]
        store = JoinedStore(columns, folder / "meta.yaml.cache")
        keys = [[sample.key for sample in row if sample] for row in store.read_joined(np.arange(len(store)))]
        assert keys == [[f"k{shard}{at}"] * 2 for at in (0, 1, 3)]


def test_a_metadataset_within_another(folder: Path) -> None:
    prepare(folder, f"{{train: {JOIN}, val: {JOIN}}}", "inner.yaml")
    for path in (folder / "inner.yaml.cache").iterdir():
        path.unlink()
    report, _ = prepare(folder, "{train: {path: inner.yaml, split_part: val}}")
    assert report.samples == 3
    assert [Path(path).parent.name for path in report.written] == ["inner.yaml.cache"]


NAMED = JOIN[:-1] + ", joiner: {__module__: megatron.energon, __class__: TextSample}}"


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
    ],
)
def test_joins_are_made_where_a_run_looks_for_them(folder: Path, splits: str, shard: int) -> None:
    """Inline in other nodes, through files, and of the part that is said around them."""
    header = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    inner = f"train: {{blend: [{{concat: [{NAMED}]}}]}}, val: {NAMED}"
    (folder / "inner.yaml").write_text(f"{header}splits: {{{inner}}}\n")
    prepare(folder, splits.replace("FILE", f"file://{folder}"))
    (joined,) = sources(load_dataset(folder / "meta.yaml").tree("train"))
    assert isinstance(joined, JoinedSource)
    rows = join_store(joined).read_joined(np.arange(3))
    assert [[sample.key for sample in row if sample] for row in rows] == [[f"k{shard}{at}"] * 2 for at in (0, 1, 3)]


def test_nothing_to_join(folder: Path) -> None:
    report, notices = prepare(folder, "{train: {path: a}}")
    assert (report.written, report.samples) == ((), 0)
    assert "holds no join" in notices[0]


@pytest.mark.parametrize(
    ("splits", "kind", "message"),
    [
        ("{train: {join: [{path: a}, {path: b}]}}", InputError, "has no partner"),
        ("{train: {join: [{path: a, split: x}, {path: b}]}}", StoreError, "did you mean 'split_part'"),
        ("{train: {join: [{path: a}, {nonmatch: skip}]}}", StoreError, "each dataset of a join needs a path"),
        (
            "{train: {join: [{path: a}, {path: b, nonmatch: maybe}]}}",
            StoreError,
            "nonmatch must be error, skip or none",
        ),
        ("{train: {join: [{path: a, split_part: test}, {path: b}]}}", StoreError, "no part 'test'"),
        ("{train: {join: [{path: gone}, {path: b}]}}", StoreError, "gone"),
        ("{train: {path: meta.yaml}}", StoreError, "contains itself"),
        ("{train: {path: none.yaml}}", StoreError, "no such metadataset"),
        ("{train: {blend: a}}", StoreError, "expected a list of datasets"),
        ("5", StoreError, "expected a map"),
    ],
)
def test_what_cannot_be_joined(folder: Path, splits: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        prepare(folder, splits)
    assert not list(folder.glob("meta.yaml.cache/join_index_*"))
