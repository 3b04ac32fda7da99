"""How much of a dataset is gone through: a part of it, the first samples of a pass, several passes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import index

from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, length_of, node_of, wrong_data
from headrace.errors import ConfigError
from headrace.plan import Leaf, Limit, Node, Repeat, Subset, rounded


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


class SubsetDataset(_OfOne):
    """Some consecutive samples of a dataset, by the numbers that they have in it.

    ``subset`` is a range as in a metadataset, ``["25%", "75%"]``, ``[100, 200]`` or ``[100, "end"]``, or a `Subset`.

    Raises:
        ConfigError: not a dataset, a malformed range, or one without samples.
    """

    def __init__(self, dataset: Dataset, subset: Subset | Sequence[int | str]) -> None:
        super().__init__(dataset)
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"a subset is of a dataset, found {dataset!r}: take one of each of its datasets")
        self.dataset = dataset
        self.subset = subset if isinstance(subset, Subset) else Subset.of(subset)
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


class LimitDataset(_OfOne):
    """The first ``num_samples`` samples of every pass; an endless mix is cut into passes of as many.

    Each pass takes another epoch of the datasets below: with a shuffled order other samples come every time, in
    validation always the same. For samples of a fixed part of a dataset use `SubsetDataset`.

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

    def node(self, path: str = "") -> Limit:
        """As the plan sees it."""
        return Limit(path, node_of(path, self.data), self._num_samples)


class RepeatDataset(_OfOne):
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
            raise ConfigError(f"{data!r} has no end, so that its passes cannot be counted: limit it with LimitDataset")
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
        return Repeat(path, node_of(path, self.data), self._num_samples)
