"""How samples are read if nothing is said: in worker processes where that helps and can do no harm, else here.

Reading windows of tokens is a copy, for which a thread hardly needs the interpreter. Putting packs and records together
needs it, and decoding media and running the user's code need it all the time. A thread that holds it keeps the main
thread from launching kernels. So such samples are made in other processes. `chosen` decides, from what is known of the
samples and of this process, and is a pure function; `obstacle_to` looks at what would go to the workers.
"""

from __future__ import annotations

import ast
import gc
import io
import multiprocessing
import os
import pickle
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.datasets.dataset import Traits
from headrace.loader.reading import Reading

NUM_WORKERS: Final = 2
"""The number of workers; a process of two cores has one."""
MOST_SENT_BYTES: Final = 64 << 20
"""Most bytes of datasets that are pickled for each worker that starts anew. The plan of many packs may have more."""

_NOT_FOLLOWED: Final = {*sys.stdlib_module_names, "headrace", "torch", "numpy", "msgspec", "yaml", "xxhash"}
"""Packages whose code holds nothing of the program."""

_HOLD_NOTHING: Final = (bool, int, float, complex, str, bytes, type(None), ModuleType, np.ndarray, np.generic)
_MAX_OBJECTS: Final = 100_000
_MAX_ENTRIES: Final = 1_000


class Surroundings(NamedTuple):
    """What of this process matters to workers.

    Attributes:
        num_cores: the cores of this process; those of a machine are shared by its ranks.
        is_daemon: whether the process may start no others, as a worker of another pool.
        unguarded: the file of the program that workers would run again; None if there is none, or they are forks.
    """

    num_cores: int
    is_daemon: bool
    unguarded: str | None

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return those of this process, as they are now."""
        return cls(
            num_cores=num_cores(os.environ),
            is_daemon=multiprocessing.current_process().daemon,
            unguarded=None if Reading().starts_by == "fork" else unguarded(sys.modules["__main__"]),
        )


class ChosenReading(NamedTuple):
    """How samples are read, and why, as words that follow "since". ``advice`` says how to read in workers instead."""

    reading: Reading
    why: str
    advice: str = ""


class Obstacle(NamedTuple):
    """Why workers cannot be used, as words that follow "since", and what to do about it."""

    why: str
    advice: str


def chosen(traits: Traits, here: Reading, around: Surroundings | None, *, in_order: str | None = None) -> ChosenReading:
    """Return how samples of these traits are read in these surroundings if nothing is said.

    Args:
        traits: what is known of the samples.
        here: how this process itself reads them.
        around: the surroundings; None only for samples that take little Python, for which they do not matter.
        in_order: why one worker has to make all samples, if that is so.
    """
    if not traits.holds_interpreter or around is None:
        return ChosenReading(here, "these samples take little Python to make")
    if around.num_cores < 2:
        return ChosenReading(here, "this process has one core, which workers would only share")
    if around.is_daemon:
        return ChosenReading(here, "this process is a daemon of multiprocessing, which may start no others")
    if around.unguarded is not None:
        return ChosenReading(
            here,
            f"{_ANEW}, and would run {around.unguarded} again",
            'put what starts the program under if __name__ == "__main__"',
        )
    if traits.unrestorable is not None:
        in_order = f"{traits.unrestorable} is not marked @stateless"
    if in_order is not None:
        return ChosenReading(Reading(num_workers=1), f"making these samples takes Python, and {in_order}")
    # One core is left to the training loop: beside busy workers on all of them it would have to wait its turn.
    num_workers = min(NUM_WORKERS, around.num_cores - 1)
    return ChosenReading(Reading(num_workers=num_workers), "making these samples takes Python")


def num_cores(environ: Mapping[str, str]) -> int:
    """Return the number of cores of this process, or its share of them if ``torchrun`` started several of its kind."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = environ.get("LOCAL_WORLD_SIZE", "1")
    return found // max(1, int(ranks) if ranks.isdecimal() else 1)


def unguarded(main: ModuleType) -> str | None:
    """Return the file of a main module that would run the program again when it is imported; None if it would not.

    A new process of multiprocessing imports the main module, except that of a package. A module without a file, as in a
    notebook, cannot be imported.
    """
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return None
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return str(path)
    return None if any(map(_is_guard, tree.body)) else str(path)


def _is_guard(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If):
        return False
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    has_name = any(isinstance(one, ast.Name) and one.id == "__name__" for one in sides)
    return has_name and any(isinstance(one, ast.Constant) and one.value == "__main__" for one in sides)


def obstacle_to(read: Any, start_method: str) -> Obstacle | None:
    """Return why workers that start in this way cannot have ``read``, which makes the messages; None if they can."""
    if start_method == "fork":
        for one in objects_in(read):
            if words := _tied_to_process(one):
                return Obstacle(
                    f"the datasets, or the code of their samples, hold {words}, which processes cannot share",
                    "open it where a sample is made",
                )
        return None
    try:
        pickled = pickle.dumps(read)
    except Exception as error:
        return Obstacle(
            f"{_ANEW}, and {in_one_line(error)}", "replace lambdas and inner functions by functions of a module"
        )
    if len(pickled) > MOST_SENT_BYTES:
        return Obstacle(
            f"{_ANEW}, and {len(pickled) >> 20:,} MiB would have to be sent to each",
            "pass reading=Reading(num_workers=2)",
        )
    if not hasattr(sys.modules["__main__"], "__file__") and b"__main__" in pickled:
        return Obstacle(f"{_ANEW}, and do not find the code of a notebook", "move it to a module, and import it")
    return None


def objects_in(root: Any) -> Iterator[Any]:
    """Yield the objects that an object and its functions hold, at any depth, and the globals that these name.

    No code of the objects is run: what stands for another object (``__class__``), or reads when it is asked, does not.
    """
    queue: deque[Any] = deque([root])
    seen: set[int] = set()
    kept = []
    while queue and len(seen) < _MAX_OBJECTS:
        one = queue.popleft()
        kind = type(one)
        if id(one) in seen or issubclass(kind, _HOLD_NOTHING):
            continue
        seen.add(id(one))
        kept.append(one)  # while it is alive, no other object can have its id
        yield one
        if issubclass(kind, FunctionType | type):
            queue.extend(_named_by(one) if _package_of(one) not in _NOT_FOLLOWED else ())
        elif kind in (dict, list, tuple, set):
            queue.extend(islice(list(one.values()) if kind is dict else one, _MAX_ENTRIES))
        else:
            queue.extend(gc.get_referents(one))


def _package_of(code: FunctionType | type) -> str:
    return str(getattr(code, "__module__", None)).partition(".")[0]  # of a function that `exec` made it is None


def _named_by(code: FunctionType | type) -> Iterator[Any]:
    """Yield what a function holds and names, or what is in a class and those that it is derived from."""
    if isinstance(code, type):
        yield from (*code.__mro__, *list(vars(code).values()))
        return
    yield from (code.__closure__, code.__defaults__, getattr(code, "__wrapped__", None))
    pieces = [code.__code__]
    for piece in pieces:
        pieces += [one for one in piece.co_consts if isinstance(one, CodeType)]
        found = [code.__globals__[name] for name in piece.co_names if name in code.__globals__]
        yield from found
        for module in found:
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] not in _NOT_FOLLOWED:
                yield from (vars(module)[name] for name in piece.co_names if name in vars(module))


_ANEW: Final = "workers start anew here"
_TIED: Final = {"sqlite3", "h5py", "lmdb", "socket", "ssl"}
"""Modules of objects that a process must not take over from another one."""


def _tied_to_process(one: Any) -> str | None:
    """Return in words what an object is that a fork would share with this process; None for most objects."""
    module = _package_of(type(one))
    if module in _TIED and not isinstance(one, type):
        return f"a {module}.{type(one).__name__}"
    if not issubclass(type(one), io.IOBase) or one.closed:
        return None
    try:
        # What is only written to, as a log, may come from several processes.
        return f"the open file {getattr(one, 'name', one)!r}" if one.fileno() > 2 and one.readable() else None
    except (OSError, ValueError):  # it is in memory
        return None


def in_one_line(error: Any) -> str:
    """Return the text of an error in one line, without the full stop."""
    return " ".join(str(error).split()).rstrip(".")
