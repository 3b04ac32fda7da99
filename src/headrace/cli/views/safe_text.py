"""Text of data, made harmless for terminals and pages: what does not print, or moves other text, is written out."""

from __future__ import annotations

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
