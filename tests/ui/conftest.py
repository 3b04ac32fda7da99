"""One folder with everything, and a client of the application over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ui_made import demo, inside
from ui_pages import Pages

__all__ = ["demo", "inside"]


@pytest.fixture
def pages(inside: Path) -> Pages:
    return Pages()
