"""Megatron's order as plain loops over tokens and documents, written from its rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from headrace.plan import Share

Row = tuple[int, int]
Piece = tuple[int, int, int]


class Twister:
    """The Mersenne twister as Matsumoto and Nishimura wrote it, seeded by one number: that of NumPy and of torch."""

    def __init__(self, seed: int) -> None:
        key = [seed]
        for i in range(1, 624):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & 0xFFFFFFFF)
        # Python's own generator is the same one; only its seeding differs.
        self._random = random.Random()
        self._random.setstate((3, (*key, 624), None))

    def word(self) -> int:
        return self._random.getrandbits(32)

    def up_to(self, most: int) -> int:
        mask = (1 << most.bit_length()) - 1
        while (value := self.word() & mask) > most:
            pass
        return value

    def shuffle(self, values: list[int]) -> list[int]:
        for i in range(len(values) - 1, 0, -1):
            j = self.up_to(i)
            values[i], values[j] = values[j], values[i]
        return values


@dataclass
class Plain:
    """The three indices, and whether the last epoch is apart."""

    documents: list[int]
    rows: list[Row]
    shuffled: list[int]
    num_epochs: int
    separate: bool


def order(sizes: Sequence[int], wanted: int | None, size: int, seed: int, extra: int, drop: bool, last: str) -> Plain:
    """``last``: ``auto``, ``separate`` or ``together``."""
    tokens = sum(sizes)
    epochs = 1
    while wanted is not None and epochs * tokens < wanted * size + extra:
        epochs += 1
    before = ((epochs - 1) * tokens - extra) // size
    separate = False
    if epochs > 1 and wanted is not None:
        separate = wanted - before < int(0.80 * ((tokens - extra) // size))
        separate = {"auto": separate, "separate": True, "together": False}[last]
    rng = Twister(seed)
    ids = list(range(len(sizes)))
    documents = rng.shuffle(ids * (epochs - 1)) + rng.shuffle(list(ids)) if separate else rng.shuffle(ids * epochs)
    left = max(0, epochs * tokens - extra)
    num_samples = left // size if drop else ceil(left / size)
    rows = sample_rows([sizes[d] for d in documents], size, num_samples, extra)
    if separate:
        shuffled = rng.shuffle(list(range(before))) + rng.shuffle(list(range(before, num_samples)))
    else:
        shuffled = rng.shuffle(list(range(num_samples)))
    return Plain(documents, rows, shuffled, epochs, separate)


def sample_rows(lengths: Sequence[int], size: int, num_samples: int, extra: int) -> list[Row]:
    """Where each sample begins: take S + e tokens, entry by entry, and step back by e."""
    rows = [(0, 0)]
    entry = offset = 0
    for _ in range(num_samples):
        missing = size + extra
        while missing > lengths[entry] - offset:
            if entry == len(lengths) - 1:
                break
            missing -= lengths[entry] - offset
            entry, offset = entry + 1, 0
        offset = min(offset + missing, lengths[entry]) - extra
        rows.append((entry, offset))
    return rows


def pieces(plain: Plain, sizes: Sequence[int], sample: int, extra: int) -> list[Piece]:
    """Sequence, offset and length of each part that Megatron reads for a sample."""
    row = plain.shuffled[sample]
    (first, begin), (last, end) = plain.rows[row], plain.rows[row + 1]
    parts = []
    for entry in range(first, last + 1):
        document = plain.documents[entry]
        low = begin if entry == first else 0
        high = end + extra if entry == last else sizes[document]
        parts.append((document, low, high - low))
    return parts


def aleph_alpha_epoch(sizes: Sequence[int], size: int, seed: int) -> list[list[Piece]]:
    """One epoch: documents shuffled, and cut greedily into samples of S + 1 tokens."""
    documents = Twister(seed).shuffle(list(range(len(sizes))))
    samples: list[list[Piece]] = []
    sample: list[Piece] = []
    for document in documents:
        at = 0
        while at < sizes[document] - 1:
            end = min(sizes[document], at + size + 1 - sum(length for _, _, length in sample))
            sample.append((document, at, end - at))
            if sum(length for _, _, length in sample) == size + 1:
                samples.append(sample)
                sample = []
            at = end - 1
    return samples


def blend(weights: Sequence[float], size: int) -> tuple[list[int], list[int]]:
    """At each step the dataset furthest behind, the first of equals."""
    return _blend(weights, [None] * len(weights), size)


def exhaustive(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    total = sum(sizes)
    return _blend([size / total for size in sizes], list(sizes), total)


def _blend(weights: Sequence[float], limits: Sequence[int | None], size: int) -> tuple[list[int], list[int]]:
    counts = [0] * len(weights)
    datasets, samples = [], []
    for step in range(size):
        best, most = -1, -np.inf
        for i, weight in enumerate(weights):
            behind = weight * max(float(step), 1.0) - counts[i]
            if counts[i] != limits[i] and behind > most:
                best, most = i, behind
        datasets.append(best)
        samples.append(counts[best])
        counts[best] += 1
    return datasets, samples


def randperm(length: int, seed: int) -> list[int]:
    twister = Twister(seed)
    values = list(range(length))
    for i in range(length - 1):
        j = i + twister.word() % (length - i)
        values[i], values[j] = values[j], values[i]
    return values


def cyclic_batches(total: int, consumed: int, share: Share, *, data_sharding: bool = True) -> list[list[int]]:
    """Return the batches of one rank to the end of the epoch, as Megatron's cyclic sampler does.

    Without ``data_sharding`` some ranks may get one batch more than others.
    """
    size, ranks = share.micro_batch_size, share.world_size
    together = size * ranks
    epoch, within = divmod(consumed, total - total % together)
    if data_sharding:
        bucket = total // together * size
        mine = [share.rank * bucket + place for place in randperm(bucket, epoch)[within // ranks :]]
    else:
        mine = randperm(total // size * size, epoch)[within:][share.rank :: ranks]
    return [mine[first : first + size] for first in range(0, len(mine) - size + 1, size)]
