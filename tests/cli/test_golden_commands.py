"""What commands print with ``--json``, and what planned jobs keep, is what version 0.1 printed and kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import commands_made

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "commands.json").read_text())


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("commands"))
    try:
        return commands_made.made()
    finally:
        os.chdir(here)


def test_all_commands_are_known(printed: dict[str, Any]) -> None:
    assert list(printed) == list(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_command_prints_what_it_printed(printed: dict[str, Any], name: str) -> None:
    assert printed[name] == GOLDEN[name]
