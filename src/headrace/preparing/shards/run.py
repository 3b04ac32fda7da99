"""`prepare_shards`: write media files and tables into tar shards, in two phases over worker processes.

`plan_shards` leaves these phases to processes on any hosts, see `job`.

`ShardRun` drives the workers; `ShardWorker` is the code in a worker, which does one task after another until its parent
closes the connection.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.job import Phase, TaskResult, receipts_of
from headrace.engine.poison import AnyTask
from headrace.engine.processes import REPORT_S, RUN_AHEAD, WorkerProcesses, run_tasks, usable_cores
from headrace.engine.receipts import Receipts
from headrace.engine.serving import (
    Done,
    Failed,
    Parent,
    Progress,
    Reply,
    attempted,
    load,
    save,
    serve,
)
from headrace.engine.shared import FetchedAhead
from headrace.errors import HeadraceError, InputError, MissingExtraError, OutputError, StoreError
from headrace.io import Storage, check_readable, check_storage, output_errors
from headrace.preparing.energon.report import tell_misfit
from headrace.preparing.ledger import NothingLeftError, check_tolerance
from headrace.preparing.output_folder import OutputFolder, mark_of, output_at
from headrace.preparing.shards.filling import Filler, done_path
from headrace.preparing.shards.finishing import (
    ORIGINS_NAME,
    SHARDS_NAME,
    Totals,
    asked_options,
    build_manifest,
    is_made,
    moves,
    shard_name,
    write_nv_meta,
)
from headrace.preparing.shards.inputs import (
    MediaPlan,
    choose_parts,
    described,
    find_media,
    plan_survey,
    planned_input,
    survey_setup,
)
from headrace.preparing.shards.messages import (
    FilledShard,
    FillTask,
    ShardOrder,
    ShardProgress,
    ShardSetup,
    ShardSurvey,
    SumTask,
    spool_path,
    survey_path,
)
from headrace.preparing.shards.options import PartSpec, ShardOptions, check_options
from headrace.preparing.shards.planning import Planned, Planner, Sums
from headrace.preparing.shards.survey import Surveyor
from headrace.preparing.sources import check_all
from headrace.stores import ErrorEntry, Manifest
from headrace.stores.energon.config_file import DATASET_NAME

MAIN = "headrace.preparing.shards.run:main"


class ShardWorker:
    """Does tasks in a worker process, and reports progress on the way."""

    def __init__(self, parent: Parent, setup: ShardSetup) -> None:
        self._parent = parent
        self._task_index = -1
        self._surveyor = Surveyor(setup.survey, lambda size, samples, parts: self._report(size, samples, parts))
        self._filler = Filler(setup, lambda size, samples: self._report(size, samples, size))

    def handle(self, order: ShardOrder) -> Reply:
        """Do one task; any error becomes a `Failed`."""
        self._task_index = order.task_index
        return attempted(order.task_index, lambda: self._run(order))

    def _run(self, order: ShardOrder) -> Reply:
        if isinstance(order, SumTask):
            result = TaskResult(value={"file": order.number, "xxh3_128": order.file.digest()})
        elif isinstance(order, FillTask):
            result = self._filler.run(order)
        else:
            result = self._surveyor.run(order)
        return Done.of(order.task_index, result)

    def _report(self, size: int, samples: int, content: int) -> None:
        self._parent.report(Progress(self._task_index, size, samples, content))


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, ShardSetup, ShardOrder, lambda parent, setup: ShardWorker(parent, setup).handle)


KIND = "shards"
SURVEYS_NAME, LISTINGS_NAME, LISTS_NAME = "surveys", "listings", "lists"
PLANNED_NAME, HASHES_NAME = "planned", "hashes"
ADVICE = (
    "Nothing was written; correct or remove it and run again with --restart, or skip bad samples with --on-error skip."
)


class ShardRun:
    """Drives the workers, collects their results, and raises their errors.

    The results of workers are on disk with their hashes, and are not made again. A run continues from these alone.
    """

    def __init__(
        self,
        folder: OutputFolder,
        plan: MediaPlan,
        *,
        storage: Storage | None = None,
        read: Callable[[Phase], Receipts] | None = None,
        on_progress: Callable[[ShardProgress], None],
        on_notice: Callable[[str], None],
    ) -> None:
        """``read`` returns the receipts of a phase, for a process that has read some before."""
        self._storage = storage
        self._read = read or self._read_receipts
        self._uploaded: Collection[int] = ()
        """Shards that other processes have sent to the place where they stay."""
        self._folder = folder
        self._work = folder.work
        self._mark = mark_of(folder.work)
        self._plan = plan
        self._inputs = plan.inputs
        self._tasks = plan.tasks
        self._options = plan.options
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._underway: dict[int, Progress] = {}
        self._workers: WorkerProcesses | None = None

    def survey(self) -> None:
        """Survey all inputs and plan the shards; the rest is for a later run."""
        with self._kept(), ExitStack() as stack:
            self._planned(stack)
        self._folder.keep()

    def run(self) -> tuple[Manifest, dict[str, str]]:
        """Do the whole run; returns the manifest, and the files to move into place (see `OutputFolder.commit`)."""
        with self._kept():
            with ExitStack() as stack:
                planned = self._planned(stack)
                totals = self._fill(planned, stack)
            self._check_unchanged()
            names = [shard_name(shard) for shard in range(planned.plan.num_shards)]
            filled = (self._filled(shard) for shard in range(planned.plan.num_shards))
            write_nv_meta(self._work / SHARDS_NAME, names, filled, planned.plan, self._options.output)
            if self._options.output.field_map:
                tell_misfit(self._work / SHARDS_NAME, DATASET_NAME, names, self._on_notice)
            manifest = build_manifest(self._work, self._inputs, self._options, self._plan.asked, planned, totals)
        self._folder.keep()
        return manifest, moves(manifest)

    def _kept(self) -> AbstractContextManager[None]:
        return self._folder.kept_on_error(self._is_worth_keeping, self._on_notice)

    def _planned(self, stack: ExitStack) -> Planned:
        with output_errors(self._work, "create folders in"):
            for name in (SURVEYS_NAME, SHARDS_NAME):
                (self._work / name).mkdir(exist_ok=True)
        planned = load(self._work / PLANNED_NAME, Planned) or self._survey(stack)
        self._check_errors(planned.errors, planned.documents.read)
        return planned

    def _read_receipts(self, phase: Phase) -> Receipts:
        receipts = receipts_of(self._work, phase)
        receipts.refresh()
        return receipts

    def _adopt(self, phase: Phase, name: str) -> Receipts:
        """Move the files of tasks that other processes did into a folder of this run; return their receipts.

        Files at a URL stay there; those that are needed here are fetched one after another, see `_fetched`.
        """
        receipts = self._read(phase)
        receipts.adopt(self._work / name)
        return receipts

    @staticmethod
    def _away(receipts: Receipts) -> Collection[int]:
        """The tasks whose files are at a URL."""
        return () if receipts.shared.is_folder else receipts.done.keys()

    def _fetched(self, receipts: Receipts, place: Callable[[int], Path]) -> AbstractContextManager[FetchedAhead]:
        """Fetch a file of each task whose files are at a URL to its place on this host, in their order."""
        away = [receipts.done[task_index] for task_index in sorted(self._away(receipts))]
        wanted = {place(one.task_index): one for one in away if one.files}
        return closing(
            FetchedAhead(receipts.shared, {path: receipts.away(one, path.name) for path, one in wanted.items()})
        )

    def _survey(self, stack: ExitStack) -> Planned:
        surveys = self._work / SURVEYS_NAME
        sums = Sums(self._inputs)
        hashes: dict[int, str] = load(self._work / HASHES_NAME, dict[int, str]) or {}
        receipts = self._adopt(self._plan.surveying(self._mark), SURVEYS_NAME)
        away = self._away(receipts)
        for receipt in receipts.done.values():
            if receipt.value is not None:
                hashes[receipt.value["file"]] = receipt.value["xxh3_128"]
        ready = [
            Done(order.task_index, 0, True)
            for order in self._tasks.orders
            if order.task_index in away or self._survey_of(order.task_index)
        ]
        if ready:
            self._on_notice(
                f"continuing the unfinished run in this folder: {len(ready):,} tasks of its survey are done"
            )
        orders: list[AnyTask] = [order for order in self._tasks.sums if order.number not in hashes]
        orders += self._tasks.orders
        total_bytes = self._tasks.total_bytes

        def report(progress: Progress | None) -> None:
            own = self._own(progress, len_done)
            self._on_progress(
                ShardProgress(
                    phase="survey",
                    done_bytes=min(sums.input_bytes + sum(task.input_bytes for task in own), total_bytes),
                    total_bytes=total_bytes,
                    samples=len(sums.gathered) + sum(task.documents for task in own),
                )
            )

        len_done = 0
        with self._fetched(receipts, lambda task_index: survey_path(surveys, task_index)) as fetched:
            for result in self._results(stack, orders, ready, report):
                if result.task_index < 0:
                    found = result.read(TaskResult).value
                    hashes[found["file"]] = found["xxh3_128"]
                    save(self._work / HASHES_NAME, hashes)
                    continue
                path = survey_path(surveys, result.task_index)
                fetched.wait(path)
                survey = self._survey_of(result.task_index, is_away=result.task_index in away)
                if survey is None:
                    raise OutputError(f"{path}: cannot be read back; run the same command again")
                len_done = result.task_index + 1
                sums.add(result.task_index, survey)
                self._check_errors(sums.errors)
                if result.task_index in away:
                    report(None)
        sums.check_whole()
        self._check_unchanged()
        sums.hashes.update(hashes)
        self._check_errors(sums.errors, len(sums.gathered))
        planner = Planner(self._inputs, self._options, surveys, len(self._tasks.orders), lambda: report(None))
        planned = planner.run(sums, self._work / LISTS_NAME, self._work / ORIGINS_NAME)
        save(self._work / PLANNED_NAME, planned, sync=True)
        return planned

    def _survey_of(self, task_index: int, *, is_away: bool = False) -> ShardSurvey | None:
        """Load the survey of a task; None unless it and its spool, if that is not away, are complete."""
        surveys = self._work / SURVEYS_NAME
        survey = load(survey_path(surveys, task_index), ShardSurvey)
        if survey is not None and survey.spool_bytes and not is_away:
            spool = spool_path(surveys, task_index)
            if not spool.exists() or spool.stat().st_size != survey.spool_bytes:
                return None
        return survey

    def _fill(self, planned: Planned, stack: ExitStack) -> Totals:
        bounds = planned.plan.bounds
        receipts = self._adopt(planned.writing(self._mark), SHARDS_NAME)
        self._uploaded = self._away(receipts)
        ready = [
            Done(shard, 0, True)
            for shard in range(len(bounds) - 1)
            if shard in self._uploaded or self._filled_or_none(shard)
        ]
        if ready:
            self._on_notice(f"continuing the unfinished run in this folder: {len(ready):,} shards are done")
        orders = fill_tasks(planned)
        totals = Totals()
        written = 0

        def report(progress: Progress | None) -> None:
            own = self._own(progress, len(totals.outputs))
            self._on_progress(
                ShardProgress(
                    phase="write",
                    done_bytes=written + sum(task.input_bytes for task in own),
                    total_bytes=planned.contents.kept,
                    samples=bounds[len(totals.outputs)] + sum(task.documents for task in own),
                )
            )

        self._underway.clear()
        with self._fetched(receipts, lambda shard: done_path(self._work / SHARDS_NAME, shard)) as fetched:
            for result in self._results(stack, orders, ready, report):
                if result.task_index >= 0:
                    fetched.wait(done_path(self._work / SHARDS_NAME, result.task_index))
                    shard = self._filled(result.task_index)
                    totals.add(shard)
                    written += sum(shard.part_bytes.values())
                    if result.task_index in self._uploaded:
                        report(None)
        return totals

    def _filled(self, shard: int) -> FilledShard:
        filled = self._filled_or_none(shard)
        if filled is None:
            raise OutputError(
                f"{self._work / SHARDS_NAME / shard_name(shard)}: is incomplete; run the same command again"
            )
        return filled

    def _filled_or_none(self, shard: int) -> FilledShard | None:
        filled = load(done_path(self._work / SHARDS_NAME, shard), FilledShard)
        if filled is None or shard in self._uploaded:
            return filled
        for file in filled.files:
            path = self._work / SHARDS_NAME / file.name
            if not path.exists() or path.stat().st_size != file.size:
                return None
        return filled

    def _own(self, progress: Progress | None, num_done: int) -> list[Progress]:
        """Record progress, and return that of all unfinished tasks."""
        if progress is not None:
            self._underway[progress.task_index] = progress
        return [task for task_index, task in self._underway.items() if task_index >= num_done]

    def _results(
        self,
        stack: ExitStack,
        orders: Sequence[AnyTask],
        ready: Sequence[Done],
        report: Callable[[Progress | None], None],
    ) -> Iterator[Done]:
        """Yield the results in order. The workers of the phase before are used again if there are enough of them."""
        if len(orders) == len(ready):
            yield from ready
            return
        wanted = min(self._options.workers or usable_cores(), len(orders) - len(ready))
        if self._workers is None or len(self._workers) < wanted:
            stack.close()
            setup = setup_of(self._work.absolute(), self._plan, self._storage)
            self._workers = stack.enter_context(WorkerProcesses(wanted, setup, MAIN))
        for result in run_tasks(
            self._workers,
            orders,
            first_task=0,
            ready=ready,
            run_ahead=RUN_AHEAD,
            on_progress=report,
            interval_s=REPORT_S,
        ):
            if isinstance(result, Failed):
                raise result.error()
            yield result

    def _check_errors(self, errors: Sequence[ErrorEntry], num_read: int | None = None) -> None:
        check_tolerance(errors, self._options.errors, noun="samples", advice=ADVICE, num_read=num_read)

    def _check_unchanged(self) -> None:
        check_all([file for given in self._inputs for file in (given.table, given.captions) if file is not None])

    def _is_worth_keeping(self, error: BaseException) -> bool:
        """Whether the same command could continue: not after a defect, or if inputs have changed or hold no samples."""
        if isinstance(error, NothingLeftError) or type(error) is HeadraceError:
            return False
        if not any((self._work / SURVEYS_NAME).glob("*.survey")):
            return False
        try:
            self._check_unchanged()
        except InputError:
            return False
        except StoreError:  # if the store is away, the same command may continue later
            return True
        return True


def fill_tasks(planned: Planned) -> list[FillTask]:
    """Return the tasks of the second phase."""
    return [FillTask(shard, shard_name(shard)) for shard in range(planned.plan.num_shards)]


def setup_of(work: Path, plan: MediaPlan, storage: Storage | None = None) -> ShardSetup:
    """Return the first message to the workers of a local run in a work folder, which has an absolute path.

    Args:
        work: the work folder.
        plan: the run.
        storage: how the stores of roots at URLs are reached; None goes by the environment.
    """
    listings, surveys = str(work / LISTINGS_NAME), str(work / SURVEYS_NAME)
    return ShardSetup(
        parent=os.getpid(),
        survey=survey_setup(plan.inputs, plan.parts, plan.options.source, storage, listings=listings, folder=surveys),
        lists=str(work / LISTS_NAME),
        shards=str(work / SHARDS_NAME),
    )


def deciding(
    inputs: Sequence[dict[str, Any]], parts: Sequence[tuple[PartSpec, ...]], options: ShardOptions
) -> dict[str, Any]:
    """Return what decides the bytes of a run, as JSON. The options for errors are left out: they change no sample."""
    return {
        "kind": "shards",
        "format": 1,
        "inputs": list(inputs),
        "parts": [[str(spec) for spec in specs] for specs in parts],
        "source": msgspec.to_builtins(options.source),
        "output": msgspec.to_builtins(options.output),
    }


def prepare_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    storage: Storage | None = None,
    on_progress: Callable[[ShardProgress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest:
    """Write media files, or the rows of tables, into a folder of tar shards that `headrace.open` and Energon can open.

    The bytes depend only on inputs and options, never on the number of workers. Everything appears at the end at once,
    or nothing does. If a run ends early for any reason, the same call continues it. Values of columns are written twice
    on the way; files are read once. Memory is 41 bytes per sample, plus the names of a folder's files, and for objects
    up to 64 MiB for each worker.

    Args:
        inputs: folders of files, and tables: CSV, TSV, JSON Lines, Parquet, Arrow; see `inputs.find_media`. They, and
            the root and the captions of the options, may be URLs.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, to which the shards are
            uploaded when all of them are complete on this host.
        options: all options; None uses their defaults.
        storage: how the stores of URLs, of inputs and output, are reached; None goes by the environment.
        on_progress: called a few times a second.
        on_notice: called with messages that a user should see, such as which column became which part, or that a run
            is continued.

    Returns:
        The manifest of the output.

    Raises:
        ConfigError: inputs or options are invalid.
        InputError: a sample or file is bad; the message names file and row.
        OutputError: the folder is not empty, or a file cannot be written.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: an input needs a package that is not installed.
    """
    options = options or ShardOptions()
    check_storage(storage, list(inputs), output, options.source.root, options.source.captions)
    notice = on_notice or (lambda message: None)
    check_ready(options)
    overwrite, restart = options.overwrite, options.restart
    with output_at(output, overwrite=overwrite, restart=restart, storage=storage) as folder:
        folder.refuse_planned()
        plan = _begun(inputs, folder, options, notice, storage)
        if plan is None:
            return folder.load()
        show = on_progress or (lambda progress: None)
        run = ShardRun(folder, plan, storage=storage, on_progress=show, on_notice=notice)
        manifest, moves = run.run()
        folder.commit(moves)
        return manifest


def plan_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> None:
    """Plan a run of `prepare_shards` in its output folder, for processes on any hosts to do its tasks, see `open_job`.

    The output is the same, byte for byte. If the run is planned or complete already, this does nothing.

    Args:
        inputs: see `prepare_shards`; they must have the same paths on all hosts, which reach URLs by what their
            environment says.
        output: a folder that all hosts can write to, by the same path; or a URL, where they share nothing else.
        options: see `prepare_shards`.
        on_notice: see `prepare_shards`.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_shards`.

    Example:
        >>> headrace.preparing.plan_shards(["images"], "shared-shards")
        >>> headrace.preparing.open_job("shared-shards").phase().name.partition("-")[0]
        'survey'
    """
    options = options or ShardOptions()
    check_readable(list(inputs), output, options.source.root, options.source.captions)
    check_ready(options)
    with output_at(output, overwrite=options.overwrite, restart=options.restart) as folder:
        plan = _begun(inputs, folder, options, on_notice or (lambda message: None))
        if plan is not None:
            listings = sorted((folder.work / LISTINGS_NAME).glob("*"))
            folder.save_plan(KIND, plan, {}, files={}, made=[f"{LISTINGS_NAME}/{path.name}" for path in listings])


def _begun(
    inputs: Sequence[str | os.PathLike[str]],
    folder: OutputFolder,
    options: ShardOptions,
    notice: Callable[[str], None],
    storage: Storage | None = None,
) -> MediaPlan | None:
    """Begin or continue a run in a folder that was claimed; return its plan, or None if its output is complete."""
    found = find_media(inputs, options.source, notice, storage)
    parts = [choose_parts(given, options.source, storage) for given in found]
    if not options.source.parts:
        for given, specs in zip(found, parts, strict=True):
            if specs:
                notice(f"{given.name}: {', '.join(map(str, specs))}")
    described_run = deciding([described(given) for given in found], parts, options)
    is_same = partial(is_made, inputs=found, parts=parts, options=options, storage=storage)
    if complete := folder.begin(described_run, is_made=is_same):
        notice(complete)
        return None
    tasks = plan_survey(found, options, Path(folder.work) / LISTINGS_NAME, notice)
    return MediaPlan(
        inputs=tuple(map(planned_input, found)),
        parts=tuple(parts),
        options=options,
        asked=asked_options(parts, options),
        tasks=tasks,
    )


def check_ready(options: ShardOptions) -> None:
    """Refuse invalid options, and those that need a package that is not installed.

    Raises:
        ConfigError: see `check_options`.
        MissingExtraError: images are to be verified, and Pillow is not installed.
    """
    check_options(options)
    if options.source.verify and importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("--verify needs Pillow for images: pip install 'headrace[image]'")
