"""Forked processes of a test that run at once, whose results or faults come back to it."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from counts import PATIENCE_S


def results_of(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a function in a fork for each of the tuples of arguments, all at once, and return what each returned.

    A fork that raises, or ends in another way, fails the test with its words, and ends the others.
    """
    context = multiprocessing.get_context("fork")
    children = []
    for arguments in calls:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_answer, args=(theirs, function, arguments))
        child.start()
        # Without this copy, the end of the fork is the end of the pipe. Later forks get no copy, either.
        theirs.close()
        children.append((child, ours))
    try:
        return [_received(number, *child) for number, child in enumerate(children)]
    finally:
        for child, ours in children:
            child.kill()
            child.join()
            ours.close()


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = True, function(*arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    pipe.send(answer)


def _received(number: int, child: Any, pipe: Connection) -> Any:
    assert pipe.poll(PATIENCE_S), f"child {number} said nothing for {PATIENCE_S} s"
    try:
        is_good, answer = pipe.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"child {number} ended with {child.exitcode} and said nothing") from None
    assert is_good, f"child {number} failed:\n{answer}"
    return answer
