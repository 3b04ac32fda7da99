"""Two small stores, the sources of copies."""

from __future__ import annotations

from pathlib import Path

import pytest

import copies_made


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    for name, seed in (("web", 1), ("code", 2)):
        copies_made.drawn(tmp_path / name / "pair", seed, 40)
    return [str(tmp_path / name / "pair") for name in ("web", "code")]
