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

    Broken are CUDA, communication between ranks, and locks that other threads hold; those that feed the queues of other
    worker processes, or look after them, hold none that matter.
    """
    methods = get_all_start_methods()
    main = threading.main_thread()
    others = [one for one in threading.enumerate() if one is not main and one.name not in _HARMLESS]
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    busy = has_cuda or (dist.is_available() and dist.is_initialized())
    if "fork" in methods and sys.platform != "darwin" and not busy and not others:
        return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"
