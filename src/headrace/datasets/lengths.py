"""How much of datasets is gone through: one after another, a part, the first of a pass, several passes, filled up.

Datasets one after another.

A dataset filled up to a multiple with samples that do not count, so that every rank gets as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from headrace.datasets.dataset import Dataset, Fields, Origins, Sample
from headrace.datasets.mix import Mix, check_children, check_named, joined, length_of, node_of, wrong_data
from headrace.errors import ConfigError
from headrace.plan import ConcatNode, IntArray, KeyArray, Leaf, LimitNode, Node, RepeatNode, SubsetRange, rounded


class _OfOne(Mix):
    """A mix of one child, at whose path it stands."""

    def __init__(self, data: Dataset | Mix) -> None:
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(wrong_data("data", data))
        # Without a name of its own the source keeps its path, and with it its order, when a limit is set or lifted.
        self.children = {"": data}
        self.data = data

    @property
    def num_tokens_per_sample(self) -> float:
        """That of the child."""
        return self.data.num_tokens_per_sample

    def __repr__(self) -> str:
        length = "endless" if self.num_samples is None else f"{self.num_samples:,} samples"
        return f"<{type(self).__name__} of {self.data!r}: {length}>"


class Subset(_OfOne):
    """Some consecutive samples of a dataset, by the numbers that they have in it.

    ``subset`` is a range as in a metadataset, ``["25%", "75%"]``, ``[100, 200]``, ``[100, "end"]``, or a `SubsetRange`.

    Raises:
        ConfigError: not a dataset, a malformed range, or one without samples.
    """

    def __init__(self, dataset: Dataset, subset: SubsetRange | Sequence[int | str]) -> None:
        super().__init__(dataset)
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"a subset is of a dataset, found {dataset!r}: take one of each of its datasets")
        self.dataset = dataset
        self.subset = subset if isinstance(subset, SubsetRange) else SubsetRange.of(subset)
        self.bounds = self.subset.bounds(len(dataset))
        if self.bounds[0] == self.bounds[1]:
            raise ConfigError(
                f"the subset of {dataset!r} from {self.bounds[0]:,} to {self.bounds[1]:,} has no samples; a "
                "source needs at least one"
            )

    @property
    def num_samples(self) -> int:
        """The samples of the range."""
        return self.bounds[1] - self.bounds[0]

    def node(self, path: str = "") -> Leaf:
        """As the plan sees it."""
        whole = node_of(path, self.dataset)
        assert isinstance(whole, Leaf)
        return whole.subset(*self.bounds)


class Limit(_OfOne):
    """The first ``num_samples`` samples of every pass; an endless mix is cut into passes of as many.

    Each pass takes another epoch of the datasets below: with a shuffled order other samples come every time, in
    validation always the same. For samples of a fixed part of a dataset use `SubsetRange`.

    Raises:
        ConfigError: below 1, or more than there are in a pass.
    """

    def __init__(self, data: Dataset | Mix, num_samples: int) -> None:
        super().__init__(data)
        self._num_samples = index(num_samples)
        most = length_of(data)
        if self._num_samples < 1 or (most is not None and self._num_samples > most):
            allowed = "at least 1 is allowed" if most is None else f"allowed are 1 to {most:,}, all of {data!r}"
            raise ConfigError(f"the limit is {num_samples:,} samples; {allowed}")

    @property
    def num_samples(self) -> int:
        """The samples of one pass."""
        return self._num_samples

    def node(self, path: str = "") -> LimitNode:
        """As the plan sees it."""
        return LimitNode(path, node_of(path, self.data), self._num_samples)


class Repeat(_OfOne):
    """A dataset for ``repeats`` passes, whole or fractional, as one: 2.5 passes of 1,000 samples are exactly 2,500.

    The count is rounded to the nearest sample, whatever the number of ranks and workers. What is left of a pass comes
    first in the next one: nothing is left out.

    Raises:
        ConfigError: not positive and finite, no samples, or a mix without an end.
    """

    def __init__(self, data: Dataset | Mix, repeats: float | Fraction) -> None:
        super().__init__(data)
        if not 0 < repeats < float("inf"):
            raise ConfigError(f"repeats is {repeats}; it is positive and finite")
        length = length_of(data)
        if length is None:
            raise ConfigError(f"{data!r} has no end, so that its passes cannot be counted: limit it with Limit")
        self.repeats = repeats
        self._num_samples = rounded(Fraction(repeats) * length)
        if not self._num_samples:
            raise ConfigError(f"{repeats} passes through {length:,} samples are none; a source needs at least one")

    @property
    def num_samples(self) -> int:
        """The samples of all passes."""
        return self._num_samples

    def node(self, path: str = "") -> Node:
        """As the plan sees it."""
        return RepeatNode(path, node_of(path, self.data), self._num_samples)


class Concat(Mix):
    """Datasets, or mixes that end, one after another, each for one pass; then the first one again, in its next epoch.

    ``Run.validation`` of it goes through everything once, in the order of the stores.

    Raises:
        ConfigError: a child has no end; as `Blend` of children that cannot be mixed.
    """

    def __init__(self, children: Mapping[str, Dataset | Mix], *, allow_different_tokenizers: bool = False) -> None:
        check_named(children)
        self.children = dict(children)
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)
        endless = [name for name, child in self.children.items() if length_of(child) is None]
        if endless:
            raise ConfigError(
                f"{endless} have no end, and what comes after them would never come: mix them by repeats, or "
                "limit them with Limit"
            )

    @property
    def num_samples(self) -> int:
        """The samples of one pass."""
        return sum(length_of(child) or 0 for child in self.children.values())

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean over all samples."""
        tokens = sum((length_of(child) or 0) * child.num_tokens_per_sample for child in self.children.values())
        return tokens / self.num_samples

    def node(self, path: str = "") -> ConcatNode:
        """As the plan sees it."""
        return ConcatNode(path, tuple(node_of(joined(path, name), child) for name, child in self.children.items()))


class FilledDataset(Dataset):
    """The samples of a dataset, and behind them copies of sample 0 with a ``loss_mask`` of zeros, up to a multiple.

    For validation where no rank may get fewer samples than another (pipelines): with the global batch size for
    ``multiple_of`` every step is whole, and a loss that is summed over ``loss_mask`` is that of the samples themselves.
    Megatron gives a sample of this kind for the index None.

    Raises:
        ConfigError: the dataset has no ``loss_mask``, or no end.
    """

    def __init__(self, dataset: Dataset, *, multiple_of: int) -> None:
        if "loss_mask" not in dataset.fields or dataset.is_counted:
            raise ConfigError(
                f"samples that do not count are told by a field loss_mask alone; {type(dataset).__name__} has "
                f"{', '.join(dataset.fields)}: feed the last step as it is, or leave it out with drop_last=True"
            )
        if dataset.is_endless:
            raise ConfigError(f"{type(dataset).__name__} has no last step: there is nothing to fill up")
        if index(multiple_of) < 1:
            raise ConfigError(f"multiple_of is at least 1, found {multiple_of}")
        self.dataset = dataset
        self.multiple_of = index(multiple_of)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.multiple_of) * self.multiple_of

    @property
    def fields(self) -> Fields:
        """Those of the dataset."""
        return self.dataset.fields

    @property
    def constants(self) -> Sample:
        """Those of the dataset."""
        return self.dataset.constants

    @property
    def num_tokens_per_sample(self) -> float:
        """Of the dataset, spread over all samples."""
        return self.dataset.num_tokens_per_sample * len(self.dataset) / len(self)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "filled", "dataset": self.dataset.recipe, "num_samples": len(self)}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: those of the dataset, and for samples that do not count -1 minus that of sample 0."""
        fillers = indices >= len(self.dataset)
        found = self.dataset.locate(np.where(fillers, 0, indices), keys)
        return np.where(fillers, -1 - found, found)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples into ``rows`` of ``out``."""
        fillers = addresses < 0
        self.dataset.read_into(np.where(fillers, -1 - addresses, addresses), out, rows)
        places = np.arange(len(out["loss_mask"]))[rows]
        out["loss_mask"][places[fillers]] = 0

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset; nothing for samples that do not count."""
        found = self.dataset.origins(np.maximum(addresses, 0))
        return [() if filler else one for filler, one in zip((addresses < 0).tolist(), found, strict=True)]

    def holders(self, document: int) -> IntArray:
        """Of the dataset."""
        return self.dataset.holders(document)

    def describe(self) -> str:
        """One line."""
        return f"{self.dataset.describe()}, and {len(self) - len(self.dataset):,} without loss"
