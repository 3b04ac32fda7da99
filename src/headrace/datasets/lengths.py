"""How much of datasets is used, and in which sequence: `Subset`, `Limit`, `Repeat`, `Concat` and `FilledDataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from headrace.config import whole
from headrace.datasets.blend import exact_number, plain_number
from headrace.datasets.dataset import Dataset, FixedDataset, FixedWrapper, Sample
from headrace.datasets.mix import (
    Mix,
    as_data,
    check_children,
    joined,
    leaf_of,
    length_of,
    named_children,
    node_of,
    wrong_data,
)
from headrace.datasets.origins import Origins
from headrace.errors import ConfigError
from headrace.plan import ConcatNode, IntArray, KeyArray, Leaf, LimitNode, Node, RepeatNode, SubsetRange, rounded


class _OfOne(Mix):
    """A mix of one child that has the path of the child."""

    def __init__(self, data: Dataset | Mix) -> None:
        # The child has no name, so that its path and thus its order stay the same when a limit is set or lifted.
        self.children = {"": as_data("data", data)}

    @property
    def data(self) -> Dataset | Mix:
        """The child."""
        return self.children[""]

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens in a sample of the child."""
        return self.data.num_tokens_per_sample

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], children: dict[str, Dataset | Mix]) -> Mix:
        """Return the mix of a recipe, whose single entry is the second argument, and of its child."""
        (data,), (argument,) = children.values(), recipe.values()
        made: Any = cls
        found: Mix = made(data, exact_number(argument))
        return found

    def __repr__(self) -> str:
        length = "endless" if self.num_samples is None else f"{self.num_samples:,} samples"
        return f"<{type(self).__name__} of {self.data!r}: {length}>"


class Subset(_OfOne):
    """Consecutive samples of a dataset, by their numbers in it.

    ``subset`` is a range as in a metadataset, ``["25%", "75%"]``, ``[100, 200]`` or ``[100, "end"]``, or a
    `SubsetRange`.

    Raises:
        ConfigError: not a dataset, a malformed range, or a range without samples.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> headrace.datasets.Subset(dataset, [100, 200]).num_samples
        100
    """

    kind = "subset"

    def __init__(self, dataset: Dataset, subset: SubsetRange | Sequence[int | str]) -> None:
        super().__init__(dataset)
        found = self.data
        if not isinstance(found, Dataset):
            raise ConfigError(f"a subset needs a dataset, found {found!r}: take a subset of each of its datasets")
        self.subset = subset if isinstance(subset, SubsetRange) else SubsetRange.of(subset)
        self.bounds = self.subset.bounds(len(found))
        if self.bounds[0] == self.bounds[1]:
            raise ConfigError(
                f"the subset of {dataset!r} from {self.bounds[0]:,} to {self.bounds[1]:,} has no samples; a "
                "source needs at least one"
            )

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        [dataset] = self.datasets()
        return dataset

    @property
    def num_samples(self) -> int:
        """Number of samples in the range."""
        return self.bounds[1] - self.bounds[0]

    @property
    def recipe(self) -> dict[str, Any]:
        """The first sample and the one behind the last."""
        return {"bounds": list(self.bounds)}

    def node(self, path: str = "") -> Leaf:
        """Return the node of the plan that stands for the subset at a path."""
        return leaf_of(path, self.dataset).subset(*self.bounds)


class Limit(_OfOne):
    """The first ``num_samples`` samples of every pass; an endless mix is cut into passes of that length.

    Each pass uses another epoch of the datasets below: with a shuffled order other samples come every time, and in
    validation always the same. To use a fixed part of a dataset, take a `Subset`.

    Raises:
        ConfigError: ``num_samples`` is below 1, or more than a pass has.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> headrace.datasets.Limit(dataset, 100).num_samples
        100
    """

    kind = "limit"

    def __init__(self, data: Dataset | Mix, num_samples: int) -> None:
        super().__init__(data)
        self._num_samples = whole(num_samples, "num_samples")
        most = length_of(data)
        if self._num_samples < 1 or (most is not None and self._num_samples > most):
            allowed = "at least 1 is allowed" if most is None else f"allowed are 1 to {most:,}, all of {data!r}"
            raise ConfigError(f"the limit is {num_samples:,} samples; {allowed}")

    @property
    def num_samples(self) -> int:
        """Number of samples in one pass."""
        return self._num_samples

    @property
    def recipe(self) -> dict[str, Any]:
        """The number of samples."""
        return {"num_samples": self._num_samples}

    def node(self, path: str = "") -> LimitNode:
        """Return the node of the plan that stands for the limit at a path."""
        return LimitNode(path, node_of(path, self.data), self._num_samples)


class Repeat(_OfOne):
    """``repeats`` passes through a dataset as one, whole or fractional: 2.5 passes of 1,000 samples are exactly 2,500.

    The count is rounded to the nearest sample and does not depend on the number of ranks and workers. The rest of a
    pass comes first in the next one, so that no sample is left out.

    Raises:
        ConfigError: ``repeats`` is not positive and finite or makes no samples, or the mix has no end.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> headrace.datasets.Repeat(headrace.datasets.Limit(dataset, 100), 2.5).num_samples
        250
    """

    kind = "repeat"

    def __init__(self, data: Dataset | Mix, repeats: float | Fraction) -> None:
        super().__init__(data)
        if not 0 < repeats < float("inf"):
            raise ConfigError(f"repeats is {repeats}; it must be positive and finite")
        length = length_of(data)
        if length is None:
            raise ConfigError(f"{data!r} has no end, so that its passes cannot be counted: limit it with Limit")
        self.repeats = repeats
        self._num_samples = rounded(Fraction(repeats) * length)
        if not self._num_samples:
            raise ConfigError(
                f"{repeats} passes through {length:,} samples make no sample; a source needs at least one"
            )

    @property
    def num_samples(self) -> int:
        """Number of samples in all passes."""
        return self._num_samples

    @property
    def recipe(self) -> dict[str, Any]:
        """The number of passes."""
        return {"repeats": plain_number(self.repeats)}

    def node(self, path: str = "") -> Node:
        """Return the node of the plan that stands for the repeats at a path."""
        return RepeatNode(path, node_of(path, self.data), self._num_samples)


class Concat(Mix):
    """Datasets, or mixes that end, one after another, each for one pass; then again from the first, in its next epoch.

    ``Run.validation`` goes through all of it once, in the order of the stores.

    Raises:
        ConfigError: a child has no end; otherwise as `Blend` for children that cannot be mixed.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> both = headrace.datasets.Concat({"web": web, "code": code})
        >>> both.num_samples == len(web) + len(code)
        True
    """

    kind = "concat"

    def __init__(self, children: Mapping[str, Dataset | Mix], *, allow_different_tokenizers: bool = False) -> None:
        self.children = named_children(children)
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)
        endless = [name for name, child in self.children.items() if length_of(child) is None]
        if endless:
            raise ConfigError(
                f"{endless} have no end, so that what follows would never come: mix them by repeats, or "
                "limit them with Limit"
            )

    @property
    def num_samples(self) -> int:
        """Number of samples in one pass."""
        return sum(length_of(child) or 0 for child in self.children.values())

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens over all samples."""
        tokens = sum((length_of(child) or 0) * child.num_tokens_per_sample for child in self.children.values())
        return tokens / self.num_samples

    def node(self, path: str = "") -> ConcatNode:
        """Return the node of the plan that stands for the sequence at a path."""
        return ConcatNode(path, tuple(node_of(joined(path, name), child) for name, child in self.children.items()))


class FilledDataset(FixedWrapper):
    """The samples of a dataset, then copies of sample 0 with a ``loss_mask`` of zeros, up to a multiple of a number.

    Use it for validation if no rank may get fewer samples than another (as with pipelines): with the global batch size
    for ``multiple_of`` every step is whole, and a loss that is summed over ``loss_mask`` is that of the real samples.
    Megatron returns such a sample for the index None.

    Raises:
        ConfigError: the dataset has no ``loss_mask``, or no end, or counts its samples.

    Example:
        >>> windows = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> def with_mask(sample):
        ...     return {**sample, "loss_mask": np.ones(128)}
        >>> fields = {**windows.fields, "loss_mask": ((128,), np.float64)}
        >>> masked = headrace.MapDataset(windows, with_mask, fields=fields)
        >>> len(headrace.datasets.FilledDataset(masked, multiple_of=64)) % 64
        0
    """

    def __init__(self, dataset: FixedDataset, *, multiple_of: int) -> None:
        if not isinstance(dataset, Dataset):
            raise ConfigError(wrong_data("dataset", dataset))
        if not isinstance(dataset, FixedDataset) or "loss_mask" not in dataset.fields or dataset.traits.is_counted:
            raise ConfigError(
                f"added samples can be marked only by a field loss_mask alone; {type(dataset).__name__} has "
                f"{', '.join(dataset.fields)}: feed the last step as it is, or leave it out with drop_last=True"
            )
        if dataset.traits.is_endless:
            raise ConfigError(f"{type(dataset).__name__} has no end, and so no last step to fill up")
        self.multiple_of = whole(multiple_of, "multiple_of", least=1)
        self.dataset = dataset

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.multiple_of) * self.multiple_of

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens in a sample, spread over real and added samples."""
        return self.dataset.num_tokens_per_sample * len(self.dataset) / len(self)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "filled", "dataset": self.dataset.recipe, "num_samples": len(self)}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the dataset; for added samples -1 minus the address of sample 0."""
        fillers = indices >= len(self.dataset)
        found = self.dataset.locate(np.where(fillers, 0, indices), keys)
        return np.where(fillers, -1 - found, found)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples into ``rows`` of ``out``; added ones get a ``loss_mask`` of zeros."""
        fillers = addresses < 0
        self.dataset.read_into(np.where(fillers, -1 - addresses, addresses), out, rows)
        places = np.arange(len(out["loss_mask"]))[rows]
        out["loss_mask"][places[fillers]] = 0

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return what the samples are made of; nothing for added samples."""
        found = self.dataset.origins(np.maximum(addresses, 0))
        return [() if filler else one for filler, one in zip((addresses < 0).tolist(), found, strict=True)]

    def describe(self) -> str:
        """Describe the dataset and the number of added samples in one line."""
        return f"{self.dataset.describe()}, and {len(self) - len(self.dataset):,} without loss"
