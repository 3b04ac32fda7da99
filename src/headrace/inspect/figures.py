"""Numbers and text of data as people read them: ``1,234,567``, ``3.1 GB``, ``2 h 05 min``; tables and lists.

Units are decimal. Text of data is made harmless for terminals and pages: what does not print, or moves other text, is
written out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.stores import Problem

_SHOWN_OF_A_KIND = 3
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(number: int) -> str:
    """A whole number with separators: ``1,234,567``."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """A count and its noun: ``1 file``, ``2 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(number: float) -> str:
    """Three digits and a prefix: ``13.0 M``. Ends in a space where there is no prefix, so that units line up."""
    step = 0
    while abs(number) >= 999.5 and step < len(_PREFIXES) - 1:
        number /= 1000
        step += 1
    if step == 0:
        return f"{number:.0f} "
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {_PREFIXES[step]}"


def size(number: float) -> str:
    """Bytes: ``26.1 MB``."""
    return f"{short(number)}B"


def duration(seconds: float) -> str:
    """Seconds: ``0.4 s``, ``3 min 05 s``, ``2 h 05 min``, ``4 d 03 h``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, smaller, length in (("d", "h", 86400), ("h", "min", 3600)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // (length // 24 if unit == 'd' else 60):02d} {smaller}"
    return f"{whole // 60} min {whole % 60:02d} s"


class Heading(str):
    """The first line of a table, which terminals show in bold."""

    __slots__ = ()


class NamedValue(str):
    """A line of a listing; terminals show its first ``name_chars`` characters faintly."""

    name_chars: int
    __slots__ = ("name_chars",)


def table(rows: Sequence[Sequence[str]], *, indent: int = 2) -> list[str]:
    """Rows as lines of right-aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        " " * indent + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [Heading(lines[0]), *lines[1:]] if lines else []


def listing(pairs: Sequence[tuple[str, str]], *, indent: int = 2) -> list[str]:
    """Names and values as lines of two left-aligned columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    lines: list[str] = []
    for name, value in pairs:
        line = NamedValue(f"{' ' * indent}{name.ljust(width)}  {value}")
        line.name_chars = indent + width
        lines.append(line)
    return lines


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Faults for people, in their order; of those that differ in names and numbers alone the first three and a count.

    For example `a.tar: sample 17: ...`, the same of `b.tar` and `c.tar`, then ``and 429 more like it``.
    """
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        # What is quoted is a name; so is whatever holds a dot or a slash, as files and their parts do.
        words = re.sub(r"'[^']*'|\"[^\"]*\"|\S*[./\d]\S*", "#", f"{problem.place}: {problem.message}")
        kinds.setdefault(words, []).append(problem)
    lines: list[str] = []
    for alike in kinds.values():
        lines += map(str, alike[:_SHOWN_OF_A_KIND])
        if len(alike) > _SHOWN_OF_A_KIND:
            lines.append(f"  and {len(alike) - _SHOWN_OF_A_KIND:,} more like it (--json lists all)")
    return lines


LINE_END = "⏎"
"""Stands before each line break of the data, so that it cannot be taken for one of ours."""

_KEPT = frozenset("\u200c\u200d\u3000")
"""They join letters and emoji, or are the space of Chinese and Japanese, and are harmless."""


def safe_text(text: str) -> str:
    """One line: every character that does not print as ``\\n``, ``\\x1b`` or ``\\u202e``.

    So are escape sequences of terminals, characters that turn the direction of text, and spaces that look like others.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _KEPT else _written_out(character) for character in text
    )


def safe_lines(text: str) -> list[str]:
    """The lines, each but the last with `LINE_END`; apart from the breaks as `safe_text`."""
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
    """Plain data with bytes of names that are no UTF-8 (and half characters of JSON) written as ``\\udcff``."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return [writable(item) for item in value] if isinstance(value, list | tuple) else value
