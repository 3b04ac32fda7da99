"""What nested files, ranges, subflavors and paths come to; figures and orders as Energon 7.4.1 gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigError, StoreError
from headrace.datasets.metadataset import (
    Mixed,
    NamedSource,
    TraversedDatasetReference,
    load_dataset,
    sources,
    traverse_metadataset,
)

INNER = {
    "blend": [
        {"weight": 3, "path": "./a", "subflavors": {"k": "inner", "i": 1}},
        {"weight": 1, "path": "b", "subset": {"range": [10, "end"]}},
    ],
    "subset": {"range": ["0%", "50%"]},
}


def tree(path: Path, split: str = "train") -> Any:
    return load_dataset(path).tree(split)


def test_nested_files(write: Any, tmp_path: Path) -> None:
    write(INNER, "inner.yaml", val={"path": "a", "split_part": "val"})
    mix = write(
        {
            "blend": [
                {"weight": 2, "path": "inner.yaml", "subflavors": {"k": "outer"}},
                {"path": "c", "subset": {"range": ["20%", "100%"]}, "shuffle_over_epochs_multiplier": 2},
            ],
            "subset": {"range": ["0%", "80%"]},
        }
    )
    found = tree(mix)
    assert isinstance(found, Mixed)
    assert (found.names, found.numbers) == (("inner", "c"), (2, 1.0))
    a, b, c = sources(found)
    assert isinstance(a, NamedSource)
    assert isinstance(b, NamedSource)
    assert isinstance(c, NamedSource)
    assert (a.subflavors, b.subflavors, c.subflavors) == ({"k": "outer", "i": 1}, {"k": "outer"}, None)
    assert [one.subset and one.subset.bounds(n) for one, n in ((a, 20), (b, 40), (c, 10))] == [(0, 8), (10, 22), (2, 8)]
    assert [one.shuffle_over_epochs for one in (a, b, c)] == [1, 1, 2]
    assert a.path == str(tmp_path / "a")
    assert a.where == f"{tmp_path}/inner.yaml: splits.train.blend[0]"
    assert traverse_metadataset(mix, split_part="train") == [
        TraversedDatasetReference(path=str(tmp_path / "a"), split_part="train", subflavors={"k": "outer", "i": 1}),
        TraversedDatasetReference(path=str(tmp_path / "b"), split_part="train", subflavors={"k": "outer"}),
        TraversedDatasetReference(path=str(tmp_path / "c"), split_part="train"),
    ]


def test_the_split_of_a_nested_file(write: Any) -> None:
    write(INNER, "inner.yaml", val={"path": "a", "split_part": "test"}, all={"concat": [{"path": "a"}, {"path": "b"}]})
    mix = write(
        {"blend": [{"path": "inner.yaml", "split_part": "val"}, {"path": "inner.yaml", "split_part": "all"}]},
        val={"path": "inner.yaml"},
    )
    assert [one.split_part for one in load_dataset(mix).traverse("train")] == ["test", "all", "all"]
    assert [one.split_part for one in load_dataset(mix).traverse("val")] == ["test"]
    wrong = write({"blend": [{"path": "inner.yaml", "split_part": "vla"}]}, "wrong.yaml")
    with pytest.raises(
        ConfigError, match=r"wrong.yaml: splits.train.blend\[0\]: .*inner.yaml: has no split 'vla'; did"
    ):
        tree(wrong)
    with pytest.raises(ConfigError, match=r"mix.yaml: has no split 'tset'"):
        tree(mix, "tset")


@pytest.mark.parametrize(
    ("outer", "inner", "together"), [(1, 1, 1), (2, 3, 6), (-1, 3, -1), (2, -1, -1), (None, 3, None), (-1, None, None)]
)
def test_multipliers(write: Any, outer: int | None, inner: int | None, together: int | None) -> None:
    write({"path": "a", "shuffle_over_epochs_multiplier": inner}, "inner.yaml")
    found = tree(write({"path": "inner.yaml", "shuffle_over_epochs_multiplier": outer}))
    assert found.shuffle_over_epochs == together


def test_ranges_in_samples_are_of_datasets(write: Any) -> None:
    write({"path": "a"}, "inner.yaml")
    with pytest.raises(ConfigError, match=r"inner.yaml is a metadataset: use percentages"):
        tree(write({"path": "inner.yaml", "subset": {"range": [0, 5]}}))


def test_paths(write: Any, tmp_path: Path, data: Path) -> None:
    write({"path": "../a"}, "folder/inner.yaml")
    absolute = f"file://{data}/b"
    mix = write(
        {
            "concat": [
                {"path": "folder/inner.yaml"},
                {"path": absolute, "aux": {"x": "filesystem://c/d", "y": "./c", "z": f"filesystem://{tmp_path}/e"}},
            ]
        }
    )
    inner, outer = load_dataset(mix).traverse("train")
    assert inner.path == str(tmp_path / "a")
    assert outer.path == str(data / "b")
    assert outer.aux == {
        "x": f"filesystem://{tmp_path}/c/d",
        "y": f"{tmp_path}/c",
        "z": f"filesystem://{tmp_path}/e",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"path": "msc://profile/a"},
            r"splits.train: path: msc://profile/a cannot be read: the protocols known here are file://",
        ),
        ({"path": "dss://a@1/b"}, "dss://a@1/b cannot be read"),
        ({"path": "filesystem://a"}, "a folder of files, which only aux can name"),
        ({"path": "a", "aux": {"x": "filesystem+msc://a"}}, r"aux.x: filesystem\+msc://a cannot be read"),
        ({"path": "inner.yaml", "aux": {"x": "a"}}, "aux goes with a dataset, and inner.yaml is a metadataset"),
        ({"path": "inner.yaml", "dataset_config": "x"}, "dataset_config goes with a dataset"),
        ({"path": "mix.yaml"}, r"mix.yaml contains itself: .*mix.yaml -> .*mix.yaml"),
        (
            {"join": [{"path": "inner.yaml"}], "joiner": {"__module__": "m", "__class__": "C"}},
            "inner.yaml is a metadataset, and only datasets can be joined",
        ),
    ],
)
def test_what_cannot_be_resolved(write: Any, entry: Any, message: str) -> None:
    write({"path": "a"}, "inner.yaml")
    with pytest.raises(ConfigError, match=message):
        tree(write(entry))


def test_files_that_are_not_there_or_no_yaml(write: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"mix.yaml: splits.train.blend\[1\]: path: nothing is at .*/no.yaml"):
        tree(write({"blend": [{"path": "a"}, {"path": "no.yaml"}]}))
    with pytest.raises(StoreError, match=r"no.yaml: there is no such file"):
        load_dataset(tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("splits: [")
    with pytest.raises(StoreError, match=r"bad.yaml: not valid YAML"):
        load_dataset(tmp_path / "bad.yaml")


def test_a_dict(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"splits": {"train": {"path": "a"}}}
    assert load_dataset(given, path=data / "mix.yaml").traverse("train")[0].path == str(data / "a")
    monkeypatch.chdir(data)
    found = load_dataset(given)
    assert found.splits == ("train",)
    assert found.traverse("train")[0].path == "a"
    assert len(found.train()) == 20  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="path is only for a metadataset that is given as a dict"):
        load_dataset("mix.yaml", path="x")


def test_a_dataset_in_the_place_of_a_metadataset(data: Path) -> None:
    single = load_dataset(data / "a")
    assert single.splits == ()
    assert len(single.train()) == 20  # type: ignore[arg-type]
    assert len(single.validation("val")) == 5  # type: ignore[arg-type]
    assert repr(single) == f"<Metadataset '{data}/a': a single dataset>"


def test_yaml_is_read_in_energons_dialect(write: Any) -> None:
    path = write({"path": "a"})
    path.write_text("splits: {train: {path: a, subflavors: {on: on, yes: yes, none: none}}}")
    assert load_dataset(path).traverse("train")[0].subflavors == {"on": "on", "yes": True, "none": "none"}
