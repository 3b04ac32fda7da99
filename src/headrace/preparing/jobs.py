"""The jobs of this room, which processes on any hosts may do, see `headrace.engine`; and those of text and recipes.

Phases of text and of recipes:

    encode       the tasks of the input, and the hashes of files that no single task reads whole
    duplicates   if they are left out: in one range of hashes of texts a task

If a fast library proves wrong in a task, a second phase of encoding begins at the first such task, with the reference
tokeniser, as a local run would. What is done in order is the local run itself: it finds the pieces of all tasks on
disk.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.engine import job as engine_job
from headrace.engine.executors import Executor, drive
from headrace.engine.job import Job, KindOfWork, Phase, Show, TaskResult, is_planned, load_plan
from headrace.engine.receipts import Receipts
from headrace.engine.serving import Done, Failed
from headrace.engine.shared import Shared
from headrace.engine.work_folder import inside
from headrace.errors import ConfigError, sentence
from headrace.io import AnyPath, atomic_write, check_readable, output_errors, path_at, read_small
from headrace.preparing import worker
from headrace.preparing.duplicates import duplicates_path
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.messages import FindTask, HashTask, Order, Setup
from headrace.preparing.output_folder import (
    RUN_NAME,
    WORK_NAME,
    OutputFolder,
    load_state,
    mark_of,
    output_at,
)
from headrace.preparing.piece import HASHES, piece_path
from headrace.preparing.run import REFERENCE, TextRun, begin_run, cut, encoding_phases, hash_files
from headrace.preparing.run_plan import RunPlan, encoding, finding
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KIND = "text"
TOKENIZER_NAME: Final = "tokenizer.json"


def plan_run(
    folder: OutputFolder, plan: RunPlan, deciding: Mapping[str, Any], on_notice: Callable[[str], None]
) -> Manifest | None:
    """Begin or continue a run in a folder that was claimed, and write its plan for other processes to do its tasks.

    Tasks that failed before are to be tried again.

    Returns:
        The manifest of the output if that is complete already, else None.

    Raises:
        ConfigError: an input is standard input, which only this process can read.
        OutputError: the folder holds something else, or the system refuses the write.
    """
    if any(file.name == "-" for file in plan.files):
        raise ConfigError("input '-': only this process can read its standard input; other hosts need files")
    if complete := begin_run(folder, plan, deciding):
        on_notice(complete)
        return folder.load()
    plan = cut(plan)
    files = tuple(msgspec.structs.replace(file, path=str(path_at(file.path).absolute())) for file in plan.files)
    kept = msgspec.structs.replace(plan, files=files, tokenizer=msgspec.structs.replace(plan.tokenizer, json=b""))
    num_tasks, mark = len(plan.all_orders()), mark_of(folder.work)
    folder.save_plan(
        KIND,
        kept,
        {} if plan.choice.name == REFERENCE else {plan.choice.name: plan.choice.version},
        files={TOKENIZER_NAME: plan.tokenizer.json},
        phases=[encoding(mark, backend, num_tasks) for backend in sorted({plan.choice.name, REFERENCE})],
    )
    return None


class TextJob(Job):
    """See the module."""

    kind = KIND
    main = worker.MAIN

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw) -> None:
        super().__init__(output, shared)
        found = msgspec.json.decode(plan, type=RunPlan)
        with output_errors(self.work, "read the plan in"):
            data = read_small(self.work / TOKENIZER_NAME)
            run = json.loads(read_small(self.work / RUN_NAME))
            self._mark = mark_of(self.work)
        self._plan = msgspec.structs.replace(found, tokenizer=msgspec.structs.replace(found.tokenizer, json=data))
        self._orders = self._plan.all_orders()
        function = self._plan.options.filters.function
        if function is not None and function_fingerprint(function) != run["filter"]:
            raise ConfigError(
                f"--filter {function}: its code on host {platform.node()} differs from that of the plan, which was made"
                f" in {load_plan(self.work).folder}: bring the same module to all hosts, or plan again"
            )

    def phase(self) -> Phase | None:
        """See `Job`."""
        if not self.is_planned:
            return None  # another process has finished the job
        phases = self._encoding()
        if num_ranges := self._num_ranges():
            phases.append(finding(self._mark, num_ranges))
        for phase in phases:
            receipts = self._read(phase)
            if receipts.open_tasks or receipts.failed:
                return phase
        return None

    def tasks(self, phase: Phase) -> Sequence[Order]:
        """See `Job`."""
        if phase.name.startswith("duplicates"):
            return [FindTask(number) for number in range(phase.num_tasks)]
        return self._orders

    def setup(self, phase: Phase, results: Path) -> Setup:
        """See `Job`."""
        setup = self._plan.setup_in(self.work, self._mark, self._backend(phase))
        hashes: tuple[str, ...] = ()
        if phase.name.startswith("duplicates"):
            hashes = tuple(str(self.shared.place(name)) for name in hash_files(self._encoding(), self._read))
        return msgspec.structs.replace(setup, parts=str(results), num_ranges=self._num_ranges(), hashes=hashes)

    def result(self, phase: Phase, done: Sequence[Done], results: Path) -> TaskResult:
        """See `Job`."""
        task_index = done[0].task_index
        is_encoded = phase.name.startswith("encode")
        if is_encoded and isinstance(self._orders[task_index], HashTask):
            number, digest = done[0].read(tuple[int, str])
            return TaskResult(value={"file": number, "xxh3_128": digest})
        counts = [piece.read(tuple[int, int, int]) for piece in done]
        if phase.name.startswith("duplicates"):
            names = [duplicates_path("", task_index).name]
        else:
            names = [piece_path("", task_index, piece.piece).name for piece in done]
            if self._num_ranges():
                full = (piece for piece, (_, documents, _) in zip(done, counts, strict=True) if documents)
                names += [piece_path("", task_index, piece.piece, HASHES).name for piece in full]
        return TaskResult(
            files=tuple(names),
            counts=dict(zip(("bytes", "documents", "tokens"), np.sum(counts, axis=0).tolist(), strict=True)),
        )

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """See `Job`. A record that is bad or ends workers, or a library that proves wrong, is so on every host."""
        if failed.kind == worker.MISMATCH:
            return TaskResult(value={"mismatch": failed.message})
        if failed.kind in (worker.BAD_LINE, worker.ENDED_WORKER):
            file = self._plan.files[failed.file]
            return TaskResult(error=f"{file.name}: {sentence(failed.message)} `headrace job finish` names the line.")
        raise failed.error()

    def advance(self, phase: Phase, show: Show) -> None:
        """See `Job`: there is nothing to do."""

    def finish(self, show: Show) -> Manifest:
        """See `Job`: commit all pieces in their order, as the end of a local run."""
        with output_at(self.output, overwrite=self._plan.options.overwrite, restart=False) as folder:
            if (manifest := folder.resume()) is None:
                if not self.shared.is_folder:
                    atomic_write(folder.work / TOKENIZER_NAME, self._plan.tokenizer.json)
                local_run = TextRun(
                    self._plan, folder, None, read=self._read, on_progress=show.progress, on_notice=show.notice
                )
                manifest, moves = local_run.run()
                folder.commit(moves)
        return manifest

    def _read(self, phase: Phase) -> Receipts:
        receipts = self.receipts(phase)
        receipts.refresh()
        return receipts

    def _encoding(self) -> list[Phase]:
        return encoding_phases(self._plan, self._orders, self._mark, self._read)

    def _num_ranges(self) -> int:
        """Return how many tasks find duplicates; 0 if the run was begun as a local one, which does it in order."""
        state = load_state(self.work) if self.shared.is_folder else None
        return self._plan.num_ranges if state is None or state.is_planned else 0

    def _backend(self, phase: Phase) -> str:
        return REFERENCE if phase.name.endswith(f"-{REFERENCE}") else self._plan.choice.name


KINDS: Final = {
    "text": KindOfWork("headrace.preparing.jobs:TextJob", inside(WORK_NAME)),
    "shards": KindOfWork("headrace.preparing.shards.job:ShardJob", inside(WORK_NAME)),
    "energon": KindOfWork(
        "headrace.preparing.energon.job:EnergonJob",
        inside(f"{META_FOLDER}/{META_WORK_NAME}"),
        lambda url: f"{path_at(url)}/{META_FOLDER}",
    ),
}
"""The kinds of work of this room."""


def open_job(output: str | os.PathLike[str], *, checks_software: bool = True) -> Job:
    """Open the job that was planned in a folder.

    A job that makes a new output has its plan in ``.headrace``; one that makes an Energon dataset of a folder, in
    place, has it in ``.nv-meta/.headrace``. If there are plans at both places, the first is opened.

    Args:
        output: the folder, or a URL, where the plan is at the same names.
        checks_software: whether this host must have the software of the plan, without which it may do no task.

    Raises:
        OutputError: nothing is planned there, or the plan cannot be read.
        ConfigError: the software of this host differs from that of the plan.
    """
    check_readable(output)
    return engine_job.open_job(output, KINDS, checks_software=checks_software)


def finish_job(output: str | os.PathLike[str], executor: Executor, show: Show) -> Any:
    """Take the job that was planned in a folder to its end; see `headrace.engine.executors.drive`.

    If the job is complete already, this returns its manifest, and removes what a kill may have left of its work.

    Raises:
        OutputError: nothing was planned in this folder.
        Exception: see `drive`.
    """
    check_readable(output)
    if is_planned(output, KINDS) or not (path_at(output) / MANIFEST_NAME).exists():
        return drive(open_job(output), executor, show)
    with output_at(output, overwrite=False, restart=False) as folder:
        folder.clear_left()
        show.notice(f"{output}: the output is complete already")
    return load_manifest(path_at(output))
