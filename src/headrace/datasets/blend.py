"""Blends: trees of datasets mixed by weight, or repeated a given number of times."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Literal

from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, check_children, check_named, joined, length_of, node_of
from headrace.errors import ConfigError
from headrace.plan import Branch, apportion, counts_until, exact_weights, quantised, rounded

End = Literal["endless", "samples", "first_exhausted", "all_exhausted"]
Unit = Literal["samples", "tokens"]
Weight = float | Fraction


class Blend(Mix):
    """Datasets, or other blends, by name; the name is part of each source's place in the tree.

    Give either ``weights`` or ``repeats``, a number for each name:

    - ``weights`` are shares of the samples, or of the tokens with ``unit="tokens"``. ``end`` says how far the blend
      goes: ``"endless"``, ``"samples"`` (exactly ``num_samples``, shared out by the weights), ``"first_exhausted"``
      (one source seen whole, none beyond once), ``"all_exhausted"`` (each source seen whole at least once). While it
      goes, a source that is through starts its next epoch.
    - ``repeats`` are passes through each source, whole or fractional: 2.5 passes through 1,000 samples are exactly
      2,500. One pass through the blend is the sum of these.

    Each blend's realised counts stay within 2 samples of its shares at every prefix, and are exact at the end of a
    blend that ends.
    The same dataset under two names is gone through in two different orders.

    Sources whose manifests name different tokenisers are refused, unless ``allow_different_tokenizers``, which an outer
    blend has to say for itself. Stores without a manifest are not compared.

    Raises:
        ConfigError: names without numbers or the reverse, weights that are not positive and finite, an endless blend
            where a length is needed, fields that cannot be stacked into one batch, different tokenisers.
    """

    block_samples = 1
    """For how many consecutive samples the source is chosen at a time; see `BlendDataset`."""

    def __init__(
        self,
        children: Mapping[str, Dataset | Mix],
        *,
        weights: Mapping[str, Weight] | None = None,
        repeats: Mapping[str, Weight] | None = None,
        unit: Unit = "samples",
        end: End = "endless",
        num_samples: int | None = None,
        allow_different_tokenizers: bool = False,
    ) -> None:
        check_named(children)
        numbers = weights if weights is not None else repeats
        if numbers is not None and not isinstance(numbers, Mapping):
            raise ConfigError(
                f"weights or repeats are {numbers!r:.80}; expected a number for each name, as"
                f" {{{', '.join(f'{name!r}: 0.5' for name in list(children)[:2])}}}"
            )
        if numbers is None or (weights is not None and repeats is not None):
            raise ConfigError("a blend takes either weights or repeats")
        if not children or children.keys() != numbers.keys():
            raise ConfigError(
                f"a blend needs a number for each name: names {sorted(children)}, numbers {sorted(numbers)}"
            )
        for name in children:
            if not 0 < numbers[name] < float("inf"):
                raise ConfigError(
                    f"source {name!r} has weight or repeat {numbers[name]}: they are positive and finite; "
                    "leave a source out instead of giving it 0"
                )
        if unit not in ("samples", "tokens"):
            raise ConfigError(f"unit is {unit!r}; allowed are 'samples', 'tokens'")
        if end not in ("endless", "samples", "first_exhausted", "all_exhausted"):
            raise ConfigError(f"end is {end!r}; allowed are 'endless', 'samples', 'first_exhausted', 'all_exhausted'")
        if repeats is not None and (end != "endless" or unit != "samples" or num_samples is not None):
            raise ConfigError("a blend by repeats ends by itself: unit, end and num_samples go with weights")
        if (end == "samples") != (num_samples is not None):
            raise ConfigError(f"num_samples goes with end='samples', found end={end!r} and num_samples={num_samples}")
        self.children = dict(children)
        self.unit = unit
        self.end = "repeats" if repeats is not None else end
        self.numbers = {name: numbers[name] for name in children}
        self._wanted = num_samples
        check_children(self.children, allow_different_tokenizers=allow_different_tokenizers)

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Integers in proportion to which the sources are mixed; exact counts, of blocks, for a blend that ends."""
        numbers = list(self.numbers.values())
        if self.end == "repeats":
            lengths = self._lengths()
            counts = [rounded(Fraction(number) * length) for number, length in zip(numbers, lengths, strict=True)]
            return tuple(
                self._blocks(f"{name!r} by its repeats", n) for name, n in zip(self.children, counts, strict=True)
            )
        if self.unit == "tokens":
            tokens = [child.num_tokens_per_sample for child in self.children.values()]
            weights = [w / Fraction(t) for w, t in zip(exact_weights(numbers), tokens, strict=True)]
        else:
            weights = exact_weights(numbers)
        if self.end == "endless":
            return tuple(quantised(weights))
        if self._wanted is not None:
            if self._wanted < 1:
                raise ConfigError(f"num_samples is at least 1, found {self._wanted}")
            return tuple(apportion(self._blocks("num_samples", self._wanted), exact_weights(weights)))
        lengths = self._lengths()
        if self.end == "first_exhausted":
            short = [name for name, length in zip(self.children, lengths, strict=True) if length < self.block_samples]
            if short:
                raise ConfigError(f"{short} have less than one block of {self.block_samples:,} samples")
            lengths = [length // self.block_samples for length in lengths]
        else:
            lengths = [-(-length // self.block_samples) for length in lengths]
        return tuple(counts_until(self.end, weights, lengths))

    @property
    def num_samples(self) -> int | None:
        """The samples of one pass, None for an endless blend."""
        return None if self.end == "endless" else sum(self.shares) * self.block_samples

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean over the sources, by their shares."""
        pairs = zip(self.shares, self.children.values(), strict=True)
        return float(
            sum(Fraction(share) * Fraction(child.num_tokens_per_sample) for share, child in pairs) / sum(self.shares)
        )

    def node(self, path: str = "") -> Branch:
        """The blend as the plan sees it."""
        nodes = tuple(node_of(joined(path, name), child) for name, child in self.children.items())
        return Branch(path, nodes, self.shares, self.num_samples, self.block_samples)

    def _blocks(self, what: str, num_samples: int) -> int:
        """Whole blocks of exact counts, which nothing is to be lost of."""
        if num_samples % self.block_samples:
            below = num_samples // self.block_samples * self.block_samples
            raise ConfigError(
                f"{what} has {num_samples:,} samples, and blocks of {self.block_samples:,} make {below:,} or "
                f"{below + self.block_samples:,}: choose a number that they divide, or weights"
            )
        return num_samples // self.block_samples

    def _lengths(self) -> list[int]:
        lengths = {name: length_of(child) for name, child in self.children.items()}
        endless = [name for name, length in lengths.items() if length is None]
        if endless:
            raise ConfigError(f"{self.end!r} needs the length of every source, and {endless} are endless blends")
        return [length for length in lengths.values() if length is not None]
