"""Edits of a run in its file: what the training then loads, and what is refused, with nothing changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace
import states_made
from headrace import ConfigError, Exclude, Order, Run, StateError
from headrace.cli import main
from headrace.datasets.exclusions import range_numbers
from headrace.tracing import edit_run_file, read_run_file, run_file, save_run, skip_in_run_file
from states_made import blend, run_of, windows


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begun(**options: Any) -> Run:
    return run_of(blend(), **{"samples": None, **options})


def fed(run: Run, steps: range) -> list[str]:
    return [states_made.digest(run.step(step)) for step in steps]


def command(*arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["run", *map(str, arguments)])
    return done.exit_code, done.output


WEIGHTS = {"a": 1, "bb": 1, "ccc": 2}


def test_a_training_takes_up_what_was_edited() -> None:
    run = begun()
    save_run(run, "run.json", position=24)
    edit_run_file("run.json", 5, weights=WEIGHTS, kind="blocks", global_batch_size=12, reason="decay mix")
    skip_in_run_file("run.json", range(8, 10), then="defer", reason="spike")
    made = Run.load("run.json")
    order = msgspec.structs.replace(run.order, kind="blocks")
    wanted = run.edit(5, weights=WEIGHTS, order=order, global_batch_size=12).skip(range(8, 10), then="defer")
    assert fed(made, range(20)) == fed(wanted, range(20))
    assert (made.generation, [edit.reason for edit in made.edits]) == (3, ["decay mix", "spike"])
    loader = headrace.Loader(made, micro_batch_size=2, position=24)
    assert loader.step == 3
    save_run(made, "run.json", position=24)
    assert read_run_file("run.json").generation == 3, "nothing was changed"
    save_run(made, "run.json", position=40)
    assert (read_run_file("run.json").generation, read_run_file("run.json").reached) == (3, 40)
    (saved,) = read_run_file("run.json").runs
    assert (saved.first_step, len(saved.edits)) == (3, 2)


def test_what_is_past_cannot_be_edited() -> None:
    save_run(begun(), "run.json", position=0)
    save_run(begun(), "run.json", position=84)
    before = Path("run.json").read_bytes()
    for edit, named in [
        (lambda: edit_run_file("run.json", 10, weights=WEIGHTS, reason="late"), "10.*position.*84"),
        (lambda: skip_in_run_file("run.json", range(3, 20), reason="late"), "3.*past"),
        (lambda: edit_run_file("run.json", 11, weights={"a": 1}), r"\['bb'.*'ccc'"),
        (lambda: skip_in_run_file("run.json", range(20, 20)), "least"),
    ]:
        with pytest.raises(ConfigError, match=named):
            edit()
    assert Path("run.json").read_bytes() == before
    edit_run_file("run.json", 11, weights=WEIGHTS, dry_run=True)
    assert Path("run.json").read_bytes() == before
    edit_run_file("run.json", 11, weights=WEIGHTS)
    assert read_run_file("run.json").generation == 2


def test_steps_are_those_of_the_training() -> None:
    save_run(begun(), "run.json", position=0, step=100)
    edit_run_file("run.json", 105, weights=WEIGHTS)
    assert [edit.at_step for edit in Run.load("run.json").edits] == [5]
    code, said = command("show", "run.json")
    assert code == 0
    assert "step 105, 20" in said


def test_of_two_writers_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    save_run(begun(), "run.json", position=0)
    first = read_run_file("run.json")
    edit_run_file("run.json", 5, weights=WEIGHTS)
    now = Path("run.json").read_bytes()
    changed = msgspec.structs.replace(first, generation=2, reached=8)
    with pytest.raises(StateError, match=r"generation.*2.*1"):
        run_file.write_run_file("run.json", changed, before=first)
    with pytest.raises(StateError, match="there"):
        run_file.write_run_file("run.json", changed, before=None)
    assert Path("run.json").read_bytes() == now


def test_edits_are_not_lost_by_a_training_that_builds_its_run() -> None:
    save_run(begun(), "run.json", position=0)
    edit_run_file("run.json", 5, weights=WEIGHTS, reason="decay mix")
    before = Path("run.json").read_bytes()
    with pytest.raises(ConfigError, match=r"5.*Run.load"):
        save_run(begun(), "run.json", position=16)
    assert Path("run.json").read_bytes() == before
    same = begun().edit(5, weights=WEIGHTS, reason="other words")
    save_run(same, "run.json", position=16)
    save_run(same.edit(9, order=Order(seed=9)), "run.json", position=24)
    (saved,) = read_run_file("run.json").runs
    assert [edit.at_step for edit in saved.edits] == [5, 9]
    assert saved.first_step == 0


def test_what_was_fed_stays_in_the_file() -> None:
    """A run whose edit lies before the position feeds on from there; what was fed before was the run without it."""
    save_run(begun(), "run.json", position=0)
    save_run(begun().edit(5, weights=WEIGHTS), "run.json", position=80)
    first, second = read_run_file("run.json").runs
    assert (first.first_step, len(first.edits)) == (0, 0)
    assert (second.first_step, len(second.edits)) == (10, 1)


def test_commands() -> None:
    save_run(begun(), "run.json", position=16)
    assert command("log", "run.json") == (0, "run.json: no edits\n")
    before = Path("run.json").read_bytes()
    mix = ("--weights", "a=1,bb=1/2,ccc=0.5", "--reason", "why")
    code, said = command("edit", "run.json", "--at-step", 4, *mix, "--dry-run")
    assert code == 0, said
    lines = said.splitlines()
    assert "    bb 30 % -> 25 %" in lines
    assert [line.split()[0] for line in lines[9:12]] == ["4", "5", "6"], "the steps behind the edit"
    assert [line.split()[0] for line in lines[14:]] == ["source", "a", "bb", "ccc"], "the account before it"
    assert Path("run.json").read_bytes() == before
    code, said = command("edit", "run.json", "--at-step", 4, "--remove", "bb", "--global-batch-size", 16,
                         "--samples", 400, "--seed", 7, "--reason", "why", "--json")  # fmt: skip
    assert code == 0, said
    told = json.loads(said)
    assert (told["written"], told["generation"], told["num_samples"]) == (True, 2, 400)
    assert told["edit"]["asked"] == ["remove", "global_batch_size", "order", "samples"]
    assert told["edit"]["changes"][:3] == ["a 50 % -> 71.43 %", "bb 30 % -> removed", "ccc 20 % -> 28.57 %"]
    assert told["steps"][0]["before"].keys() == {"a", "bb", "ccc"}
    assert sum(told["steps"][0]["after"].values()) == 16
    code, said = command("skip", "run.json", "6:8", "--how", "defer", "--reason", "spike")
    assert code == 0, said
    made = Run.load("run.json")
    assert [(edit.at_step, edit.skip_steps, edit.then) for edit in made.edits] == [(4, 0, "drop"), (6, 2, "defer")]
    code, said = command("show", "run.json")
    for named in ("a 71.43 %, ccc 28.57 %", "16 samples from step 4", "full, seed 7", "position 16"):
        assert named in said
    code, said = command("log", "run.json", "--json")
    assert [edit["at_step"] for edit in json.loads(said)["edits"]] == [4, 6]
    before = Path("run.json").read_bytes()
    shorter = ("edit", "run.json", "--at-step", 5, "--samples", 300, "--reason", "shorter")
    for options in ((), ("--replace", "step")):
        assert command(*shorter, *options)[0] == 2
    assert Path("run.json").read_bytes() == before
    code, said = command(*shorter, "--replace", "later")
    assert (code, "undone  step 6" in said) == (0, True)
    assert [edit.at_step for edit in Run.load("run.json").edits] == [4, 5]


def test_a_mistaken_edit_is_undone_or_replaced() -> None:
    run = run_of(blend())
    save_run(run, "run.json", position=0)
    assert command("undo", "run.json")[0] == 2, "there is nothing to undo"
    typo = ("edit", "run.json", "--at-step", 20, "--weights", "a=1,bb=30,ccc=1", "--reason", "typo")
    right = ("edit", "run.json", "--at-step", 20, "--weights", "a=1,bb=3,ccc=1", "--reason", "right")
    assert command(*typo)[0] == 0
    code, said = command(*right)
    assert (code, "--replace step" in said) == (2, True)
    before = Path("run.json").read_bytes()
    assert command("undo", "run.json", "--dry-run")[0] == 0
    assert Path("run.json").read_bytes() == before
    code, said = command("undo", "run.json", "--json")
    told = json.loads(said)
    assert (code, told["edit"], [one["reason"] for one in told["undone"]]) == (0, None, ["typo"])
    assert told["after"] == pytest.approx({"a": 0.5, "bb": 0.3, "ccc": 0.2})
    undone = Run.load("run.json")
    assert (undone.edits, undone.generation, fed(undone, range(30))) == ((), 3, fed(run, range(30)))
    assert command(*typo)[0] == 0
    assert command("skip", "run.json", "25:27", "--reason", "spike")[0] == 0
    code, said = command(*right, "--replace", "step")
    assert (code, "would drop the later ones" in said) == (2, True), "the skip does not come back silently"
    assert command("undo", "run.json")[0] == 0
    assert command(*right, "--replace", "step")[0] == 0
    assert fed(Run.load("run.json"), range(30)) == fed(run.edit(20, weights={"a": 1, "bb": 3, "ccc": 1}), range(30))


def test_what_is_skipped_is_told() -> None:
    run = run_of(blend())
    save_run(run, "run.json", position=0)
    code, said = command("skip", "run.json", "20:23", "--reason", "spike", "--json")
    told = json.loads(said)
    fed_there = [sample.source for step in range(20, 23) for sample in headrace.tracing.trace_step(run, step)]
    assert (code, told["skipped_positions"]) == (0, [160, 184])
    assert told["skipped"] == {name: fed_there.count(name) for name in ("a", "bb", "ccc")}
    said = command("skip", "run.json", "30:33", "--reason", "spike")[1]
    assert "  skipped 24 samples, positions 240 to 263: a 1" in said, "positions behind the first skip"


def test_a_step_of_two_stages_is_counted() -> None:
    stages = [headrace.datasets.Stage(weights={"a": 1}, until=12), headrace.datasets.Stage(weights={"bb": 1})]
    data = headrace.ScheduledBlend({"a": windows("a"), "bb": windows("bb")}, stages)
    save_run(run_of(data, samples=None), "run.json", position=0)
    code, said = command("skip", "run.json", "1:3", "--reason", "spike", "--json")
    assert (code, json.loads(said)["skipped"]) == (0, {"a": 4, "bb": 12})


def test_states_that_are_given_out_are_noted(recwarn: pytest.WarningsRecorder) -> None:
    """What is past ends at the last state, from which the training goes on, and not at its last start."""
    run = begun()
    loader = headrace.Loader(run, micro_batch_size=4)
    save_run(run, "run.json", position=loader.position)
    batches = iter(loader)
    early = loader.state_dict()
    for _ in range(21):
        next(batches)
    early_bytes = Path("run.json").read_bytes()
    state = loader.state_dict()
    assert (read_run_file("run.json").reached, read_run_file("run.json").generation) == (84, 1)
    assert Path("run.json").read_bytes() != early_bytes
    code, said = command("skip", "run.json", "10:12", "--reason", "spike")
    assert (code, "position 84" in said) == (2, True)
    for name, content in (("early", early), ("state", state), ("other", {**early, "recipe": {}, "position": 8})):
        Path(f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    skip = ("skip", "run.json", "10:12", "--reason", "spike")
    assert command(*skip, "--state", "state.json")[0] == 2
    assert command(*skip, "--state", "other.json")[0] == 5
    assert command(*skip, "--state", 11)[0] == 2
    assert command(*skip, "--state", 10, "--dry-run")[0] == 0
    assert command(*skip, "--state", "early.json")[0] == 0, "the training goes back to that state"
    next(batches)
    loader.state_dict()
    assert (read_run_file("run.json").reached, len(read_run_file("run.json").runs[-1].edits)) == (88, 1)
    assert not recwarn.list
    Path("run.json").unlink()
    with pytest.warns(UserWarning, match=r"position.*88"):
        loader.state_dict()


def test_a_dry_run_shows_both_accounts() -> None:
    run = run_of(blend(), samples=400)
    save_run(run, "run.json", position=0)
    code, said = command("skip", "run.json", "10:15", "--reason", "spike", "--dry-run", "--json")
    assert code == 0, said
    accounts = json.loads(said)["accounts"]
    assert [one["at"] for one in accounts] == ["before step 10", "at the end of the run"]
    skipping = run.skip(range(10, 15))
    for told, step in zip(accounts, (10, None), strict=True):
        for name, one in (("before", run), ("after", skipping)):
            wanted = one.account(step)
            assert told[name]["step"] == wanted.step
            columns = [(source["fed"]["samples"], source["epochs"][-1]["dropped"]) for source in told[name]["sources"]]
            presents = [(source.fed.samples, source.present) for source in wanted.sources]
            assert columns == [(samples, present.dropped) for samples, present in presents]
    said = command("skip", "run.json", "10:15", "--reason", "spike", "--dry-run")[1]
    assert "0 -> 20" in said, "half of 40 samples are dropped"
    assert "account" not in command("skip", "run.json", "10:15", "--reason", "spike")[1]


def test_exclusions() -> None:
    run = begun()
    save_run(run, "run.json", position=0)
    arguments = ("edit", "run.json", "--at-step", 5, "--exclude", "a=documents:7-9,3", "--reason", "takedown")
    before = Path("run.json").read_bytes()
    code, said = command(*arguments, "--how", "drop", "--dry-run")
    assert (code, Path("run.json").read_bytes() == before) == (0, True)
    dropped = run.edit(5, exclude={"a": Exclude(documents=[3, 7, 8, 9], how="drop")})
    samples = range_numbers(dropped.edits[-1].exclude["a"].left_out)
    assert f"a: {len(samples)} samples dropped" in said
    assert "0 -> " in said.splitlines()[-3], "the samples that were still to come are excluded"
    code, said = command(*arguments, "--how", "drop")
    assert code == 0, said
    assert fed(Run.load("run.json"), range(20)) == fed(dropped, range(20))
    code, said = command("edit", "run.json", "--at-step", 9, "--exclude", "bb=samples:1,2", "--exclude", "bb=samples:0",
                         "--how", "drop", "--reason", "more")  # fmt: skip
    assert code == 0, said
    both = dropped.edit(9, exclude={"bb": Exclude(samples=[0, 1, 2], how="drop")})
    assert fed(Run.load("run.json"), range(20)) == fed(both, range(20))
    assert "bb: 3 samples dropped" in command("log", "run.json")[1]
    assert command("edit", "run.json", "--at-step", 11, "--samples", 800, "--reason", "longer")[0] == 0


AT_5 = ("edit", "run.json", "--at-step", 5, "--reason", "x")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (AT_5, 2, "changes something"),
        ((*AT_5, "--weights", "a=1,b"), 2, "--weights"),
        ((*AT_5, "--weights", "a=1,b=1/0"), 2, "--weights"),
        (("edit", "run.json", "--at-step", 5, "--samples", 8), 2, "--reason"),
        ((*AT_5, "--exclude", "a=3"), 2, "web=documents:3,7-9"),
        ((*AT_5, "--exclude", "a=documents:x"), 2, "documents:x"),
        ((*AT_5, "--exclude", "a=documents:1,9-7"), 2, "9-7"),
        ((*AT_5, "--exclude", "b=samples:3"), 2, "'b'"),
        ((*AT_5, "--how", "drop", "--samples", 8), 2, "--exclude"),
        ((*AT_5, "--order", "wild"), 2, "wild"),
        (("edit", "run.json", "--at-step", 1, "--samples", 800, "--reason", "x"), 2, "step 1"),
        (("skip", "run.json", "5-7", "--reason", "x"), 2, "5-7"),
        (("show", "none.json"), 5, "none.json"),
    ],
)
def test_what_commands_refuse(arguments: tuple[Any, ...], code: int, named: str) -> None:
    save_run(begun(), "run.json", position=16)
    before = Path("run.json").read_bytes()
    found, said = command(*arguments)
    assert (found, named in said) == (code, True), said
    assert Path("run.json").read_bytes() == before


def test_data_that_are_gone_are_not_needed() -> None:
    save_run(run_of(windows(), samples=None), "run.json", position=0)
    shutil.rmtree("data")
    assert command("edit", "run.json", "--at-step", 3, "--global-batch-size", 4, "--reason", "x")[0] == 0
    assert command("show", "run.json")[0] == 0
