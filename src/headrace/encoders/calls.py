"""A call of a hook: its place and seed, the global random generators, and what the hook can ask about the call.

The global generators of ``random``, NumPy and torch are seeded for a call and restored afterwards. They belong to the
process and not to a thread: seeding them in a second thread would change what the first one draws. So they are seeded
only in the main thread, which in a worker process is the one that reads.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
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
"""A number for each hook, so that each has random numbers of its own. The numbers are part of the order."""


class CallKey(NamedTuple):
    """The place of a call: all that its random numbers depend on, apart from the hook.

    Attributes:
        key: 64 bits, from seed, source and epoch.
        position: the position of the sample, or of the first of several; below 2^63.
        output: the number of the output of the sample.
        part: the number of the pack, if several begin with this output.
    """

    key: int
    position: int
    output: int = 0
    part: int = 0


def seed_of(place: CallKey, stage: str, number: int = 0) -> int:
    """Return 64 bits for a call; ``number`` counts the outputs of a generator."""
    outputs = ((place.output << 20) + place.part << 20) + number
    return derive(_stage_key(place.key, stage), place.position, outputs)


@lru_cache(maxsize=1024)
def _stage_key(key: int, stage: str) -> int:
    """Return the part of the seed that is the same for all samples of a source."""
    return derive(key, STAGES[stage])


_MASK63 = (1 << 63) - 1
_NUMPY: Any = np.random
"""NumPy's global generator, as Any since some of its functions have no types."""


def in_main_thread() -> bool:
    """Whether this is the main thread, the only one that may seed the global generators."""
    return threading.current_thread() is threading.main_thread()


class SavedGenerators:
    """Saves the global generators and restores them after a ``with``, so that `seed` can set them within it.

    Entering and leaving costs about 60 us, mostly for NumPy's state, so it is done once for many samples. It nests. In
    threads other than the main one it does nothing.

    >>> with SavedGenerators() as generators:
    ...     generators.seed(1, ("random",))
    """

    def __init__(self) -> None:
        self._depth = 0
        self._own = np.random.MT19937(0)
        self._random: Any = None
        self._numpy: Any = None
        self._torch: Any = None

    def __enter__(self) -> SavedGenerators:
        if in_main_thread():
            self._depth += 1
            if self._depth == 1:
                self._random = random.getstate()
                # NumPy's generator is replaced by another one, so its state need not be copied. Outside of it, NumPy
                # keeps only the second of a pair of normal numbers.
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
        """Seed some generators with 64 bits; torch's only if it is imported, and never a GPU's. About 10 us for all."""
        if not self._depth or not in_main_thread():
            return
        if "random" in names:
            random.seed(seed)
        if "numpy" in names:
            # All three use the same algorithm. NumPy gets the high bits and torch the low ones; Python seeds with both
            # as an array, which is another method. So no two of them draw the same numbers.
            _NUMPY.seed(seed >> 32)
        if "torch" in names and self._keep_torch():
            sys.modules["torch"].default_generator.manual_seed(seed & _MASK63)

    def run(self, call: Call, seeds: Sequence[str], function: Callable[..., Any], *given: Any) -> Any:
        """Return the result of a function that runs as ``call``, with the generators ``seeds`` seeded for it."""
        token = CALL.set(call)
        try:
            if not seeds:
                return function(*given)
            with self:
                self.seed(call.seed, seeds)
                return function(*given)
        finally:
            CALL.reset(token)

    def _keep_torch(self) -> bool:
        """Save the state of torch's generator once. Returns whether torch is imported, which a hook may do later."""
        generator = getattr(sys.modules.get("torch"), "default_generator", None)
        if generator is not None and self._torch is None:
            self._torch = generator.get_state()
        return generator is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedGenerators, ()


class Call(NamedTuple):
    """A call of a hook: what the hook may ask about it. ``number`` counts the outputs of a generator."""

    place: CallKey
    stage: str
    is_batch: bool = False
    number: int = 0

    @property
    def seed(self) -> int:
        """64 bits of its own."""
        return seed_of(self.place, self.stage, self.number)


CALL: ContextVar[Call | None] = ContextVar("headrace_call", default=None)
"""The call that runs in this thread. It is ambient, since Energon's encoders ask for it by themselves, as in
``self.current_seed``. The encoder cannot hold it: several threads call hooks of one encoder, and an
`AugmentTaskEncoder` wraps another one. Only `EncoderPipeline` sets it, and only `TaskEncoder` asks for it."""


def current(what: str) -> Call:
    """Return the call that is running. Raises ConfigError if there is none."""
    call = CALL.get()
    if call is None:
        raise ConfigError(f"{what} is known only within a hook of a task encoder, while a pipeline calls it")
    return call
