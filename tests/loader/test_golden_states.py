"""States and files of runs that an earlier version wrote: they load, and go on with the same samples, byte for byte."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import states_made
from headrace.loader import Ranks, Reading
from headrace.plan.recipe import without_contents
from headrace.tracing import read_run_file
from states_made import KINDS, coming, file_name, golden, loader_of, samples_of

GOLDEN = Path(__file__).parents[1] / "golden" / "states"
ELASTIC = ("windows", "packs, best_fit_split", "blend", "supervised", "megatron", "media", "measured")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, which the kinds share."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def stored(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / file_name(kind)).read_text())
    return found


def test_there_is_a_file_of_each_kind() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(map(file_name, KINDS))


def as_version_1(file: dict[str, Any]) -> dict[str, Any]:
    """What version 1 had of a file: version 2 adds what is needed to make a run again, and edits."""
    assert file["version"] == 2
    for name in ("generation", "reached", "notes_states", "digest"):
        del file[name]
    for run in file["runs"]:
        for name in ("measured", "data", "added", "edits", "edited"):
            del run[name]
        for source in run["sources"]:
            source.pop("is_endless", None)
            source.pop("tokens", None)
            if source["store"] is not None:
                source["store"].pop("key", None)
                source["store"].pop("contents", None)
    return {**file, "version": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_today_is_that_of_then(kind: str) -> None:
    # What the contents of files add is compared by itself, since an earlier version did not see them.
    before, today = stored(kind), without_contents(golden(KINDS[kind]()))
    # Since version 2 a state of a run holds hashes of what was fed, in place of those of the whole run.
    if today["state"]["version"] == 2:
        for state in (before["first"], before["state"], today["first"], today["state"]):
            del state["version"], state["recipe"]
    today["run"] = as_version_1(today["run"])
    for part in ("run", "first", "state", "samples", "next"):
        assert today[part] == before[part], f"{kind}: {part}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_then_goes_on(kind: str) -> None:
    before = stored(kind)
    # Hooks that draw random numbers do so in threads no more than in the goldens.
    draws = kind.startswith(("framed", "measured"))
    loader = loader_of(KINDS[kind](), reading=Reading(num_threads=0 if draws else 1))
    loader.load_state_dict(before["state"])
    found = [[*one] for one in coming(loader)]
    loader.close()
    assert found == before["next"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("framed")])
def test_a_file_of_then_says_what_came(kind: str, tmp_path: Path) -> None:
    before = stored(kind)
    (tmp_path / "run.json").write_text(json.dumps(before["run"]))
    (saved,) = read_run_file(tmp_path / "run.json").runs
    assert samples_of(saved.trace().plan, before["state"]["position"]) == before["samples"]
    assert saved.hashes == without_contents(KINDS[kind]().run.recipe.hashes())


@pytest.mark.parametrize("kind", ELASTIC)
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_state_of_then_goes_on_with_other_ranks(kind: str, world_size: int) -> None:
    """Every step has the same positions, whoever takes them."""
    before = stored(kind)
    size = KINDS[kind]().run.schedule.pieces[0][1]
    given: defaultdict[int, list[int]] = defaultdict(list)
    for rank in range(world_size):
        loader = loader_of(KINDS[kind](), ranks=Ranks(rank, world_size))
        loader.load_state_dict(before["state"])
        for positions, _ in coming(loader, states_made.NUM_SAMPLES // world_size):
            for position in positions:
                given[position // size].append(position)
        loader.close()
    expected = sorted(position for positions, _ in before["next"] for position in positions)
    found = sorted(position for positions in given.values() for position in positions)
    assert found == expected
    assert np.array_equal(np.diff(sorted(given)), np.ones(len(given) - 1))
