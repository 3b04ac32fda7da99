"""Datasets one after another."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, check_children, check_named, joined, length_of, node_of
from headrace.errors import ConfigError
from headrace.plan import Concat


class ConcatDataset(Mix):
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
                "limit them with LimitDataset"
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

    def node(self, path: str = "") -> Concat:
        """As the plan sees it."""
        return Concat(path, tuple(node_of(joined(path, name), child) for name, child in self.children.items()))
