"""Datasets of Megatron's datasets: blends of several, and endless epochs over one.

The greedy rule of Megatron's blends chooses the dataset of each sample, bit for bit. With
``--dataloader-type cyclic``, each epoch is in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.compat.megatron.gpt import ONE_PART_SPLITS, GPTDataset
from headrace.config import whole
from headrace.datasets.dataset import (
    CountedDataset,
    Counts,
    Fields,
    FixedDataset,
    FixedWrapper,
    Sample,
    Traits,
    counted,
    shown_fields,
)
from headrace.datasets.mix import check_one_tokenizer
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.megatron import (
    SURPLUS,
    CyclicOrder,
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    check_draws,
    normalised_weights,
    parse_blend,
)

Era = Literal["core", "before_2025_02"]


class GPTBlend(FixedDataset):
    """Sample i is sample i of Megatron's ``BlendedDataset``.

    With ``weights`` and ``size``, each of ``size`` samples comes from the dataset that is furthest behind its weight.
    Without them every sample of every dataset comes once, in proportion to the sizes of the datasets. The order is
    fixed, so feed it with ``Order(kind="none")``. The blend keeps 10 bytes a sample.

    Headrace's `Blend` needs no table, keeps its shares at any length, and starts a source again when all its samples
    have been seen.

    Args:
        datasets: datasets with the same fields.
        weights: a positive weight for each dataset; None for every sample once.
        size: the number of samples; only with weights. A blend of 0 samples is an empty dataset.
        allow_different_tokenizers: accept datasets whose manifests name different tokenisers, see `Blend`.

    Raises:
        ConfigError: fields or tokenisers differ, a weight is not positive, or a dataset has fewer samples than the
            blend draws from it. Megatron fails only in the middle of the run in that case.

    Example:
        >>> web = headrace.compat.megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> code = headrace.compat.megatron.GPTDataset("stores/code/text_document", sequence_length=128)
        >>> blend = headrace.compat.megatron.GPTBlend([web, code], weights=[0.7, 0.3], size=100)
        >>> blend.dataset_index[:10].tolist()
        [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    """

    def __init__(
        self,
        datasets: Sequence[FixedDataset],
        *,
        weights: Sequence[float] | None = None,
        size: int | None = None,
        allow_different_tokenizers: bool = False,
    ) -> None:
        if not datasets or len(datasets if weights is None else weights) != len(datasets):
            raise ConfigError(
                f"{len(datasets)} datasets and {0 if weights is None else len(weights)} weights; give at least one"
                " dataset, and one weight for each"
            )
        if (weights is None) != (size is None):
            raise ConfigError(
                "weights and size go together; give both, or neither for every sample of every dataset once"
            )
        shown = [shown_fields(dataset) for dataset in datasets]
        if others := [fields for fields in shown if fields != shown[0]]:
            raise ConfigError(f"the datasets of a blend must have the same fields, found {shown[0]} and {others[0]}")
        if not allow_different_tokenizers:
            check_one_tokenizer((f"dataset {number}", dataset) for number, dataset in enumerate(datasets))
        self.datasets = tuple(datasets)
        self.weights = None if weights is None else normalised_weights(weights)
        self.dataset_index, self.dataset_sample_index = self._chosen(size)

    def _chosen(self, size: int | None) -> tuple[NDArray[np.int16], IntArray]:
        """Return, for each sample of the blend, the number of its dataset and its number there."""
        lengths = [len(dataset) for dataset in self.datasets]
        if self.weights is None or size is None:
            return build_exhaustive_blending_indices(lengths)
        chosen, samples = build_blending_indices(self.weights, whole(size, "size"))
        names = [one.store.path if isinstance(one, GPTDataset) else one.describe() for one in self.datasets]
        check_draws(chosen, lengths, names)
        return chosen, samples

    @classmethod
    def of(
        cls,
        blend: str | Sequence[str],
        *,
        num_samples: int | None,
        build: Callable[[str, int | None], FixedDataset],
        one_part: bool | None = None,
        era: Era = "core",
        surplus: float = SURPLUS,
        allow_different_tokenizers: bool = False,
    ) -> FixedDataset:
        """The dataset that Megatron's builder makes from ``--data-path``, or from the list of one part.

        The list of one part is that of ``--train-data-path`` and similar options. A single prefix without a weight is
        its dataset, not a blend. A single prefix with a weight is its dataset only in the list of one part:
        ``--data-path 1.0 A`` is a blend of one dataset, which Megatron builds for 0.5 % more samples and caches under
        other names.

        Args:
            blend: ``"0.3 A 0.7 B"``, or prefixes without weights, or a list of these words.
            num_samples: the number of samples wanted; None for each sample once, which needs prefixes without weights.
                0 makes an empty blend, as Megatron's builder does for ``--eval-iters 0``; a single prefix without a
                weight is still its dataset, of one epoch.
            build: a function that makes the dataset of a prefix with at least the given number of samples; None means
                one epoch.
            one_part: whether this is the list of one part. None decides by the dataset: it is if its split is
                ``"1,0,0"``, ``"0,1,0"`` or ``"0,0,1"``. It matters only for a single prefix with a weight.
            era: how many samples each dataset is built for, which decides its order: as in Megatron-LM since 2025-02,
                or before.
            surplus: the share of samples that each dataset is built for beyond those that are drawn, Megatron's
                ``--mid-level-dataset-surplus``. It decides the order of the datasets, too.
            allow_different_tokenizers: as for the class.

        Raises:
            ConfigError: the blend cannot be parsed, weights are given without a number of samples, the surplus is
                below 0, or as for the class.
        """
        prefixes, weights = parse_blend(blend)
        allow = allow_different_tokenizers
        if weights is None:
            if len(prefixes) == 1:
                return build(prefixes[0], num_samples)
            datasets = [build(prefix, None) for prefix in prefixes]
            if num_samples is None:
                return cls(datasets, allow_different_tokenizers=allow)
            lengths = [len(dataset) for dataset in datasets]
            return cls(datasets, weights=lengths, size=min(num_samples, sum(lengths)), allow_different_tokenizers=allow)
        if num_samples is None:
            raise ConfigError(
                f"the blend {blend!r} has weights, but num_samples is None, which means each sample once; give the"
                " number of samples, or leave the weights out (Megatron refuses this too)"
            )
        if len(prefixes) == 1 and one_part is not False:
            dataset = build(prefixes[0], num_samples)
            if one_part or (isinstance(dataset, GPTDataset) and dataset.split == ONE_PART_SPLITS[dataset.split_part]):
                return dataset
        # Megatron's builder normalises the weights, and its blend does so again. The last bit can change the order.
        shares = normalised_weights(weights)
        sizes = blend_sizes(shares, num_samples, surplus=surplus, era=era)
        datasets = [build(prefix, wanted) for prefix, wanted in zip(prefixes, sizes.num_samples, strict=True)]
        return cls(datasets, weights=shares, size=sizes.size, allow_different_tokenizers=allow)

    def __len__(self) -> int:
        return len(self.dataset_index)

    @property
    def fields(self) -> Fields:
        """The fields of the datasets, and ``dataset_id`` () int16, the number of the dataset."""
        return {**self.datasets[0].fields, "dataset_id": ((), np.dtype(np.int16))}

    @property
    def constants(self) -> Sample:
        """The constants of the datasets."""
        return self.datasets[0].constants

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean of the datasets, which all have the same."""
        return self.datasets[0].num_tokens_per_sample

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "gpt_blend",
            "datasets": [dataset.recipe for dataset in self.datasets],
            "weights": self.weights,
            "num_samples": len(self),
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the numbers of the samples themselves. ``keys`` are ignored: the order is fixed."""
        return indices

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of several datasets into ``rows`` of ``out``."""
        places = np.arange(len(next(iter(out.values()))))[rows] if isinstance(rows, slice) else rows
        chosen = self.dataset_index[addresses]
        out["dataset_id"][rows] = chosen
        samples = self.dataset_sample_index[addresses]
        parts = {name: values for name, values in out.items() if name != "dataset_id"}
        for number in np.unique(chosen).tolist():
            mine = chosen == number
            dataset = self.datasets[number]
            dataset.read_into(dataset.locate(samples[mine]), parts, places[mine])

    def describe(self) -> str:
        """One line: the number of datasets, and the description of the first."""
        return f"Megatron's blend of {len(self.datasets):,} datasets: {self.datasets[0].describe()}, ..."


class CyclicDataset(FixedWrapper, CountedDataset):
    """Sample p is what Megatron's cyclic sampler feeds at position p in a run with these micro-batches and ranks.

    A loader with the same ``micro_batch_size`` and the same number of ranks gives each rank Megatron's micro-batches,
    and its position is ``consumed_samples``. With any other number of ranks every step keeps its samples, even in the
    middle of an epoch, where Megatron stops or continues in another order.

    The dataset is endless, so give the length to the run: ``Run(cyclic, order=Order(kind="none"), samples=...)``. A
    longer run begins with the same samples. Megatron shuffles epoch e with the seed e, whatever the seed of the run.

    The first sample of an epoch costs the shuffle of that epoch, 10 ns a sample with numba and 150 ns without. Two
    shuffles are kept, at 4 bytes for each sample, or with ``data_sharding`` for each sample of one rank.

    Args:
        dataset: any dataset; for Megatron's runs a `GPTDataset` or `GPTBlend`.
        micro_batch_size: samples of a micro-batch on one rank, in the run whose order this is.
        data_parallel_size: the number of ranks of that run.
        data_sharding: Megatron's option: each rank shuffles its own part of the samples.

    Raises:
        ConfigError: a number is below 1, or the dataset has fewer samples than one micro-batch of all ranks.

    Example:
        >>> dataset = headrace.compat.megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> cyclic = headrace.compat.megatron.CyclicDataset(dataset, micro_batch_size=4, data_parallel_size=2)
        >>> run = headrace.Run(cyclic, global_batch_size=16, order=headrace.Order(kind="none"), samples=10_000)
        >>> run.num_steps
        625
    """

    def __init__(
        self, dataset: FixedDataset, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        if not isinstance(dataset, FixedDataset):
            raise ConfigError(
                f"CyclicDataset is for samples of one shape, and those of {type(dataset).__name__} have different"
                " lengths: pass that dataset to the run itself"
            )
        self.dataset = dataset
        self.order = CyclicOrder(
            len(dataset),
            micro_batch_size=whole(micro_batch_size, "micro_batch_size"),
            data_parallel_size=whole(data_parallel_size, "data_parallel_size"),
            data_sharding=bool(data_sharding),
        )

    def __len__(self) -> int:
        """Samples of 2^32 epochs, since there are seeds for that many."""
        return len(self.order)

    @property
    def traits(self) -> Traits:
        """Those of the inner dataset; the order has no end."""
        return msgspec.structs.replace(self.dataset.traits, is_endless=True)

    def count(self, addresses: IntArray) -> Counts:
        """Count the samples at ``addresses`` in the inner dataset."""
        return counted(self.dataset).count(addresses)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "megatron_cyclic",
            "dataset": self.dataset.recipe,
            "num_samples": self.order.num_samples,
            "micro_batch_size": self.order.micro_batch_size,
            "data_parallel_size": self.order.data_parallel_size,
            "data_sharding": self.order.data_sharding,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the inner dataset. ``keys`` are ignored: the order of each epoch is fixed."""
        return self.dataset.locate(self.order.locate(indices))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of the inner dataset into ``rows`` of ``out``."""
        self.dataset.read_into(addresses, out, rows)

    def describe(self) -> str:
        """One line: the order, its ranks and micro-batches, the samples of an epoch, and the inner dataset."""
        order = self.order
        parts = "each with its own part" if order.data_sharding else "samples assigned in turn"
        return (
            f"Megatron's cyclic order for {order.data_parallel_size:,} ranks, {parts}, micro-batches of "
            f"{order.micro_batch_size:,}: {order.num_samples_per_epoch:,} of {order.num_samples:,} samples an epoch, "
            f"{self.dataset.describe()}"
        )
