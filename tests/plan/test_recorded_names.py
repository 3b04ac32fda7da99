"""Recipes know classes and functions of ours by ids that hold wherever these are defined."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import headrace.encoders
import headrace.samples.media
from headrace.compat.energon.wrappers import FunctionEncoder
from headrace.datasets.recipes import named_thing
from headrace.plan.recipe import recorded_name

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
