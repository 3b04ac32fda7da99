"""Messages of worker processes: a span that was read, pickled for the process that waits for it.

Handing over a tensor in shared memory takes about 100 us, whatever its size, so only large tensors go that way. The
rest is one pickle, which goes through the pipe, or through shared memory if it is large. Images are decoded into shared
memory directly. A message unpickles to what was read, with the same types.
"""

from __future__ import annotations

import copyreg
import ctypes
import gc
import io
import pickle
import sys
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import reduce_tensor

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.loader.spans import Batch, BatchSpan, ReadRows, SpanRows

LARGE_BYTES: Final = 64 << 10
"""Tensors of at least this size go through shared memory; smaller ones are copied faster through the pipe."""

_MADV_POPULATE_WRITE: Final = 23


def read_message(read: ReadRows, run: Run, span: BatchSpan, tell: Tell) -> SpanMessage:
    """Read the samples of a span, ready to be pickled for another process. Runs in a worker."""
    _settle()
    shared = _Shared()
    return SpanMessage(read(run, span, shared.allocate if run.traits.is_ragged else None, tell), shared)


@cache
def _settle() -> None:
    """Once per process, keep the garbage collector from going through the objects that already exist."""
    gc.freeze()


class _Shared:
    """Shared memory of one message."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return (num_bytes,) uint8: shared memory, or private memory for few bytes, which are copied anyway."""
        if num_bytes < LARGE_BYTES:
            return np.empty(num_bytes, np.uint8)
        storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
        tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._tensors.append(tensor)
        _populate(tensor)
        memory: NDArray[np.uint8] = tensor.numpy()
        return memory

    def copy(self, data: bytes) -> torch.Tensor:
        """Copy bytes into shared memory; returns (bytes,) uint8."""
        self.allocate(len(data))[:] = np.frombuffer(data, np.uint8)
        return self._tensors[-1]

    def found(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same tensor as a view of the shared memory that it lies in; itself if it lies in none."""
        for memory in self._tensors:
            begin = tensor.data_ptr() - memory.data_ptr()
            if begin >= 0 and begin + tensor.nbytes <= memory.nbytes and tensor.is_contiguous():
                return memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return tensor


def _populate(memory: torch.Tensor) -> None:
    """Let the system make all pages at once, in half the time that it takes page by page at the first write."""
    if sys.platform == "linux":
        # An older kernel returns an error, which is ignored: pages are then made at the first write.
        _c().madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), _MADV_POPULATE_WRITE)


@cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class _Large(NamedTuple):
    """The number of a tensor that does not go through the pipe, in its place."""

    number: int


class SpanMessage:
    """The samples of a span on their way to another process. It unpickles to the `SpanRows` themselves."""

    def __init__(self, rows: SpanRows, shared: _Shared | None = None) -> None:
        self._rows = rows
        self._shared = shared or _Shared()

    def __reduce__(self) -> tuple[Any, ...]:
        large: list[torch.Tensor] = []
        small: Batch = {}
        for name, value in self._rows.columns.items():
            small[name] = value
            if type(value) is torch.Tensor and value.nbytes >= LARGE_BYTES:
                small[name] = _Large(len(large))
                large.append(self._shared.found(value))
        pickled = dumped(self._rows._replace(columns=small))
        return _rows, (pickled if len(pickled) < LARGE_BYTES else self._shared.copy(pickled), large)


def dumped(message: Any) -> bytes:
    """Pickle a message for another process, with small tensors as bytes, wherever they are in it."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    # The reductions of multiprocessing's own pickler, which is written in Python and slower for each object.
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        **ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        torch.Tensor: _reduced,
    }
    pickler.dump(message)
    return stream.getvalue()


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.nbytes < LARGE_BYTES:
        try:
            return torch.from_numpy, (tensor.numpy(),)
        except (TypeError, RuntimeError):  # NumPy has no such dtype or kind of tensor
            pass
    found: tuple[Any, ...] = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return found


def _rows(pickled: bytes | torch.Tensor, large: list[torch.Tensor]) -> SpanRows:
    rows: SpanRows = pickle.loads(pickled if isinstance(pickled, bytes) else pickled.numpy().data)
    for name, value in rows.columns.items():
        if type(value) is _Large:
            rows.columns[name] = large[value.number]
    return rows
