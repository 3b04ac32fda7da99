"""The call of a hook: the place of its sample, its seed, the global generators set for it, and what it may know of it.

The global generators of random, NumPy and torch, set for a call and put back.

They belong to the process, not to the thread: whoever seeds them in a second thread changes what the first draws. So
they are seeded in the main thread alone, which in a worker process is the one that reads.

What a hook may know of the call that it is in.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import derive

STAGES: Final = {
    name: number
    for number, name in enumerate(
        (
            "cook",
            "encode",
            "select_samples_to_pack",
            "postencode_sample",
            "pack_selected_samples",
            "batch_group_criterion",
            "batch",
            "encode_batch",
            "sample_length",
        )
    )
}
"""Each hook has random numbers of its own: what one draws moves no other. The numbers are part of the order."""


class CallKey(NamedTuple):
    """Whose turn it is: all that random numbers depend on.

    Attributes:
        key: 64 bits, of seed, source and epoch.
        position: of the sample, or of the first of several, below 2^63.
        output: which output of the sample.
        part: which of several packs that begin with it.
    """

    key: int
    position: int
    output: int = 0
    part: int = 0


def seed_of(place: CallKey, stage: str, number: int = 0) -> int:
    """64 bits for a call; ``number`` counts the outputs of a generator."""
    outputs = ((place.output << 20) + place.part << 20) + number
    return derive(derive(_stage_key(place.key, stage), place.position), outputs)


@lru_cache(maxsize=1024)
def _stage_key(key: int, stage: str) -> int:
    """The same for all samples of a source."""
    return derive(key, STAGES[stage])


_MASK63 = (1 << 63) - 1
_NUMPY: Any = np.random
"""What of it is global; parts of that have no types."""


def in_main_thread() -> bool:
    """Whether the global generators are this thread's to seed."""
    return threading.current_thread() is threading.main_thread()


class SavedGenerators:
    """Saves the global generators and restores them after a ``with``, so that `seed` may set them as often as it likes.

    Entering and leaving costs about 60 us, most of it NumPy's state, so it is done once for many samples; it nests. In
    other threads than the main one it does nothing.

    >>> with SavedGenerators() as generators:
    ...     generators.seed(1, ("random",))
    """

    def __init__(self) -> None:
        self._depth = 0
        self._own = np.random.MT19937(0)
        self._random: Any = None
        self._numpy: Any = None
        self._torch: Any = None

    @property
    def is_open(self) -> bool:
        """Whether some ``with`` of it is left open."""
        return self._depth > 0

    def __enter__(self) -> SavedGenerators:
        if in_main_thread():
            self._depth += 1
            if self._depth == 1:
                self._random = random.getstate()
                # The state of the generator itself is not copied: another one takes its place. What NumPy keeps beside
                # it is half a pair of normal numbers.
                self._numpy = (_NUMPY.get_bit_generator(), _NUMPY.get_state(legacy=False))
                _NUMPY.set_bit_generator(self._own)
                self._keep_torch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not in_main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        random.setstate(self._random)
        generator, state = self._numpy
        _NUMPY.set_bit_generator(generator)
        if state["has_gauss"] and isinstance(generator, np.random.MT19937):
            _NUMPY.set_state(state)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        self._random = self._numpy = self._torch = None

    def seed(self, seed: int, names: Sequence[str]) -> None:
        """Set some generators by 64 bits; torch's only if it is imported, and never a GPU's. About 10 us for all."""
        if not self._depth or not in_main_thread():
            return
        if "random" in names:
            random.seed(seed)
        if "numpy" in names:
            # All three are the same algorithm. NumPy takes the high bits, torch the low ones, Python an array of both,
            # which seeds in another way: no two give the same numbers.
            _NUMPY.seed(seed >> 32)
        if "torch" in names and self._keep_torch():
            sys.modules["torch"].default_generator.manual_seed(seed & _MASK63)

    def _keep_torch(self) -> bool:
        """Whether torch is there; a hook may be what imports it."""
        generator = getattr(sys.modules.get("torch"), "default_generator", None)
        if generator is not None and self._torch is None:
            self._torch = generator.get_state()
        return generator is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedGenerators, ()


class Call(NamedTuple):
    """A call of a hook: the sample's and the batch's number, and 64 bits that are its own."""

    sample_index: int
    batch_index: int | None
    seed: int


CALL: ContextVar[Call | None] = ContextVar("headrace_call", default=None)


def current(what: str) -> Call:
    """The call that is running. Raises ConfigError: none is."""
    call = CALL.get()
    if call is None:
        raise ConfigError(f"{what} is known within a hook of a task encoder only, while a pipeline runs it")
    return call
