"""What is refused when a metadataset is read, and how it is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace import ConfigError
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.metadataset.reading import MixEntry, PathEntry, names_of, read_splits

TWO = [{"path": "a"}, {"path": "b"}]


def of(train: Any) -> Any:
    return read_splits({"splits": {"train": train}}, "m")["train"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"path": "a", "split": "train"}, r"m: splits.train.split is unknown; did you mean 'split_part'\?"),
        ({"blend": [{"path": "a", "wieght": 1}]}, r"m: splits.train.blend\[0\].wieght is unknown.*'weight'"),
        ({"blend": [{"path": "a", "repeats": 1}]}, r"blend\[0\].repeats is unknown; did you mean 'repetitions'"),
        ({"blned": TWO}, "exactly one of path, join, blend.*found only 'blned'; did you mean 'blend'"),
        ({}, "exactly one of .*found only nothing"),
        ({"path": "a", "blend": TWO}, "exactly one of .*; found path and blend"),
        ({"blend": [{"datasets": TWO}]}, r"blend\[0\]: expected exactly one of .*found datasets"),
        ({"blend": []}, r"splits.train.blend is a list of 0; expected a list of length >= 1"),
        ({"blend": ["a"]}, r"blend\[0\] is the string 'a'; expected an object"),
        ({"blend": [{"path": "a", "repetitions": 2}]}, r"repetitions does not go with blend; use weight"),
        ({"blend_epochized": [{"path": "a", "weight": 2}]}, r"weight does not go with blend_epochized; use repet"),
        ({"blend": [{"path": "a", "weight": 0}]}, r"blend\[0\].weight is 0: remove the entry"),
        ({"blend": [{"path": "a", "weight": -1}]}, "weight is the number -1; expected a whole number >= 0"),
        ({"blend": [{"path": "a", "weight": "3"}]}, "weight is the string '3'; expected a whole number or a number"),
        ({"blend": [{"path": "a", "weight": float("inf")}]}, "weight is the number inf; expected a number <= 4.6"),
        ({"blend_epochized": [{"path": "a", "repetitions": 0}]}, "repetitions is 0; it must be above 0"),
        ({"path": 3}, "path is the number 3; expected a string"),
        ({"path": "a", "name": "x/y"}, "the name 'x/y' holds '/'"),
        ({"path": "a", "limit": 0}, "limit is the number 0; expected a whole number >= 1"),
        ({"path": "a", "limit": 2.5}, "limit is the number 2.5; expected a whole number or null"),
        ({"path": "a", "subset": [0, 1]}, "subset is a list of 2; expected an object"),
        ({"path": "a", "subset": {"ranges": [0, 1]}}, "subset.ranges is unknown; did you mean 'range'"),
        ({"path": "a", "subset": {"range": [5, "50%"]}}, "subset.range: the subset .* has the end 5"),
        (
            {"blend": TWO, "subset": {"range": [0, 5]}},
            "a range in samples is only allowed for a leaf dataset; for a blend use perc",
        ),
        ({"path": "a", "shuffle_over_epochs_multiplier": 0}, "multiplier is 0; it must be at least 1, or -1 or null"),
        ({"path": "a", "windows": {}, "packs": {}}, "cut into windows or into packs; found both"),
        ({"path": "a", "aux": {"x": 1}}, "aux.x is the number 1; expected a string"),
        ({"path": "a", "subflavors": ["x"]}, "subflavors is a list of 1; expected an object"),
        ({"join": TWO}, "joiner is missing; name a sample type or a function"),
        ({"join": TWO, "joiner": {"__module__": "m"}}, "joiner: expected __module__, and __class__ or __function__"),
        (
            {"join": [{"path": "a", "split": "x"}], "joiner": {}},
            r"join\[0\].split is unknown; did you mean 'split",
        ),
        ({"join": [{}], "joiner": {"__module__": "m", "__class__": "C"}}, r"join\[0\].path is missing"),
        (
            {"join": [{"path": "a", "nonmatch": "drop"}], "joiner": {"__module__": "m", "__class__": "C"}},
            r"join\[0\].nonmatch is 'drop'; allowed are 'error', 'skip', 'none'",
        ),
        ({"blend": TWO, "schedule": [{"weights": {"c": 1}}]}, r"schedule\[0\].weights: no source 'c' in the blend"),
        ({"blend": TWO, "schedule": [{"weights": [1]}]}, r"one for each of the 2 entries .*\(a, b\); found a list"),
        ({"blend": TWO, "schedule": [{}]}, "found null"),
        (
            {"blend": TWO, "schedule": [{"weights": [1, 1], "until": 7}]},
            "until: expected a number of steps or samples.*found 7",
        ),
        ({"blend": TWO, "schedule": [{"weights": [1, 1], "until": "7 epochs"}]}, "found '7 epochs'"),
        ({"blend": TWO, "schedule": [{"weights": [1, 1], "ramp": 1}]}, "ramp is the number 1; expected true or false"),
        (
            {"blend": [{"path": "a", "weight": 1}], "schedule": [{"weights": [1]}]},
            r"blend\[0\].weight: the schedule sets the weights",
        ),
        ({"blend": [{"path": "a", "name": "x"}, {"path": "b", "name": "x"}], "schedule": [{}]}, "'x' occurs twice"),
    ],
)
def test_faults_are_told_with_their_place(train: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(train)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "m is a list of 0; expected an object"),
        ({}, "m: has no splits"),
        ({"splits": {}}, "m: splits is empty"),
        ({"splits": {"train": {"path": "a"}}, "split": 1}, "m: split is unknown; did you mean 'splits'"),
        ({"__module__": "os", "__class__": "system", "splits": {}}, "found os and system"),
        ({"__module__": "megatron.energon", "__class__": "Blend", "splits": {}}, "MetadatasetV2; found megatron.ener"),
    ],
)
def test_faults_of_the_whole(content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_splits(content, "m")
    if isinstance(content, dict):
        with pytest.raises(ConfigError, match=re.sub("^m", "metadataset", message)):
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
    assert isinstance(first, MixEntry)
    assert first.kind == "blend"
    assert [child.weight for child in first.children] == [2, 1.0]
    assert [child.subflavors for child in first.children] == [{"__subflavor__": "x"}, {"__subflavor__": "y", "z": 1}]
    second = of({"path": "a", "dataset_config": "x.yaml", "split_config": "y.yaml", "aux": {"files": "filesystem://f"}})
    assert isinstance(second, PathEntry)
    assert (second.dataset_config, second.split_config, second.aux) == ("x.yaml", "y.yaml", {"files": "filesystem://f"})


def test_names_stay_when_others_come_and_go() -> None:
    blend = of({"blend": [{"path": "../x/a.yaml"}, {"path": "y/a"}, {"path": "."}, {"path": "web", "name": "a"}]})
    assert names_of(blend.children) == ("a-2", "a-3", "source", "a")
    without = of({"blend": [{"path": "y/a"}, {"path": "."}, {"path": "new"}]})
    assert names_of(without.children) == ("a", "source", "new")
    nested = of({"blend": [{"concat": TWO}, {"join": TWO, "joiner": {"__module__": "m", "__class__": "C"}}]})
    assert names_of(nested.children) == ("concat", "a+b")
