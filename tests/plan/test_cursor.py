"""The state is small, versioned, and refuses what does not belong to it; recorded names stay."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import headrace.encoders
import headrace.samples.media
from headrace.compat.energon.wrappers import FunctionEncoder
from headrace.datasets.recipes import named_thing
from headrace.errors import StateError
from headrace.plan import BatchSchedule, Cursor, RunRecipe
from headrace.plan.recipe import recorded_name


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


GOLDEN = Path(__file__).parents[1] / "golden" / "recorded_names.json"


def recordable() -> list[Any]:
    """What a recipe may name: sample types, cookers, task encoders, and what else their packages have."""
    found: list[Any] = [FunctionEncoder]
    found += [getattr(headrace.samples.media, name) for name in headrace.samples.media.__all__]
    found += [getattr(headrace.encoders, name) for name in headrace.encoders.__all__ if name.endswith("TaskEncoder")]
    ours = [one for one in found if inspect.isclass(one) or inspect.isfunction(one)]
    return [one for one in ours if one.__module__.startswith("headrace.")]


def test_names_are_those_of_saved_runs() -> None:
    names = [recorded_name(one) for one in recordable()]
    assert len(set(names)) == len(set(recordable())), "no two have one id"
    assert set(names) == set(json.loads(GOLDEN.read_text()))


def test_an_id_leads_to_what_it_names() -> None:
    for one in recordable():
        if one is not FunctionEncoder:  # its functions are not in the file, so it is never made again
            assert named_thing(recorded_name(one)) is one


def test_ids_are_of_faces_that_stay() -> None:
    assert recorded_name(headrace.encoders.TaskEncoder) == "headrace:TaskEncoder"
    assert recorded_name(FunctionEncoder) == "headrace.compat.energon:FunctionEncoder"


class Mine:
    def __call__(self, sample: Any) -> Any:
        return sample

    def method(self, sample: Any) -> Any:
        return sample


def test_names_of_users_are_where_they_are() -> None:
    assert recorded_name(Mine) == f"{__name__}.Mine"
    assert recorded_name(Mine()) == f"{__name__}.Mine"
    assert recorded_name(Mine().method) == f"{__name__}.Mine.method"
    assert recorded_name(functools.partial(int)) == "functools.partial"
    assert recorded_name(len) == "builtins.len"
    namespace: dict[str, Any] = {}
    exec("def made(sample): return sample", namespace)
    assert recorded_name(namespace["made"]) == "None.made"
