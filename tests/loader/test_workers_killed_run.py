"""What is left of a run that was killed, or ends while workers hang: no process, and nothing in shared memory."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import media_texts
from counts import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")

TESTS = Path(__file__).parents[1]
PROGRAM = """
import json, multiprocessing, os, signal, sys, time
from pathlib import Path

sys.path.insert(0, {tests!r})

def main():
    import torch
    import media_texts
    from headrace import Loader, Order, Run
    from headrace.loader import Reading

    how, method, root = sys.argv[1:]
    taken = Path(root) / "taken"
    os.environ[media_texts.HOLDS_WHEN] = str(taken)
    # This one has names in /dev/shm; workers do not take it over.
    torch.multiprocessing.set_sharing_strategy("file_system")
    multiprocessing.current_process()._config["semprefix"] = f"/headrace{{os.getpid()}}"
    action, bad = {{"kill": (media_texts.arrays, 25), "exit": (media_texts.stops, media_texts.BAD)}}[how]
    run = Run(media_texts.loaded(Path(root), action), global_batch_size=4, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=4, reading=Reading(num_workers=2, start_method=method))
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3 if how == "kill" else 1)]
    taken.touch()
    globals()["kept"] = loader, iterator, kept
    workers = loader._feed._reader._workers._worker_set
    while workers._watch._once_started is not None or not any(workers._table.row(at).sample == bad for at in (0, 1)):
        time.sleep(0.001)
    print(json.dumps([process.pid for process in multiprocessing.active_children()]), flush=True)
    if how == "kill":
        signal.pause()

if __name__ == "__main__":
    main()
"""


def started(tmp_path: Path, how: str, method: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program, once its workers run, and these."""
    root = media_texts.shards(tmp_path / "t", (40,))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=str(TESTS)))
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


def shared_of(pids: set[int]) -> list[str]:
    """What processes have in /dev/shm, by its names."""
    starts = tuple(
        f"{kind}{pid}{end}" for pid in pids for kind, end in (("sem.headrace", "-"), ("torch_", "_"), ("pym-", "-"))
    )
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(starts)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("method", "whole_group"), [("fork", False), ("forkserver", False), ("forkserver", True)])
def test_a_killed_run_leaves_nothing(tmp_path: Path, method: str, whole_group: bool) -> None:
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
        assert not shared_of(ours)
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
