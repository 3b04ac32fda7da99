"""Forks: what they have of the process that they come from, how they end, and what is done in one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from counts import PATIENCE_S
from headrace.engine.forking import apart, may_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

HEAD = """
import os, signal, socket, sys, threading, time
from headrace.errors import InputError, WorkerError
from headrace.engine.forking import apart, be_one_thread, forked, may_fork

def ended(serve):
    kept, other = socket.socketpair()
    with kept, other:
        fork = forked(serve, kept.fileno())
        code = fork.wait()
        assert fork.poll() == code
        return code
"""


def run(program: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which has one thread: those of the tests have several."""
    found = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.returncode == code, found.stderr
    return found


def test_how_forks_end() -> None:
    found = run("""
assert ended(lambda: None) == 0
assert ended(lambda: sys.exit(3)) == 3
assert ended(lambda: sys.exit("words")) == 1
assert ended(lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
assert ended(lambda: 1 / 0) == 1
fork = forked(lambda: time.sleep(60), 2)
try:
    fork.wait(0.01)
except __import__("subprocess").TimeoutExpired:
    fork.kill()
assert fork.wait() == -signal.SIGKILL
fork.kill()
""")
    assert found.stderr.count("ZeroDivisionError") == 1
    assert found.stdout == ""


def test_what_forks_have(tmp_path: Path) -> None:
    """One descriptor besides the standard ones; no text that was not printed yet, no handler, no exit function."""
    found = run(f"""
import atexit, fcntl
lock = open({str(tmp_path / "lock")!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
atexit.register(print, "the end")
signal.signal(signal.SIGTERM, lambda *_: print("terminated"))
print("once", end="")
kept, other = socket.socketpair()
def serve():
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept.fileno() and os.path.exists(f"/proc/self/fd/{{name}}"):
            assert os.readlink(f"/proc/self/fd/{{name}}") in ("/dev/null", f"/proc/{{os.getpid()}}/fd"), name
    assert sys.stdin.read() == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert os.getpgid(0) == os.getpid()
    print("said on standard error")
    lock.close()
    kept.sendall(b"right")
    time.sleep(60)
fork = forked(serve, kept.fileno())
assert other.recv(100) == b"right"
assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
lock.close()
with open({str(tmp_path / "lock")!r}, "w") as again:
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # though the fork lives
fork.kill()
assert fork.wait() == -signal.SIGKILL
""")
    assert found.stdout == "oncethe end\n"
    assert found.stderr == "said on standard error\n"


def test_only_a_process_of_one_thread_is_forked() -> None:
    run("""
assert may_fork()
be_one_thread()
import numpy
assert may_fork()
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert not may_fork()
pid = os.getpid()
assert apart(lambda say: os.getpid(), print) == pid
done.set()
thread.join()
while not may_fork():  # the system is a moment behind
    time.sleep(0.001)
assert apart(lambda say: os.getpid(), print) != pid
""")


def test_workers_are_forks_of_a_process_of_one_thread_alone() -> None:
    run("""
be_one_thread()
from headrace.engine.job import TaskResult
from headrace.engine.processes import WorkerProcesses
from toy_work import ToySetup, ToyTask, main

def answer(serve):
    with WorkerProcesses(1, ToySetup(os.getpid(), "", -1), "toy_work:main", serve) as workers:
        workers.send(0, ToyTask(0, (7,), is_sum=False))
        [(_, reply)] = workers.receive(60)
    return None if reply is None else reply.read(TaskResult).value

def leave(descriptor):
    os._exit(0)

assert may_fork()
assert answer(None) == answer(main) == 49
assert answer(leave) is None
done = threading.Event()
thread = threading.Thread(target=done.wait, daemon=True)
thread.start()
assert answer(leave) == 49
done.set()
thread.join()
""")


def test_what_is_done_apart() -> None:
    run("""
class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def raised(error):
    def work(say):
        raise error
    try:
        apart(work, print)
    except Exception as found:
        return found

said = []
def work(say):
    say((1, 2))
    say("words")
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return {"answer": 42}
assert apart(work, said.append) == {"answer": 42}
assert said == [(1, 2), "words"]
assert may_fork()
assert repr(raised(InputError("bad"))) == "InputError('bad')"
assert repr(raised(Odd("one", "two"))) == "RuntimeError('Odd: one')"
assert repr(raised(KeyboardInterrupt("odd"))) == "RuntimeError('KeyboardInterrupt: odd')"
assert repr(raised(MemoryError())) == "MemoryError()"
try:
    apart(lambda say: os.kill(os.getpid(), signal.SIGSEGV), print)
except WorkerError as error:
    assert str(error) == "the process that tests a library ended with exit status -11", error
else:
    raise AssertionError
def stops(said):
    raise KeyboardInterrupt
try:
    apart(lambda say: (say("x"), time.sleep(60)), stops)
except KeyboardInterrupt:
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("a process was left")
""")


def test_done_here_where_there_are_threads() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not may_fork()
        said: list[int] = []
        assert apart(lambda say: (say(1), os.getpid())[1], said.append) == os.getpid()
        assert said == [1]
    finally:
        done.set()
        thread.join()
