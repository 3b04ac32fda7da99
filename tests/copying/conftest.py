"""Two small stores, the sources of copies."""

from __future__ import annotations

from pathlib import Path

import pytest

import copies_made
from memory_stores import MemoryBucket


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    for name, seed in (("web", 1), ("code", 2)):
        copies_made.drawn(tmp_path / name / "pair", seed, 40)
    return [str(tmp_path / name / "pair") for name in ("web", "code")]


@pytest.fixture
def remote_sources(bucket: MemoryBucket, sources: list[str], tmp_path: Path) -> list[str]:
    """The same, at URLs."""
    url = bucket.upload(tmp_path, "sources", "pair.*")
    return [source.replace(str(tmp_path), url) for source in sources]
