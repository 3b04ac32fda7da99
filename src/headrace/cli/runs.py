"""``headrace run``: what the file of a run says, and edits of the run, without Python and without the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

import headrace
from headrace import inspect, tracing
from headrace.cli.command import Command, json_option, print_found
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.datasets.editing import Replace, Then
    from headrace.datasets.exclusions import How

F = TypeVar("F", bound=Callable[..., Any])

_EXCLUDE = "What is never trained on again: web=documents:3,7-9, or keys, shards, samples; may be repeated."


@click.group(name="run", short_help="Show the file of a run, and change the run.")
def run() -> None:
    """Show what the file of a run says, and change the run from some step on.

    FILE is what save_run wrote. A change holds from the next start of the training on, which has to load the run with
    headrace.Run.load(FILE). All commands have --json.
    """


def _changing(function: F) -> F:
    options = [
        click.option("--trained", metavar="N", type=int, help="Number of steps of the training so far."),
        click.option("--state", metavar="FILE", help="State, as JSON, from which the training goes on."),
        click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing."),
    ]
    for option in reversed(options):
        function = option(function)
    return json_option(function)


def _making(function: F) -> F:
    options = [
        click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept in the file."),
        click.option(
            "--replace",
            type=click.Choice(["no", "step", "later"]),
            default="no",
            help="Take the place of the edit at this step, or of this one and all later ones.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return _changing(function)


def _trained(trained: int | None, state: str | None) -> int | Mapping[str, Any] | None:
    if trained is not None and state is not None:
        raise click.UsageError("--trained and --state both say how far the training has come: pass one of them")
    return trained if state is None else tracing.read_state(state)


@run.command(cls=Command, name="show", short_help="The mix, batches, length and edits.")
@click.argument("path", metavar="FILE")
@json_option
def show(path: str, as_json: bool) -> None:
    """Show the mix, batches, order, length and edits of each run in FILE."""
    found = inspect.tell_run_file(path)
    print_found(found, found.lines(), as_json=as_json)


@run.command(cls=Command, name="log", short_help="The edits, with dates and reasons.")
@click.argument("path", metavar="FILE")
@json_option
def log(path: str, as_json: bool) -> None:
    """List the edits in FILE in the order of their steps, with dates, reasons and what each changes."""
    found = inspect.tell_run_file(path)
    edits = [edit for one in found.runs for edit in one.edits]
    print_found(
        {"run": path, "generation": found.generation, "edits": edits},
        [line for edit in edits for line in inspect.edit_lines(edit)] or [f"{path}: no edits"],
        as_json=as_json,
    )


@run.command(cls=Command, name="edit", short_help="Change the run from a step on.")
@click.argument("path", metavar="FILE")
@click.option("--at-step", metavar="N", type=int, required=True, help="The first step that is different.")
@click.option("--weights", metavar="NAME=W,...", help="Weights of the blend, one for each source from this step on.")
@click.option("--remove", metavar="NAME", multiple=True, help="Source that comes no more; may be repeated.")
@click.option("--exclude", metavar="NAME=WHAT:...", multiple=True, help=_EXCLUDE)
@click.option("--drop", is_flag=True, help="Leave out whole samples that hold an excluded document.")
@click.option("--batch-size", "global_batch_size", metavar="N", type=int, help="Global batch size.")
@click.option("--samples", metavar="N", type=int, help="Number of samples of the whole run.")
@click.option("--epochs", metavar="N", type=int, help="Number of passes of the whole run.")
@click.option("--order", "kind", metavar="KIND", help="Order from the next epochs on: full, blocks, shards, none.")
@click.option("--seed", metavar="S", type=int, help="Seed of the order from the next epochs on.")
@_making
def edit(
    path: str,
    at_step: int,
    weights: str | None,
    exclude: tuple[str, ...],
    drop: bool,
    trained: int | None,
    state: str | None,
    dry_run: bool,
    as_json: bool,
    **changes: Any,
) -> None:
    """Change the last run in FILE from step N on. Every source goes on where it is.

    Documents of windows and packs are masked in their samples, unless --drop is given; see Run.edit. Data are opened
    for --exclude only.

    Steps before the last state of the training, which it notes in FILE, cannot be changed. If it goes on from an
    earlier one, give --state or --trained. To add sources, use Run.edit and save_run in Python.
    """
    given = None if weights is None else _weights(weights)
    if exclude:
        changes["exclude"] = _exclusions(exclude, "drop" if drop else None)
    elif drop:
        raise click.UsageError("--drop goes with --exclude")
    come = _trained(trained, state)
    found = tracing.edit_run_file(path, at_step, weights=given, dry_run=dry_run, trained=come, **changes)
    _tell(path, found, dry_run=dry_run, as_json=as_json)


@run.command(cls=Command, name="skip", short_help="Leave out the samples of some steps.")
@click.argument("path", metavar="FILE")
@click.argument("steps", metavar="A:B")
@click.option("--defer", is_flag=True, help="Let the samples come at the end of their epochs.")
@_making
def skip(
    path: str,
    steps: str,
    defer: bool,
    reason: str,
    replace: Replace,
    trained: int | None,
    state: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Skip what the steps A to B - 1 of the last run in FILE would have had; step A gets what step B would have had."""
    first, _, end = steps.partition(":")
    if not (first.isascii() and first.isdigit() and end.isascii() and end.isdigit()):
        raise click.UsageError(f"{steps!r} is no range of steps; expected the form 1200:1250")
    then: Then = "defer" if defer else "drop"
    found = tracing.skip_in_run_file(
        path,
        range(int(first), int(end)),
        then=then,
        reason=reason,
        replace=replace,
        dry_run=dry_run,
        trained=_trained(trained, state),
    )
    _tell(path, found, dry_run=dry_run, as_json=as_json)


@run.command(cls=Command, name="undo", short_help="Take back the last edit.")
@click.argument("path", metavar="FILE")
@_changing
def undo(path: str, trained: int | None, state: str | None, dry_run: bool, as_json: bool) -> None:
    """Take back the last edit of the last run in FILE, which may be a skip, as if it had not been made."""
    found = tracing.undo_in_run_file(path, dry_run=dry_run, trained=_trained(trained, state))
    _tell(path, found, dry_run=dry_run, as_json=as_json)


def _tell(path: str, found: tracing.FileEdit, *, dry_run: bool, as_json: bool) -> None:
    told = inspect.tell_change(path, found, written=not dry_run)
    print_found(told, told.lines(), as_json=as_json)


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
            values = [number for part in values for number in _numbers(text, part)]
        elif kind == "shards":
            values = [int(part) if part.isascii() and part.isdigit() else part for part in values]
        found.setdefault(name, {}).setdefault(kind, []).extend(values)
    return {name: headrace.Exclude(**kinds, how=how) for name, kinds in found.items()}


def _numbers(text: str, part: str) -> range:
    """Return the numbers of ``7`` or of ``7-9``."""
    first, _, last = part.partition("-")
    found = range(0)
    with suppress(ValueError):
        found = range(int(first), int(last or first) + 1)
    if not found:
        raise ConfigError(f"--exclude {text}: {part!r} is no number and no range of numbers, such as 7-9")
    return found


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
