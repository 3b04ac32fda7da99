"""Blends whose weights change along the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt
from operator import index

import msgspec

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, check_children, check_named, joined, node_of
from headrace.errors import ConfigError
from headrace.plan import Branch, Leaf, Schedule, linear_ramp
from headrace.plan.blend import MOST_SEGMENTS, quantised_with_zeros


class Stretch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights that hold up to a sample.

    Attributes:
        weights: name -> weight, of any sum; a name that is missing or 0 does not come.
        until: the first sample that is not of this stretch; None for the last one.
        ramp: the weights move to these in a straight line, from those at the end of the stretch before.
    """

    weights: dict[str, float]
    until: int | None = None
    ramp: bool = False


class ScheduledBlend(Mix):
    """Datasets, or endless blends, mixed by weights that change at given samples. It has no end.

        ScheduledBlend({"web": web, "math": math}, [
            Stretch(until=1_000_000, weights={"web": 1}),
            Stretch(until=2_000_000, weights={"web": 1, "math": 1}, ramp=True),
            Stretch(weights={"math": 1}),
        ])

    A dataset goes on in its epochs from stretch to stretch: no sample comes twice before all of them came. Within each
    stretch every prefix keeps to the weights within 2 samples, or 2 blocks. A ramp over n samples is defined as
    isqrt(n) stretches of constant weights, at most 1,024.

    Args:
        children: datasets and endless blends of datasets, by name.
        stretches: at least one; the last has no ``until``.
        block_samples: choose the source for so many samples at a time, see `BlendDataset`; they divide every ``until``.
        allow_different_tokenizers: as of `Blend`.

    Raises:
        ConfigError: unknown names or weights, samples that do not rise, a ramp at the start or without an end, a child
            with passes of its own, and as `Blend`.
    """

    def __init__(
        self,
        children: Mapping[str, Dataset | Mix],
        stretches: Sequence[Stretch],
        *,
        block_samples: int = 1,
        allow_different_tokenizers: bool = False,
    ) -> None:
        check_named(children)
        self.children = dict(children)
        self.stretches = tuple(stretches)
        self.block_samples = index(block_samples)
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)
        for name, child in self.children.items():
            _check_no_passes(name, child)
        self._check()

    @property
    def num_samples(self) -> None:
        """None: the last stretch has no end."""
        return None

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean over the sources, by the weights of the last stretch."""
        weights = self.stretches[-1].weights
        tokens = sum(weight * self.children[name].num_tokens_per_sample for name, weight in weights.items() if weight)
        return tokens / sum(weights.values())

    @property
    def segments(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(first sample, shares of sum 2^31 by child) for every stretch of constant weights, also those of ramps."""
        found: list[tuple[int, tuple[int, ...]]] = []
        begin = 0
        before: list[float] = []
        for stretch in self.stretches:
            weights = [stretch.weights.get(name, 0) for name in self.children]
            if stretch.ramp and stretch.until is not None:
                block = self.block_samples
                first, last = begin // block, stretch.until // block
                # As many pieces as each is long: of the errors by steps and by rounding within a piece neither leads.
                number = min(MOST_SEGMENTS, isqrt(last - first))
                pieces = linear_ramp(before, weights, begin=first, end=last, num_segments=number)
                found += [(place * block, shares) for place, shares in pieces[:-1]]
            else:
                found.append((begin, quantised_with_zeros(weights)))
            begin, before = stretch.until or 0, weights
        return tuple(found)

    def node(self, path: str = "") -> Schedule:
        """As the plan sees it."""
        nodes = [node_of(joined(path, name), child) for name, child in self.children.items()]
        segments = []
        for begin, shares in self.segments:
            there = [number for number, share in enumerate(shares) if share]
            branch = Branch(
                path, tuple(nodes[i] for i in there), tuple(shares[i] for i in there), None, self.block_samples
            )
            segments.append((begin, branch))
        return Schedule(path, tuple(segments))

    def _check(self) -> None:
        if not self.stretches:
            raise ConfigError("a schedule of weights has at least one stretch")
        untils = [stretch.until for stretch in self.stretches]
        ends = [0, *(until for until in untils if until is not None)]
        if untils[-1] is not None or None in untils[:-1] or any(low >= high for low, high in pairwise(ends)):
            raise ConfigError(
                f"the stretches of a schedule end at samples that rise, and the last one has none; found {untils}"
            )
        if self.block_samples < 1 or any(end % self.block_samples for end in ends):
            raise ConfigError(
                f"block_samples is {self.block_samples}, and every stretch is whole blocks; stretches end at {untils}"
            )
        if self.stretches[0].ramp or self.stretches[-1].ramp:
            raise ConfigError(
                "the first and the last stretch of a schedule have constant weights: a ramp leads from weights "
                "before it to an end"
            )
        for stretch in self.stretches:
            self._check_weights(stretch.weights)
        never = [name for name in self.children if not any(one.weights.get(name) for one in self.stretches)]
        if never:
            raise ConfigError(f"{never} come in no stretch of the schedule: leave them out")

    def _check_weights(self, weights: Mapping[str, float]) -> None:
        if unknown := sorted(weights.keys() - self.children.keys()):
            raise ConfigError(f"the schedule has weights of {unknown}; the sources are {sorted(self.children)}")
        if not all(0 <= weight < float("inf") for weight in weights.values()) or not any(weights.values()):
            raise ConfigError(f"the weights of a stretch are finite and not below 0, and one is above; found {weights}")


def _check_no_passes(name: str, child: Dataset | Mix) -> None:
    """A stretch begins where its sources are, not where a pass of several does, so that there must be none."""
    if isinstance(child, Dataset) or isinstance(child.node(), Leaf):
        return
    if not isinstance(child, Blend) or child.num_samples is not None:
        raise ConfigError(
            f"{name!r} is {child!r}; what a schedule weighs is a dataset or an endless blend, since a pass of several "
            "would be cut where the weights change"
        )
    for inner, grandchild in child.children.items():
        _check_no_passes(f"{name}/{inner}", grandchild)
