"""What the subcommands of ``headrace prepare`` share: their class, checks and parts of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from headrace import inspect, preparing
from headrace.cli.command import Command, Found
from headrace.errors import ConfigError
from headrace.inspect.figures import count, plural

if TYPE_CHECKING:
    from headrace.preparing.shards import ShardEstimate
    from headrace.stores import ErrorEntry

_MAX_ERRORS_SHOWN = 5


WHAT = {
    "text": "texts",
    "media": "media in tar shards",
    "energon": "a folder of .tar shards, which is prepared in place",
}
"""What each subcommand prepares, for messages."""


class Subcommand(Command):
    """A way to prepare; an option of another subcommand is refused with the name of that one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; the error for an option of another subcommand says where it belongs."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._belonging(ctx, error) from None

    def _belonging(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """Return the error that says which subcommands have this option, or the given one if none has it."""
        group = ctx.parent.command if ctx.parent is not None else None
        siblings = group.commands.values() if isinstance(group, click.Group) else ()
        owners = {
            f"{WHAT[str(sibling.name)]} (headrace prepare {sibling.name})": param.opts[0]
            for sibling in siblings
            for param in sibling.get_params(ctx)
            if error.option_name in param.opts
        }
        if not owners:
            return error
        option = next(iter(owners.values()))
        return click.UsageError(
            f"{option} is for {' and '.join(owners)}, not for {WHAT[str(self.name)]} (headrace prepare {self.name})",
            ctx,
        )


def check_errors(errors: preparing.ErrorOptions, what: str, on_error: str | None = None) -> None:
    """Raise ConfigError if ``max_errors`` is given, and the first error ends the run; ``what`` names what ends it.

    Args:
        errors: the options.
        what: a bad record, say.
        on_error: what a recipe says.
    """
    if (on_error or errors.on_error) == "stop" and errors.max_errors != preparing.ErrorOptions().max_errors:
        raise ConfigError(f"max_errors needs --on-error skip: otherwise the first {what} ends the run")


def output_folder(output: str | None) -> str:
    """Return the value of ``--output``; raises ConfigError if it is missing."""
    if output is None:
        raise ConfigError("--output DIR is missing: name the folder for the result")
    return output


def dropped(reasons: Mapping[str, int]) -> str:
    """Return what was dropped as `` (bad 2, duplicate 1 dropped)``, or nothing."""
    return f" ({', '.join(f'{name} {count(number)}' for name, number in reasons.items())} dropped)" if reasons else ""


def skipped(errors: Sequence[ErrorEntry], noun: str) -> list[str]:
    """Return the lines of a report about what was bad."""
    if not errors:
        return []
    shown = [f"    {error.file}, {error.unit} {error.line:,}: {error.message}" for error in errors[:_MAX_ERRORS_SHOWN]]
    return [f"  {plural(len(errors), noun)} skipped, all listed in headrace.json:", *shown]


def estimated(estimate: preparing.Estimate | ShardEstimate, pairs: Sequence[tuple[str, str]], bad: str) -> Found:
    """Return the report of ``--dry-run``.

    Args:
        estimate: what would be written.
        pairs: what is known of it.
        bad: how many records or samples are bad; empty if none is.
    """
    if bad:
        first = "" if estimate.first_error in estimate.stops else f": {estimate.first_error}"
        pairs = [*pairs, ("errors", bad + first)]
    if estimate.stops:
        pairs = [*pairs, ("stops", estimate.stops)]
    report: list[inspect.Block] = ["dry run: nothing was written", inspect.Pairs(pairs)]
    return Found(estimate, always=report, is_faulty=bool(estimate.stops))


def tell_output(output: str | None, options: preparing.PrepareOptions | preparing.ShardOptions) -> None:
    """For ``--dry-run``, say what is at the output already."""
    from headrace.preparing.outputs.folder import output_at

    if output is not None:
        note = output_at(output, overwrite=options.overwrite, restart=options.restart).look()
        if note:
            click.echo(f"note: {note}", err=True)
