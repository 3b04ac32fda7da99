"""``headrace check`` of a metadataset: what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.cli.figures import duration, plural, size

if TYPE_CHECKING:
    from headrace.cli.checking import Verdict
    from headrace.cli.media.checking import SampleVerdict
    from headrace.cli.media.mix_checking import MixVerdict
    from headrace.stores import Problem


def mix_problems(verdict: MixVerdict) -> Iterator[Problem]:
    """All of them: of the metadataset, then dataset by dataset."""
    yield from verdict.problems
    for dataset in verdict.datasets:
        yield from dataset.problems


def mix_summary(verdict: MixVerdict, elapsed_s: float) -> list[str]:
    """The end of the verdict for people: a line for each dataset, then one for the whole."""
    lines = []
    for dataset in verdict.datasets:
        lines += [f"note: {dataset.path}: {note}" for note in getattr(dataset, "notes", ())]
        state = plural(len(dataset.problems), "fault") if dataset.problems else f"whole: {_numbers(dataset)}"
        lines.append(f"{dataset.path}: {state}")
    number = sum(1 for _ in mix_problems(verdict))
    if number:
        return [*lines, f"{verdict.path}: {plural(number, 'fault')}"]
    reached = f"{plural(len(verdict.datasets), 'dataset')} in {plural(len(verdict.splits), 'split')}"
    joins = f", {plural(verdict.joins, 'join')} read" if verdict.joins else ""
    return [*lines, f"{verdict.path}: whole: {reached}{joins}, {duration(elapsed_s)}"]


def _numbers(dataset: SampleVerdict | Verdict) -> str:
    from headrace.cli.media.checking import SampleVerdict

    hashed = ", hashed" if dataset.hashed else ""
    if not isinstance(dataset, SampleVerdict):
        return f"{plural(dataset.documents, 'document')}, {size(dataset.bytes)} read{hashed}"
    decoded = ", every part decoded" if dataset.decoded is not None else ""
    samples = f"{plural(dataset.samples, 'sample')} in {plural(dataset.shards, 'shard')}"
    return f"{samples}, {size(dataset.bytes)}{decoded}{hashed}"
