"""States of loaders under the names of others, as version 0.1 saved them: they load, and go on the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import faces_made
from faces_made import LOADERS, batches, coming, of_loader

GOLDEN = Path(__file__).parents[2] / "golden" / "faces"
KNOWN: dict[str, Any] = json.loads((GOLDEN / "energon.json").read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, which the kinds share."""
    return tmp_path_factory.mktemp("faces")


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_every_kind_is_known() -> None:
    assert sorted(KNOWN) == sorted(LOADERS)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_of_today_is_that_of_then(kind: str) -> None:
    today = of_loader(kind)
    for part in ("config", "first", "state", "next"):
        assert today[part] == KNOWN[kind][part], f"{kind}: {part}"


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_of_then_goes_on(kind: str) -> None:
    loader = LOADERS[kind]()
    loader.restore_state_rank(KNOWN[kind]["state"])
    found = coming(batches(loader))
    loader.close()
    assert json.loads(json.dumps(found)) == KNOWN[kind]["next"]


@pytest.mark.filterwarnings("ignore:data/faces")
def test_samplers_and_items_of_astrai_are_those_of_then() -> None:
    assert faces_made.astrai() == json.loads((GOLDEN / "astrai.json").read_text())
