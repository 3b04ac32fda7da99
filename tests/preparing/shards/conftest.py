"""Small tasks in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shards_made import inline


@pytest.fixture
def small_tasks() -> Iterator[None]:
    with inline():
        yield
