"""Fixtures for all rooms."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

# The contracts live in the package, where pytest would not show what an assert compared.
pytest.register_assert_rewrite("headrace.testing")

# The helpers beside this file are imported by name under --import-mode=importlib.
sys.path.insert(0, str(Path(__file__).parent))

import corpora
import counts
import warm

if TYPE_CHECKING:
    from jobs_by_hand import Hosts
    from memory_stores import Away, MemoryBucket

# The few cases of `make test` are always the same ones, so that a red run can be repeated; the full counts are drawn.
# None may depend on how busy the machine is.
settings.register_profile(
    "headrace",
    max_examples=counts.cases(12, 100),
    derandomize=not counts.FULL,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")

# Tests write and delete very many small files, which takes a disk longer than the tests themselves take.
IN_MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)

# What is made while tests are collected lives to the end; see `pytest_collection_finish`.
gc.disable()

# A job in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out variants of tests that are marked as ``sampled``."""
    if counts.FULL:
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for variants in groups.values():
        marker = variants[0].get_closest_marker("sampled")
        kept = counts.spread(len(variants), marker.args[0] if marker is not None else 0)
        left_out.update(item for number, item in enumerate(variants) if number not in kept)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ten thousand tests live to the end: no collection looks at them, nor any process forked from this one."""
    gc.freeze()
    gc.enable()


_HAS_TORCH = importlib.util.find_spec("torch") is not None


Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)


def _told(report: Report) -> Report:
    """A report as it is; skipped if it fails for lack of torch, as on the other Pythons of ``make test-pythons``."""
    text = "" if _HAS_TORCH or not report.failed else str(report.longrepr)
    if "No module named 'torch'" in text or "'headrace[torch]'" in text:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, "Skipped: torch is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Skip modules that need torch where it is not installed."""
    return _told((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Skip tests that need torch where it is not installed."""
    return _told((yield))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept in the cache folder is neither the user's nor that of another session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def workers_at_once() -> Iterator[None]:
    """All workers of a job begin at once: tests have less work than it takes for a second one to begin."""
    with pytest.MonkeyPatch.context() as patch:
        if "headrace.engine.processes" in sys.modules:
            patch.setattr(sys.modules["headrace.engine.processes"], "GROWTH_S", 1e-9)
        yield


@pytest.fixture
def fresh_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in the cache folder when the test begins."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def bucket(fresh_cache: None) -> Iterator[MemoryBucket]:
    """An object store in memory, of which this host knows nothing yet."""
    from memory_stores import memory_bucket

    with memory_bucket() as made:
        yield made


@pytest.fixture
def away(bucket: MemoryBucket) -> Iterator[Away]:
    """Lets the object store in memory go away; see `memory_stores.going_away`."""
    from memory_stores import going_away

    with going_away() as after:
        yield after


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Hosts that share no folder; see `jobs_by_hand.Hosts`."""
    from jobs_by_hand import Hosts

    return Hosts(tmp_path / "hosts")


@pytest.fixture(autouse=True)
def cores_of_loaders() -> Iterator[None]:
    """Loaders that are not told how to read have one core, and so no workers, which take a tenth of a second to start.

    A module of tests that is about the choice has a fixture of this name. This one does not take `monkeypatch`, which
    would then begin before all other fixtures, and restore what they had replaced.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "headrace.loader.choosing" in sys.modules:
            patch.setattr(sys.modules["headrace.loader.choosing"], "num_cores", lambda _: 1)
        yield


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


@pytest.fixture(scope="session")
def warm_process() -> Iterator[warm.Warm]:
    """What workers of `prepare` can start from."""
    process = warm.Warm(["headrace.preparing.worker", "headrace.preparing.record_encoder", "pyarrow.parquet"])
    yield process
    process.close()


@pytest.fixture(scope="session")
def warm_torch() -> Iterator[warm.Warm]:
    """What programs with torch can start from, as the ranks of a job."""
    modules = ["headrace.compat.energon", "torch.distributed.device_mesh", "torch._dynamo"]
    process = warm.Warm(modules, ("-W", "ignore"))
    yield process
    process.close()


@pytest.fixture
def warm_workers(warm_process: warm.Warm) -> Iterator[None]:
    """Workers are processes of their own, but have their modules already."""
    with warm.workers(warm_process):
        yield
