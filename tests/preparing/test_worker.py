"""The worker's side, in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.serving import Failed, Parent
from headrace.errors import InputError, WorkerError
from headrace.preparing import TextOptions
from headrace.preparing.backends import Choice
from headrace.preparing.messages import HashTask, TextTask
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.sources import RecordSpec, SourceFile, Span, Task, find_inputs
from headrace.preparing.tokenizer import load_tokenizer
from headrace.preparing.worker import TextWorker


def make_worker(kit: Any, folder: Path, files: list[SourceFile], **changes: Any) -> TextWorker:
    loaded = load_tokenizer(kit.tokenizer)
    plan = RunPlan(
        files=tuple(files),
        options=TextOptions(),
        tokenizer=msgspec.structs.replace(loaded, vocab_size=changes.pop("vocab_size", kit.vocab_size)),
        eod=None,
        bos=None,
        choice=Choice(name="tokenizers", version="", reasons={}),
        task_bytes=1 << 20,
    )
    setup = plan.setup(parts=str(folder), tokenizer=str(kit.tokenizer), backend="tokenizers")
    setup = msgspec.structs.replace(setup, **{"parent": os.getppid(), **changes})
    ours, theirs = Pipe()
    theirs.close()
    return TextWorker(Parent(ours, setup.parent), setup)


@pytest.fixture
def files(corpus: Path) -> list[SourceFile]:
    return find_inputs([corpus], spec=RecordSpec())


def text_task(files: list[SourceFile], number: int = 0) -> TextTask:
    return TextTask(Task(number, (Span(0, 0, files[0].size_bytes),)), (files[0],))


def test_a_worker_whose_parent_is_gone_gives_up_within_a_block(
    kit: Any, files: list[SourceFile], tmp_path: Path
) -> None:
    worker = make_worker(kit, tmp_path, files, parent=-1)
    for each in (text_task(files), HashTask(0, files[0])):
        with pytest.raises(SystemExit):
            worker.handle(each)


def test_a_tokeniser_that_contradicts_itself(kit: Any, files: list[SourceFile], tmp_path: Path) -> None:
    reply = make_worker(kit, tmp_path, files, vocab_size=300).handle(text_task(files))
    assert isinstance(reply, Failed)
    assert isinstance(reply.error(), InputError)
    assert "its vocabulary has 300 tokens: this tokenizer.json contradicts itself" in reply.message


def test_what_nobody_foresaw_is_told_with_its_traceback(
    kit: Any, files: list[SourceFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("headrace.preparing.worker.open_span", fail)
    reply = make_worker(kit, tmp_path, files).handle(text_task(files, 7))
    assert isinstance(reply, Failed)
    assert reply.task_index == 7
    assert isinstance(reply.error(), WorkerError)
    assert "ZeroDivisionError: unforeseen" in reply.message


@pytest.mark.parametrize("module", ["worker", "api", "jobs"])
def test_runs_over_text_load_nothing_of_samples(module: str) -> None:
    names = "[name for name in sys.modules if name.startswith('headrace.samples')]"
    script = f"import sys; import headrace.preparing.{module}; print({names})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
