"""What a metadataset says, with nested files and paths, in figures of Energon 7.4.1; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigError, StoreError
from headrace.datasets.metadataset import TraversedDatasetReference, load_dataset, sources, traverse_metadataset
from headrace.datasets.metadataset.reading import Mixed, NamedSource, names_of, read_splits

TWO = [{"path": "a"}, {"path": "b"}]


def of(train: Any) -> Any:
    return read_splits({"splits": {"train": train}}, "m")["train"]


JOINER = {"__module__": "m", "__class__": "C"}
NAMED_TWICE = [{"path": "a", "name": "x"}, {"path": "b", "name": "x"}]


def scheduled(*stages: Any) -> dict[str, Any]:
    return {"blend": TWO, "schedule": list(stages)}


@pytest.mark.parametrize(
    ("train", "named"),
    [
        ({"path": "a", "split": "train"}, r"m.*splits.train.split.*'split_part'"),
        ({"blend": [{"path": "a", "wieght": 1}]}, r"m.*splits.train.blend\[0\].wieght.*'weight'"),
        ({"blend": [{"path": "a", "repeats": 1}]}, r"blend\[0\].repeats.*'repetitions"),
        ({"blned": TWO}, r"path.*join.*'blned'.*'blend'"),
        ({}, "nothing"),
        ({"path": "a", "blend": TWO}, r"found.*path.*blend"),
        ({"blend": [{"datasets": TWO}]}, r"blend\[0\].*datasets"),
        ({"blend": []}, r"splits.train.blend.*0.*1"),
        ({"blend": [{"path": "a", "repetitions": 2}]}, r"repetitions.*blend.*weight"),
        ({"blend_epochized": [{"path": "a", "weight": 2}]}, r"weight.*blend_epochized.*repetitions"),
        ({"blend": [{"path": "a", "weight": 0}]}, r"blend\[0\].weight.*0"),
        ({"blend": [{"path": "a", "weight": -1}]}, r"weight.*-1"),
        ({"blend": [{"path": "a", "weight": "3"}]}, r"weight.*'3'"),
        ({"blend": [{"path": "a", "weight": float("inf")}]}, r"weight.*inf"),
        ({"blend_epochized": [{"path": "a", "repetitions": 0}]}, r"repetitions.*0"),
        ({"path": 3}, r"path.*3"),
        ({"path": "a", "name": "x/y"}, r"'x/y'.*'/'"),
        ({"path": "a", "limit": 0}, r"limit.*0.*1"),
        ({"path": "a", "subset": [0, 1]}, "subset"),
        ({"path": "a", "subset": {"ranges": [0, 1]}}, r"subset.ranges.*'range'"),
        ({"path": "a", "subset": {"range": [5, "50%"]}}, r"subset.range.*5"),
        ({"blend": TWO, "subset": {"range": [0, 5]}}, r"leaf.*blend"),
        ({"path": "a", "shuffle_over_epochs_multiplier": 0}, r"multiplier.*0.*1.*-1"),
        ({"path": "a", "windows": {}, "packs": {}}, r"windows.*packs"),
        ({"path": "a", "aux": {"x": 1}}, r"aux.x.*1"),
        ({"join": TWO}, "joiner"),
        ({"join": TWO, "joiner": {"__module__": "m"}}, r"joiner.*__class__"),
        ({"join": [{"path": "a", "split": "x"}], "joiner": {}}, r"join\[0\].split.*'split"),
        ({"join": [{}], "joiner": JOINER}, r"join\[0\].path"),
        (
            {"join": [{"path": "a", "nonmatch": "drop"}], "joiner": JOINER},
            r"join\[0\].nonmatch.*'drop'.*'error'.*'skip'",
        ),
        (scheduled({"weights": {"c": 1}}), r"schedule\[0\].weights.*'c'"),
        (scheduled({"weights": [1]}), r"2.*\(a, b\)"),
        (scheduled({}), "null"),
        (scheduled({"weights": [1, 1], "until": 7}), r"until.*7"),
        (scheduled({"weights": [1, 1], "until": "7 epochs"}), "'7 epochs'"),
        ({"blend": [{"path": "a", "weight": 1}], "schedule": [{"weights": [1]}]}, r"blend\[0\].weight.*schedule"),
        ({"blend": NAMED_TWICE, "schedule": [{}]}, "'x'"),
    ],
)
def test_faults_are_told_with_their_place(train: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        of(train)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([], r"m.*0"),
        ({}, r"m.*splits"),
        ({"splits": {}}, r"m.*splits"),
        ({"splits": {"train": {"path": "a"}}, "split": 1}, r"m.*split\b.*'splits'"),
        ({"__module__": "os", "__class__": "system", "splits": {}}, r"os.*system"),
        ({"__module__": "megatron.energon", "__class__": "Blend", "splits": {}}, r"MetadatasetV2.*Blend"),
    ],
)
def test_faults_of_the_whole(content: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_splits(content, "m")
    if isinstance(content, dict):
        with pytest.raises(ConfigError, match=rf"^metadataset.*{named[1:]}"):
            load_dataset(content)


def test_both_versions() -> None:
    first = of(
        {
            "datasets": [
                {"path": "a", "weight": 2, "subflavor": "x"},
                {"path": "b", "subflavor": "y", "subflavors": {"z": 1}},
            ]
        }
    )
    assert isinstance(first, Mixed)
    assert first.kind == "blend"
    assert [child.weight for child in first.children] == [2, 1.0]
    assert [child.subflavors for child in first.children] == [{"__subflavor__": "x"}, {"__subflavor__": "y", "z": 1}]
    second = of({"path": "a", "dataset_config": "x.yaml", "split_config": "y.yaml", "aux": {"files": "filesystem://f"}})
    assert isinstance(second, NamedSource)
    assert (second.dataset_config, second.split_config, second.aux) == ("x.yaml", "y.yaml", {"files": "filesystem://f"})


def test_names_stay_when_others_come_and_go() -> None:
    blend = of({"blend": [{"path": "../x/a.yaml"}, {"path": "y/a"}, {"path": "."}, {"path": "web", "name": "a"}]})
    assert names_of(blend.children) == ("a-2", "a-3", "source", "a")
    without = of({"blend": [{"path": "y/a"}, {"path": "."}, {"path": "new"}]})
    assert names_of(without.children) == ("a", "source", "new")
    nested = of({"blend": [{"concat": TWO}, {"join": TWO, "joiner": JOINER}]})
    assert names_of(nested.children) == ("concat", "a+b")


def tree(path: Path, split: str = "train") -> Any:
    return load_dataset(path).tree(split)


def test_nested_files(nested_mix: Path, tmp_path: Path) -> None:
    found = tree(nested_mix)
    assert isinstance(found, Mixed)
    assert (found.names, found.numbers) == (("inner", "c"), (2, 1.0))
    a, b, c = (one for one in sources(found) if isinstance(one, NamedSource))
    assert (a.subflavors, b.subflavors, c.subflavors) == ({"k": "outer", "i": 1}, {"k": "outer"}, None)
    assert [one.subset and one.subset.bounds(n) for one, n in ((a, 20), (b, 40), (c, 10))] == [(0, 8), (10, 22), (2, 8)]
    assert [one.shuffle_over_epochs for one in (a, b, c)] == [1, 1, 2]
    assert a.path == str(tmp_path / "a")
    assert a.where == f"{tmp_path}/inner.yaml: splits.train.blend[0]"
    assert traverse_metadataset(nested_mix, split_part="train") == [
        TraversedDatasetReference(path=str(tmp_path / "a"), split_part="train", subflavors={"k": "outer", "i": 1}),
        TraversedDatasetReference(path=str(tmp_path / "b"), split_part="train", subflavors={"k": "outer"}),
        TraversedDatasetReference(path=str(tmp_path / "c"), split_part="train"),
    ]


def test_the_split_of_a_nested_file(write: Any) -> None:
    both = {"concat": [{"path": "a"}, {"path": "b"}]}
    write({"path": "a"}, "inner.yaml", val={"path": "a", "split_part": "test"}, all=both)
    mix = write(
        {"blend": [{"path": "inner.yaml", "split_part": "val"}, {"path": "inner.yaml", "split_part": "all"}]},
        val={"path": "inner.yaml"},
    )
    assert [one.split_part for one in load_dataset(mix).traverse("train")] == ["test", "all", "all"]
    assert [one.split_part for one in load_dataset(mix).traverse("val")] == ["test"]
    wrong = write({"blend": [{"path": "inner.yaml", "split_part": "vla"}]}, "wrong.yaml")
    with pytest.raises(ConfigError, match=r"wrong.yaml.*splits.train.blend\[0\].*inner.yaml"):
        tree(wrong)
    with pytest.raises(ConfigError, match=r"mix.yaml.*'tset'"):
        tree(mix, "tset")


@pytest.mark.parametrize(
    ("outer", "inner", "together"), [(1, 1, 1), (2, 3, 6), (-1, 3, -1), (2, -1, -1), (None, 3, None), (-1, None, None)]
)
def test_multipliers(write: Any, outer: int | None, inner: int | None, together: int | None) -> None:
    write({"path": "a", "shuffle_over_epochs_multiplier": inner}, "inner.yaml")
    found = tree(write({"path": "inner.yaml", "shuffle_over_epochs_multiplier": outer}))
    assert found.shuffle_over_epochs == together


def test_paths(write: Any, tmp_path: Path, data: Path) -> None:
    write({"path": "../a"}, "folder/inner.yaml")
    aux = {"x": "filesystem://c/d", "y": "./c", "z": f"filesystem://{tmp_path}/e"}
    mix = write({"concat": [{"path": "folder/inner.yaml"}, {"path": f"file://{data}/b", "aux": aux}]})
    inner, outer = load_dataset(mix).traverse("train")
    assert inner.path == str(tmp_path / "a")
    assert outer.path == str(data / "b")
    places = {"x": f"filesystem://{tmp_path}/c/d", "y": f"{tmp_path}/c", "z": f"filesystem://{tmp_path}/e"}
    assert outer.aux == places


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"path": "msc://profile/a"}, r"splits.train.*path.*msc://profile/a.*file://"),
        ({"path": "dss://a@1/b"}, "dss://a@1/b"),
        ({"path": "filesystem://a"}, "aux"),
        ({"path": "a", "aux": {"x": "filesystem+msc://a"}}, r"aux.x.*filesystem\+msc://a"),
        ({"path": "inner.yaml", "aux": {"x": "a"}}, r"aux.*inner.yaml"),
        ({"path": "inner.yaml", "dataset_config": "x"}, "dataset_config"),
        ({"path": "inner.yaml", "subset": {"range": [0, 5]}}, "inner.yaml"),
        ({"path": "mix.yaml"}, r"mix.yaml.*mix.yaml.*mix.yaml"),
        ({"join": [{"path": "inner.yaml"}], "joiner": {"__module__": "m", "__class__": "C"}}, "inner.yaml"),
    ],
)
def test_what_cannot_be_resolved(write: Any, entry: Any, named: str) -> None:
    write({"path": "a"}, "inner.yaml")
    with pytest.raises(ConfigError, match=named):
        tree(write(entry))


def test_files_that_are_not_there_or_no_yaml(write: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"mix.yaml.*splits.train.blend\[1\].*/no.yaml"):
        tree(write({"blend": [{"path": "a"}, {"path": "no.yaml"}]}))
    with pytest.raises(StoreError, match=r"no.yaml"):
        load_dataset(tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("splits: [")
    with pytest.raises(StoreError, match=r"bad.yaml.*YAML"):
        load_dataset(tmp_path / "bad.yaml")


def test_a_dict(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"splits": {"train": {"path": "a"}}}
    assert load_dataset(given, path=data / "mix.yaml").traverse("train")[0].path == str(data / "a")
    monkeypatch.chdir(data)
    found = load_dataset(given)
    assert found.splits == ("train",)
    assert found.traverse("train")[0].path == "a"
    assert len(found.train()) == 20  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metadataset"):
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
