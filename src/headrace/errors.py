"""Every error that Headrace raises on purpose, with the exit code of the command line.

    HeadraceError             1   also: `headrace check` found a fault
    +-- ConfigError           2   what was asked for is unknown, contradictory or impossible
    |   +-- RenderLimitError      a chat template takes more time or memory than it may
    +-- InputError            3   an input record or file cannot be read
    |   +-- SampleError           one sample of a store cannot be made; names shard, key and part
    |       +-- DecodeError       ... its bytes are not what the name of the part says, or too large
    |       +-- FieldAccessError  ... it lacks what its field map asks for
    +-- StoreError            4   a store is missing, malformed, truncated or not what its manifest says
    |   +-- StaleCacheError       a cache was made of other data or with other options
    +-- StateError            5   a saved state and this run do not belong together
    +-- OutputError           6   the output cannot be written
    +-- WorkerError           7   a worker process ended before its work was done
    +-- MissingExtraError     8   an optional package is not installed
    +-- SkipSample            1   not a fault: the user's own code leaves a sample out

A message says what happened, what was found, what was allowed, where, and what to do.
This module imports nothing.
"""


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose."""

    exit_code = 1


class ConfigError(HeadraceError, ValueError):
    """What was asked for is unknown, contradictory or impossible."""

    exit_code = 2


class RenderLimitError(ConfigError):
    """A chat template takes more time or memory than it may, which depends on the machine, so that the run ends.

    Attributes:
        record: the number of the record, where it is known.
    """

    def __init__(self, message: str, record: int = 0) -> None:
        super().__init__(message)
        self.record = record

    def at(self, record: int) -> "RenderLimitError":
        """The same error, of the record with this number."""
        return RenderLimitError(str(self), record)


class InputError(HeadraceError, ValueError):
    """An input record or file cannot be read; the message names file and line."""

    exit_code = 3


class SampleError(InputError):
    """One sample of a store cannot be made: ``SHARD: key 'K': part 'jpg' at byte N: REASON``.

    Who finds the fault knows part and reason; who read the sample adds the place with ``at``.

    Attributes:
        part: name of the part, None where no single one is at fault.
        reason: what is wrong, and what to do.
        shard: the file that holds the sample, or None.
        key: its key, or None.
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
        """The same error, of the same class and with the same cause, at a place; what is known already stays."""
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
    """The bytes of a part are not what its name says, larger than allowed, or of a kind that is not trusted."""


class FieldAccessError(SampleError):
    """A sample lacks what its field map asks for: a part, a key of a JSON object, an element of a list."""


class StoreError(HeadraceError):
    """A store is missing, malformed, truncated or not what its manifest says."""

    exit_code = 4


class StaleCacheError(StoreError):
    """A cache was made of other data or with other options: all ``problems``, file by file, and a likely ``cause``."""

    def __init__(self, message: str, problems: tuple[object, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.problems = problems
        self.cause = cause


class StateError(HeadraceError):
    """A saved state and this run do not belong together; the message names what differs."""

    exit_code = 5


class OutputError(HeadraceError):
    """The output cannot be written: no space, no permission, or it exists already."""

    exit_code = 6


class WorkerError(HeadraceError):
    """A worker process ended before its work was done."""

    exit_code = 7


class MissingExtraError(HeadraceError, ImportError):
    """An optional package is not installed; the message gives the install command."""

    exit_code = 8


class SkipSample(HeadraceError):  # noqa: N818 -- the name that users of Energon know
    """Raised by a user's own code to leave a sample out: counted, not a fault."""
