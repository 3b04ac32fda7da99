"""``plan.json`` of a job: what is damaged or forged is an error of Headrace, whatever was changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.planning import JobPlace, NewPlan, load_plan
from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import OutputError
from headrace.kinds import open_job
from headrace.preparing import plan_shards

FORGED = (None, -1, "x", 2**70, [], {}, 1.5, "\ud800")


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The path of each value in JSON."""
    yield path
    if isinstance(value, dict | list):
        for at, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, *path, at)


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for at in path[:-1]:
        inner = inner[at]
    inner[path[-1]] = new
    return value


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = {"é": [1, -2.5, None, "a\nb"], "big": 2**60}
    JobPlace(tmp_path).save(NewPlan("copy", plan))
    assert json.loads(bytes(load_plan(tmp_path).plan)) == plan


def test_a_plan_in_which_anything_was_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"\xff\xd8\xff")
    plan_shards([tmp_path / "in"], tmp_path / "out")
    path = tmp_path / "out" / ".headrace" / PLAN_NAME
    plan = json.loads(path.read_text())
    num_changed = 0
    for place in places(plan["plan"], "plan"):
        for new in FORGED:
            forged = changed(plan, place, new)
            if forged != plan:
                path.write_text(json.dumps(forged))
                with pytest.raises(OutputError, match="Headrace"):
                    open_job(tmp_path / "out")
                num_changed += 1
    assert num_changed > 200
    path.write_text(json.dumps(plan))
    assert open_job(tmp_path / "out").phase() is not None


@pytest.mark.parametrize(
    ("version", "message"), [(2, "version 2; this"), (10**9, "version 1000000000"), ("3", "damaged"), (None, "damaged")]
)
def test_other_versions_of_plans(tmp_path: Path, version: Any, message: str) -> None:
    JobPlace(tmp_path).save(NewPlan("copy", {}))
    path = tmp_path / PLAN_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    with pytest.raises(OutputError, match=message):
        load_plan(tmp_path)
