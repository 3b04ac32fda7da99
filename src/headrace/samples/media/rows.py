"""Images of one batch decoded beside each other, so that to stack them is to do nothing.

    with reading_rows(allocate, 16):
        each image       -> a row of a block of 16, the next one of its part
        pad_stack(rows)  -> the block itself, if these are its rows, in order; else a copy, as everywhere

To decode into fresh memory and then to copy costs a tenth of the decoding, and more where the system has to make the
pages. Outside of such a reading everything is as if this file were not there. For samples that nobody else has: rows
that were stacked are the batch's, and what changes the batch would change them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[[int], NDArray[np.uint8]]
"""Bytes -> at least as many, contiguous, not initialised, which nobody else has."""


class _Block:
    """Rows of one shape, and the arrays or tensors that were made of them so far."""

    def __init__(self, memory: NDArray[np.uint8], num_rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        num_bytes = num_rows * prod(shape) * dtype.itemsize
        self.array: NDArray[Any] = memory[:num_bytes].view(dtype).reshape(num_rows, *shape)
        self.kind = (shape, dtype)
        self.rows: list[Any] = []
        self.num_stacked = 0


class Rows:
    """All blocks of one reading, one a part at a time. For one thread."""

    def __init__(self, allocate: Allocate, num_rows: int) -> None:
        self._allocate = allocate
        self._num_rows = num_rows
        self._blocks: dict[object, _Block] = {}
        # By identity: what a block has is alive as long as the block, so that no other object can have it.
        self._places: dict[int, tuple[_Block, int, int]] = {}
        self._kept: list[Any] = []

    def next(self, part: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Where the next image of a part goes: ``shape``, not initialised; the same until `keep`."""
        block = self._blocks.get(part)
        if block is None or block.kind != (shape, dtype) or len(block.rows) == self._num_rows:
            memory = self._allocate(self._num_rows * prod(shape) * dtype.itemsize)
            block = self._blocks[part] = _Block(memory, self._num_rows, shape, dtype)
        row: NDArray[Any] = block.array[len(block.rows)]
        return row

    def keep(self, part: object, made: Any) -> None:
        """``made`` is what `next` gave last, filled: as an array, or as a tensor of the same memory."""
        block = self._blocks[part]
        self._places[id(made)] = (block, len(block.rows), len(block.rows) + 1)
        block.rows.append(made)

    def stacked(self, rows: Sequence[Any]) -> Any:
        """These rows as one array or tensor without a copy; None if they do not lie so, or were stacked before."""
        place = self._places.get(id(rows[0]))
        if place is None:
            return None
        block, first, _ = place
        end = first + len(rows)
        # A field that has the rows of another one gets a copy: each has to be changeable for itself.
        if first < block.num_stacked or end > len(block.rows):
            return None
        if any(row is not kept for row, kept in zip(rows, block.rows[first:end], strict=True)):
            return None
        block.num_stacked = end
        return self._whole(block, first, end)

    def joined(self, stacks: Sequence[Any]) -> Any:
        """What `stacked` gave several times, as one along the first axis without a copy; None if it does not lie so."""
        places = [self._places.get(id(stack)) for stack in stacks]
        if places[0] is None:
            return None
        block, first, end = places[0]
        for place in places[1:]:
            if place is None or place[0] is not block or place[1] != end:
                return None
            end = place[2]
        return self._whole(block, first, end)

    def _whole(self, block: _Block, first: int, end: int) -> Any:
        whole: Any = block.array[first:end]
        if not isinstance(block.rows[first], np.ndarray):
            import torch

            whole = torch.from_numpy(whole)
        self._places[id(whole)] = (block, first, end)
        self._kept.append(whole)
        return whole


class _Here(threading.local):
    rows: Rows | None = None


_here = _Here()


@contextmanager
def reading_rows(allocate: Allocate, num_rows: int) -> Iterator[Rows]:
    """In this thread images that are decoded are rows, and `pad_stack` knows them, until this ends.

    Args:
        allocate: makes memory.
        num_rows: of a block; as many samples as will be read.
    """
    before = _here.rows
    _here.rows = rows = Rows(allocate, num_rows)
    try:
        yield rows
    finally:
        _here.rows = before


def rows_here() -> Rows | None:
    """Those of the reading that goes on in this thread, if one does."""
    return _here.rows
