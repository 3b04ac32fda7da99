"""What a training waits for at the moment: the reports that its ranks append to files, see `headrace.Metrics`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.datasets.waits import STAGES, RankWaits, verdict_of
from headrace.errors import InputError
from headrace.inspect.answers import Answer
from headrace.inspect.views.overviews import metrics_files, moment
from headrace.io import check_kind

TAIL_BYTES: Final = 1 << 20
"""The most bytes that are read of each file, from its end: some hours of reports."""

SHOWN_REPORTS: Final = 120
"""The most reports of a rank that are shown."""


class LivePoint(RankWaits, kw_only=True):
    """One report of one rank."""

    step: int
    tokens: int | None = None
    """None where batches have no tokens."""


class LiveRank(RankWaits, kw_only=True):
    """One rank: the sums over its last reports, and what the last one says.

    Attributes:
        step, position: those of the last report.
        tokens: the sum of the tokens; None where batches have none.
        fill: of the last report.
        queue_depth, replaced_workers: of the last report.
        faults: samples that were replaced since the loader was made, by reason.
        reported: when the file of the rank was last written, in UTC, such as ``2026-03-01 12:30:09``. A rank that
            hangs reports no more.
        points: the last reports, the newest last.
        verdict: what the loader itself said last at the end of an iteration; empty while it goes on.
    """

    step: int
    position: int
    tokens: int | None = None
    fill: float | None = None
    queue_depth: int = 0
    replaced_workers: int = 0
    faults: dict[str, int]
    reported: str
    points: tuple[LivePoint, ...]
    verdict: str

    @property
    def samples_per_s(self) -> float:
        """The rate in the time of these reports."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """The rate in the time of these reports; only where batches have tokens."""
        return self.tokens / self.seconds if self.tokens is not None and self.seconds else None


class SlowShard(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose bytes take several times as long to read as those of others, in the last report of some ranks.

    Attributes:
        file: its path, as the ranks know it.
        times: how many times as long they take; of several ranks the most.
        ranks: the ranks that say so.
    """

    file: str
    times: float
    ranks: tuple[int, ...]


class LiveMix(msgspec.Struct, frozen=True, kw_only=True):
    """A source in the samples that came so far, over all ranks: its share, the planned one, and its epochs."""

    source: str
    share: float
    planned: float
    epochs: float | None


class LiveReport(Answer, frozen=True, kw_only=True):
    """What all ranks wait for, over their last reports.

    Attributes:
        path: the files, with ``{rank}`` for the number of a rank.
        files: the number of files.
        stages: the names of what is waited for.
        ranks: each rank, by its number.
        verdict: whether the training waits for data, and for what, in words.
        slowest: the rank that waits most; None without reports.
        slow_shards: the slowest file of each rank that has a slow one, the slowest first; see docs/watching.md.
        mix: the mean of the ranks; empty for a single source.
        skipped_lines: lines among the last ones that are no reports, such as one that is being written.
    """

    path: str
    files: int
    stages: tuple[str, ...]
    ranks: tuple[LiveRank, ...]
    verdict: str
    slowest: int | None
    slow_shards: tuple[SlowShard, ...]
    mix: tuple[LiveMix, ...]
    skipped_lines: int

    @property
    def num_faults(self) -> int:
        """The samples that were replaced, over all ranks."""
        return sum(sum(rank.faults.values()) for rank in self.ranks)


def live_report(path: str | os.PathLike[str]) -> LiveReport:
    """Return what the ranks of a training wait for, from the ends of the files that they write.

    Args:
        path: the file of a rank, or a name with ``{rank}`` for those of all ranks, as in `headrace.Metrics`.

    Raises:
        InputError: there is no such file, or it cannot be read.

    Example:
        >>> from headrace.inspect import views
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=32)
        >>> metrics = headrace.Metrics(jsonl="metrics-{rank}.jsonl", every_s=0)
        >>> for batch in headrace.Loader(run, micro_batch_size=8, metrics=metrics):
        ...     pass  # here your training step
        >>> found = views.live_report("metrics-{rank}.jsonl")
        >>> [(rank.rank, rank.step, rank.fill) for rank in found.ranks]
        [(0, 3, 1.0)]
    """
    path = os.fspath(path)
    ranks: list[LiveRank] = []
    reports: list[dict[str, float]] = []
    skipped = 0
    files = metrics_files(path)
    if not files:
        raise InputError(f"{path}: there is no such file; a loader writes it with metrics=headrace.Metrics(jsonl=...)")
    for file in files:
        found, bad = _reports(file)
        skipped += bad
        numbers = [one for line in found if (one := _numbers(line)).keys() >= _NEEDED]
        if numbers:
            said = found[-1].get("verdict")
            ranks.append(_rank(numbers, _written_at(file), said if isinstance(said, str) else ""))
            reports.append(numbers[-1])
    ranks.sort(key=lambda one: one.rank)
    return LiveReport(
        path=path,
        files=len(files),
        stages=STAGES,
        ranks=tuple(ranks),
        verdict=verdict_of(ranks),
        slowest=max(ranks, key=lambda one: one.wait_share).rank if ranks else None,
        slow_shards=_slow_shards(reports),
        mix=_mix(reports),
        skipped_lines=skipped,
    )


def _reports(file: str) -> tuple[list[dict[str, Any]], int]:
    """Return the last lines of a file that are reports or verdicts, and how many lines among them are neither."""
    try:
        check_kind(file)
        with Path(file).open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
    except OSError as error:
        raise InputError(f"{file}: the metrics cannot be read: {error.strerror or error}") from error
    lines = data.split(b"\n")
    if begin:
        del lines[0]  # it was cut
    found: list[dict[str, Any]] = []
    bad = num_reports = 0
    # From the end, and no further than is shown: of many ranks all lines would take seconds.
    for line in filter(None, reversed(lines)):
        try:
            report = msgspec.json.decode(line, type=dict[str, float | str | None])
        except (msgspec.DecodeError, UnicodeDecodeError):
            bad += 1
            continue
        found.append(report)
        num_reports += "position" in report
        if num_reports == SHOWN_REPORTS:
            break
    return found[::-1], bad


_SLOWEST: Final = "slowest_shard/"
_NEEDED: Final = {"step", "position", "rank", "seconds", "samples"}


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if isinstance(value, int | float)}


def _written_at(file: str) -> str:
    try:
        return moment(Path(file).stat().st_mtime, seconds=True)
    except OSError:
        return ""


def _slow_shards(reports: Sequence[dict[str, float]]) -> tuple[SlowShard, ...]:
    found: dict[str, dict[int, float]] = {}
    for report in reports:
        for name, times in report.items():
            if name.startswith(_SLOWEST):
                found.setdefault(name.removeprefix(_SLOWEST), {})[int(report["rank"])] = times
    shards = [SlowShard(file=file, times=max(of.values()), ranks=tuple(sorted(of))) for file, of in found.items()]
    return tuple(sorted(shards, key=lambda one: -one.times))


def _rank(reports: Sequence[dict[str, float]], reported: str, verdict: str) -> LiveRank:
    points = tuple(map(_point, reports))
    last = reports[-1]
    faults = {name.removeprefix("faults/"): many for name, many in last.items() if name.startswith("faults/")}
    tokens = [point.tokens for point in points if point.tokens is not None]
    own = {"faults": faults, "reported": reported, "points": points, "verdict": verdict}
    sums = {"seconds": 0.0, "samples": 0, "tokens": sum(tokens) if tokens else None}
    found = msgspec.convert({**last, **own, **sums}, LiveRank, strict=False)
    for point in points:
        found.add(point)
    return found


def _point(report: dict[str, float]) -> LivePoint:
    stages = {stage: report.get(f"wait_{stage}_s", 0.0) for stage in STAGES}
    return msgspec.convert({**report, "stages": stages}, LivePoint, strict=False)


def _mix(reports: Sequence[dict[str, float]]) -> tuple[LiveMix, ...]:
    """Return the mix as the mean of the ranks, each of which counts its own samples."""
    paths = dict.fromkeys(name.removeprefix("mix/") for one in reports for name in one if name.startswith("mix/"))

    def mean(name: str) -> float | None:
        values = [one[name] for one in reports if name in one]
        return sum(values) / len(values) if values else None

    return tuple(
        LiveMix(
            source=path,
            share=mean(f"mix/{path}") or 0.0,
            planned=mean(f"plan/{path}") or 0.0,
            epochs=mean(f"epochs/{path}"),
        )
        for path in paths
    )
