"""The state is small, versioned, and refuses what does not belong to it, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import StateError
from headrace.plan import BatchSchedule, Cursor, RunRecipe


def recipe(**changes: Any) -> RunRecipe:
    parts = {
        "format": {"order": 1},
        "dataset": {"web": {"store": "ab", "window_tokens": 8}},
        "blend": {"path": "", "shares": [1, 2]},
        "order": {"kind": "full", "seed": 7},
        "batch": {"pieces": [[0, 4]]},
    }
    return RunRecipe(**{**parts, **changes})


SCHEDULE = BatchSchedule.of(4)


def cursor(position: int = 10) -> Cursor:
    return Cursor(recipe=recipe().hashes(), step=position // 4, position=position)


def test_round_trip_is_small_and_json_safe() -> None:
    state = cursor(2**62 - 1).to_dict()
    text = json.dumps(state)
    assert len(text) < 1024
    again = Cursor.from_dict(json.loads(text))
    assert again == cursor(2**62 - 1)
    again.verified(recipe(), SCHEDULE, None, saved=None)


def test_recipe_round_trip_and_digest() -> None:
    assert RunRecipe.from_json(recipe().to_json()) == recipe()
    assert len(recipe().digest()) == 32
    assert recipe().digest() != recipe(order={"kind": "full", "seed": 8}).digest()
    with pytest.raises(StateError, match="recipe"):
        RunRecipe.from_json(b"{}")
    with pytest.raises(StateError, match="recipe"):
        RunRecipe.from_json(b"\xff\xfe")


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("order", {"kind": "full", "seed": 8}, r"order\.seed.*8.*7"),
        ("dataset", {"web": {"store": "cd", "window_tokens": 8}}, r'dataset\.web\.store.*"cd".*"ab"'),
        ("dataset", {}, r"dataset\.web.*absent"),
        ("blend", {"path": "", "shares": [1, 3]}, r"blend.*1.*66\.67.*75"),
        ("blend", {"path": "", "shares": [1, 2, 3]}, r"blend\.shares.*\[1,2,3\].*\[1,2\]"),
        ("batch", {"pieces": [[0, 8]]}, r"batch\.pieces\[0\]\[1\].*8.*4"),
    ],
)
def test_a_mismatch_names_the_field(part: str, value: dict[str, Any], named: str) -> None:
    changed = recipe(**{part: value})
    with pytest.raises(StateError, match=named):
        cursor().verified(changed, SCHEDULE, None, saved=recipe())
    with pytest.raises(StateError, match=rf"{part}"):
        cursor().verified(changed, SCHEDULE, None, saved=None)


def test_a_recipe_of_another_state_is_refused() -> None:
    with pytest.raises(StateError, match="belong"):
        cursor().verified(recipe(), SCHEDULE, None, saved=recipe(order={}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "other"}, "loader"),
        ({"version": 3}, "version.*3.*1.*2"),
        ({"version": None}, "version.*None"),
        ({"position": "7"}, "damaged.*position"),
        ({"surplus": 1}, "damaged.*surplus"),
        ({"\ud800": 1}, "damaged.*surrogates"),
        ({"recipe": {}}, "hashes"),
        ({"lanes": [7]}, "damaged.*lanes"),
        ({"step": 3}, "step.*3.*10.*2"),
        ({"position": 99, "step": 24}, "99.*50"),
        ({"position": -1}, "-1"),
    ],
)
def test_what_is_no_state_of_this_run_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(StateError, match=named):
        Cursor.from_dict({**cursor().to_dict(), **change}).verified(recipe(), SCHEDULE, 50, saved=None)


@pytest.mark.parametrize("junk", [None, 5, "x", b"x", [], [{"kind": "headrace.cursor"}]])
def test_what_is_no_dict_is_no_state(junk: Any) -> None:
    with pytest.raises(StateError, match=rf"{type(junk).__name__}"):
        Cursor.from_dict(junk)
    with pytest.raises(StateError, match=r"\['1'.*'x'"):
        Cursor.from_dict({1: 2, "x": 3})  # type: ignore[dict-item]


def test_a_position_below_0_is_outside_an_endless_run() -> None:
    state = {**cursor().to_dict(), "position": -1}
    with pytest.raises(StateError, match=r"-1.*positions.*0"):
        Cursor.from_dict(state).verified(recipe(), SCHEDULE, None, saved=None)


@pytest.mark.parametrize("name", ["kind", "version", "recipe", "step", "position"])
def test_a_missing_field_is_refused(name: str) -> None:
    state = cursor().to_dict()
    del state[name]
    with pytest.raises(StateError):
        Cursor.from_dict(state)
