"""The functions that open a path to validate with: every sample once."""

from __future__ import annotations

from typing import Any, Literal

from headrace.datasets import Dataset, Framed, Run
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.mix import Mix, length_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader.energon.dataset import EnergonDataset, Tail, in_own_order
from headrace.loader.energon.framed import framed_dataset
from headrace.loader.energon.making import Making, over
from headrace.loader.energon.opening import Given, opened, parts
from headrace.loader.energon.worker_config import WorkerConfig
from headrace.plan import Order


def get_val_dataset(
    path: Given,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "deal",
    order: Literal["stride", "energon"] = "stride",
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> EnergonDataset:
    """What to validate with: every sample once, in the order of the stores, in as many batches on every rank.

    Each iteration of its loader is the whole of it again. The batches of all ranks together are consecutive samples.

    Args:
        path, split_part, worker_config, batch_size, task_encoder, packing_buffer_size, errors, framed, num_lanes,
            options: see `get_train_dataset`; of a metadataset all datasets one after another.
        batch_drop_last: as ``tail="drop"``.
        limit: batches of this rank.
        tail: what not all ranks can fill: ``"deal"`` gives each as even a part of it as there is, maybe none;
            ``"pad"`` fills it with the first samples, which ``sample_mask`` tells apart; ``"drop"`` leaves it out. Of
            a framed source only ``"deal"``, and ranks have as many batches if they agree, see `WorkerConfig`.
        order: ``"stride"``; or ``"energon"``, where each rank and worker has a run of neighbours of its own, and maybe
            another number of batches.

    Raises:
        ConfigError, StoreError: as `get_train_dataset`.
    """
    if order not in ("stride", "energon"):
        raise ConfigError(f"order is {order!r}; allowed are 'stride', 'energon'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is at least one batch, found {limit}; None is all")
    if batch_drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    making = Making(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
    )
    data, units = opened(path, split_part, making, training=False, global_batch_size=None, options=options)
    tail = "drop" if batch_drop_last else tail
    if units is not None:
        return _framed_validation(units, worker_config, batch_size, limit, tail, order, num_lanes)
    return _validation(data, worker_config, making.samples(data), limit, tail, order)


def get_val_datasets(
    path: Given,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "deal",
    order: Literal["stride", "energon"] = "stride",
    **options: Any,
) -> list[tuple[EnergonDataset, Dataset | Mix]]:
    """`get_val_dataset` for each of the datasets by itself, with the dataset that it is of; the same arguments."""
    whole = get_val_dataset(
        path,
        split_part=split_part,
        worker_config=worker_config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        limit=limit,
        tail="deal",
        order=order,
        **options,
    )
    tail = "drop" if batch_drop_last else tail
    found = parts(whole.stream.data)
    if whole.framed is not None:
        units, lanes = whole.framed.data, options.get("num_lanes")
        return [
            (_framed_validation(over(units, part), worker_config, batch_size, limit, tail, order, lanes), part)
            for part in found
        ]
    return [(_validation(part, worker_config, whole.batch_size, limit, tail, order), part) for part in found]


def _validation(
    data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int, limit: int | None, tail: Tail, order: str
) -> EnergonDataset:
    if order == "energon":
        if tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")
        return in_own_order(
            data,
            worker_config,
            training=False,
            mixing=None,
            batch_size=batch_size,
            drop_last=tail == "drop",
            limit=limit,
        )
    samples = length_of(data)
    if samples is None:
        raise ConfigError(f"{data!r} has no end, and validation has one; limit it with LimitDataset")
    if limit is not None:
        samples = min(samples, limit * batch_size * worker_config.world_size)
    return EnergonDataset(
        stream=Run(data, global_batch_size=1, order=Order(kind="none")),
        worker_config=worker_config,
        batch_size=batch_size,
        training=False,
        pass_samples=samples,
        tail=tail,
    )


def _framed_validation(
    data: Framed,
    worker_config: WorkerConfig,
    batch_size: int | None,
    limit: int | None,
    tail: Tail,
    order: str,
    num_lanes: int | None,
) -> EnergonDataset:
    if order == "energon":
        raise ConfigError(
            f"order='energon' is for one output of each sample, and here are units: {data.describe()}; leave it out"
        )
    if tail != "deal":
        raise ConfigError(
            f"tail is {tail!r}, and how many units a task encoder makes shows after they were given: the last ones are "
            "dealt; leave tail and batch_drop_last out"
        )
    return framed_dataset(
        data,
        worker_config,
        batch_size=batch_size,
        training=False,
        order=Order(kind="none"),
        limit=limit,
        num_lanes=num_lanes,
    )
