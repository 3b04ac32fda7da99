"""Which documents or packs of a store are shown: those that are named, the first, some by chance, or the extremes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.cli.figures import count
from headrace.cli.views.reading import ShownKeys
from headrace.datasets.pack_plans import StoreLengths
from headrace.errors import ConfigError
from headrace.plan.packing import PackPlan
from headrace.stores import Dialect, Store
from headrace.stores import open_tokens as open_store

By = Literal["longest", "least_trained"]

MAX_SAMPLES = 1000
"""More than that nobody looks at, and a page would be slow."""
MOST_LENGTHS = 1 << 24
"""Documents whose lengths are compared: a second of reading."""
MOST_MASKS = 1 << 14
"""Documents whose masks are read where the store does not count trained tokens."""
_BLOCKS = 64
NUM_SUPERVISED = "num_supervised"


def spread(num_documents: int, most: int) -> tuple[list[tuple[int, int]], str]:
    """Documents ``[begin, end)`` to look at, ascending: all, or ``most`` of them in blocks; and words for it."""
    if num_documents <= most:
        return [(0, num_documents)], ""
    each = most // _BLOCKS
    blocks = [(at, at + each) for at in (block * num_documents // _BLOCKS for block in range(_BLOCKS))]
    return blocks, f" among {count(most)} of {count(num_documents)} documents, in {_BLOCKS} blocks evenly spread"


def trained_shares(
    store: Store, keys: ShownKeys, dialect: Dialect | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], str] | None:
    """Documents, the share of each that is trained, and how they were chosen; None where there is no loss mask.

    Empty documents are left out. Cost: the index, and by `MOST_MASKS` masks where nothing counts trained tokens.
    """
    mask = keys.masks[keys.main]
    if mask is None:
        return None
    counts = mask == "loss_mask" and NUM_SUPERVISED in store.keys
    blocks, words = spread(store.num_documents, MOST_LENGTHS if counts else MOST_MASKS)
    documents = _numbers(blocks)
    lengths = _lengths(store, keys, documents, dialect)
    if counts:
        with open_store(store.path, key=NUM_SUPERVISED, dialect=dialect) as supervised:
            trained = np.concatenate([supervised.fetch(*block) for block in blocks]).astype(np.int64)
    else:
        trained = np.array([np.count_nonzero(store.document(one, mask)) for one in documents.tolist()], np.int64)
    there = lengths > 0
    return documents[there], trained[there] / lengths[there], words


def choose(
    store: Store,
    keys: ShownKeys,
    plan: PackPlan | None,
    *,
    named: tuple[int, ...] | None,
    num: int,
    seed: int | None,
    by: By | None,
    dialect: Dialect | None,
) -> tuple[Sequence[int], str]:
    """The numbers to show, in their order, and how they were chosen; nothing to say of those named and the first ones.

    Raises:
        ConfigError: a number is not there, or what is asked for does not go together.
    """
    noun = "documents" if plan is None else "packs"
    num_samples = store.num_documents if plan is None else len(plan)
    asked = [name for name, value in (("random", seed), (by, by), ("documents", named)) if value is not None]
    if len(asked) > 1:
        names = " and ".join(f"--{str(name).replace('_', '-')}" for name in asked)
        raise ConfigError(f"{names} both say which {noun} are shown: choose one")
    if named is not None:
        for number in named:
            if not 0 <= number < num_samples:
                raise ConfigError(f"{store.path} has no {noun[:-1]} {number}; it has {num_samples:,}, counted from 0")
    if (num if named is None else len(named)) > MAX_SAMPLES:
        shown = num if named is None else len(named)
        raise ConfigError(f"{shown:,} {noun} are asked for; at most {MAX_SAMPLES:,} are shown at once")
    if named is not None:
        return named, ""
    if seed is not None:
        chosen = random.Random(seed).sample(range(num_samples), min(num, num_samples))
        return chosen, f"{count(len(chosen))} by chance, seed {seed}"
    if by is None:
        return range(min(num, num_samples)), ""
    if plan is not None:
        raise ConfigError(f"--{by.replace('_', '-')} is of documents: leave out --pack, or say --random SEED")
    return _extreme(store, keys, num, by, dialect)


def _extreme(store: Store, keys: ShownKeys, num: int, by: By, dialect: Dialect | None) -> tuple[Sequence[int], str]:
    if by == "longest":
        blocks, words = spread(store.num_documents, MOST_LENGTHS)
        documents = _numbers(blocks)
        values = -_lengths(store, keys, documents, dialect)
        return documents[np.argsort(values, kind="stable")[:num]].tolist(), f"the longest{words}"
    found = trained_shares(store, keys, dialect)
    if found is None:
        raise ConfigError(f"{store.path} has no loss mask: --least-trained is for stores that have one")
    documents, shares, words = found
    return documents[np.argsort(shares, kind="stable")[:num]].tolist(), f"the least trained{words}"


def _numbers(blocks: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in blocks])


def _lengths(store: Store, keys: ShownKeys, documents: NDArray[np.int64], dialect: Dialect | None) -> NDArray[np.int64]:
    main = store if keys.main == store.keys[0] else open_store(store.path, key=keys.main, dialect=dialect)
    return StoreLengths(main).spans(documents)[1]
