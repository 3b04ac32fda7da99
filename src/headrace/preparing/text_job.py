"""Runs over text and of recipes as a `Job`, whose tasks any process on any host may do.

    encode       the tasks of the inputs, each of which writes a part, and the hashes of files that no task reads whole
    duplicates   if they are left out: one range of hashes of texts a task
    cut          which documents make up which shard
    join         the shards, one a task

If a fast library proves wrong in a task, a second phase of encoding begins at the first such task, with the reference
tokeniser. A part is removed once all shards are there that have documents of it.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.engine.job import PHASE_PREFIX, Do, Job, Phase, Show, TaskResult, Tell
from headrace.engine.planning import load_plan
from headrace.engine.receipts import Receipt, Receipts
from headrace.engine.serving import Failed
from headrace.engine.shared import Shared
from headrace.engine.work_folder import PLAN_NAME, RUN_NAME
from headrace.errors import ConfigError, InputError, WorkerError
from headrace.io import AnyPath, Reader, Storage, output_errors, path_at, read_small, reader, reader_at
from headrace.io.finding import each, storage_for
from headrace.preparing import worker
from headrace.preparing.backends import REFERENCE, ProvedEncoder
from headrace.preparing.columns import IntArray
from headrace.preparing.cutting import CUT_NAME, CutResult, PlacedPart, cut, order_name
from headrace.preparing.duplicates import FoundDuplicates, duplicates_path
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.finishing import Joined, build_manifest
from headrace.preparing.ledger import BAD_RECORDS, advice, check_tolerance, described, error_entry
from headrace.preparing.outputs.folder import mark_of, output_at
from headrace.preparing.parts import DocumentPart, hashes_name, part_name, read_saved
from headrace.preparing.run_plan import (
    FindTask,
    JoinTask,
    Order,
    RunPlan,
    Setup,
    TextTask,
    encoding,
)
from headrace.preparing.sources import check_all, open_span
from headrace.stores import PROVENANCE_NAME, ErrorEntry, Manifest

KIND: Final = "text"
TOKENIZER_NAME: Final = "tokenizer.json"
_AT_ONCE: Final = 64
"""Parts that are in memory while the shards are cut."""

_ADVICE_OF_WORKERS: Final = (
    "Nothing was written; run the same command again, with fewer --workers or more memory, or leave such records out "
    "with --on-error skip."
)


class CutTask(msgspec.Struct, frozen=True):
    """The task that cuts the shards."""

    task_index: int = 0

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return "the borders of the shards"


class TextJob(Job):
    """See the module.

    Args:
        output: the output.
        shared: what the processes of the job share.
        plan: its plan, as JSON.
        storage: how the stores of URLs are reached; None goes by the environment.
        encoder: the encoder that this process has loaded, which workers inherit if they are forks of it.
    """

    kind = KIND
    main = worker.MAIN

    def __init__(
        self,
        output: AnyPath,
        shared: Shared,
        plan: msgspec.Raw,
        storage: Storage | None = None,
        encoder: ProvedEncoder | None = None,
    ) -> None:
        super().__init__(output, shared)
        found = msgspec.json.decode(plan, type=RunPlan)
        with output_errors(self.work, "read the plan in"):
            run = json.loads(read_small(self.work / RUN_NAME))
            self._mark = mark_of(self.work)
        self._plan = msgspec.structs.replace(
            found,
            files=tuple(msgspec.structs.replace(file, storage=storage_for(file.path, storage)) for file in found.files),
        )
        self._texts, self._hashed = self._plan.orders()
        self._storage = storage
        self._num_over = 0
        """How many phases are over: none of them changes any more."""
        self._place = str(path_at(shared.place(PLAN_NAME)).absolute().parent)
        if encoder is not None:
            self.serve = partial(worker.main, proved=encoder)
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
        while (phase := next(islice(self._phases(), self._num_over, None), None)) is not None:
            receipts = self.refreshed(phase)
            if receipts.open_tasks or receipts.failed:
                return phase
            self._num_over += 1
        return None

    def tasks(self, phase: Phase) -> Sequence[Order | CutTask]:
        """See `Job`."""
        if phase.name.startswith("duplicates"):
            return [FindTask(number) for number in range(phase.num_tasks)]
        if phase.name.startswith("cut"):
            return [CutTask()]
        return self._joins() if phase.name.startswith("join") else [*self._texts, *self._hashed]

    def setup(self, phase: Phase, results: Path) -> Setup:
        """See `Job`."""
        backend = REFERENCE if phase.name.endswith(f"-{REFERENCE}") else self._plan.choice.name
        tokenizer = str((self.work / TOKENIZER_NAME).absolute())
        setup = self._plan.setup(results=str(results), tokenizer=tokenizer, backend=backend)
        hashes = self._hashes() if phase.name.startswith("duplicates") else ()
        return msgspec.structs.replace(setup, hashes=hashes, work=self._place, storage=self._storage)

    @contextmanager
    def doing(self, phase: Phase) -> Iterator[Do]:
        """See `Job`: in this process, only what is light is done."""

        def do(task: Any, results: Path, tell: Tell) -> TaskResult:
            if isinstance(task, CutTask):
                self.check_inputs()
                return cut(self._plan, self._parts(), self._file_hashes(), self._found(), results, tell)
            return worker.combine(self.setup(phase, results), task, self._using, tell)

        yield do

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        """See `Job`. A record that is bad or ends workers is so on every host."""
        error = failed.error()
        if not isinstance(error, worker.BadLineError):
            raise error
        told = described(self._entry(self._texts[failed.task_index], error.span, error.line, str(error)))
        what = advice("record") if self._plan.options.errors.on_error == "stop" else "Nothing was written."
        if error.ended_worker:
            what = _ADVICE_OF_WORKERS
        return TaskResult(error=f"{told} {what}", value={"ended_worker": error.ended_worker})

    def check(self, phase: Phase, receipts: Receipts) -> None:
        """See `Job`: refuse more bad records than the options allow.

        Raises:
            InputError: there are too many.
        """
        options = self._plan.options.errors
        allowed = 0 if options.on_error == "stop" else options.max_errors
        if not isinstance(allowed, int) or receipts.counts[BAD_RECORDS] <= allowed:
            return
        found: list[ErrorEntry] = []
        for task_index, receipt in sorted(receipts.done.items()):
            if receipt.counts.get(BAD_RECORDS) and len(found) <= allowed:
                part = read_saved(self._using, self._at(receipts, receipt, part_name(task_index)), DocumentPart)
                found += [self._entry(self._texts[task_index], *error) for error in part.info.errors]
        check_tolerance(found, options, noun="record")

    def tell(self, phase: Phase, show: Show) -> None:
        """See `Job`: say if a library has proved wrong."""
        if phase == self._first and self._wrong is not None:
            show.notice(
                f"{self._plan.choice.name} differs from {REFERENCE} on this text, so {REFERENCE} encodes everything"
                f" that is not proved yet: {self._wrong[1]}"
            )

    def publish(self, folder: str, receipt: Receipt) -> Receipt:
        """See `Job`: shards, and the table of origins, are files of the output."""
        is_join = folder.startswith(f"{PHASE_PREFIX}join")
        output = [name for name in receipt.files if is_join or name.startswith(f"{PROVENANCE_NAME}/")]
        self.shared.publish(folder, [name for name in receipt.files if name not in output])
        return msgspec.structs.replace(receipt, etags=self.shared.deliver(folder, output)) if output else receipt

    def committed(self, phase: Phase, receipt: Receipt) -> None:
        """See `Job`: remove the parts of which all documents are in shards that are there."""
        if not phase.name.startswith("join"):
            return
        joined, mine = self.receipts(phase), self._cut.shards[receipt.task_index]
        firsts, lasts = self._ranges

        def is_there(shard: int) -> bool:
            return shard in joined.done or joined.read(shard) is not None

        for receipts, part in self._part_receipts(mine.first_task, mine.last_task + 1):
            users = np.flatnonzero((firsts <= part.task_index) & (part.task_index <= lasts))
            if all(map(is_there, users.tolist())):
                for name in part.files:
                    self.shared.remove(receipts.away(part, name))

    def finish(self, show: Show) -> Manifest:
        """See `Job`: write the manifest, and move all files into place.

        Raises:
            InputError, WorkerError: a task has failed.
        """
        overwrite = self._plan.options.overwrite
        with output_at(self.output, overwrite=overwrite, restart=False) as folder:
            if (found := folder.resume()) is not None:
                return found[0]
            if (phase := self.phase()) is not None:
                for _, receipt in sorted(self.receipts(phase).failed.items()):
                    raise (WorkerError if receipt.value["ended_worker"] else InputError)(receipt.error)
            done = self.receipts(self._joining).done
            joined = [msgspec.convert(done[number].value, Joined) for number in range(len(done))]
            by_task = "" if self._wrong is None else f"task {self._wrong[0]}: {self._wrong[1]}"
            manifest, made = build_manifest(self._plan, self._cut, joined, by_task, folder.work)
            sums = {name: (file.size, file.xxh3_128) for name, file in manifest.files().items()}
            receipts = [self.receipts(self._cutting), self.receipts(self._joining)]
            folder.put(partial(self.gather, receipts, sums), list(sums), made)
        return manifest

    def check_inputs(self) -> None:
        """See `Job`."""
        check_all(self._plan.files)

    # Phases.

    def _phases(self) -> Iterator[Phase]:
        """Yield the phases in their order. What comes next is known once the one before is over."""
        yield self._first
        yield from self._encoding[1:]
        if self._plan.num_ranges:
            yield self._finding
        yield self._cutting
        yield self._joining

    @cached_property
    def _first(self) -> Phase:
        num_tasks = len(self._texts) + len(self._hashed)
        return encoding(self._mark, self._plan.choice.name, num_tasks, total_bytes=self._plan.total_bytes)

    @cached_property
    def _encoding(self) -> list[Phase]:
        """The phases that encode, once the first is over."""
        if self._wrong is None:
            return [self._first]
        first, total_bytes = self._wrong[0], self._plan.total_bytes
        again = encoding(self._mark, REFERENCE, len(self._texts), first_task=first, total_bytes=total_bytes)
        return [self._first, again]

    @cached_property
    def _finding(self) -> Phase:
        num_ranges = self._plan.num_ranges
        return Phase(name=f"duplicates-{self._mark}", num_tasks=num_ranges, is_light=num_ranges == 1)

    @cached_property
    def _cutting(self) -> Phase:
        return Phase(name=f"cut-{self._mark}", num_tasks=1, is_light=True)

    @cached_property
    def _joining(self) -> Phase:
        num_shards, total_bytes = len(self._cut.shards), self._cut.value_bytes
        return Phase(name=f"join-{self._mark}", num_tasks=num_shards, total_bytes=total_bytes, is_light=num_shards == 1)

    @cached_property
    def _wrong(self) -> tuple[int, str] | None:
        """The first task in which the fast library proved wrong, and what it said, once the first phase is over."""
        done = self.refreshed(self._first).done
        wrong = min((index for index, receipt in done.items() if (receipt.value or {}).get("mismatch")), default=None)
        return None if wrong is None else (wrong, done[wrong].value["mismatch"])

    # What the phases have left.

    def _at(self, receipts: Receipts, receipt: Receipt, name: str) -> str:
        return f"{self._place}/{receipts.away(receipt, name)}"

    @cached_property
    def _using(self) -> Reader:
        return reader(reader_at(self._place, "pread", storage_for(self._place, self._storage)))

    def _part_receipts(self, first: int, end: int) -> Iterator[tuple[Receipts, Receipt]]:
        """Yield the receipts of the parts of the tasks ``[first, end)``."""
        phases = self._encoding
        for task_index in range(first, end):
            receipts = self.receipts(phases[-1] if task_index >= phases[-1].first_task else phases[0])
            yield receipts, receipts.done[task_index]

    def _parts(self) -> Iterator[PlacedPart]:
        """Yield all parts, in the order of the input."""
        read = partial(read_saved, self._using, kind=DocumentPart)
        for first in range(0, len(self._texts), _AT_ONCE):
            some = list(self._part_receipts(first, min(first + _AT_ONCE, len(self._texts))))
            places = [self._at(receipts, receipt, part_name(receipt.task_index)) for receipts, receipt in some]
            for (receipts, receipt), part in zip(some, each(read, places, places), strict=True):
                yield PlacedPart(f"{receipts.name}/{receipt.attempt}", part)
            for place in places:
                self._using.release(place)

    def _hashes(self) -> tuple[str, ...]:
        """The files of the hashes of all parts that have documents, in their order."""
        return tuple(
            self._at(receipts, receipt, name)
            for receipts, receipt in self._part_receipts(0, len(self._texts))
            for name in receipt.files
            if name == hashes_name(receipt.task_index)
        )

    def _found(self) -> FoundDuplicates | None:
        if not self._plan.num_ranges:
            return None
        receipts = self.receipts(self._finding)
        names = (duplicates_path("", number).name for number in range(self._plan.num_ranges))
        places = [self._at(receipts, receipts.done[number], name) for number, name in enumerate(names)]
        return FoundDuplicates(places, self._using)

    def _file_hashes(self) -> list[str]:
        """For each file its xxh3_128, if a task of its own has hashed it."""
        hashes = [""] * len(self._plan.files)
        for task in self._hashed:
            hashes[task.number] = self.receipts(self._first).done[task.task_index].value["xxh3_128"]
        return hashes

    @cached_property
    def _cut(self) -> CutResult:
        receipts = self.receipts(self._cutting)
        return read_saved(self._using, self._at(receipts, receipts.done[0], CUT_NAME), CutResult)

    @cached_property
    def _ranges(self) -> tuple[IntArray, IntArray]:
        """(shards,) for each shard the first and the last task of whose parts it may have documents."""
        firsts, lasts = zip(*((shard.first_task, shard.last_task) for shard in self._cut.shards), strict=True)
        return np.array(firsts, np.int64), np.array(lasts, np.int64)

    def _joins(self) -> list[JoinTask]:
        receipts, found = self.receipts(self._cutting), self._cut
        numbers = Counter(shard.series for shard in found.shards)
        return [
            JoinTask(
                task_index=index,
                order=receipts.away(receipts.done[0], order_name(index)),
                folder=found.domains[shard.series] if found.domains else "",
                number=shard.number,
                is_single=numbers[shard.series] == 1,
            )
            for index, shard in enumerate(found.shards)
        ]

    # Places of records.

    def _entry(self, order: TextTask, span: int, line: int, message: str) -> ErrorEntry:
        file = order.task.spans[span].file
        sample_by = self._plan.options.records.sample_by
        return error_entry(self._plan.files[file], sample_by, self._lines_before(order, span) + line, message)

    def _lines_before(self, order: TextTask, span: int) -> int:
        """How many lines of its file come before a span: as tasks have counted them, or counted here."""
        wanted = order.task.spans[span]
        done = self.receipts(self._first).done
        lines = 0
        for earlier in self._texts[: order.task_index] if wanted.begin else ():
            if earlier.task.spans[0].file != wanted.file:
                continue
            value = done[earlier.task_index].value or {} if earlier.task_index in done else {}
            if "lines" in value:
                lines += value["lines"]
                continue
            spec = self._plan.record_spec(self._plan.options)
            opened = open_span(earlier.files[0], earlier.task.spans[0], spec)
            lines += sum(block.num_lines for block in opened.blocks())
        return lines
