"""What `PackedDataset` asks of the dataset it packs: the lengths of its samples, and a few samples joined."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from headrace.datasets.documents import DocumentDataset
from headrace.errors import InputError
from headrace.plan import IntArray
from headrace.plan.segments import integers

_AT_ONCE = 256
_FIRST_S, _EVERY_S = 2.0, 0.2


class SampleDataset(Protocol):
    """A map-style dataset whose samples are mappings with ``tokens`` and ``labels``.

    Used where they exist, too: ``lengths``, (len,) integers, and ``__getitems__(indices)``.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def sample_lengths(ds: SampleDataset, enough_tokens: int | None) -> IntArray:
    """(n,) int64: tokens of the samples, from ``ds.lengths`` or by a pass over them that keeps nothing else.

    The pass ends early once it has seen more than ``enough_tokens``; on a terminal it says how far it is when it takes
    more than two seconds.

    Raises:
        InputError: ``ds.lengths`` are not as many non-negative integers as the dataset has samples.
    """
    known = getattr(ds, "lengths", None)
    if known is not None and not callable(known):
        lengths = np.asarray(known)
        if lengths.shape != (len(ds),) or (lengths.size and (lengths.dtype.kind not in "iu" or lengths.min() < 0)):
            raise InputError(
                f"the lengths of {ds!r} are {lengths.dtype} of shape {lengths.shape}; expected an integer of at least 0"
                f" for each of its {len(ds):,} samples"
            )
        return lengths.astype(np.int64)
    return _counted(ds, enough_tokens)


def _counted(ds: SampleDataset, enough_tokens: int | None) -> IntArray:
    num_samples, tokens = len(ds), 0
    lengths = np.empty(num_samples, dtype=np.int64)
    shown_s = time.monotonic() + _FIRST_S
    is_shown = False
    for first in range(0, num_samples, _AT_ONCE):
        stop = min(first + _AT_ONCE, num_samples)
        lengths[first:stop] = [len(sample["tokens"]) for sample in _samples(ds, first, stop)]
        tokens += int(lengths[first:stop].sum())
        if enough_tokens is not None and tokens > enough_tokens:
            lengths = lengths[:stop]
            break
        if time.monotonic() > shown_s and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[Kpacking: lengths of {stop:,} of {num_samples:,} samples")
            sys.stderr.flush()
            shown_s, is_shown = time.monotonic() + _EVERY_S, True
    if is_shown:
        sys.stderr.write("\r\x1b[K")
    return lengths


def joined(
    ds: SampleDataset, first: int, stop: int, begin: int, end: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Samples ``first`` .. ``stop - 1`` one after another: tokens, labels, and (stop - first,) int64 lengths.

    Of the tokens and labels only ``[begin, end)`` is returned, of the lengths all.

    Raises:
        InputError: tokens or labels that are not a sequence of integers, or not equally many; names the sample.
    """
    if isinstance(ds, DocumentDataset):
        return ds.joined(first, stop, begin, end)
    tokens, labels = [], []
    for number, sample in enumerate(_samples(ds, first, stop), first):
        tokens.append(integers(sample["tokens"], f"sample {number}: tokens"))
        labels.append(integers(sample["labels"], f"sample {number}: labels"))
        if len(tokens[-1]) != len(labels[-1]):
            raise InputError(
                f"sample {number} has {len(tokens[-1])} tokens and {len(labels[-1])} labels: give each token its label,"
                " -100 for those that are not trained on"
            )
    lengths = np.array([len(some) for some in tokens], dtype=np.int64)
    return np.concatenate(tokens)[begin:end], np.concatenate(labels)[begin:end], lengths


def _samples(ds: SampleDataset, first: int, stop: int) -> Sequence[Any]:
    many = getattr(ds, "__getitems__", None)
    if many is not None:
        found: Sequence[Any] = many(list(range(first, stop)))
        return found
    return [ds[number] for number in range(first, stop)]
