"""Energon's functions that open a path for training or validation, and those that make loaders.

`Training` and `Validation` hold the options of a pass over the data, shuffled or in order. Each makes an
`EnergonDataset` in one of three ways: a stream of samples, units that a task encoder makes, or Energon's own order.

``LimitDataset`` and ``RepeatDataset``: Energon's names for `Limit` and `Repeat`, and how programs validate.

    get_loader(LimitDataset(RepeatDataset(validation), length=100, reset_after_epoch=True))

Around what `get_val_dataset` returns they are `Passes`, whose loader iterates over the passes of the dataset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, Literal, overload

import msgspec

from headrace.compat.energon.dataset import (
    Batching,
    EnergonDataset,
    OpenedUnits,
    PathOrData,
    Tail,
    common_type,
    in_own_order,
    opened,
    over,
    parts,
)
from headrace.compat.energon.loader import EnergonLoader, framed_dataset, loader_of, watched
from headrace.compat.energon.workers import WorkerConfig, check_worker_config, warn_no_effect
from headrace.config import Positive, check_fields
from headrace.datasets import Dataset, Framed, Limit, Repeat, Run
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.media import CachePool
from headrace.datasets.mix import Mix, length_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader.reading import Reading
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonMixing


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


Kind = Literal["shards", "full", "blocks", "energon"]


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
        check_fields(self)

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
    limit: Positive | None
    tail: Tail

    def __post_init__(self) -> None:
        check_fields(self)

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
    made = _over_passes(found, passes, batching, worker_config)
    return msgspec.structs.replace(made, sample_type=common_type(found.data), cache=batching.cache)


def _over_passes(
    found: OpenedUnits, passes: Training | Validation, batching: Batching, worker_config: WorkerConfig
) -> EnergonDataset:
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


def get_train_dataset(
    path: PathOrData,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    repeat: bool = True,
    order: Kind = "shards",
    global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None,
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> EnergonDataset:
    """Open data for training: shuffled and endless.

    Each epoch of each source has every sample once. Neither the order nor the state depends on the number of ranks and
    workers, so a run can be resumed with other numbers. Only ``order="energon"`` is bound to them.

    Args:
        path: an Energon dataset, tar shards, a ``.jsonl`` file, a metadataset (``.yaml``, or the content of one), or
            data that are open already: a dataset, a blend, or a `Framed` source.
        split_part: the part of the dataset or metadataset.
        worker_config: rank, workers and seed.
        batch_size: samples of a batch on this rank. None: ``batch_group_criterion`` returns the size, or without that
            hook nothing is batched, and the loader gives single samples.
        batch_drop_last: without ``repeat``, leave out a last batch that not all ranks can fill.
        shuffle_buffer_size: the least number of samples to shuffle among; ``order="shards"`` opens enough slices.
        max_samples_per_sequence: the number of neighbouring samples of a shard that are read together. None means 100,
            and no limit in Energon's order.
        parallel_shard_iters: the number of slices that are open at once. None means 128, and 16 in Energon's order.
        virtual_epoch_length: batches of this rank in an iteration of the loader; with 0, an iteration does not end.
        shuffle_over_epochs_multiplier: None does not shuffle. Numbers from 1 on make a difference only in Energon's
            order, since otherwise each epoch has all samples. -1 is allowed only there, and draws with replacement.
        repeat: if False, an iteration is one pass, and the next iteration is the next pass; with a framed source it is
            the same pass again.
        order: ``"shards"``; ``"full"``, a permutation of all samples; ``"blocks"``; or ``"energon"``, Energon's own
            order bit for bit, which is bound to ranks and workers. Without ``repeat`` its passes are all the same.
        global_batch_size: as for `headrace.Run`. With None a step is one batch of every rank, so its size depends on
            the number of ranks.
        task_encoder: cooks, encodes and batches the samples of every dataset; None acts as ``DefaultTaskEncoder()``.
            Random numbers in its hooks follow from the seed of ``worker_config``. An encoder that is a generator,
            groups or packs makes a framed source, whose state is divided among the ranks; see `FramedLoader`.
        packing_buffer_size: the number of samples of each lane among which ``select_samples_to_pack`` chooses. With
            None the encoder's packing hooks are not used.
        errors: what to do about samples that cannot be made; None raises the error.
        framed: treat an encoder with one output a sample as a framed source too, so that `SkipSample` leaves samples
            out.
        num_lanes: the number of lanes of a framed source. With ``global_batch_size`` it must divide the global batch
            size; otherwise it is a multiple of the number of units that all ranks take at a time. If neither is given,
            it is that number, and a state can only be resumed with the same number.
        options: those of `headrace.MediaDataset.open`, and ``subset``, a range of the samples. For a metadataset those
            of `SourceOptions`.

    Raises:
        ConfigError: an option is out of range, unknown, or does not go with another.
        StoreError: nothing is there, or the data are malformed.

    Example:
        >>> energon = headrace.compat.energon
        >>> config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = energon.get_train_dataset("shards", worker_config=config, batch_size=4)
        >>> batch = next(iter(energon.get_savable_loader(dataset)))
        >>> len(batch.caption)
        4
    """
    passes = Training(
        order=order,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        parallel_shard_iters=parallel_shard_iters,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        repeat=repeat,
        drop_last=batch_drop_last,
        virtual_epoch_length=virtual_epoch_length,
        global_batch_size=global_batch_size,
    )
    batching = Batching(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=worker_config.policy(errors),
        framed=framed,
        num_lanes=num_lanes,
        own_order=order == "energon",
    )
    return prepared(path, split_part, passes, batching, worker_config, options)


@overload
def get_savable_loader(dataset: EnergonDataset, **options: Any) -> EnergonLoader: ...


@overload
def get_savable_loader(dataset: Passes, **options: Any) -> PassesLoader: ...


def get_savable_loader(  # type: ignore[misc]  # the overloads leave the options to this one
    dataset: EnergonDataset | Passes,
    *,
    worker_config: WorkerConfig | None = None,
    cache_pool: CachePool | None = None,
    as_columns: bool = False,
    checkpoint_every_sec: float | None = None,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int | None = None,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool | None = None,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    persistent_workers: bool = False,
    start_method: Literal["fork", "spawn"] | None = None,
    worker_init: Callable[[], Any] | str | None = None,
    watchdog_timeout_seconds: float | None = 300.0,
    fault_report: str | os.PathLike[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> EnergonLoader | PassesLoader:
    """Make the loader of this rank, with the number of worker processes in the ``worker_config`` of the dataset.

    Args:
        dataset: what `get_train_dataset` or `get_val_dataset` returned, or `LimitDataset` or `RepeatDataset` around it.
        worker_config: that of the dataset, or None.
        cache_pool: the cache of cookers and hooks, such as a `FileStoreCachePool`; None keeps nothing.
        as_columns: batches are dicts, name -> tensor or list, with the positions of their samples in
            ``sample_positions`` (or of their units in ``unit_numbers``), whatever the task encoder makes.
        checkpoint_every_sec, checkpoint_every_min_n_samples, n_checkpoints: Energon's; without effect, with a warning.
        gc_collect_every_n_steps, watchdog_initial_timeout_seconds, fail_on_timeout: the same.
        prefetch_factor: the number of batches that each worker keeps ready.
        pin_memory, persistent_workers, start_method, worker_init: see `headrace.loader.Reading`.
        watchdog_timeout_seconds: how long a batch may take; after that its worker is replaced. None: an hour. Without
            workers, the stacks of all threads are logged.
        fault_report, journal: see `headrace.Loader`. Only a framed source can have a journal.

    Raises:
        ConfigError: a journal is asked for and the source is not framed, or several ranks share one file; the
            ``worker_config`` is another one than that of the dataset; or padding is asked for, which only columns mark.
    """
    warn_no_effect(
        "get_savable_loader",
        {
            "checkpoint_every_sec": checkpoint_every_sec,
            "checkpoint_every_min_n_samples": checkpoint_every_min_n_samples,
            "n_checkpoints": n_checkpoints,
            "gc_collect_every_n_steps": gc_collect_every_n_steps,
            "watchdog_initial_timeout_seconds": watchdog_initial_timeout_seconds,
            "fail_on_timeout": fail_on_timeout,
        },
    )
    check_worker_config(dataset.worker_config, worker_config)
    inner = dataset.dataset if isinstance(dataset, Passes) else dataset
    if inner.tail == "pad" and not as_columns:
        raise ConfigError(
            "tail='pad' fills up the last batch, and only columns say which samples fill it, in sample_mask: pass"
            " as_columns=True, or choose another tail"
        )
    if cache_pool is not None and inner.cache is not None:
        inner.cache.pool = cache_pool
    num_workers = inner.worker_config.num_workers
    reading = Reading(
        num_threads=0,
        num_workers=num_workers,
        prefetch=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        start_method=start_method,
        worker_init=worker_init,
        timeout_s=_HOUR if watchdog_timeout_seconds is None else watchdog_timeout_seconds,
    )
    report, file = (None if path is None else os.fspath(path) for path in (fault_report, journal))
    loader = loader_of(inner, reading, report, file, as_columns=as_columns)
    if not num_workers and watchdog_timeout_seconds is not None:
        loader.watch = partial(watched, timeout_seconds=watchdog_timeout_seconds)
    return PassesLoader(loader, dataset) if isinstance(dataset, Passes) else loader


_HOUR = 3600.0


get_loader = get_savable_loader
"""The same function: every loader can be saved, at no cost."""


def get_val_dataset(
    path: PathOrData,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "spread",
    order: Literal["stride", "energon"] = "stride",
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> EnergonDataset:
    """Open data for validation: every sample once, in the order of the stores, with equally many batches on all ranks.

    Each iteration of the loader is the whole pass again. The batches of all ranks together are consecutive samples.

    Args:
        path: a dataset, or a metadataset, whose datasets come one after another. This and the arguments that are not
            listed here are those of `get_train_dataset`.
        batch_drop_last: the same as ``tail="drop"``.
        limit: the number of batches of this rank.
        tail: what happens to the last samples, which are too few for a batch on every rank. ``"spread"`` divides them
            as evenly as possible, so that a rank may get none; ``"pad"`` fills up the batches with the first samples,
            which ``sample_mask`` marks; ``"drop"`` leaves them out. A framed source allows only ``"spread"``, and its
            ranks have equally many batches only with ``agree``, see `WorkerConfig`.
        order: ``"stride"``; or ``"energon"``, where each rank and worker reads its own range of neighbouring samples,
            and ranks may have different numbers of batches.

    Raises:
        ConfigError, StoreError: as `get_train_dataset`.

    Example:
        >>> energon = headrace.compat.energon
        >>> config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = energon.get_val_dataset("shards", split_part="train", worker_config=config, batch_size=4)
        >>> loader = energon.get_savable_loader(dataset)
        >>> sum(1 for batch in loader) == len(dataset)
        True
    """
    passes = _validation(order, limit, tail, batch_drop_last)
    batching = Batching(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=worker_config.policy(errors),
        framed=framed,
        num_lanes=num_lanes,
        own_order=order == "energon",
    )
    return prepared(path, split_part, passes, batching, worker_config, options)


def get_val_datasets(
    path: PathOrData,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "spread",
    order: Literal["stride", "energon"] = "stride",
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> list[tuple[EnergonDataset, Dataset | Mix]]:
    """Call `get_val_dataset` for each dataset separately.

    The arguments are those of `get_val_dataset`. Returns pairs of the validation dataset and the dataset that it was
    made from.
    """
    passes = _validation(order, limit, tail, batch_drop_last)
    batching = Batching(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=worker_config.policy(errors),
        framed=framed,
        num_lanes=num_lanes,
        own_order=order == "energon",
    )
    data, units = opened(path, split_part, batching, training=False, global_batch_size=None, options=options)
    found = []
    for part in parts(data):
        of_part = OpenedUnits(part, None if units is None else over(units, part))
        found.append((over_passes(of_part, passes, batching, worker_config), part))
    return found


def _validation(order: Literal["stride", "energon"], limit: int | None, tail: Tail, drop_last: bool) -> Validation:
    if drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    return Validation(order=order, limit=limit, tail="drop" if drop_last else tail)
