"""Preparation on real clusters of Slurm and Ray, which run on this host: the bytes are those of a local run.

``make interop`` runs each kind of death once or twice. ``make soak`` has a hundred deaths on each cluster, and the time
limit of a job, which Slurm counts in minutes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import energon_objects
import ray_cluster
import slurm_cluster
from counts import PATIENCE_S
from energon_made import write_shards
from headrace.stores import load_manifest

C = TypeVar("C")
HEADRACE = [sys.executable, "-m", "headrace"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm_prepare.sh"
MAX_STORED_BYTES = 10_000_000
DEATHS = 100
GATES = """import time
from pathlib import Path

def keep(record):
    while Path({all!r}).exists() or ("def heappush" in record["text"] and Path({one!r}).exists()):
        time.sleep(0.05)
    return True
"""
"""A filter that waits at each record while a file is there, and at one record while another is."""
FILTER = ("--filter", "gates:keep")
POISON = """import os, signal

def keep(record):
    if "def bisect_right" in record["text"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
"""
"""A filter that ends each worker that comes to one record."""
POISONED = ("--filter", "poison:keep", "--on-error", "skip")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some MB of text in JSON lines, which are a dozen tasks, a tokeniser, a store, and samples."""
    folder = tmp_path_factory.mktemp("data")
    texts = [
        path.read_text("utf-8", "replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:160]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts[:20], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for number in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::3]]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    subprocess.run(arguments(folder, folder / "store", "-q"), cwd=folder, check=True)
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for number in range(300):
            found = tarfile.TarInfo(f"{number:03d}.json")
            found.size = 2 if number % 50 else 4
            tar.addfile(found, io.BytesIO(b"{}" if number % 50 else b"{bad"))
    (folder / "poison.py").write_text(POISON)
    (folder / "gates.py").write_text(GATES.format(all=str(folder / "all"), one=str(folder / "one")))
    return folder


@contextlib.contextmanager
def closed(gate: Path) -> Iterator[None]:
    """Tasks wait at a gate."""
    gate.touch()
    try:
        yield
    finally:
        gate.unlink()


MERGE = "merge"
"""In place of options of ``prepare``: a merge into some thirty shards."""


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    if more[:1] == (MERGE,):
        store = str(data / "store")
        return [*HEADRACE, MERGE, store, store, "-o", str(output), "--shard-tokens", "100000", *more[1:]]
    inputs = [str(path) for path in sorted(data.glob("*.jsonl"))]
    return [*HEADRACE, "prepare", *inputs, "--tokenizer", str(data / "tokenizer.json"), "-o", str(output), *more]


@pytest.fixture(scope="module")
def wanted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """What a local run with some options makes."""
    folder = tmp_path_factory.mktemp("local")
    made: dict[tuple[str, ...], dict[str, bytes]] = {}

    def content_of(*more: str) -> dict[str, bytes]:
        if more not in made:
            output = folder / f"{len(made)}"
            subprocess.run(arguments(data, output, *more, "-q"), cwd=data, check=True)
            made[more] = content(output)
        return made[more]

    return content_of


def content(folder: Path) -> dict[str, bytes]:
    """All files of an output, whose ledger balances; what the work had left in it would be among them."""
    assert list(load_manifest(folder).ledger.faults()) == []
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def receipts(output: Path) -> list[Path]:
    return list(output.glob(".headrace/phase-*/receipts/*/*.json"))


def running(name: str, cluster: AbstractContextManager[C]) -> Iterator[C]:
    """A cluster; where it does not start, as in some containers, the test says so, but not in the full run."""
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(cluster)
        except Exception as error:
            if "HEADRACE_FULL" in os.environ:
                raise
            pytest.skip(f"{name} does not start here: {error!r:.200}")
        yield started


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Slurm]:
    if missing := slurm_cluster.missing():
        pytest.skip(
            f"Slurm is not installed: no {', '.join(missing)}; on Debian, apt install slurmctld slurmd slurm-client"
            " munge"
        )
    yield from running("Slurm", slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"), num_nodes=2))


def run(slurm: slurm_cluster.Slurm, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=slurm.environment, cwd=cwd, capture_output=True, text=True, check=True)


@pytest.mark.interop
def test_slurm_runs_arrays_and_what_is_behind_them(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    output, unique = tmp_path / "out", ("--deduplicate",)
    more = [*unique, "--executor", "slurm,time=00:10:00,tasks_per_job=3", "--json"]
    with slurm.held():
        told = json.loads(run(slurm, arguments(data, output, *more), data).stdout)
        again = run(slurm, [*HEADRACE, "job", "finish", str(output), "--executor", "slurm"], data)
        status = json.loads(run(slurm, [*HEADRACE, "job", "status", str(output), "--json"], data).stdout)
    assert told["num_tasks"] > 3
    assert "is still at work: nothing was submitted" in again.stderr
    array, behind = told["jobs"]
    num_jobs = -(-told["num_tasks"] // 3)
    assert status["slurm"] == [
        {"name": array, "is_array": True, "states": {"PENDING": num_jobs}},
        {"name": behind, "is_array": False, "states": {"PENDING": 1}},
    ]
    slurm.wait_until_empty(PATIENCE_S)
    assert content(output) == wanted(*unique)


@pytest.mark.interop
def test_slurm_requeues_and_loses_nodes(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    with closed(data / "all"):
        run(slurm, arguments(data, output, *FILTER, "--executor", "slurm", "-q"), data)
        wait_for(lambda: {node for _, node in slurm.running("headrace-task")} == {"node1", "node2"})
        nodes = {node: job for job, node in slurm.running("headrace-task")}
        slurm.run("scontrol", "requeue", nodes["node1"])
        slurm.lose("node2")
    slurm.wait_until_empty(PATIENCE_S)
    assert all(int(slurm.told(job, "Restarts")) for job in nodes.values())
    assert content(output) == wanted(*FILTER)


@pytest.mark.soak
def test_slurm_ends_a_job_at_its_time_limit(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    """The last task is left undone; the job behind the array submits another, which does it."""
    output = tmp_path / "out"
    with closed(data / "one"):
        more = ["--executor", "slurm,time=3,tasks_per_job=100,cpus_per_job=2", "--json"]
        told = json.loads(run(slurm, arguments(data, output, *FILTER, *more), data).stdout)
        array = told["jobs"][0]
        # One of two workers waits at the gate, the other does all the rest. Only this array gets the shortest limit:
        # since jobs are told a minute ahead, the next one might not begin the task.
        wait_for(lambda: len(receipts(output)) == told["num_tasks"] - 1)
        slurm.run("scontrol", "update", f"JobId={array}", "TimeLimit=1")
        # A busy host may answer so late that Slurm takes a node for lost, and begins the job again.
        wait_for(lambda: slurm.told(array, "JobState") in ("TIMEOUT", "COMPLETED", "FAILED", "CANCELLED"))
        assert slurm.told(array, "JobState") == "TIMEOUT"
    slurm.wait_until_empty(PATIENCE_S)
    assert content(output) == wanted(*FILTER)


@pytest.mark.interop
def test_slurm_and_a_record_that_ends_workers(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run(slurm, arguments(data, output, *POISONED, "--executor", "slurm", "-q"), data)
    slurm.wait_until_empty(PATIENCE_S)
    assert content(output) == wanted(*POISONED)
    assert load_manifest(output).ledger.documents.dropped["ended_worker"] == 1


@pytest.mark.interop
def test_the_example_for_slurm(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    paths = [sysconfig.get_path("scripts"), slurm.environment["PATH"]]
    command = ["bash", str(EXAMPLE), str(tmp_path / "out"), str(data / "tokenizer.json"), str(data / "*.jsonl")]
    environment = {**slurm.environment, "PATH": os.pathsep.join(paths), "TIME": "10:00"}
    subprocess.run(command, env=environment, cwd=data, check=True, capture_output=True)
    assert content(tmp_path / "out") == wanted("--append-eod")


def checked(data: Path, folder: Path) -> tuple[list[str], str]:
    """The arguments that check some samples, of which six cannot be decoded; and what a check here reports."""
    shutil.copy(data / "samples.tar", folder)
    command = [*HEADRACE, "check", str(folder / "samples.tar"), "--decode"]
    found = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    return command, without_seconds(found.stdout)


def in_place(folder: Path, *more: str) -> list[str]:
    """The command that prepares a dataset in place."""
    return [*HEADRACE, "prepare", "energon", str(folder), "--split-ratio", "1,1", *more]


def begun_in_place(folder: Path) -> tuple[Path, dict[str, bytes]]:
    """A dataset to prepare in place, and the files of a run on this host."""
    write_shards(
        folder / "local", {f"{at}.tar": [(f"{at}_{n}.txt", b"x" * 900) for n in range(300)] for at in range(9)}
    )
    shutil.copytree(folder / "local", folder / "ds", copy_function=shutil.copy2)
    subprocess.run(in_place(folder / "local", "-q"), check=True)
    return folder / "ds", energon_objects.local(folder / "local")


def without_seconds(report: str) -> str:
    return "\n".join(report.splitlines()[:-1])


@pytest.mark.interop
def test_slurm_copies_and_checks(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    run(slurm, arguments(data, tmp_path / "out", MERGE, "--executor", "slurm", "-q"), data)
    command, told = checked(data, tmp_path)
    run(slurm, [*command, "--executor", "slurm"], data)
    dataset, made = begun_in_place(tmp_path)
    run(slurm, in_place(dataset, "--executor", "slurm"), data)
    slurm.wait_until_empty(PATIENCE_S)
    assert energon_objects.local(dataset) == made
    assert content(tmp_path / "out") == wanted(MERGE)
    found = subprocess.run(
        [*HEADRACE, "job", "finish", command[-2]], cwd=data, capture_output=True, text=True, check=False
    )
    assert (found.returncode, without_seconds(found.stdout)) == (1, told)


@pytest.mark.soak
def test_slurm_and_a_hundred_deaths(
    slurm: slurm_cluster.Slurm, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    chance = random.Random(1)
    deaths = 0

    def down(job: str, node: str) -> None:
        slurm.lose(node)

    def requeue(job: str, node: str) -> None:
        subprocess.run(["scontrol", "requeue", job], env=slurm.environment, check=False, capture_output=True)

    def kill(job: str, node: str) -> None:
        command = ["scancel", "--full", "--signal=KILL", job]
        subprocess.run(command, env=slurm.environment, check=False, capture_output=True)

    def at_work_or_over() -> bool:
        slurm.mend()
        return bool(slurm.running("headrace-task")) or not slurm.queued()

    while deaths < DEATHS:
        output = tmp_path / f"{deaths}"
        more = chance.choice([(), ("--deduplicate",), (MERGE,)])
        run(slurm, arguments(data, output, *more, "--executor", "slurm", "-q"), data)
        for _ in range(chance.randint(2, 8)):
            wait_for(at_work_or_over)
            time.sleep(chance.random())
            if alive := slurm.running("headrace-task"):
                chance.choice([down, requeue, kill])(*chance.choice(alive))
                deaths += 1
        slurm.wait_until_empty(PATIENCE_S)
        if not (output / "headrace.json").exists():  # the job behind an array that did nothing gives up
            run(slurm, [*HEADRACE, "job", "finish", str(output), "-q"], data)
        assert content(output) == wanted(*more), f"after {deaths} deaths"


@pytest.fixture(scope="module")
def ray() -> Iterator[ray_cluster.Ray]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")
    yield from running("Ray", ray_cluster.cluster(num_nodes=2))


def drive(ray: ray_cluster.Ray, data: Path, output: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the command that gives the tasks to Ray."""
    command = arguments(data, output, *more, "--executor", f"ray,address={ray.address}", "-q")
    return subprocess.Popen(command, cwd=data)


def kill_worker(ray: ray_cluster.Ray, chance: random.Random) -> None:
    """Kill a process that does a batch, with what it has started, if there is one."""
    if workers := ray.workers():
        chosen = chance.choice(workers)
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*chosen.children(recursive=True), chosen]:
                process.kill()


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_ray_loses_a_worker_a_node_and_its_driver(
    ray: ray_cluster.Ray, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    output, more = tmp_path / "out", ("--deduplicate", *FILTER)
    with closed(data / "one"):
        with closed(data / "all"):
            first = drive(ray, data, output, *more)
            wait_for(lambda: ray.workers() or first.poll() is not None)
            kill_worker(ray, random.Random(0))
        wait_for(lambda: len(receipts(output)) > 2 or first.poll() is not None)
        first.kill()
        first.wait()
        ray.remove_node(0)
        second = drive(ray, data, output, *more)
        wait_for(lambda: ray.workers() or second.poll() is not None)
        ray.remove_node(1)
        assert not (output / "headrace.json").exists()
    assert second.wait(PATIENCE_S) == 0
    assert content(output) == wanted(*more)
    assert ray.most_stored_bytes < MAX_STORED_BYTES


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_ray_and_a_record_that_ends_workers(
    ray: ray_cluster.Ray, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert drive(ray, data, output, *POISONED).wait(PATIENCE_S) == 0
    assert content(output) == wanted(*POISONED)
    assert load_manifest(output).ledger.documents.dropped["ended_worker"] == 1


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_ray_copies_and_checks(
    ray: ray_cluster.Ray, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    first = drive(ray, data, tmp_path / "out", MERGE)
    wait_for(lambda: ray.workers() or first.poll() is not None)
    kill_worker(ray, random.Random(0))
    assert first.wait(PATIENCE_S) == 0
    assert content(tmp_path / "out") == wanted(MERGE)
    command, told = checked(data, tmp_path)
    more = ["--executor", f"ray,address={ray.address}"]
    found = subprocess.run([*command, *more], cwd=data, capture_output=True, text=True, check=False)
    assert (found.returncode, without_seconds(found.stdout)) == (1, told), found.stderr
    dataset, made = begun_in_place(tmp_path)
    subprocess.run(in_place(dataset, *more), check=True)
    assert energon_objects.local(dataset) == made


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_ray_and_a_hundred_deaths(
    ray: ray_cluster.Ray, data: Path, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    chance = random.Random(1)
    deaths = 0
    while deaths < DEATHS:
        output = tmp_path / f"{deaths}"
        more = chance.choice([(), ("--deduplicate",), (MERGE,)])
        driver = drive(ray, data, output, *more)
        for _ in range(chance.randint(2, 6)):
            wait_for(lambda driver=driver: ray.workers() or driver.poll() is not None)
            time.sleep(chance.random())
            if driver.poll() is not None:
                break
            what = chance.randrange(3)
            if what == 0:
                driver.kill()
                driver.wait()
                driver = drive(ray, data, output, *more)
            elif what == 1:
                ray.remove_node(chance.randrange(2))
            else:
                kill_worker(ray, chance)
            deaths += 1
        assert driver.wait(PATIENCE_S) == 0
        assert content(output) == wanted(*more), f"after {deaths} deaths"
        assert ray.most_stored_bytes < MAX_STORED_BYTES
