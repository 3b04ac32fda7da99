"""Passes over data: shuffled ones to train on, and one after the other in order to validate with.

A pass knows the options of its kind, and makes an `EnergonDataset` of data in one of three ways: a stream of samples,
units that a task encoder frames, or Energon's own order.
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
    """How data are trained on; see the arguments of `get_train_dataset`.

    Raises:
        ConfigError: an unknown order.
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
        """Raises ConfigError: an option that does not go with ``order="energon"``."""
        if self.global_batch_size is not None:
            raise ConfigError("order='energon' knows batches of workers only; leave global_batch_size out")
        if self.shuffle_over_epochs_multiplier is None:
            raise ConfigError("shuffle_over_epochs_multiplier=None: Energon's training order is always shuffled")
        workers = max(1, worker_config.num_workers)
        if self.virtual_epoch_length % workers:
            raise ConfigError(
                f"virtual_epoch_length is {self.virtual_epoch_length:,} for {workers:,} workers; with order='energon' "
                "it is a multiple, so that an epoch ends where it began"
            )

    def in_own_order(self, data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int) -> EnergonDataset:
        """Passes in Energon's own order."""
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
        """Passes of units. Raises ConfigError: a last batch that is left out."""
        shuffling = self._shuffling(worker_config.seed_offset)
        schedule = self._schedule()
        if self.drop_last and not self.repeat:
            raise ConfigError("batch_drop_last=True: which batch is the last shows after it was given; leave it out")
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
        """Passes of samples. Raises ConfigError: one pass of data that have no end."""
        shuffling = self._shuffling(worker_config.seed_offset)
        schedule = self._schedule()
        once = None if self.repeat else length_of(data)
        if not self.repeat and once is None:
            raise ConfigError(f"repeat=False: {data!r} has no end; give it one, or repeats in the place of weights")
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
                f"shuffle_over_epochs_multiplier is {multiplier}: here each epoch has every sample once; allowed are 1 "
                "and more, None for no shuffling, and with order='energon' -1"
            )
        if self.order != "shards":
            return Order(kind=self.order, seed=seed)  # type: ignore[arg-type]
        slice_samples = 100 if self.max_samples_per_sequence is None else self.max_samples_per_sequence
        slices = Order().parallel_shard_iters if self.parallel_shard_iters is None else self.parallel_shard_iters
        if slice_samples >= 1:
            slices = max(slices, -(-(self.shuffle_buffer_size or 0) // slice_samples))
        return Order(kind="shards", seed=seed, max_samples_per_sequence=slice_samples, parallel_shard_iters=slices)


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """How data are validated with; see the arguments of `get_val_dataset`.

    Raises:
        ConfigError: an unknown order, or a limit below one batch.
    """

    order: Literal["stride", "energon"]
    limit: int | None
    tail: Tail

    def __post_init__(self) -> None:
        if self.order not in ("stride", "energon"):
            raise ConfigError(f"order is {self.order!r}; allowed are 'stride', 'energon'")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit is at least one batch, found {self.limit}; None is all")

    def check_own_order(self, worker_config: WorkerConfig) -> None:
        """Raises ConfigError: padding, which Energon's order does not have."""
        if self.tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")

    def in_own_order(self, data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int) -> EnergonDataset:
        """One pass in Energon's own order."""
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
        """One pass of units. Raises ConfigError: another end than the only one there is."""
        if self.tail != "spread":
            raise ConfigError(
                f"tail is {self.tail!r}, and how many units a task encoder makes shows after they were given: the last "
                "ones are shared out; leave tail and batch_drop_last out"
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
        """One pass of samples. Raises ConfigError: data that have no end."""
        batch_size, samples = batching.samples(data), length_of(data)
        if samples is None:
            raise ConfigError(f"{data!r} has no end, and validation has one; limit it with Limit")
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
    """What lies at a path, opened and ready for passes.

    Args:
        path, split_part, worker_config, options: see `get_train_dataset`.
        passes: to train on it, or to validate with it.
        batching: what a task encoder makes of the samples.

    Raises:
        ConfigError: options that contradict each other or do not suit the data.
        StoreError: nothing is there, or it is malformed.
    """
    training = isinstance(passes, Training)
    steps = passes.global_batch_size if isinstance(passes, Training) else None
    found = opened(path, split_part, batching, training=training, global_batch_size=steps, options=options)
    return over_passes(found, passes, batching, worker_config)


def over_passes(
    found: OpenedUnits, passes: Training | Validation, batching: Batching, worker_config: WorkerConfig
) -> EnergonDataset:
    """Passes over data that are open, see `prepared`."""
    data, units = found
    if passes.order == "energon":
        if units is not None:
            raise ConfigError(
                f"order='energon' is for one output of each sample, and here are units: {units.describe()}; choose "
                "another order"
            )
        passes.check_own_order(worker_config)
        return passes.in_own_order(data, worker_config, batching.samples(data))
    if units is not None:
        return passes.of_units(units, worker_config, batching)
    return passes.of_samples(data, worker_config, batching)
