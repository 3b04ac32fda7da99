"""Formatting of numbers and texts for people: ``1,234,567``, ``3.1 GB``, ``2 h 05 min``.

Units are decimal. Text that comes from data is made harmless for terminals and pages: characters that do not print, or
that move other text, are written as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.stores import Problem

_SHOWN_OF_A_KIND = 3
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(number: int) -> str:
    """Format a whole number with separators: ``1,234,567``."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: ``1 file``, ``2 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(number: float) -> str:
    """Format a number with three digits and a prefix: ``13.0 M``. Without a prefix it ends in a space."""
    step = 0
    while abs(number) >= 999.5 and step < len(_PREFIXES) - 1:
        number /= 1000
        step += 1
    if step == 0:
        return f"{number:.0f} "
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {_PREFIXES[step]}"


def size(number: float) -> str:
    """Format a number of bytes: ``26.1 MB``."""
    return f"{short(number)}B"


def duration(seconds: float) -> str:
    """Format seconds: ``0.4 s``, ``3 min 05 s``, ``2 h 05 min``, ``4 d 03 h``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, smaller, length in (("d", "h", 86400), ("h", "min", 3600)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // (length // 24 if unit == 'd' else 60):02d} {smaller}"
    return f"{whole // 60} min {whole % 60:02d} s"


def noted(name: str) -> str:
    """Format the name of a count of a recipe: ``split records``, and as it is if it holds a token from a text."""
    return safe_text(name) if " " in name else name.replace("_", " ")


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Format problems as lines, in their order. Of problems that differ only in names and numbers, three are shown.

    For example `a.tar: sample 17: ...`, the same for `b.tar` and `c.tar`, then ``and 429 more like it``.
    """
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        # A quoted word is a name; so is a word with a dot or a slash, as in files and their parts.
        words = re.sub(r"'[^']*'|\"[^\"]*\"|\S*[./\d]\S*", "#", f"{problem.place}: {problem.message}")
        kinds.setdefault(words, []).append(problem)
    lines: list[str] = []
    for alike in kinds.values():
        lines += (safe_text(str(problem)) for problem in alike[:_SHOWN_OF_A_KIND])
        if len(alike) > _SHOWN_OF_A_KIND:
            lines.append(f"  and {len(alike) - _SHOWN_OF_A_KIND:,} more like it (--json lists all)")
    return lines


def as_json(value: object, *, indent: int | None = None, default: Callable[[Any], str] = str) -> str:
    """Return a value as JSON, in one line without ``indent``; ``default`` writes values that JSON lacks."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, or too deep nesting
        return repr(value)


LINE_END = "⏎"
"""Marks each line break of the data, to tell it from line breaks of the output."""

_KEPT = frozenset("\u200c\u200d\u3000")
"""Characters that are kept as they are: two that join letters and emoji, and the space of Chinese and Japanese."""


def safe_text(text: str) -> str:
    """Return a text as one line, with every character that does not print as ``\\n``, ``\\x1b`` or ``\\u202e``.

    That includes escape sequences of terminals, characters that reverse the direction of text, and unusual spaces.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _KEPT else _written_out(character) for character in text
    )


def safe_lines(text: str) -> list[str]:
    """Return the lines of a text, each as `safe_text`, and all except the last with `LINE_END`."""
    *ended, last = text.split("\n")
    return [*(safe_text(line) + LINE_END for line in ended), safe_text(last)]


def _written_out(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return repr(character)[1:-1]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def writable(value: Any) -> Any:
    """Return plain data without lone surrogates, which UTF-8 cannot encode: they are written as ``\\udcff``.

    They come from file names that are not UTF-8, and from incomplete characters in JSON.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return [writable(item) for item in value] if isinstance(value, list | tuple) else value
