"""Which documents are kept, by their length and by a function of the user's.

A document that breaks several rules is counted under the first of ``min_chars``, ``max_chars``, ``filter`` (or
``filter:<reason>``, where the function says why), ``min_tokens``, ``max_tokens``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError
from headrace.prepare.functions import function_fingerprint, load_function
from headrace.prepare.sources.block import Block

__all__ = ["FilterSpec", "Filters", "check_filters", "function_fingerprint", "load_function"]

MAX_REASON_CHARS = 100
_MAX_MESSAGE_CHARS = 200

IntArray = NDArray[np.int64]


class FilterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a document must be to be kept. Lengths are inclusive, and of all fields of a record together."""

    min_chars: int | None = None
    """Characters are code points of Unicode."""

    max_chars: int | None = None

    min_tokens: int | None = None
    """Tokens of the text, without those that are added at its begin and end."""

    max_tokens: int | None = None

    function: str | None = None
    """``module:function``; called with each record, a dict, it returns True to keep it, or False to drop it, or the
    reason for dropping it, a short str."""


def check_filters(spec: FilterSpec) -> None:
    """Refuse limits that cannot be. The function is not looked at: `load_function` does.

    Raises:
        ConfigError: a negative limit, or a minimum above its maximum.
    """
    for unit in ("chars", "tokens"):
        low, high = getattr(spec, f"min_{unit}"), getattr(spec, f"max_{unit}")
        for name, limit in ((f"min_{unit}", low), (f"max_{unit}", high)):
            if limit is not None and limit < 0:
                raise ConfigError(f"{name} is {limit}: a length is at least 0")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"min_{unit} is {low}, above max_{unit}, which is {high}: no document would be kept")


class Filters:
    """The rules, ready to be applied: the user's function is loaded.

    Attributes:
        failures: records of the last `by_record` on which the function failed: index in the block, and what happened.

    Raises:
        ConfigError: the function cannot be loaded.
    """

    def __init__(self, spec: FilterSpec) -> None:
        self.spec = spec
        self.failures: list[tuple[int, str]] = []
        self._function: Callable[[Mapping[str, Any]], object] | None = (
            load_function(spec.function) if spec.function is not None else None
        )

    def by_record(self, block: Block, columns: Sequence[Sequence[str]] | None = None) -> list[tuple[int, str]]:
        """Apply ``min_chars``, ``max_chars`` and the function, which sees only records of allowed length.

        Args:
            block: n records.
            columns: their texts as they will be tokenised, where that is not ``block.texts``.

        Returns:
            Index and reason of each record to drop, ascending. Those in `failures` are not among them.
        """
        low, high = self.spec.min_chars, self.spec.max_chars
        num_records = len(block.lines)
        reason_of: dict[int, str] = {}
        if low is not None or high is not None:
            num_chars = _num_chars(block.texts if columns is None else columns, num_records)
            reason_of = _out_of_range(num_chars, low, high, "chars")
        self.failures = []
        if self._function is not None:
            if block.records is None or len(block.records) != num_records:
                raise HeadraceError("the filter needs whole records. This is a defect of Headrace: please report it.")
            for index, record in enumerate(block.records):
                if index in reason_of:
                    continue
                reason, message = self._ask(self._function, record)
                if message:
                    self.failures.append((index, message))
                elif reason:
                    reason_of[index] = reason
        return sorted(reason_of.items())

    def by_length(self, num_tokens: IntArray) -> list[tuple[int, str]]:
        """Apply ``min_tokens`` and ``max_tokens``.

        Args:
            num_tokens: (n,) tokens of each record, all fields together, without those that are added.

        Returns:
            Index and reason of each record to drop, ascending.
        """
        return sorted(_out_of_range(num_tokens, self.spec.min_tokens, self.spec.max_tokens, "tokens").items())

    def _ask(self, function: Callable[[Mapping[str, Any]], object], record: Mapping[str, Any]) -> tuple[str, str]:
        """The reason to drop the record, and what went wrong; both empty where it is kept."""
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


def _num_chars(columns: Sequence[Sequence[str]], num_records: int) -> IntArray:
    num_chars = np.zeros(num_records, np.int64)
    for texts in columns:
        num_chars += np.fromiter(map(len, texts), np.int64, num_records)
    return num_chars


def _out_of_range(lengths: IntArray, low: int | None, high: int | None, unit: str) -> dict[int, str]:
    reason_of: dict[int, str] = {}
    if low is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths < low).tolist(), f"min_{unit}")
    if high is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths > high).tolist(), f"max_{unit}")
    return reason_of


def _describe(error: BaseException) -> str:
    """Kind, message, and the line of the user's code that raised, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE_CHARS]
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is our call
    if not frames:
        return text
    last = frames[-1]
    # Without its folder: the message goes into the manifest, whose bytes do not depend on where things lie.
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"
