"""`Blend` mixes datasets by weights or repeats; `ScheduledBlend` mixes them by weights that change along the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import gcd, isqrt
from typing import Any, Literal, get_args

import msgspec

from headrace.config import check_choice, check_fields, nearest, optional_whole, whole
from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, check_children, joined, length_of, named_children, node_of
from headrace.errors import ConfigError
from headrace.plan import (
    Branch,
    Leaf,
    Node,
    Schedule,
    apportion,
    counts_until,
    exact_weights,
    linear_ramp,
    quantised,
    rounded,
)
from headrace.plan.arithmetic import check_positive
from headrace.plan.blend import MOST_SEGMENTS, quantised_with_zeros
from headrace.plan.nodes import declared

End = Literal["endless", "samples", "first_exhausted", "all_exhausted"]
Unit = Literal["samples", "tokens"]
Weight = float | Fraction


class Blend(Mix):
    """Datasets, or other blends, by name; the name is part of each source's path.

    Give either ``weights`` or ``repeats``, a number for each name:

    - ``weights`` are shares of the samples, or of the tokens with ``unit="tokens"``. ``end`` says how far the blend
      goes: ``"endless"``, ``"samples"`` (exactly ``num_samples``, divided by the weights), ``"first_exhausted"`` (until
      one source was seen whole, none more than once), ``"all_exhausted"`` (until each source was seen whole at least
      once). Meanwhile, a source that has been read to its end starts its next epoch.
    - ``repeats`` are passes through each source, whole or fractional: 2.5 passes through 1,000 samples are exactly
      2,500. One pass through the blend is the sum of these.

    At every prefix the counts of a blend are within 2 samples of its shares, and at the end of a blend that ends they
    are exact. The same dataset under two names is read in two different orders.

    With ``block_samples`` B above 1, the source is chosen for B consecutive samples at a time, so that every
    micro-batch has one source. Blocks begin at the multiples of B. A loader refuses a micro-batch size that does not
    divide B, since such a micro-batch would lie in two blocks. Which ranks take which blocks of a step is drawn. B is
    part of the recipe of a run; changing it changes the order. At every prefix each source is within 2 blocks of its
    share. With ``repeats``, or ``end="samples"``, the counts of a pass must be whole blocks. The other ends are counted
    in blocks: ``"first_exhausted"`` leaves less than a block of that source unseen, ``"all_exhausted"`` begins its next
    epoch by less than a block.

    Sources whose manifests name different tokenisers are refused unless ``allow_different_tokenizers`` is true; an
    outer blend has to set that too. Stores without a manifest are not compared.

    Raises:
        ConfigError: names without numbers or the reverse, weights that are not positive and finite, an endless blend
            where a length is needed, fields that cannot be stacked into one batch, different tokenisers.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> blend = headrace.Blend({"web": web, "code": code}, weights={"web": 3, "code": 1})
        >>> run = headrace.Run(blend, global_batch_size=32)
        >>> np.bincount(run.lookup(np.arange(800)).sources).tolist()
        [600, 200]
    """

    kind = "blend"

    def __init__(
        self,
        children: Mapping[str, Dataset | Mix],
        *,
        weights: Mapping[str, Weight] | None = None,
        repeats: Mapping[str, Weight] | None = None,
        unit: Unit = "samples",
        end: End = "endless",
        num_samples: int | None = None,
        block_samples: int = 1,
        allow_different_tokenizers: bool = False,
    ) -> None:
        self.block_samples = whole(block_samples, "block_samples", least=1)
        self.children = named_children(children)
        self.numbers = _numbers_by_name(self.children, weights, repeats)
        check_choice("unit", unit, get_args(Unit))
        check_choice("end", end, get_args(End))
        if repeats is not None and (unit, end, num_samples) != ("samples", "endless", None):
            raise ConfigError("a blend by repeats has an end of its own: unit, end and num_samples are for weights")
        if (end == "samples") != (num_samples is not None):
            raise ConfigError(f"num_samples goes with end='samples', found end={end!r} and num_samples={num_samples}")
        self.unit = unit
        self.end = "repeats" if repeats is not None else end
        self.wanted = optional_whole(num_samples, "num_samples", least=1)
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)

    @property
    def recipe(self) -> dict[str, Any]:
        """The weights or repeats and what they mean; fractions and large numbers are texts."""
        numbers = {name: plain_number(number) for name, number in self.numbers.items()}
        if self.end == "repeats":
            return {"repeats": numbers, "block_samples": self.block_samples}
        ends = {"unit": self.unit, "end": self.end, "num_samples": self.wanted}
        return {"weights": numbers, **ends, "block_samples": self.block_samples}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], children: dict[str, Dataset | Mix]) -> Mix:
        """Return the blend of a recipe and of its children."""
        kind = "weights" if "weights" in recipe else "repeats"
        numbers = {name: exact_number(number) for name, number in recipe[kind].items()}
        return super().from_recipe({**recipe, kind: numbers}, children)

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Integers in proportion to which the sources are mixed; for a blend that ends, exact counts of blocks."""
        if self.end == "repeats":
            counts = {name: rounded(Fraction(self.numbers[name]) * n) for name, n in self._lengths().items()}
            return tuple(self._blocks(f"{name!r} by its repeats", count) for name, count in counts.items())
        weights = list(self.numbers.values())
        if self.unit == "tokens":
            tokens = [child.num_tokens_per_sample for child in self.children.values()]
            weights = [Fraction(weight) / Fraction(number) for weight, number in zip(weights, tokens, strict=True)]
        if self.end == "endless":
            return tuple(quantised(weights))
        if self.wanted is not None:
            return tuple(apportion(self._blocks("num_samples", self.wanted), exact_weights(weights)))
        # A blend that ends with its first source reads whole blocks of it; one that ends with its last, a begun one
        # too.
        partial = 0 if self.end == "first_exhausted" else self.block_samples - 1
        blocks = {name: (length + partial) // self.block_samples for name, length in self._lengths().items()}
        if short := [name for name, number in blocks.items() if not number]:
            raise ConfigError(f"{short} have less than one block of {self.block_samples:,} samples")
        return tuple(counts_until(self.end, weights, list(blocks.values())))

    @property
    def num_samples(self) -> int | None:
        """Number of samples in one pass; None for an endless blend."""
        return None if self.end == "endless" else sum(self.shares) * self.block_samples

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens over the sources, by their shares."""
        pairs = zip(self.shares, self.children.values(), strict=True)
        return float(
            sum(Fraction(share) * Fraction(child.num_tokens_per_sample) for share, child in pairs) / sum(self.shares)
        )

    def node(self, path: str = "") -> Branch:
        """Return the node of the plan that stands for the blend at a path."""
        nodes = tuple(node_of(joined(path, name), child) for name, child in self.children.items())
        return Branch(path, nodes, self.shares, self.num_samples, self.block_samples)

    def _blocks(self, what: str, num_samples: int) -> int:
        """Return a number of samples as whole blocks. Raises ConfigError if some samples would be left."""
        if num_samples % self.block_samples:
            below = num_samples // self.block_samples * self.block_samples
            raise ConfigError(
                f"{what} has {num_samples:,} samples, and whole blocks of {self.block_samples:,} make {below:,} or "
                f"{below + self.block_samples:,}: choose a multiple of the block, or weights"
            )
        return num_samples // self.block_samples

    def _lengths(self) -> dict[str, int]:
        lengths = {name: length_of(child) for name, child in self.children.items()}
        if endless := [name for name, length in lengths.items() if length is None]:
            raise ConfigError(f"{self.end!r} needs the length of every source, and {endless} are endless blends")
        return {name: length for name, length in lengths.items() if length is not None}


def plain_number(number: Weight) -> int | float | str:
    """Return a number as JSON has it; fractions and large numbers as texts."""
    if isinstance(number, Fraction) or (isinstance(number, int) and abs(number) >= 1 << 53):
        return str(Fraction(number))
    return int(number) if isinstance(number, int) else float(number)


def exact_number(number: Any) -> Any:
    """Return a number from JSON; undoes `plain_number`."""
    return Fraction(number) if isinstance(number, str) else number


def _numbers_by_name(
    children: Mapping[str, Dataset | Mix],
    weights: Mapping[str, Weight] | None,
    repeats: Mapping[str, Weight] | None,
) -> dict[str, Weight]:
    """Return the weights or the repeats, whichever are given, in the order of the children."""
    numbers = weights if weights is not None else repeats
    if numbers is not None and not isinstance(numbers, Mapping):
        raise ConfigError(
            f"weights or repeats are {numbers!r:.80}; expected a number for each name, such as"
            f" {{{', '.join(f'{name!r}: 0.5' for name in list(children)[:2])}}}"
        )
    if numbers is None or (weights is not None and repeats is not None):
        raise ConfigError("a blend needs either weights or repeats, and not both")
    if not children or children.keys() != numbers.keys():
        near = "".join(nearest(str(name), children) for name in numbers if name not in children)
        found = f"names {sorted(children)}, numbers {sorted(numbers)}"
        raise ConfigError(f"a blend needs a number for each name: {found}{near}")
    for name in children:
        check_positive(f"source {name!r} has weight or repeat", numbers[name])
    return {name: numbers[name] for name in children}


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights that hold up to a sample.

    Attributes:
        weights: name -> weight, of any sum; a source that is missing or has weight 0 is not used.
        until: the first sample after this stage; None for the last stage.
        ramp: the weights move in a straight line from those at the end of the stage before to these.
    """

    weights: dict[str, float]
    until: int | None = None
    ramp: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class ScheduledBlend(Mix):
    """Datasets, or endless blends, mixed by weights that change at given samples. It has no end.

    A dataset continues its epochs from stage to stage: no sample comes twice before all of them came. Within each stage
    every prefix is within 2 samples, or 2 blocks, of the weights. A ramp over n samples is defined as isqrt(n) stages
    of constant weights, at most 1,024.

    Args:
        children: datasets and endless blends of datasets, by name.
        stages: at least one; the last has no ``until``.
        block_samples: number of consecutive samples that the source is chosen for, see `Blend`; it divides every
            ``until``.
        allow_different_tokenizers: as in `Blend`.

    Raises:
        ConfigError: unknown names or weights, stages whose ends do not rise, a ramp in the first or last stage, a child
            with passes of its own; otherwise as `Blend`.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> Stage = headrace.datasets.Stage
        >>> blend = headrace.ScheduledBlend({"web": web, "code": code}, [
        ...     Stage(until=1_000, weights={"web": 1}),
        ...     Stage(until=2_000, weights={"web": 1, "code": 1}, ramp=True),
        ...     Stage(weights={"code": 1}),
        ... ])
        >>> run = headrace.Run(blend, global_batch_size=10)
        >>> run.lookup(np.array([0, 999, 2_000])).sources.tolist()
        [0, 0, 1]
    """

    kind = "stages"

    def __init__(
        self,
        children: Mapping[str, Dataset | Mix],
        stages: Sequence[Stage],
        *,
        block_samples: int = 1,
        allow_different_tokenizers: bool = False,
    ) -> None:
        self.children = named_children(children)
        self.stages = tuple(stages)
        self.block_samples = whole(block_samples, "block_samples", least=1)
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)
        for name, child in self.children.items():
            _check_no_passes(name, child)
        _check_stages(self.stages, self.block_samples)
        for stage in self.stages:
            self._check_weights(stage.weights)
        used = {name for stage in self.stages for name, weight in stage.weights.items() if weight}
        if never := [name for name in self.children if name not in used]:
            raise ConfigError(f"{never} have no weight in any stage of the schedule: leave them out")

    @property
    def recipe(self) -> dict[str, Any]:
        """The stages and the blocks."""
        return {"stages": msgspec.to_builtins(self.stages), "block_samples": self.block_samples}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], children: dict[str, Dataset | Mix]) -> Mix:
        """Return the blend of a recipe and of its children."""
        return super().from_recipe({**recipe, "stages": msgspec.convert(recipe["stages"], tuple[Stage, ...])}, children)

    @property
    def num_samples(self) -> None:
        """None: the last stage has no end."""
        return None

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens over the sources, by the weights of the last stage."""
        weights = self.stages[-1].weights
        tokens = sum(weight * self.children[name].num_tokens_per_sample for name, weight in weights.items() if weight)
        return tokens / sum(weights.values())

    @property
    def segments(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(first sample, shares by child of sum 2^31) for every stage of constant weights, also within ramps."""
        found: list[tuple[int, tuple[int, ...]]] = []
        begin = 0
        before: list[float] = []
        for stage in self.stages:
            weights = [stage.weights.get(name, 0) for name in self.children]
            if stage.ramp and stage.until is not None:
                block = self.block_samples
                first, last = begin // block, stage.until // block
                # As many pieces as each has samples balances the error of the steps and that of rounding in each piece.
                number = min(MOST_SEGMENTS, isqrt(last - first))
                pieces = linear_ramp(before, weights, begin=first, end=last, num_segments=number)
                found += [(place * block, shares) for place, shares in pieces[:-1]]
            else:
                found.append((begin, quantised_with_zeros(weights)))
            begin, before = stage.until or 0, weights
        return tuple(found)

    def node(self, path: str = "") -> Node:
        """Return what the blend declares at a path: a `headrace.plan.Schedule`."""
        nodes = [node_of(joined(path, name), child) for name, child in self.children.items()]
        segments = []
        for begin, shares in self.segments:
            used = [number for number, share in enumerate(shares) if share]
            branch = Branch(
                path, tuple(nodes[i] for i in used), tuple(shares[i] for i in used), None, self.block_samples
            )
            segments.append((begin, branch))
        return declared(Schedule(path, tuple(segments)))

    def _check_weights(self, weights: Mapping[str, float]) -> None:
        if unknown := sorted(weights.keys() - self.children.keys()):
            near = nearest(unknown[0], self.children)
            raise ConfigError(f"the schedule has weights of {unknown}{near}; the sources are {sorted(self.children)}")
        if not all(0 <= weight < float("inf") for weight in weights.values()) or not any(weights.values()):
            raise ConfigError(
                f"the weights of a stage must be finite and not below 0, and at least one above 0; found {weights}"
            )


def _check_stages(stages: Sequence[Stage], block_samples: int) -> None:
    """Raise ConfigError unless stages of constant weights and ramps follow one another in whole blocks."""
    if not stages:
        raise ConfigError("a schedule of weights needs at least one stage")
    if wrong := [stage for stage in stages if not isinstance(stage, Stage)]:
        raise ConfigError(f"a stage is {wrong[0]!r:.80}; expected a headrace.datasets.Stage(weights=..., until=...)")
    untils = [stage.until for stage in stages]
    ends = [0, *(until or 0 for until in untils[:-1])]
    if untils[-1] is not None or ends != sorted(set(ends)):
        raise ConfigError(
            f"the stages of a schedule must end at rising samples, and the last one has no end; found {untils}"
        )
    if gcd(*ends) % block_samples:
        raise ConfigError(
            f"block_samples is {block_samples}, and every stage must be whole blocks; stages end at {untils}"
        )
    if stages[0].ramp or stages[-1].ramp:
        raise ConfigError(
            "the first and the last stage of a schedule have constant weights: a ramp begins with the weights "
            "of the stage before it, and ends at its until"
        )


def _check_no_passes(name: str, child: Dataset | Mix) -> None:
    """Raise ConfigError for a child with passes, which stages would cut: a stage begins wherever its sources are."""
    if isinstance(child, Dataset) or isinstance(child.node(), Leaf):
        return
    if not isinstance(child, Blend) or child.num_samples is not None:
        raise ConfigError(
            f"{name!r} is {child!r}; a schedule mixes datasets and endless blends, since a pass of several datasets "
            "would be cut where the weights change"
        )
    for inner, grandchild in child.children.items():
        _check_no_passes(f"{name}/{inner}", grandchild)
