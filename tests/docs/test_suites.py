"""The figures of docs/migrate about the peers' own tests are those of the committed lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
