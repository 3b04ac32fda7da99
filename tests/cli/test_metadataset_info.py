"""``headrace info`` of a metadataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import corpora
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace.cli import main
from headrace.datasets.metadataset import prepare_metadataset


def info(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["info", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in {"a": 4, "b": 6}.items():
        shards = {f"{shard}.tar": [(f"{name}{shard}{i}.txt", b"x") for i in range(count)] for shard in range(5)}
        prepared(tmp_path / name, shards)
    return tmp_path


def write(path: Path, **splits: Any) -> Path:
    path.write_text(json.dumps({"splits": splits}))
    return path


def test_the_tree_of_each_split(folder: Path) -> None:
    inner = {"blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b", "repetitions": 0.5}]}
    write(folder / "inner.yaml", train=inner)
    mix = write(
        folder / "mix.yaml",
        train={
            "blend": [
                {"path": "inner.yaml", "weight": 2},
                {"path": "b", "weight": 1, "subset": {"range": ["0%", "20%"]}, "subflavors": {"x": 1}},
            ]
        },
        few={"split_part": "train", "concat": [{"path": "a", "limit": 8}, {"path": "b"}]},
    )
    done = info(mix, "--steps", "10", "--global-batch-size", "33")
    assert done.exit_code == 0, done.output
    assert done.output.replace(str(folder), "F").splitlines() == [
        "F/mix.yaml",
        "after 10 steps of 33: 330 samples",
        "",
        "split train: blend, endless",
        "            weight  times     share  samples  seen  epochs  of",
        "  train                    100.000%  endless   330",
        "  ├─ inner       2          66.667%       55   220          blend_epochized",
        "  │  ├─ a               2   48.485%       20   160    8.00  F/a train",
        "  │  └─ b             0.5   18.182%       30    60    2.00  F/b train",
        "  └─ b           1          33.333%        6   110   18.33  F/b train, samples 0 to 5",
        "",
        "split few: concat, 38 samples a pass",
        "           share  samples  seen  epochs  of",
        "  few   100.000%       38   330",
        "  ├─ a   21.053%  first 8    72    3.60  F/a train",
        "  └─ b   78.947%       30   258    8.60  F/b train",
    ]


def test_json(folder: Path) -> None:
    mix = write(folder / "mix.yaml", train={"blend": [{"path": "a", "weight": 3}, {"path": "b", "weight": 1}]})
    found = json.loads(info(mix, "--json", "--steps", "2", "--global-batch-size", "8").output)
    assert (found["steps"], found["global_batch_size"], list(found["splits"])) == (2, 8, ["train"])
    root = found["splits"]["train"]
    assert (root["kind"], root["samples"], root["share"], root["seen"]) == ("blend", None, 1.0, 16)
    a, b = root["children"]
    assert (a["name"], a["number"], a["share"], a["seen"], a["epochs"]) == ("a", 3, 0.75, 12, 0.6)
    assert (b["path"], b["split_part"], b["tokens"]) == (str(folder / "b"), "train", None)
    plain = json.loads(info(mix, "--json").output)["splits"]["train"]["children"][0]
    assert (plain["seen"], plain["epochs"]) == (None, None)


def test_tokens(folder: Path) -> None:
    corpus = [corpora.make(folder / name, seed, 40) for seed, name in enumerate(("one", "two"))]
    windows = {"windows": {"window_tokens": 5}}
    mix = write(folder / "mix.yaml", train={"blend": [{"path": str(one.store.path), **windows} for one in corpus]})
    found = json.loads(info(mix, "--json").output)["splits"]["train"]["children"]
    samples = [(one.store.num_tokens - 6) // 5 + 1 for one in corpus]
    assert [(child["samples"], child["tokens"]) for child in found] == [(n, 5 * n) for n in samples]
    assert "tokens" in info(mix).output


def test_a_schedule(folder: Path) -> None:
    pieces = [
        {"until": "10 steps", "weights": {"a": 1}},
        {"until": "1000 samples", "weights": [1, 1], "ramp": True},
        {"weights": {"b": 1}},
    ]
    mix = write(folder / "mix.yaml", train={"blend": [{"path": "a"}, {"path": "b"}], "schedule": pieces})
    lines = info(mix, "--steps", "10", "--global-batch-size", "8").output.splitlines()
    assert "  ├─ a     0.000%       20    80    4.00" in lines[6]
    assert lines[8:] == [
        "  train: until 10 steps: a 1, b 0",
        "  train: until 1000 samples, moving to: a 1, b 1",
        "  train: on: a 0, b 1",
    ]
    refused = info(mix)
    assert refused.exit_code == 2
    assert "until counts steps" in refused.output


def test_a_limit_within_a_mix(folder: Path) -> None:
    """Each pass of 10 samples begins a pass of 50, of which the other 40 are left out."""
    both = {"blend_epochized": [{"path": "a"}, {"path": "b"}], "limit": 10}
    mix = write(folder / "mix.yaml", train={"blend": [both, {"path": "b"}]})
    found = json.loads(info(mix, "--json", "--steps", "1", "--global-batch-size", "70").output)["splits"]["train"]
    limited, other = found["children"]
    assert (limited["limit"], limited["seen"], other["seen"]) == (10, 35, 35)
    assert [child["seen"] for child in limited["children"]] == [14, 21]


def test_joins_without_running_code(tmp_path: Path) -> None:
    prepared(tmp_path / "one", {name: members for name, members in PRIMARY.items() if "a.tar" not in name})
    prepared(tmp_path / "two", SECONDARY)
    joiner = {"__module__": "no_such_module", "__class__": "Sample"}
    mix = write(tmp_path / "mix.yaml", train={"join": [{"path": "one"}, {"path": "two"}], "joiner": joiner})
    unprepared = info(mix, "--json")
    assert unprepared.exit_code == 4
    assert "make it with" in json.loads(unprepared.stdout)["error"]["message"]
    prepare_metadataset(mix)
    found = json.loads(info(mix, "--json").output)["splits"]["train"]
    assert (found["kind"], found["samples"], found["path"]) == ("join", 10, f"{tmp_path}/one + {tmp_path}/two")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no.yaml",), 4, "there is no such file"),
        (("mix.yaml", "--steps", "3"), 2, "--steps 3: must be 0 or more, and needs --global-batch-size"),
        (("mix.yaml", "--steps", "-1", "--global-batch-size", "3"), 2, "--steps -1"),
        (("mix.yaml", "--global-batch-size", "0"), 2, "--global-batch-size must be at least 1, found 0"),
        (("a", "--steps", "3"), 2, "--steps and --global-batch-size are for metadatasets"),
        (("wrong.yaml",), 2, "wrong.yaml: splits.train.split is unknown; did you mean 'split_part'?"),
        (("gone.yaml",), 4, "gone.yaml: splits.train: "),
    ],
)
def test_faults(
    folder: Path, arguments: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    write(folder / "mix.yaml", train={"path": "a"})
    write(folder / "wrong.yaml", train={"path": "a", "split": "train"})
    write(folder / "gone.yaml", train={"path": "gone"})
    done = info(*arguments)
    assert done.exit_code == code, done.output
    assert message in done.output
