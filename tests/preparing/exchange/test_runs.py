"""Planned runs whose tasks exchange documents make what local runs make, whoever does the tasks, and whoever dies."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import faults
import recipe_runs as runs
from counts import cases
from headrace.engine import executors
from headrace.engine.doing import Limits
from headrace.engine.executors import take_part
from headrace.engine.job import Show
from headrace.engine.serving import Done
from headrace.engine.work_folder import ClaimedFolder
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    RecipeOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    open_job,
    plan_recipe,
    plan_text,
    prepare_text,
)
from headrace.preparing.backends import MismatchError
from headrace.preparing.exchange import buckets, duplicates
from headrace.preparing.messages import Order, TextTask
from headrace.preparing.output_folder import WORK_NAME, load_state
from headrace.preparing.worker import TextWork, TextWorker
from headrace.samples.recipe import parse_recipe
from headrace.stores import load_manifest
from jobs_by_hand import do_some, finish, small_jobs


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Several ranges and buckets, and several blocks of pieces, of inputs of some kB."""
    with small_jobs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 5000)
        patch.setattr("headrace.preparing.run_plan.DEALT_BYTES", 1000)
        patch.setattr(duplicates, "BLOCK_PIECES", 4)
        yield


def write_texts(folder: Path, chance: random.Random) -> None:
    """Files of records, most of whose texts come several times; some lines are blank, and some are no records."""
    folder.mkdir()
    texts = [
        " ".join(chance.choices(("the", "mill", "wheel", "runs", "漢字"), k=chance.randrange(40))) for _ in range(60)
    ]
    for number in range(chance.randint(1, 4)):
        lines = []
        for line in range(chance.randrange(120)):
            record = {"id": f"{number}-{line}", "title": chance.choice(texts[:3]), "text": chance.choice(texts)}
            lines.append(chance.choices((json.dumps(record), "", '{"text": '), (40, 1, 1))[0])
        (folder / f"{number}.jsonl").write_text(
            "\n".join([*lines, json.dumps({"id": "", "title": "", "text": "end"}), ""])
        )


def random_options(chance: random.Random) -> TextOptions:
    return TextOptions(
        tokens=TokenOptions(append_eod=True, backend="tokenizers"),
        records=RecordOptions(
            fields=chance.choice([("text",), ("title", "text")]), id_field=chance.choice([None, "id"])
        ),
        filters=FilterSpec(min_chars=chance.choice([0, 9])),
        deduplicate=chance.random() < 0.8,
        output=OutputOptions(
            shuffle=chance.choice([None, 1, 2]),
            shard_tokens=chance.choice([500, 100_000]),
            format=chance.choice(["indexed", "keyed"]),
        ),
        errors=ErrorOptions(on_error="skip"),
        task_bytes=chance.randint(800, 8000),
        workers=chance.randint(1, 3),
    )


def do_unluckily(output: Path, chance: random.Random) -> None:
    """Processes do tasks, or try to finish, in any order; some die. One that has no misfortune finishes."""
    for _ in range(chance.randint(0, 6)):
        seed, most = chance.randrange(1 << 30), chance.choice([3, None])

        def act(seed: int = seed, most: int | None = most) -> None:
            do_some(output, seed=seed, most=most)

        moment = chance.choice([chance.randrange(300), 1 << 30])
        faults.run_killed(chance.choice([act, act, lambda: finish(output)]), moment)
    finish(output)


def test_texts_as_in_a_local_run(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=cases(5, 150))
    @given(seed=st.integers(0, 1 << 32))
    def prepared(seed: int) -> None:
        chance = random.Random(seed)
        folder = tmp_path_factory.mktemp("texts")
        write_texts(folder / "in", chance)
        options = random_options(chance)
        prepare_text([folder / "in"], folder / "local", tokenizer=kit.tokenizer, options=options)
        plan_text([folder / "in"], folder / "out", tokenizer=kit.tokenizer, options=options)
        do_unluckily(folder / "out", chance)
        assert faults.content(folder / "out") == faults.content(folder / "local")

    prepared()


RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a limit": (
        runs.SFT + "mask: {unstable: last_turn}\nfilters: {max_records: 33, min_tokens: 20}\n"
        "output: {position_ids: continuous, shard_tokens: 900}\n",
        {"deduplicate": True, "shuffle": 4},
    ),
    "domains": (
        runs.SFT + "mask: {unstable: split}\n"
        "output: {format: keyed, domain_key: source, position_ids: continuous, shard_tokens: 2500}\n",
        {"deduplicate": True, "shuffle": 1, "id_field": "id"},
    ),
    "domains in the order of the input": (
        runs.SFT + "mask: {unstable: split}\noutput: {domain_key: source, shard_tokens: 1500}\n",
        {"deduplicate": True},
    ),
    "a limit, all that is kept": (
        runs.SFT + "mask: {unstable: split}\nfilters: {max_records: 40}\noutput: {domain_key: source}\n",
        {"shuffle": 9},
    ),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes_as_in_a_local_run(case: str, tmp_path: Path) -> None:
    text, options = RECIPES[case]
    options = {"task_bytes": 4000, "workers": 1, "backend": "tokenizers", **options}
    runs.make_model(tmp_path / "model", runs.THINKING)
    runs.write_lines(tmp_path / "data" / "a.jsonl", runs.conversations(70))
    runs.write_lines(tmp_path / "data" / "b.jsonl", runs.conversations(40))
    runs.prepare(text, tmp_path, tmp_path / "local", **options)
    for seed in range(cases(2, 40)):
        output = tmp_path / f"{seed}"
        recipe = parse_recipe(runs.in_folder(text, tmp_path))
        plan_recipe(recipe, output, options=RecipeOptions(**options))
        do_unluckily(output, random.Random(seed))
        assert faults.content(output) == faults.content(tmp_path / "local")
    dropped = load_manifest(tmp_path / "local").ledger.documents.dropped
    assert dropped.keys() >= {"duplicate"} or not options.get("deduplicate")


BOTH = TextOptions(
    tokens=TokenOptions(append_eod=True, backend="tokenizers"),
    deduplicate=True,
    output=OutputOptions(shuffle=3),
    errors=ErrorOptions(on_error="skip"),
    task_bytes=3000,
    workers=1,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    faults.write_inputs(folder / "in", with_bad=True)
    return folder / "in"


@pytest.fixture(scope="module")
def wanted(kit: Any, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("wanted") / "out"
    prepare_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH)
    return faults.content(output)


def planned(kit: Any, inputs: Path, output: Path, until: str, **changes: Any) -> Path:
    """A planned run whose tasks are done up to the phase of this name."""
    plan_text([inputs], output, tokenizer=kit.tokenizer, options=msgspec.structs.replace(BOTH, **changes))
    while (phase := open_job(output).phase()) is not None and not phase.name.startswith(until):
        do_some(output)
        open_job(output).advance(phase, Show())
    return output


def counted(action: Callable[[], object]) -> Counter[str]:
    """How many bytes the largest task of each kind loads; and ``in order``, what is read of pieces to commit them."""
    most: Counter[str] = Counter()
    loaded = 0
    handle, read_piece = TextWorker.handle, faults.run.read_piece

    def reading(read: Callable[[Path, int], Any]) -> Callable[[Path, int], Any]:
        def read_counted(path: Path, part: int) -> Any:
            nonlocal loaded
            data = read(path, part)
            loaded += data.size
            return data

        return read_counted

    def handled(worker: TextWorker, order: Order) -> Any:
        nonlocal loaded
        loaded = 0
        reply = handle(worker, order)
        kind = type(order).__name__
        most[kind] = max(most[kind], loaded)
        return reply

    def committed(path: Path) -> Any:
        piece = read_piece(path)
        most["in order"] += piece.size_bytes
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextWorker, "handle", handled)
        patch.setattr(faults.run, "read_piece", committed)
        for module in (buckets, duplicates):
            patch.setattr(module, "read_part", reading(module.read_part))
        action()
    return most


def test_what_a_task_loads_does_not_grow_with_the_input(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the input makes more buckets and ranges, not larger ones; nobody reads the documents in between."""
    monkeypatch.setattr("headrace.preparing.run_plan.DEALT_BYTES", 4000)
    monkeypatch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 20_000)
    chance = random.Random(1)
    words = [f"w{number}" for number in range(500)]
    found: list[Counter[str]] = []
    for size in (150, 1500):
        lines = [json.dumps({"text": " ".join(chance.choices(words, k=30))}) for _ in range(size)]
        file, output = tmp_path / f"{size}.jsonl", tmp_path / f"{size}"
        file.write_text("\n".join([*lines, *lines[: size // 3], ""]))

        def do(file: Path = file, output: Path = output) -> None:
            planned(kit, file, output, "sort", task_bytes=10_000)
            do_some(output)

        most = counted(do)
        finish(output)
        assert most["in order"] < (output / "text_document.bin").stat().st_size / 2
        found.append(most)
    small, large = found
    assert small["SortTask"] > 0 < small["FindTask"]
    assert large["SortTask"] < 2 * small["SortTask"]
    assert large["FindTask"] < 3 * small["FindTask"]


def test_phases_and_what_each_leaves(kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    output = planned(kit, inputs, tmp_path / "out", "sort")
    state = load_state(output / WORK_NAME)
    assert state is not None
    assert (state.exchanges, state.is_found, state.seen) == (True, True, 0)
    assert len(state.dealt) > 5
    phase = open_job(output).phase()
    assert phase is not None
    assert phase.num_tasks == state.num_buckets > 4
    assert sorted(path.name.split("-")[1] for path in (output / WORK_NAME).glob("phase-*")) == ["duplicates", "encode"]
    assert not list((output / WORK_NAME).rglob("*.bucket"))
    finish(output)
    assert faults.content(output) == wanted


def test_processes_take_part_in_all_phases(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One numbers the documents, another one waits for it; one that a scheduler will end leaves that to others."""
    output = planned(kit, inputs, tmp_path / "out", "encode")
    take_part(open_job(output), Limits(end_s=time.time() + 3600), Show(), workers=1)
    over = open_job(output).phase()
    assert over is not None
    assert over.name.startswith("duplicates"), "others have to begin with the sorting"
    waited = []
    claimed = ClaimedFolder(output / WORK_NAME, "busy")
    claimed.claim()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        claimed.leave(lambda: None)

    monkeypatch.setattr(executors, "time", SimpleNamespace(sleep=wait))
    assert take_part(open_job(output), Limits(), Show(), workers=1) > 4
    assert waited == [executors.REFRESH_S]
    assert open_job(output).phase() is None
    finish(output)
    assert faults.content(output) == wanted


@pytest.mark.parametrize("until", ["encode", "duplicates", "sort"])
def test_a_local_run_goes_on_with_a_planned_one(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, until: str
) -> None:
    output = planned(kit, inputs, tmp_path / "out", until)
    do_some(output, most=4)
    faults.run_killed(lambda: prepare_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH), 200)
    prepare_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH)
    assert faults.content(output) == wanted


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_local_run_that_was_killed_goes_on_as_a_planned_one(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, share: float
) -> None:
    def local(output: Path) -> Callable[[], object]:
        return lambda: prepare_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH)

    moments = len(faults.list_changes(local(tmp_path / "count")))
    output = tmp_path / "out"
    faults.run_killed(local(output), int(share * moments))
    plan_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH)
    do_some(output, most=5)
    finish(output)
    assert faults.content(output) == wanted


def test_a_bad_record_and_then_a_plan_that_skips_it(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    output, stops = tmp_path / "out", msgspec.structs.replace(BOTH, errors=ErrorOptions())
    local = faults.error_of(lambda: prepare_text([inputs], tmp_path / "local", tokenizer=kit.tokenizer, options=stops))
    plan_text([inputs], output, tokenizer=kit.tokenizer, options=stops)
    # The local run has written nothing; tasks of the plan are done, and their work is kept.
    kept = str(local).replace("Nothing was written", f"What is done so far is kept in {output}/.headrace")
    assert str(faults.error_of(lambda: finish(output))) == kept != str(local)
    plan_text([inputs], output, tokenizer=kit.tokenizer, options=BOTH)
    finish(output)
    assert faults.content(output) == wanted


@pytest.mark.parametrize("lost", ["*.0.piece", "*.0.parts"])
def test_pieces_and_parts_that_are_lost_are_made_again(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, lost: str
) -> None:
    output = planned(kit, inputs, tmp_path / "out", "duplicates")
    do_some(output)
    for path in sorted(output.glob(f"{WORK_NAME}/phase-*/*/{lost}"))[::3]:
        path.unlink()
    faults.run_killed(lambda: finish(output), 120)
    finish(output)
    assert faults.content(output) == wanted


def test_sorted_pieces_that_are_lost_are_made_again(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    output = planned(kit, inputs, tmp_path / "out", "sort")
    do_some(output)
    for path in sorted(output.glob(f"{WORK_NAME}/phase-sort*/*/*.piece"))[::3]:
        path.unlink()
    finish(output)
    assert faults.content(output) == wanted


def test_a_library_that_proves_wrong_in_a_task(kit: Any, inputs: Path, tmp_path: Path) -> None:
    """What tasks before it have written is used to the end."""
    tokens = TokenOptions(append_eod=True, backend="fastokens")
    options = msgspec.structs.replace(BOTH, tokens=tokens)
    run = TextWork.run

    def wrong(work: TextWork, order: TextTask) -> Done:
        if order.task.number >= 5 and work._setup.encoding.backend == "fastokens":
            raise MismatchError(0, "other ids")
        return run(work, order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextWork, "run", wrong)
        prepare_text([inputs], tmp_path / "local", tokenizer=kit.tokenizer, options=options)
        output = planned(kit, inputs, tmp_path / "out", "sort", tokens=tokens)
        names = [path.name for path in (output / WORK_NAME).glob("phase-encode-*")]
        assert sorted(name.rpartition("-")[2] for name in names) == ["fastokens", "tokenizers"]
        state = load_state(output / WORK_NAME)
        assert state is not None
        assert len({Path(dealt.path).parts[0] for dealt in state.dealt}) == 2
        finish(output)
    assert faults.content(output) == faults.content(tmp_path / "local")
