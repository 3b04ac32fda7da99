"""Decides which documents are kept: by their length, by a function of the user's, and each text only once.

A document that breaks several rules is counted under the first of ``min_chars``, ``max_chars``, ``filter`` (or
``filter:<reason>``, if the function returns a reason), ``min_tokens``, ``max_tokens``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np

from headrace.config import NotNegative, check_fields, nearest
from headrace.errors import ConfigError, HeadraceError
from headrace.io import hash_bytes, read_small
from headrace.preparing.columns import IntArray, total_lengths
from headrace.preparing.sources.block import Block


def load_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``. As with ``python -m``, the current folder is searched first.

    The folder stays in ``sys.path``, so that worker processes, which inherit ``sys.path``, find the same function.

    Raises:
        ConfigError: the name has another form, the module or function does not exist, the import fails, or the object
            is not callable.
    """
    if not name.partition(":")[2] or not all(part.isidentifier() for part in re.split("[.:]", name)):
        raise ConfigError(f"{name!r} does not name a function: write module:function, such as my_filters:is_english")
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        found = resolve_name(name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = nearest(error.name or "", [entry.name.removesuffix(".py") for entry in os.scandir()])
        elif isinstance(error, AttributeError):
            file = getattr(error.obj, "__file__", None)
            hint = (f" ({file})" if file else "") + nearest(error.name or "", dir(error.obj))
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}{hint}") from error
    if not callable(found):
        raise ConfigError(f"{name!r} is not a function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def function_fingerprint(name: str) -> str:
    """Hex digest of a function's source, which tells whether it has changed.

    It covers the module that the name gives and the module that defines the function, but not what they import.

    Raises:
        ConfigError: see `load_function`.
    """
    function = load_function(name)
    modules = {name.partition(":")[0], getattr(inspect.unwrap(function), "__module__", None) or ""}
    return hash_bytes(b"".join(sorted(_content(module).encode() for module in modules if module in sys.modules)))


def _content(module_name: str) -> str:
    """The hash of a module's file; for a module without a file, such as a built-in one, its name."""
    file = getattr(sys.modules[module_name], "__file__", None)
    try:
        return hash_bytes(read_small(Path(file))) if file else f"{module_name} of Python {sys.version}"
    except OSError:  # inside a zip
        return str(file)


MAX_REASON_CHARS = 100
_MAX_MESSAGE_CHARS = 200


class FilterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which documents are kept. The limits are inclusive, and apply to all fields of a record together.

    Example:
        >>> filters = headrace.preparing.FilterSpec(min_chars=200, max_tokens=100_000)
        >>> headrace.preparing.PrepareOptions(filters=filters).filters.min_chars
        200
    """

    min_chars: NotNegative | None = None
    """The fewest characters (code points of Unicode) of a document."""

    max_chars: NotNegative | None = None

    min_tokens: NotNegative | None = None
    """The fewest tokens of a document, without those that are added at its begin and end."""

    max_tokens: NotNegative | None = None

    function: str | None = None
    """``module:function``. It is called with each record as a dict, and returns True to keep the record, False to drop
    it, or the reason for dropping it as a short str."""


def check_filters(spec: FilterSpec) -> None:
    """Refuse impossible limits. The function is not checked here, but by `load_function`.

    Raises:
        ConfigError: a negative limit, or a minimum above its maximum.
    """
    check_fields(spec)
    for unit in ("chars", "tokens"):
        low, high = getattr(spec, f"min_{unit}"), getattr(spec, f"max_{unit}")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"min_{unit} is {low}, above max_{unit}, which is {high}: no document would be kept")


class Filters:
    """The rules of a `FilterSpec`, with the user's function loaded.

    Raises:
        ConfigError: the function cannot be loaded.
    """

    def __init__(self, spec: FilterSpec) -> None:
        self.spec = spec
        self._function: Callable[[Mapping[str, Any]], object] | None = (
            load_function(spec.function) if spec.function is not None else None
        )

    def by_record(self, block: Block, columns: Sequence[Sequence[str]] | None = None) -> Iterator[tuple[int, str, str]]:
        """Apply ``min_chars``, ``max_chars`` and the function, which sees only records of allowed length.

        Args:
            block: n records.
            columns: the texts as they will be tokenised, if these are not ``block.texts``.

        Yields:
            Index and reason of each record to drop, and an empty message; or, of each record on which the function
            failed, index, no reason and a message.
        """
        low, high = self.spec.min_chars, self.spec.max_chars
        num_records = len(block.lines)
        reason_of: dict[int, str] = {}
        if low is not None or high is not None:
            found = block.texts if columns is None else columns
            chars = total_lengths((np.fromiter(map(len, texts), np.int64) for texts in found), num_records)
            reason_of = _out_of_range(chars, low, high, "chars")
        yield from ((index, reason, "") for index, reason in reason_of.items())
        if self._function is not None:
            if block.records is None or len(block.records) != num_records:
                raise HeadraceError("the filter needs whole records. This is a defect of Headrace: please report it.")
            for index, record in enumerate(block.records):
                if index not in reason_of and any(answer := self._ask(self._function, record)):
                    yield index, *answer

    def by_length(self, num_tokens: IntArray) -> list[tuple[int, str]]:
        """Apply ``min_tokens`` and ``max_tokens``.

        Args:
            num_tokens: (n,) tokens of each record, all fields together, without those added at its begin and end.

        Returns:
            Index and reason of each record to drop, ascending.
        """
        return sorted(_out_of_range(num_tokens, self.spec.min_tokens, self.spec.max_tokens, "tokens").items())

    def _ask(self, function: Callable[[Mapping[str, Any]], object], record: Mapping[str, Any]) -> tuple[str, str]:
        """The reason to drop the record, and an error message; both are empty if the record is kept."""
        try:
            answer = function(record)
        except (Exception, SystemExit) as error:
            return "", f"filter {self.spec.function} failed: {_describe(error)}"
        if isinstance(answer, bool | np.bool_):
            return ("" if answer else "filter"), ""
        if isinstance(answer, str) and 0 < len(answer) <= MAX_REASON_CHARS and answer.isprintable():
            return f"filter:{answer}", ""
        shown = f"{type(answer).__name__} {answer!r}"[:_MAX_MESSAGE_CHARS]
        return "", (
            f"filter {self.spec.function} returned {shown if answer is not None else 'None'}: it must return True to "
            f"keep the record, False to drop it, or the reason as a str of 1 to {MAX_REASON_CHARS} printable characters"
        )


def _out_of_range(lengths: IntArray, low: int | None, high: int | None, unit: str) -> dict[int, str]:
    reason_of: dict[int, str] = {}
    if low is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths < low).tolist(), f"min_{unit}")
    if high is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths > high).tolist(), f"max_{unit}")
    return reason_of


def _describe(error: BaseException) -> str:
    """The type and message of an error, and the line of the user's code that raised it, all in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE_CHARS]
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first frame is our call
    if not frames:
        return text
    last = frames[-1]
    # The folder is left out: the message goes into the manifest, whose bytes must not depend on where files lie.
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"
