"""How to get what a page shows from Python and from the command line, for the reader to copy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """The same as a page, in Python and as a command; the command is empty where there is none."""

    python: str
    command: str = ""


_VIEWS = "from headrace.inspect import views"
_INSPECT = "from headrace import inspect"
_TRACING = "from headrace import tracing"


def command(*words: object) -> str:
    """Return a command line, with quotes where a shell needs them."""
    return shlex.join(["headrace", *map(str, words)])


def home(paths: Sequence[str]) -> Shown:
    """What is below the named paths."""
    return Shown(f"{_VIEWS}\n\nviews.overview({list(paths)!r})", command("ui", "--json", *paths))


def store(path: str) -> Shown:
    """A store at a glance."""
    return Shown(f"{_VIEWS}\n\nviews.outline({path!r})", command("info", path))


def documents(path: str, numbers: Sequence[int], kind: str = "documents") -> Shown:
    """Documents as text, or samples with their parts."""
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    span = str(first) if first == last else f"{first}-{last}"
    python = f"{_INSPECT}\n\ninspect.preview({path!r}, samples={list(numbers)!r})"
    return Shown(python, command("preview", path, "--documents", span))


def where(path: str, number: int) -> str:
    """The command that says where a document comes from."""
    return command("where", path, number)


def found(path: str, wanted: str, name: str, line: int | None) -> Shown:
    """A document by its id, or by its file and line."""
    asked = f"id={wanted!r}" if wanted else f"input={name!r}, line={line or 0}"
    return Shown(f"{_VIEWS}\n\nviews.find_document({path!r}, {asked})")


def search(path: str, text: str, first: int) -> Shown:
    """A search for a text."""
    begin = f", first={first}" if first else ""
    return Shown(f"{_VIEWS}\n\nfor found in views.search({path!r}, {text!r}{begin}):\n    print(found)")


def check(path: str) -> Shown:
    """Reading everything."""
    return Shown(f"{_INSPECT}\n\ninspect.check({path!r})", command("check", path))


def mix(path: str, split: str, budget: int, weights: dict[str, float]) -> Shown:
    """A mix, with other weights if there are some."""
    changed = f", weights={weights!r}" if weights else ""
    python = f"{_INSPECT}\n\nfound = inspect.describe({path!r})\n"
    python += f"inspect.views.tried_mix(found, {split!r}, budget_samples={budget}{changed})"
    return Shown(python, command("info", path, "--steps", budget, "--global-batch-size", 1) if not weights else "")


def run(path: str, step: int) -> Shown:
    """The account of a run before a step, and its mix over the steps."""
    python = (
        f"{_TRACING}\n\nrun = tracing.filed_run({path!r}, read_data=False)\n"
        f"tracing.account(run, {step})\ntracing.mix_curve(run)"
    )
    return Shown(python, command("account", path, "--until-step", step))


def step(path: str, number: int, ranks: int, micro_batch_size: int) -> Shown:
    """A step as its micro-batches."""
    python = (
        f"{_TRACING}\n\nsources = tracing.Sources(tracing.read_run_file({path!r}))\n"
        f"topology = tracing.Topology(ranks={ranks}, micro_batch_size={micro_batch_size})\n"
        f"tracing.step_grid(sources.history(), {number}, topology, sources.run(0))"
    )
    topology = ("--ranks", f"{ranks},micro_batch_size={micro_batch_size}")
    return Shown(python, command("trace", "step", number, "--run", path, *topology))


def fed(path: str, position: int, source: str, index: int) -> Shown:
    """A sample as the model sees it, and when it comes again."""
    python = (
        f"{_TRACING}\n{_VIEWS}\n\nsources = tracing.Sources(tracing.read_run_file({path!r}))\n"
        f"views.fed_sample(sources.run(0), {position})\nsources.history().sample({source!r}, {index})"
    )
    return Shown(python, command("trace", "sample", source, index, "--run", path))


def live(path: str) -> Shown:
    """What a training waits for."""
    return Shown(f"{_VIEWS}\n\nviews.live_report({path!r})", command("ui", "--json", "--live", path))


def difference(one: str, other: str, *, of_states: bool) -> Shown:
    """Where two runs or two states part."""
    if of_states:
        read = f"tracing.read_state({one!r}), tracing.read_state({other!r})"
        return Shown(f"{_TRACING}\n\ntracing.state_difference({read})")
    runs = f"*(tracing.filed_run(path, read_data=False) for path in [{one!r}, {other!r}])"
    return Shown(f"{_TRACING}\n\ntracing.first_difference({runs})", command("account", one, other))
