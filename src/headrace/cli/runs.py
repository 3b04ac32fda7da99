"""``headrace run``: what the file of a run says, and edits of the run, without Python and without the data."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

import headrace
from headrace import inspect, tracing
from headrace.cli.command import Found, command, group
from headrace.cli.options import ranges
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.datasets.exclusions import How


@command("show", "The mix, batches, length and edits.")
def show(path: Annotated[str, "FILE"]) -> Found:
    """Show the mix, batches, order, length and edits of each run in FILE."""
    found = inspect.tell_run_file(path)
    return Found(found, found.shown())


@command("log", "The edits, with dates and reasons.")
def log(path: Annotated[str, "FILE"]) -> Found:
    """List the edits in FILE in the order of their steps, with dates, reasons and what each changes."""
    found = inspect.tell_run_file(path)
    edits = [edit for one in found.runs for edit in one.edits]
    lines = [line for edit in edits for line in inspect.edit_lines(edit)] or [f"{path}: no edits"]
    return Found({"run": path, "generation": found.generation, "edits": edits}, lines)


@command("edit", "Change the run from a step on.")
def edit(
    path: Annotated[str, "FILE"],
    *,
    at_step: int,
    weights: Annotated[str | None, "NAME=W,..."] = None,
    remove: tuple[str, ...] = (),
    exclude: Annotated[tuple[str, ...], "NAME=WHAT:..."] = (),
    how: Literal["mask", "drop"] | None = None,
    global_batch_size: int | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    order: str | None = None,
    seed: int | None = None,
    options: inspect.EditOptions,
) -> Found:
    """Change the last run in FILE from step N on. Every source goes on where it is.

    Documents of windows and packs are masked in their samples, unless --how drop is given; see Run.edit. Data are
    opened for --exclude only.

    Steps before the last state of the training, which it notes in FILE, cannot be changed. If it goes on from an
    earlier one, give --state. To add sources, use Run.edit and save_run in Python.

    Args:
        at_step: the first step that is different.
        weights: weights of the blend, one for each source from this step on.
        remove: source that comes no more; may be repeated.
        exclude: what is never trained on again, as ``web=documents:3,7-9``, or keys, shards, samples; may be repeated.
        how: mask the excluded documents in their samples, or drop whole samples that hold one.
        global_batch_size: global batch size.
        samples: number of samples of the whole run.
        epochs: number of passes of the whole run.
        order: order from the next epochs on: full, blocks, shards, torch, none.
        seed: seed of the order from the next epochs on.
    """
    if how and not exclude:
        raise click.UsageError("--how goes with --exclude")
    changes = {} if not exclude else {"exclude": _exclusions(exclude, how)}
    told = options.change(
        path, tracing.edit_run_file, at_step, weights=None if weights is None else _weights(weights), remove=remove,
        global_batch_size=global_batch_size, samples=samples, epochs=epochs, kind=order, seed=seed,
        reason=options.reason, replace=options.replace, **changes,
    )  # fmt: skip
    return Found(told, told.shown())


@command("skip", "Leave out the samples of some steps.")
def skip(
    path: Annotated[str, "FILE"],
    steps: Annotated[tuple[int, int], "A:B"],
    *,
    how: Literal["drop", "defer"] = "drop",
    options: inspect.EditOptions,
) -> Found:
    """Skip what the steps A to B - 1 of the last run in FILE would have had; step A gets what step B would have had.

    Args:
        how: drop the samples, or let them come at the end of their epochs.
    """
    edit = {"then": how, "reason": options.reason, "replace": options.replace}
    told = options.change(path, tracing.skip_in_run_file, range(*steps), **edit)
    return Found(told, told.shown())


@command("undo", "Take back the last edit.")
def undo(path: Annotated[str, "FILE"], *, options: inspect.ChangeOptions) -> Found:
    """Take back the last edit of the last run in FILE, which may be a skip, as if it had not been made."""
    told = options.change(path, tracing.undo_in_run_file)
    return Found(told, told.shown())


run = group(
    "run",
    "Show the file of a run, and change the run.",
    "Show what the file of a run says, and change the run from some step on.\n\n"
    "FILE is what save_run wrote. A change holds from the next start of the training on, which has to load the run "
    "with headrace.Run.load(FILE). All commands have --json.",
    *(show, log, edit, skip, undo),
)


def _exclusions(texts: Sequence[str], how: How | None) -> dict[str, headrace.Exclude]:
    """Return what was given as ``web=documents:3,7-9``, ``photos=keys:0001,0002`` or ``web=shards:part-3``."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, what = text.partition("=")
        kind, _, listed = what.partition(":")
        if not name or kind not in ("documents", "keys", "shards", "samples") or not all(listed.split(",")):
            raise ConfigError(
                f"--exclude {text}: expected documents, keys, shards or samples, as in web=documents:3,7-9"
            )
        values: list[Any] = listed.split(",")
        if kind in ("documents", "samples"):
            values = _numbers(text, listed)
        elif kind == "shards":
            values = [int(part) if part.isascii() and part.isdigit() else part for part in values]
        found.setdefault(name, {}).setdefault(kind, []).extend(values)
    return {name: headrace.Exclude(**kinds, how=how) for name, kinds in found.items()}


def _numbers(text: str, listed: str) -> list[int]:
    try:
        return ranges(listed)
    except ValueError as error:
        raise ConfigError(f"--exclude {text}: {error}") from None


def _weights(text: str) -> dict[str, float | Fraction]:
    """Return weights that were given as ``web=2,code=1/3``."""
    found: dict[str, float | Fraction] = {}
    for part in text.split(","):
        name, is_there, number = part.partition("=")
        try:
            weight = Fraction(number)
        except (ValueError, ZeroDivisionError):
            is_there = ""
        if not (name and is_there) or name in found:
            raise ConfigError(f"--weights {text}: expected a number for each name, once, as in web=2,code=3")
        found[name] = int(weight) if weight.denominator == 1 else float(number) if "/" not in number else weight
    return found
