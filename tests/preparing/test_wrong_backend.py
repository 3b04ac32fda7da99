"""A fast tokeniser that is wrong now and then: caught, and nothing from that task on is of it."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import faults
import headrace
from counts import cases
from headrace.preparing import OutputOptions, PrepareOptions, RecordOptions, TokenOptions, api as text, documents
from headrace.preparing.backends import libraries, proof
from headrace.preparing.sources import RecordSpec, find_inputs, plan_tasks
from headrace.samples.tokenizer import TokenizerFile
from wrong_tokeniser import FOR_WORKERS, MISTAKE, NAME, Wrong

PROOF = PrepareOptions(tokens=TokenOptions(backend=NAME, append_eod=True), task_bytes=6000)
CASES = {
    "plain": PROOF,
    "shards": PrepareOptions(tokens=PROOF.tokens, task_bytes=6000, output=OutputOptions(shard_tokens=9000)),
    "keyed, no duplicates": PrepareOptions(
        tokens=PROOF.tokens,
        task_bytes=6000,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=5000),
    ),
}


@pytest.fixture(autouse=True)
def wrong_backend(small_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patched here and in the tests is undone before the small run is."""
    monkeypatch.setitem(libraries.CANDIDATES, NAME, Wrong)
    monkeypatch.setattr(documents, "SAMPLE_ONE_IN", 8)


@pytest.fixture
def corpus(kit: Any, tmp_path: Path) -> Path:
    """One document in twenty is affected; the sample takes one in eight."""
    texts = [f"document {number}: " + f"word{number % 7} " * (number % 40) for number in range(600)]
    texts = [text + MISTAKE if number % 20 == 13 else text for number, text in enumerate(texts)]
    (tmp_path / "in").mkdir()
    kit.write(tmp_path / "in/a.jsonl", ({"id": f"d{number}", "text": text} for number, text in enumerate(texts)))
    return tmp_path / "in"


def encoded(kit: Any, corpus: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(kit.tokenizer))
    texts = [json.loads(line)["text"] for line in (corpus / "a.jsonl").read_text().splitlines()]
    return [[*tokenizer.encode(text, add_special_tokens=False).ids, kit.eod] for text in texts]


@pytest.mark.sampled(1)
def test_nothing_from_the_task_on_is_of_the_wrong_tokeniser(kit: Any, corpus: Path, tmp_path: Path) -> None:
    notices: list[str] = []
    manifest = kit.prepare([corpus], tmp_path / "out", options=PROOF, on_notice=notices.append)
    (notice,) = notices
    assert notice.startswith(f"{NAME} differs from tokenizers on this text, so tokenizers encodes everything that is n")
    assert manifest.backend.name == NAME
    found = re.fullmatch(rf"task (\d+): {NAME} differs from tokenizers: .*", manifest.backend.from_task_by)
    task = int(found.group(1))
    assert task > 0
    tasks = plan_tasks(find_inputs([corpus], spec=RecordSpec()), task_bytes=6000, max_spans=9)
    data = (corpus / "a.jsonl").read_bytes()
    begin = data[: max(tasks[task].spans[0].begin - 1, 0)].count(b"\n") + (task > 0)
    wanted = encoded(kit, corpus)
    with headrace.open(tmp_path / "out") as store:
        is_right = [store.document(number).tolist() == ids for number, ids in enumerate(wanted)]
    assert all(is_right[begin:])
    assert {number for number in range(begin) if not is_right[number]} == set(range(13, begin, 20))
    assert 0 < manifest.backend.proved["sampled_documents"] <= begin


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_the_same_bytes_after_any_kill_and_for_any_number_of_workers(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    output = tmp_path / "out"
    # The probe takes a second each time.
    choice = proof.choose_backend(TokenizerFile(kit.tokenizer.read_bytes()), wanted=NAME, special="literal")
    assert choice[0].name == NAME
    monkeypatch.setattr(text, "choose_backend", lambda *args, **kwargs: choice)

    def action(workers: int) -> object:
        return faults.prepare(corpus, output, kit.tokenizer, CASES[case], workers=workers)

    moments = len(faults.list_changes(lambda: action(1)))
    wanted = faults.content(output)
    assert json.loads(wanted["headrace.json"])["backend"]["from_task_by"].startswith("task ")
    for workers in (2, 4):
        shutil.rmtree(output)
        action(workers)
        assert faults.content(output) == wanted
    for moment in random.Random(case).sample(range(moments - 20), cases(3, 100)):
        shutil.rmtree(output)
        assert not faults.run_killed(lambda: action(2), moment)
        action(3)
        assert faults.content(output) == wanted, moment


def test_in_processes_of_their_own(kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults.prepare(corpus, tmp_path / "wanted", kit.tokenizer, PROOF, workers=1)
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text(FOR_WORKERS)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    with faults.real_workers():
        faults.prepare(corpus, tmp_path / "out", kit.tokenizer, PROOF, workers=2)
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "wanted")


def test_found_among_the_first_documents(kit: Any, corpus: Path, tmp_path: Path) -> None:
    """Nothing has been written then: the whole run is of the reference tokeniser."""
    lines = (corpus / "a.jsonl").read_text().splitlines()
    (corpus / "a.jsonl").write_text("\n".join(lines[11:]))
    notices: list[str] = []
    manifest = kit.prepare([corpus], tmp_path / "out", options=PROOF, on_notice=notices.append)
    assert notices == []
    assert (manifest.backend.name, manifest.backend.from_task_by) == ("tokenizers", "")
    assert manifest.backend.why[NAME].startswith("differs on text 3 of the first 5 of the run: ")
    with headrace.open(tmp_path / "out") as store:
        assert [store.document(row).tolist() for row in range(store.num_documents)] == encoded(kit, corpus)
