"""What the ranks of a training waited for, and the verdict about it in words: whether the run is data-bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

BOUND: Final = 0.02
"""The share of waiting from which a run is called data-bound."""

STAGES: Final = ("read", "decode", "encode", "pack", "collate", "hand_over")
"""What is waited for. The first five are the fields of `headrace.datasets.dataset.StageTimes`."""


class RankWaits(msgspec.Struct, kw_only=True):
    """Sums of one rank, since its loader was made or since the last report.

    Attributes:
        rank: the data-parallel rank.
        seconds: the time that was watched: from the first batch of each iteration on.
        start_s: the time to the first batch of each iteration, which is not part of ``seconds``.
        samples: samples, or units, that were yielded.
        stages: seconds of waiting, by stage.
    """

    rank: int
    seconds: float = 0.0
    start_s: float = 0.0
    samples: int = 0
    stages: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @property
    def wait_s(self) -> float:
        """The seconds of waiting."""
        return sum(self.stages.values())

    @property
    def wait_share(self) -> float:
        """The part of the time that was waited, 0 to 1."""
        return self.wait_s / self.seconds if self.seconds else 0.0

    def waited(self, wait_s: float, times: Sequence[float]) -> None:
        """Add a wait, split in the stages of the reader that was waited for; ``times`` are those it took for each."""
        spent = sum(times)
        part = min(1.0, wait_s / spent) if spent else 0.0
        for stage, seconds in zip(STAGES, times, strict=False):
            self.stages[stage] += part * seconds
        self.stages["hand_over"] += wait_s - part * spent

    def add(self, other: RankWaits) -> None:
        """Add the sums of a report."""
        self.seconds += other.seconds
        self.start_s += other.start_s
        self.samples += other.samples
        for stage, seconds in other.stages.items():
            self.stages[stage] += seconds


def verdict_of(ranks: Sequence[RankWaits]) -> str:
    """Say in one sentence whether training waited for data, for what, and on which rank."""
    seconds = sum(one.seconds for one in ranks)
    if not seconds:
        return "nothing was watched yet"
    share = sum(one.wait_s for one in ranks) / seconds
    worst = max(ranks, key=lambda one: one.wait_share)
    stages = {stage: sum(one.stages[stage] for one in ranks) for stage in STAGES}
    stage = max(STAGES, key=lambda name: stages[name])
    words = f"{_percent(share)} of the time was waited"
    if share:
        words += f", most of it for {stage.replace('_', ' ')}"
    if len(ranks) > 1 and share:
        words += f", and most by rank {worst.rank} ({_percent(worst.wait_share)} of its time)"
    if worst.wait_share < BOUND:
        return f"not data-bound: {words}"
    return f"data-bound: {words}; a perfect loader would save up to {_percent(worst.wait_share)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
