"""``headrace trace``: steps and samples of a training that was killed, resumed and changed."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import energon_made
import headrace
import records_made
from headrace import Blend, Loader, MediaDataset, Order, PackedSequenceDataset, Packing, SFTDataset
from headrace.datasets import Collation, Dataset
from headrace.inspect.document_origins import find_origins
from headrace.loader import Ranks
from headrace.plan import Bucketing
from headrace.tracing import save_run, trace_sample, trace_step

Headrace = Any


def blend(prepared: Path) -> Blend:
    store = headrace.open(prepared)
    web = headrace.WindowDataset(store, seq_len=24, phase=True)
    return Blend({"web": web, "code": headrace.WindowDataset(store, seq_len=24)}, weights={"web": 3, "code": 1})


def feed(run: headrace.Run, path: Path, position: int, num_steps: int, topology: tuple[int, int]) -> tuple[Any, Any]:
    """What a training does: the samples by (step, rank, micro-step) from a position on, and the state after them."""
    fed: dict[tuple[int, int, int], list[int]] = {}
    state: dict[str, Any] = {}
    for rank in range(topology[0]):
        loader = Loader(run, micro_batch_size=topology[1], ranks=Ranks(rank, topology[0]))
        loader.start_at(position)
        save_run(run, path, position=loader.position)
        first = loader.step
        counts: dict[int, int] = defaultdict(int)
        batches = iter(loader)
        while loader.step < first + num_steps:
            step = loader.step
            # Told are samples in the order of positions, and a blend's micro-batch has its own.
            fed[step, rank, counts[step]] = sorted(next(batches)["sample_positions"].tolist())
            counts[step] += 1
        state = loader.state_dict()
        loader.close()
    return fed, state


def test_a_training_with_resumes(run: Headrace, prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    first = headrace.Run(blend(prepared), global_batch_size=12)
    later = headrace.Run(blend(prepared), global_batch_size=[(0, 12), (6, 20)])
    last = headrace.Run(blend(prepared), global_batch_size=[(0, 12), (6, 20)], order=Order(seed=5))
    fed: dict[tuple[int, int, int], list[int]] = {}
    topologies: dict[int, tuple[int, int]] = {}
    runs: dict[int, headrace.Run] = {}
    state: dict[str, Any] = {}
    position = 0
    # Five steps are fed, two of them lost with the kill; then others ranks, another schedule, another seed.
    plan = [(first, 5, (2, 3)), (first, 3, (3, 2)), (later, 4, (2, 2)), (last, 2, (1, 7))]
    for number, (one, num_steps, topology) in enumerate(plan):
        if number == 1:
            position = 36
        now, state = feed(one, path, position, num_steps, topology)
        position = state["position"]
        for place, positions in now.items():
            topologies[place[0]], runs[place[0]] = topology, one
            fed[place] = positions
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert len(json.loads(path.read_text())["runs"]) == 3
    seen = defaultdict(list)
    for step, one in runs.items():
        ranks, micro = topologies[step]
        options = ("--run", path, "--ranks", ranks, "--micro-batch-size", micro, "--json")
        found = json.loads(run("trace", "step", step, *options).stdout)
        assert (found["step"], found["notes"]) == (step, [])
        by_place = defaultdict(list)
        for sample in found["samples"]:
            assert sample["step"] == step
            by_place[step, sample["rank"], sample["micro_step"]].append(sample["position"])
            seen[sample["source"], sample["index"]].append((step, sample["position"]))
        assert by_place == {place: some for place, some in fed.items() if place[0] == step and some}
        told = trace_step(one, step)
        assert [sample["index"] for sample in found["samples"]] == [sample.index for sample in told]
        pieces = [piece for sample in found["samples"] for piece in sample["origins"]]
        plain = [piece for sample in told for piece in sample.origins]
        assert [(one["document"], one["begin"]) for one in pieces] == [(one.document, one.begin) for one in plain]
        origins = find_origins(str(prepared), [piece["document"] for piece in pieces])
        assert [(one["input"], one["number"]) for one in pieces] == [(one.input, one.number) for one in origins]
    for (source, index), times in list(seen.items())[::20]:
        options = ("--run", path, "--state", tmp_path / "state.json", "--json", "--limit", 1000)
        found = json.loads(run("trace", "sample", source, index, *options).stdout)
        assert [(one["step"], one["position"]) for one in found["shown"]] == times
        assert (found["count"], found["until_step"]) == (len(times), len(runs))
        assert all(one["seen"] for one in found["shown"])
    lines = run(
        "trace", "step", 3, "--run", path, "--ranks", 3, "--micro-batch-size", 2, "--rank", 1
    ).stdout.splitlines()
    assert lines[0] == f"{path}: step 3: 4 samples"
    assert lines[1].split() == ["step", "position", "source", "epoch", "sample", "rank", "micro-step"]
    assert [int(line.split()[1]) for line in lines[2:]] == sorted(fed[3, 1, 0] + fed[3, 1, 1])
    position = int(lines[2].split()[1])
    [origins] = [one.origins for one in trace_step(first, 3) if one.position == position]
    piece = origins[0]
    assert f"document {piece.document} [{piece.begin}:{piece.begin + piece.tokens}], " in lines[2]  # type: ignore[operator]
    assert ".jsonl line " in lines[2]
    with pytest.raises(StopIteration):
        next(one for one in lines if "note:" in one)
    document = json.loads(
        run("trace", "sample", "web", piece.document, "--document", "--run", path, "--json", "--until-step", 8).stdout
    )
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
    for arguments, message in (
        (("cats/99",), "no sample with the key 'cats/99'"),
        (("007",), "no sample with the key '007'"),
        (("7", "--key"), "no sample with the key '7'"),
        (("7", "--document"), "it is not known which samples hold a document"),
        (("99",), "found 99"),
        (("x", "--document"), "not the number of a document"),
        (("7", "--ranks", "2"), "go together"),
    ):
        done = run("trace", "sample", ".", *arguments, "--run", tmp_path / "run.json")
        assert done.exit_code == 2
        assert message in done.stderr


def test_media_from_a_table(run: Headrace, tmp_path: Path) -> None:
    from shards_made import inline, rows, write_pictures, write_table

    write_pictures(tmp_path, 8)
    write_table(tmp_path / "t.csv", rows(8))
    parts = ("--part", "jpg=path:file", "--part", "txt=column:caption", "--key-field", "id", "--split-ratio", "1,0,0")
    with inline():
        done = run("prepare", tmp_path / "t.csv", "-o", tmp_path / "out", "--format", "tar", *parts, "--quiet")
    assert done.exit_code == 0, done.output
    save(MediaDataset.open(tmp_path / "out"), tmp_path / "run.json", epochs=1)
    found = json.loads(run("trace", "sample", ".", "s3", "--run", tmp_path / "run.json", "--json").stdout)
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


def test_data_that_is_gone_or_another(run: Headrace, prepared: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared, "store")
    made = save(headrace.WindowDataset(headrace.open("store"), seq_len=24), Path("run.json"))
    monkeypatch.chdir(prepared.parent)  # paths are seen from where the training began
    there = run("trace", "step", 2, "--run", tmp_path / "run.json").stdout
    assert ".jsonl line " in there
    without = json.loads(run("trace", "step", 2, "--run", tmp_path / "run.json", "--no-data", "--json").stdout)
    assert [one["index"] for one in without["samples"]] == [one.index for one in trace_step(made, 2)]
    assert all(one["origins"] == [] for one in without["samples"])
    assert without["notes"] == []
    shutil.rmtree(tmp_path / "store")
    gone = json.loads(run("trace", "step", 2, "--run", tmp_path / "run.json", "--json").stdout)
    assert gone["samples"] == without["samples"]
    assert "nothing is there" in gone["notes"][0]
    done = run("trace", "sample", ".", 3, "--document", "--run", tmp_path / "run.json")
    assert (done.exit_code, "is needed to find a document" in done.stderr) == (2, True)
    records_made.store(tmp_path / "store", records_made.sft(0, 20), "keyed")
    other = run("trace", "step", 2, "--run", tmp_path / "run.json").stdout
    assert "  note: .: " in other
    assert "does not hold the data that the run was fed from" in other


def test_files_that_cannot_be_used(run: Headrace, prepared: Path, tmp_path: Path) -> None:
    save(headrace.WindowDataset(headrace.open(prepared), seq_len=24), tmp_path / "run.json")
    done = run("trace", "step", 1, "--run", tmp_path / "none.json", "--json")
    assert (done.exit_code, json.loads(done.stdout)["error"]["kind"]) == (5, "StateError")
    for text in ("{", "[1]"):
        (tmp_path / "state.json").write_text(text)
        done = run("trace", "step", 1, "--run", tmp_path / "run.json", "--state", tmp_path / "state.json")
        assert (done.exit_code, "this is not the state_dict() of a loader as JSON" in done.stderr) == (5, True)
    done = run("trace", "step", 1, "--run", tmp_path / "run.json", "--state", tmp_path / "missing.json")
    assert (done.exit_code, "cannot be read" in done.stderr) == (5, True)
    done = run("trace", "step", -1, "--run", tmp_path / "run.json")
    assert done.exit_code == 2
    done = run("trace")
    assert "sample" in done.output
    assert "step" in done.output
