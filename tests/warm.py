"""Processes that have their modules already: forked from one that has imported them, and nothing else.

A worker of `prepare` takes 0.2 s of a core to import what it needs, a program with torch 1.5 s, and a session starts
hundreds of them. Each begins here as a fresh interpreter would: its own arguments, environment, path, folder and
descriptors, no thread, no pool, nothing of the process that asked. What a start itself does is tested with real ones
(``tests/preparing/test_faults.py`` and the command line).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.engine.forking import Child

_SUBREAPER = 36
_STEP_S = 0.001
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import warm; warm.serve(int(sys.argv[2]))"
_MODULES = "HEADRACE_WARM_MODULES"
"""Not among the arguments: by these, tests find the workers of `prepare`."""


class Warm:
    """A process that has imported some modules, and forks others on demand; they are children of this one.

    Args:
        modules: what it imports.
        options: of its interpreter.
    """

    def __init__(self, modules: list[str], options: tuple[str, ...] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "RAYON_NUM_THREADS": "1",
            _MODULES: " ".join(modules),
        }
        here = str(Path(__file__).parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *options, "-c", _SERVE, here, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,  # what is sent to the group of the tests is not for it
            )

    def close(self) -> None:
        # Closed is not enough: workers of a loader that still lives are forks of this process, and have the socket too.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.wait()

    def start(
        self, argv: list[str], *, environment: dict[str, str], output: int, errors: int, passed: int, group: int = 0
    ) -> Child:
        """``python -c CODE ...`` or ``python FILE ...``; descriptor -1: none is passed on; group 0: one of its own."""
        asked = {
            "argv": argv,
            "environment": environment,
            "folder": str(Path.cwd()),
            "parent": os.getpid(),
            "passed": passed,
            "group": group,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        }
        descriptors = [output, errors, *([passed] if passed >= 0 else [])]
        # Its own parent ends at once, and for that moment we are the one that orphans go to.
        with _subreaper():
            socket.send_fds(self._socket, [json.dumps(asked).encode()], descriptors)
            return Child(int(self._socket.recv(100)))

    def popen(self, command: list[str], **options: Any) -> Child:
        """Stands for the ``Popen`` of `WorkerProcesses`."""
        (passed,) = options["pass_fds"]
        return self.start(
            command[command.index("-c") :],
            environment=options["env"],
            output=options["stdout"],
            errors=2,
            passed=passed,
        )


class Ended(NamedTuple):
    """A process that has ended, and what it said."""

    code: int
    output: str
    errors: str


def together(process: Warm, programs: list[list[str]], folder: Path, timeout: float) -> list[Ended]:
    """Run programs at the same time, ``FILE ...`` each; none outlives the call. Their output is kept in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running: list[Child] = []
    paths = [(folder / f"output-{number}", folder / f"errors-{number}") for number in range(len(programs))]
    try:
        for program, (said, failed) in zip(programs, paths, strict=True):
            with said.open("wb") as output, failed.open("wb") as errors:
                running.append(
                    process.start(
                        program, environment=environment, output=output.fileno(), errors=errors.fileno(), passed=-1
                    )
                )
        codes = [one.wait(timeout) for one in running]
    finally:
        for one in running:
            one.kill()
    return [
        Ended(code, said.read_text(), failed.read_text()) for code, (said, failed) in zip(codes, paths, strict=True)
    ]


@contextlib.contextmanager
def workers(process: Warm) -> Iterator[None]:
    """Within, the workers of `prepare` start from this process."""
    stand_in = types.SimpleNamespace(
        Popen=process.popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.engine.processes.subprocess", stand_in)
        yield


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def serve(descriptor: int) -> None:
    """Import, then fork whenever asked, until the asking process hangs up."""
    for name in os.environ[_MODULES].split():
        importlib.import_module(name)
    gc.freeze()  # or the first collection of each child would copy all its pages
    with socket.socket(fileno=descriptor) as asking:
        while True:
            message, received, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            if not message:
                return
            reading, writing = os.pipe()
            middle = os.fork()
            if middle == 0:
                child = os.fork()
                if child == 0:
                    _become(json.loads(message), received)
                os.write(writing, str(child).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            asking.send(os.read(reading, 100))
            for number in (reading, writing, *received):
                os.close(number)


def _become(asked: dict[str, Any], received: list[int]) -> None:
    """The program asked for; never comes back."""
    code = 1
    try:
        while os.getppid() != asked["parent"]:
            time.sleep(_STEP_S / 10)
        os.setpgid(0, asked["group"])
        for number, target in zip(received, (1, 2, asked["passed"]), strict=False):
            os.dup2(number, target)
        if asked["passed"] >= 0:
            os.closerange(3, asked["passed"])
        os.closerange(max(asked["passed"] + 1, 3), 1024)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        tempfile.tempdir = None
        path = [one for one in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if one]
        sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
        _run(asked["argv"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):  # as an interpreter ends: threads first
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(argv: list[str]) -> None:
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    import runpy

    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")
