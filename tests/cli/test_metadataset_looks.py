"""``headrace info``, ``preview`` and ``check`` of a metadataset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import mixes_made
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace import Order, Run
from headrace.datasets.metadataset import load_dataset
from mixes_made import COUNTS, KINDS, Opened

TRAIN: dict[str, Any] = {
    "blend": [
        {"weight": 2, "path": "photos"},
        {"weight": 1, "concat": [{"path": "drawings", "limit": 5}, {"path": "lines.jsonl", "name": "few"}]},
        {"weight": 1, "path": "books", "subset": {"range": [10, "end"]}},
    ]
}
for entry, kind in ((TRAIN["blend"][1]["concat"][0], "drawings"), (TRAIN["blend"][1]["concat"][1], "lines")):
    entry["subflavors"] = {"kind": KINDS[kind]}
TRAIN["blend"][2]["subflavors"] = {"kind": KINDS["books"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = mixes_made.write_sources(tmp_path_factory.mktemp("looks"))
    write(root / "mix.yaml", train=TRAIN, val={"path": "books"})
    return root


def write(path: Path, **splits: Any) -> Path:
    path.write_text(json.dumps({"splits": splits}))
    return path


@pytest.mark.parametrize("order", ["full", "shards", "none"])
def test_samples_in_the_order_of_the_mix(of_json: Any, root: Path, order: str) -> None:
    """What is shown at a position is what a run of the same seed feeds there."""
    data = Opened(root).data(TRAIN, 1)
    run = Run(data, global_batch_size=1, order=Order(kind=order, seed=7))  # type: ignore[arg-type]
    found = of_json("preview", root / "mix.yaml", "--documents", "0-19,5000", "--order", order, "--seed", "7")
    assert (found["split_part"], found["num_samples"], found["order"], found["seed"]) == ("train", None, order, 7)
    assert found["sources"] == list(run.paths) == ["photos", "concat/drawings", "concat/few", "books"]
    positions = [*range(20), 5000]
    wanted = run.lookup(np.array(positions))
    columns = (positions, wanted.sources.tolist(), wanted.epochs.tolist(), wanted.indices.tolist())
    for sample, position, source, epoch, number in zip(found["samples"], *columns, strict=True):
        place = {"position": position, "source": run.paths[source], "epoch": epoch}
        assert sample["place"] == {**place, "path": run.datasets[source].store.path}
        assert sample["number"] == number
        words = run.datasets[source][number].caption
        assert any(words in part["text"] for part in sample["parts"] if "text" in part)


def test_what_is_printed(run: Any, of_json: Any, root: Path) -> None:
    done = run("preview", root / "mix.yaml", "--split-part", "val", "--order", "none", "--num", "2")
    assert done.exit_code == 0
    assert done.output.replace(str(root), "R").splitlines()[:6] == [
        "R/mix.yaml: metadataset, split val, 1 source, order none, seed 0",
        "2 of 40 samples a pass",
        "",
        "position 0: ., epoch 0, sample 0: 000  (R/books, 0.tar, 0)",
        "  txt: text, 7 B",
        "      books 0",
    ]
    first = run("preview", root / "mix.yaml", "--num", "6").output
    assert "image    the image in jpg" in first, "by the field map of the dataset"
    assert "6 samples of an endless mix" in first
    (later,) = of_json("preview", root / "mix.yaml", "--split-part", "val", "--documents", "41")["samples"]
    assert later["place"]["epoch"] == 1, "a position behind one pass is one of the next"
    many = of_json("preview", root / "mix.yaml", "--split-part", "val", "--num", "500")
    assert len(many["samples"]) == COUNTS["books"]


def test_pages(run: Any, of_json: Any, root: Path, tmp_path: Path) -> None:
    assert run("preview", root / "mix.yaml", "--num", "12", "--html", tmp_path / "mix.html").exit_code == 0
    page = (tmp_path / "mix.html").read_text()
    assert "position 11: " in page
    assert "12 samples of an endless mix" in page
    shown = of_json("preview", root / "mix.yaml", "--num", "12")["samples"]
    assert page.count("<img") == sum(sample["parts"][0]["kind"] == "image" for sample in shown)


def test_a_preview_asks_which_split_and_for_the_global_batch(
    run: Any, of_json: Any, root: Path, tmp_path: Path
) -> None:
    entry = {"path": str(root / "lines.jsonl")}
    two = write(tmp_path / "two.yaml", few=entry, all=entry)
    assert "choose a split with --split-part; the splits are few, all" in run("preview", two).output
    assert run("preview", write(tmp_path / "one.yaml", few=entry)).exit_code == 0
    schedule = [{"until": "3 steps", "weights": [1, 0]}, {"weights": [0, 1]}]
    blend = [entry, {"path": str(root / "books")}]
    steps = write(tmp_path / "steps.yaml", train={"blend": blend, "schedule": schedule})
    assert "needs global_batch_size" in run("preview", steps).output
    found = of_json("preview", steps, "--global-batch-size", "2", "--num", "8")
    assert [sample["place"]["source"] for sample in found["samples"]] == ["lines"] * 6 + ["books"] * 2


def test_tokens(run: Any, of_json: Any, tmp_path: Path) -> None:
    mine = corpora.make(tmp_path / "web", 1, 30)
    windows = {"path": "web", "windows": {"window_tokens": 8}, "name": "windows"}
    mix = write(tmp_path / "mix.yaml", train={"concat": [windows, windows | {"name": "again"}]})
    fed = Run(load_dataset(mix).train(), global_batch_size=1)
    found = of_json("preview", mix, "--num", "3")
    for position, sample in enumerate(found["samples"]):
        ids = fed.step(position)["input_ids"][0].tolist()
        assert sample["parts"][0]["text"].split() == list(map(str, ids)), "no manifest says the tokeniser"
        begin = int(fed.locate(np.array([position])).addresses[0])
        documents = dict.fromkeys(mine.documents[begin : begin + 8].tolist())
        assert re.findall(r"document (\d+)", sample["key"]) == list(map(str, documents))
    first = run("preview", mix, "--num", "1").output.splitlines()[3]
    assert first.startswith("position 0: windows, epoch 0, sample ")
    assert first.endswith(f"({tmp_path}/web)")
    packs = write(tmp_path / "packs.yaml", train={"path": "web", "packs": {"max_seq_len": 90}})
    (pack,) = of_json("preview", packs, "--num", "1")["samples"]
    lengths = mine.store.lengths[[int(one) for one in re.findall(r"document (\d+)", pack["key"])]]
    assert len(pack["parts"][0]["text"].split()) == lengths.sum(), "without its pads"
    checked = run("check", mix)
    assert checked.exit_code == 0
    assert checked.output.count("30 documents") == 1


def test_a_check_looks_at_every_dataset_once(run: Any, of_json: Any, root: Path) -> None:
    many = {"concat": [{"path": "books"}, {"path": "books", "limit": 3}, {"path": "photos"}]}
    mix = write(
        root / "many.yaml",
        train=many,
        val=many | {"split_part": "train"},
        few={"path": "many.yaml", "split_part": "val"},
    )
    found = of_json("check", mix, "--decode", "--workers", "1", code=1)
    assert found["ok"] is False, "the part val of photos is not there"
    write(mix, train=many, few={"path": "books"}, other={"path": "mix.yaml", "split_part": "train"})
    found = of_json("check", mix, "--decode", "--workers", "1")
    assert found["ok"], found["problems"]
    paths = [Path(dataset["path"]).name for dataset in found["datasets"]]
    assert paths == ["books", "photos", "drawings", "lines.jsonl"]
    assert [dataset["samples"] for dataset in found["datasets"]] == [40, 23, 9, 17]
    assert found["splits"] == ["train", "few", "other"]
    assert found["datasets"][1]["decoded"]["parts"]
    only = run("check", mix, "--split-part", "few")
    assert only.output.replace(str(root), "R").splitlines()[-1].startswith("R/many.yaml: whole: 1 dataset in 1 split, ")
    for wrong in (("--split-part", "gone"), ("--split-config", "x"), ("--pack", "8")):
        done = run("check", mix, *wrong)
        assert (done.exit_code, wrong[0] in done.output or wrong[1] in done.output) == (2, True)


def test_a_check_names_every_fault(run: Any, of_json: Any, root: Path, tmp_path: Path) -> None:
    for name in ("books", "drawings", "lines.jsonl", "photos"):
        (tmp_path / name).symlink_to(root / name)
    prepared(tmp_path / "torn", {"0.tar": [(f"{number}.txt", b"x" * 600) for number in range(9)]})
    with (tmp_path / "torn" / "0.tar").open("r+b") as file:
        file.seek(3072)
        file.write(bytes(512))
    mix = write(
        tmp_path / "mix.yaml",
        train={
            "blend": [
                {"path": "gone"},
                {"path": "books", "limit": 41},
                {"path": "drawings", "subset": {"range": [9, 9]}},
                {"path": "photos", "split_part": "test"},
                {"path": "lines.jsonl", "aux": {"pictures": "filesystem://nowhere"}},
                {"path": "torn"},
            ]
        },
        val={"concat": [{"path": "books"}, {"blend": [{"path": "books"}]}]},
    )
    done = run("check", mix)
    assert done.exit_code == 1
    places = ("[0]: ", "[1]: the limit is 41 samples", "[2]: the subset", "[3]: ", "[4]: aux.pictures: nothing is at ")
    for named in (*(f"splits.train.blend{place}" for place in places), "no part 'test'", "torn/0.tar", "books: whole"):
        assert named in done.output, named
    assert done.output.count("gone: nothing is there") == 1
    quiet = run("check", mix, "-q").output.splitlines()
    found = of_json("check", mix, code=1)
    assert len(quiet) == len(found["problems"]) + sum(len(one["problems"]) for one in found["datasets"])
    assert run("check", tmp_path / "none.yaml").exit_code == 4


def test_a_check_reads_joins(run: Any, of_json: Any, tmp_path: Path) -> None:
    prepared(tmp_path / "primary", PRIMARY, {"train": [name for name in PRIMARY if "b0" in name]})
    prepared(tmp_path / "captions", SECONDARY)
    join = {
        "join": [{"path": "primary"}, {"path": "captions"}],
        "joiner": {"__module__": "none", "__class__": "None"},
    }
    mix = write(tmp_path / "mix.yaml", train={"concat": [join]})
    missing = run("check", mix)
    assert (missing.exit_code, "headrace prepare" in missing.output) == (1, True)
    load_dataset(mix).prepare()
    done = run("check", mix)
    assert done.exit_code == 0, done.output
    assert "whole: 2 datasets in 1 split, 1 join read" in done.output
    found = of_json("preview", mix, "--num", "2", "--order", "none")
    assert [part["name"] for part in found["samples"][0]["parts"]] == ["0.txt", "0.cls", "1.cap"]
    # The row of the fourth sample names a caption that is not there: rows are three numbers a dataset.
    (index,) = tmp_path.glob("mix.yaml.cache/*.bin")
    content = np.frombuffer(index.read_bytes(), np.int64).copy()
    content[-(10 - 3) * 6 + 4] += 512
    index.write_bytes(content.tobytes())
    done = run("check", mix)
    assert (done.exit_code, "row 3" in done.output) == (1, True), done.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in {"a": 4, "b": 6}.items():
        shards = {f"{shard}.tar": [(f"{name}{shard}{i}.txt", b"x") for i in range(count)] for shard in range(5)}
        prepared(tmp_path / name, shards)
    return tmp_path


def test_the_tree_of_each_split(run: Any, folder: Path) -> None:
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
    done = run("info", mix, "--steps", "10", "--global-batch-size", "33")
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


def test_the_info_of_tokens(run: Any, of_json: Any, folder: Path) -> None:
    corpus = [corpora.make(folder / name, seed, 40) for seed, name in enumerate(("one", "two"))]
    windows = {"windows": {"window_tokens": 5}}
    mix = write(folder / "mix.yaml", train={"blend": [{"path": str(one.store.path), **windows} for one in corpus]})
    found = of_json("info", mix)["splits"]["train"]["children"]
    samples = [(one.store.num_tokens - 6) // 5 + 1 for one in corpus]
    assert [(child["samples"], child["tokens"]) for child in found] == [(n, 5 * n) for n in samples]
    assert "tokens" in run("info", mix).output


def test_a_schedule(run: Any, folder: Path) -> None:
    pieces = [
        {"until": "10 steps", "weights": {"a": 1}},
        {"until": "1000 samples", "weights": [1, 1], "ramp": True},
        {"weights": {"b": 1}},
    ]
    mix = write(folder / "mix.yaml", train={"blend": [{"path": "a"}, {"path": "b"}], "schedule": pieces})
    lines = run("info", mix, "--steps", "10", "--global-batch-size", "8").output.splitlines()
    assert "  ├─ a     0.000%       20    80    4.00" in lines[6]
    assert lines[8:] == [
        "  train: until 10 steps: a 1, b 0",
        "  train: until 1000 samples, moving to: a 1, b 1",
        "  train: on: a 0, b 1",
    ]
    refused = run("info", mix)
    assert refused.exit_code == 2
    assert "until counts steps" in refused.output


def test_a_limit_within_a_mix(of_json: Any, folder: Path) -> None:
    """Each pass of 10 samples begins a pass of 50, of which the other 40 are left out."""
    both = {"blend_epochized": [{"path": "a"}, {"path": "b"}], "limit": 10}
    mix = write(folder / "mix.yaml", train={"blend": [both, {"path": "b"}]})
    found = of_json("info", mix, "--steps", "1", "--global-batch-size", "70")["splits"]["train"]
    limited, other = found["children"]
    assert (limited["limit"], limited["seen"], other["seen"]) == (10, 35, 35)
    assert [child["seen"] for child in limited["children"]] == [14, 21]


def test_joins_without_running_code(run: Any, of_json: Any, tmp_path: Path) -> None:
    prepared(tmp_path / "one", {name: members for name, members in PRIMARY.items() if "a.tar" not in name})
    prepared(tmp_path / "two", SECONDARY)
    joiner = {"__module__": "no_such_module", "__class__": "Sample"}
    mix = write(tmp_path / "mix.yaml", train={"join": [{"path": "one"}, {"path": "two"}], "joiner": joiner})
    unprepared = run("info", mix, "--json")
    assert unprepared.exit_code == 4
    assert "make it with" in json.loads(unprepared.stdout)["error"]["message"]
    load_dataset(mix).prepare()
    found = of_json("info", mix)["splits"]["train"]
    assert (found["kind"], found["samples"], found["path"]) == ("join", 10, f"{tmp_path}/one + {tmp_path}/two")
