"""Writes the tables of options in docs/cli.md, from the signatures and structs that the commands are made of.

    python tools/site/commands.py             writes them
    python tools/site/commands.py --check     says whether they are up to date

A table stands between ``<!-- options of COMMAND, ... -->`` and the next ``<!-- end -->``. If it is of several commands,
an option that only some of them have begins with their names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from headrace.cli import main
from headrace.cli.options import Flag

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMON = ("--json", "--executor")
"""Options that the page tells of once."""

_TABLE = re.compile(r"(<!-- options of (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def flags(name: str) -> dict[str, Flag]:
    """The options of a command, as ``run edit``, by name."""
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group), name
        command = command.get_command(click.Context(command), word)
    assert command is not None, name
    found = (
        param
        for param in command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
        if isinstance(param, Flag)
    )
    return {max(param.opts, key=len): param for param in found}


def row(flag: Flag, owners: list[str]) -> str:
    """The row of an option; ``owners`` are the commands that have it, if others of the table have not."""
    names = ", ".join(f"`{name}`" for name in sorted(flag.opts, key=len, reverse=True))
    choices = flag.type.choices if isinstance(flag.type, click.Choice) else ()
    value = ", ".join(map(str, choices)) or (flag.metavar if not flag.is_flag else "") or ""
    whose = ", ".join(f"`{name}`" for name in owners) + ": " if owners else ""
    text = flag.text.replace("``", "`").rstrip(".")
    needed = "; required" if flag.required else ""
    return f"| {names} {value}".replace("|", "\\|").replace("\\|", "|", 1).rstrip() + f" | {whose}{text}{needed} |"


def table(names: list[str]) -> Iterator[str]:
    """The lines of a table of options."""
    found = {name: flags(name) for name in names}
    seen: dict[tuple[str, str], list[str]] = {}
    for name, some in found.items():
        for flag, option in some.items():
            seen.setdefault((flag, row(option, [])), []).append(name)
    yield "| option | meaning |"
    yield "|---|---|"
    for (flag, _), owners in seen.items():
        if flag not in COMMON:
            own = [name.rpartition(" ")[2] for name in owners] if len(owners) < len(names) else []
            yield row(found[owners[0]][flag], own)


def written(text: str) -> str:
    """The page with the tables as they are now."""

    def made(match: re.Match[str]) -> str:
        return match[1] + "\n" + "\n".join(table(match[2].split(", "))) + "\n\n" + match[3]

    return _TABLE.sub(made, text)


if __name__ == "__main__":
    before = PAGE.read_text("utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(written(before), "utf-8")
    elif written(before) != before:
        sys.exit(f"{PAGE} is not up to date: run python tools/site/commands.py")
