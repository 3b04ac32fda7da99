"""Pictures of the docs are what their scripts draw."""

from __future__ import annotations

import runpy
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def test_the_picture_of_a_resumed_run_shows_what_loaders_give() -> None:
    drawn = runpy.run_path(str(IMAGES / "draw_resume.py"))["drawn"]()
    assert drawn == (IMAGES / "resume.svg").read_text(encoding="utf-8")


def test_the_pictures_of_how_it_works_show_what_is_computed() -> None:
    for name, picture in runpy.run_path(str(IMAGES / "draw_how.py"))["drawn"]().items():
        assert picture == (IMAGES / name).read_text(encoding="utf-8"), f"run docs/images/draw_how.py for {name}"
