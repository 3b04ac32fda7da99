"""Jumps of a loader without a state: what would come twice or never is counted, and refused unless it is meant."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
import headrace
from counts import cases
from headrace import Blend, ConfigError, Loader, Run
from headrace.loader import Ranks, Reading
from headrace.loader.jumps import fed_between


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, headrace.WindowDataset]:
    folder = tmp_path_factory.mktemp("jumps")
    found = {}
    for name, count in (("web", 33), ("code", 16)):
        corpora.write(folder / name / "text_document", [np.arange(count * 4 + 1)])
        found[name] = headrace.WindowDataset(headrace.open(folder / name), seq_len=4)
    return found


def loader_of(run: Run, **options: Any) -> Loader:
    return Loader(run, micro_batch_size=2, ranks=Ranks(0, 1), reading=Reading(num_threads=0), **options)


def test_what_would_come_twice_or_never(data: dict[str, headrace.WindowDataset]) -> None:
    run = Run(Blend(data, weights={"web": 3, "code": 1}), global_batch_size=8)
    loader = loader_of(run)
    loader.start_at(16)
    loader.start_at(8)
    assert len(list(islice(loader, 12))) == 12
    assert loader.position == 32
    with pytest.raises(
        ConfigError, match=r"fed up to position 32.*go back: 24 samples \(web 18, code 6\) would come twice.*run.skip"
    ):
        loader.start_at(8)
    with pytest.raises(ConfigError, match=r"go ahead: 8 samples \(web 6, code 2\) would come never"):
        loader.start_at(40)
    assert loader.position == 32
    loader.start_at(32)
    loader.start_at(40, allow_repeats=True)
    assert loader.step == 5
    state = loader.state_dict()
    resumed = loader_of(run)
    resumed.load_state_dict(state)
    with pytest.raises(ConfigError, match="would come twice"):
        resumed.start_at(0)
    resumed.start_at(0, allow_repeats=True)


def test_one_source_is_not_named(data: dict[str, headrace.WindowDataset]) -> None:
    run = Run(data["web"], global_batch_size=8)
    for one in (run, run.edit(1, global_batch_size=4)):
        loader = loader_of(one)
        assert len(list(islice(loader, 4))) == 4
        with pytest.raises(ConfigError, match=r"go back: 8 samples would come twice"):
            loader.start_at(0)


def test_a_position_within_a_step(data: dict[str, headrace.WindowDataset]) -> None:
    run = Run(data["web"], global_batch_size=[(0, 8), (3, 10)], samples=57)
    for begin in (lambda: loader_of(run, position=29), lambda: loader_of(run).start_at(29)):
        with pytest.raises(
            ConfigError,
            match=r"position 29 is within step 3, .*such as 24 \(step 3\) or 34 \(step 4\), or load",
        ):
            begin()
    loader = loader_of(run)
    loader.start_at(57)
    assert list(loader) == []
    loader = loader_of(run)
    loader.start_at(29, allow_repeats=True)
    assert next(iter(loader))["sample_positions"].tolist() == [29, 30]


@settings(max_examples=cases(30, 300), deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 90), st.integers(0, 90))
def test_counts(data: dict[str, headrace.WindowDataset], first: int, more: int, one: int, other: int) -> None:
    run = Run(Blend(data, weights={"web": 3, "code": 1}), global_batch_size=4)
    run = run.edit(first, weights={"web": 1, "code": 2}).skip(range(first + more, first + more + 2), then="defer")
    begin, end = sorted((one, other))
    sources = run.plan.lookup(np.arange(begin, end)).sources
    paths = [run.plan.leaves[source].path for source in sources.tolist()]
    found = fed_between(run, begin, end)
    assert {path: number for path, number in found.items() if number} == {path: paths.count(path) for path in {*paths}}


def test_restart_is_no_jump(data: dict[str, headrace.WindowDataset]) -> None:
    """With restart each iteration begins anew, and nothing is refused."""
    loader = loader_of(Run.validation(data["code"], global_batch_size=8), restart=True)
    assert [len(list(loader)) for _ in range(2)] == [8, 8]
