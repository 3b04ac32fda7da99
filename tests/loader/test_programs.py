"""A loader in the middle of its loop that is copied or pickled; and programs that fork, end or are killed there."""

from __future__ import annotations

import copy
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corpora
import framed_encoders
import media_texts
from counts import PATIENCE_S
from headrace import Loader, MediaDataset, Order, Run, StateError
from headrace.compat import energon
from headrace.datasets.encoded import EncodedDataset, Framed, FramedRun
from headrace.encoders import Cooker, TaskEncoder, stateless
from headrace.loader import Reading
from headrace.loader.reading import check_process

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

READINGS = [Reading(num_threads=0), Reading(num_threads=2), Reading(ahead="1MB"), Reading(num_workers=2)]
IDS = ["here", "threads", "ahead", "workers"]
WAYS: list[Callable[[Any], Any]] = [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy]


class Plain(TaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return framed_encoders.numbers(tmp_path_factory.mktemp("forks") / "a", 40)


def taken(loader: Any, most: int) -> list[int]:
    return [int(n) for _, batch in zip(range(most), loader, strict=False) for n in batch["n"]]


@pytest.mark.parametrize("reading", READINGS, ids=IDS)
@pytest.mark.parametrize("is_framed", [False, True], ids=["fixed", "framed"])
def test_a_copy_goes_on_where_the_loader_is(place: Path, reading: Reading, is_framed: bool, tmp_path: Path) -> None:
    run: Any
    if is_framed:
        data = Framed(MediaDataset.open(place), Plain(), frame_positions=3)
        run = FramedRun(data, global_batch_size=4, order=Order(kind="full", seed=5))
    else:
        run = Run(EncodedDataset.open(place, Plain()), global_batch_size=4, order=Order(seed=5), epochs=1)
    journal = tmp_path / "journal.bin" if is_framed else None
    loader = Loader(run, micro_batch_size=4, reading=reading, journal=journal)
    batches = iter(loader)
    fresh = [way(loader) for way in WAYS]
    taken(batches, 3)
    copies = [way(loader) for way in WAYS]
    rest = taken(batches, 4)
    loader.close()
    copies += [way(loader) for way in WAYS]
    for number, one in enumerate(copies):
        assert one.position == (12 if number < 2 else 28)
        found = taken(iter(one), 4)
        assert number > 1 or found == rest
        one.close()
    assert [one.position for one in fresh] == [0, 0]
    assert len(rest) == 16


@pytest.mark.parametrize("order", ["shards", "energon"])
def test_a_copy_of_the_loader_under_energons_names(place: Path, order: Any) -> None:
    data = energon.get_train_dataset(
        place,
        batch_size=4,
        task_encoder=Plain(),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        order=order,
    )
    loader = energon.get_savable_loader(data)
    batches = iter(loader)
    next(batches)
    copies = [way(loader) for way in WAYS]
    wanted = next(batches)["__key__"]
    assert [next(iter(one))["__key__"] for one in copies] == [wanted, wanted]


PROGRAM = """
import os
import sys
import time

import headrace
from headrace.loader import Reading
from headrace.samples.media import TextSample


def upper(sample):
    sample.text = sample.text.upper()
    return sample


if __name__ == "__main__":
    path, reading = sys.argv[1:]
    text = headrace.MediaDataset.open(path, sample_type=TextSample, field_map={"text": "txt"})
    run = headrace.Run(headrace.MapDataset(text, upper), global_batch_size=4, epochs=1)
    loader = headrace.Loader(run, micro_batch_size=4, reading=eval(reading))
    batches = iter(loader)
    found = next(batches)["text"]
    for end in os._exit, sys.exit:
        child = os.fork()
        if child == 0:
            for again in (batches, loader) if loader.reading.num_workers else (batches,):
                try:
                    next(iter(again))
                except headrace.StateError as error:
                    print("refused", "copy.deepcopy" in str(error), flush=True)
            del batches, again
            loader.close()
            print("the child has", sum(len(batch["text"]) for batch in loader), flush=True)
            end(0)
        os.waitpid(child, 0)
    for batch in batches:
        found += batch["text"]
    print("the parent has", len(set(found)), loader._feed.reader.num_replaced)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reading", READINGS[1:], ids=IDS[1:])
def test_a_fork_leaves_the_loader_to_its_parent(reading: Reading, tmp_path: Path) -> None:
    """Whether the child ends at once or as programs do."""
    from headrace.stores.tar.writer import TarWriter

    with TarWriter(tmp_path / "n.tar") as tar:
        for number in range(80):
            tar.add(f"{number:04d}", {"txt": b"n%d" % number})
    (tmp_path / "program.py").write_text(PROGRAM)
    words = f"Reading(num_threads={reading.num_threads}, num_workers={reading.num_workers}, ahead={reading.ahead!r})"
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "n.tar"), words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    child = ["refused True"] * (2 if reading.num_workers else 1) + ["the child has 76"]
    assert done.stdout.splitlines() == [*child, *child, "the parent has 80 0"]
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_names_both_processes() -> None:
    with pytest.raises(StateError, match=r"process.*-1"):
        check_process(-1)


LEFT = """
import atexit
import sys
import threading


@atexit.register
def check():  # registered first, it comes last
    if left := [one.name for one in threading.enumerate() if one.name == "headrace-read"]:
        print(left)


import headrace
from headrace.loader import Reading

if __name__ == "__main__":
    run = headrace.Run(headrace.WindowDataset(headrace.open(sys.argv[1]), seq_len=4), global_batch_size=2)
    batches = iter(headrace.Loader(run, micro_batch_size=2, reading=eval(sys.argv[2])))
    for _ in range(5):
        next(batches)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "reading",
    ["None", "Reading(num_threads=0)", "Reading(num_threads=3)", "Reading(ahead='40MB')", "Reading(num_workers=2)"],
)
def test_nothing_is_said_when_the_program_ends(reading: str, tmp_path: Path) -> None:
    """No thread that reads is left then: one that makes tensors while the interpreter ends can abort it."""
    corpora.make(tmp_path / "store", 1, 40, max_length=20)
    (tmp_path / "program.py").write_text(LEFT)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "store"), reading]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ENDLESS = """
import sys
import threading

import torch

import headrace
from headrace.compat import energon
from headrace.datasets import MapDataset
from headrace.loader import Reading

works = threading.Event()


def work(*_):
    works.set()
    while True:
        torch.ones(100_000).add(1).clone()


class Endless(energon.FileStore):
    __getitem__ = get_path = work


if sys.argv[2] == "cache":
    pool = energon.FileStoreCachePool(parent_cache_dir=sys.argv[1], num_workers=2)
    kept = pool.get_lazy(Endless(), "a")
else:
    data = MapDataset(headrace.WindowDataset(headrace.open(sys.argv[1]), seq_len=4), work)
    loader = headrace.Loader(headrace.Run(data, global_batch_size=2), micro_batch_size=2, reading=eval(sys.argv[2]))
    threading.Thread(target=lambda: list(loader), daemon=True).start()
works.wait()
print("ends")
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reading", ["Reading(num_threads=3)", "Reading(ahead='40MB', num_threads=2)", "cache"])
def test_a_thread_that_works_when_the_program_ends_does_not_abort_it(reading: str, tmp_path: Path) -> None:
    corpora.make(tmp_path / "store", 1, 40, max_length=20)
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "store"), reading]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


TESTS = Path(__file__).parents[1]
KILLED = """
import json, os, signal, sys, time
from pathlib import Path

sys.path.insert(0, {tests!r})

def main():
    import media_texts
    from headrace import Loader, Order, Run
    from headrace.loader import Reading

    how, method, root = sys.argv[1:]
    taken = Path(root) / "taken"
    os.environ[media_texts.HOLDS_WHEN] = str(taken)
    action, bad = {{"kill": (media_texts.arrays, 25), "exit": (media_texts.stops, media_texts.BAD)}}[how]
    run = Run(media_texts.loaded(Path(root), action), global_batch_size=4, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=4, reading=Reading(num_workers=2, start_method=method))
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3 if how == "kill" else 1)]
    taken.touch()
    globals()["kept"] = loader, iterator, kept
    workers = loader._feed.reader._workers
    while not any(workers._table.row(at).sample == bad for at in (0, 1)):
        time.sleep(0.001)
    print(json.dumps([worker.pid for worker in workers.workers]), flush=True)
    if how == "kill":
        signal.pause()

if __name__ == "__main__":
    main()
"""


def started(tmp_path: Path, how: str, method: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program, once its workers run, and these."""
    root = media_texts.shards(tmp_path / "t", (40,))
    program = tmp_path / "program.py"
    program.write_text(KILLED.format(tests=str(TESTS)))
    process = subprocess.Popen(
        [sys.executable, str(program), how, method, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as out:
        if not select.select([out], [], [], PATIENCE_S)[0]:
            process.kill()
        return process, json.loads(out.readline())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def in_session(session: int) -> set[int]:
    """Processes of a program, those that it has started among them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and lives(int(entry.name)):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                found.add(int(entry.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "whole_group"), [("fork", False), ("fork", True), ("spawn", False), ("spawn", True)]
)
def test_a_killed_run_leaves_nothing(tmp_path: Path, method: str, whole_group: bool) -> None:
    names = set(Path("/dev/shm").iterdir())
    process, workers = started(tmp_path, "kill", method)
    ours = in_session(process.pid)
    try:
        assert len(workers) == 2
        assert {process.pid, *workers} <= ours
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while in_session(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert not in_session(process.pid)
        # Other programs may have made names meanwhile; ours would have the number of one of its processes.
        assert not [one for one in set(Path("/dev/shm").iterdir()) - names if any(str(pid) in one.name for pid in ours)]
    finally:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
def test_a_run_ends_while_a_worker_hangs(tmp_path: Path) -> None:
    process, workers = started(tmp_path, "exit", "fork")
    try:
        assert len(workers) == 2
        assert process.wait(PATIENCE_S) == 0
        assert not any(map(lives, workers))
    finally:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
