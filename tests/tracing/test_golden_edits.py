"""Files and states of edited runs that an earlier version wrote: they load, and go on with the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import Run
from headrace.loader import Ranks
from headrace.tracing import run_file
from states_made import BEFORE, EDITED, Case, coming, file_name, loader_of, samples_of

GOLDEN = Path(__file__).parents[1] / "golden" / "edited_states"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, which the runs share."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def stored(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / file_name(kind)).read_text())
    return found


def loaded(kind: str) -> Run:
    """The run in the stored file, over the data here."""
    EDITED[kind]()  # which makes the data
    content = {**stored(kind)["run"], "folder": str(Path.cwd())}
    Path("run.json").write_text(json.dumps({**content, "digest": run_file._digest(content)}))
    return Run.load("run.json")


def test_there_is_a_file_of_each_kind() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(map(file_name, EDITED))


@pytest.mark.parametrize("kind", EDITED)
def test_a_run_of_today_is_that_of_then(kind: str) -> None:
    before, run = stored(kind), EDITED[kind]().run
    loader = loader_of(Case(run))
    assert loader.state_dict() == before["first"]
    for _ in coming(loader, BEFORE):
        pass
    assert loader.state_dict() == before["state"]
    assert [[*one] for one in coming(loader)] == before["next"]
    loader.close()


@pytest.mark.parametrize("kind", EDITED)
def test_a_file_and_a_state_of_then_go_on(kind: str) -> None:
    before, run = stored(kind), loaded(kind)
    assert samples_of(run.plan, before["state"]["position"]) == before["samples"]
    loader = loader_of(Case(run))
    loader.load_state_dict(before["state"])
    assert [[*one] for one in coming(loader)] == before["next"]
    loader.close()


@pytest.mark.parametrize("kind", EDITED)
def test_they_go_on_with_other_ranks(kind: str) -> None:
    before, run = stored(kind), loaded(kind)
    found: list[int] = []
    for rank in range(4):
        loader = loader_of(Case(run), ranks=Ranks(rank, 4))
        loader.load_state_dict(before["state"])
        found += [position for positions, _ in coming(loader, 16) for position in positions]
        loader.close()
    expected = sorted(position for positions, _ in before["next"] for position in positions)
    assert sorted(found)[:48] == expected[:48]
