"""One folder with everything, and a client of the application over it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ui_made
import warm
from ui_pages import Pages


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, warm_process: warm.Warm) -> Path:
    """Nothing may change it."""
    with warm.workers(warm_process):
        return ui_made.folder(tmp_path_factory.mktemp("ui") / "demo")


@pytest.fixture
def inside(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests run in the folder, as a user would."""
    monkeypatch.chdir(demo)
    return demo


@pytest.fixture
def pages(inside: Path) -> Pages:
    return Pages()
