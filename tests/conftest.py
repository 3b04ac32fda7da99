"""Fixtures for all rooms."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The contracts live in the package, where pytest would not show what an assert compared.
pytest.register_assert_rewrite("headrace.testing")

# The helpers beside this file are imported by name under --import-mode=importlib.
sys.path.insert(0, str(Path(__file__).parent))

import corpora
import counts

# The few cases of `make test` are always the same ones, so that a red run can be repeated; the full counts are drawn.
settings.register_profile("headrace", derandomize=not counts.FULL, print_blob=True)
settings.load_profile("headrace")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[corpora.Corpus]:
    """Four small corpora: one shard, many tiny shards, very short documents, and one that is not mapped."""
    folder = tmp_path_factory.mktemp("corpora")
    return [
        corpora.make(folder / "one", 1, 60),
        corpora.make(folder / "shards", 2, 40, num_shards=7),
        corpora.make(folder / "short", 3, 200, max_length=4),
        corpora.make(folder / "pread", 4, 50, num_shards=3, reader="pread"),
    ]
