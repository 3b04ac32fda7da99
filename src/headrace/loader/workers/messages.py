"""What a worker process hands over: a span that was read, as one short message.

To hand over a tensor in shared memory takes about 100 us, whatever its size, so only large ones are. The rest is one
pickle, which goes through the pipe, or where it is large through shared memory as well. Images are decoded into shared
memory at once. Received, a message is the batch itself, with the same types: there is nothing to unpack.
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
from headrace.loader.spans import Batch, BatchSpan, read

LARGE_BYTES: Final = 64 << 10
"""Tensors from this on go through shared memory: to copy fewer bytes there and back takes less."""

_MADV_POPULATE_WRITE: Final = 23


def read_message(run: Run, span: BatchSpan) -> BatchMessage:
    """The batch of a span, ready to be pickled for another process. The worker's side."""
    _settle()
    shared = _Shared()
    return BatchMessage(read(run, span, shared.allocate if run.is_ragged else None), shared)


@cache
def _settle() -> None:
    """Once a process: what is there already is not looked through again whenever some thousand samples were made."""
    gc.freeze()


class _Shared:
    """Memory that another process can have, too."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """(num_bytes,) uint8; of few bytes private memory, since these are copied anyhow."""
        if num_bytes < LARGE_BYTES:
            return np.empty(num_bytes, np.uint8)
        storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
        tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._tensors.append(tensor)
        _populate(tensor)
        memory: NDArray[np.uint8] = tensor.numpy()
        return memory

    def copy(self, data: bytes) -> torch.Tensor:
        """(bytes,) uint8."""
        self.allocate(len(data))[:] = np.frombuffer(data, np.uint8)
        return self._tensors[-1]

    def found(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor, as one of the shared memory that it lies in; itself if it lies in none."""
        for memory in self._tensors:
            begin = tensor.data_ptr() - memory.data_ptr()
            if begin >= 0 and begin + tensor.nbytes <= memory.nbytes and tensor.is_contiguous():
                return memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return tensor


def _populate(memory: torch.Tensor) -> None:
    """Have the system make all pages at once, in half the time of one by one when they are first written to."""
    if sys.platform == "linux":
        # A kernel that does not know it says so, and the pages come as they always did.
        _c().madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), _MADV_POPULATE_WRITE)


@cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class _Large(NamedTuple):
    """In the place of a tensor that does not go through the pipe: its number."""

    number: int


class BatchMessage:
    """A batch that becomes itself again when it is unpickled."""

    def __init__(self, batch: Batch, shared: _Shared | None = None) -> None:
        self._batch = batch
        self._shared = shared or _Shared()

    def __reduce__(self) -> tuple[Any, ...]:
        large: list[torch.Tensor] = []
        rest: dict[str, Any] = {}
        for name, value in self._batch.items():
            rest[name] = value
            if type(value) is torch.Tensor and value.nbytes >= LARGE_BYTES:
                rest[name] = _Large(len(large))
                large.append(self._shared.found(value))
        pickled = dumped(rest)
        return _batch, (pickled if len(pickled) < LARGE_BYTES else self._shared.copy(pickled), large)


def dumped(message: Any) -> bytes:
    """What is to be handed to another process, pickled: small tensors as bytes, wherever in it they are."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    # As that of multiprocessing, but without a step of the interpreter for each object.
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
        except (TypeError, RuntimeError):  # of a dtype or a kind that NumPy has not
            pass
    found: tuple[Any, ...] = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return found


def _batch(pickled: bytes | torch.Tensor, large: list[torch.Tensor]) -> Batch:
    batch: Batch = pickle.loads(pickled if isinstance(pickled, bytes) else pickled.numpy().data)
    for name, value in batch.items():
        if type(value) is _Large:
            batch[name] = large[value.number]
    return batch
