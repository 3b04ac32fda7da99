"""A store that fails now and then, is slow, lies, or stays away: the same bytes, exact counts, and words that help."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

import corpora
import headrace
import servers
from counts import PATIENCE_S
from fault_proxy import KINDS, FaultProxy
from headrace.errors import StoreError
from headrace.io import FetchPolicy, ObjectReader
from headrace.io.objects.reader import merged
from stored import QUICK

pytestmark = pytest.mark.remote

CONTENT = np.random.default_rng(3).integers(0, 256, 300_000, dtype=np.uint8)


@pytest.fixture
def storage(weed: servers.Bucket, proxy: FaultProxy) -> headrace.Storage:
    """The same bucket, through the proxy."""
    return msgspec.structs.replace(weed.storage, endpoint=proxy.endpoint)


@pytest.fixture
def url(weed: servers.Bucket, tmp_path: Path) -> str:
    weed.put(f"{tmp_path.name}/content", CONTENT.tobytes())
    return f"{weed.url}/{tmp_path.name}/content"


def read_all(reader: ObjectReader, url: str, seed: int, num_reads: int) -> int:
    """Read ranges at random, compare them, and return the number of GETs that they are planned to take."""
    rng = np.random.default_rng(seed)
    planned = 0
    for _ in range(num_reads):
        begins = rng.integers(0, 290_000, 5)
        lengths = rng.integers(0, 10_000, 5)
        found = reader.read_ranges(url, begins, lengths)
        assert found.tobytes() == b"".join(CONTENT[b : b + n].tobytes() for b, n in zip(begins, lengths, strict=True))
        planned += len(merged(begins, lengths))
    return planned


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_met_again(kind: str, url: str, storage: headrace.Storage, proxy: FaultProxy) -> None:
    proxy.share, proxy.kinds, proxy.slow_s = 0.3, (kind,), 0.02
    reader = ObjectReader(storage, policy=QUICK)
    planned = read_all(reader, url, 1, 10)
    stats = reader.stats
    assert proxy.made[kind] > 0
    assert stats.retries == (0 if kind == "slow" else proxy.made[kind])
    assert stats.gets == proxy.gets == planned + stats.retries + stats.hedges


def test_counts_are_exact_with_all_faults(url: str, storage: headrace.Storage, proxy: FaultProxy) -> None:
    proxy.share, proxy.all_requests = 0.05, True
    reader = ObjectReader(storage, policy=QUICK)
    planned = read_all(reader, url, 2, 120)
    stats = reader.stats
    assert sum(proxy.made.values()) >= 10
    again = stats.retries - (stats.heads - 1)  # all but those of HEADs
    assert stats.gets == planned + again + stats.hedges
    # A hedge may be outrun before it is sent.
    assert stats.gets - stats.hedges <= proxy.gets <= stats.gets


def test_a_slow_get_is_hedged(url: str, storage: headrace.Storage, proxy: FaultProxy) -> None:
    reader = ObjectReader(storage, policy=QUICK)
    read_all(reader, url, 3, 60)  # from now on it is known how long GETs take
    # Without the second GET the first would last until the attempt is given up, and be tried again.
    proxy.share, proxy.kinds, proxy.slow_s = 0.02, ("slow",), 40.0
    while not proxy.made["slow"]:
        read_all(reader, url, 4, 1)
    assert reader.stats.hedges >= 1
    assert reader.stats.retries == 0


def test_an_answer_that_takes_too_long_is_tried_again(url: str, storage: headrace.Storage, proxy: FaultProxy) -> None:
    proxy.share, proxy.kinds, proxy.slow_s = 1.0, ("slow",), 1.0
    reader = ObjectReader(storage, policy=msgspec.structs.replace(QUICK, attempt_s=0.2, deadline_s=1.0))
    with pytest.raises(StoreError, match=r"7.*17.*300,000"):
        reader.read(url, 7, 10)


@pytest.mark.parametrize(("kind", "named"), [("etag", r"ETag.*'another'"), ("404", "removed")])
def test_an_object_that_changed_or_was_removed_is_named_at_once(
    kind: str, named: str, url: str, storage: headrace.Storage, proxy: FaultProxy
) -> None:
    reader = ObjectReader(storage, policy=QUICK)
    reader.read(url, 0, 10)
    proxy.share, proxy.kinds = 1.0, (kind,)
    with pytest.raises(StoreError, match=named):
        reader.read(url, 0, 10)
    assert reader.stats.retries == 0


def test_a_store_that_is_away_for_a_while(
    url: str, storage: headrace.Storage, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    policy = FetchPolicy(deadline_s=PATIENCE_S, first_delay_s=0.05, most_delay_s=0.3)
    reader = ObjectReader(storage, policy=policy)
    reader.size(url)
    proxy.is_away = True
    with caplog.at_level(logging.WARNING, "headrace"):
        future = reader.objects.begin_ranges(url, [(0, 10)])
        while proxy.made["away"] < 4 and not future.done():
            time.sleep(0.01)
        proxy.is_away = False
        assert bytes(reader.objects.finish(url, future).data[0]) == CONTENT[:10].tobytes()
    assert reader.stats.retries >= 4
    assert f"{url}: bytes 0 to 10 of 300,000 cannot be read" in caplog.text
    assert "trying again in" in caplog.text
    assert f"(attempt 2; the deadline is {PATIENCE_S} s)" in caplog.text


def test_opening_asks_at_once(
    weed: servers.Bucket, storage: headrace.Storage, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Look-ups take one round trip, and indexes are fetched many at a time; the counts of requests are exact."""
    local = corpora.make(tmp_path / "web", 5, 120, num_shards=12).store
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web")
    proxy.latency_s = 0.3
    reader = ObjectReader(storage, policy=QUICK)
    store = headrace.open(f"{url}/shard-0", reader=reader)
    assert (reader.stats.heads, reader.stats.lists, reader.stats.gets) == (3, 2, 2)
    assert proxy.most_at_once in (5, 6), "the ends are asked for by a thread of their own"
    assert isinstance(store, headrace.stores.Store)
    proxy.most_at_once = 0
    reader = ObjectReader(storage, policy=QUICK)
    whole = headrace.open(url, reader=reader)
    assert isinstance(whole, headrace.stores.Store)
    assert reader.stats.gets == 23, "a .bin and an index of each, and the index of the first is there"
    assert proxy.most_at_once == 23
    proxy.latency_s = 0.0
    assert whole.fingerprint == local.fingerprint
    assert reader.stats.gets == 23


def test_what_a_shard_is_known_by_comes_with_its_index(
    weed: servers.Bucket, storage: headrace.Storage, proxy: FaultProxy, tmp_path: Path
) -> None:
    local = corpora.make(tmp_path / "web", 5, 200, num_shards=2, max_length=900).store
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web")
    proxy.latency_s = 0.3
    reader = ObjectReader(storage, policy=QUICK)
    store = headrace.open(url, reader=reader)
    assert isinstance(store, headrace.stores.Store)
    assert proxy.most_at_once == 6, "an index and two ends of each"
    for _ in range(2):  # also from what was kept
        assert store.fingerprint == local.fingerprint
        assert reader.stats.gets == proxy.gets == 6


ENDS_AT_ONCE = """
import sys, time
from asyncio import selector_events
from threading import current_thread, main_thread

from headrace.io import ObjectReader

wake = selector_events.BaseSelectorEventLoop._write_to_self


def wake_slowly(loop):
    wake(loop)
    if current_thread() is not main_thread():  # a thread of obstore, which is kept from Python meanwhile
        time.sleep(0.1)


selector_events.BaseSelectorEventLoop._write_to_self = wake_slowly
ballast = [[number] for number in range(2_000_000)]  # so that the end of the interpreter takes longer than that
print(len(ObjectReader().read(sys.argv[1], 0, 1000)))
"""


def test_a_process_may_end_while_a_thread_of_obstore_is_in_python(url: str, weed: servers.Bucket) -> None:
    environ = {**os.environ, **servers.environment(str(weed.storage.endpoint))}
    ended = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE, url], env=environ, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "1000\n"), ended.stderr
