"""Which shard is of which part: dealt anew, or a split file brought up to date. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from headrace.prepare.energon.options import SplitChoice, part_patterns
from headrace.prepare.shards.options import SPLIT_NAMES
from headrace.stores.energon.splits import DEFAULT_PART

Parts = dict[str, list[str]]
SHUFFLE_SEED = 42


def deal(names: Sequence[str], choice: SplitChoice) -> Parts:
    """The parts of all shards, as Energon deals them.

    By a ratio the shards are cut where ``int(number * share so far)`` says: of three shards, 8,1,1 makes two train,
    none val, one test.
    """
    if choice.parts:
        return _by_patterns(names, choice)
    names = list(names)
    if choice.shuffle:
        random.Random(SHUFFLE_SEED).shuffle(names)
    shares = [*choice.ratio, *([0.0] * (len(SPLIT_NAMES) - len(choice.ratio)))]
    total, so_far, begin = sum(shares), 0.0, 0
    parts: Parts = {}
    for part, share in zip(SPLIT_NAMES, shares, strict=True):
        so_far += share / total
        end = int(len(names) * so_far)
        parts[part] = names[begin:end]
        begin = end
    return parts


def bring_up_to_date(
    parts: Mapping[str, Sequence[str]], names: Sequence[str], new: Sequence[str], choice: SplitChoice
) -> Parts:
    """The parts without the shards that are gone, and with new ones at the end.

    Args:
        parts: of the split file, braces expanded.
        names: all shards of the dataset.
        new: those of them that it did not have before.
        choice: new shards go where its patterns say; without any, to ``train``, or to the first part.
    """
    kept = set(names)
    found = {part: [name for name in listed if name in kept] for part, listed in parts.items()}
    if choice.parts:
        added = _by_patterns(new, choice)
    else:
        target = DEFAULT_PART if DEFAULT_PART in found or not found else next(iter(found))
        added = {target: list(new)}
    for part, shards in added.items():
        listed = found.setdefault(part, [])
        there = set(listed)
        listed += [name for name in shards if name not in there]
    return found


def _by_patterns(names: Sequence[str], choice: SplitChoice) -> Parts:
    parts: Parts = {}
    for part, pattern in choice.parts:
        patterns = part_patterns(part, pattern)
        listed = parts.setdefault(part, [])
        there = set(listed)
        listed += [name for name in names if name not in there and any(found.match(name) for found in patterns)]
    return parts
