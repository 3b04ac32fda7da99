"""Runs a plan in its work folder: begins or continues the run, drives the workers, and commits the output.

Runs over text and runs of a recipe share this code once their plan is made. This is also what a planned run does in
order: there the pieces of all tasks lie on disk already.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.engine.job import PHASE_PREFIX, Phase, receipts_of
from headrace.engine.processes import REPORT_S, RUN_AHEAD, WorkerProcesses, run_tasks, usable_cores
from headrace.engine.receipts import Receipts
from headrace.engine.serving import Done, Failed, Progress
from headrace.engine.shared import FetchedAhead
from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import HeadraceError, InputError, OutputError, WorkerError, sentence
from headrace.io import atomic_write, file_sum, output_errors, path_at, reader_of
from headrace.preparing import worker
from headrace.preparing.backends import ProvedEncoder
from headrace.preparing.committer import Committer
from headrace.preparing.duplicates import FoundDuplicates, duplicates_path
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.finishing import build_manifest, described_options, finished_outputs, name_outputs
from headrace.preparing.ledger import ADVICE, LedgerState, NothingLeftError, check_left, check_tolerance
from headrace.preparing.messages import Order, Setup, TextTask
from headrace.preparing.output_folder import (
    STATE_NAME,
    TASK_NAME,
    OutputFolder,
    RunState,
    load_state,
    mark_of,
    save_state,
)
from headrace.preparing.piece import HASHES, PIECE, piece_path, read_piece
from headrace.preparing.run_plan import RunPlan, TextProgress, encoding, finding
from headrace.preparing.sources import SourceFile, check_all
from headrace.preparing.sources.borders import with_borders
from headrace.preparing.tally import Tally
from headrace.stores import Manifest

REFERENCE = "tokenizers"
_ADVICE_OF_WORKERS = (
    "Nothing was written; run the same command again, with fewer --workers or more memory, or leave such records out "
    "with --on-error skip."
)


class _FallBackError(Exception):
    """The fast tokeniser differs from the reference tokeniser, which has to encode from the next task on."""


ReadReceipts = Callable[[Phase], Receipts]
"""Returns the receipts of a phase, as they are now."""


def encoding_phases(plan: RunPlan, orders: Sequence[Order], mark: str, read: ReadReceipts) -> list[Phase]:
    """The phases of encoding, of which the second begins at the first task in which the fast library proved wrong.

    It hashes no files again. As long as the first phase is not over, it is the only one.
    """
    first = encoding(mark, plan.choice.name, len(orders), total_bytes=plan.total_bytes)
    receipts = read(first)
    wrong = [index for index, receipt in receipts.done.items() if (receipt.value or {}).get("mismatch")]
    if receipts.open_tasks or not wrong:
        return [first]
    num_texts = sum(isinstance(order, TextTask) for order in orders)
    second = encoding(mark, REFERENCE, num_texts, first_task=min(wrong), total_bytes=plan.total_bytes)
    return [first, second]


def hash_files(phases: Sequence[Phase], read: ReadReceipts) -> tuple[str, ...]:
    """The files of the hashes of all pieces, relative to the work folder, once all tasks have encoded."""
    found: list[str] = []
    ends = [*(phase.first_task for phase in phases[1:]), phases[-1].num_tasks]
    for phase, end in zip(phases, ends, strict=True):
        receipts = read(phase)
        for task_index in range(phase.first_task, end):
            receipt = receipts.done[task_index]
            folder = f"{receipts.name}/{receipt.attempt}"
            found += [f"{folder}/{name}" for name in receipt.files if name.endswith(f".{HASHES}")]
    return tuple(found)


class _Adopted(NamedTuple):
    """The pieces that the task of another process has written."""

    num_pieces: int
    is_away: bool
    """Whether they are fetched from a URL; otherwise they lie on this host."""


class TextRun:
    """Drives the workers, commits the pieces that they write, and turns failures into errors that users understand."""

    def __init__(
        self,
        plan: RunPlan,
        folder: OutputFolder,
        encoder: ProvedEncoder | None,
        *,
        read: ReadReceipts | None = None,
        on_progress: Callable[[TextProgress], None],
        on_notice: Callable[[str], None],
    ) -> None:
        """``read`` is for a process that has read receipts before: it keeps what it has seen."""
        self._plan = plan
        self._folder = folder
        self._work = folder.work
        # A worker may outlive a killed parent for a moment, and still write a piece. In the same run it is the same
        # piece; the pieces of other runs and backends lie in other folders.
        self._mark = mark_of(folder.work)
        self._read = read or self._read_receipts
        self._is_planned = read is not None
        self._fetched: FetchedAhead | None = None
        self._serve = functools.partial(worker.main, proved=encoder)
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._num_workers = plan.options.workers or usable_cores()
        self._total_bytes = plan.total_bytes
        self._underway: dict[int, Progress] = {}

        state = load_state(self._work)
        if state is None:
            count = len(self._plan.files)
            ledger = LedgerState(reached=[0] * count, lines=[0] * count, hashes=[""] * count)
            state = RunState(ledger=ledger, is_planned=self._is_planned or (self._work / PLAN_NAME).exists())
        else:
            self._on_notice(_continued(state))
        self._take_from(state)

    def run(self) -> tuple[Manifest, dict[str, str]]:
        """Do the whole run. Returns the manifest, and the moves for `OutputFolder.commit`."""
        with self._kept():
            self._encode_all()
            self._check_inputs()
            # A run that is killed after this point continues from this point.
            self._on_progress(
                TextProgress(phase="finish", documents=self._tally.documents.kept, tokens=self._tally.tokens.kept)
            )
            self._committer.checkpoint()
            shards = self._committer.output.finish()
            self._committer.add_order()
            origins = self._committer.origins.finish()
            outputs, moves = name_outputs(self._plan, shards, self._state.domains, origins, self._work)
            supervised = self._committer.output.supervised
            manifest = build_manifest(self._plan, self._state, self._ledger, outputs, origins, self._work, supervised)
        self._folder.keep()
        return manifest, moves

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """On an error, keep what is done if the same command could continue."""
        try:
            with self._folder.kept_on_error(self._is_worth_keeping, self._on_notice):
                yield
        except BaseException:
            self._committer.suspend()
            raise
        finally:
            self._stop_fetching()

    def _encode_all(self) -> None:
        try:
            self._encode()
        except _FallBackError as error:
            self._fall_back(str(error))
            self._encode()

    def _take_from(self, state: RunState) -> None:
        self._state = state
        send = None if self._folder.send is None else self._send
        self._committer = Committer(self._plan, self._work, state, self._found_duplicates(), on_checkpoint=send)
        self._ledger = self._committer.ledger

    def _send(self) -> None:
        """Send the shards away that are complete according to the checkpoint.

        A task whose library proves wrong is undone from its beginning on, so until its end its shards stay.
        """
        may_be_undone = (
            self._state.cursor.piece > 0 and not self._state.fallback and self._plan.choice.name != REFERENCE
        )
        if self._folder.send is not None and not may_be_undone:
            series = self._committer.output.take_finished()
            self._folder.send(finished_outputs(self._plan, series, self._state.domains, self._work))

    def _read_receipts(self, phase: Phase) -> Receipts:
        receipts = receipts_of(self._work, phase)
        receipts.refresh()
        return receipts

    def _found_duplicates(self) -> FoundDuplicates | None:
        """The duplicates that the tasks of a planned run have found; None if this process is to find them itself.

        That is so in local runs, and where a task failed, so that the tasks which find duplicates were not begun.

        Raises:
            OutputError: they were all found before, but this host does not show them.
        """
        state, num_ranges = self._state, self._plan.num_ranges
        if not (state.is_planned and num_ranges):
            return None
        orders = self._plan.all_orders()
        receipts = self._read(finding(self._mark, num_ranges))
        phases = encoding_phases(self._plan, orders, self._mark, self._read)
        if receipts.open_tasks or any(self._read(phase).open_tasks for phase in phases):
            if state.is_found:
                raise OutputError(
                    f"{receipts.folder}: results of other hosts cannot be seen yet: run the command again"
                )
            return None
        names = (receipts.away(receipts.done[number], duplicates_path("", number).name) for number in range(num_ranges))
        ranges = [receipts.shared.place(name) for name in names]
        return FoundDuplicates(ranges, hash_files(phases, self._read))

    @property
    def _tally(self) -> Tally:
        return self._ledger.tally

    def _is_worth_keeping(self, error: BaseException) -> bool:
        """Whether the same command could continue: not after a defect, nor if the inputs have changed or are empty."""
        if isinstance(error, NothingLeftError) or type(error) is HeadraceError:
            return False
        if not (self._work / STATE_NAME).exists() and not self._state.task_index:
            return False
        try:
            self._check_unchanged()
        except InputError:
            return False
        return True

    def _encode(self) -> None:
        backend = REFERENCE if self._state.fallback else self._plan.choice.name
        setup = self._plan.setup_in(self._work, self._mark, backend)
        state = self._state
        adopted: Mapping[int, _Adopted] = {}
        if self._is_planned or any(self._work.glob(f"{PHASE_PREFIX}*")):
            adopted = self._adopt(encoding(self._mark, backend, len(self._plan.all_orders())), Path(setup.parts))
        with output_errors(Path(setup.parts), "create"):
            Path(setup.parts).mkdir(exist_ok=True)
            # Pieces that were encoded by a library which proved wrong.
            for folder in self._work.glob("parts.*"):
                if folder.name != Path(setup.parts).name:
                    shutil.rmtree(folder, ignore_errors=True)
        orders = self._plan.orders(first_task=state.task_index, start=state.cursor, hashed=self._ledger.state.hashes)
        for result in self._results(setup, orders, Path(setup.parts), adopted):
            if result.task_index < 0:
                number, digest = result.read(tuple[int, str])
                self._ledger.state.hashes[number] = digest
                continue
            if backend != REFERENCE and result.piece == 0 and not result.is_last:
                self._committer.checkpoint()
                save_state(self._work, state, TASK_NAME)
            path = piece_path(setup.parts, result.task_index, result.piece)
            if self._fetched is not None:
                self._fetched.wait(path)
            self._committer.take(read_piece(path), path)
            if result.is_last:
                self._underway.pop(result.task_index, None)
            self._check_errors()

    def _adopt(self, phase: Phase, folder: Path) -> dict[int, _Adopted]:
        """Move the pieces of tasks that other processes did into a folder of this run.

        What they wrote beside the pieces stays where it is.

        Returns:
            What each of these tasks has written. It was synced before the receipt was created, so nobody has to look
            at what is in it.
        """
        receipts = self._read(phase)
        receipts.adopt(folder, f".{PIECE}")
        for receipt in receipts.done.values():
            if hashed := (receipt.value or {}).get("xxh3_128"):
                self._ledger.state.hashes[receipt.value["file"]] = hashed
        is_here = receipts.shared.is_folder
        adopted = {}
        wanted: dict[Path, str] = {}
        for receipt in sorted(receipts.done.values(), key=lambda receipt: receipt.task_index):
            pieces = [name for name in receipt.files if name.endswith(f".{PIECE}")]
            if pieces:
                adopted[receipt.task_index] = _Adopted(len(pieces), not is_here)
            if receipt.task_index >= self._state.task_index and not is_here:
                wanted |= {folder / name: receipts.away(receipt, name) for name in pieces}
        self._stop_fetching()
        if wanted:
            self._fetched = FetchedAhead(receipts.shared, wanted)
        return adopted

    def _stop_fetching(self) -> None:
        if self._fetched is not None:
            self._fetched.close()
            self._fetched = None

    def _results(
        self, setup: Setup, orders: list[Order], folder: Path, adopted: Mapping[int, _Adopted]
    ) -> Iterator[Done]:
        ready = list(self._ready(folder, adopted))
        done = {piece.task_index for piece in ready}
        left = [order for order in orders if order.task_index not in done]
        if not left:
            for piece in ready:
                yield piece
                self._report(None)
            return
        num_tasks = len([order for order in left if order.task_index >= 0])
        with WorkerProcesses(max(min(self._num_workers, num_tasks), 1), setup, worker.MAIN, self._serve) as workers:
            for result in run_tasks(
                workers,
                orders,
                first_task=self._state.task_index,
                ready=ready,
                run_ahead=RUN_AHEAD,
                on_progress=self._report,
                interval_s=REPORT_S,
            ):
                if isinstance(result, Failed):
                    raise self._error(result)
                yield result

    def _ready(self, folder: Path, adopted: Mapping[int, _Adopted]) -> Iterator[Done]:
        """The pieces that a killed run or other processes left, of those tasks whose pieces are all there.

        The others are removed.
        """
        found: dict[int, dict[int, Path]] = {}
        if folder.is_dir():
            for path in folder.glob("[0-9]*.piece"):
                task_index, piece = (int(part) for part in path.name.split(".")[:2])
                if task_index in adopted and adopted[task_index].is_away:
                    path.unlink()  # it is fetched again
                    continue
                found.setdefault(task_index, {})[piece] = path
        for task_index, one in adopted.items():
            if one.is_away:
                found[task_index] = {piece: piece_path(folder, task_index, piece) for piece in range(one.num_pieces)}
        for task_index, pieces in sorted(found.items()):
            first = self._state.cursor.piece if task_index == self._state.task_index else 0
            numbers = [number for number in sorted(pieces) if number >= first]
            if task_index in adopted:
                is_whole = numbers == list(range(first, adopted[task_index].num_pieces))
            else:
                is_whole = self._is_whole(pieces, first, numbers)
            if task_index < self._state.task_index or not is_whole:
                for path in pieces.values():
                    path.unlink(missing_ok=True)
                continue
            for number in pieces.keys() - set(numbers):
                pieces[number].unlink(missing_ok=True)
            for number in numbers:
                yield Done(task_index, number, number == numbers[-1])

    @staticmethod
    def _is_whole(pieces: dict[int, Path], first: int, numbers: list[int]) -> bool:
        if numbers != list(range(first, first + len(numbers))) or not numbers:
            return False
        try:
            infos = [read_piece(pieces[number]).info for number in numbers]
        except OutputError:
            return False  # half written when the power failed
        return [info.is_last for info in infos] == [False] * (len(infos) - 1) + [True]

    def _fall_back(self, message: str) -> None:
        self._committer.checkpoint()
        state = self._state
        if state.cursor.piece:
            # The pieces of this task that were committed already are undone.
            found = load_state(self._work, TASK_NAME)
            if found is None or found.task_index != state.task_index:
                raise HeadraceError(f"there is no checkpoint of task {state.task_index}. Please report this defect.")
            found.ledger.hashes = state.ledger.hashes
            state = found
        state.fallback = f"task {state.task_index}: {message}"
        save_state(self._work, state)
        self._committer.suspend()
        self._take_from(state)
        self._underway.clear()
        self._on_notice(
            f"{self._plan.choice.name} differs from {REFERENCE} on this text, so {REFERENCE} encodes everything that "
            f"is not proved yet: {message}"
        )

    def _error(self, failed: Failed) -> Exception:
        if failed.kind == worker.MISMATCH:
            return _FallBackError(failed.message)
        if failed.kind not in (worker.BAD_LINE, worker.ENDED_WORKER):
            return failed.error()
        place = self._plan.place(failed.file, self._ledger.state.lines[failed.file] + failed.line - 1)
        advice = ADVICE if self._plan.options.errors.on_error == "stop" else "Nothing was written."
        told = f"{self._plan.files[failed.file].name}, {place}: {sentence(failed.message)}"
        if failed.kind == worker.ENDED_WORKER:
            return WorkerError(f"{told} {_ADVICE_OF_WORKERS}")
        return InputError(f"{told} {advice}")

    def _check_errors(self, num_read: int | None = None) -> None:
        errors = self._ledger.state.errors
        check_tolerance(errors, self._plan.options.errors, noun="records", advice=ADVICE, num_read=num_read)

    def _check_unchanged(self) -> None:
        check_all(self._plan.files)

    def _check_inputs(self) -> None:
        self._check_unchanged()
        self._check_errors(self._tally.lines - self._tally.documents.blank_lines)
        check_left(self._plan, self._tally, self._ledger.state.errors)

    def _report(self, progress: Progress | None) -> None:
        tally = self._tally
        if progress is not None:
            self._underway[progress.task_index] = progress
        underway = [task for task_index, task in self._underway.items() if task_index >= self._state.task_index]
        self._on_progress(
            TextProgress(
                input_bytes=min(tally.input_bytes + sum(task.input_bytes for task in underway), self._total_bytes),
                total_bytes=self._total_bytes,
                documents=tally.documents.kept + sum(task.documents for task in underway),
                tokens=tally.tokens.kept + sum(task.tokens for task in underway),
            )
        )


def _continued(state: RunState) -> str:
    return f"continuing the unfinished run in this folder: {state.ledger.tally.documents.kept:,} documents are done"


RUN_FORMAT = 7
"""Increase this if a change makes the same run write other bytes, or changes the layout of the work folder."""


def run_in(
    folder: OutputFolder,
    plan: RunPlan,
    *,
    encoder: ProvedEncoder | None,
    deciding: Mapping[str, Any],
    on_progress: Callable[[TextProgress], None],
    on_notice: Callable[[str], None],
) -> Manifest:
    """Run a plan in a folder that was claimed, from the beginning or from where an earlier run was interrupted.

    Args:
        folder: the output folder, which is entered.
        plan: the plan.
        encoder: the encoder that this process has loaded, which workers inherit if they are forks of it.
        deciding: the options that decide the bytes of the output, as JSON.
        on_progress: see `prepare_text`.
        on_notice: see `prepare_text`.

    Raises:
        HeadraceError: see `prepare_text`.
    """
    folder.refuse_planned()
    if complete := begin_run(folder, plan, deciding):
        on_notice(complete)
        return folder.load()
    plan = cut(plan)
    atomic_write(folder.work / "tokenizer.json", plan.tokenizer.json)
    run_of_plan = TextRun(plan, folder, encoder, on_progress=on_progress, on_notice=on_notice)
    manifest, moves = run_of_plan.run()
    folder.commit(moves)
    return manifest


def begin_run(folder: OutputFolder, plan: RunPlan, deciding: Mapping[str, Any]) -> str:
    """Begin or continue a run in a folder that was claimed, see `OutputFolder.begin`."""
    function = plan.options.filters.function
    run = {
        "format": RUN_FORMAT,
        "inputs": [_described(file) for file in plan.files],
        "tokenizer": plan.tokenizer.fingerprint,
        "backend": f"{plan.choice.name} {plan.choice.version}",
        "task_bytes": plan.task_bytes,
        "filter": function_fingerprint(function) if function else "",
        **deciding,
    }
    return folder.begin(run, is_made=lambda manifest: is_made(plan, manifest))


def cut(plan: RunPlan) -> RunPlan:
    """Return the plan with the borders at which its large compressed files are cut.

    Raises:
        InputError: a file cannot be read, or has changed.
    """
    files = with_borders(
        plan.files,
        task_bytes=plan.task_bytes,
        sample_by=plan.options.records.sample_by,
    )
    return msgspec.structs.replace(plan, files=files)


def is_made(plan: RunPlan, manifest: Manifest) -> bool:
    """Whether a plan would write what this manifest lists. If all else is equal, this reads the inputs to hash them."""
    tokenizer, backend = manifest.tokenizer, manifest.backend
    if tokenizer is None or backend is None or manifest.options != described_options(plan):
        return False
    if (tokenizer.xxh3_128, tokenizer.eod, tokenizer.bos) != (plan.tokenizer.fingerprint, plan.eod, plan.bos):
        return False
    if (backend.name, backend.version) != (plan.choice.name, plan.choice.version):
        return False
    known = [(file.path, file.format, file.size) for file in manifest.inputs]
    if known != [(file.name, file.format, file.size_bytes) for file in plan.files]:
        return False
    return all(
        file.fault or file_sum(path_at(file.path, reader_of(file.storage))).xxh3_128 == entry.xxh3_128
        for file, entry in zip(plan.files, manifest.inputs, strict=True)
    )


def _described(file: SourceFile) -> dict[str, Any]:
    if file.name == "-":
        return {"name": "-", "size": file.size_bytes, "xxh3_128": file_sum(file.path).xxh3_128}
    if file.etag:
        return {"name": file.name, "size": file.size_bytes, "etag": file.etag}
    return {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
