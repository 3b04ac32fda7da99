"""A blend as Megatron's options write it: ``0.3 A 0.7 B``, or prefixes alone."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ConfigError


def parse_blend(blend: str | Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Prefixes, and their weights or None without.

        ["0.3", "A", "0.7", "B"] and "[0.3 A 0.7 B]"      (["A", "B"], [0.3, 0.7])
        ["A", "B"]                                        (["A", "B"], None)

    A string is divided at white space, and brackets around it are left out. As in Megatron an odd number of words are
    prefixes; of an even number, each first of two is a weight if all of them are numbers.

    Raises:
        ConfigError: nothing is there; only some of the weights are numbers; a weight is not positive and finite; or a
            prefix of an odd number is a number, so a weight or a prefix is missing.
    """
    words = blend.strip().removeprefix("[").removesuffix("]").split() if isinstance(blend, str) else list(blend)
    words = [word.strip() for word in words]
    if not words or not all(words):
        raise ConfigError(f"the blend is {blend!r}; write prefixes, or weights and prefixes as in '0.3 A 0.7 B'")
    if len(words) % 2:
        for place, word in enumerate(words):
            if len(words) > 1 and _number(word) is not None:
                raise ConfigError(
                    f"word {place} of the blend, {word!r}, is a number, but {len(words)} words are no pairs of weight"
                    " and prefix: one is missing (a prefix that looks like a number is written './0.3')"
                )
        return words, None
    weights = [_number(word) for word in words[::2]]
    known = [weight for weight in weights if weight is not None]
    if not known:
        return words, None
    if len(known) < len(weights):
        place = 2 * weights.index(None)
        raise ConfigError(
            f"word {place} of the blend, {words[place]!r}, is no weight, but others are: give every prefix a weight, or"
            " none"
        )
    prefixes = words[1::2]
    for prefix, weight in zip(prefixes, known, strict=True):
        if not 0 < weight < float("inf"):
            raise ConfigError(f"{prefix!r} has weight {weight}; weights are positive and finite: leave it out instead")
    return prefixes, known


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
