"""The tables of options in docs/cli.md are made of what the commands are made of, and the options are few."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from headrace.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/site/commands.py"
MOST_NAMES = 100


def script() -> Any:
    spec = importlib.util.spec_from_file_location("commands_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            if name != "plan":  # whose commands are those of other names
                yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


def options() -> Iterator[tuple[str, click.Option]]:
    for name, command in commands(main):
        params = command.get_params(click.Context(command))
        yield from ((name, param) for param in params if isinstance(param, click.Option) and "--help" not in param.opts)


def test_the_page_is_up_to_date() -> None:
    made, page = script(), (ROOT / "docs/cli.md").read_text("utf-8")
    assert page == made.written(page), "run python tools/site/commands.py"


def test_a_change_is_noticed() -> None:
    made = script()
    page = "<!-- options of ls -->\n| `--short` | Said nowhere |\n<!-- end -->"
    assert "`--long`" in made.written(page)
    assert "--short" not in made.written(page)


def test_each_option_is_on_the_page_and_says_what_it_is() -> None:
    tables = re.findall(r"<!-- options of (.*?) -->\n(.*?)<!-- end -->", (ROOT / "docs/cli.md").read_text(), re.DOTALL)
    told = {name: table for names, table in tables for name in names.split(", ")}
    for name, option in options():
        flag = max(option.opts, key=len)
        text = option.text  # type: ignore[attr-defined]
        assert len(text.split()) > 1, f"{name} {flag} has no help"
        assert flag in ("--json", "--executor") or name.startswith("job ") or f"`{flag}`" in told[name], (
            f"{name} {flag}"
        )


def test_the_names_are_few() -> None:
    names = {flag for _, option in options() for flag in option.opts if flag.startswith("--")}
    assert len(names) <= MOST_NAMES, sorted(names)
