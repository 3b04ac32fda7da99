"""Worker processes as the system sees them: how they start, whether they are alive, and how they end."""

from __future__ import annotations

import multiprocessing.process
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing import connection, get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Final

import torch
import torch.distributed as dist

WATCH_THREAD: Final = "headrace-watch"
"""The name of the threads that watch workers. They hold no lock that a process forked meanwhile would need."""

_HARMLESS: Final = ("QueueFeederThread", WATCH_THREAD)
"""Threads that hold no lock which a forked process would need."""

_FORKABLE_BACKENDS: Final = {"gloo", "fake"}


def context_of(method: str) -> BaseContext:
    """Return the multiprocessing context of a start method."""
    context = get_context(method)
    if method == "forkserver":
        # The server imports torch, and what workers read with, once, and each worker is a copy of it.
        context.set_forkserver_preload(
            [f"{__package__}.worker_set", "headrace.loader.ragged", "headrace.loader.framed"]
        )
    return context


def safe_start_method() -> str:
    """Return ``"fork"`` if this process has nothing that a fork breaks, otherwise ``"forkserver"`` or ``"spawn"``.

    A forked worker has all that the program set; one that starts anew has only what importing its modules sets. But a
    fork keeps only one of the threads, and no memory of devices:

    - CUDA, once initialised, cannot be used in a fork, and the threads of its driver are gone.
    - Another Python thread may hold a lock at that moment, which is never released in the fork. Threads that feed the
      queues of other worker processes, or watch them, hold no lock that matters.
    - Gloo communicates in threads of its own, below Python. They hold only locks of gloo, which a worker that does not
      communicate never takes. NCCL, MPI and UCC are different: they register memory with devices.
    """
    methods = get_all_start_methods()
    main = threading.main_thread()
    others = [one for one in threading.enumerate() if one is not main and one.name not in _HARMLESS]
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if "fork" in methods and sys.platform != "darwin" and not has_cuda and not others and _may_fork_with_groups():
        return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"


def _may_fork_with_groups() -> bool:
    if not dist.is_available() or not dist.is_initialized():
        return True
    # The configuration looks like "cpu:gloo,cuda:nccl".
    return {one.rpartition(":")[2] for one in dist.get_backend_config().split(",")} <= _FORKABLE_BACKENDS


def is_alive(process: BaseProcess) -> bool:
    """Whether a process is alive.

    Python alone says that it is, after a handler of SIGCHLD in the program has waited for it; so the sentinel is asked.
    """
    return process.is_alive() and not connection.wait([process.sentinel], 0)


def kill(processes: Sequence[BaseProcess], limit_s: float) -> bool:
    """Terminate processes, then kill them; return whether all have ended within the limit.

    A process that the system keeps, such as in a read from a disk that does not answer, is left to the system.
    """
    for process in processes:
        if is_alive(process):
            process.terminate()
    _ended(processes, min(limit_s / 4, 0.2))
    for process in processes:
        if is_alive(process):
            process.kill()
    return _ended(processes, limit_s)


def _ended(processes: Sequence[BaseProcess], limit_s: float) -> bool:
    until = monotonic() + limit_s
    while any(is_alive(process) for process in processes):
        if monotonic() > until:
            return False
        sleep(0.005)
    return True


def how_ended(process: BaseProcess) -> str:
    """Describe how a process ended, in words."""
    code = process.exitcode
    if code is None:
        return "has ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def disown(processes: list[BaseProcess]) -> None:
    """Keep this process from waiting, at its end, for processes that cannot be killed or were waited for already."""
    for process in processes:
        if process.is_alive():
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
