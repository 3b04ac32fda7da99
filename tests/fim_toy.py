"""A tokeniser of seven words whose cuts are encoded otherwise than they were, and draws of Megatron's generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.plan.megatron import FIMTokens, TextCodec

WORDS = ["a", "b", "c", "d", "ab", "cd", "abc"]
EOD, PREFIX, MIDDLE, SUFFIX, PAD, SPLIT = range(len(WORDS), len(WORDS) + 6)
MARKS = {"prefix": PREFIX, "middle": MIDDLE, "suffix": SUFFIX, "pad": PAD, "eod": EOD}


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[number] for number in ids)


def encode(text: str) -> list[int]:
    """The longest word that fits, from the left: "ab" and "c" joined become another word."""
    ids = []
    while text:
        word = max((word for word in WORDS if text.startswith(word)), key=len)
        ids.append(WORDS.index(word))
        text = text[len(word) :]
    return ids


CODEC = TextCodec(encode=encode, decode=decode, name="toy")


def tokens(split: bool = False) -> FIMTokens:
    return FIMTokens(**MARKS, split=SPLIT if split else None)


class GeneratorDraws:
    """Draws of one ``numpy.random.RandomState``, asked as Megatron asks it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)

    def chance(self, rate: float) -> bool:
        return bool(self.rng.binomial(1, rate))

    def cuts(self, length: int) -> tuple[int, int]:
        first, second = self.rng.randint(low=0, high=length + 1, size=2)
        return int(first), int(second)
