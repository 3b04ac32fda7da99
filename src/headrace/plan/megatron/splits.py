"""Megatron's splits: which sequences belong to training, validation and test, with the borders of both eras."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Literal

import numpy as np

from headrace.config import check_choice
from headrace.errors import ConfigError

SPLITS = ("train", "valid", "test")
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_SEPARATOR = re.compile(r"\s*[,/]\s*|\s+")


def parse_split(split: str) -> tuple[float, float, float]:
    """Return the shares of training, validation and test, with the sum 1: ``"969,30,1"`` is (0.969, 0.03, 0.001).

    Numbers are separated by commas, slashes or spaces; missing ones are 0. The shares are computed in float64 as in
    Megatron, so that the borders are the same to the last sequence.

    Raises:
        ConfigError: the text is not a list of one to three numbers, or all of them are 0.
    """
    parts = _SEPARATOR.split(split.strip().strip("[]").strip())
    if not all(_NUMBER.fullmatch(part) for part in parts) or len(parts) > len(SPLITS):
        raise ConfigError(
            f"the split is {split!r}; it must be one to three numbers of at least 0 for training, validation and test,"
            " such as '969,30,1'"
        )
    shares = np.array([float(part) for part in parts] + [0.0] * (len(SPLITS) - len(parts)))
    if not 0 < shares.sum() < np.inf:
        raise ConfigError(f"the split is {split!r}; at least one share must be above 0")
    train, valid, test = (shares / shares.sum()).tolist()
    return train, valid, test


def split_ranges(
    split: str, num_sequences: int, *, era: Literal["core", "legacy"]
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, tuple[int, int] | None]:
    """Return (first, end) of the sequences of training, validation and test, or None for a share of 0.

    ``core`` rounds the borders, half to even. ``legacy`` (Megatron-LM before Megatron-Core, Megatron-DeepSpeed,
    GPT-NeoX) rounds the size of each share, and then shifts all borders by the error of the sum. For 969,30,1 the two
    differ for every fourth number of sequences.

        49 sequences, 969,30,1      core: [0, 47) [47, 49) [49, 49)      legacy: [0, 48) [48, 49) [49, 49)

    Raises:
        ConfigError: the split cannot be read; or a legacy border is below 0, where Megatron reads wrong sequences.
    """
    shares = parse_split(split)
    check_choice("era", era, ("core", "legacy"))
    borders = [0.0, *accumulate(shares)]
    if era == "core":
        ends = [round(border * float(num_sequences)) for border in borders]
    else:
        ends = [0, *accumulate(round(share * float(num_sequences)) for share in shares)]
        ends[1:] = [end - (ends[-1] - num_sequences) for end in ends[1:]]
        if min(ends) < 0:
            raise ConfigError(
                f"the legacy borders of {split!r} over {num_sequences:,} sequences are {ends}, below 0; Megatron reads"
                " sequences from the end there: use era='core'"
            )
    train, valid, test = ((ends[i], ends[i + 1]) if borders[i + 1] > borders[i] else None for i in range(len(SPLITS)))
    return train, valid, test
