"""What a run would make and take, from a sample of its inputs: ``--dry-run``. Nothing is written.

places     files -> where to look, and how much each place stands for     pure
sample     places -> records -> tokens, counted and timed
forecast   documents and tokens of the whole -> disk and time             pure
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from headrace.errors import ConfigError, InputError
from headrace.io import check_local
from headrace.prepare.backends import TRUTH, MismatchError, choose_backend
from headrace.prepare.forecast import Tasks, forecast_disk, forecast_seconds
from headrace.prepare.options import TextOptions, check_options
from headrace.prepare.places import scale_up
from headrace.prepare.run_plan import RunPlan
from headrace.prepare.sample import Sample
from headrace.prepare.sources import choose_task_bytes, find_inputs
from headrace.prepare.text_run import usable_cores
from headrace.prepare.tokenizer import load_tokenizer


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over these inputs would make: numbers of the whole run, scaled up from the sample."""

    inputs: int
    input_bytes: int
    sampled_bytes: int
    """Bytes of the input files that the sample came from."""
    sampled_documents: int
    is_exact: bool
    """The sample was all of the input: documents and tokens are no estimates."""
    bad_records: int
    """Of the sample; they are not scaled up."""
    first_error: str
    """The first of them, or empty."""
    documents: int
    tokens: int
    tokens_low: int
    """About 19 of 20 times the truth lies between this and ``tokens_high``, if the sample is like the rest."""
    tokens_high: int
    dtype: str
    output_bytes: int
    """Of all files that stay."""
    peak_disk_bytes: int
    """About the most that the output folder holds at a time."""
    seconds: float
    workers: int
    """Processes that would have something to do at the same time."""
    backend: str
    fallback: str
    """Why ``tokenizers`` encodes, though a faster library passed its first proof; else empty."""
    dropped: dict[str, int]
    """Documents of the sample that filters drop, by reason. Duplicates show only in a run."""


def estimate_text(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
) -> Estimate:
    """Tokenise a sample that is spread over all inputs, in this process, and scale it up.

    About 8 MiB of text are read, in 64 places. Smaller inputs are read whole, and the numbers are then exact. A
    compressed file and a row group are read from their beginning, so what changes within them is not seen.

    Raises:
        ConfigError: inputs, tokeniser or options cannot be; standard input is among the inputs.
        InputError: a file cannot be read, or there are no records. Bad records are counted.
        MissingExtraError: as `prepare_text`.
    """
    check_local(inputs)
    options = options or TextOptions()
    check_options(options)
    if any(os.fspath(name) == "-" for name in inputs):
        raise ConfigError("input '-': standard input cannot be sampled; a dry run needs files")
    return estimate_plan(lambda: _plan(inputs, tokenizer, options))


def estimate_plan(make_plan: Callable[[], RunPlan]) -> Estimate:
    """As `estimate_text`, of any plan; to make it is a part of the time that is estimated."""
    begin_s = time.monotonic()
    plan = make_plan()
    load_s = time.monotonic() - begin_s
    backend, fallback = plan.choice.name, ""
    try:
        sample = Sample(plan, backend)
    except MismatchError as error:
        backend, fallback = TRUTH, str(error)
        sample = Sample(plan, backend)
    return _estimate(plan, sample, backend=backend, fallback=fallback, load_s=load_s)


def _plan(inputs: Sequence[str | os.PathLike[str]], tokenizer: str | os.PathLike[str], options: TextOptions) -> RunPlan:
    loaded = load_tokenizer(tokenizer)
    files = find_inputs(inputs, spec=RunPlan.record_spec(options), keep_faulty=options.errors.on_error == "skip")
    special = options.tokens.special_tokens_in_text
    return RunPlan(
        files=tuple(files),
        options=options,
        tokenizer=loaded,
        eod=loaded.find_eod(options.tokens.eod)[0] if options.tokens.append_eod else None,
        bos=loaded.find_bos(options.tokens.bos)[0] if options.tokens.prepend_bos else None,
        choice=choose_backend(loaded.json, wanted=options.tokens.backend, special=special),
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in files)),
    )


def _estimate(plan: RunPlan, sample: Sample, *, backend: str, fallback: str, load_s: float) -> Estimate:
    if not sample.num_records:
        raise InputError(f"no records in a sample of {len(plan.files):,} files: is this the right data?")
    sizes, *columns = sample.columns
    tokens, documents, cpu_s, value_bytes = (
        scale_up(column, sizes, total_size=plan.total_bytes, is_whole=sample.is_whole) for column in columns
    )
    tasks = Tasks.of(plan)
    cores = usable_cores()
    workers = max(min(plan.options.workers or cores, cores, tasks.count), 1)
    num_documents, num_tokens = round(documents.value), round(tokens.value)
    disk = forecast_disk(plan, tasks, documents=num_documents, value_bytes=round(value_bytes.value), workers=workers)
    seconds = load_s + forecast_seconds(
        plan,
        tasks,
        workers=workers,
        cpu_s=cpu_s.value,
        truth_s=0.0 if backend == TRUTH else sample.truth_s,
        record_characters=sample.num_characters / sample.num_records,
    )
    return Estimate(
        inputs=len(plan.files),
        input_bytes=plan.total_bytes,
        sampled_bytes=sample.num_bytes,
        sampled_documents=sample.num_documents,
        is_exact=sample.is_whole,
        bad_records=sample.num_bad,
        first_error=sample.first_error,
        documents=num_documents,
        tokens=num_tokens,
        tokens_low=max(round(tokens.value - 2 * tokens.error), 0),
        tokens_high=round(tokens.value + 2 * tokens.error),
        dtype=np.dtype(plan.columns[0].dtype).name,
        output_bytes=disk.output,
        peak_disk_bytes=disk.peak,
        seconds=round(seconds, 3),
        workers=workers,
        backend=backend,
        fallback=fallback,
        dropped=dict(sorted(sample.dropped.items())),
    )
