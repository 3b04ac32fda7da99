"""The file beside the checkpoints gives the plan back, and grows where the run was changed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import runs_made
from counts import cases
from headrace.datasets import Blend, Mix, Run
from headrace.errors import ConfigError, OutputError, StateError
from headrace.plan import Bucketing, Leaf, Node, Order
from headrace.tracing import read_run_file, run_file, save_run


@settings(max_examples=cases(16, 80), deadline=None)
@given(runs_made.trees(), runs_made.orders, runs_made.schedules, st.sampled_from([None, 5]))
def test_what_is_written_is_the_plan(
    root: Node, order: Order, pieces: list[tuple[int, int]], window: int | None
) -> None:
    bucketing = None if window is None else Bucketing(window_steps=window)
    run = Run(runs_made.Tree(root), global_batch_size=pieces, order=order, samples=300, bucketing=bucketing)
    with tempfile.TemporaryDirectory() as folder:
        save_run(run, Path(folder) / "run.json")
        (saved,) = read_run_file(Path(folder) / "run.json").runs
    again = saved.run()
    positions = np.concatenate([np.arange(300), np.arange(10**9, 10**9 + 50)])
    for here, there in zip(run.plan.lookup(positions), again.plan.lookup(positions), strict=True):
        assert np.array_equal(here, there)
    assert again.paths == run.paths
    assert (again.schedule, again.length, again.bucketing) == (run.schedule, 300, bucketing)
    assert saved.hashes == run.recipe.hashes()


def test_shards_take_little_room(tmp_path: Path) -> None:
    counts = [10_000] * 50_000 + [17, 0, 17, 3]
    run = Run(runs_made.Sharded(counts), global_batch_size=8)
    save_run(run, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert '"shards": "10000x50000 17x2 3"' in text
    assert len(text) < 2_500


def made(seed: int = 0, *, size: Any = 8, samples: int = 1_000, num: int = 100) -> Run:
    return Run(runs_made.Tree(Leaf("web", num)), global_batch_size=size, order=Order(seed=seed), samples=samples)


def told(path: Path) -> list[tuple[int, int, int, int | None]]:
    return [(run.first_step, run.position, run.order.seed, run.length.samples) for run in read_run_file(path).runs]


def test_a_history_grows_where_something_changed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_run(made(), path)
    before = path.read_bytes()
    save_run(made(), path)
    save_run(made(), path, position=0)
    assert path.read_bytes() == before
    first = read_run_file(path)
    save_run(made(), path, position=80)
    noted = read_run_file(path)
    assert noted == msgspec.structs.replace(first, reached=80, digest=noted.digest), "the same run goes on"
    save_run(made(samples=2_000), path, position=160)
    assert (read_run_file(path).generation, read_run_file(path).reached) == (2, 160)
    assert told(path) == [(0, 0, 0, 2_000)], "for longer"
    save_run(made(1), path, position=400)
    save_run(made(1), path, position=800)
    assert told(path) == [(0, 0, 0, 2_000), (50, 400, 1, 1_000)]
    save_run(made(2), path, position=0, step=90)
    save_run(made(2), path, position=80, step=100)
    assert told(path)[2:] == [(90, 0, 2, 1_000)], "a new run with the model of step 90"
    save_run(made(2), path, position=88, step=100)
    assert told(path)[2:] == [(90, 0, 2, 1_000), (100, 88, 2, 1_000)], "one step was left out"
    save_run(made(), path, position=480)
    assert told(path) == [(0, 0, 0, 2_000), (50, 400, 1, 1_000), (60, 480, 0, 1_000)], "back to an earlier checkpoint"
    save_run(made(size=[(0, 8), (60, 16)]), path, position=480)
    assert len(told(path)) == 3, "what began at this step is replaced"
    assert read_run_file(path).runs[2].schedule.pieces == ((0, 8), (60, 16))
    save_run(made(3), path, position=0)
    assert told(path) == [(0, 0, 3, 1_000)]


def test_another_run_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_run(made(), path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="describes"):
        save_run(made(1), path)
    for wrong in (-1, 1_001):
        with pytest.raises(ConfigError, match="1,000"):
            save_run(made(), path, position=wrong)
    with pytest.raises(ConfigError, match=r"step.*-1.*>= 0"):
        save_run(made(), path, position=0, step=-1)
    assert path.read_bytes() == before
    with pytest.raises(OutputError):
        save_run(made(), tmp_path / "missing" / "run.json")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    blend = Blend({"a": runs_made.Numbers(10), "b": runs_made.Sharded([20])}, weights={"a": 1, "b": 3})
    save_run(Run(blend, global_batch_size=8), path)
    good = json.loads(path.read_text())

    def refused(named: str, *keys: Any, value: Any) -> None:
        content = json.loads(json.dumps(good))
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        path.write_text(json.dumps(content))
        if keys[0] not in ("kind", "version"):
            with pytest.raises(StateError, match="content"):
                read_run_file(path)
        # Whoever changes the digest, too, is still found out.
        path.write_text(json.dumps(content | {"digest": run_file._digest(content)}))
        with pytest.raises(StateError, match=named):
            [run.run() for run in read_run_file(path).runs]

    refused("saved", "kind", value="other")
    refused("version.*2", "version", value=2)
    refused("damaged", "runs", 0, "length", value="long")
    refused("damaged", "runs", value=[])
    refused("damaged", "runs", value=[good["runs"][0]] * 2)
    refused("damaged", "runs", 0, "order", "kind", value="wild")
    refused("version", "runs", 0, "format", value={"order": 0})
    refused("blend.*hashes", "runs", 0, "data", "options", "weights", "a", value=2)
    refused("damaged.*kind.*wild", "runs", 0, "data", "kind", value="wild")
    refused("damaged.*number", "runs", 0, "data", "options", value={"weights": {}, "unit": "ells"})
    refused("dataset.*hashes", "runs", 0, "sources", 0, "recipe", value={})
    refused("damaged.*pieces", "runs", 0, "batch", value={})
    refused("source.*7", "runs", 0, "data", "children", "a", value=7)
    refused("source.*-1", "runs", 0, "data", "children", "a", value=-1)
    refused("shards", "runs", 0, "sources", 1, "shards", value="10xx")
    refused("damaged.*shards", "runs", 0, "sources", 1, "shards", value="19")
    for text in ("{", "[]", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(StateError, match="damaged"):
            read_run_file(path)
    with pytest.raises(StateError, match="cannot"):
        read_run_file(tmp_path / "missing.json")


class OfTheUser(Blend):
    def node(self, path: str = "") -> Any:
        return super().node(path)


@pytest.mark.parametrize("kind", [OfTheUser, Mix])
def test_a_mix_without_a_recipe_is_refused(kind: type[Mix], tmp_path: Path) -> None:
    """A class of the user's that makes a tree of its own would come back as another one."""
    mix: Any = OfTheUser({"a": runs_made.Numbers(10)}, weights={"a": 1})
    mix.kind = mix.kind if kind is OfTheUser else Mix.kind
    with pytest.raises(ConfigError, match=r"OfTheUser.*recipe"):
        save_run(Run(mix, global_batch_size=8), tmp_path / "run.json")


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    run = Run(runs_made.Tree(Leaf("a", 30)), global_batch_size=4)
    for length in (255, 300):
        with pytest.raises(OutputError, match="long"):
            save_run(run, tmp_path / ("a" * length), position=0)
