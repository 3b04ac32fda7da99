"""Processes as forks of this one: they have its modules, and what it has loaded, from the start.

Of the threads of a process a fork keeps one, and what the others hold is lost to it. So only a process of one thread is
forked. The command line is one, and stays it: of the libraries that encode some start a thread when they first encode,
and that they do in forks alone. In a program that has threads workers are fresh processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from headrace.errors import WorkerError

T = TypeVar("T")

ONE_THREAD: Final = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Of the environment: processes are the parallelism here, and threads inside each would only fight over the cores."""

_TASKS: Final = Path("/proc/self/task")
_STEP_S: Final = 0.005


def may_fork() -> bool:
    """Whether this process has one thread, whoever has started them; no where the system does not say."""
    try:
        return sys.platform == "linux" and len(list(_TASKS.iterdir())) == 1
    except OSError:
        return False


def be_one_thread() -> None:
    """Keep a process of one thread at that, whatever libraries it loads from now on."""
    if may_fork():
        os.environ.update(ONE_THREAD)


def apart(work: Callable[[Callable[[Any], None]], T], on_said: Callable[[Any], None]) -> T:
    """What ``work`` gives; done in a fork where that is allowed, so that what it starts is gone with it.

    Args:
        work: is called with what it may tell ``on_said``. What it says, gives and raises is pickled.
        on_said: called here.

    Raises:
        Exception: what ``work`` raises; RuntimeError in place of what does not pickle.
        WorkerError: the fork has ended without an answer, killed or by a fault of a library.
    """
    if not may_fork():
        return work(on_said)
    ours, theirs = Pipe(duplex=False)
    with ours:
        with theirs:
            try:
                fork = forked(lambda: _answer(work, theirs), theirs.fileno())
            except OSError:  # there is no room for another process
                return work(on_said)
        try:
            while True:
                kind, said = ours.recv()
                if kind == "said":
                    on_said(said)
                elif kind == "raised":
                    raise said
                else:
                    found: T = said
                    return found
        except EOFError:
            raise WorkerError(f"a process that tries a library ended with exit status {fork.wait()}") from None
        finally:
            fork.kill()
            fork.wait()


def _answer(work: Callable[[Callable[[Any], None]], T], connection: Connection[Any, Any]) -> None:
    try:
        connection.send(("gave", work(lambda said: connection.send(("said", said)))))
    except BrokenPipeError:
        raise  # nobody listens any more
    except BaseException as error:  # a panic in Rust is no Exception
        try:
            found = pickle.loads(pickle.dumps(error))
            connection.send(("raised", found if isinstance(found, Exception) else RuntimeError(_words(error))))
        except Exception:
            connection.send(("raised", RuntimeError(_words(error))))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started within never see SIGINT, from their first instruction on; it is the parent's to handle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A process that was forked, with what `executor.Workers` asks of a ``Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, below 0 a signal's number; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within as many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            time.sleep(_STEP_S)
        return code

    def kill(self) -> None:
        """By SIGKILL, if it runs yet."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def forked(serve: Callable[[], None], keep: int) -> Child:
    """A fork of this process.

    Args:
        serve: called in it; when it comes back, or raises, the process ends.
        keep: the only descriptor that it has besides the standard ones. It reads nothing, and prints to standard error.

    Raises:
        OSError: the system refuses another process.
    """
    with contextlib.suppress(Exception):  # what is not printed yet is printed here alone
        sys.stdout.flush()
        sys.stderr.flush()
    # What a handler raised in the fork, before it has none, would run on through our callers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    gc.freeze()  # or the first collection of the fork would copy all pages
    try:
        pid = os.fork()
        if pid == 0:
            _serve(serve, keep, {*blocked, signal.SIGINT})
    finally:
        gc.unfreeze()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Child(pid)


def _serve(serve: Callable[[], None], keep: int, blocked: Iterable[int]) -> NoReturn:
    code = 1
    try:
        _begin(keep)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        serve()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing of what the first process does at its end is done twice


def _begin(keep: int) -> None:
    """What a new program would begin with."""
    os.setpgid(0, 0)  # Ctrl-C reaches the parent alone
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # standard output may be a pipe that carries --json
    for one in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if one > 2 and one not in (keep, nothing):
            os.dup2(nothing, one)  # not closed: objects that are still there may close it, whosever it then is
    os.environ.update(ONE_THREAD)
