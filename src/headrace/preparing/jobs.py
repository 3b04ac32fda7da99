"""The jobs of this room, which processes on any hosts may do, see `headrace.engine`; and those of text and recipes.

Phases of text and of recipes:

    encode       the tasks of the input, and the hashes of files that no single task reads whole
    duplicates   if they are left out: in one range of hashes of texts a task
    sort         of shuffled runs: the buckets

If a fast library proves wrong in a task, a second phase of encoding begins at the first such task, with the reference
tokeniser, as a local run would. What is done in order is the local run itself: it finds the pieces of all tasks on
disk. In a shuffled run it numbers the documents before they are sorted, and sees only the sorted pieces whole.
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
from headrace.engine.ordered import OrderedStep, moved
from headrace.engine.receipts import Receipts
from headrace.engine.serving import Done, Failed
from headrace.engine.shared import Shared
from headrace.engine.work_folder import inside
from headrace.errors import ConfigError, sentence
from headrace.io import AnyPath, atomic_write, check_readable, output_errors, path_at, read_small
from headrace.preparing import worker
from headrace.preparing.committer import ORIGINS_NAME
from headrace.preparing.exchange.buckets import NUMBERS_NAME
from headrace.preparing.exchange.duplicates import duplicates_path
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.messages import Exchange, FindTask, HashTask, Order, Setup, SortTask
from headrace.preparing.output_folder import (
    RUN_NAME,
    STATE_NAME,
    WORK_NAME,
    OutputFolder,
    RunState,
    load_state,
    mark_of,
    output_at,
)
from headrace.preparing.piece import HASHES, PARTS, piece_path
from headrace.preparing.run import REFERENCE, TextRun, begin_run, cut, encoding_phases, hash_files
from headrace.preparing.run_plan import BUCKETS_NAME, RunPlan, encoding, finding, sorting
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME

KIND = "text"
TOKENIZER_NAME: Final = "tokenizer.json"
NUMBERS: Final = f"{BUCKETS_NAME}/{NUMBERS_NAME}"


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
        self._gathering = OrderedStep(self, f"number-{self._mark}", "numbers the documents before they are sorted")
        self._known: RunState | None = None
        function = self._plan.options.filters.function
        if function is not None and function_fingerprint(function) != run["filter"]:
            raise ConfigError(
                f"--filter {function}: its code on host {platform.node()} differs from that of the plan, which was made"
                f" in {load_plan(self.work).folder}: bring the same module to all hosts, or plan again"
            )

    def phase(self) -> Phase | None:
        """See `Job`. The last phase before documents are sorted is still returned if it is over, for `advance`."""
        if not self.is_planned:
            return None  # another process has finished the job
        state = self._state()
        if state is not None and state.phase == "sort":
            phase = sorting(self._mark, state.num_buckets, first_task=state.task_index)
            return phase if self._read(phase).open_tasks else None
        phases = self._encoding()
        if (exchange := self._exchange(state)) is not None and exchange.num_ranges:
            phases.append(finding(self._mark, exchange.num_ranges))
        for phase in phases:
            receipts = self._read(phase)
            if receipts.open_tasks or receipts.failed:
                return phase
        return phases[-1] if self._plan.is_shuffled else None

    def tasks(self, phase: Phase) -> Sequence[Order]:
        """See `Job`."""
        if phase.name.startswith("duplicates"):
            return [FindTask(number) for number in range(phase.num_tasks)]
        if phase.name.startswith("sort"):
            state = self._state()
            sizes = state.bucket_sizes if state is not None else []
            return [SortTask(bucket, size) for bucket, size in enumerate(sizes)]
        return self._orders

    def setup(self, phase: Phase, results: Path) -> Setup:
        """See `Job`."""
        state = self._state()
        url = "" if self.shared.is_folder else str(self.shared.place("")).rstrip("/")
        if phase.name.startswith("sort"):
            exchange = None
            if state is not None and state.exchanges:
                numbers = "" if self.shared.is_folder else self._gathering.files()[NUMBERS]
                exchange = Exchange(dealt=tuple(state.dealt), url=url, numbers=numbers)
            setup = self._plan.sort_setup(self.work, self._mark, exchange)
        else:
            exchange = self._exchange(state)
            if phase.name.startswith("duplicates"):
                exchange = Exchange(hashes=hash_files(self._encoding(), self._read), url=url)
            setup = self._plan.setup_in(self.work, self._mark, self._backend(phase), exchange)
        return msgspec.structs.replace(setup, parts=str(results))

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
            kinds = self._kinds(self._state()) if is_encoded else []
            names = [piece_path("", task_index, piece.piece).name for piece in done]
            for piece, (_, documents, _) in zip(done, counts, strict=True):
                names += [piece_path("", task_index, piece.piece, kind).name for kind in kinds if documents]
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
            return TaskResult(
                error=f"{file.name}: {sentence(failed.message)} `headrace prepare finish` names the line."
            )
        raise failed.error()

    def advance(self, phase: Phase, show: Show) -> None:
        """See `Job`: number the documents of a shuffled run once all of them are there."""
        following = self.phase() if self._plan.is_shuffled else None
        if following is None or following.name.startswith("sort") or self._read(following).open_tasks:
            return
        if not self.shared.is_folder:
            self._gathering.run(self._gathered, show)
            return
        with self._folder() as folder:
            if folder.resume() is None:
                self._local_run(folder, show).gather()

    def _gathered(self, place: Path, show: Show) -> Sequence[str]:
        """Number the documents, put what the next phase needs of it into a folder, and return the files."""
        with self._folder() as folder:
            if folder.resume() is not None:
                return ()
            atomic_write(folder.work / TOKENIZER_NAME, self._plan.tokenizer.json)
            self._local_run(folder, show).gather()
            found = [folder.work / STATE_NAME, folder.work / NUMBERS, *sorted((folder.work / ORIGINS_NAME).rglob("*"))]
            names = [path.relative_to(folder.work).as_posix() for path in found if path.is_file()]
            folder.leave_to_others()
            return moved(names, folder.work, place)

    def finish(self, show: Show) -> Manifest:
        """See `Job`: commit all pieces in their order, as the end of a local run."""
        with self._folder() as folder:
            if (manifest := folder.resume()) is None:
                if not self.shared.is_folder:
                    atomic_write(folder.work / TOKENIZER_NAME, self._plan.tokenizer.json)
                    self._fetch_gathered(folder.work)
                manifest, moves = self._local_run(folder, show).run()
                folder.commit(moves)
        return manifest

    def _folder(self) -> OutputFolder:
        return output_at(self.output, overwrite=self._plan.options.overwrite, restart=False)

    def _local_run(self, folder: OutputFolder, show: Show) -> TextRun:
        return TextRun(self._plan, folder, None, read=self._read, on_progress=show.progress, on_notice=show.notice)

    def _read(self, phase: Phase) -> Receipts:
        receipts = self.receipts(phase)
        receipts.refresh()
        return receipts

    def _encoding(self) -> list[Phase]:
        return encoding_phases(self._plan, self._orders, self._mark, self._read)

    def _exchange(self, state: RunState | None) -> Exchange | None:
        """Return what tasks exchange; None if the run was begun as a local one, which does it in order."""
        return self._plan.exchange if state is None or state.exchanges else None

    def _state(self) -> RunState | None:
        """Return the checkpoint; at a URL there is one for all when the documents are numbered."""
        if self.shared.is_folder:
            return load_state(self.work)
        if self._known is None and self._plan.is_shuffled and self._gathering.files():
            self._gathering.fetch([STATE_NAME], self.work)
            self._known = load_state(self.work)
        return self._known

    def _fetch_gathered(self, work: Path) -> None:
        """Bring what another host has numbered to the work folder of a run that has no checkpoint of its own."""
        if not (work / STATE_NAME).exists():
            names = sorted(self._gathering.files(), key=lambda name: name == STATE_NAME)  # the checkpoint comes last
            self._gathering.fetch(names, work)

    def _kinds(self, state: RunState | None) -> list[str]:
        """Return what a task of encoding writes beside each piece that has documents."""
        exchange = self._exchange(state) or Exchange()
        kinds = {HASHES: exchange.num_ranges, PARTS: exchange.num_buckets}
        return [kind for kind, number in kinds.items() if number]

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
