"""What `scale.py` measures, each in a process of its own: a job of empty tasks, and parts of jobs over text.

    python benchmarks/scale_tasks.py --one tasks  FOLDER TASKS
    python benchmarks/scale_tasks.py --one parts  FOLDER TASKS
    python benchmarks/scale_tasks.py --one receipts FOLDER TASKS, then --one status FOLDER TASKS
    python benchmarks/scale_tasks.py --one plan   FOLDER FILES TOKENIZER
    python benchmarks/scale_tasks.py --one do     FOLDER TASKS TOKENIZER
    python benchmarks/scale_tasks.py --one finish FOLDER

The last line that each prints is a JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import msgspec

from headrace import preparing
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor
from headrace.engine.heartbeat import Heartbeat
from headrace.engine.job import Job, Phase, Show, TaskResult
from headrace.engine.receipts import Receipt
from headrace.engine.serving import Done, Parent, Reply, serve
from headrace.engine.shared import Shared, sync_files
from headrace.engine.status import StatusReader
from headrace.io import unique_name
from headrace.kinds import finish_job, open_job
from headrace.preparing import OutputOptions, PrepareOptions, RecordOptions, TokenOptions

LATER = 1000
"""Tasks that are done between two readings of the status."""
RECORD_BYTES = 2000


class Empty(msgspec.Struct, frozen=True):
    """A task, which does nothing."""

    task_index: int

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return "nothing"


class EmptySetup(msgspec.Struct, frozen=True):
    """The first message to the worker."""

    parent: int


class EmptyJob(Job):
    """Tasks that do nothing, so that what is left is the engine."""

    kind = "empty"
    main = "scale_tasks:serve_empty"

    def __init__(self, folder: Path, num_tasks: int) -> None:
        super().__init__(folder, Shared(folder))
        self._phase = Phase(name="empty", num_tasks=num_tasks)

    def phase(self) -> Phase:
        """See `Job`."""
        return self._phase

    def tasks(self, phase: Phase) -> Sequence[Empty]:
        """See `Job`."""
        return [Empty(index) for index in range(phase.num_tasks)]

    def setup(self, phase: Phase, results: Path) -> EmptySetup:
        """See `Job`."""
        return EmptySetup(os.getpid())

    def finish(self, show: Show) -> None:
        """See `Job`."""


def serve_empty(descriptor: int) -> None:
    def handler(parent: Parent, setup: EmptySetup) -> Callable[[Empty], Reply]:
        return lambda task: Done.of(task.task_index, TaskResult())

    serve(descriptor, EmptySetup, Empty, handler)


def used_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measured(action: Callable[[], Any]) -> dict[str, float]:
    """CPU and wall seconds of an action, and how far the memory of this process rose above what it was before."""
    before = common.memory_bytes("VmRSS")
    cpu_s, begin = used_s(), time.perf_counter()
    action()
    return {
        "s": time.perf_counter() - begin,
        "cpu_s": used_s() - cpu_s,
        "peak_mb": (common.memory_bytes("VmHWM") - before) / 1e6,
    }


def tasks(folder: Path, num_tasks: int) -> dict[str, float]:
    """Do empty tasks in one worker. The time of a run with a single task is taken off."""

    def run(name: str, number: int) -> dict[str, float]:
        (folder / name).mkdir()
        job = EmptyJob(folder / name, number)
        doer = Doer(
            job,
            job.phase(),
            wanted=None,
            workers=1,
            waits=False,
            limits=Limits(),
            on_progress=lambda progress: None,
        )
        return measured(doer.run)

    start, whole = run("start", 1), run("whole", num_tasks)
    return {name: 1000 * (whole[name] - start[name]) / (num_tasks - 1) for name in ("s", "cpu_s")}


def parts(folder: Path, num_tasks: int) -> dict[str, float]:
    """CPU milliseconds of the parts of a task."""
    job = EmptyJob(folder, num_tasks)
    receipts = job.receipts(job.phase())
    receipts.prepare()
    name = unique_name()
    (receipts.folder / name).mkdir()

    def claim() -> None:
        for index in receipts.tasks:
            receipts.claim(index, name, 0)

    def commit() -> None:
        for index in receipts.tasks:
            sync_files(receipts.folder / name, ())
            receipts.create(receipt(index, name))

    def beat() -> None:
        heartbeat = Heartbeat(Shared(folder), name, "empty")
        (folder / "nodes").mkdir()
        for _ in receipts.tasks:
            heartbeat._beaten_s = -1e9  # a beat each time, and not one every five seconds
            heartbeat.beat({1: 0.5, 2: 0.7})

    actions = {"claim": claim, "receipt": commit, "heartbeat": beat}
    return {name: 1000 * measured(action)["cpu_s"] / num_tasks for name, action in actions.items()}


def receipt(index: int, attempt: str) -> Receipt:
    """A receipt like those of text."""
    return Receipt(
        task_index=index,
        attempt=attempt,
        host=f"node-{index % 100}",
        finished_s=1.7e9 + index,
        seconds=0.5,
        files=(f"{index}.0.piece",),
        counts={"bytes": 16_000_000, "documents": 4000, "tokens": 4_000_000},
    )


def receipts(folder: Path, num_tasks: int) -> dict[str, float]:
    """Create the receipts of tasks that nobody did, without waiting for the disk."""
    synced, os.fsync = os.fsync, lambda descriptor: None
    job = EmptyJob(folder, num_tasks + LATER)
    made = job.receipts(job.phase())
    made.prepare()
    for index in range(num_tasks):
        made.create(receipt(index, f"node-{index % 100}.{index % 1000}.abcdef"))
    os.fsync = synced
    return {"tasks": num_tasks}


def status(folder: Path, num_tasks: int) -> dict[str, float]:
    """Read the status of tasks that are done, and again after some more."""
    reader = StatusReader(EmptyJob(folder, num_tasks + LATER))
    first = measured(reader.read)
    job = EmptyJob(folder, num_tasks + LATER)
    later = job.receipts(job.phase())
    for index in range(num_tasks, num_tasks + LATER):
        later.create(receipt(index, f"node-{index % 100}.{index % 1000}.abcdef"))
    again = measured(reader.read)
    return {"first_s": first["s"], "again_s": again["s"], "peak_mb": first["peak_mb"]}


def plan(folder: Path, num_files: int, tokenizer: str) -> dict[str, float]:
    """Plan a job over small files, and open it as each process does that takes part."""
    inputs = folder / "inputs"
    for number in range(num_files):
        if number % 1000 == 0:
            (inputs / f"{number // 1000:05d}").mkdir(parents=True)
        path = inputs / f"{number // 1000:05d}" / f"{number:07d}.jsonl"
        path.write_text(json.dumps({"text": f"record {number}"}) + "\n")
    made = measured(lambda: preparing.plan([inputs], folder / "out", tokenizer=tokenizer, options=PrepareOptions()))
    opened = measured(lambda: open_job(folder / "out").phase())
    return {"plan_s": made["s"], "plan_cpu_s": made["cpu_s"], "open_s": opened["s"], "peak_mb": made["peak_mb"]}


def do(folder: Path, num_tasks: int, tokenizer: str) -> dict[str, float]:
    """Plan a job over text whose output has about as many shards as it has tasks, and do the tasks."""
    inputs = folder / "in.jsonl"
    with inputs.open("w") as file:
        for number in range(num_tasks):
            line = json.dumps({"text": f"{number} "})
            file.write(line[:-2] + "ab " * ((RECORD_BYTES - len(line)) // 3) + '"}\n')
    options = PrepareOptions(
        records=RecordOptions(max_record_bytes=1 << 20),
        tokens=TokenOptions(append_eod=True, backend="tokenizers"),
        output=OutputOptions(shard_tokens=1000),
        task_bytes=RECORD_BYTES,
    )
    preparing.plan([inputs], folder / "out", tokenizer=tokenizer, options=options)
    job = open_job(folder / "out")
    phase = job.phase()
    assert phase is not None
    found = measured(lambda: LocalExecutor(workers=2).run(job, phase, Show()))
    return {**found, "tasks": phase.num_tasks}


def finish(folder: Path) -> dict[str, float]:
    """Finish the job."""
    found = measured(lambda: finish_job(folder / "out", LocalExecutor(workers=2), Show()))
    return {**found, "shards": len(list((folder / "out").glob("*.idx")))}


def main() -> None:
    name, folder, *more = sys.argv[2:]
    actions: dict[str, Callable[..., dict[str, float]]] = {
        "tasks": tasks, "parts": parts, "receipts": receipts, "status": status, "plan": plan, "do": do,
        "finish": finish,
    }  # fmt: skip
    arguments = [int(more[0]), *more[1:]] if more else []
    print(json.dumps(actions[name](Path(folder), *arguments)))


if __name__ == "__main__":
    main()
