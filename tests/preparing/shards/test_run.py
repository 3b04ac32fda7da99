"""Whole runs: the same bytes for any number of workers, ended at any moment, on a full disk; and what they leave."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
import yaml

import faults
import headrace
import jobs_by_hand
from counts import cases
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import ConfigError, InputError, OutputError
from headrace.inspect.origins import find_sample_origins, find_shards
from headrace.io import file_sum
from headrace.io.atomic import LOCK_NAME
from headrace.kinds import finish_job, open_job
from headrace.preparing import ErrorOptions
from headrace.preparing.shards import (
    PartSpec,
    ShardOptions,
    ShardOutput,
    ShardSource,
    estimate_shards,
    plan_shards,
    prepare_shards,
)
from headrace.stores import Manifest, load_manifest
from headrace.stores.tar.index import read_index
from headrace.stores.tar.scan import scan_shard
from shards_made import image, inline, prepare, read_all, rows, write_pictures, write_table

Inputs = dict[str, list[Path]]
Wanted = dict[str, dict[str, bytes]]
PARTS = tuple(map(PartSpec.parse, ("jpg=path:file", "txt=column:caption", "json=row")))
TABLES = ShardSource(parts=PARTS, key_field="id")
CASES = {
    "tables": ShardOptions(source=TABLES, output=ShardOutput(samples_per_shard=11)),
    "shuffled": ShardOptions(source=TABLES, output=ShardOutput(shard_bytes=20_000, shuffle=7, split_ratio=(8, 1, 1))),
    "folder": ShardOptions(output=ShardOutput(samples_per_shard=9, shuffle=1)),
    "skipped": ShardOptions(
        source=msgspec.structs.replace(TABLES, duplicates="drop"),
        output=ShardOutput(samples_per_shard=10),
        errors=ErrorOptions(on_error="skip"),
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    write_pictures(folder, 60)
    records = rows(60)
    write_table(folder / "a.jsonl", records[:25])
    write_table(folder / "b.csv", records[25:40])
    write_table(folder / "c.parquet", records[40:])
    bad: list[dict[str, Any]] = rows(60)
    bad[7]["file"] = "pictures/none.jpg"
    bad[30]["id"] = "s3"
    write_table(folder / "bad.jsonl", bad)
    return {
        "tables": [folder / "a.jsonl", folder / "b.csv", folder / "c.parquet"],
        "shuffled": [folder / "a.jsonl", folder / "b.csv", folder / "c.parquet"],
        "folder": [folder / "pictures"],
        "skipped": [folder / "bad.jsonl"],
    }


@pytest.fixture(scope="module")
def wanted(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """What an undisturbed run makes of each."""
    folder = tmp_path_factory.mktemp("wanted")
    with inline():
        for case, options in CASES.items():
            prepare(inputs[case], folder / case, options, workers=2)
    return {case: faults.content(folder / case) for case in CASES}


def action(inputs: Inputs, case: str, output: Path, **changes: Any) -> Callable[[], Manifest]:
    return lambda: prepare(inputs[case], output, CASES[case], **changes)


def test_with_real_workers(inputs: Inputs, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.shards.plan.choose_task_bytes", lambda size: 700)
    action(inputs, "shuffled", tmp_path / "out", workers=2)()
    assert faults.content(tmp_path / "out") == wanted["shuffled"]


def is_over(output: Path) -> bool:
    """Whether all was done but to remove an empty work folder. Before that, the run is known to be the same."""
    left = {path.name for path in (output / WORK_NAME).glob("*")}
    if not (output / "headrace.json").exists() or "commit" in left:
        return False
    assert left <= {LOCK_NAME}
    shutil.rmtree(output / WORK_NAME, ignore_errors=True)
    return True


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_killed_at_any_moment_and_continued(inputs: Inputs, wanted: Wanted, tmp_path: Path, case: str) -> None:
    output = tmp_path / "out"
    run = action(inputs, case, output, workers=2)
    num_changes = len(faults.list_changes(run))
    shutil.rmtree(output)
    chooser = random.Random(case)
    for moment in sorted(chooser.sample(range(num_changes), cases(4, num_changes))):
        assert not faults.run_killed(run, moment)
        if not is_over(output):
            again = chooser.randrange(60)  # and killed once more on the way
            faults.run_killed(action(inputs, case, output, workers=1), again)
        if not is_over(output):
            action(inputs, case, output, workers=3)()
        assert faults.content(output) == wanted[case], moment
        shutil.rmtree(output)


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("case", ["shuffled", "folder"])
def test_full_disk(inputs: Inputs, wanted: Wanted, tmp_path: Path, case: str) -> None:
    output = tmp_path / "out"
    run = action(inputs, case, output, workers=2)
    moments = [at for at, kind in enumerate(faults.list_changes(run)) if kind in faults.TAKING_SPACE]
    shutil.rmtree(output)
    for moment in random.Random(case).sample(moments, cases(6, len(moments))):
        with faults.full_disk(moment), pytest.raises(OutputError, match="device"):
            run()
        assert not (output / "headrace.json").exists()
        run()
        assert faults.content(output) == wanted[case], moment
        shutil.rmtree(output)


def test_the_ledger_and_the_manifest(inputs: Inputs, wanted: Wanted, tmp_path: Path):
    for name, data in wanted["skipped"].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    manifest = load_manifest(tmp_path)
    documents, contents = manifest.ledger.documents, manifest.ledger.contents
    assert (documents.read, documents.kept, documents.dropped) == (60, 58, {"bad": 1, "duplicate": 1})
    samples = read_all(tmp_path)
    assert contents.kept == sum(len(data) for parts in samples.values() for data in parts.values())
    assert contents.read == contents.kept + sum(contents.dropped.values())
    assert [entry.line for entry in manifest.errors] == [8]
    table, files = manifest.inputs
    assert table.xxh3_128 == file_sum(inputs["skipped"][0]).xxh3_128
    assert (files.format, files.size) == ("files", sum(len(parts["jpg"]) for parts in samples.values()))
    for shard in manifest.outputs:
        assert tuple(file_sum(tmp_path / file.name) for file in shard.files) == shard.files
        scanned = scan_shard(tmp_path / f"{shard.prefix}.tar")
        assert scanned.offsets.tolist() == read_index(tmp_path / f"{shard.prefix}.tar.idx").tolist()
        assert shard.documents == len(scanned.keys) <= 10


@pytest.mark.parametrize("case", CASES)
def test_it_opens_as_a_dataset(wanted: Wanted, tmp_path: Path, case: str) -> None:
    for name, data in wanted[case].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    samples = read_all(tmp_path)
    with headrace.open(tmp_path) as store:
        assert [(sample.key, sample.parts) for sample in store.read(np.arange(len(store)))] == list(samples.items())
        assert list(store.check()) == []
        manifest = find_shards(str(tmp_path))
        assert manifest is not None
        keys = list(samples)
        for number in (0, len(keys) // 2, len(keys) - 1):
            by_key, by_number = find_sample_origins(str(tmp_path), manifest, [keys[number], str(number)])
            assert by_key == by_number
            assert by_key.parts == {name: len(data) for name, data in samples[keys[number]].items()}
            if case == "folder":
                assert by_key.files == (keys[number],)
            else:
                place = {"a.jsonl": 1, "b.csv": 26, "c.parquet": 40, "bad.jsonl": 1}[Path(by_key.input).name]
                assert f"s{place + by_key.number - 2 + (by_key.unit == 'row') * 2}" == keys[number]
        with pytest.raises(ConfigError, match="'x'"):
            find_sample_origins(str(tmp_path), manifest, ["x"])
    if case == "shuffled":
        sizes = {part: len(headrace.open(tmp_path, split_part=part)) for part in ("train", "val", "test")}
        assert sizes == {"train": 48, "val": 6, "test": 6}


@pytest.mark.usefixtures("small_tasks")
def test_runs_are_told_apart(inputs: Inputs, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run = action(inputs, "tables", output)
    moment = len(faults.list_changes(run)) // 2
    before = faults.content(output)
    other = ShardOptions(source=TABLES, output=ShardOutput(samples_per_shard=9))
    with pytest.raises(OutputError, match="--overwrite"):
        prepare(inputs["tables"], output, other)
    run()
    assert faults.content(output) == before
    shutil.rmtree(output)
    assert not faults.run_killed(run, moment)
    with pytest.raises(OutputError, match=r"output\.samples_per_shard.*11.*9"):
        prepare(inputs["tables"], output, other)
    run()
    assert faults.content(output) == before
    prepare(inputs["folder"], output, ShardOptions(output=ShardOutput(samples_per_shard=40)), overwrite=True)
    assert [path.name for path in sorted(output.glob("*.tar"))] == ["shard-000000.tar", "shard-000001.tar"]
    assert len(headrace.open(output)) == 60
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "shard-000000.tar").write_bytes(b"x")
    with pytest.raises(OutputError, match="empty"):
        prepare(inputs["folder"], tmp_path / "other", CASES["folder"])


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("content", [image(3), image(0)[::-1]], ids=["another size", "the same size"])
def test_files_that_change(tmp_path: Path, content: bytes) -> None:
    """The files of a folder are those that were listed when the run was planned."""
    write_pictures(tmp_path, 20)
    options, output = ShardOptions(output=ShardOutput(samples_per_shard=4)), tmp_path / "out"
    plan_shards([tmp_path / "pictures"], output, options=options)
    (tmp_path / "pictures/000.jpg").write_bytes(content)
    with pytest.raises(InputError, match=r"000\.jpg"):
        finish_job(output, LocalExecutor(workers=2), Show())
    with pytest.raises(OutputError, match="names, sizes and times"):
        prepare(tmp_path / "pictures", output, options)
    prepare(tmp_path / "pictures", output, options, restart=True)
    assert read_all(output)["000"]["jpg"] == content


@pytest.mark.usefixtures("small_tasks")
def test_an_estimate(inputs: Inputs, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = CASES["tables"]
    exact = estimate_shards(inputs["folder"], options=CASES["folder"])
    assert (exact.is_exact, exact.samples, exact.shards, exact.bad) == (True, 60, 7, 0)
    assert exact.content_bytes == sum(len(image(number)) for number in range(60))
    assert exact.output_bytes <= sum(len(data) for name, data in wanted["folder"].items() if name.endswith(".tar"))
    monkeypatch.setattr("headrace.preparing.shards.estimate.MAX_TASKS", 3)
    about = estimate_shards(inputs["tables"], options=options)
    assert not about.is_exact
    assert 40 <= about.samples <= 80
    assert set(about.parts) == {"jpg", "txt", "json"}
    bad = estimate_shards(inputs["skipped"], options=CASES["skipped"])
    assert bad.bad <= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_tasks")
def test_progress_and_notices(inputs: Inputs, tmp_path: Path) -> None:
    seen, notices = [], []
    prepare_shards(
        inputs["tables"],
        tmp_path / "out",
        options=msgspec.structs.replace(CASES["tables"], source=ShardSource(key_field="id")),
        on_progress=seen.append,
        on_notice=notices.append,
    )
    phases = [phase for at, phase in enumerate(p.phase for p in seen) if not at or seen[at - 1].phase != phase]
    assert [phase.partition("-")[0] for phase in phases] == ["list", "pack"]
    assert all(0 <= p.counts.get("bytes", 0) <= p.total_bytes for p in seen)
    assert (seen[-1].counts["bytes"], seen[-1].counts["samples"]) == (seen[-1].total_bytes, 60)
    assert len(notices) == 3
    assert "txt=column:caption" in notices[0]


def test_sample_types(inputs: Inputs, tmp_path: Path) -> None:
    with inline():
        typed = ShardOutput(sample_type="CaptioningSample", field_map={"image": "jpg", "caption": "txt"})
        prepare(inputs["tables"], tmp_path / "out", ShardOptions(source=TABLES, output=typed))
    found = yaml.safe_load((tmp_path / "out" / ".nv-meta" / "dataset.yaml").read_bytes())
    assert found == {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "jpg", "caption": "txt"},
    }


def test_the_hash_of_files(wanted: Wanted, tmp_path: Path) -> None:
    for case in ("folder", "shuffled"):
        (tmp_path / "headrace.json").write_bytes(wanted[case]["headrace.json"])
        total = 0
        for number in range(60):
            name = f"{number:03d}.jpg" if case == "folder" else f"pictures/{number:03d}.jpg"
            digest = xxhash.xxh3_128_digest(image(number))
            total += xxhash.xxh3_128_intdigest(name.encode() + b"\0" + digest)
        found = [entry.xxh3_128 for entry in load_manifest(tmp_path).inputs if entry.format in ("folder", "files")]
        # One entry for each table that names files: their sums add up to that of all.
        assert sum(int(digest, 16) for digest in found) % 2**128 == total % 2**128


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("cut", [0, 5])
def test_files_torn_by_a_loss_of_power(inputs: Inputs, wanted: Wanted, tmp_path: Path, cut: int) -> None:
    """What a task has found is found again; a shard that is lost is an error, which names it."""
    for torn in ("task-000001", "shard-000001.tar"):
        output = tmp_path / torn
        plan_shards(inputs["tables"], output, options=CASES["tables"])
        job = open_job(output)
        jobs_by_hand.do_here(job, list(range(5)))
        [path] = (output / WORK_NAME).glob(f"phase-*/*/{torn}")
        path.write_bytes(path.read_bytes()[:-7] if cut else b"")
        if torn.endswith(".tar"):
            with pytest.raises(OutputError, match=torn):
                action(inputs, "tables", output)()
        action(inputs, "tables", output, restart=torn.endswith(".tar"))()
        assert faults.content(output) == wanted["tables"]


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("names", [["pictures"], ["a.jsonl"], ["a.jsonl", "b.parquet", "pictures"]])
def test_the_same_run_finds_that_it_is_complete(names: list[str], tmp_path: Path) -> None:
    """As after a kill that came before the process could say so. Tables name files, some of them twice."""
    write_pictures(tmp_path, 30)
    records = rows(40)
    for number in range(30, 40):
        records[number]["file"] = records[0]["file"]
    write_table(tmp_path / "a.jsonl", records[:35])
    write_table(tmp_path / "b.parquet", records[35:])
    options = ShardOptions(source=msgspec.structs.replace(TABLES, key_field=None))
    notices: list[str] = []

    def run() -> Manifest:
        return prepare_shards(
            [tmp_path / name for name in names], tmp_path / "out", options=options, on_notice=notices.append
        )

    def refused() -> None:
        with pytest.raises(OutputError, match="earlier"):
            run()

    made = run()
    wanted = faults.content(tmp_path / "out")
    notices.clear()
    assert run() == made
    assert [notice[:30] for notice in notices if "complete" in notice] == ["the output is complete already"]
    assert faults.content(tmp_path / "out") == wanted
    picture = tmp_path / "pictures/000.jpg"
    before = picture.read_bytes()
    picture.write_bytes(before[::-1])
    refused()
    picture.write_bytes(before)
    assert run() == made
    picture.unlink()
    refused()
    assert faults.content(tmp_path / "out") == wanted


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("key_field", ["id", None])
def test_tables_that_hold_their_media(tmp_path: Path, kind: str, key_field: str | None) -> None:
    """Their spans are packed together, or cut if that cannot be; rows are mixed within a shard."""
    records = [{"id": f"s{number}", "raw": image(number), "n": str(number)} for number in range(120)]
    write_table(tmp_path / f"t.{kind}", records)
    parts = tuple(map(PartSpec.parse, ("jpg=bytes:raw", "cls=column:n")))
    source = ShardSource(parts=parts, key_field=key_field)
    output = ShardOutput(shard_bytes=30_000)
    wanted = {
        record["id"] if key_field else f"{number:09d}": {"jpg": record["raw"], "cls": record["n"].encode()}
        for number, record in enumerate(records)
    }
    prepare(tmp_path / f"t.{kind}", tmp_path / "plain", ShardOptions(source=source, output=output))
    found = read_all(tmp_path / "plain")
    assert list(found.items()) == list(wanted.items())
    sizes = [path.stat().st_size for path in sorted((tmp_path / "plain").glob("*.tar"))]
    assert all(15_000 < size < 45_000 for size in sizes[:-1])
    mixed = msgspec.structs.replace(output, shuffle=3, split_ratio=(2, 1, 1))
    manifest = prepare(tmp_path / f"t.{kind}", tmp_path / "mixed", ShardOptions(source=source, output=mixed))
    found = read_all(tmp_path / "mixed")
    assert sorted(found.items()) == sorted(wanted.items())
    assert list(found) != sorted(found)
    counts = [sum(shard.documents for shard in manifest.outputs[a:b]) for a, b in manifest.options["splits"].values()]
    assert counts == [60, 30, 30]
    where = find_sample_origins(str(tmp_path / "mixed"), manifest, list(wanted))
    assert [origin.number for origin in where] == [number + (kind != "parquet") for number in range(120)]


@pytest.mark.usefixtures("small_tasks")
def test_sizes_of_files_that_a_table_names_are_estimated(inputs: Inputs, tmp_path: Path) -> None:
    output = ShardOutput(shard_bytes=15_000)
    prepare(inputs["tables"], tmp_path / "out", ShardOptions(source=TABLES, output=output))
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.tar"))]
    assert all(10_000 < size < 31_000 for size in sizes)
    assert sum(sizes) / len(sizes) < 21_000, "tars are padded to 10,240 bytes"


def test_workers_do_not_run_the_calling_script(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 9)
    script = tmp_path / "script.py"
    lines = [
        "print('begun')",
        "from headrace.preparing.shards import ShardOptions, ShardOutput, prepare_shards",
        "options = ShardOptions(workers=2, output=ShardOutput(samples_per_shard=2))",
        "prepare_shards(['in'], 'out', options=options)",
    ]
    script.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("begun\n", "")
