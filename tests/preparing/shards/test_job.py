"""Planned runs over media, whose tasks are done in any order, by several processes, with deaths in between."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import faults
import jobs_by_hand
from counts import cases
from headrace.engine import executors
from headrace.engine.doing import Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.job import Show
from headrace.engine.work_folder import ClaimedFolder
from headrace.errors import InputError, OutputError
from headrace.preparing import open_job, plan_shards, prepare_shards
from headrace.preparing.output_folder import WORK_NAME
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource
from headrace.stores import load_manifest
from shards_made import image, inline, rows, write_pictures, write_table

PARTS = tuple(map(PartSpec.parse, ("jpg=path:file", "txt=column:caption", "raw=bytes:raw", "json=row")))
CASES = {
    "tables": ShardOptions(
        source=ShardSource(parts=PARTS, key_field="id"),
        output=ShardOutput(shard_bytes=20_000, shuffle=7, split_ratio=(8, 1, 1)),
    ),
    "folder": ShardOptions(source=ShardSource(captions="captions.csv"), output=ShardOutput(samples_per_shard=9)),
}


@pytest.fixture(autouse=True)
def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path, 40)
    records = [{**row, "raw": image(number)} for number, row in enumerate(rows(40))]
    write_table(Path("a.jsonl"), records[:25])
    write_table(Path("c.parquet"), records[25:])
    captions = [{"file_name": f"{number:03d}.jpg", "text": f"caption {number}"} for number in range(40)]
    write_table(Path("captions.csv"), captions)
    with inline(), jobs_by_hand.inline():
        yield


def inputs(case: str) -> list[str]:
    return ["a.jsonl", "c.parquet"] if case == "tables" else ["pictures"]


@pytest.mark.parametrize("case", CASES)
def test_any_history_gives_the_bytes_of_a_local_run(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_shards(inputs(case), "local", options=CASES[case])
    wanted = faults.content(tmp_path / "local")
    for seed in range(cases(4, 200)):
        output = tmp_path / f"out{seed}"
        monkeypatch.chdir(tmp_path)
        plan_shards(inputs(case), f"out{seed}", options=CASES[case])
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")
        jobs_by_hand.do_all(lambda output=output: open_job(output), random.Random(seed))  # type: ignore[misc]
        assert faults.content(output) == wanted, seed
        with pytest.raises(OutputError, match="nothing is planned in this folder, or it is complete"):
            open_job(output)


def next_phase(output: str) -> None:
    job = open_job(output)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    job.advance(phase, Show())


def test_bad_samples_are_told_between_the_phases() -> None:
    Path("pictures/007.jpg").unlink()
    plan_shards(["a.jsonl"], "out", options=CASES["tables"])
    for _ in range(2):
        with pytest.raises(InputError, match=r"a\.jsonl, line 8: the file 'pictures/007\.jpg' .* No such file"):
            next_phase("out")


def test_a_file_that_cannot_be_read_may_be_there_later(tmp_path: Path) -> None:
    prepare_shards(["a.jsonl"], "local", options=CASES["tables"])
    plan_shards(["a.jsonl"], "out", options=CASES["tables"])
    next_phase("out")
    picture = Path("pictures/007.jpg").rename("away")
    with pytest.raises(InputError, match=r"007\.jpg: cannot be read: No such file"):
        next_phase("out")
    picture.rename("pictures/007.jpg")
    drive(open_job("out"), LocalExecutor(workers=1), Show())
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "local")


@pytest.mark.parametrize("num_phases", [0, 1, 2])
def test_a_plan_is_kept_and_a_local_run_goes_on_with_it(num_phases: int, tmp_path: Path) -> None:
    options = CASES["folder"]
    prepare_shards(["pictures"], "local", options=options)
    for _ in range(num_phases):
        plan_shards(["pictures"], "out", options=options)
        next_phase("out")
    plan_shards(["pictures"], "out", options=options)
    changed = msgspec.structs.replace(options, output=ShardOutput(samples_per_shard=10))
    with pytest.raises(OutputError, match=r"other options .*samples_per_shard was 9, is 10\."):
        plan_shards(["pictures"], "out", options=changed)
    late = open_job("out")
    notices: list[str] = []
    prepare_shards(["pictures"], "out", options=options, on_notice=notices.append)
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "local")
    assert any("5 shards are done" in notice for notice in notices) == (num_phases == 2)
    assert drive(late, LocalExecutor(workers=1), Show()) == load_manifest("out")
    assert not (tmp_path / "out" / WORK_NAME).exists()
    plan_shards(["pictures"], "out", options=options)
    assert not (tmp_path / "out" / WORK_NAME).exists()


def test_processes_take_part_in_all_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plans the shards, another one waits for it; one that a scheduler will end leaves that to others."""
    prepare_shards(["pictures"], "local", options=CASES["folder"])
    plan_shards(["pictures"], "out", options=CASES["folder"])
    before = open_job("out").phase()
    assert before is not None
    take_part(open_job("out"), Limits(end_s=time.time() + 3600), Show(), workers=1)
    assert open_job("out").phase() == before, "others have to plan the shards"
    waited = []
    claimed = ClaimedFolder(Path("out") / WORK_NAME, "busy")
    claimed.claim()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        claimed.leave(lambda: None)

    monkeypatch.setattr(executors, "time", SimpleNamespace(sleep=wait))
    assert take_part(open_job("out"), Limits(), Show(), workers=1) == 5
    assert waited == [executors.REFRESH_S]
    assert open_job("out").phase() is None
    drive(open_job("out"), LocalExecutor(workers=1), Show())
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "local")
