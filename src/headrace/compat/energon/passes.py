"""``LimitDataset`` and ``RepeatDataset``: Energon's names for `Limit` and `Repeat`, and how programs validate.

    get_loader(LimitDataset(RepeatDataset(validation), length=100, reset_after_epoch=True))

Around what `get_val_dataset` returns they are `Passes`, whose loader iterates over the passes of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import msgspec

from headrace.compat.energon.dataset import EnergonDataset
from headrace.compat.energon.loader import EnergonLoader
from headrace.compat.energon.workers import WorkerConfig, check_worker_config, warn_no_effect
from headrace.datasets import Dataset, Limit, Repeat
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """The passes of a dataset, to be passed to `get_loader`.

    Attributes:
        dataset: what `get_val_dataset` returned.
        repeats: whether one pass follows another within an iteration.
        length: the most batches of this rank in an iteration; None for all.
        restarts: whether each iteration begins with the first batch; otherwise it goes on where the last one stopped.
    """

    dataset: EnergonDataset
    repeats: bool = False
    length: int | None = None
    restarts: bool = False

    @property
    def worker_config(self) -> WorkerConfig:
        """The configuration of the dataset."""
        return self.dataset.worker_config


class PassesLoader:
    """Iterates over the batches of `Passes`. Unlike the loader of the dataset, it has no state to save.

    Raises:
        ConfigError: while iterating: a pass without batches cannot be repeated.
    """

    def __init__(self, loader: EnergonLoader, passes: Passes) -> None:
        self._loader = loader
        self._passes = passes

    def __iter__(self) -> Iterator[Any]:
        if self._passes.restarts:
            self._loader.restore_state_rank(None)
        yield from islice(self._batches(), self._passes.length)

    def _batches(self) -> Iterator[Any]:
        while True:
            is_empty = True
            for batch in self._loader:
                is_empty = False
                yield batch
            if not self._passes.repeats:
                return
            if is_empty:
                raise ConfigError(f"RepeatDataset: {self._passes.dataset!r} has no batches for this rank to repeat")

    def close(self) -> None:
        """End worker processes; the next iteration starts new ones."""
        self._loader.close()


def LimitDataset(  # noqa: N802 -- Energon's name of a class
    dataset: Dataset | Mix | EnergonDataset | Passes,
    length: int,
    *,
    reset_after_epoch: bool = False,
    worker_config: WorkerConfig | None = None,
) -> Limit | Passes:
    """At most ``length`` batches in an iteration, or samples of a dataset of Headrace.

    Args:
        dataset: what `get_val_dataset` or `RepeatDataset` returned, or a dataset of Headrace.
        length: the number of batches of this rank, or of samples.
        reset_after_epoch: begin each iteration with the first batch. Around a dataset of Headrace it has no effect.
        worker_config: that of the dataset, or None.

    Raises:
        ConfigError: it is not a dataset, or the ``worker_config`` is another one than that of the dataset.
    """
    if isinstance(dataset, Dataset | Mix):
        warn_no_effect("LimitDataset", {"reset_after_epoch": reset_after_epoch or None})
        return Limit(dataset, length)
    if not isinstance(dataset, EnergonDataset | Passes):
        raise ConfigError(f"LimitDataset: expected a dataset, found {dataset!r:.80}")
    check_worker_config(dataset.worker_config, worker_config)
    passes = dataset if isinstance(dataset, Passes) else Passes(dataset=dataset)
    most = length if passes.length is None else min(length, passes.length)
    return msgspec.structs.replace(passes, length=most, restarts=reset_after_epoch or passes.restarts)


def RepeatDataset(  # noqa: N802 -- Energon's name of a class
    dataset: Dataset | Mix | EnergonDataset,
    *,
    repeats: float | Fraction | None = None,
    worker_config: WorkerConfig | None = None,
) -> Repeat | Passes:
    """The passes of what `get_val_dataset` returned, without end, or ``repeats`` passes of a dataset of Headrace.

    Raises:
        ConfigError: ``repeats`` is given for the former or left out for the latter; or as `LimitDataset`.
    """
    if isinstance(dataset, Dataset | Mix) and repeats is not None:
        return Repeat(dataset, repeats)
    if not isinstance(dataset, EnergonDataset) or repeats is not None:
        raise ConfigError(
            f"RepeatDataset: repeats is {repeats} for {dataset!r:.80}; a dataset of Headrace needs a number of repeats,"
            " and what get_val_dataset returns is repeated without end, and limited by LimitDataset"
        )
    check_worker_config(dataset.worker_config, worker_config)
    return Passes(dataset=dataset, repeats=True)
