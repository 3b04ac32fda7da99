"""What a batch holds: samples of all sources, or of one source chosen batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError


class MixBatchDataset(Blend):
    """A batch holds samples of all sources: `Blend` under the name of Energon's class.

    There the sources are drawn; here each step keeps to the weights within 2 samples, and which of its samples make one
    micro-batch is drawn. How unlike samples become one batch is up to what collates them.
    """


class BlendDataset(Blend):
    """The source is chosen for ``block_samples`` consecutive samples, so that every micro-batch is of one source.

    Blocks begin at the multiples of that number B. A loader refuses a micro-batch that does not divide B, since it
    would lie in two blocks. Which ranks take which blocks of a step is drawn. B is part of the recipe of a run; to
    change it is another order. At every prefix each source is within 2 blocks of its share.

    With ``repeats``, or ``end="samples"``, the counts of a pass must be whole blocks. The other ends are told in
    blocks: ``"first_exhausted"`` leaves less than a block of that source unseen, ``"all_exhausted"`` starts it
    anew by as much.

    Args:
        children: as of `Blend`.
        block_samples: B, at least 1.
        options: those of `Blend`.

    Raises:
        ConfigError: as `Blend`; B below 1; counts that are no whole blocks.
    """

    def __init__(self, children: Mapping[str, Dataset | Mix], *, block_samples: int, **options: Any) -> None:
        if index(block_samples) < 1:
            raise ConfigError(f"block_samples is at least 1, found {block_samples}")
        self.block_samples = index(block_samples)
        super().__init__(children, **options)
