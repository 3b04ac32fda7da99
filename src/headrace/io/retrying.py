"""What is tried again when the system refuses for a moment: time-outs, lost connections, faulty reads."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

import msgspec

from headrace.errors import ConfigError

_PASSING: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EBUSY", "EINTR", "ESTALE", "EREMOTEIO", "ECOMM", "ETIMEDOUT", "ETIME", "EPROTO"),
        *("ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENOTCONN", "ESHUTDOWN", "EPIPE", "ENOLINK"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)
"""That a file is not there, or may not be read, does not pass."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often something is tried, and how long is waited in between: twice as long each time. By default 1.5 s.

    Nothing is drawn by chance: what a run does is the same each time, but for when.

    Attributes:
        attempts: in all, at least 1; 1 tries nothing again.
        first_delay_s: before the second attempt.
        most_delay_s: before any.
    """

    attempts: int = 5
    first_delay_s: float = 0.1
    most_delay_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError for no attempts, and for delays below 0 or without an end."""
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; it is at least 1, which tries nothing again")
        for name in ("first_delay_s", "most_delay_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is a number of seconds, at least 0; found {getattr(self, name)}")

    def delays(self) -> Iterator[float]:
        """Seconds before the second attempt, the third, and so on."""
        delay = self.first_delay_s
        for _ in range(self.attempts - 1):
            yield min(delay, self.most_delay_s)
            delay = min(2 * delay, self.most_delay_s)


def may_pass(error: BaseException | None) -> bool:
    """Whether an error is of the system, and of a kind that the next attempt may not meet."""
    if not isinstance(error, OSError):
        return False
    if isinstance(error, TimeoutError | ConnectionError) or error.errno in _PASSING:
        return True
    # urllib tells the error of the connection so.
    reason = getattr(error, "reason", None)
    return isinstance(reason, OSError) and reason is not error and may_pass(reason)
