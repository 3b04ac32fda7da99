"""Disk and time that a run takes, from what it makes and from what a sample took. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from headrace.prepare.buckets import choose_num_buckets
from headrace.prepare.executor import RUN_AHEAD
from headrace.prepare.first_documents import NUM_DOCUMENTS, most_characters
from headrace.prepare.run_plan import RunPlan
from headrace.prepare.sources import MAX_TASK_SPANS, plan_tasks
from headrace.prepare.staged import STAGED
from headrace.prepare.text_task import PIECE_BYTES

ORDER_BYTES = 8
"""Of the table of origins a document, where documents are shuffled."""

SORT_BYTES = 16
"""Of a bucket a document: its hash, and its number in the input."""

START_S = 0.6
"""To start the workers, and to name and move the files at the end."""

RUN_OVER_SAMPLE = 1.2
"""CPU seconds of a run over those of reading and encoding alone: pieces are written, hashed, read back and taken."""


_JSON_SHARE = 2.3
"""Bytes of a number as JSON over its bytes as binary: ids take about 5 of 2, masks 2 of 1."""


class Tasks(msgspec.Struct, frozen=True):
    """How the work of a run can be shared."""

    count: int
    largest: float
    """Share of the largest task in the text of all, from 0 to 1."""

    @classmethod
    def of(cls, plan: RunPlan) -> Tasks:
        """The tasks of a run."""
        sizes = []
        for task in plan_tasks(plan.files, task_bytes=plan.task_bytes, max_spans=MAX_TASK_SPANS):
            files = [plan.files[span.file] for span in task.spans]
            parts = [
                file.text_bytes * (span.end - span.begin) / file.extent
                for file, span in zip(files, task.spans, strict=True)
                if file.extent
            ]
            sizes.append(sum(parts))
        return cls(len(sizes), max(sizes, default=0) / (sum(sizes) or 1))


class Disk(NamedTuple):
    """Bytes on disk."""

    output: int
    peak: int


def forecast_disk(plan: RunPlan, tasks: Tasks, *, documents: int, value_bytes: int, workers: int) -> Disk:
    """What stays in the output folder, and about the most that is in it on the way.

    On the way are pieces: two tasks a worker that wait for their turn, some of the task whose turn it is, and what was
    taken since the last checkpoint. A shuffled run has its documents in buckets first.
    """
    num_keys = len(plan.keys)
    has_domains = any(column.kind == "domain" for column in plan.columns)
    per_document = _index_bytes(plan) + ORDER_BYTES * (plan.is_shuffled or has_domains)
    stored_bytes = round(value_bytes * (_JSON_SHARE if plan.options.output.format == "jsonl" else 1))
    output = stored_bytes + documents * per_document
    pieces = value_bytes + documents * 8 * num_keys
    largest = tasks.largest * pieces
    ahead = min(RUN_AHEAD * workers, tasks.count - 1) * largest
    waiting = min(ahead + 3 * min(largest, PIECE_BYTES) + plan.pending_bytes, pieces)
    peak = output + waiting
    if plan.is_shuffled:
        num_buckets = choose_num_buckets(plan.output_bytes, workers)
        frames = min(documents, tasks.count * num_buckets)
        buckets = value_bytes + documents * (SORT_BYTES + 4 * num_keys) + frames * 8 * (3 + 2 * num_keys)
        sorted_bytes = min((workers + 2) * buckets / num_buckets + plan.pending_bytes, buckets)
        peak = max(buckets + waiting, max(buckets, output) + sorted_bytes)
    if plan.options.output.format in STAGED:  # until a shard is complete it lies there in another layout
        shard = plan.options.output.shard_tokens
        peak += value_bytes if shard is None else min(shard * max(_itemsizes(plan)), value_bytes)
    return Disk(output, round(peak))


def forecast_seconds(
    plan: RunPlan, tasks: Tasks, *, workers: int, cpu_s: float, truth_s: float, record_characters: float
) -> float:
    """Seconds of a run that takes ``cpu_s`` to read and encode on one core; one task is never shared by workers.

    Args:
        plan: the run.
        tasks: its tasks.
        workers: processes, each with a core.
        cpu_s: as said.
        truth_s: CPU seconds that the library ``tokenizers`` takes a character.
        record_characters: characters of a record, on average.
    """
    proof_s = min(NUM_DOCUMENTS * record_characters, most_characters(plan.files)) * truth_s
    return START_S + proof_s + cpu_s * RUN_OVER_SAMPLE * max(1 / workers, tasks.largest)


def _index_bytes(plan: RunPlan) -> int:
    """Of the index a document: lengths, pointers and document indices; in ``meta.json``, a number as text; in HDF5, the
    header of each array; in JSON lines, the name of each key."""
    each = {"indexed": 20, "keyed": 11, "hdf5": 800, "jsonl": 6}[plan.options.output.format]
    return each * len(plan.keys) + (sum(map(len, plan.keys)) if plan.options.output.format == "jsonl" else 0)


def _itemsizes(plan: RunPlan) -> list[int]:
    return [np.dtype(column.dtype).itemsize for column in plan.columns]
