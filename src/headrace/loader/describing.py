"""Spans and samples in words, for errors and reports: which shard and key, at which position of which step."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np

from headrace.datasets import Run
from headrace.datasets.trace_origins import Origin
from headrace.errors import HeadraceError
from headrace.loader.spans import Span


def describe_span(run: Run, span: Span) -> str:
    """``samples at positions 12 to 15 of step 3 (the first is sample 'K' of SHARD)``; reads the store's index."""
    positions = span.located.positions
    if not len(positions):
        return f"no samples of step {span.steps[0]:,}"
    first, last = int(positions.min()), int(positions.max())
    origin = _origin(run, span, 0)
    where = f" (the first is {origin})" if origin else ""
    if len(positions) == 1:
        return f"the sample at position {first:,} of step {span.steps[0]:,}{f', {origin}' if origin else ''}"
    return f"samples at positions {first:,} to {last:,} of step {span.steps[0]:,}{where}"


def describe_sample(run: Run, span: Span, address: int) -> str:
    """``sample 'K' of SHARD (position 13, step 3)``, by the address that its dataset gave it."""
    rows = np.flatnonzero(span.located.addresses == address).tolist()
    if not rows:
        return describe_span(run, span)
    row = rows[0]
    ends = list(accumulate(span.sizes))
    step = span.steps[bisect_right(ends, row)]
    place = f"position {int(span.located.positions[row]):,}, step {step:,}"
    # Sources that have a sample of this address each, in one micro-batch, cannot be told apart.
    origins = dict.fromkeys(_origin(run, span, one) or "a sample" for one in rows)
    return f"{' or '.join(origins)} ({place})"


def _origin(run: Run, span: Span, row: int) -> str:
    """What the sample of a row is made of; empty where that is not known."""
    source = int(span.located.sources[row])
    try:
        [origins] = run.datasets[source].origins(span.located.addresses[row : row + 1])
    except HeadraceError:
        # What is told is another fault.
        return ""
    more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
    return f"{_words(origins[0])}{more}" if origins else ""


def _words(origin: Origin) -> str:
    if origin.key is not None:
        return f"sample {origin.key!r} of {origin.shard or origin.store}"
    return f"document {origin.document} of {origin.store}"
