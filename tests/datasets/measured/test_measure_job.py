"""Facts whose chunks are measured in any order, by several processes, with deaths in between."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jobs_by_hand
import killing
from counts import cases
from headrace.datasets import MeasuredFacts, measure
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show, save_plan
from headrace.errors import ConfigError, OutputError
from headrace.inspect.measure_job import MeasureRequest, plan_measure
from headrace.kinds import finish_job, open_job
from measured_made import Grouped, numbers, opened


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch, flawed_numbers: Path) -> Iterator[None]:
    """Workers inside this process, and the dataset at a relative path, which faults name."""
    monkeypatch.chdir(flawed_numbers.parent)
    with jobs_by_hand.inline():
        yield


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def requested(path: str, encoder: str = "measured_made:Grouped", draw: int = 3) -> MeasureRequest:
    return MeasureRequest(path=path, encoder=encoder, arguments={"draw": draw})


def finished(output: Path) -> Any:
    return finish_job(output, LocalExecutor(workers=1), Show())


def test_any_history_gives_the_bytes_of_a_local_run(flawed_numbers: Path, tmp_path: Path) -> None:
    encoder = Grouped(3)
    wanted = measure(opened(Path(flawed_numbers.name), encoder), encoder, folder=tmp_path / "local")
    for seed in range(cases(4, 200)):
        place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / f"{seed}")
        assert not place.exists()
        with contextlib.suppress(OutputError):  # the process died after the facts were complete, and the plan was gone
            jobs_by_hand.do_all(lambda place=place: open_job(place), random.Random(seed))  # type: ignore[misc]
        assert content(place) == content(wanted.path)
        assert plan_measure(requested(flawed_numbers.name), folder=tmp_path / f"{seed}") == place
        with pytest.raises(OutputError, match="nothing is planned"):
            open_job(place)


def test_finish_is_killed_at_any_change(flawed_numbers: Path, tmp_path: Path) -> None:
    encoder = Grouped(3)
    wanted = measure(opened(Path(flawed_numbers.name), encoder), encoder, folder=tmp_path / "local")
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    job = open_job(place)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    moment = 0
    while not killing.run(lambda: finished(place), moment=moment):
        moment += 1
        with contextlib.suppress(OutputError):
            open_job(place)
            continue
        break
    assert content(place) == content(wanted.path)


def test_a_chunk_that_is_lost_is_measured_again(
    flawed_numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From whatever folder: the faults name the dataset as it was planned."""
    encoder = Grouped(3)
    wanted = measure(opened(Path(flawed_numbers.name), encoder), encoder, folder=tmp_path / "local")
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    job = open_job(place)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    (chunk,) = job.receipts(phase).folder.glob("*/0-64")
    shutil.rmtree(chunk)
    monkeypatch.chdir(tmp_path)
    finished(Path("facts", place.name))
    assert content(place) == content(wanted.path)


def test_other_code_or_data_are_refused(flawed_numbers: Path, tmp_path: Path) -> None:
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    plan = tmp_path / "facts" / f".{place.name}.measuring" / "plan.json"
    kept = msgspec.json.decode(plan.read_bytes())
    for name, what in (("code", "the code of the encoder"), ("facts", "the dataset, or the encoder,")):
        save_plan(plan.parent, kept["kind"], {**kept["plan"], name: "other"}, {})
        with pytest.raises(ConfigError, match=f"{what} on host .* is not that of the plan"):
            finished(place)
    plan.write_bytes(msgspec.json.encode(kept))
    assert isinstance(finished(place), MeasuredFacts)


def test_an_empty_dataset(tmp_path: Path) -> None:
    empty = numbers(tmp_path / "empty", 1, (0,))
    place = plan_measure(requested(str(empty)), folder=tmp_path / "facts")
    assert finished(place).summary.bad_samples == 1
