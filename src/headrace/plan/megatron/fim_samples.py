"""Fill in the middle, done to the tokens of one sample.

    a sample     a b c d e EOD f g h           cut at the ends of documents
    documents    a b c d e | f g h             each is rearranged with probability ``rate``, at two random cuts
    with cuts    a b / c d / e                 prefix / middle / suffix
    PSM          PRE a b SUF e MID c d         prefix, suffix, middle
    SPM          PRE SUF e MID a b c d         suffix, prefix and middle ("variant 2")
    the sample   PRE a b SUF e MID c d EOD     cut to its old length, or filled up with the pad

Source: Megatron-LM, ``GPTFIMDataset``; Bavarian et al., "Efficient Training of Language Models to Fill in the Middle",
2022. What it does to empty documents is kept: an end of document with nothing before it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray
from headrace.plan.megatron.fim import FillInTheMiddle
from headrace.plan.megatron.fim_draws import Draws


def fill_in_the_middle(sample: NDArray[Any], fim: FillInTheMiddle, draws: Draws) -> IntArray:
    """(n,) int64 of the (n,) integer tokens of a sample, its documents rearranged.

    The draws are asked for as Megatron asks, so that draws from its generator give its result. Costs some microseconds
    a document; with a codec, decoding and encoding the rearranged ones.
    """
    tokens: IntArray = sample.astype(np.int64, copy=False)
    if fim.rate == 0:
        return tokens
    parts = _apart(tokens, fim.tokens.eod, lambda document: _document(document, fim, draws))
    made = np.concatenate(parts)[: len(tokens)]
    return np.concatenate([made, np.full(len(tokens) - len(made), fim.tokens.pad, dtype=np.int64)])


def _apart(tokens: IntArray, border: int, change: Callable[[IntArray], IntArray]) -> list[IntArray]:
    """What lies between the borders, changed, and the borders; one with nothing before it is left out."""
    parts = []
    begin = 0
    for at in np.flatnonzero(tokens == border).tolist():
        if at > begin:
            parts += [change(tokens[begin:at]), tokens[at : at + 1]]
        begin = at + 1
    return [*parts, change(tokens[begin:])]


def _document(tokens: IntArray, fim: FillInTheMiddle, draws: Draws) -> IntArray:
    split, rate = fim.tokens.split, fim.fragment_rate
    if split is None or rate is None or not (tokens == split).any():
        return _rearranged(tokens, fim, fim.rate, draws)
    if not draws.chance(fim.rate):
        return tokens
    return np.concatenate(_apart(tokens, split, lambda fragment: _rearranged(fragment, fim, rate, draws)))


def _rearranged(tokens: IntArray, fim: FillInTheMiddle, rate: float, draws: Draws) -> IntArray:
    if not draws.chance(rate):
        return tokens
    codec = fim.codec
    if codec is None:
        low, high = sorted(draws.cuts(len(tokens)))
        prefix, middle, suffix = tokens[:low], tokens[low:high], tokens[high:]
    else:
        text = codec.decode(tokens.tolist())
        if fim.no_prefix is not None and text.startswith(fim.no_prefix):
            return tokens
        low, high = sorted(draws.cuts(len(text)))
        prefix, middle, suffix = (
            np.array(codec.encode(part), dtype=np.int64) for part in (text[:low], text[low:high], text[high:])
        )
    marks = fim.tokens
    if draws.chance(fim.spm_rate):
        return np.concatenate([[marks.prefix, marks.suffix], suffix, [marks.middle], prefix, middle])
    return np.concatenate([[marks.prefix], prefix, [marks.suffix], suffix, [marks.middle], middle])
