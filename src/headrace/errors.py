"""Every error that Headrace raises on purpose, with the exit code of the command line.

    HeadraceError             1   also: `headrace check` found a fault
    +-- ConfigError           2   what was asked for is unknown, contradictory or impossible
    +-- InputError            3   an input record or file cannot be read
    +-- StoreError            4   a store is missing, malformed, truncated or not what its manifest says
    |   +-- StaleCacheError       a cache was made of other data or with other options
    +-- StateError            5   a saved state and this run do not belong together
    +-- OutputError           6   the output cannot be written
    +-- WorkerError           7   a worker process ended before its work was done
    +-- MissingExtraError     8   an optional package is not installed

A message says what happened, what was found, what was allowed, where, and what to do.
This module imports nothing.
"""


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose."""

    exit_code = 1


class ConfigError(HeadraceError, ValueError):
    """What was asked for is unknown, contradictory or impossible."""

    exit_code = 2


class InputError(HeadraceError, ValueError):
    """An input record or file cannot be read; the message names file and line."""

    exit_code = 3


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
