"""An extension of griffe that reads our docstrings as they are written.

A section ``Example:`` is one of examples, doctests outside of such sections are code, and a public name in single
backticks links to its entry in the reference.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
NAME = re.compile(r"(?<![`\[\w])`((?:headrace\.)?[A-Za-z_][\w.]*)`(?!`)")


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed.

    Args:
        names: a JSON file: what has an entry in the reference, as docstrings write it, and the identifier of the entry.
    """

    def __init__(self, names: str) -> None:
        self.names: dict[str, str] = json.loads(Path(names).read_text(encoding="utf-8"))

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value, self.names, obj.path)


def rewritten(text: str, names: dict[str, str], own: str = "") -> str:
    """Return a docstring with sections, code and links as Markdown has them."""
    lines: list[str] = []
    in_examples = in_code = False
    for line in EXAMPLE.sub("Examples:", text).splitlines():
        if line and not line.startswith(" "):
            in_examples = line == "Examples:"
        begins = line.lstrip().startswith(">>> ") and not in_examples
        if begins and not in_code:
            indent = line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
            in_code = True
        elif in_code and not line.strip():
            lines.append(f"{indent}```")
            in_code = False
        lines.append(line if in_code or line.lstrip().startswith((">>> ", "... ")) else linked(line, names, own))
    if in_code:
        lines.append(f"{indent}```")
    return "\n".join(lines)


def linked(line: str, names: dict[str, str], own: str) -> str:
    """Return a line whose single-backtick names link to their entries; an entry does not link to itself."""

    def link(match: re.Match[str]) -> str:
        target = names.get(match[1])
        return match[0] if target is None or own.endswith(f".{match[1]}") else f"[`{match[1]}`][{target}]"

    return line if line.startswith("    ") and "  " in line.strip() else NAME.sub(link, line)
