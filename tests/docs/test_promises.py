"""`docs/promises.md` has each promise of README and docs, and its tests exist; figures of docs/migrate are true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
