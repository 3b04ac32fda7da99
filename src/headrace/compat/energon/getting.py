"""Energon's functions that open a path for training or validation, and those that make loaders.

`Passes` holds the options of passes over the data, shuffled or in order. It makes an `EnergonDataset` in one of three
ways: a stream of samples, units that a task encoder makes, or Energon's own order.

``LimitDataset`` and ``RepeatDataset``: Energon's names for `Limit` and `Repeat`, and how programs validate.

    get_loader(LimitDataset(RepeatDataset(validation), length=100, reset_after_epoch=True))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Literal, get_args

import msgspec

from headrace.compat.energon.dataset import (
    FOR_EVER,
    Batching,
    EnergonDataset,
    PathOrData,
    Tail,
    common_type,
    opened,
    over,
    parts,
)
from headrace.compat.energon.loader import EnergonLoader, loader_of, watched
from headrace.compat.energon.own_order import OwnOrder
from headrace.compat.energon.workers import WorkerConfig, check_worker_config, warn_no_effect
from headrace.config import Positive, check_choice, check_fields, whole
from headrace.datasets import Dataset, Framed, FramedRun, Limit, Mix, Repeat, Run
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.media import CachePool
from headrace.datasets.mix import length_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader import Reading
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonMixing, EnergonTopology


def LimitDataset(  # noqa: N802 -- Energon's name of a class
    dataset: Dataset | Mix | EnergonDataset,
    length: int,
    *,
    reset_after_epoch: bool = False,
    worker_config: WorkerConfig | None = None,
) -> Limit | EnergonDataset:
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
    if not isinstance(dataset, EnergonDataset):
        raise ConfigError(f"LimitDataset: expected a dataset, found {dataset!r:.80}")
    check_worker_config(dataset.worker_config, worker_config)
    most = length if dataset.most_batches is None else min(length, dataset.most_batches)
    return msgspec.structs.replace(dataset, most_batches=most, restarts=reset_after_epoch or dataset.restarts)


def RepeatDataset(  # noqa: N802 -- Energon's name of a class
    dataset: Dataset | Mix | EnergonDataset,
    *,
    repeats: float | Fraction | None = None,
    worker_config: WorkerConfig | None = None,
) -> Repeat | EnergonDataset:
    """The passes of what `get_val_dataset` returned, without end, or ``repeats`` passes of a dataset of Headrace.

    Raises:
        ConfigError: ``repeats`` is given for the former or left out for the latter; or as `LimitDataset`.
    """
    if isinstance(dataset, Dataset | Mix) and repeats is not None:
        return Repeat(dataset, repeats)
    if not isinstance(dataset, EnergonDataset) or repeats is not None or dataset.most_batches is not None:
        raise ConfigError(
            f"RepeatDataset: repeats is {repeats} for {dataset!r:.80}; a dataset of Headrace needs a number of repeats,"
            " and what get_val_dataset returns is repeated without end, and limited by LimitDataset"
        )
    check_worker_config(dataset.worker_config, worker_config)
    return msgspec.structs.replace(dataset, repeats=True)


Kind = Literal["shards", "full", "blocks", "energon"]
ValidationKind = Literal["stride", "energon"]


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """How data are passed through; see the arguments of `get_train_dataset` and `get_val_dataset`.

    Raises:
        ConfigError: the order is unknown, or the limit is below one batch.
    """

    training: bool
    order: Literal["shards", "full", "blocks", "stride", "energon"]
    tail: Tail
    repeat: bool = False
    limit: Positive | None = None
    virtual_epoch_length: int = 0
    global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None
    shuffle_buffer_size: int | None = None
    max_samples_per_sequence: int | None = None
    parallel_shard_iters: int | None = None
    shuffle_over_epochs_multiplier: int | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, get_args(Kind if self.training else ValidationKind))
        check_fields(self)

    def of(
        self, data: Dataset | Mix, units: Framed | None, batching: Batching, worker_config: WorkerConfig
    ) -> EnergonDataset:
        """Make the dataset of these passes over data, or over the units that a task encoder makes of them.

        Raises:
            ConfigError: an option does not go with the order or the data.
        """
        make = partial(
            EnergonDataset,
            worker_config=worker_config,
            training=self.training,
            virtual_epoch_length=self.virtual_epoch_length,
            sample_type=common_type(data),
            cache=batching.cache,
            again=partial(self.of, batching=batching, worker_config=worker_config),
        )
        schedule = None if self.global_batch_size is None else BatchSchedule.of(self.global_batch_size)
        if self.order == "energon":
            if units is not None:
                raise ConfigError(
                    f"order='energon' is for one output of each sample, but this source is framed: {units.describe()}; "
                    "choose another order"
                )
            own = self._own_order(data, batching.samples(data), worker_config)
            return make(stream=own.run, own_order=own, batch_size=batching.samples(data))
        shuffling = self._shuffling(worker_config.seed_offset)
        if units is not None:
            size = batching.samples(data, units)
            run = self._framed(units, size * worker_config.world_size, shuffling, schedule, batching.num_lanes)
            return make(stream=run.stream, framed=run, batch_size=size, limit=self.limit, global_batch_size=schedule)
        size, once = batching.samples(data), self._once(data)
        if once is not None and self.limit is not None:
            once = min(once, self.limit * size * worker_config.world_size)
        return make(
            stream=Run(data, global_batch_size=schedule or 1, order=shuffling),
            batch_size=size,
            pass_samples=once,
            tail=self.tail,
            global_batch_size=schedule,
        )

    def _once(self, data: Dataset | Mix) -> int | None:
        """The samples of a single pass; None if one follows another."""
        samples = None if self.repeat else length_of(data)
        if not self.repeat and samples is None:
            raise ConfigError(
                f"{data!r} has no end, but one pass of it is wanted (repeat=False, or validation): limit it with Limit,"
                " or mix it by repeats instead of weights"
            )
        return samples

    def _own_order(self, data: Dataset | Mix, batch_size: int, worker_config: WorkerConfig) -> OwnOrder:
        mixing = None
        if self.tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")
        if self.training:
            if self.global_batch_size is not None:
                raise ConfigError("order='energon' has only the batches of workers; leave global_batch_size out")
            if self.shuffle_over_epochs_multiplier is None:
                raise ConfigError("shuffle_over_epochs_multiplier=None: Energon's training order is always shuffled")
            workers = max(1, worker_config.num_workers)
            if self.virtual_epoch_length % workers:
                raise ConfigError(
                    f"virtual_epoch_length is {self.virtual_epoch_length:,} for {workers:,} workers; with "
                    "order='energon' it must be a multiple of the number of workers, so that each epoch begins with the"
                    " same worker"
                )
            mixing = EnergonMixing(
                max_samples_per_sequence=self.max_samples_per_sequence,
                parallel_shard_iters=16 if self.parallel_shard_iters is None else self.parallel_shard_iters,
                shuffle_buffer_size=self.shuffle_buffer_size or 0,
                repeat=self.repeat,
            )
        return OwnOrder(
            Run(data, global_batch_size=1, order=Order(kind="none")),
            topology=EnergonTopology(
                world_size=worker_config.world_size,
                num_workers=worker_config.num_workers,
                seed_offset=worker_config.seed_offset,
            ),
            mixing=mixing,
            batch_size=batch_size,
            drop_last=self.tail == "drop",
            limit=self.limit,
            shuffle_over_epochs=1 if mixing is None else self.shuffle_over_epochs_multiplier or 0,
        )

    def _framed(
        self, units: Framed, together: int, order: Order, schedule: BatchSchedule | None, num_lanes: int | None
    ) -> FramedRun:
        """The run of units: endless with ``repeat``, otherwise one pass. All ranks take ``together`` at a time."""
        if self.tail != "spread" and not self.repeat:
            raise ConfigError(
                f"tail is {self.tail!r}, or batch_drop_last=True, but the number of units that a task encoder makes is"
                " known only at the end, so the last units can only be spread over the ranks; leave both out"
            )
        samples = self._once(units.data)
        if self.repeat and isinstance(units.data, Mix) and length_of(units.data) is not None:
            samples = FOR_EVER
        if schedule is None and num_lanes is not None and whole(num_lanes, "num_lanes") % together:
            raise ConfigError(
                f"num_lanes is {num_lanes:,}, and all ranks take {together:,} at a time; without global_batch_size,"
                f" num_lanes must be a multiple of {together:,}, so that each slot of a batch belongs to one lane"
            )
        return FramedRun(
            units,
            global_batch_size=schedule or num_lanes or together,
            num_lanes=num_lanes,
            order=order,
            samples=samples,
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
    passes = Passes(
        training=True,
        order=order,
        tail="drop" if batch_drop_last else "spread",
        repeat=repeat,
        virtual_epoch_length=virtual_epoch_length,
        global_batch_size=global_batch_size,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        parallel_shard_iters=parallel_shard_iters,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
    )
    batching = Batching(
        task_encoder,
        worker_config,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
        own_order=order == "energon",
    )
    data, units = opened(
        path, split_part, batching, training=True, global_batch_size=global_batch_size, options=options
    )
    return passes.of(data, units, batching, worker_config)


def get_savable_loader(
    dataset: EnergonDataset,
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
) -> EnergonLoader:
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
    if dataset.tail == "pad" and not as_columns:
        raise ConfigError(
            "tail='pad' fills up the last batch, and only columns say which samples fill it, in sample_mask: pass"
            " as_columns=True, or choose another tail"
        )
    if cache_pool is not None and dataset.cache is not None:
        dataset.cache.pool = cache_pool
    num_workers = dataset.worker_config.num_workers
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
    loader = loader_of(dataset, reading, report, file, as_columns=as_columns)
    if not num_workers and watchdog_timeout_seconds is not None:
        loader.watch = partial(watched, timeout_seconds=watchdog_timeout_seconds)
    return loader


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
    order: ValidationKind = "stride",
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
    if batch_drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    passes = Passes(training=False, order=order, limit=limit, tail="drop" if batch_drop_last else tail)
    batching = Batching(
        task_encoder,
        worker_config,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
        own_order=order == "energon",
    )
    data, units = opened(path, split_part, batching, training=False, global_batch_size=None, options=options)
    return passes.of(data, units, batching, worker_config)


def get_val_datasets(path: PathOrData, **arguments: Any) -> list[tuple[EnergonDataset, Dataset | Mix]]:
    """Call `get_val_dataset` for each dataset separately.

    The arguments are those of `get_val_dataset`. Returns pairs of the validation dataset and the dataset that it was
    made from.
    """
    whole = get_val_dataset(path, **arguments)
    units = None if whole.framed is None else whole.framed.data
    data = whole.stream.data if units is None else units.data
    return [(whole.again(part, None if units is None else over(units, part)), part) for part in parts(data)]
