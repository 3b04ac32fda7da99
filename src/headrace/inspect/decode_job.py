"""``check --decode`` as a `Job` of one phase, ``decode``: a task for each range of samples.

The work folder is beside the dataset, and nothing in the dataset changes. The end is a local check that finds on disk
what was decoded; it reads headers and hashes itself. Its verdict stays in the work folder until another check is
planned: the process that finds it may have nobody to tell, as in a job of Slurm.

Of a dataset at a URL, all of this lies below a URL beside it, see `headrace.engine.shared_objects`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.engine.job import OnePhaseJob, Phase, Show, TaskResult, save_plan
from headrace.engine.serving import Done, Parent, Progress, Reply, attempted, save, serve
from headrace.engine.shared import Shared
from headrace.engine.work_folder import ClaimedFolder, beside, beside_url
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.inspect.answers import check_quarantine, kind_of
from headrace.inspect.sample_checks import (
    TASK_SAMPLES,
    DecodedElsewhere,
    RangeDecoder,
    SampleCheck,
    SampleVerdict,
    as_ascii,
    check_samples,
    excluded,
    leave_out_bad,
    open_checked,
    ranges_of,
    result_name,
)
from headrace.inspect.samples import SampleOptions
from headrace.io import AnyPath, atomic_write, hash_bytes, is_url, output_errors, path_at, read_whole

if TYPE_CHECKING:
    from headrace.engine.uploading import Upload

KIND: Final = "decode"
MAIN: Final = "headrace.inspect.decode_job:main"
WORK: Final = beside("checking")
PLACE: Final = beside_url("checking")

VERDICT_NAME: Final = "verdict.json"

_UPLOAD_AT: Final = "headrace.engine.uploading:upload_at"  # loaded when the first URL comes
_MOST_TASKS: Final = 4096
"""Of very many samples, a task has more than `TASK_SAMPLES`."""


class DecodeTask(msgspec.Struct, frozen=True):
    """Decode the samples ``[first, end)``."""

    task_index: int
    first: int
    end: int

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return f"samples {self.first:,} to {self.end:,}"


class DecodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the job."""

    path: str
    folder: str
    """The folder that the path is in; empty if it is absolute, or a URL."""

    dataset: SampleOptions
    quarantine: bool
    """Whether samples that cannot be decoded are left out of the dataset at the end."""

    fingerprint: str
    samples: int
    task_samples: int

    @property
    def phase(self) -> Phase:
        """The only phase. Its name tells it from that of another plan."""
        name = f"decode-{hash_bytes(msgspec.json.encode(self))[:8]}"
        return Phase(name=name, num_tasks=len(self.tasks))

    @property
    def tasks(self) -> list[DecodeTask]:
        """All tasks, in the order of the samples."""
        ranges = ranges_of(self.samples, self.task_samples)
        return [DecodeTask(index, first, end) for index, (first, end) in enumerate(ranges)]

    def check_fingerprint(self, fingerprint: str) -> None:
        """Refuse a dataset that has changed since the plan.

        Raises:
            StoreError: it has.
        """
        if fingerprint != self.fingerprint:
            place = self.path if is_url(self.path) else str(Path(self.folder, self.path))
            work = f"what is below {PLACE(place)}" if is_url(place) else WORK(Path(place))
            raise StoreError(f"{place}: the dataset changed since the check was planned; remove {work}, and plan again")


def plan_check(path: str, options: Mapping[str, Any], *, quarantine: bool = False) -> None:
    """Plan a check that decodes all samples, beside the dataset, for processes on any hosts to do its tasks.

    Args:
        path: a dataset of samples.
        options: as for `check`.
        quarantine: whether samples that cannot be decoded are left out of the dataset at the end.

    Raises:
        StoreError: there is no dataset.
        ConfigError: ``decode`` is not asked for, or it is a metadataset, or a plan cannot lie beside it.
        OutputError: the plan cannot be written.
    """
    if is_url(path) and path.lower().startswith("http"):
        raise ConfigError(
            f"{path}: a plan lies beside the dataset, and nothing is written to a web server: check it on one host,"
            " or copy the dataset to s3://, gs:// or az://"
        )
    kind = kind_of(path)
    if kind == "metadataset":
        raise ConfigError(f"{path} is a metadataset: plan a check of each of its datasets, see headrace info {path}")
    check = SampleCheck.of(options)
    if not check.decode:
        raise ConfigError("other processes can only decode: add `decode`, or check it on this host")
    if quarantine:
        check_quarantine(path, kind, decodes=True)
    if not is_url(path) and not WORK(Path(path)).parent.is_dir():
        raise ConfigError(f"{path}: a plan lies beside the dataset, and there is no folder {WORK(Path(path)).parent}")
    with open_checked(path, check.dataset, "mmap") as store:
        plan = DecodePlan(
            path=path,
            folder="" if is_url(path) or Path(path).is_absolute() else str(Path.cwd()),
            dataset=check.dataset,
            quarantine=quarantine,
            fingerprint=store.fingerprint,
            samples=len(store),
            task_samples=TASK_SAMPLES * max(1, -(-len(store) // (TASK_SAMPLES * _MOST_TASKS))),
        )
    if is_url(path):
        _plan_at(PLACE(path), plan)
        return
    work = WORK(Path(path))
    with output_errors(work, "make the folder"):
        work.mkdir(exist_ok=True)
        (work / VERDICT_NAME).unlink(missing_ok=True)
    save_plan(work, KIND, plan, {})


def _plan_at(place: str, plan: DecodePlan) -> None:
    """Write the plan below a URL; another check that was planned there is discarded."""
    upload: Upload = resolve_name(_UPLOAD_AT)(place)
    described = msgspec.json.encode(plan)
    if upload.unfinished() not in (None, described):
        upload.discard()
    if upload.claim(described) is not None:
        raise OutputError(f"{place}: another check of this dataset was planned at the same time: plan again")
    upload.writer.delete([f"{place}/{VERDICT_NAME}"])
    save = resolve_name("headrace.engine.shared_objects:save_plan")  # loaded when the first URL comes
    save(place, upload.writer, KIND, plan, {}, files={}, phases=[plan.phase])


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What `OnProgress` is called with."""

    phase: str
    done: float
    total: float | None
    text: str
    speeds: Mapping[str, float]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the job found."""

    verdict: SampleVerdict
    left_out: str = ""
    """A line about the samples that are left out from now on, if that was asked for."""


def last_report(path: str | os.PathLike[str]) -> CheckReport | None:
    """Return what the last planned check of a dataset found; None if there is none.

    Raises:
        OutputError: the file cannot be read, or is damaged.
    """
    file = path_at(PLACE(os.fspath(path)) if is_url(path) else WORK(Path(path))) / VERDICT_NAME
    if not file.is_file():
        return None
    try:
        data = read_whole(file)
    except OSError as error:
        raise OutputError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return msgspec.convert(json.loads(data), CheckReport)
    except ValueError as error:
        raise OutputError(f"{file}: damaged: {error}; remove it") from error


def clear_left(path: str | os.PathLike[str]) -> None:
    """Remove what a process may have left at a URL that was killed after its verdict was there.

    Raises:
        OutputError, StoreError: the store refuses it.
    """
    if is_url(path):
        upload: Upload = resolve_name(_UPLOAD_AT)(PLACE(os.fspath(path)))
        upload.clear()


class DecodeJob(OnePhaseJob):
    """See the module."""

    kind = KIND
    main = MAIN

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw) -> None:
        self._plan = msgspec.json.decode(plan, type=DecodePlan)
        super().__init__(output, shared, self._plan.phase, self._plan.tasks)

    def setup(self, phase: Phase, results: Path) -> DecodeSetup:
        """See `Job`."""
        return DecodeSetup(parent=os.getpid(), plan=self._plan, results=str(results))

    def finish(self, show: Show) -> CheckReport:
        """See `Job`: check everything else, and put together what was decoded."""
        began_s = time.monotonic()
        plan, path = self._plan, str(self.output)
        if not self.shared.is_folder and not self.is_planned:
            # Another process has completed the check meanwhile, or has planned another one.
            if (report := last_report(path)) is None:
                raise OutputError(f"{path}: the check that was planned was discarded: another one was planned")
            return report
        # A process that was killed while it left out samples has changed the dataset, but not what it had found. This
        # has the name of its plan, so that a check that is planned anew looks anew.
        checked = f"{plan.phase.name}-checked.json"
        kept = self.shared.read_replaced(checked)
        verdict = msgspec.convert(json.loads(kept), SampleVerdict) if kept is not None else self._check(show, began_s)
        if plan.quarantine and kept is None:
            self.shared.replace(checked, as_ascii(verdict).encode())
        left_out = leave_out_bad(path, verdict, plan.dataset) if plan.quarantine else ""
        report = CheckReport(verdict=verdict, left_out=left_out)
        data = as_ascii(report).encode()
        if self.shared.is_folder:
            atomic_write(self.work / VERDICT_NAME, data)
            with output_errors(self.work, "clear"):
                ClaimedFolder(self.work, "").clear(keep=(VERDICT_NAME,))
        elif self.is_planned:
            upload: Upload = resolve_name(_UPLOAD_AT)(PLACE(path))
            upload.writer.put({f"{upload.url}/{VERDICT_NAME}": data})
            upload.clear()
        return report

    def _check(self, show: Show, began_s: float) -> SampleVerdict:
        plan, path = self._plan, str(self.output)
        with open_checked(path, plan.dataset, "mmap") as store:
            plan.check_fingerprint(store.fingerprint)
        found = self.work / f"{plan.phase.name}-decoded"
        self._collect(found)

        def tell(
            phase: str, done: float = 0, total: float | None = None, *, text: str = "", speeds: Mapping[str, float] = {}
        ) -> None:
            show.progress(Told(phase=phase, done=done, total=total, text=text, speeds=speeds))

        elsewhere = DecodedElsewhere(folder=found, num_samples=plan.task_samples)
        check = SampleCheck(dataset=plan.dataset, decode=True, elsewhere=elsewhere)
        verdict = check_samples(path, check, on_progress=tell)
        return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - began_s, 3))

    def _collect(self, folder: Path) -> None:
        """Bring what was decoded to a folder on this host."""
        receipts = self.known_receipts()
        if self.shared.is_folder:
            receipts.adopt(folder)
        else:
            receipts.fetch(folder)


class DecodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    plan: DecodePlan
    results: str


class _Decoding:
    """Does tasks in a worker. The dataset is opened with the first, and stays open."""

    def __init__(self, parent: Parent, setup: DecodeSetup) -> None:
        self._parent = parent
        self._plan = setup.plan
        self._results = Path(setup.results)
        self._decoder: RangeDecoder | None = None

    def handle(self, task: DecodeTask) -> Reply:
        """Do a task; any error becomes a `Failed`."""
        return attempted(task.task_index, lambda: Done.of(task.task_index, self._do(task)))

    def _do(self, task: DecodeTask) -> TaskResult:
        decoder = self._decoder = self._decoder or self._opened()
        found = decoder.run(task.first, task.end, lambda number: self._tell(task, number))
        name = result_name(task.first, task.end)
        save(self._results / name, as_ascii(found))
        counts = {"samples": found.samples, "faulty": found.faulty_samples}
        return TaskResult(files=(name,), counts=counts)

    def _tell(self, task: DecodeTask, number: int) -> None:
        self._parent.report(Progress(task.task_index, 0, number, 0))

    def _opened(self) -> RangeDecoder:
        plan = self._plan
        if plan.folder:  # faults name the path as it was given
            os.chdir(plan.folder)
        store = open_checked(plan.path, plan.dataset, "mmap")
        plan.check_fingerprint(store.fingerprint)
        return RangeDecoder(store, excluded(store, plan.dataset))


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, DecodeSetup, DecodeTask, lambda parent, setup: _Decoding(parent, setup).handle)
