"""Estimate what a run would write, from a sample of its inputs (``--dry-run``). Nothing is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.errors import InputError
from headrace.io import Storage, check_storage
from headrace.preparing.ledger import check_tolerance, described
from headrace.preparing.shards.inputs import choose_parts, find_media, plan_survey, survey_setup
from headrace.preparing.shards.options import ShardOptions
from headrace.preparing.shards.planning import DUPLICATE, GOOD, Sums
from headrace.preparing.shards.run import ADVICE, check_ready
from headrace.preparing.shards.survey import Surveyor

MAX_TASKS = 16
"""Maximum number of survey tasks, spread evenly over the inputs: some hundred megabytes of a large input."""


class ShardEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over these inputs would write, scaled up from a sample of them."""

    inputs: int
    """Number of tables and folders."""
    input_bytes: int
    """Size of the tables, and of the files in folders."""
    sampled: int
    """Number of rows or groups of files in the sample."""
    is_exact: bool
    """Whether the sample is the whole input."""
    samples: int
    """Estimated number of samples."""
    content_bytes: int
    """Estimated size of all parts."""
    output_bytes: int
    """Estimated size of all shards."""
    shards: int
    """Estimated number of shards."""
    parts: dict[str, int]
    """Bytes of each part in the sample, not scaled up."""
    bad: int
    """Number of bad samples in the sample, not scaled up."""
    first_error: str
    """The first bad sample with its place; empty if there is none."""
    stops: str = ""
    """Why a run would end without output, as far as the sample shows; else empty."""


def estimate_shards(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    options: ShardOptions | None = None,
    storage: Storage | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> ShardEstimate:
    """Survey up to 16 tasks that are spread over all inputs, in this process, and scale up what they find.

    Args:
        inputs: as for `prepare_shards`.
        options: as for `prepare_shards`.
        storage: as for `prepare_shards`.
        on_notice: called with messages that a user should see.

    Raises:
        ConfigError: inputs or options are invalid.
        InputError: a file cannot be read, or there are no samples. Bad samples are counted.
        MissingExtraError: an input needs a package that is not installed.
    """
    options = options or ShardOptions()
    notice = on_notice or (lambda message: None)
    source = options.source
    check_storage(storage, list(inputs), source.root, source.captions)
    check_ready(options)
    found = find_media(inputs, source, notice, storage)
    parts = [choose_parts(given, source, storage) for given in found]
    sums = Sums(found)
    part_bytes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as listings:
        setup = survey_setup(found, parts, source, storage, listings=listings)
        surveyor = Surveyor(setup, lambda *counts: None)
        orders = plan_survey(found, options, Path(listings), notice).orders
        count = min(len(orders), MAX_TASKS)
        for number in range(count):
            survey = surveyor.survey(orders[number * len(orders) // count])
            for span in survey.spans:
                sums.take(span)
                for sample in span.samples:
                    for part in () if sample.bad else sample.parts:
                        part_bytes[part.name] = part_bytes.get(part.name, 0) + part.size
    if not len(sums.gathered):
        raise InputError(
            f"no samples were found in a part of the {len(found):,} inputs: check that these are the right data"
        )
    is_good = sums.gathered.fates()[0] == GOOD
    total_bytes = sum(given.total_bytes for given in found)
    scale = 1.0 if count == len(orders) else total_bytes / max(sums.input_bytes, 1)
    tar_bytes = round(int(sums.gathered.tar_bytes[is_good].sum()) * scale)
    samples = round(int(is_good.sum()) * scale)
    output = options.output
    by_count = 1 if output.samples_per_shard is None else -(-samples // output.samples_per_shard)
    by_bytes = 1 if output.shard_bytes is None else -(-tar_bytes // output.shard_bytes)
    return ShardEstimate(
        inputs=len(found),
        input_bytes=total_bytes,
        sampled=len(sums.gathered),
        is_exact=count == len(orders),
        samples=samples,
        content_bytes=round(sum(part_bytes.values()) * scale),
        output_bytes=tar_bytes,
        shards=max(by_count, by_bytes, 1),
        parts=dict(sorted(part_bytes.items())),
        bad=len(sums.errors),
        first_error=described(sums.errors[0]) if sums.errors else "",
        stops=_stops(sums, options, is_whole=count == len(orders)),
    )


def _stops(sums: Sums, options: ShardOptions, *, is_whole: bool) -> str:
    """Return what a run would end with, if it would have no output."""
    fates = sums.gathered.fates()[0]
    num_twice = int((fates == DUPLICATE).sum())
    try:
        check_tolerance(
            sums.errors, options.errors, noun="samples", advice=ADVICE, num_read=len(fates) if is_whole else None
        )
        if num_twice and options.source.duplicates == "error":
            raise InputError(
                f"{num_twice:,} samples have a key that came before: choose another --key-field, or keep the first of "
                "each with --duplicates drop. Nothing was written."
            )
        if is_whole:
            sums.check_left(fates)
    except InputError as error:
        return str(error)
    return ""
