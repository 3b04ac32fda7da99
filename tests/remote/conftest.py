"""Servers of object stores, each started when a test first needs it, and one local cache folder a test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import recipe_runs
import servers
from fault_proxy import FaultProxy, fault_proxy


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
def gcs(fake_gcs: servers.Bucket) -> Iterator[servers.Bucket]:
    with servers.gcs(fake_gcs) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def http_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Bucket]:
    yield from _server(servers.http_files, tmp_path_factory)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, some of them twice, and a tokeniser."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = random.Random(4)
    for number in range(3):
        texts = [" ".join(f"word{rng.randrange(300)}" for _ in range(rng.randrange(60))) for _ in range(700)]
        recipe_runs.write_lines(folder / "in" / f"{number}.jsonl", [{"text": text} for text in texts + texts[:40]])
    recipe_runs.make_model(folder / "model")
    return folder


@pytest.fixture
def folder_key(tmp_path: Path) -> str:
    """A key prefix that no other test uses."""
    return tmp_path.name


@pytest.fixture
def remote_bucket(request: pytest.FixtureRequest) -> servers.Bucket:
    """That of ``weed``, or of the server by which a test is parametrized."""
    found: servers.Bucket = request.getfixturevalue(getattr(request, "param", "weed"))
    return found


@pytest.fixture
def around(remote_bucket: servers.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says how the store is reached, as for the commands."""
    for name, value in servers.environment(str(remote_bucket.storage.endpoint), remote_bucket.scheme).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(remote_bucket: servers.Bucket) -> Iterator[FaultProxy]:
    """Before the server of that bucket."""
    with fault_proxy(str(remote_bucket.storage.endpoint)) as made:
        yield made
