"""Servers of object stores, each started when a test first needs it, and one local cache folder a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import servers


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def _server(make: servers.Make, factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    with make(factory.mktemp(make.__name__)) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    yield from _server(servers.weed, tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    yield from _server(servers.azurite, tmp_path_factory)


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    yield from _server(servers.fake_gcs, tmp_path_factory)


@pytest.fixture(scope="session")
def http_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    yield from _server(servers.http_files, tmp_path_factory)


@pytest.fixture
def folder_key(tmp_path: Path) -> str:
    """A key prefix that no other test uses."""
    return tmp_path.name
