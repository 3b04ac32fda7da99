"""Journals that loaders of framed runs write, and what a step was fed by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import framed_made
import media_texts
from headrace import ConfigError, Loader, Run, StateError
from headrace.cli import main
from headrace.datasets import FramedRun
from headrace.loader import Ranks, Reading, merge_state_dicts
from headrace.tracing import Sources, Topology, TracedUnit, framed_history, read_run_file, save_run

STEPS = 9
FORK = {"start_method": "fork", "pin_memory": False}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("journals")
    return [media_texts.shards(root / "one", (20, 17)), media_texts.shards(root / "two", (30,))]


def fed(run: FramedRun, folder: Path, *, world_size: int = 2, **options: Any) -> list[Path]:
    """The journals of the ranks of a run that has gone through some steps."""
    for rank in range(world_size):
        where = {"ranks": Ranks(rank, world_size), "journal": folder / "{rank}.bin"}
        loader = Loader(run, micro_batch_size=1, **where, **options)
        list(islice(loader, STEPS * 4 // world_size))
        loader.close()
    return sorted(folder.glob("*.bin"))


def outputs(unit: Any) -> list[tuple[int, int]]:
    """(number, output) of all that is in a unit, as the encoders of `framed_made` write it."""
    if isinstance(unit, list):
        return [(one["number"], one["output"]) for one in unit]
    return unit.get("numbers") or [(unit["number"], unit["output"])]


@pytest.mark.parametrize("kind", framed_made.KINDS)
def test_a_step_is_what_was_fed(kind: str, places: list[Path], tmp_path: Path) -> None:
    run = framed_made.framed_run(kind, places)
    journals = fed(run, tmp_path, world_size=1 if kind == "groups" else 2)
    save_run(run, tmp_path / "run.json")
    looked = Sources(read_run_file(tmp_path / "run.json")).framed(0, list(map(str, journals)))
    for step in (0, 3, STEPS - 1):
        units = framed_history(run, journals).step(step)
        assert [one.unit for one in units] == list(range(4 * step, 4 * step + 4))
        for one, made in zip(units, run.units(step), strict=True):
            assert one.is_exact
            assert [sample.output for sample in one.samples] == [output for _, output in outputs(made)]
            for sample, (number, _) in zip(one.samples, outputs(made), strict=True):
                # What cannot be made has another one in its place.
                assert number == int(sample.origins[0].key or "") or int(sample.origins[0].key or "") % 9 == 4
        for one, all_of_it in zip(units, looked.step(step), strict=True):
            # Without the encoder: a frame and its carry, among which they are.
            assert not all_of_it.is_exact
            assert (all_of_it.unit, all_of_it.frame) == (one.unit, one.frame)
            may_be = {(sample.source, sample.epoch, sample.index, sample.position) for sample in all_of_it.samples}
            assert {(sample.source, sample.epoch, sample.index, sample.position) for sample in one.samples} <= may_be
            assert len(all_of_it.samples) <= 6 + all_of_it.num_carried
    fed_samples = [sample for unit in framed_history(run, journals).step(0) for sample in unit.samples]
    for path, index in {sample.source: sample.index for sample in fed_samples}.items():
        times = framed_history(run, journals).sample(path, index)
        vague = looked.sample(path, index)
        assert times.count == vague.count >= len(vague.shown) > 0
        within = [one for one in times.shown if one.step < STEPS]
        assert within
        for one in within:
            [unit] = [unit for unit in framed_history(run, journals).step(one.step) if unit.unit == one.unit]
            assert (one.position, one.output) in [(sample.position, sample.output) for sample in unit.samples]
            [window] = [other for other in vague.shown if other.position == one.position]
            assert window.step <= one.step <= window.last_step


def test_whoever_wrote_them(places: list[Path], tmp_path: Path) -> None:
    """Workers, other ranks after a resume, and a kill while a record was written."""
    run = framed_made.framed_run("packs", places)
    wanted: dict[int, list[TracedUnit]] = {}
    for number, options in enumerate([{}, {"reading": Reading(num_workers=2, **FORK)}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        journals = fed(run, folder, world_size=1, **options)
        wanted[number] = [unit for step in range(STEPS) for unit in framed_history(run, journals).step(step)]
    assert wanted[0] == wanted[1]
    old = tmp_path / "old-{rank}.bin"
    loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 2), journal=old) for rank in range(2)]
    for loader in loaders:
        list(islice(loader, 9))
    state = merge_state_dicts([loader.state_dict() for loader in loaders])
    torn = tmp_path / "old-0.bin"
    torn.write_bytes(torn.read_bytes()[:-5])
    alone = Loader(run, micro_batch_size=2, journal=torn)
    alone.load_state_dict(state)
    list(islice(alone, 2 * STEPS))
    journals = sorted(tmp_path.glob("old-*.bin"))
    assert [unit for step in range(STEPS) for unit in framed_history(run, journals).step(step)] == wanted[0]
    assert len(journals) == 2


def test_what_is_not_known_is_said(places: list[Path], tmp_path: Path) -> None:
    run, other = (framed_made.framed_run(kind, places) for kind in ("singles", "packs"))
    plain = Run(run.data.data, global_batch_size=4)
    journals = fed(run, tmp_path)
    text, short = tmp_path / "text.bin", tmp_path / "short.bin"
    text.write_text("a text that is longer than a head")
    two = Topology(ranks=2, micro_batch_size=1)
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: framed_history(run, journals).step(5_000), StateError, "before"),
        (lambda: framed_history(run, journals[:1]).step(0), StateError, "record"),
        (lambda: framed_history(run, [tmp_path / "none.bin"]).step(0), StateError, "cannot"),
        (lambda: framed_history(run, [text]).step(0), StateError, "journal"),
        (lambda: Loader(run, micro_batch_size=1, journal=text), ConfigError, "journal"),
        (lambda: framed_history(other, journals).step(0), StateError, "another"),
        (lambda: Loader(other, micro_batch_size=1, journal=journals[0]), ConfigError, "another"),
        (lambda: Loader(run, micro_batch_size=1, ranks=Ranks(0, 2), journal=short), ConfigError, "2.*journal"),
        (lambda: framed_history(run, journals).step(-1), ConfigError, "step.*-1"),
        (lambda: framed_history(run, journals).step(0, topology=two, rank=2), ConfigError, "rank.*2"),
        (lambda: Loader(plain, micro_batch_size=1, journal=short), ConfigError, "FramedRun"),
    ]
    for ask, error, named in refused:
        with pytest.raises(error, match=named):
            ask()
    short.write_bytes(journals[0].read_bytes()[:9])
    next(iter(Loader(run, micro_batch_size=4, journal=short)))
    assert short.read_bytes()[:16] == journals[0].read_bytes()[:16], "begun anew"


def test_lanes_that_have_ended(places: list[Path], tmp_path: Path) -> None:
    run = framed_made.framed_run("singles", places[:1], samples=40)
    loader = Loader(run, micro_batch_size=4, journal=tmp_path / "0.bin")
    last = [batch["unit_numbers"].tolist() for batch in loader][-1]
    step = max(last) // 4
    assert [one.unit for one in framed_history(run, [tmp_path / "0.bin"]).step(step)] == last
    assert framed_history(run, [tmp_path / "0.bin"]).step(step + 1) == []


def headrace(*arguments: Any) -> str:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_command(places: list[Path], tmp_path: Path) -> None:
    run = framed_made.framed_run("packs", places)
    loader = Loader(run, micro_batch_size=4, journal=tmp_path / "0.bin")
    list(islice(loader, 6))
    save_run(run, tmp_path / "run.json", position=0, step=100)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    given = ("--run", tmp_path / "run.json", "--journal", tmp_path / "0.bin")
    lines = headrace("trace", "step", 103, *given, "--ranks", "2,micro_batch_size=1").splitlines()
    assert lines[0].endswith("step 103: 4 units")
    assert lines[1].split() == ["unit", "lane", "frame", "positions", "carried", "rank", "micro-step"]
    assert lines[2].split()[:2] == ["12", "0"]
    shown = headrace("trace", "step", 103, *given, "--samples", "--state", tmp_path / "state.json")
    assert "yes" in shown
    assert ".tar" in shown
    found = json.loads(headrace("trace", "step", 103, *given, "--samples", "--json"))
    units = msgspec.convert(found["units"], list[TracedUnit])
    exact = framed_history(run, [tmp_path / "0.bin"]).step(3)
    for one, other in zip(exact, units, strict=True):
        assert {sample.position for sample in one.samples} <= {sample.position for sample in other.samples}
    times = json.loads(headrace("trace", "sample", "d0", 6, *given, "--json"))
    by_key = json.loads(headrace("trace", "sample", "d0", "0006", *given, "--json"))
    assert (by_key["shown"], by_key["count"], by_key["key"]) == (times["shown"], times["count"], "0006")
    assert times["shown"][0]["step"] >= 100
    assert "time" in headrace("trace", "sample", "d0", 6, *given, "--no-data")
    save_run(Run(run.data.data, global_batch_size=4), tmp_path / "plain.json")
    for arguments, named in [
        (("step", 3, "--run", tmp_path / "run.json"), "framed"),
        (("sample", "d0", 6, *given, "--until-step", 4), "--until-step"),
        (("step", 3, *given), "step 3"),
        (("step", 3, "--run", tmp_path / "plain.json", "--journal", tmp_path / "0.bin"), "not framed"),
    ]:
        done = CliRunner().invoke(main, ["trace", *map(str, arguments)])
        assert done.exit_code != 0
        assert named in (done.output + str(done.exception))
