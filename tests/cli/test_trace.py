"""``headrace trace`` and ``account``: steps, samples and sums of a training that was resumed and changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import energon_made
import headrace
import records_made
from headrace import Blend, Loader, MediaDataset, PackedSequenceDataset, Packing, Run, SFTDataset
from headrace.datasets import Collation, Dataset
from headrace.inspect.origins import find_origins
from headrace.plan import Bucketing
from headrace.tracing import Topology, history_of, save_run, trace_sample, trace_step
from shards_made import inline, rows, write_pictures, write_table

Headrace = Any


def blend(prepared: Path) -> Blend:
    store = headrace.open(prepared)
    web = headrace.WindowDataset(store, seq_len=24, phase=True)
    return Blend({"web": web, "code": headrace.WindowDataset(store, seq_len=24)}, weights={"web": 3, "code": 1})


def test_steps_and_samples(run: Headrace, of_json: Any, prepared: Path, tmp_path: Path) -> None:
    """Of a training that went on with another schedule: as the library tells them, and as lines."""
    path = tmp_path / "run.json"
    first = headrace.Run(blend(prepared), global_batch_size=12)
    later = headrace.Run(blend(prepared), global_batch_size=[(0, 12), (6, 20)])
    save_run(first, path)
    save_run(later, path, position=72)
    loader = Loader(later, micro_batch_size=4, position=112)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    loader.close()
    found = of_json("trace", "step", 6, "--run", path, "--ranks", "5,micro_batch_size=2")["samples"]
    told = history_of(later).step(6, topology=Topology(ranks=5, micro_batch_size=2))
    for sample, wanted in zip(found, told, strict=True):
        for name in ("position", "source", "index", "rank", "micro_step"):
            assert sample[name] == getattr(wanted, name)
        origins = find_origins(str(prepared), [piece["document"] for piece in sample["origins"]])
        assert [(one["input"], one["number"]) for one in sample["origins"]] == [(o.input, o.number) for o in origins]
        options = ("--run", path, "--state", tmp_path / "state.json", "--limit", 1000)
        times = of_json("trace", "sample", wanted.source, wanted.index, *options)
        assert (6, wanted.position) in {(one["step"], one["position"]) for one in times["shown"]}
        assert (times["count"], times["until_step"]) == (len(times["shown"]), 8)
        assert all(one["seen"] for one in times["shown"])
    options = ("--run", path, "--ranks", "3,micro_batch_size=2", "--rank", 1)
    lines = run("trace", "step", 3, *options).stdout.splitlines()
    assert lines[0] == f"{path}: step 3: 4 samples"
    assert lines[1].split() == ["step", "position", "source", "epoch", "sample", "rank", "micro-step"]
    told = history_of(first).step(3, topology=Topology(ranks=3, micro_batch_size=2), rank=1)
    piece = told[0].origins[0]
    assert [int(line.split()[1]) for line in lines[2:]] == [one.position for one in told]
    assert f"document {piece.document} [{piece.begin}:{piece.begin + piece.tokens}], " in lines[2]  # type: ignore[operator]
    assert ".jsonl line " in lines[2]
    document = of_json("trace", "sample", "web", piece.document, "--document", "--run", path, "--until-step", 8)
    assert 0 < document["count"] == len(document["shown"])
    for one in document["shown"]:
        assert piece.document in [part["document"] for part in one["origins"]]


def save(data: Dataset | Blend, path: Path, **options: Any) -> headrace.Run:
    made = headrace.Run(data, global_batch_size=4, **options)
    save_run(made, path)
    return made


def test_media_by_key(run: Headrace, tmp_path: Path) -> None:
    for shard in range(2):
        members = [(f"cats/{shard}{number}.txt", b"cat") for number in range(10)]
        energon_made.write_tar(tmp_path / "tars" / f"{shard}.tar", members)
    made = save(MediaDataset.open(tmp_path / "tars"), tmp_path / "run.json", epochs=3)
    by_key = run("trace", "sample", ".", "cats/13", "--run", tmp_path / "run.json").stdout
    lines = by_key.splitlines()
    assert lines[0].endswith("run.json: key cats/13 of .: 3 times before step 15")
    assert [line.split()[3] for line in lines[2:]] == ["13"] * 3
    assert all(line.endswith("cats/13, 1.tar") for line in lines[2:])
    by_number = run("trace", "sample", ".", 13, "--run", tmp_path / "run.json", "--limit", 1).stdout.splitlines()
    assert by_number[2] == lines[2]
    assert by_number[3] == "  and 2 more times (--limit)"
    assert [one.step for one in trace_sample(made, ".", 13).shown] == [int(line.split()[0]) for line in lines[2:]]
    for arguments, named in (
        ("007", "'007'"),
        ("7 --key", "'7'"),
        ("x --document", "document"),
        ("7 --ranks 2", "micro_batch_size is missing"),
    ):
        done = run("trace", "sample", ".", *arguments.split(), "--run", tmp_path / "run.json")
        assert (done.exit_code, named in done.stderr) == (2, True)


def test_media_from_a_table(run: Headrace, of_json: Any, tmp_path: Path) -> None:
    write_pictures(tmp_path, 8)
    write_table(tmp_path / "t.csv", rows(8))
    parts = ("--part", "jpg=path:file", "--part", "txt=column:caption", "--id-field", "id", "--split-ratio", "1,0,0")
    with inline():
        done = run("prepare", tmp_path / "t.csv", "-o", tmp_path / "out", "--format", "tar", *parts, "--quiet")
    assert done.exit_code == 0, done.output
    save(MediaDataset.open(tmp_path / "out"), tmp_path / "run.json", epochs=1)
    found = of_json("trace", "sample", ".", "s3", "--run", tmp_path / "run.json")
    (origin,) = found["shown"][0]["origins"]
    assert (origin["input"], origin["unit"], origin["number"]) == (str(tmp_path / "t.csv"), "record", 4)


def test_packs_and_records(run: Headrace, prepared: Path, tmp_path: Path) -> None:
    packs = PackedSequenceDataset(headrace.open(prepared), Packing(seq_len=256, repack=True))
    made = save(packs, tmp_path / "packs.json", epochs=2)
    found = json.loads(run("trace", "step", 1, "--run", tmp_path / "packs.json", "--json").stdout)
    pieces = [[one.document for one in sample.origins] for sample in trace_step(made, 1)]
    assert [[one["document"] for one in sample["origins"]] for sample in found["samples"]] == pieces
    assert "; and " in run("trace", "step", 1, "--run", tmp_path / "packs.json").stdout
    records = SFTDataset(records_made.store(tmp_path / "sft", records_made.sft(0, 20), "keyed"), Collation())
    made = save(records, tmp_path / "sft.json", bucketing=Bucketing(window_steps=2), epochs=1)
    text = run("trace", "step", 2, "--run", tmp_path / "sft.json").stdout
    assert "steps 2 to 3: 8 samples; which of them are in step 2 is decided by lengths" in text
    for sample in trace_step(made, 2):
        assert f"document {sample.index}\n" in text
    text = run("trace", "sample", ".", 7, "--document", "--run", tmp_path / "sft.json").stdout
    assert " to " in text.splitlines()[2]


def test_data_that_is_gone_or_another(
    run: Headrace, of_json: Any, prepared: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared, "store")
    made = save(headrace.WindowDataset(headrace.open("store"), seq_len=24), Path("run.json"))
    monkeypatch.chdir(prepared.parent)  # paths are seen from where the training began
    there = run("trace", "step", 2, "--run", tmp_path / "run.json").stdout
    assert ".jsonl line " in there
    without = of_json("trace", "step", 2, "--run", tmp_path / "run.json", "--no-data")
    assert [one["index"] for one in without["samples"]] == [one.index for one in trace_step(made, 2)]
    assert all(one["origins"] == [] for one in without["samples"])
    assert without["notes"] == []
    shutil.rmtree(tmp_path / "store")
    gone = of_json("trace", "step", 2, "--run", tmp_path / "run.json")
    assert gone["samples"] == without["samples"]
    assert "nothing is there" in gone["notes"][0]
    done = run("trace", "sample", ".", 3, "--document", "--run", tmp_path / "run.json")
    assert (done.exit_code, "is needed to find a document" in done.stderr) == (2, True)
    records_made.store(tmp_path / "store", records_made.sft(0, 20), "keyed")
    other = run("trace", "step", 2, "--run", tmp_path / "run.json").stdout
    assert "  note: .: " in other
    assert "does not hold the data that the run was fed from" in other


@pytest.fixture
def windows(prepared: Path) -> headrace.WindowDataset:
    return headrace.WindowDataset(headrace.open(prepared), seq_len=24, labels="same")


@pytest.fixture
def file(windows: headrace.WindowDataset, tmp_path: Path) -> Path:
    packing = headrace.Packing(seq_len=24, strategy="best_fit_split")
    packs = headrace.PackedSequenceDataset(windows.store, packing, labels="same")
    # Windows and packs cannot be blended, and so have a file each.
    save_run(Run(packs, global_batch_size=16, epochs=2), tmp_path / "packs.json")
    run = Run(Blend({"web": windows, "code": windows}, weights={"web": 3, "code": 1}), global_batch_size=16)
    save_run(run, tmp_path / "run.json")
    return tmp_path / "run.json"


def test_an_account(run: Headrace, of_json: Any, file: Path) -> None:
    said = run("account", file, "--until-step", 10).stdout
    assert f"{file}: before step 10: 160 samples, 3,840 tokens, 3,680 supervised tokens" in said
    assert "from step 0: 160 samples: web 75.00 % (75.00 %), code 25.00 % (25.00 %)" in said
    [source] = of_json("account", file.with_name("packs.json"))["sources"]
    assert [(one["num_epochs"], one["fed"]) for one in source["epochs"]] == [(2, source["num_samples"])]
    assert source["seen"] == {"2": source["num_samples"]}


def test_the_difference_of_two_accounts(
    run: Headrace, of_json: Any, file: Path, windows: headrace.WindowDataset, tmp_path: Path
) -> None:
    other = Run(Blend({"web": windows, "code": windows}, weights={"web": 1, "code": 1}), global_batch_size=16)
    save_run(other, tmp_path / "other.json")
    message = "step 0: weights of code 25 % -> 50 %, web 75 % -> 50 %"
    assert run("account", file, tmp_path / "other.json").stdout.endswith(f": {message}\n")
    found = of_json("account", file, tmp_path / "other.json")
    assert found["difference"] == {"step": 0, "field": "weights", "message": message}
    assert "the same from begin to end" in run("account", file, file).stdout
    assert of_json("account", file, file)["difference"] is None


def test_accounts_that_are_refused(run: Headrace, file: Path, windows: headrace.WindowDataset) -> None:
    assert "pass the step" in run("account", file).stderr
    assert "without --until-step" in run("account", file, file, "--until-step", 3).stderr
    assert "give one file" in run("account", file, file, file).stderr
    save_run(Run(windows, global_batch_size=16), file, position=160)
    result = run("account", file, "--until-step", 20)
    assert (result.exit_code, "2 runs" in result.stderr) == (2, True)
