"""Passes over data: shuffled passes for training, and passes in order for validation.

`Training` and `Validation` hold the options of a pass. Each makes an `EnergonDataset` in one of three ways: a stream of
samples, units that a task encoder makes, or Energon's own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.compat.energon.batching import Batching, OpenedUnits, PathOrData, opened
from headrace.compat.energon.dataset import EnergonDataset, Tail, WorkerConfig, in_own_order
from headrace.compat.energon.framed import framed_dataset
from headrace.datasets import Dataset, Framed, Run
from headrace.datasets.mix import Mix, length_of
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonMixing

Kind = Literal["shards", "full", "blocks", "energon"]
_KINDS = ("shards", "full", "blocks", "energon")


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """The options of passes for training; see the arguments of `get_train_dataset`.

    Raises:
        ConfigError: the order is unknown.
    """

    order: Kind
    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    parallel_shard_iters: int | None
    shuffle_over_epochs_multiplier: int | None
    repeat: bool
    drop_last: bool
    virtual_epoch_length: int
    global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None

    def __post_init__(self) -> None:
        if self.order not in _KINDS:
            raise ConfigError(f"order is {self.order!r}; allowed are {', '.join(map(repr, _KINDS))}")

    def _schedule(self) -> BatchSchedule | None:
        return None if self.global_batch_size is None else BatchSchedule.of(self.global_batch_size)

    def check_own_order(self, worker_config: WorkerConfig) -> None:
        """Raise ConfigError for an option that does not go with ``order="energon"``."""
        if self.global_batch_size is not None:
            raise ConfigError("order='energon' has only the batches of workers; leave global_batch_size out")
        if self.shuffle_over_epochs_multiplier is None:
            raise ConfigError("shuffle_over_epochs_multiplier=None: Energon's training order is always shuffled")
        workers = max(1, worker_config.num_workers)
        if self.virtual_epoch_length % workers:
            raise ConfigError(
                f"virtual_epoch_length is {self.virtual_epoch_length:,} for {workers:,} workers; with order='energon' "
                "it must be a multiple of the number of workers, so that each epoch begins with the same worker"
            )

    def in_own_order(self, data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int) -> EnergonDataset:
        """The passes in Energon's own order."""
        mixing = EnergonMixing(
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=16 if self.parallel_shard_iters is None else self.parallel_shard_iters,
            shuffle_buffer_size=self.shuffle_buffer_size or 0,
            repeat=self.repeat,
        )
        return in_own_order(
            data,
            worker_config,
            training=True,
            mixing=mixing,
            batch_size=batch_size,
            drop_last=self.drop_last,
            shuffle_over_epochs=self.shuffle_over_epochs_multiplier,
            virtual_epoch_length=self.virtual_epoch_length,
        )

    def of_units(self, units: Framed, worker_config: WorkerConfig, batching: Batching) -> EnergonDataset:
        """The passes over units. Raises ConfigError if the last batch should be left out."""
        shuffling = self._shuffling(worker_config.seed_offset)
        schedule = self._schedule()
        if self.drop_last and not self.repeat:
            raise ConfigError(
                "batch_drop_last=True: only after a batch was delivered is it known to be the last; leave the option"
                " out"
            )
        return framed_dataset(
            units,
            worker_config,
            batch_size=batching.batch_size,
            training=True,
            order=shuffling,
            repeat=self.repeat,
            virtual_epoch_length=self.virtual_epoch_length,
            schedule=schedule,
            num_lanes=batching.num_lanes,
        )

    def of_samples(self, data: Dataset | Mix, worker_config: WorkerConfig, batching: Batching) -> EnergonDataset:
        """The passes over samples. Raises ConfigError if single passes over endless data are asked for."""
        shuffling = self._shuffling(worker_config.seed_offset)
        schedule = self._schedule()
        once = None if self.repeat else length_of(data)
        if not self.repeat and once is None:
            raise ConfigError(f"repeat=False: {data!r} has no end; give it one, or use repeats instead of weights")
        return EnergonDataset(
            stream=Run(data, global_batch_size=schedule or 1, order=shuffling),
            worker_config=worker_config,
            batch_size=batching.samples(data),
            training=True,
            pass_samples=once,
            tail="drop" if self.drop_last else "spread",
            virtual_epoch_length=self.virtual_epoch_length,
            global_batch_size=schedule,
        )

    def _shuffling(self, seed: int) -> Order:
        multiplier = self.shuffle_over_epochs_multiplier
        if multiplier is None:
            return Order(kind="none")
        if multiplier < 1:
            raise ConfigError(
                f"shuffle_over_epochs_multiplier is {multiplier}, but here each epoch has every sample once; allowed "
                "are numbers from 1 on, None for no shuffling, and -1 only with order='energon'"
            )
        if self.order != "shards":
            return Order(kind=self.order, seed=seed)  # type: ignore[arg-type]
        slice_samples = 100 if self.max_samples_per_sequence is None else self.max_samples_per_sequence
        slices = Order().parallel_shard_iters if self.parallel_shard_iters is None else self.parallel_shard_iters
        if slice_samples >= 1:
            slices = max(slices, -(-(self.shuffle_buffer_size or 0) // slice_samples))
        return Order(kind="shards", seed=seed, max_samples_per_sequence=slice_samples, parallel_shard_iters=slices)


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The options of passes for validation; see the arguments of `get_val_dataset`.

    Raises:
        ConfigError: the order is unknown, or the limit is below one batch.
    """

    order: Literal["stride", "energon"]
    limit: int | None
    tail: Tail

    def __post_init__(self) -> None:
        if self.order not in ("stride", "energon"):
            raise ConfigError(f"order is {self.order!r}; allowed are 'stride', 'energon'")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit is at least one batch, found {self.limit}; None reads all batches")

    def check_own_order(self, worker_config: WorkerConfig) -> None:
        """Raise ConfigError for padding, which Energon's order does not have."""
        if self.tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")

    def in_own_order(self, data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int) -> EnergonDataset:
        """The pass in Energon's own order."""
        return in_own_order(
            data,
            worker_config,
            training=False,
            mixing=None,
            batch_size=batch_size,
            drop_last=self.tail == "drop",
            limit=self.limit,
        )

    def of_units(self, units: Framed, worker_config: WorkerConfig, batching: Batching) -> EnergonDataset:
        """The pass over units. Raises ConfigError for another tail than ``"spread"``."""
        if self.tail != "spread":
            raise ConfigError(
                f"tail is {self.tail!r}, but the number of units that a task encoder makes is known only at the end, "
                "so the last units can only be spread over the ranks; leave tail and batch_drop_last out"
            )
        return framed_dataset(
            units,
            worker_config,
            batch_size=batching.batch_size,
            training=False,
            order=Order(kind="none"),
            limit=self.limit,
            num_lanes=batching.num_lanes,
        )

    def of_samples(self, data: Dataset | Mix, worker_config: WorkerConfig, batching: Batching) -> EnergonDataset:
        """The pass over samples. Raises ConfigError for endless data."""
        batch_size, samples = batching.samples(data), length_of(data)
        if samples is None:
            raise ConfigError(f"{data!r} has no end, but validation needs one; limit it with Limit")
        if self.limit is not None:
            samples = min(samples, self.limit * batch_size * worker_config.world_size)
        return EnergonDataset(
            stream=Run(data, global_batch_size=1, order=Order(kind="none")),
            worker_config=worker_config,
            batch_size=batch_size,
            training=False,
            pass_samples=samples,
            tail=self.tail,
        )


def prepared(
    path: PathOrData,
    split_part: str,
    passes: Training | Validation,
    batching: Batching,
    worker_config: WorkerConfig,
    options: dict[str, object],
) -> EnergonDataset:
    """Open the data at a path, and make an `EnergonDataset` of them.

    Args:
        path, split_part, worker_config, options: see `get_train_dataset`.
        passes: the passes to make, for training or for validation.
        batching: how samples become batches.

    Raises:
        ConfigError: the options contradict each other, or do not suit the data.
        StoreError: nothing is there, or the data are malformed.
    """
    training = isinstance(passes, Training)
    steps = passes.global_batch_size if isinstance(passes, Training) else None
    found = opened(path, split_part, batching, training=training, global_batch_size=steps, options=options)
    return over_passes(found, passes, batching, worker_config)


def over_passes(
    found: OpenedUnits, passes: Training | Validation, batching: Batching, worker_config: WorkerConfig
) -> EnergonDataset:
    """Make an `EnergonDataset` of data that are open already; see `prepared`."""
    data, units = found
    if passes.order == "energon":
        if units is not None:
            raise ConfigError(
                f"order='energon' is for one output of each sample, but this source is framed: {units.describe()}; "
                "choose another order"
            )
        passes.check_own_order(worker_config)
        return passes.in_own_order(data, worker_config, batching.samples(data))
    if units is not None:
        return passes.of_units(units, worker_config, batching)
    return passes.of_samples(data, worker_config, batching)
