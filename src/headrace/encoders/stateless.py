"""What a hook promises: that its result is a function of its arguments and of the random numbers it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, overload

from headrace.errors import ConfigError

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
    """Mark a hook whose result depends on its arguments alone, so that it can be called again.

    The function itself stays as it is. Its seeds are set by whoever runs the hooks, from seed, position and output:
    nothing of a process is kept.

    Args:
        fn: the hook, where the decorator is written without parentheses.
        restore_seeds: the hook draws random numbers: True from any global generator, or the names of those that it
            draws from, ``("numpy", "torch")``. False: it draws none; they are seeded all the same where that is safe.
            ``()``: it draws none, and nothing is spent on seeds.
        failure_tolerance: how many samples in a row may fail in this hook; 0 for no bound of its own.

    Raises:
        ConfigError: no such generator, or a tolerance below 0.
    """
    if fn is None:
        return lambda given: stateless(given, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)  # type: ignore[call-overload]
    fn.__stateless__ = True
    fn.__restore_seeds__ = _checked(restore_seeds)
    if failure_tolerance is not None:
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}; 0 is no bound, else it is at least 1")
        fn.__failure_tolerance__ = failure_tolerance
    return fn


def _checked(restore_seeds: bool | Sequence[str]) -> bool | tuple[str, ...]:
    if isinstance(restore_seeds, bool):
        return restore_seeds
    names = (restore_seeds,) if isinstance(restore_seeds, str) else tuple(restore_seeds)
    unknown = [name for name in names if name not in GENERATORS]
    if unknown:
        raise ConfigError(f"restore_seeds names {unknown}; there are {', '.join(GENERATORS)}, or True for all")
    return names


def get_stateless(fn: Any) -> bool:
    """Whether a function or method is marked."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Any, default: int | None = None) -> int | None:
    """How many samples in a row may fail in it."""
    found: int | None = getattr(fn, "__failure_tolerance__", default)
    return found


def generators_of(fn: Any) -> tuple[str, ...]:
    """The generators to seed for it: all, unless it says which."""
    said = getattr(fn, "__restore_seeds__", True)
    return GENERATORS if isinstance(said, bool) else said


def may_draw(fn: Any) -> bool:
    """Whether it says that it draws from global generators, or says nothing."""
    return not get_stateless(fn) or bool(getattr(fn, "__restore_seeds__", False))
