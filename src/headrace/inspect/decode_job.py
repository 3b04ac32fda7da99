"""``check --decode`` that is planned, for processes on any hosts to decode the samples.

The work folder is beside the dataset, and nothing in the dataset changes. The end is a local check that finds on disk
what was decoded; it reads headers and hashes itself. Its verdict stays in the work folder until another check is
planned: the process that finds it may have nobody to tell, as in a job of Slurm.

Of a dataset at a URL, the same names stand for URLs, see `headrace.engine.shared_objects`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.engine.job import Show
from headrace.engine.planning import NewPlan, job_at
from headrace.engine.work_folder import beside
from headrace.errors import ConfigError, OutputError
from headrace.inspect.answers import check_quarantine, kind_of
from headrace.inspect.decoding import KIND, DecodePlan, DecodingJob, as_ascii, open_checked
from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, check_samples, leave_out_bad
from headrace.io import can_list, folder_of, path_at, read_whole, remove_file, replace_file

WORK: Final = beside("checking")
VERDICT_NAME: Final = "verdict.json"


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
    work = WORK(path_at(path))
    if not can_list(work):
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
    if not work.parent.is_dir():
        raise ConfigError(f"{path}: a plan lies beside the dataset, and there is no folder {work.parent}")
    with open_checked(path, check.dataset, "mmap") as store:
        plan = DecodePlan.of(store, path, check.dataset, folder=folder_of(path), quarantine=quarantine)
    remove_file(work / VERDICT_NAME)
    job_at(work).save(NewPlan(KIND, plan, [plan.phase]))


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
    file = WORK(path_at(path)) / VERDICT_NAME
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
    """Remove what a process may have left that was killed after its verdict was there.

    Raises:
        OutputError, StoreError: the system or the store refuses it.
    """
    job_at(WORK(path_at(path))).clear(keep=(VERDICT_NAME,))


class DecodeJob(DecodingJob):
    """See the module."""

    def finish(self, show: Show) -> CheckReport:  # type: ignore[override]
        """See `Job`: check everything else, and put together what was decoded."""
        began_s = time.monotonic()
        plan, path = self.plan, str(self.output)
        if not self.is_planned:
            # Another process has completed the check meanwhile, or has planned another one.
            if (report := last_report(path)) is None:
                raise OutputError(f"{path}: the check that was planned was discarded: another one was planned")
            return report
        # A process that was killed while it left out samples has changed the dataset, but not what it had found. This
        # has the name of its plan, so that a check that is planned anew looks anew.
        checked = f"{plan.phase.name}-checked.json"
        kept = self.shared.read(checked)
        verdict = msgspec.convert(json.loads(kept), SampleVerdict) if kept is not None else self._check(show, began_s)
        if plan.quarantine and kept is None:
            self.shared.create(checked, as_ascii(verdict).encode())
        left_out = leave_out_bad(path, verdict, plan.dataset) if plan.quarantine else ""
        report = CheckReport(verdict=verdict, left_out=left_out)
        data = as_ascii(report).encode()
        if self.is_planned:
            replace_file(WORK(self.output) / VERDICT_NAME, data)
            clear_left(path)
        return report

    @property
    def is_planned(self) -> bool:
        """See `Job`: False also if another check of this dataset was planned meanwhile."""
        found = job_at(WORK(self.output)).planned()
        return found is not None and msgspec.json.decode(found.plan, type=DecodePlan) == self.plan

    def _check(self, show: Show, began_s: float) -> SampleVerdict:
        plan, path = self.plan, str(self.output)
        with open_checked(path, plan.dataset, "mmap") as store:
            plan.check_fingerprint(store.fingerprint)

        def tell(
            phase: str, done: float = 0, total: float | None = None, *, text: str = "", speeds: Mapping[str, float] = {}
        ) -> None:
            show.progress(Told(phase=phase, done=done, total=total, text=text, speeds=speeds))

        check = SampleCheck(dataset=plan.dataset, decode=True)
        verdict = check_samples(path, check, on_progress=tell, ranges=super().finish(show))
        return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - began_s, 3))
