"""How worker processes start, and those that are left to the system."""

from __future__ import annotations

import multiprocessing.process
import sys
import threading
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final

import torch
import torch.distributed as dist

from headrace.loader.workers_watch import THREAD_NAME

_HARMLESS: Final = ("QueueFeederThread", THREAD_NAME)
"""Threads that hold no lock which a forked process would miss."""

_FORKABLE_BACKENDS: Final = {"gloo", "fake"}


def disown(processes: list[BaseProcess]) -> None:
    """Have this process not wait at its end for those that the system does not let go, or somebody has waited for."""
    for process in processes:
        if process.is_alive():
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def context_of(method: str) -> BaseContext:
    """What starts processes by this method."""
    context = get_context(method)
    if method == "forkserver":
        # The server imports torch once, and each worker is a copy of it.
        context.set_forkserver_preload([__package__])
    return context


def safe_start_method() -> str:
    """``"fork"`` where this process has nothing that a fork breaks, else a server that forks, or a fresh process.

    A forked worker has all that the program set, and one of a server has only what importing its modules sets. But of
    the threads of this process a fork keeps one, and no memory of a device:

    - CUDA, once initialised, cannot be used in a fork, and its driver's threads are gone.
    - Another thread of Python may hold a lock at that moment, which nobody ever gives back in the fork. Those that feed
      the queues of other worker processes, or look after them, hold none that matters.
    - Communication by gloo runs in threads of its own, below Python. They hold locks of gloo alone, which a worker that
      does not communicate never takes. Of NCCL, MPI and UCC that is not so: they register memory with devices.
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
    # Such as "cpu:gloo,cuda:nccl".
    return {one.rpartition(":")[2] for one in dist.get_backend_config().split(",")} <= _FORKABLE_BACKENDS
