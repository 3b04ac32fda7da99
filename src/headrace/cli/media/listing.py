"""The samples of a store one after another, for ``headrace ls``."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from headrace.cli.media.description import part_sizes
from headrace.stores.sample_store import SampleStore

_BATCH: Final = 1024
_MAGIC: Final = re.compile(r"[*?\[]")


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of a listing."""

    key: str
    number: int
    """In the store."""

    shard: str
    index: int
    """In the shard."""

    parts: dict[str, int] | None = None
    """Bytes of each part, if they were asked for."""


def listed(store: SampleStore, pattern: str | None, *, with_parts: bool) -> Iterator[Listed]:
    """The samples whose keys match, in the order of the store, as they are found; contents are not read.

    Args:
        store: the store.
        pattern: ``cats/*``, with ``*``, ``?`` and ``[a-z]`` as in a shell, but that they match slashes too; None: all.
        with_parts: the sizes of the parts too, which costs twice as much.

    Raises:
        InputError: a sample is malformed.
        StoreError: a file is missing, or changed.
    """
    if pattern is not None and not _MAGIC.search(pattern):
        # A key as it is: the index of a dataset knows its place.
        try:
            numbers = [store.find(pattern)]
        except KeyError:
            return
        yield from _batch(store, numbers, None, with_parts)
        return
    wanted = None if pattern is None else re.compile(fnmatch.translate(pattern))
    for first in range(0, len(store), _BATCH):
        yield from _batch(store, range(first, min(first + _BATCH, len(store))), wanted, with_parts)


def _batch(
    store: SampleStore, numbers: range | list[int], wanted: re.Pattern[str] | None, with_parts: bool
) -> Iterator[Listed]:
    samples = store.read(np.array(numbers, np.int64), ())
    for number, sample in zip(numbers, samples, strict=True):
        if wanted is None or wanted.match(sample.key):
            parts = part_sizes(store, number) if with_parts else None
            yield Listed(key=sample.key, number=number, shard=sample.shard, index=sample.index, parts=parts)
