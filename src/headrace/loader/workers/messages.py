"""Messages of worker processes: a span that was read, pickled for the process that waits for it.

Handing over a tensor in shared memory of its own takes about 100 us, and for large ones far longer, so large tensors
lie in blocks that are used again (`headrace.loader.workers.blocks`). Tokens and images are read into them directly;
other tensors are copied there by the worker. The rest is one pickle, which goes through the pipe, or through shared
memory if it is large. The samples arrive as they were read, with the same types.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
from functools import cache
from itertools import accumulate
from math import prod
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from headrace.datasets import Fields, Run, Sample
from headrace.datasets.dataset import Tell
from headrace.loader.spans import BatchSpan, ReadRows, SpanRows
from headrace.loader.workers.blocks import ALIGNED, LARGE_BYTES, BlockTable, BlockView, MessageMemory


def read_message(read: ReadRows, run: Run, span: BatchSpan, tell: Tell, memory: MessageMemory) -> SpanMessage:
    """Read the samples of a span into the memory of a message. Runs in a worker."""
    _settle()
    out = memory.allocate if run.traits.is_ragged else _arrays(run.fields, len(span.located.positions), memory)
    return SpanMessage(read(run, span, out, tell), memory)


def _arrays(fields: Fields, num_rows: int, memory: MessageMemory) -> Sample:
    """Return uninitialised (num_rows, ...) arrays of the fields, next to each other."""
    sizes = [-(-num_rows * prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED for shape, dtype in fields.values()]
    whole = memory.allocate(sum(sizes))
    arrays = {}
    for (name, (shape, dtype)), size, begin in zip(fields.items(), sizes, accumulate(sizes, initial=0), strict=False):
        used = num_rows * prod(shape) * dtype.itemsize
        arrays[name] = whole[begin : begin + size][:used].view(dtype).reshape(num_rows, *shape)
    return arrays


@cache
def _settle() -> None:
    """Once per process, keep the garbage collector from going through the objects that already exist."""
    gc.freeze()


class PlacedRows(NamedTuple):
    """The samples of a span as they come through the pipe.

    ``rows`` has a `BlockView` in place of each large tensor. ``made`` are blocks that the loader does not have yet, and
    ``dropped`` the one that was too small.
    """

    rows: SpanRows
    made: dict[int, torch.Tensor]
    dropped: tuple[int, ...]

    def placed(self, table: BlockTable, task: int) -> SpanRows:
        """Return the samples of a task, with tensors that are views of blocks."""
        table.received(task, self.made, self.dropped)
        columns = {
            name: table.tensor(task, value) if type(value) is BlockView else value
            for name, value in self.rows.columns.items()
        }
        return self.rows._replace(columns=columns)


class SpanMessage:
    """The samples of a span on their way to another process. It unpickles to `PlacedRows`."""

    def __init__(self, rows: SpanRows, memory: MessageMemory | None = None) -> None:
        self.rows = rows
        self.memory = memory or MessageMemory()

    def __reduce__(self) -> tuple[Any, ...]:
        columns = {
            name: self.memory.view(value) if _is_large(value) else value for name, value in self.rows.columns.items()
        }
        pickled = dumped(self.rows._replace(columns=columns))
        if len(pickled) >= LARGE_BYTES:
            shared = torch.empty(len(pickled), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
            shared.numpy()[:] = np.frombuffer(pickled, np.uint8)
            return _placed, (shared, self.memory.made, self.memory.dropped)
        return _placed, (pickled, self.memory.made, self.memory.dropped)


def _is_large(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.nbytes >= LARGE_BYTES
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
    )


def _placed(pickled: bytes | torch.Tensor, made: dict[int, torch.Tensor], dropped: tuple[int, ...]) -> PlacedRows:
    return PlacedRows(pickle.loads(pickled if isinstance(pickled, bytes) else pickled.numpy().data), made, dropped)


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
