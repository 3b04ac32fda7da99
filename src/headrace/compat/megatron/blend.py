"""Megatron's blends of `GPTDataset`: its greedy rule chooses the dataset of each sample, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.compat.megatron.gpt import ONE_PART_SPLITS, GPTDataset
from headrace.datasets.dataset import Fields, FixedDataset, Sample, shown_fields
from headrace.datasets.mix import check_one_tokenizer
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.megatron import (
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
        size: the number of samples; only with weights.
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
        if not len(self.dataset_index):
            raise ConfigError("the blend has no samples: size is at least 1")

    def _chosen(self, size: int | None) -> tuple[NDArray[np.int16], IntArray]:
        """Return, for each sample of the blend, the number of its dataset and its number there."""
        lengths = [len(dataset) for dataset in self.datasets]
        if self.weights is None or size is None:
            return build_exhaustive_blending_indices(lengths)
        chosen, samples = build_blending_indices(self.weights, index(size))
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
            build: a function that makes the dataset of a prefix with at least the given number of samples; None means
                one epoch.
            one_part: whether this is the list of one part. None decides by the dataset: it is if its split is
                ``"1,0,0"``, ``"0,1,0"`` or ``"0,0,1"``. It matters only for a single prefix with a weight.
            era: how many samples each dataset is built for, which decides its order: as in Megatron-LM since 2025-02,
                or before.
            allow_different_tokenizers: as for the class.

        Raises:
            ConfigError: the blend cannot be parsed, weights are given without a number of samples, or as for the class.
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
        sizes = blend_sizes(shares, num_samples, era=era)
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
