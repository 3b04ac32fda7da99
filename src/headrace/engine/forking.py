"""Forks of this process, which inherit its modules and everything it has loaded.

A fork has only one thread of its parent, and locks that the other threads hold stay locked in it. Therefore a job forks
only a process with a single thread. The command line is such a process, and stays one: some libraries start a thread
when they first encode, but they encode only in forks. In a program with several threads, its workers are fresh
processes. A loader forks the program of its user, which has threads; it forks it once, and finds out whether the fork
works (`headrace.loader.workers.server`).
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
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from headrace.errors import WorkerError

T = TypeVar("T")

ONE_THREAD: Final = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "FASTOKENS_BPE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment variables that keep libraries from starting threads: the work is parallel over processes already, and
threads within each would only compete for the cores."""

_TASKS: Final = Path("/proc/self/task")
_STEP_S: Final = 0.005


def may_fork() -> bool:
    """Whether this process has a single thread. False if the system does not tell."""
    try:
        return sys.platform == "linux" and len(list(_TASKS.iterdir())) == 1
    except OSError:
        return False


def be_one_thread() -> None:
    """If this process has a single thread, keep the libraries that it loads from now on from starting others."""
    if may_fork():
        os.environ.update(ONE_THREAD)


def apart(work: Callable[[Callable[[Any], None]], T], on_said: Callable[[Any], None]) -> T:
    """Call ``work`` in a fork if this process can be forked, so that threads it starts end with the fork.

    Args:
        work: called with a function that passes a message to ``on_said``. Messages, result and errors are pickled.
        on_said: called in this process with each message.

    Returns:
        What ``work`` returns.

    Raises:
        Exception: the error that ``work`` raises, or RuntimeError in place of one that cannot be pickled.
        WorkerError: the fork ended without an answer: it was killed, or a library crashed.
    """
    if not may_fork():
        return work(on_said)
    ours, theirs = Pipe(duplex=False)
    with ours:
        with theirs:
            try:
                fork = forked(lambda: _answer(work, theirs), theirs.fileno())
            except OSError:  # the system refuses another process
                return work(on_said)
        try:
            while True:
                kind, content = ours.recv()
                if kind == "said":
                    on_said(content)
                elif kind == "raised":
                    raise content
                else:
                    result: T = content
                    return result
        except EOFError:
            raise WorkerError(f"the process that tests a library ended with exit status {fork.wait()}") from None
        finally:
            fork.kill()
            fork.wait()


def _answer(work: Callable[[Callable[[Any], None]], T], connection: Connection[Any, Any]) -> None:
    try:
        connection.send(("gave", work(lambda message: connection.send(("said", message)))))
    except BrokenPipeError:
        raise  # nobody listens any more
    except BaseException as error:  # a panic in Rust is not an Exception
        try:
            found = pickle.loads(pickle.dumps(error))
            connection.send(("raised", found if isinstance(found, Exception) else RuntimeError(_words(error))))
        except Exception:
            connection.send(("raised", RuntimeError(_words(error))))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started within this context never receive SIGINT, which only the parent handles."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A forked process, with the methods of ``Popen`` that `WorkerProcesses` calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code has waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it has not ended within ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            time.sleep(_STEP_S)
        return code

    def kill(self) -> None:
        """Send SIGKILL if it is still running."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def forked(serve: Callable[[], None], keep: int, *, is_clean: bool = True) -> Child:
    """Fork this process.

    The fork's standard input is empty. SIGINT is blocked in it, and functions that handle signals here do not there.

    Args:
        serve: called in the fork, which ends when this function returns or raises.
        keep: the only descriptor that the fork keeps open, apart from the standard ones.
        is_clean: whether the fork is for the work of a job: its standard output goes to standard error, and it is in a
            process group of its own. If not, it stands in for the program: it keeps standard output, process group
            and open files, and only sockets are closed for it.

    Raises:
        OSError: the system refuses another process.
    """
    with contextlib.suppress(Exception):  # else both processes would print what is buffered
        sys.stdout.flush()
        sys.stderr.flush()
    # Until the fork has reset its signal handlers, an exception from one of them would propagate into our callers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This process .* is multi-threaded")
            pid = os.fork()
        if pid == 0:
            _serve(serve, keep, {*blocked, signal.SIGINT}, is_clean=is_clean)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Child(pid)


def _serve(serve: Callable[[], None], keep: int, blocked: Iterable[int], *, is_clean: bool) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # else the first garbage collection in the fork would copy all pages
        _begin(keep, is_clean=is_clean)
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
        os._exit(code)  # skip the exit handlers of the parent, which would run twice


def _begin(keep: int, *, is_clean: bool) -> None:
    """Set up signals and descriptors as a new program would have them; if it is clean, the environment too."""
    if is_clean:
        os.setpgid(0, 0)  # Ctrl-C reaches the parent alone
        os.environ.update(ONE_THREAD)
        os.dup2(2, 1)  # standard output may be a pipe that carries --json
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number == signal.SIGCHLD:
            signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor not in (keep, nothing) and (is_clean or entry.is_socket()):
            # It is not closed: an inherited object may close the number later, when it belongs to another file.
            os.dup2(nothing, descriptor)
