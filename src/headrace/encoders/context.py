"""What a hook may know of the call that it is in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from headrace.errors import ConfigError


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
