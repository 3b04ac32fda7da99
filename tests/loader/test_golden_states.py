"""States and files of runs that version 0.1 wrote: they load, and go on with the same samples, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import states_made
from headrace import ConfigError, Run
from headrace.loader import Ranks, Reading
from headrace.tracing import read_run_file, run_file
from states_made import EDITED, KINDS, NOT_MADE, Case, coming, digest, file_name, golden, loader_of, samples_of

GOLDEN = Path(__file__).parents[1] / "golden" / "states"
ALL = KINDS | EDITED


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


def undated(file: dict[str, Any]) -> dict[str, Any]:
    """The file of a run without the dates of its edits, and its digest."""
    for run in file["runs"]:
        for edit in run["edits"]:
            del edit["date"]
    return {name: value for name, value in file.items() if name != "digest"}


def written(kind: str) -> str:
    """Write the stored file of a run into the current folder, in which its data are. Returns its name."""
    content = {**stored(kind)["run"], "folder": str(Path.cwd())}
    Path("run.json").write_text(json.dumps({**content, "digest": run_file._digest(content)}))
    return "run.json"


def case_of(kind: str) -> Case:
    """The run in the stored file; that of today if a file does not tell all of it."""
    case = ALL[kind]()
    if any(kind.startswith(name) for name in NOT_MADE):
        return case
    return case._replace(run=Run.load(written(kind), trust_code=True))


def test_there_is_a_file_of_each_kind() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(map(file_name, ALL))


@pytest.mark.parametrize("kind", ALL)
def test_a_run_of_today_is_that_of_then(kind: str) -> None:
    before, today = stored(kind), golden(ALL[kind]())
    for one in (before, today):
        one["run"] = undated(one["run"])
    for part in ("run", "first", "state", "samples", "next"):
        assert today[part] == before[part], f"{kind}: {part}"


OTHER_SEEDS = """
import json, random, sys
import numpy, torch
from states_made import EDITED, KINDS, golden

random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
for kind in sys.argv[1:]:
    print(json.dumps(golden((KINDS | EDITED)[kind]())))
"""


def test_no_seed_of_a_process_changes_what_is_fed() -> None:
    """Those of Python's hashes and of all three generators; each fourth kind, in one process."""
    kinds = list(ALL)[::4]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_SEEDS, *kinds],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    for kind, line in zip(kinds, done.stdout.splitlines(), strict=True):
        before, found = stored(kind), json.loads(line)
        for part in ("first", "state", "samples", "next"):
            assert found[part] == before[part], f"{kind}: {part}"


@pytest.mark.parametrize("kind", ALL)
def test_a_file_and_a_state_of_then_go_on(kind: str) -> None:
    before, case = stored(kind), case_of(kind)
    # Hooks that draw random numbers do so in threads no more than in the goldens.
    draws = kind.startswith(("framed", "measured"))
    loader = loader_of(case, reading=Reading(num_threads=0 if draws else 1))
    loader.load_state_dict(before["state"])
    found = [[*one] for one in coming(loader)]
    loader.close()
    assert found == before["next"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("framed")])
def test_a_file_of_then_says_what_came(kind: str) -> None:
    before = stored(kind)
    (saved,) = read_run_file(written(kind)).runs
    assert samples_of(saved.run().plan, before["state"]["position"]) == before["samples"]


@pytest.mark.parametrize("kind", ALL)
def test_ids_of_32_bits_are_the_same_numbers(kind: str) -> None:
    case = ALL[kind]()
    if not isinstance(case.run, Run) or case.run.traits.is_ragged or "input_ids" not in case.run.fields:
        with pytest.raises(ConfigError, match="ids is 'int32'"):
            loader_of(case, ids="int32")
        return
    readings = [Reading(num_threads=0), Reading()] + [Reading(num_workers=1)] * (kind in ("windows", "packs, best_fit"))
    for reading in readings:
        narrow, wide = loader_of(case, reading=reading, ids="int32"), loader_of(case)
        for found, wanted in zip(islice(narrow, 6), islice(wide, 6), strict=True):
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                is_narrow = name in ("input_ids", "labels")
                assert not is_narrow or (found[name].dtype, value.dtype) == (torch.int32, torch.int64)
                assert digest(found[name].long() if is_narrow else found[name]) == digest(value), name
        narrow.close()


OTHER_RANKS = [
    (kind, world_size)
    for kind in ("windows", "packs, best_fit_split", "blend", "supervised", "megatron", "media", "measured")
    for world_size in (2, 4)
] + [(kind, 4) for kind in EDITED]


@pytest.mark.parametrize(("kind", "world_size"), OTHER_RANKS)
def test_a_state_of_then_goes_on_with_other_ranks(kind: str, world_size: int) -> None:
    """Every step has the same positions, whoever takes them."""
    before = stored(kind)
    case = case_of(kind) if kind in EDITED else KINDS[kind]()
    found: list[int] = []
    for rank in range(world_size):
        loader = loader_of(case, ranks=Ranks(rank, world_size))
        loader.load_state_dict(before["state"])
        found += [one for positions, _ in coming(loader, states_made.NUM_SAMPLES // world_size) for one in positions]
        loader.close()
    expected = sorted(position for positions, _ in before["next"] for position in positions)
    # Ranks of an edited run, whose steps are not all of one size, do not end together.
    count = 48 if kind in EDITED else None
    assert sorted(found)[:count] == expected[:count]
