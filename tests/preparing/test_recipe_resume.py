"""Runs of recipes that are ended at any moment, and continued, end in the bytes of one that was not."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import faults
import headrace
import recipe_runs as runs
from counts import cases
from headrace.errors import HeadraceError, StoreError

BROKEN = {5: "{", 30: '{"messages": []}', 31: '{"messages": 3}', 77: "[]"}
SKIP = "errors: {on_error: skip}\n"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "conversations that are split, by domain": (
        runs.SFT + "mask: {unstable: split}\noutput: {domain_key: source, shard_tokens: 1500}\n",
        {"id_field": "id"},
    ),
    "conversations without duplicates, a limit, bad records": (
        runs.SFT_SAID + SKIP + "mask: {unstable: last_turn}\nfilters: {max_records: 33, min_tokens: 20}\n"
        "output: {position_ids: continuous, shard_tokens: 900}\n",
        {"deduplicate": True},
    ),
    "conversations by domain, keyed, positions through the shard": (
        runs.SFT + "mask: {unstable: last_turn}\n"
        "output: {format: keyed, domain_key: source, position_ids: continuous, shard_tokens: 2500}\n",
        {"id_field": "id"},
    ),
    "conversations in HDF5, by domain, without duplicates": (
        runs.SFT + "mask: {unstable: split}\noutput: {format: hdf5, domain_key: source, shard_tokens: 2500}\n",
        {"deduplicate": True},
    ),
    "conversations in JSON lines, by domain": (
        runs.SFT + "mask: {unstable: split}\noutput: {format: jsonl, domain_key: source, shard_tokens: 2500}\n",
        {"id_field": "id"},
    ),
}


class Runs:
    """The inputs, and what an undisturbed run makes of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted: dict[str, dict[str, bytes]] = {}
        for name, broken in (("good", {}), ("bad", BROKEN)):
            records: list[Any] = runs.conversations(110)
            for number, line in broken.items():
                records[number] = line
            (folder / name).mkdir()
            runs.make_model(folder / name / "model", runs.THINKING)
            runs.write_lines(folder / name / "data" / "a.jsonl", records[:60])
            runs.write_lines(folder / name / "data" / "b.jsonl", [*records[60:90], ""])
            runs.write_lines(folder / name / "data" / "c.jsonl", records[90:])

    def action(self, case: str, output: Path, workers: int, **changes: Any) -> Callable[[], object]:
        recipe, options = CASES[case]
        folder = self._folder / ("bad" if SKIP in recipe else "good")
        options = {"task_bytes": 4000, **options, "workers": workers, **changes}
        return lambda: runs.prepare(recipe, folder, output, **options)

    def wanted(self, case: str) -> dict[str, bytes]:
        if case not in self._wanted:
            output = self._folder / f"wanted {len(self._wanted)}"
            self.action(case, output, 2)()
            self._wanted[case] = faults.content(output)
        return self._wanted[case]


@pytest.fixture(scope="module", autouse=True)
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_another_number_of_workers(made: Runs, tmp_path: Path, case: str) -> None:
    made.action(case, tmp_path / "out", 3)()
    wanted = made.wanted(case)
    assert faults.content(tmp_path / "out") == wanted
    manifest = json.loads(wanted["headrace.json"])
    assert len(manifest["outputs"]) > 3
    dropped = manifest["ledger"]["documents"]["dropped"]
    assert ("duplicate" in dropped) == CASES[case][1].get("deduplicate", False)
    assert (dropped.get("bad") == len(BROKEN)) == (SKIP in CASES[case][0])
    assert ("max_records" in dropped) == ("max_records" in CASES[case][0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_change_on_disk(made: Runs, tmp_path: Path, case: str) -> None:
    wanted, output = made.wanted(case), tmp_path / "out"
    moments = len(faults.list_changes(made.action(case, tmp_path / "count", 2)))
    assert faults.content(tmp_path / "count") == wanted
    chance = random.Random(case)
    late = range(moments * 3 // 4, moments)
    few = cases(1, 80)
    for moment in sorted(chance.sample(range(moments), few) + chance.sample(late, few)):
        workers = 1 + moment % 3
        is_done = faults.run_killed(made.action(case, output, workers), moment)
        check_nothing_opens(output)
        if not is_done:
            made.action(case, output, faults.ANOTHER_NUMBER[workers])()
        assert faults.content(output) == wanted, f"killed before change {moment:,} of {moments:,}"
        shutil.rmtree(output)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again(made: Runs, tmp_path: Path, case: str) -> None:
    wanted, output = made.wanted(case), tmp_path / "out"
    chance = random.Random(case)
    for life in itertools.count():
        action = made.action(case, output, chance.choice([1, 2, 4]))
        if faults.run_killed(action, chance.randint(60, 160 + 80 * life)):
            break
        check_nothing_opens(output)
    assert life > 1
    assert faults.content(output) == wanted


@pytest.mark.soak
def test_an_overwrite_leaves_nothing_of_other_domains(made: Runs, tmp_path: Path) -> None:
    first, second, *_ = CASES
    output = tmp_path / "out"
    made.action(first, output, 2)()
    moments = len(faults.list_changes(made.action(second, output, 2, overwrite=True)))
    assert faults.content(output) == made.wanted(second)
    assert not [path for path in output.iterdir() if path.is_dir() and path.name != "provenance"]
    for moment in random.Random(2).sample(range(moments - 60, moments), cases(1, 60)):
        shutil.rmtree(output)
        made.action(first, output, 2)()
        faults.run_killed(made.action(second, output, 2, overwrite=True), moment)
        made.action(second, output, 1, overwrite=True)()
        assert faults.content(output) == made.wanted(second), moment


def check_nothing_opens(output: Path) -> None:
    """Unless all is there: the kill came at the very end. So it is for each domain."""
    for folder in [output, *(path for path in output.glob("*") if path.name not in ("provenance", faults.WORK_NAME))]:
        if not (folder / "headrace.json").exists():
            if folder == output:
                with pytest.raises(StoreError):
                    headrace.open(output)
            continue
        try:
            headrace.open(folder).close()
        except HeadraceError:
            continue
        for shard in json.loads((folder / "headrace.json").read_bytes())["outputs"]:
            place = folder / shard["prefix"] if shard["format"] == "keyed" else (folder / shard["prefix"]).parent
            for file in shard["files"]:
                assert (place / file["name"]).stat().st_size == file["size"]
