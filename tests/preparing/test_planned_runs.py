"""Planned runs whose tasks find duplicates make what local runs make, whoever does the tasks, and whoever dies."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import faults
import recipe_runs as runs
from counts import cases
from headrace.engine.job import TaskResult
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import HeadraceError, StoreError
from headrace.io import Reader
from headrace.kinds import open_job
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    TokenOptions,
    duplicates,
    plan,
    prepare,
)
from headrace.preparing.backends import MismatchError
from headrace.preparing.run_plan import FindTask, TextTask
from headrace.preparing.worker import TextWorker
from headrace.samples.recipe import parse_recipe
from headrace.stores import load_manifest
from jobs_by_hand import do_some, finish, small_jobs


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Several ranges, and several blocks of parts, of inputs of some kB."""
    with small_jobs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 5000)
        patch.setattr(duplicates, "BLOCK_PARTS", 4)
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


def random_options(chance: random.Random) -> PrepareOptions:
    return PrepareOptions(
        tokens=TokenOptions(append_eod=True, backend="tokenizers"),
        records=RecordOptions(
            fields=chance.choice([("text",), ("title", "text")]), id_field=chance.choice([None, "id"])
        ),
        filters=FilterSpec(min_chars=chance.choice([0, 9])),
        deduplicate=chance.random() < 0.8,
        output=OutputOptions(
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
    @settings(max_examples=cases(3, 150))
    @given(seed=st.integers(0, 1 << 32))
    def prepared(seed: int) -> None:
        chance = random.Random(seed)
        folder = tmp_path_factory.mktemp("texts")
        write_texts(folder / "in", chance)
        options = random_options(chance)
        prepare([folder / "in"], folder / "local", tokenizer=kit.tokenizer, options=options)
        plan([folder / "in"], folder / "out", tokenizer=kit.tokenizer, options=options)
        do_unluckily(folder / "out", chance)
        assert faults.content(folder / "out") == faults.content(folder / "local")

    prepared()


RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a limit": (
        runs.SFT + "mask: {unstable: last_turn}\nfilters: {max_records: 33, min_tokens: 20}\n"
        "output: {position_ids: continuous, shard_tokens: 900}\n",
        {"deduplicate": True},
    ),
    "domains": (
        runs.SFT + "mask: {unstable: split}\n"
        "output: {format: keyed, domain_key: source, position_ids: continuous, shard_tokens: 2500}\n",
        {"deduplicate": True, "id_field": "id"},
    ),
    "a limit, all that is kept": (
        runs.SFT + "mask: {unstable: split}\nfilters: {max_records: 40}\noutput: {domain_key: source}\n",
        {},
    ),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes_as_in_a_local_run(case: str, tmp_path: Path) -> None:
    text, options = RECIPES[case]
    options = {"task_bytes": 4000, **options}
    runs.make_model(tmp_path / "model", runs.THINKING)
    runs.write_lines(tmp_path / "data" / "a.jsonl", runs.conversations(70))
    runs.write_lines(tmp_path / "data" / "b.jsonl", runs.conversations(40))
    runs.prepare(text, tmp_path, tmp_path / "local", **options)
    for seed in range(cases(1, 40)):
        output = tmp_path / f"{seed}"
        recipe = parse_recipe(runs.in_folder(text, tmp_path))
        plan([], output, recipe=recipe, options=runs.options_of(**options))
        do_unluckily(output, random.Random(seed))
        assert faults.content(output) == faults.content(tmp_path / "local")
    dropped = load_manifest(tmp_path / "local").ledger.documents.dropped
    assert dropped.keys() >= {"duplicate"} or not options.get("deduplicate")


UNIQUE = PrepareOptions(
    tokens=TokenOptions(append_eod=True, backend="tokenizers"),
    deduplicate=True,
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
    prepare([inputs], output, tokenizer=kit.tokenizer, options=UNIQUE)
    return faults.content(output)


def planned(kit: Any, inputs: Path, output: Path, until: str, **changes: Any) -> Path:
    """A planned run whose tasks are done up to the phase of this name; all of them, if it is empty."""
    plan([inputs], output, tokenizer=kit.tokenizer, options=msgspec.structs.replace(UNIQUE, **changes))
    while (phase := open_job(output).phase()) is not None and not (until and phase.name.startswith(until)):
        do_some(output)
    return output


def test_what_a_task_loads_does_not_grow_with_the_input(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the input makes more ranges, not larger ones."""
    monkeypatch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 20_000)
    most: list[int] = []
    find = duplicates.find_duplicates

    def counted(folder: str, hashes: Sequence[str], using: Reader, order: FindTask) -> TaskResult:
        done = find(folder, hashes, using, order)
        most[-1] = max(most[-1], done.counts["bytes"])
        return done

    monkeypatch.setattr("headrace.preparing.worker.find_duplicates", counted)
    chance = random.Random(1)
    words = [f"w{number}" for number in range(500)]
    for size in (150, 1500):
        lines = [json.dumps({"text": " ".join(chance.choices(words, k=30))}) for _ in range(size)]
        file, output = tmp_path / f"{size}.jsonl", tmp_path / f"{size}"
        file.write_text("\n".join([*lines, *lines[: size // 3], ""]))
        most.append(0)
        planned(kit, file, output, "", task_bytes=10_000)
        finish(output)
    small, large = most
    assert 0 < large < 3 * small


@pytest.mark.parametrize("until", ["encode", "duplicates", ""])
def test_a_local_run_goes_on_with_a_planned_one(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, until: str
) -> None:
    output = planned(kit, inputs, tmp_path / "out", until)
    do_some(output, most=4)
    faults.run_killed(lambda: prepare([inputs], output, tokenizer=kit.tokenizer, options=UNIQUE), 200)
    prepare([inputs], output, tokenizer=kit.tokenizer, options=UNIQUE)
    assert faults.content(output) == wanted


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_local_run_that_was_killed_goes_on_as_a_planned_one(
    kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path, share: float
) -> None:
    def local(output: Path) -> Callable[[], object]:
        return lambda: prepare([inputs], output, tokenizer=kit.tokenizer, options=UNIQUE)

    moments = len(faults.list_changes(local(tmp_path / "count")))
    output = tmp_path / "out"
    faults.run_killed(local(output), int(share * moments))
    plan([inputs], output, tokenizer=kit.tokenizer, options=UNIQUE)
    do_some(output, most=5)
    finish(output)
    assert faults.content(output) == wanted


def test_a_part_that_is_lost_is_named(kit: Any, inputs: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    """Parts were on the disk before their receipts: nobody makes one again but on request."""
    output = planned(kit, inputs, tmp_path / "out", "duplicates")
    sorted(output.glob(f"{WORK_NAME}/phase-*/*/*.part"))[2].unlink()
    with pytest.raises(StoreError, match=r"\d\.part"):
        finish(output)
    prepare([inputs], output, tokenizer=kit.tokenizer, options=msgspec.structs.replace(UNIQUE, restart=True))
    assert faults.content(output) == wanted


def test_inputs_that_changed_since_the_plan(kit: Any, tmp_path: Path) -> None:
    faults.write_inputs(tmp_path / "in", with_bad=False)
    plan([tmp_path / "in"], tmp_path / "out", tokenizer=kit.tokenizer, options=UNIQUE)
    with (tmp_path / "in" / "a.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(HeadraceError, match=r"a\.jsonl"):
        do_some(tmp_path / "out")


LINE = r"a\.jsonl, line (8|41|42|91): "
"""Where the bad records are that stop a run: any of them may be found first."""


def test_a_bad_record_is_told_of_as_by_a_local_run(kit: Any, inputs: Path, tmp_path: Path) -> None:
    """All processes stop at it and name its line, and a plan that skips it keeps what is done."""
    skips = msgspec.structs.replace(UNIQUE, deduplicate=False)
    stops = msgspec.structs.replace(skips, errors=ErrorOptions())
    output = tmp_path / "out"
    local = faults.error_of(lambda: prepare([inputs], tmp_path / "local", tokenizer=kit.tokenizer, options=stops))
    plan([inputs], output, tokenizer=kit.tokenizer, options=stops)
    for _ in range(2):  # the one that meets it, and another
        error = faults.error_of(lambda: do_some(output))
        assert re.search(rf"task \d+ failed on host .*{LINE}", str(error))
    kept = f"What is done so far is kept in {output}/.headrace"
    assert re.search(rf"{LINE}.*{kept}; correct or remove this record", str(faults.error_of(lambda: finish(output))))
    assert re.search(rf"{LINE}.*Nothing was written; correct or remove this record", str(local))
    plan([inputs], output, tokenizer=kit.tokenizer, options=skips)
    receipts = open_job(output).receipts(open_job(output).phase())  # type: ignore[arg-type]
    receipts.refresh()
    assert receipts.done, "what was done is done"
    do_some(output)
    finish(output)
    prepare([inputs], tmp_path / "skipped", tokenizer=kit.tokenizer, options=skips)
    assert faults.content(output) == faults.content(tmp_path / "skipped")


def test_a_library_that_proves_wrong_in_a_task(kit: Any, inputs: Path, tmp_path: Path) -> None:
    """What tasks before it have written is used to the end."""
    tokens = TokenOptions(append_eod=True, backend="fastokens")
    options = msgspec.structs.replace(UNIQUE, tokens=tokens)
    run = TextWorker.run

    def wrong(work: TextWorker, order: TextTask) -> TaskResult:
        if order.task.number >= 5 and work._setup.backend == "fastokens":
            raise MismatchError(0, "other ids")
        return run(work, order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextWorker, "run", wrong)
        prepare([inputs], tmp_path / "local", tokenizer=kit.tokenizer, options=options)
        output = planned(kit, inputs, tmp_path / "out", "", tokens=tokens)
        names = [path.name for path in (output / WORK_NAME).glob("phase-encode-*")]
        assert sorted(name.rpartition("-")[2] for name in names) == ["fastokens", "tokenizers"]
        finish(output)
    assert faults.content(output) == faults.content(tmp_path / "local")
    manifest = load_manifest(output)
    assert manifest.backend is not None
    assert manifest.backend.from_task_by == "task 5: other ids"
