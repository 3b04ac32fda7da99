"""The worker's side, in this process."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from headrace.prepare.inputs import find_inputs
from headrace.prepare.messages import Failed, HashTask, Setup, TextTask
from headrace.prepare.tasks import Span, Task
from headrace.prepare.worker import Worker


def make_worker(kit: Any, folder: Path, **other: Any) -> Worker:
    settings = {"parent": os.getppid(), "text_field": "text", "eod": None, "vocab_size": kit.vocab_size, **other}
    setup = Setup(parts=str(folder), tokenizer=str(kit.tokenizer), dtype="uint16", **settings)
    ours, theirs = Pipe()
    theirs.close()
    return Worker(ours, setup)


def test_a_worker_whose_parent_is_gone_gives_up_within_a_block(kit: Any, corpus: Path, tmp_path: Path) -> None:
    files = find_inputs([corpus])
    worker = make_worker(kit, tmp_path, parent=-1)
    order = TextTask(Task(0, (Span(0, 0, files[0].size_bytes),)), (files[0],))
    for each in (order, HashTask(0, files[0])):
        with pytest.raises(SystemExit):
            worker.handle(each)


def test_a_tokeniser_that_contradicts_itself(kit: Any, corpus: Path, tmp_path: Path) -> None:
    files = find_inputs([corpus])
    order = TextTask(Task(0, (Span(0, 0, files[0].size_bytes),)), (files[0],))
    reply = make_worker(kit, tmp_path, vocab_size=300).handle(order)
    assert isinstance(reply, Failed)
    assert reply.kind == "input"
    assert "its vocabulary has 300 tokens: this tokenizer.json contradicts itself" in reply.message


def test_what_nobody_foresaw_is_told_with_its_traceback(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("unforeseen")

    files = find_inputs([corpus])
    monkeypatch.setattr("headrace.prepare.text_task.read_blocks", fail)
    order = TextTask(Task(7, (Span(0, 0, files[0].size_bytes),)), (files[0],))
    reply = make_worker(kit, tmp_path).handle(order)
    assert isinstance(reply, Failed)
    assert (reply.number, reply.kind) == (7, "crash")
    assert "ZeroDivisionError: unforeseen" in reply.message
