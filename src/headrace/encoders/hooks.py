"""Hooks and their calls.

`stateless` marks what a hook promises, and `Hook` holds it. A `Call` of a hook has a place and a seed, and the hook can
ask about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from headrace.errors import ConfigError
from headrace.plan.keys import derive

F = TypeVar("F", bound=Callable[..., Any])

GENERATORS: Final = ("numpy", "random", "torch")
"""The global generators that are seeded for a hook."""


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    *, restore_seeds: bool | Sequence[str] = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...


def stateless(
    fn: Any = None, *, restore_seeds: bool | Sequence[str] = False, failure_tolerance: int | None = None
) -> Any:
    """Mark a hook whose result depends only on its arguments and its random numbers, so that it can be called again.

    The decorator only marks the function. The pipeline seeds the global generators before each call, from the seed of
    the run, the position and the output; nothing depends on the process.

    Args:
        fn: the hook, if the decorator is written without parentheses.
        restore_seeds: which random numbers the hook draws. True: from any global generator. Names, such as
            ``("numpy", "torch")``: from these. False: none, but the generators are still seeded where that is safe.
            ``()``: none, and no time is spent on seeds.
        failure_tolerance: how many samples in a row may fail in this hook; 0 for no bound. It overrides the
            ``tolerance`` of `ErrorPolicy`.

    Raises:
        ConfigError: there is no such generator, or the tolerance is below 0.

    Example:
        >>> from headrace.encoders import DefaultTaskEncoder, stateless
        >>> class Noisy(DefaultTaskEncoder):
        ...     @stateless(restore_seeds=("numpy",))
        ...     def encode_sample(self, sample):
        ...         return sample + np.random.randint(0, 3, len(sample))
    """
    if fn is None:
        return lambda given: stateless(given, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)  # type: ignore[call-overload]
    fn.__stateless__ = True
    fn.__restore_seeds__ = _checked(restore_seeds)
    if failure_tolerance is not None:
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}; allowed are 0, which is no bound, and above")
        fn.__failure_tolerance__ = failure_tolerance
    return fn


def _checked(restore_seeds: bool | Sequence[str]) -> bool | tuple[str, ...]:
    if isinstance(restore_seeds, bool):
        return restore_seeds
    names = (restore_seeds,) if isinstance(restore_seeds, str) else tuple(restore_seeds)
    unknown = [name for name in names if name not in GENERATORS]
    if unknown:
        raise ConfigError(f"restore_seeds names {unknown}; allowed are {', '.join(GENERATORS)}, or True for all")
    return names


def get_stateless(fn: Any) -> bool:
    """Whether a function or method is marked ``@stateless``."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Any, default: int | None = None) -> int | None:
    """Return how many samples in a row may fail in a function or method, or ``default`` if it does not say."""
    found: int | None = getattr(fn, "__failure_tolerance__", default)
    return found


def generators_of(fn: Any) -> tuple[str, ...]:
    """Return the names of the generators to seed for a function: all, unless it is marked with some."""
    said = getattr(fn, "__restore_seeds__", True)
    return GENERATORS if isinstance(said, bool) else said


def may_draw(fn: Any) -> bool:
    """Whether a function may draw from global generators: it is marked so, or not marked at all."""
    return not get_stateless(fn) or bool(getattr(fn, "__restore_seeds__", False))


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One hook of a task encoder, and what it promises.

    Attributes:
        name: the name of the method, such as ``encode_sample``.
        call: the method.
        is_overridden: whether the user overrides it, so that it has to be called.
        is_generator: whether it is a generator function.
        stateless: whether it is marked ``@stateless``.
        seeds: the names of the global generators that are seeded for it.
        may_draw: whether it may draw from them: it says so, or is not marked.
        failure_tolerance: how many samples in a row may fail in it, 0 for no bound; None if it does not say.
    """

    name: str
    call: Callable[..., Any]
    is_overridden: bool
    is_generator: bool
    stateless: bool
    seeds: tuple[str, ...]
    may_draw: bool
    failure_tolerance: int | None


def function_hook(name: str, function: Callable[..., Any], *, is_overridden: bool = True) -> Hook:
    """Return a function, such as a cooker, as a hook."""
    return Hook(
        name=name,
        call=function,
        is_overridden=is_overridden,
        is_generator=inspect.isgeneratorfunction(function),
        stateless=get_stateless(function),
        seeds=generators_of(function),
        may_draw=may_draw(function),
        failure_tolerance=get_failure_tolerance(function),
    )


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
