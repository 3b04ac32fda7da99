"""Pages of the docs are true: promises have tests, tables of options are those of commands, pictures are as drawn."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli import main

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(file: str, begin: str = "", end: str = "\n## ") -> list[list[str]]:
    """The cells of all rows of tables between a heading and the next one."""
    text = (ROOT / file).read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


PROMISES = dict(row for row in rows("docs/promises.md", "# Promises", "\0") if row[0] != "promise")


def test_each_promise_of_a_table_is_listed() -> None:
    promised = [row[0] for row in rows("README.md", "## What is guaranteed") if row[0] and row[0] != "---"]
    never = [row[0] for row in rows("docs/determinism.md", "# What changes") if "never" in row[1]]
    assert len(promised) >= 5
    assert len(never) >= 8
    assert {*promised, *never} - {"version of the algorithms"} <= PROMISES.keys()


def test_the_readme_is_read_in_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1000


QUOTED = "## What README quotes"
FIGURE = re.compile(r"([\d.,e+]+)(?: to ([\d.,e+]+))? \(")


def test_the_readme_quotes_what_the_page_of_benchmarks_prints() -> None:
    """`benchmarks/page.py` writes the rows and the sentence that README may quote; each figure is one of a claim."""
    printed, quoted = rows("docs/benchmarks.md", QUOTED), rows("README.md", "## How fast it is")
    assert len(quoted) > 3
    assert [row for row in quoted if row not in printed] == []
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    claims = page.partition(QUOTED)[2].partition("\n## ")[2]
    claimed = set(re.findall(r": ([\d.,e+-]+)(?= \(|$)", claims, re.MULTILINE))
    figures = {figure for _, cell in quoted for found in FIGURE.findall(cell) for figure in found if figure}
    assert len(figures) >= len(quoted) - 1
    assert figures <= claimed
    [sentence] = re.findall(r"^The first batch of .*", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"\n{sentence}\n" in page


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_tests_that_exist(promise: str) -> None:
    found = TEST.findall(PROMISES[promise])
    assert found
    assert len(found) == PROMISES[promise].count("::")
    for file, name in found:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}, file


LISTS = sorted((ROOT / "tests/interop/suites/passing").glob("*.txt"))


def test_there_are_lists() -> None:
    found = {path.name.partition("-")[0] for path in LISTS}
    assert found == {"astrai", "astrai_seed", "energon", "megatron", "torchtune", "trl"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_pages_have_the_figures_of_the_lists(path: Path) -> None:
    tests = path.read_text(encoding="utf-8").splitlines()
    page = ROOT / "docs/migrate" / f"{path.name.partition('-')[0].removesuffix('_seed')}.md"
    [section] = re.findall(r"^## \w+'s own tests$(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    figures = set(map(int, re.findall(r"(?<![\w.])\d+(?![\w.]*\w)", section)))
    passing, calling = len(tests), sum(not test.endswith("\tapart") for test in tests)
    assert {passing, calling} <= figures, f"{path.name}: {passing} tests pass, {calling} of them call Headrace"


# The tables of options in docs/cli.md are made of what the commands are made of, and the options are few.


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
        params = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))  # commands keep them
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


# Tables and pictures of the docs are what the code does: functions in the order of their calls, pictures as drawn.


ROW = re.compile(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
WALKS = {"document": "## A document", "position": "## A position", "packed": "## A sample of a tar shard"}
ENDS = {
    "document": "stores/manifest.py",
    "position": "datasets/windows.py WindowDataset.read_into",
    "packed": "encoders/pipeline.py",
}
"""What each walk reaches."""


def rows_of(heading: str) -> list[str]:
    """``file function`` of each row of the table below a heading."""
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    section = page[page.index(heading) :].split("\n## ")[0]
    return [f"{file} {function}" for file, function in ROW.findall(section)]


@pytest.mark.parametrize("name", WALKS)
def test_functions_are_called_in_this_order(name: str) -> None:
    claimed = rows_of(WALKS[name])
    assert len(claimed) > 10
    threads = runpy.run_path(str(ROOT / "tools" / "walk.py"))["walk"](name, ROOT)["threads"]
    assert not set(claimed).difference(*threads)
    assert any(function.startswith(ENDS[name]) for functions in threads for function in functions)
    for functions in threads:
        # What several threads call has no place among the calls of one of them.
        own = [one for one in claimed if [called for called in threads if one in called] == [functions]]
        assert own == sorted(own, key=functions.index)


IMAGES = Path(__file__).parents[2] / "docs" / "images"


def test_the_picture_of_a_resumed_run_shows_what_loaders_give() -> None:
    drawn = runpy.run_path(str(IMAGES / "draw_resume.py"))["drawn"]()
    assert drawn == (IMAGES / "resume.svg").read_text(encoding="utf-8")


def test_the_pictures_of_how_it_works_show_what_is_computed() -> None:
    for name, picture in runpy.run_path(str(IMAGES / "draw_how.py"))["drawn"]().items():
        assert picture == (IMAGES / name).read_text(encoding="utf-8"), f"run docs/images/draw_how.py for {name}"
