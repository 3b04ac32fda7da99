"""``headrace preview`` and ``headrace check`` of a metadataset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import corpora
import mixes_made
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace import Order, Run
from headrace.cli import main
from headrace.datasets.metadataset import load_dataset, prepare_metadataset
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


def headrace(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def said(*arguments: str | Path) -> dict[str, Any]:
    return json.loads(headrace(*arguments, "--json").output)  # type: ignore[no-any-return]


@pytest.mark.parametrize("order", ["full", "shards", "none"])
def test_samples_in_the_order_of_the_mix(root: Path, order: str) -> None:
    """What is shown at a position is what a run of the same seed feeds there."""
    data = Opened(root).data(TRAIN, 1)
    run = Run(data, global_batch_size=1, order=Order(kind=order, seed=7))  # type: ignore[arg-type]
    found = said("preview", root / "mix.yaml", "--samples", "0-19,5000", "--order", order, "--seed", "7")
    assert {name: found[name] for name in ("split_part", "num_samples", "order", "seed")} == {
        "split_part": "train",
        "num_samples": None,
        "order": order,
        "seed": 7,
    }
    assert found["sources"] == list(run.paths) == ["photos", "concat/drawings", "concat/few", "books"]
    positions = [*range(20), 5000]
    wanted = run.lookup(np.array(positions))
    for sample, position, source, epoch, number in zip(
        found["samples"],
        positions,
        wanted.sources.tolist(),
        wanted.epochs.tolist(),
        wanted.indices.tolist(),
        strict=True,
    ):
        place = {"position": position, "source": run.paths[source], "epoch": epoch}
        assert sample["place"] == {**place, "path": run.datasets[source].store.path}
        assert sample["number"] == number
        words = run.datasets[source][number].caption
        assert any(words in part["text"] for part in sample["parts"] if "text" in part)


def test_what_is_printed(root: Path) -> None:
    done = headrace("preview", root / "mix.yaml", "--split-part", "val", "--order", "none", "--num", "2")
    assert done.exit_code == 0
    assert done.output.replace(str(root), "R").splitlines() == [
        "R/mix.yaml: metadataset, split val, 1 source, order none, seed 0",
        "2 of 40 samples a pass",
        "",
        "position 0: ., epoch 0, sample 0: 000  (R/books, 0.tar, 0)",
        "  txt: text, 7 B",
        "      books 0",
        "",
        "position 1: ., epoch 0, sample 1: 001  (R/books, 0.tar, 1)",
        "  txt: text, 17 B",
        "      books 1 and so on",
    ]
    first = headrace("preview", root / "mix.yaml", "--num", "6").output
    assert "image = the image in jpg" in first, "by the field map of the dataset"
    assert "6 samples of an endless mix" in first
    many = said("preview", root / "mix.yaml", "--split-part", "val", "--num", "500")
    assert len(many["samples"]) == COUNTS["books"]


def test_pages(root: Path, tmp_path: Path) -> None:
    done = headrace("preview", root / "mix.yaml", "--num", "12", "--html", tmp_path / "mix.html")
    assert done.exit_code == 0
    page = (tmp_path / "mix.html").read_text()
    assert "position 11: " in page
    assert "12 samples of an endless mix" in page
    assert page.count("<img") == sum(
        sample["parts"][0]["kind"] == "image" for sample in said("preview", root / "mix.yaml", "--num", "12")["samples"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", "000"], "names a sample of one dataset, and this is a mix"),
        (["--dataset-config", "x.yaml"], "--dataset-config does not apply: the metadataset names"),
        (["--tokenizer", "x"], "--tokenizer is for stores of tokens"),
        (["--order", "some"], "order kind is 'some'; did you mean 'none'"),
        (["--num", "0"], "from 1 to 1,000 samples"),
        (["--split-part", "test"], "has no split 'test'"),
    ],
)
def test_previews_that_are_refused(root: Path, arguments: list[str], message: str) -> None:
    done = headrace("preview", root / "mix.yaml", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    other = headrace("preview", root / "books", "--seed", "3")
    assert (other.exit_code, "--seed is for metadatasets" in other.output) == (2, True)


def test_a_preview_asks_which_split_and_for_the_global_batch(root: Path, tmp_path: Path) -> None:
    entry = {"path": str(root / "lines.jsonl")}
    two = write(tmp_path / "two.yaml", few=entry, all=entry)
    assert "choose a split with --split-part; the splits are few, all" in headrace("preview", two).output
    assert headrace("preview", write(tmp_path / "one.yaml", few=entry)).exit_code == 0
    schedule = [{"until": "3 steps", "weights": [1, 0]}, {"weights": [0, 1]}]
    blend = [entry, {"path": str(root / "books")}]
    steps = write(tmp_path / "steps.yaml", train={"blend": blend, "schedule": schedule})
    assert "needs global_batch_size" in headrace("preview", steps).output
    found = said("preview", steps, "--global-batch-size", "2", "--num", "8")
    assert [sample["place"]["source"] for sample in found["samples"]] == ["lines"] * 6 + ["books"] * 2


def test_tokens(tmp_path: Path) -> None:
    mine = corpora.make(tmp_path / "web", 1, 30)
    windows = {"path": "web", "windows": {"window_tokens": 8}, "name": "windows"}
    mix = write(tmp_path / "mix.yaml", train={"concat": [windows, windows | {"name": "again"}]})
    run = Run(load_dataset(mix).train(), global_batch_size=1)
    found = said("preview", mix, "--num", "3")
    for position, sample in enumerate(found["samples"]):
        ids = run.step(position)["input_ids"][0].tolist()
        assert sample["parts"][0]["text"].split() == list(map(str, ids)), "no manifest says the tokeniser"
        begin = int(run.locate(np.array([position])).addresses[0])
        documents = dict.fromkeys(mine.documents[begin : begin + 8].tolist())
        assert re.findall(r"document (\d+)", sample["key"]) == list(map(str, documents))
    first = headrace("preview", mix, "--num", "1").output.splitlines()[3]
    assert first.startswith("position 0: windows, epoch 0, sample ")
    assert first.endswith(f"({tmp_path}/web)")
    packs = write(tmp_path / "packs.yaml", train={"path": "web", "packs": {"max_seq_len": 90}})
    (pack,) = said("preview", packs, "--num", "1")["samples"]
    lengths = mine.store.lengths[[int(one) for one in re.findall(r"document (\d+)", pack["key"])]]
    assert len(pack["parts"][0]["text"].split()) == lengths.sum(), "without its pads"
    checked = headrace("check", mix)
    assert checked.exit_code == 0
    assert checked.output.count("30 documents") == 1


def test_a_check_looks_at_every_dataset_once(root: Path) -> None:
    many = {"concat": [{"path": "books"}, {"path": "books", "limit": 3}, {"path": "photos"}]}
    mix = write(
        root / "many.yaml",
        train=many,
        val=many | {"split_part": "train"},
        few={"path": "many.yaml", "split_part": "val"},
    )
    found = said("check", mix, "--decode", "--workers", "1")
    assert found["ok"] is False, "the part val of photos is not there"
    write(mix, train=many, few={"path": "books"}, other={"path": "mix.yaml", "split_part": "train"})
    found = said("check", mix, "--decode", "--workers", "1")
    assert found["ok"], found["problems"]
    paths = [Path(dataset["path"]).name for dataset in found["datasets"]]
    assert paths == ["books", "photos", "drawings", "lines.jsonl"]
    assert [dataset["samples"] for dataset in found["datasets"]] == [40, 23, 9, 17]
    assert found["splits"] == ["train", "few", "other"]
    assert found["datasets"][1]["decoded"]["parts"]
    only = headrace("check", mix, "--split-part", "few")
    assert only.output.replace(str(root), "R").splitlines()[-1].startswith("R/many.yaml: whole: 1 dataset in 1 split, ")
    assert headrace("check", mix, "--split-part", "gone").exit_code == 2
    assert (
        "--split-config does not apply: the metadataset names" in headrace("check", mix, "--split-config", "x").output
    )
    assert "--pack is for stores of tokens" in headrace("check", mix, "--pack", "8").output


def test_a_check_names_every_fault(root: Path, tmp_path: Path) -> None:
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
    done = headrace("check", mix)
    assert done.exit_code == 1
    for message in (
        "splits.train.blend[0]: ",
        "gone: nothing is there",
        "splits.train.blend[1]: the limit is 41 samples; allowed are 1 to 40",
        "splits.train.blend[2]: the subset",
        "splits.train.blend[3]: ",
        "no part 'test'",
        "splits.train.blend[4]: aux.pictures: nothing is at ",
        "torn/0.tar",
        "books: whole: 40 samples",
    ):
        assert message in done.output, message
    assert done.output.count("gone: nothing is there") == 1
    quiet = headrace("check", mix, "-q").output.splitlines()
    found = said("check", mix)
    assert len(quiet) == len(found["problems"]) + sum(len(one["problems"]) for one in found["datasets"])
    assert headrace("check", tmp_path / "none.yaml").exit_code == 4


def test_a_check_reads_joins(tmp_path: Path) -> None:
    prepared(tmp_path / "primary", PRIMARY, {"train": [name for name in PRIMARY if "b0" in name]})
    prepared(tmp_path / "captions", SECONDARY)
    join = {
        "join": [{"path": "primary"}, {"path": "captions"}],
        "joiner": {"__module__": "none", "__class__": "None"},
    }
    mix = write(tmp_path / "mix.yaml", train={"concat": [join]})
    missing = headrace("check", mix)
    assert (missing.exit_code, "headrace prepare" in missing.output) == (1, True)
    prepare_metadataset(mix)
    done = headrace("check", mix)
    assert done.exit_code == 0, done.output
    assert "whole: 2 datasets in 1 split, 1 join read" in done.output
    found = said("preview", mix, "--num", "2", "--order", "none")
    assert [part["name"] for part in found["samples"][0]["parts"]] == ["0.txt", "0.cls", "1.cap"]
    # The row of the fourth sample names a caption that is not there: rows are three numbers a dataset.
    (index,) = tmp_path.glob("mix.yaml.cache/*.bin")
    content = np.frombuffer(index.read_bytes(), np.int64).copy()
    content[-(10 - 3) * 6 + 4] += 512
    index.write_bytes(content.tobytes())
    done = headrace("check", mix)
    assert (done.exit_code, "row 3" in done.output) == (1, True), done.output
