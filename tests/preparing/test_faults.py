"""Real processes that are killed: workers, the parent, all of them; and parts of a run that are lost on the way."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import faults
import headrace
from counts import PATIENCE_S, cases
from headrace.engine.doing import Doer
from headrace.engine.forking import ONE_THREAD
from headrace.engine.job import TaskProgress
from headrace.engine.serving import Failed, Parent
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import InputError, OutputError, StoreError, WorkerError
from headrace.preparing import FilterSpec, OutputOptions, PrepareOptions, RecordOptions, TokenOptions
from headrace.preparing.backends import Choice
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.preparing.columns import Column
from headrace.preparing.run_plan import HashTask, RunPlan, TextTask
from headrace.preparing.sources import RecordSpec, SourceFile, Span, Task, find_inputs
from headrace.preparing.worker import TextWorker

Wanted = Callable[[str], dict[str, bytes]]
TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
PLAIN = PrepareOptions(tokens=TOKENS, workers=2, task_bytes=50_000)
CASES = {
    "plain": PLAIN,
    "shards": PrepareOptions(tokens=TOKENS, workers=2, task_bytes=50_000, output=OutputOptions(shard_tokens=200_000)),
    "keyed, no duplicates": PrepareOptions(
        tokens=TOKENS,
        workers=2,
        task_bytes=50_000,
        deduplicate=True,
        records=RecordOptions(id_field="text"),
        output=OutputOptions(format="keyed", shard_tokens=200_000),
    ),
}


@pytest.fixture(scope="module")
def file(corpus: Path) -> Path:
    """1 MB of documents."""
    return corpus / "part-0.jsonl"


@pytest.fixture(scope="module")
def wanted(kit: Any, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """What an undisturbed run makes."""

    @functools.cache
    def made(case: str) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("wanted")
        kit.prepare([file], folder, options=CASES[case])
        return faults.content(folder)

    return made


def own_workers(pid: int | None = None) -> list[psutil.Process]:
    """Those of this process, or of another that has no other children."""
    children = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None or "headrace.preparing.worker" in " ".join(child.cmdline()):
                children.append(child)
    return children


def are_forks(workers: list[psutil.Process]) -> bool:
    return not any("headrace.preparing.worker" in " ".join(worker.cmdline()) for worker in workers)


def at_progress(action: Callable[[], None], *, times: int = 1) -> Callable[[TaskProgress], None]:
    """Acts when the run is under way."""
    left = times

    def on_progress(progress: TaskProgress) -> None:
        nonlocal left
        if left and progress.counts.get("documents", 0) > 0:
            left -= 1
            action()

    return on_progress


def kill_one(number: signal.Signals) -> None:
    with contextlib.suppress(IndexError, psutil.NoSuchProcess):
        random.choice(own_workers()).send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_workers_that_are_killed_are_replaced(
    kit: Any, file: Path, tmp_path: Path, wanted: Wanted, number: signal.Signals, case: str
) -> None:
    options = msgspec.structs.replace(CASES[case], workers=2 if number == signal.SIGKILL else 1)
    action = at_progress(lambda: kill_one(number), times=2)
    kit.prepare([file], tmp_path / "out", options=options, on_progress=action)
    assert faults.content(tmp_path / "out") == wanted(case)
    assert own_workers() == []


def test_a_task_that_kills_each_worker(
    kit: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run gives up and keeps what is done; the same command goes on once the cause is gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "filter_that_kills.py").write_text(
        "import os\nfrom pathlib import Path\n\n"
        "def keep(record):\n"
        f"    if not Path({str(tmp_path / 'cured')!r}).exists() and 'import getopt' in record['text']:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return True\n"
    )
    options = msgspec.structs.replace(PLAIN, filters=FilterSpec(function="filter_that_kills:keep"))
    with pytest.raises(WorkerError, match=r"SIGKILL.*3rd"):
        kit.prepare([file], "out", options=options)
    assert own_workers() == []
    with pytest.raises(StoreError):
        headrace.open("out")
    (tmp_path / "cured").touch()
    notices: list[str] = []
    kit.prepare([file], "out", options=options, on_notice=notices.append)
    kit.prepare([file], "wanted", options=options)
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "wanted")
    assert "Traceback" not in capfd.readouterr().err


def test_workers_that_cannot_start(
    kit: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_worker.py").write_text("print('a word'); import nonsense_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("headrace.preparing.text_job.TextJob.main", "broken_worker:main")
    with pytest.raises(WorkerError, match=r"1.*output"):
        kit.prepare([file], tmp_path / "out", options=PLAIN)
    captured = capfd.readouterr()
    assert "nonsense_module" in captured.err
    assert "a word" in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_not_for_workers(kit: Any, file: Path, tmp_path: Path, wanted: Wanted) -> None:
    action = at_progress(lambda: own_workers()[0].send_signal(signal.SIGINT))
    kit.prepare([file], tmp_path / "out", options=PLAIN, on_progress=action)
    assert faults.content(tmp_path / "out") == wanted("plain")


PROGRAM = """
import sys
import msgspec
from headrace.engine import processes
from headrace.preparing import PrepareOptions, prepare
processes.GROWTH_S = 1e-9  # all workers begin at once
options = msgspec.json.decode(sys.argv[4], type=PrepareOptions)
prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3], options=options)
"""


def start(
    file: Path, output: Path, kit: Any, options: PrepareOptions, *, forks: bool = False, before: str = ""
) -> subprocess.Popen[bytes]:
    """`prepare` in a process of its own, of which workers are forks or not."""
    encoded = msgspec.json.encode(options).decode()
    command = [sys.executable, "-c", before + PROGRAM, str(file), str(output), str(kit.tokenizer), encoded]
    environment = {**os.environ, **(ONE_THREAD if forks else {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def opens(output: Path) -> bool:
    try:
        headrace.open(output).close()
    except StoreError:
        return False
    return True


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """All of it, the parent first, so that it does not see its workers go."""
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_whole_tree_is_killed_at_random_moments(
    kit: Any, file: Path, tmp_path: Path, wanted: Wanted, case: str, workers: int
) -> None:
    """Again and again, and continued each time by another number of workers, until the run comes to its end."""
    chance = random.Random(f"{case} {workers}")
    for _ in range(cases(1, 12)):
        output = tmp_path / "out"
        for life in itertools.count():
            number = [workers, 3, 1][life % 3]
            options = msgspec.structs.replace(CASES[case], workers=number)
            process = start(file, output, kit, options, forks=life % 2 == 0)
            with process:
                try:
                    # Two of the lives end early.
                    process.communicate(timeout=chance.uniform(0.4, 1.0) if life < 2 else PATIENCE_S)
                except subprocess.TimeoutExpired:
                    kill_tree(process)
                    process.communicate()
            if process.returncode == 0:
                assert not (output / WORK_NAME).exists()
                break
            assert process.returncode == -signal.SIGKILL
            if opens(output):  # killed when all was done, but for the end of the process
                break
        shutil.rmtree(output / WORK_NAME, ignore_errors=True)
        assert faults.content(output) == wanted(case)
        shutil.rmtree(output)


def wait_for_parts(output: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until:
        if any(output.glob(f"{WORK_NAME}/phase-encode-*/receipts/*/*.json")):
            return
        time.sleep(0.002)
    process.kill()
    raise AssertionError(f"the run made no parts: {process.communicate()[1].decode()}")


@pytest.mark.parametrize("forks", [False, True])
def test_workers_end_when_their_parent_is_killed(kit: Any, corpus: Path, tmp_path: Path, forks: bool) -> None:
    process = start(corpus, tmp_path / "out", kit, PLAIN, forks=forks)
    wait_for_parts(tmp_path / "out", process)
    workers = own_workers(process.pid)
    assert len(workers) == 2
    assert are_forks(workers) == (forks and sys.platform == "linux")
    process.kill()
    with process:
        process.communicate(timeout=PATIENCE_S)
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert alive == []


@pytest.mark.usefixtures("small_run")
@pytest.mark.parametrize("kind", ["part", "values", "hashes", "duplicates", "order"])
@pytest.mark.parametrize("flip", [False, True])
def test_a_file_of_a_run_that_is_damaged(
    kit: Any, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, flip: bool
) -> None:
    """Between the task that writes it and the one that reads it: it is named, and nothing opens."""

    def damage() -> None:
        for path in sorted((tmp_path / "out").rglob(f"*.{kind}")):
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if flip else data[:-1])

    def damaged(phase: str) -> Any:
        def begin(doer: Doer) -> int:
            if doer._phase.name.startswith(phase):
                damage()
            return run(doer)

        return begin

    run = Doer.run
    phases = {"part": "cut", "hashes": "duplicates", "duplicates": "cut"}
    monkeypatch.setattr(Doer, "run", damaged(phases.get(kind, "join")))
    options = msgspec.structs.replace(PLAIN, deduplicate=True, task_bytes=6000)
    with pytest.raises((OutputError, StoreError), match=rf"\d+\.(\d+\.)?{kind}"):
        kit.prepare([inputs], tmp_path / "out", options=options)
    assert not opens(tmp_path / "out")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux alone")
def test_forks_that_are_killed_are_replaced(kit: Any, corpus: Path, tmp_path: Path) -> None:
    """And what they have of the run, such as its lock, is gone with it: the same command goes on at once."""
    output = tmp_path / "out"
    process = start(corpus, output, kit, PLAIN, forks=True)
    wait_for_parts(output, process)
    before = own_workers(process.pid)
    before[0].send_signal(signal.SIGSTOP)  # this one outlives the run
    before[1].kill()
    until = time.monotonic() + PATIENCE_S
    while not (after := set(own_workers(process.pid)) - set(before)) and time.monotonic() < until:
        time.sleep(0.002)
    assert len(after) == 1
    assert are_forks(list(after))
    process.kill()
    with process:
        process.communicate(timeout=PATIENCE_S)
    try:
        done = start(corpus, output, kit, PLAIN, forks=True)
        with done:
            _, errors = done.communicate(timeout=PATIENCE_S)
        assert done.returncode == 0, errors.decode()
    finally:
        # If this worker had no task when it was stopped, the first run may have come to its end, and ended it.
        with contextlib.suppress(psutil.NoSuchProcess):
            before[0].send_signal(signal.SIGCONT)
    kit.prepare([corpus], tmp_path / "wanted", options=PLAIN)
    assert faults.content(output) == faults.content(tmp_path / "wanted")


@pytest.mark.parametrize(
    ("limit_bytes", "refused"), [(1_000, "tokenizer.json"), (60_000, ".values"), (300_000, "text_document")]
)
@pytest.mark.sampled(1)
def test_files_that_may_not_grow(kit: Any, file: Path, tmp_path: Path, limit_bytes: int, refused: str) -> None:
    """A limit of the system for real processes: the tokeniser's copy is over it, the parts, or the store alone."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    options = msgspec.structs.replace(PLAIN, task_bytes=100_000)
    with start(file, tmp_path / "out", kit, options, before=limits) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert refused in errors.decode()
    assert "File too large" in errors.decode()
    if (tmp_path / "out").exists():
        assert not opens(tmp_path / "out")
    for name in ("out", "wanted"):
        kit.prepare([file], tmp_path / name, options=options)
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "wanted")


# The side of the worker, in this process.


def make_worker(kit: Any, folder: Path, files: list[SourceFile], **changes: Any) -> TextWorker:
    loaded = load_tokenizer(kit.tokenizer)
    plan = RunPlan(
        files=tuple(files),
        options=PrepareOptions(),
        tokenizer=msgspec.structs.replace(loaded.known, vocab_size=changes.pop("vocab_size", kit.vocab_size)),
        eod=None,
        bos=None,
        choice=Choice(name="tokenizers", version="", reasons={}),
        columns=(Column("text", "uint16"),),
        task_bytes=1 << 20,
    )
    setup = plan.setup(results=str(folder), tokenizer=str(kit.tokenizer), backend="tokenizers")
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
    for each in (text_task(files), HashTask(0, files[0], 1)):
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


@pytest.mark.parametrize("module", ["worker", "api", "text_job"])
def test_runs_over_text_load_nothing_of_samples_but_the_tokeniser(module: str) -> None:
    names = "[name for name in sys.modules if name.startswith('headrace.samples')]"
    script = f"import sys; import headrace.preparing.{module}; print({names})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) <= {
        f"headrace.samples{name}" for name in ("", ".conversation", ".tokenizer")
    }
