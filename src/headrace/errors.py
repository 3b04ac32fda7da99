"""Every error that Headrace raises on purpose, with the exit code of the command line.

    HeadraceError             1   also: `headrace check` found a fault
    +-- ConfigError           2   the request is unknown, contradictory or impossible
    |   +-- RenderLimitError      a chat template needs more time or memory than it is allowed
    +-- InputError            3   an input record or file cannot be read
    |   +-- SampleError           one sample of a store cannot be made; names shard, key and part
    |       +-- DecodeError       ... the bytes of a part do not match its name, or are too large
    |       +-- FieldAccessError  ... the sample lacks a field that its field map asks for
    +-- StoreError            4   a store is missing, malformed or truncated, or does not match its manifest
    |   +-- StaleCacheError       a cache was made from other data or with other options
    |   +-- StoreAwayError        an object store gave no answer in time, or refused: the data may be whole
    +-- StateError            5   a saved state does not belong to this run
    +-- OutputError           6   the output cannot be written
    +-- WorkerError           7   a worker process ended before its work was done
    +-- MissingExtraError     8   an optional package is not installed
    +-- SkipSample            1   not a fault: the user's own code leaves a sample out

A message says what happened, what was found, what was allowed, where, and what to do. `sentence` and `some` are for
messages. `load_extra` imports an optional package, or says how to install it.
This module imports nothing of ours.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose."""

    exit_code = 1


class ConfigError(HeadraceError, ValueError):
    """The request is unknown, contradictory or impossible: an argument, an option, or a key of a recipe."""

    exit_code = 2


class RenderLimitError(ConfigError):
    """A chat template needs more time or memory than it is allowed.

    The limit depends on the machine, so the run ends: the record is not skipped, as other machines might render it.

    Attributes:
        record: the number of the record, or 0 if it is not known.
    """

    def __init__(self, message: str, record: int = 0) -> None:
        super().__init__(message)
        self.record = record

    def at(self, record: int) -> "RenderLimitError":
        """Return the same error for the record with this number."""
        return RenderLimitError(str(self), record)


class InputError(HeadraceError, ValueError):
    """An input record or file cannot be read; the message names file and line."""

    exit_code = 3


class SampleError(InputError):
    """One sample of a store cannot be made: ``SHARD: key 'K': part 'jpg' at byte N: REASON``.

    The code that finds the fault knows the part and the reason; the code that read the sample adds the place with
    ``at``.

    Attributes:
        part: the name of the part, or None if no single part is at fault.
        reason: what is wrong, and what to do.
        shard: the file that holds the sample, or None.
        key: the key of the sample, or None.
        offset: where the part begins in that file, in bytes, or None.
    """

    def __init__(
        self,
        part: str | None,
        reason: str,
        *,
        shard: str | None = None,
        key: str | None = None,
        offset: int | None = None,
    ) -> None:
        self.part = part
        self.reason = reason
        self.shard = shard
        self.key = key
        self.offset = offset
        where = [shard] if shard is not None else []
        if key is not None:
            where.append(f"key {key!r}")
        byte = "" if offset is None else f" at byte {offset:,}"
        if part is not None:
            where.append(f"part {part!r}{byte}")
        elif where and byte:
            where[-1] += byte
        super().__init__(": ".join([*where, reason]))

    def at(self, *, shard: str | None = None, key: str | None = None, offset: int | None = None) -> "SampleError":
        """Return the same error, with its class and cause, at a place. A place that is already known stays."""
        place = {
            "shard": self.shard if self.shard is not None else shard,
            "key": self.key if self.key is not None else key,
            "offset": self.offset if self.offset is not None else offset,
        }
        placed = type(self)(self.part, self.reason, **place)  # type: ignore[arg-type]
        placed.__cause__ = self.__cause__
        return placed

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from worker processes by pickle, which knows positional arguments only. Notes go with them.
        made_of = type(self), self.part, self.reason, self.shard, self.key, self.offset
        return _sample_error, made_of, self.__dict__


def _sample_error(
    kind: type[SampleError], part: str | None, reason: str, shard: str | None, key: str | None, offset: int | None
) -> SampleError:
    return kind(part, reason, shard=shard, key=key, offset=offset)


class DecodeError(SampleError):
    """The bytes of a part do not match its name, are larger than allowed, or are of a kind that is not trusted."""


class FieldAccessError(SampleError):
    """A sample lacks something that its field map asks for: a part, a key of a JSON object, or an element of a list."""


class StoreError(HeadraceError):
    """A store is missing, malformed or truncated, or does not match its manifest."""

    exit_code = 4


class StaleCacheError(StoreError):
    """A cache was made from other data or with other options.

    Attributes:
        problems: what differs, one entry for each problem.
        cause: the likely cause in words, or an empty string.
    """

    def __init__(self, message: str, problems: tuple[object, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.problems = problems
        self.cause = cause


class StoreAwayError(StoreError):
    """An object store gave no answer before the deadline, or refused to. The data themselves may be whole."""


class StateError(HeadraceError):
    """A saved state does not belong to this run; the message names what differs."""

    exit_code = 5


class OutputError(HeadraceError):
    """The output cannot be written: there is no space or no permission, or it already exists."""

    exit_code = 6


class WorkerError(HeadraceError):
    """A worker process ended before its work was done."""

    exit_code = 7


class MissingExtraError(HeadraceError, ImportError):
    """An optional package is not installed; the message gives the install command."""

    exit_code = 8


def load_extra(module: str, advice: str) -> Any:
    """Import a module of an optional package.

    Raises:
        MissingExtraError: it is not installed; ``advice`` is the message, which says what needs it, and how to install
            it.
    """
    try:
        import_module(module.partition(".")[0])  # the module itself may be loaded already
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(advice) from error


class SkipSample(HeadraceError):  # noqa: N818 -- the name that users of Energon know
    """Raised by a user's own code to leave a sample out. The sample is counted as skipped, not as a fault."""


def raised(error: Exception) -> Exception:
    """Return an error that code of the user raised; in place of a StopIteration, which would end a loop, another one.

    Python does the same for generators: a ``next()`` that finds nothing is a fault, and not the end of the loop.
    """
    if not isinstance(error, StopIteration):
        return error
    found = RuntimeError("StopIteration: next() found nothing")
    found.__cause__ = error
    return found


def sentence(message: str) -> str:
    """Return a message with a full stop at its end."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of many for a message: ``a, b, c and 7 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
