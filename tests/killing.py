"""Ends a process, without any clean-up, at one of the moments when it is about to change something on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

KILLED = 9
CHANGES = (
    (os, "write"),
    (os, "ftruncate"),
    (os, "fsync"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
)


def run(action: Callable[[], None], *, moment: int) -> bool:
    """Whether ``action``, in a process of its own that is killed before its change number ``moment``, came to its end.

    Nothing of the process runs any more after that: no handler, no ``finally``.
    """
    return forked(action, killed_at(moment))


def forked(action: Callable[[], object], within: contextlib.AbstractContextManager[object]) -> bool:
    """Whether ``action``, in a process of its own and within something that may kill this, came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with within:
                action()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), "the process failed, see its report"
    return code == 0


@contextlib.contextmanager
def killed_at(moment: int) -> Iterator[None]:
    """This process ends before its change number ``moment``, counted from 0."""
    calls = -1

    def counted(whole):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == moment:
                os._exit(KILLED)
            return whole(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CHANGES:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield
