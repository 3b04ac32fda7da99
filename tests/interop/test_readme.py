"""The tables of this folder's README name tests that exist, for every case and every fault."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE / "README.md").read_text().splitlines()
    if line.startswith("| ") and "`tests/" in line
]


@cache
def functions_of(file: str) -> set[str]:
    """The functions of a file that pytest would collect."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_test_that_a_row_names_is_there(row: list[str]) -> None:
    named = re.findall(r"`([^`:]+)::([^`]+)`", row[-1])
    assert named
    assert " ".join(f"`{file}::{name}`" for file, name in named) == row[-1]
    for file, name in named:
        assert name in functions_of(file), f"{file} has no {name}"


def test_every_case_and_fault_has_a_row() -> None:
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)
    wanted = {f"C{number}" for number in (*range(1, 23), 30)} | {f"B{number}" for number in range(1, 11)}
    wanted |= {f"A{number}" for number in range(1, 21)}
    wanted |= {f"E{number}" for number in range(1, 34)}
    wanted |= {f"9.{number}" for number in (*range(1, 18), 19)}
    assert wanted <= set(names), sorted(wanted - set(names))
