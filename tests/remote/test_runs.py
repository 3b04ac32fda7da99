"""Whole runs from a store that fails: the bytes of the local run, exact counts, and an end from which to go on."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import pytest

import corpora
import headrace
import servers
from counts import FULL
from fault_proxy import FaultProxy, fault_proxy
from headrace.errors import StoreError
from headrace.io import FetchPolicy, FetchStats, ObjectReader
from headrace.loader import Reading
from stored import QUICK

pytestmark = pytest.mark.remote

BLOCK = 4096
SAMPLES = 1600


class Away:
    """A corpus on disk and, through a proxy, in a store."""

    def __init__(self, weed: servers.Bucket, proxy: FaultProxy, folder: Path) -> None:
        self.local = corpora.make(folder / "web", 6, 300, max_length=900).store
        self.url = weed.upload(folder / "web", f"{folder.name}/web") + "/shard-0"
        self.proxy = proxy
        self.storage = msgspec.structs.replace(weed.storage, endpoint=proxy.endpoint)
        self._folder = folder
        self._num_caches = 0

    def open(self, policy: FetchPolicy, *, cached: bool = False) -> tuple[headrace.stores.Store, ObjectReader]:
        """Open it, through a new cache of a sixth of it or through none."""
        reader = ObjectReader(self.storage, policy=policy)
        if not cached:
            return headrace.open(self.url, reader=reader), reader  # type: ignore[return-value]
        self._num_caches += 1
        cache = headrace.Cache(self._folder / f"cache-{self._num_caches}", limit=10 * BLOCK, block=BLOCK)
        return headrace.open(self.url, reader=reader, cache=cache), reader  # type: ignore[return-value]


@pytest.fixture
def away(weed: servers.Bucket, tmp_path: Path) -> Iterator[Away]:
    with fault_proxy(str(weed.storage.endpoint)) as proxy:
        yield Away(weed, proxy, tmp_path)


def loader(store: headrace.stores.Store, reading: Reading) -> headrace.Loader:
    run = headrace.Run(headrace.WindowDataset(store, seq_len=64), global_batch_size=8, samples=SAMPLES)
    return headrace.Loader(run, micro_batch_size=8, reading=reading)


def tokens(of: headrace.Loader, then: Callable[[int], None] | None = None, found: list[Any] | None = None) -> list[Any]:
    found = [] if found is None else found
    for batch in of:
        found.append(batch["input_ids"].tolist())
        if then is not None:
            then(len(found))
    return found


WAYS = {
    "thread": (Reading(num_threads=1), False),
    "workers": (Reading(num_workers=2, start_method="fork"), False),
    "cache": (Reading(num_threads=1), True),
    "workers and cache": (Reading(num_workers=2, start_method="fork"), True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_goes_on_when_the_store_comes_back(way: str, away: Away) -> None:
    """After some refused requests; with the full counts after a minute, which the default policy bridges."""
    reading, cached = WAYS[way]
    store, reader = away.open(FetchPolicy() if FULL else QUICK, cached=cached)

    def leave(count: int) -> None:
        if count == 5:
            away.proxy.is_away = True
            if FULL:
                Timer(60, away.proxy.come_back).start()
            else:
                away.proxy.back_after = 10

    expected = tokens(loader(away.local, Reading(num_threads=0)))
    made = loader(store, reading)
    assert tokens(made, leave) == expected
    made.close()
    assert away.proxy.made["away"] >= (3 if FULL else 10)
    if not reading.num_workers:
        assert reader.stats.retries == away.proxy.made["away"]


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_stays_away_ends_in_an_error_and_the_state_is_good(way: str, away: Away) -> None:
    reading, cached = WAYS[way]
    store, _ = away.open(FetchPolicy(deadline_s=5, first_delay_s=0.1, most_delay_s=0.5), cached=cached)
    expected = tokens(loader(away.local, Reading(num_threads=0)))
    ours = loader(store, reading)
    found: list[Any] = []

    def leave(count: int) -> None:
        away.proxy.is_away = count >= 5

    with pytest.raises(StoreError) as raised:
        tokens(ours, leave, found)
    # The store is still away.
    state = ours.state_dict()
    ours.close()
    assert 5 <= len(found) < len(expected)
    assert found == expected[: len(found)]
    words = "\n".join([str(raised.value), *raised.value.__notes__])
    named = rf"{away.url}\.bin: bytes [\d,]+ to [\d,]+ .*\n.*positions [\d,]+ to [\d,]+ .*rank 0 of 1"
    assert re.search(named, words), words

    away.proxy.is_away = False
    assert state["position"] == 8 * len(found)
    again, _ = away.open(QUICK, cached=cached)
    resumed = loader(again, reading)
    resumed.load_state_dict(state)
    assert tokens(resumed) == expected[len(found) :]
    resumed.close()


def planned(stats: FetchStats, before: FetchStats) -> int:
    """The GETs of a run, without those that were sent again or beside others."""
    more = {name: getattr(stats, name) - getattr(before, name) for name in ("gets", "retries", "hedges")}
    return more["gets"] - more["retries"] - more["hedges"]


@pytest.mark.parametrize("cached", [False, True])
def test_gets_of_a_run_with_faults_are_those_of_the_plan_with_retries_and_hedges(cached: bool, away: Away) -> None:
    counts, found = [], []
    for share in (0.0, 0.05):
        store, reader = away.open(QUICK, cached=cached)
        before, arrived = msgspec.structs.replace(reader.stats), away.proxy.gets
        away.proxy.share = share
        found.append(tokens(loader(store, Reading(num_threads=0))))
        counts.append(planned(reader.stats, before))
        sent = reader.stats.gets - before.gets
        # A hedge may be outrun before it is sent.
        assert sent - (reader.stats.hedges - before.hedges) <= away.proxy.gets - arrived <= sent
    away.proxy.share = 0.0
    assert sum(away.proxy.made.values()) >= 5
    assert counts[0] == counts[1]
    assert found[0] == found[1] == tokens(loader(away.local, Reading(num_threads=0)))


@pytest.mark.soak
def test_a_run_with_faults_has_most_of_the_clean_rate(away: Away) -> None:
    """At 5 % faults, with 5 ms latency: at least 70 %, by the median of pairs that take turns."""
    away.proxy.latency_s = 0.005
    ratios = []
    for _ in range(5):
        seconds = {}
        for share in (0.0, 0.05):
            store, _ = away.open(FetchPolicy())
            away.proxy.share = share
            made = loader(store, Reading(ahead="256MB"))
            begin = time.monotonic()
            tokens(made)
            seconds[share] = time.monotonic() - begin
        away.proxy.share = 0.0
        ratios.append(seconds[0.0] / seconds[0.05])
    print(f"rates with faults, of the clean ones: {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}")
    assert statistics.median(ratios) >= 0.7
