"""Estimate what a run would write, from a sample of its inputs (``--dry-run``). Nothing is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from headrace.errors import InputError
from headrace.io import Storage, check_storage
from headrace.preparing.ledger import BAD, DUPLICATE, check_tolerance, described
from headrace.preparing.options import ErrorOptions
from headrace.preparing.shards.inputs import find_media
from headrace.preparing.shards.options import ShardOptions, check_options
from headrace.preparing.shards.packing import listed_here
from headrace.preparing.shards.plan import Planner, check_left, error_entry
from headrace.stores import ErrorEntry

MAX_TASKS: Final = 16
"""Maximum number of tasks whose samples are looked at, spread evenly over the list."""

_A_TASK: Final = 1000
"""Maximum number of samples of a task that are looked at."""


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
    """List all samples, look for the parts of up to 16,000 of them that are spread over the list, and scale that up.

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
    check_storage(storage, list(inputs), options.source.root, options.source.captions)
    check_options(options)
    notice = on_notice or (lambda message: None)
    found = find_media(inputs, options.source, notice, storage)
    # What would stop a run is told at the end.
    source = msgspec.structs.replace(options.source, duplicates="drop")
    lenient = msgspec.structs.replace(options, source=source, errors=ErrorOptions(on_error="skip", max_errors=1 << 62))
    planner = Planner(found, lenient, storage=storage, on_notice=notice)
    with listed_here(planner, storage) as (plan, packer):
        tasks = [task for task in plan.tasks if task.table < 0]
        chosen = sorted({at * len(tasks) // MAX_TASKS for at in range(MAX_TASKS)}) if tasks else []
        looked = [sample for at in chosen for sample in islice(packer.found(packer.listed(tasks[at])), _A_TASK)]
    if not looked:
        raise InputError(
            f"no samples were found in a part of the {len(found):,} inputs: check that these are the right data"
        )
    num_read = sum(one.samples for one in plan.counted)
    is_exact = len(looked) == num_read
    errors = [error_entry(found, entry) for entry in looked if entry.bad]
    good = [entry for entry in looked if not entry.bad and entry.number not in packer.duplicates]
    part_bytes: Counter[str] = Counter()
    for entry in good:
        part_bytes.update({part.name: part.size for part in entry.parts})
    scale = num_read / len(looked)
    return ShardEstimate(
        inputs=len(found),
        input_bytes=sum(given.total_bytes for given in found),
        sampled=len(looked),
        is_exact=is_exact,
        samples=round(len(good) * scale),
        content_bytes=round(part_bytes.total() * scale),
        output_bytes=round(sum(entry.tar_bytes for entry in good) * scale),
        shards=max(sum(more for task in tasks for _, _, more in task.shards), 1),
        parts=dict(sorted(part_bytes.items())),
        bad=len(errors),
        first_error=described(errors[0]) if errors else "",
        stops=_stops(options, errors, len(plan.duplicates), num_read, is_exact=is_exact),
    )


def _stops(
    options: ShardOptions, errors: Sequence[ErrorEntry], num_twice: int, num_read: int, *, is_exact: bool
) -> str:
    """Return what a run would end with, if it would have no output."""
    try:
        check_tolerance(errors, options.errors, noun="sample", num_read=num_read if is_exact else None)
        if num_twice and options.source.duplicates == "error":
            raise InputError(
                f"{num_twice:,} samples have a key that came before: choose another --id-field, or keep the first of "
                "each with --duplicates drop. Nothing was written."
            )
        if is_exact:
            check_left(num_read, {BAD: len(errors), DUPLICATE: num_twice}, errors)
    except InputError as error:
        return str(error)
    return ""
