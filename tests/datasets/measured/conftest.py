"""A dataset of 150 numbers, three of them broken, and a folder for its facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from measured_made import numbers

COUNT, BROKEN = 150, (3, 77, 120)


@pytest.fixture(scope="session")
def flawed_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers(tmp_path_factory.mktemp("numbers") / "ds", COUNT, BROKEN)


@pytest.fixture(scope="session")
def facts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("facts")
