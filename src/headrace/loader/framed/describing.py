"""Parts and the samples read for them in words, for errors and reports about workers."""

from __future__ import annotations

import numpy as np

from headrace.datasets import FramedRun
from headrace.errors import HeadraceError
from headrace.loader.framed.parts import Part

_SHOWN = 3


def describe_part(part: Part) -> str:
    """``units 12 to 15 of step 3``."""
    if not len(part.numbers):
        return f"no units of step {part.step:,}"
    if len(part.numbers) == 1:
        return f"unit {part.numbers[0]:,} of step {part.step:,}"
    return f"units {part.numbers[0]:,} to {part.numbers[-1]:,} of step {part.step:,}"


def describe_part_sample(run: FramedRun, part: Part, address: int) -> str:
    """``sample 'K' of SHARD, for units 12 to 15 of step 3``, by its address; of a mix one for each dataset."""
    found = []
    sources = run.new_sources()
    for encoder in sources.encoders:
        indices = encoder.indices(np.array([address], dtype=np.int64))
        if indices[0] >= len(encoder.dataset):
            continue
        try:
            [origins] = encoder.dataset.origins(indices)
        except HeadraceError:  # what is told is another fault
            continue
        found += [f"sample {one.key!r} of {one.shard or one.store}" for one in origins[:1]]
    names = list(dict.fromkeys(found)) or ["a sample"]
    more = f" or of {len(names) - _SHOWN} other datasets" if len(names) > _SHOWN else ""
    return f"{' or '.join(names[:_SHOWN])}{more}, for {describe_part(part)}"
