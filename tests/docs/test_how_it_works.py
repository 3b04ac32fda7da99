"""Tables and pictures of the docs are what the code does: functions in the order of their calls, pictures as drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
WALKS = {"document": "## A document", "position": "## A position", "packed": "## A sample of a tar shard"}
ENDS = {
    "document": "stores/manifest.py",
    "position": "datasets/windows.py WindowDataset.read_into",
    "packed": "encoders/pipeline.py",
}
"""What each walk reaches."""


def rows(heading: str) -> list[str]:
    """``file function`` of each row of the table below a heading."""
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    section = page[page.index(heading) :].split("\n## ")[0]
    return [f"{file} {function}" for file, function in ROW.findall(section)]


@pytest.mark.parametrize("name", WALKS)
def test_functions_are_called_in_this_order(name: str) -> None:
    claimed = rows(WALKS[name])
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
