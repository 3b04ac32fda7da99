"""Records that end each worker that comes to them: found, left out and named, or the end of the run.

Most workers are inside this process, and "end" by a SystemExit of their encoder; one test has real ones.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import faults
import recipe_runs
from counts import cases
from headrace.engine import doing
from headrace.engine.poison import Ended
from headrace.engine.serving import Reply
from headrace.errors import InputError, WorkerError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    TokenOptions,
    plan,
    run_plan,
)
from headrace.preparing.documents import BlockEncoder
from headrace.preparing.ledger import BAD, ENDED_WORKER
from headrace.preparing.record_encoder import RecordEncoder
from headrace.preparing.run_plan import Order
from headrace.preparing.sources import reader
from headrace.stores import load_manifest
from jobs_by_hand import do_some, finish, small_jobs

POISON = "Hemlock"
HOW = "was ended by signal 11 (Segmentation fault)"
MESSAGE = f"the worker {HOW}. It was the 3rd worker that ended at this record"
REASONS = ("headrace.json", "provenance/provenance.json", "provenance/skipped.npy")
TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
SKIP = ErrorOptions(on_error="skip")
CASES = {
    "plain": PrepareOptions(tokens=TOKENS, task_bytes=3000, errors=SKIP),
    "no duplicates, ids": PrepareOptions(
        tokens=TOKENS,
        task_bytes=20_000,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(shard_tokens=4000),
        errors=SKIP,
    ),
}


class MortalWorkers(faults.InlineWorkers):
    """Workers that end where a real one would."""

    num_deaths = 0

    def _do(self, order: Order) -> None:
        reply: Reply | None = None
        with contextlib.suppress(SystemExit):
            reply = self._worker.handle(order)
        self._said.put((reply, True))  # type: ignore[arg-type]

    def bury(self, worker: int) -> Ended:
        MortalWorkers.num_deaths += 1
        return Ended(f"worker {worker + 1}", HOW)


@contextlib.contextmanager
def mortal() -> Iterator[None]:
    """Small parts; a worker ends if a text that it encodes holds the poison, alone or among others."""

    def or_die(encode: Any) -> Any:
        def encode_or_die(self: object, block: Any, file: int) -> Any:
            if POISON in str(block.texts) or POISON in str(block.records):
                raise SystemExit
            return encode(self, block, file)

        return encode_or_die

    with small_jobs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(doing, "WorkerProcesses", MortalWorkers)
        for encoder in (BlockEncoder, RecordEncoder):
            patch.setattr(encoder, "encode", or_die(encoder.encode))
        patch.setattr(MortalWorkers, "num_deaths", 0)
        yield


def write(folder: Path, poison: set[int], *, by_hand: bool = False) -> Path:
    """Files of 300 records in all, some of them bad; those that are poison are malformed if they are skipped by hand.

    A record that is skipped by hand has the same number of bytes, so that all others have the same places.
    """
    chance = random.Random(5)
    lines = []
    for number in range(300):
        words = " ".join(chance.choice(["one", "two", "three", "four", "five"]) for _ in range(chance.randrange(20)))
        line = json.dumps({"id": f"d{number}", "text": f"{words} {POISON}" if number in poison else words})
        if number % 97 == 50 or (by_hand and number in poison):
            line = "[" + line[1:]
        lines.append("" if number % 60 == 59 and number not in poison else line)
    folder.mkdir()
    for name, (first, end) in {"a": (0, 150), "b": (150, 160), "c": (160, 165), "d": (165, 300)}.items():
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines[first:end]))
    return folder


def stored(output: Path) -> dict[str, bytes]:
    """All files but those that say why a record is left out."""
    return {name: data for name, data in faults.content(output).items() if name not in REASONS}


def test_the_bytes_are_those_without_the_poison(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=cases(4, 150))
    @given(
        poison=st.sets(st.integers(0, 299).filter(lambda number: number % 97 != 50), max_size=6),
        workers=st.integers(1, 3),
        name=st.sampled_from(sorted(CASES)),
        seed=st.integers(0, 1 << 32),
    )
    def prepared(poison: set[int], workers: int, name: str, seed: int) -> None:
        folder, chance = tmp_path_factory.mktemp("poison"), random.Random(seed)
        options = msgspec.structs.replace(CASES[name], workers=workers)
        plain = write(folder / "plain", poison, by_hand=True)
        poisoned = write(folder / "poisoned", poison)
        with faults.small_run():
            wanted = kit.prepare([plain], folder / "wanted", options=options)
        with mortal():
            made = kit.prepare([poisoned], folder / "local", options=options)
            assert MortalWorkers.num_deaths <= 3 * len(poison) + 3 * len(poison)
            plan([poisoned], folder / "job", tokenizer=kit.tokenizer, options=options)
            for turn in range(chance.randint(0, 3)):  # some of these processes are killed on the way
                most = chance.randint(1, 9)
                moment = chance.choice([chance.randrange(150), 1 << 30])
                faults.run_killed(
                    lambda turn=turn, most=most: do_some(folder / "job", seed=turn, most=most),  # type: ignore[misc]
                    moment,
                )
            finish(folder / "job")
        assert stored(folder / "local") == stored(folder / "wanted")
        assert faults.content(folder / "job") == faults.content(folder / "local")

        found, before = made.ledger.documents.dropped, wanted.ledger.documents.dropped
        assert found.get(ENDED_WORKER, 0) == len(poison)
        assert found.get(BAD, 0) + len(poison) == before.get(BAD, 0)
        assert [(Path(error.file).name, error.line) for error in made.errors] == [
            (Path(error.file).name, error.line) for error in wanted.errors
        ]
        assert sum(error.message == MESSAGE for error in made.errors) == len(poison)

    prepared()


def test_a_run_that_is_killed_in_the_middle_of_a_search(kit: Any, tmp_path: Path) -> None:
    options = msgspec.structs.replace(CASES["plain"], workers=1, task_bytes=9000)
    inputs = write(tmp_path / "in", {3, 130, 131, 200})

    def prepare(output: Path) -> None:
        kit.prepare([inputs], output, options=options)

    with mortal():
        changes = len(faults.list_changes(lambda: prepare(tmp_path / "wanted")))
        for moment in random.Random(1).sample(range(changes), cases(4, changes)):
            output = tmp_path / f"{moment}"
            faults.run_killed(lambda output=output: prepare(output), moment)  # type: ignore[misc]
            prepare(output)
            assert faults.content(output) == faults.content(tmp_path / "wanted")


@pytest.mark.parametrize("workers", [1, 3])
def test_the_run_stops_at_the_first_that_is_found(kit: Any, tmp_path: Path, workers: int) -> None:
    """Local runs and jobs say the same, and a run that skips such records goes on with what is done.

    One worker comes to the first one first; of several, any of them may come to one.
    """
    found = "21" if workers == 1 else "(21|141)"
    options = PrepareOptions(tokens=TOKENS, task_bytes=4000, workers=workers)
    inputs = write(tmp_path / "in", {20, 21, 22, 140})
    with mortal():
        local = faults.error_of(lambda: kit.prepare([inputs], tmp_path / "out", options=options))
        assert isinstance(local, WorkerError)
        said = rf"{re.escape(str(inputs))}/a\.jsonl, line {found}: {re.escape(MESSAGE)}\. "
        assert re.match(f"{said}Nothing was written", str(local))
        assert not (tmp_path / "out").exists()
        plan([inputs], tmp_path / "job", tokenizer=kit.tokenizer, options=options)
        told = faults.error_of(lambda: do_some(tmp_path / "job", wanted=[0]))
        assert isinstance(told, InputError)
        kept = f"What is done so far is kept in {tmp_path}/job/.headrace"
        assert re.match(
            f"{said}{re.escape(kept)}".replace(found, "21"), str(faults.error_of(lambda: finish(tmp_path / "job")))
        )
        skips = msgspec.structs.replace(options, errors=SKIP)
        kit.prepare([inputs], tmp_path / "out", options=skips)
    assert len(load_manifest(tmp_path / "out").errors) == 4 + 3


def test_a_bad_record_before_the_poison_comes_first(kit: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", {51})
    with mortal():
        error = faults.error_of(lambda: kit.prepare([inputs], tmp_path / "out", tokens=TOKENS, workers=1))
    assert "line 51: malformed JSON" in str(error)


def test_more_than_are_allowed(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more are searched for than fail the run in any case."""
    inputs = write(tmp_path / "in", set(range(300)))
    few = PrepareOptions(tokens=TOKENS, workers=1, errors=ErrorOptions(on_error="skip", max_errors=4))
    with mortal():
        error = faults.error_of(lambda: kit.prepare([inputs], tmp_path / "few", options=few))
        assert "line 5: " in str(error)
        assert "It is one of more than 4 bad records, which is what max_errors allows" in str(error)
        assert MortalWorkers.num_deaths == 3 + 5 * 3
    monkeypatch.setattr(run_plan, "MAX_POISON", 7)
    share = msgspec.structs.replace(few, errors=ErrorOptions(on_error="skip", max_errors=0.99))
    with mortal():
        error = faults.error_of(lambda: kit.prepare([inputs], tmp_path / "share", options=share))
        assert f"line 7: {MESSAGE}. So did 7 records of this task, and no more of them are searched for." in str(error)
        assert MortalWorkers.num_deaths == 3 + 7 * 3


def test_a_reader_that_ends_workers_is_told_with_its_range(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write(tmp_path / "in", set())

    def die(*arguments: object, **options: object) -> None:
        raise SystemExit

    with mortal():
        monkeypatch.setattr(reader, "go_to_first_line", die)
        error = faults.error_of(
            lambda: kit.prepare([inputs], tmp_path / "out", tokens=TOKENS, task_bytes=4000, workers=1, errors=SKIP)
        )
    assert isinstance(error, WorkerError)
    assert "a.jsonl, bytes 0 to " in str(error)
    assert "No record is to blame: it was reading the file." in str(error)


def test_records_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores have the same bytes, and the ledger balances, although a record becomes several samples."""
    monkeypatch.chdir(tmp_path)
    recipe_runs.make_model(tmp_path / "model", recipe_runs.THINKING)
    recipe = (
        recipe_runs.SFT.replace("data", "data.jsonl")
        + "mask: {unstable: split}\nerrors: {on_error: skip}\noutput: {domain_key: source}\n"
    )
    for name in ("poisoned", "plain"):
        records: list[Any] = recipe_runs.conversations(60)
        lines = [json.dumps(record) + "\n" for record in records]
        for number in (7, 8, 51):
            lines[number] = lines[number].replace("A", POISON) if name == "poisoned" else "[" + lines[number][1:]
        Path("data.jsonl").write_text("".join(lines))
        with mortal():
            recipe_runs.prepare(recipe, tmp_path, Path(name), task_bytes=3000, workers=2)
    assert stored(Path("poisoned")) == stored(Path("plain"))
    manifest = load_manifest("poisoned")
    assert manifest.ledger.documents.dropped[ENDED_WORKER] == 3
    assert [error.line for error in manifest.errors] == [8, 9, 52]


def test_real_workers(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "filter_that_exits.py").write_text(
        f"import os\n\ndef keep(record):\n    if {POISON!r} in record['text']:\n        os._exit(3)\n    return True\n"
    )
    write(tmp_path / "in", {200})
    options = PrepareOptions(
        tokens=TOKENS, workers=1, errors=SKIP, filters=FilterSpec(function="filter_that_exits:keep")
    )
    manifest = kit.prepare(["in/d.jsonl"], "out", options=options)
    assert [(error.line, error.message) for error in manifest.errors if "worker" in error.message] == [
        (36, "the worker ended with exit status 3. It was the 3rd worker that ended at this record")
    ]
