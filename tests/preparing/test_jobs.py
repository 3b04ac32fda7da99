"""Planned runs, whose tasks are done by hand: in any order, by several processes, with deaths in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import faults
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Job, Show
from headrace.errors import OutputError
from headrace.kinds import open_job
from headrace.preparing import FilterSpec, OutputOptions, PrepareOptions, plan, prepare

VARIANTS = {
    "plain": PrepareOptions(task_bytes=200_000),
    "shards": PrepareOptions(task_bytes=200_000, output=OutputOptions(shard_tokens=200_000)),
    "deduplicated": PrepareOptions(task_bytes=200_000, deduplicate=True, filters=FilterSpec(min_chars=200)),
}


def do(job: Job, wanted: list[int] | None = None, *, workers: int = 1) -> int:
    phase = job.phase()
    assert phase is not None
    doer = Doer(job, phase, wanted=wanted, workers=workers, waits=True, limits=Limits(), on_progress=lambda _: None)
    return doer.run()


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("name", VARIANTS)
def test_tasks_in_any_order_give_the_bytes_of_a_local_run(
    name: str, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    options = VARIANTS[name]
    prepare([corpus], tmp_path / "local", tokenizer=tokenizer_path, options=options)
    output = tmp_path / "planned"
    plan([corpus], output, tokenizer=tokenizer_path, options=options)
    phase = open_job(output).phase()
    assert phase is not None
    order = random.Random(3).sample(range(phase.num_tasks), phase.num_tasks)
    half = len(order) // 2
    for some in (order[:half], order[half:]):
        assert do(open_job(output), some, workers=2) == len(some)
    drive(open_job(output), LocalExecutor(workers=1), Show())
    assert faults.content(output) == faults.content(tmp_path / "local")
    with pytest.raises(OutputError, match="complete"):
        open_job(output)
