"""``headrace check-cache``: whether Megatron's index caches belong to the data there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.cli.figures import plural
from headrace.cli.progress import ProgressLine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.compat.megatron.caches import CacheVerdict

FAULTY = 1


@click.command(cls=Command, name="check-cache", short_help="Check that Megatron's index caches are of these data.")
@click.argument("path", metavar="PATH")
@click.option("--no-extra-token", is_flag=True, help="The run has add_extra_token_to_sequence=False.")
@click.option(
    "--keep-partial-validation", is_flag=True, help="The run has drop_last_partial_validation_sequence=False."
)
@click.option("--moved", metavar="OLD=NEW", multiple=True, help="Paths of data that begin with OLD now begin with NEW.")
@click.option("--quiet", "-q", is_flag=True, help="Show only faults.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: str,
    no_extra_token: bool,
    keep_partial_validation: bool,
    moved: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Check every cache of Megatron's at PATH against the data that its description.txt names.

    PATH is Megatron's --data-cache-path, a description.txt in it, or the prefix of data that have a cache beside them.
    The names of caches do not tell when data were replaced under their path: here every entry is compared with them.
    Exit code 0: all are right; 1: faults, each printed with its file and row; 4: no cache is there.
    """
    import msgspec

    from headrace.compat.megatron.caches import CacheReading, check_cache, find_descriptions

    reading = CacheReading(not no_extra_token, not keep_partial_validation, dict(_pair(each) for each in moved))
    descriptions = find_descriptions(Path(path))
    verdicts = []
    with ProgressLine(quiet=quiet or as_json) as line:
        for number, description in enumerate(descriptions):
            if line.is_terminal or line.is_due:
                line.show(f"checking cache {number + 1:,} of {len(descriptions):,}: {description}")
            verdicts.append(check_cache(description, reading))
            line.clear()
            if not as_json and not (quiet and verdicts[-1].ok):
                click.echo("\n".join(report(verdicts[-1])))
    faulty = sum(not verdict.ok for verdict in verdicts)
    if as_json:
        print_json({"path": path, "ok": not faulty, "caches": msgspec.to_builtins(verdicts)})
    elif not quiet:
        end = f"{faulty:,} faulty: remove these, and Megatron builds them anew" if faulty else "all right"
        click.echo(f"{path}: {plural(len(verdicts), 'cache')}, {end}")
    if faulty:
        ctx.exit(FAULTY)


def report(verdict: CacheVerdict) -> list[str]:
    """A verdict for people."""
    if verdict.ok:
        order = "" if verdict.is_own_order else ", in another order than its options give"
        part = f"{verdict.part} of " if verdict.part else ""
        return [f"{verdict.path}: right: {part}{verdict.of}, {plural(verdict.samples, 'sample')}{order}"]
    lines = [str(problem) for problem in verdict.problems]
    return [*lines, f"  {verdict.cause}"] if verdict.cause else lines


def _pair(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not sign or not old:
        raise ConfigError(f"--moved {text}: write OLD=NEW, two beginnings of paths")
    return old, new
