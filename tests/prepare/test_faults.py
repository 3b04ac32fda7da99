"""Killed workers, killed runs, full disks, lost documents: an error that says so, and nothing that opens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace
from headrace.errors import HeadraceError, OutputError, StoreError, WorkerError
from headrace.prepare import TextOptions, TextProgress, prepare_text, text
from headrace.prepare.output_folder import WORK_NAME
from headrace.prepare.part import read_part
from headrace.stores import IndexedWriter

OPTIONS = TextOptions(append_eod=True, workers=2, task_bytes=50_000)
TIMEOUT_S = 60


def own_workers(pid: int | None = None) -> list[psutil.Process]:
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "headrace.prepare.worker" in " ".join(child.cmdline())]


def once(action: Callable[[], None]) -> Callable[[TextProgress], None]:
    """Acts when the run is under way."""
    done = False

    def on_progress(progress: TextProgress) -> None:
        nonlocal done
        if not done and progress.documents > 0:
            done = True
            action()

    return on_progress


def start(corpus: Path, output: Path, kit: Any) -> subprocess.Popen[bytes]:
    """The command line, in a process of its own."""
    arguments = ["prepare", str(corpus), "--output", str(output), "--tokenizer", str(kit.tokenizer), "--workers", "2"]
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_program(program: str, corpus: Path, output: Path, kit: Any) -> subprocess.CompletedProcess[str]:
    """A program that finds ``arguments`` of prepare_text and the names it may want, in a process of its own."""
    head = (
        "import os, resource, signal, sys\nfrom pathlib import Path\n"
        "from headrace.errors import OutputError\nfrom headrace.prepare import TextOptions, prepare_text\n"
        "options = TextOptions(append_eod=True, workers=2, task_bytes=200_000)\n"
        "arguments = dict(inputs=[sys.argv[1]], output=sys.argv[2], tokenizer=sys.argv[3], options=options)\n"
    )
    command = [sys.executable, "-c", head + program, str(corpus), str(output), str(kit.tokenizer)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    with process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors.decode()


def wait_for_parts(output: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        if any(output.glob(f"{WORK_NAME}/parts.*/*.part")):
            return
        time.sleep(0.002)
    raise AssertionError("the run made no parts")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed(kit: Any, corpus: Path, tmp_path: Path, number: signal.Signals) -> None:
    action = once(lambda: own_workers()[0].send_signal(number))
    wanted = (
        "was killed .SIGKILL.: most often the machine .* out of memory" if number == signal.SIGKILL else "signal 15"
    )
    with pytest.raises(WorkerError, match=wanted):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS, on_progress=action)
    assert not (tmp_path / "out").exists()
    assert own_workers() == []


def test_ctrl_c_is_not_for_workers(kit: Any, corpus: Path, tmp_path: Path) -> None:
    action = once(lambda: own_workers()[0].send_signal(signal.SIGINT))
    options = TextOptions(workers=1)
    prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=options, on_progress=action)
    assert kit.output(tmp_path / "out") == kit.plain_loop(sorted(corpus.iterdir()))


def test_workers_that_cannot_start(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.prepare.executor._COMMAND", "print('a word'); import nonsense_module")
    with pytest.raises(WorkerError, match="ended with exit status 1; its last words are above"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)
    captured = capfd.readouterr()
    assert "nonsense_module" in captured.err
    assert "a word" in captured.err
    assert captured.out == ""


def test_a_run_that_is_killed_leaves_nothing_that_opens_and_is_run_again(
    kit: Any, corpus: Path, tmp_path: Path
) -> None:
    wanted = kit.plain_loop(sorted(corpus.iterdir()), eod=kit.eod)
    output = tmp_path / "out"
    for documents in (1, 500, 2000):
        program = (
            "def die(progress):\n"
            f"    if progress.documents >= {documents}:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "prepare_text(**arguments, on_progress=die)"
        )
        assert run_program(program, corpus, output, kit).returncode == -signal.SIGKILL
        assert [path.name for path in output.iterdir()] == [WORK_NAME]
        with pytest.raises(StoreError):
            headrace.open(output)
    prepare_text([corpus], output, tokenizer=kit.tokenizer, options=OPTIONS)
    assert kit.output(output) == wanted


def test_workers_end_when_their_parent_is_killed(kit: Any, corpus: Path, tmp_path: Path) -> None:
    process = start(corpus, tmp_path / "out", kit)
    wait_for_parts(tmp_path / "out", process)
    workers = own_workers(process.pid)
    assert len(workers) == 2
    process.kill()
    finish(process)
    _, alive = psutil.wait_procs(workers, timeout=TIMEOUT_S)
    assert alive == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_cleans_up(kit: Any, corpus: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(corpus, tmp_path / "out", kit)
    wait_for_parts(tmp_path / "out", process)
    if number == signal.SIGINT:  # some schedulers send it to every process of the job
        for worker in own_workers(process.pid):
            worker.send_signal(number)
    process.send_signal(number)
    found, errors = finish(process)
    assert (found, errors) == (code, "interrupted\n" if code == 130 else "terminated\n")
    assert not (tmp_path / "out").exists()


def test_a_move_that_is_killed_is_undone(kit: Any, corpus: Path, tmp_path: Path) -> None:
    wanted = kit.plain_loop(sorted(corpus.iterdir()), eod=kit.eod)
    output = tmp_path / "out"
    for moves in range(4):
        program = (
            f"left, real_rename = {moves}, Path.rename\n"
            "def rename(self, target):\n"
            "    global left\n"
            "    if Path(target).parent.name != 'out': return real_rename(self, target)\n"
            "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    left -= 1\n"
            "    real_rename(self, target)\n"
            f"    if left == 0 and {moves} == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "Path.rename = rename\n"
            "prepare_text(**arguments)"
        )
        assert run_program(program, corpus, output, kit).returncode == -signal.SIGKILL
        if moves < 3:
            with pytest.raises(StoreError):
                headrace.open(output)
    # The last run had moved everything before it died: that is an earlier run's output, whole.
    with pytest.raises(OutputError, match="holds the output of an earlier run; --overwrite replaces it"):
        prepare_text([corpus], output, tokenizer=kit.tokenizer, options=OPTIONS)
    assert kit.output(output) == wanted


@pytest.mark.parametrize("limit_bytes", [1_000, 70_000, 400_000])
def test_a_full_disk(kit: Any, corpus: Path, tmp_path: Path, limit_bytes: int) -> None:
    """Files may not grow past a limit: the copy of the tokeniser does, the parts do, or the store alone."""
    program = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        "try: prepare_text(**arguments)\n"
        "except OutputError as error: print(error)\n"
    )
    done = run_program(program, corpus, tmp_path / "out", kit)
    assert done.returncode == 0, done.stderr
    what = {1_000: "tokenizer.json", 70_000: ".part", 400_000: "text_document.bin"}[limit_bytes]
    assert what in done.stdout
    assert "File too large" in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_at_the_very_end(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match="No space left on device"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_document_lost_on_the_way_to_the_store(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_add = IndexedWriter.add_documents

    def lose_one(self: IndexedWriter, tokens: Any, lengths: Any) -> None:
        real_add(self, tokens[: len(tokens) - lengths[-1]], lengths[:-1])

    monkeypatch.setattr(IndexedWriter, "add_documents", lose_one)
    with pytest.raises(HeadraceError, match="does not balance: documents read, and documents in the store"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)
    assert not (tmp_path / "out").exists()


def test_tokens_lost_on_the_way_to_the_store(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_a_token(*args: Any, **kwargs: Any) -> Any:
        tokens, lengths = read_part(*args, **kwargs)
        lengths[lengths.argmax()] -= 1
        return tokens[:-1], lengths

    monkeypatch.setattr(text, "read_part", lose_a_token)
    with pytest.raises(HeadraceError, match="does not balance: tokens made, and tokens in the store"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)


def test_a_task_left_out_of_the_plan(kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_plan = text.plan_tasks

    def drop_last(*args: Any, **kwargs: Any) -> Any:
        return real_plan(*args, **kwargs)[:-1]

    monkeypatch.setattr(text, "plan_tasks", drop_last)
    with pytest.raises(HeadraceError, match=r"does not balance: .*: bytes of the file, and bytes read"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_part_that_was_cut_short(kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(path: Path, *args: Any, **kwargs: Any) -> Any:
        os.truncate(path, path.stat().st_size - 2)
        return read_part(path, *args, **kwargs)

    monkeypatch.setattr(text, "read_part", cut)
    with pytest.raises(OutputError, match=r"a temporary part has .* bytes, its worker wrote"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=OPTIONS)
