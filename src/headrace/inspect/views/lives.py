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


class LivePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one rank."""

    step: int
    seconds: float
    stages: dict[str, float]
    """Seconds of waiting, by stage."""

    samples: int
    tokens: int | None = None
    fill: float | None = None
    supervised_share: float | None = None

    @property
    def wait_share(self) -> float:
        """The part of the time that was waited, 0 to 1."""
        return sum(self.stages.values()) / self.seconds if self.seconds else 0.0


class LiveRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: its last reports, and the sums over them.

    Attributes:
        rank: the data-parallel rank.
        step, position: those of its last report.
        wait_share: the part of the time that it waited.
        stages: seconds of waiting, by stage.
        seconds: the time that these reports are about.
        samples_per_s, tokens_per_s: the rates in this time; tokens only where batches have them.
        fill: of the last report.
        queue_depth, replaced_workers: of the last report.
        faults: samples that were replaced since the loader was made, by reason.
        reported: when the file of the rank was last written, in UTC, such as ``2026-03-01 12:30:09``. A rank that
            hangs reports no more.
        points: the last reports, the newest last.
        verdict: what the loader itself said last at the end of an iteration; empty while it goes on.
    """

    rank: int
    step: int
    position: int
    wait_share: float
    stages: dict[str, float]
    seconds: float
    samples_per_s: float
    tokens_per_s: float | None
    fill: float | None = None
    queue_depth: int = 0
    replaced_workers: int = 0
    faults: dict[str, int]
    reported: str
    points: tuple[LivePoint, ...]
    verdict: str


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
    waits = [RankWaits(rank=one.rank, seconds=one.seconds, stages=one.stages) for one in ranks]
    return LiveReport(
        path=path,
        files=len(files),
        stages=STAGES,
        ranks=tuple(ranks),
        verdict=verdict_of(waits),
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
    seconds = sum(point.seconds for point in points)
    stages = {stage: sum(point.stages[stage] for point in points) for stage in STAGES}
    tokens = [point.tokens for point in points if point.tokens is not None]
    own = {
        "wait_share": sum(stages.values()) / seconds if seconds else 0.0,
        "stages": stages,
        "seconds": seconds,
        "samples_per_s": sum(point.samples for point in points) / seconds if seconds else 0.0,
        "tokens_per_s": sum(tokens) / seconds if tokens and seconds else None,
        "faults": {name.removeprefix("faults/"): many for name, many in last.items() if name.startswith("faults/")},
        "reported": reported,
        "points": points,
        "verdict": verdict,
    }
    return msgspec.convert({**last, **own}, LiveRank, strict=False)


def _point(report: dict[str, float]) -> LivePoint:
    return msgspec.convert(
        {**report, "stages": {one: report.get(f"wait_{one}_s", 0.0) for one in STAGES}}, LivePoint, strict=False
    )


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
