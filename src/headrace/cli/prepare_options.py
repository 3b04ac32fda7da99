"""What the subcommands of ``headrace prepare`` share: their class, options, and the reading of values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click import Option

from headrace import preparing
from headrace.cli.job import JobCommand
from headrace.engine.forking import be_one_thread
from headrace.errors import ConfigError
from headrace.inspect.figures import count, plural

if TYPE_CHECKING:
    from headrace.preparing import ErrorOptions
    from headrace.stores import ErrorEntry

_MAX_ERRORS_SHOWN = 5


class Subcommand(JobCommand):
    """A way to prepare; an option of another subcommand is refused with the name of that one.

    Its process keeps to one thread, so that workers can be forked from it.

    Args:
        what: what the subcommand prepares, for messages: ``texts``.
    """

    def __init__(self, *args: Any, what: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.what = what
        self.params.append(JSON)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; the error for an option of another subcommand says where it belongs."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._belonging(ctx, error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Keep libraries that are loaded later from starting threads, then run the subcommand."""
        be_one_thread()
        return super().invoke(ctx)

    def _belonging(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """Return the error that says which subcommands have this option, or the given one if none has it."""
        group = ctx.parent.command if ctx.parent is not None else None
        siblings = group.commands.values() if isinstance(group, click.Group) else ()
        owners = {
            f"{sibling.what} (headrace prepare {sibling.name})": param.opts[0]
            for sibling in siblings
            if isinstance(sibling, Subcommand)
            for param in sibling.params
            if error.option_name in param.opts
        }
        if not owners:
            return error
        option = next(iter(owners.values()))
        return click.UsageError(
            f"{option} is for {' and '.join(owners)}, not for {self.what} (headrace prepare {self.name})", ctx
        )


JSON = Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on standard output.")
OUTPUT = Option(["--output", "-o"], metavar="DIR", help="Folder or URL for the result; it must be new or empty.")
TOKENIZER = Option(["--tokenizer"], metavar="PATH", help="A tokenizer.json, or a folder that holds one.")
ID_FIELD = Option(
    ["--id-field"], metavar="NAME", help="Field with the id of each record, which `headrace where` then shows."
)
MAX_RECORD_BYTES = Option(
    ["--max-record-bytes"],
    metavar="N",
    type=int,
    help="Maximum size of a record; a longer one is bad (default: 64 MiB).",
)
BACKEND = Option(
    ["--backend"],
    type=click.Choice(["auto", "tokenizers", "gigatoken", "fastokens"]),
    default="auto",
    help="Library that encodes (default: the fastest one that is installed and proved equal to tokenizers).",
)
SHARD_TOKENS = Option(
    ["--shard-tokens"], metavar="N", type=int, help="Maximum number of tokens per shard (default: 2^30)."
)
SINGLE = Option(["--single"], is_flag=True, help="Write one shard of any size.")
FILTER = Option(
    ["--filter", "function"], metavar="MODULE:FUNCTION", help="Drop records for which this function returns false."
)
DEDUPLICATE = Option(
    ["--deduplicate"], is_flag=True, help="Keep only the first of several documents with the same text."
)
ON_ERROR = Option(
    ["--on-error"],
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="What is bad ends the run (default: stop), or is left out and listed.",
)
MAX_ERRORS = Option(
    ["--max-errors"],
    metavar="N|SHARE",
    help="Maximum number or share of what is bad to skip, as 50 or 0.1% (default: 100).",
)
SPLIT_RATIO = Option(["--split-ratio"], metavar="A,B,C", help="Shares of train, val and test, as 8,1,1.")
SAMPLE_TYPE = Option(["--sample-type"], metavar="NAME", help="Sample type for dataset.yaml, as CaptioningSample.")
FIELD_MAP = Option(
    ["--field-map"],
    metavar="JSON",
    help='Fields of the sample type, as \'{"image": "jpg", "caption": "txt"}\'.',
)
WORKERS = Option(
    ["--workers", "--num-workers"],
    metavar="N",
    type=int,
    help="Number of worker processes (default: one per usable core).",
)
OVERWRITE = Option(
    ["--overwrite", "--force-overwrite"],
    is_flag=True,
    help="Replace the output of an earlier run once the new one is complete.",
)
RESTART = Option(["--restart"], is_flag=True, help="Discard an unfinished run in the folder (default: continue it).")
DRY_RUN = Option(
    ["--dry-run"], is_flag=True, help="Estimate what would be written from a sample of the input; write nothing."
)
QUIET = Option(["--quiet", "-q"], is_flag=True, help="Show no progress, notes or summary.")


def chosen(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the options of these names that have a value; the others keep the defaults of the library."""
    return {name: given[name] for name in names if given.get(name) not in (None, ())}


def error_options(given: Mapping[str, Any], what: str) -> ErrorOptions:
    """Return what the run does about errors; ``what`` names what ends it otherwise: ``record``.

    Raises:
        ConfigError: ``--max-errors`` is no number or share, or it is given without ``--on-error skip``.
    """
    found = chosen(given, "on_error", "max_errors")
    if "max_errors" in found:
        if found.get("on_error") != "skip":
            raise ConfigError(f"--max-errors needs --on-error skip: otherwise the first {what} ends the run")
        found["max_errors"] = number_or_share(found["max_errors"])
    return preparing.ErrorOptions(**found)


def number_or_share(given: str) -> int | float:
    """Parse ``100``, ``0.001`` or ``0.1%``; raises ConfigError."""
    try:
        if given.isascii() and given.isdigit():
            return int(given)
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ConfigError(f"--max-errors {given}: write a number such as 100, or a share such as 0.001 or 0.1%")
    return share


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse shares such as ``8,1,1`` or ``0.5,0.2,0.3``; raises ConfigError."""
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise ConfigError(f"--split-ratio {text}: write the shares of train, val and test, as 8,1,1") from None


def parse_field_map(text: str) -> dict[str, str]:
    """Parse a JSON object that says where each field of a sample type is found; raises ConfigError."""
    from headrace.config import without_repeats

    try:
        found = json.loads(text, object_pairs_hook=without_repeats)
    except ValueError as error:
        raise ConfigError(f"--field-map {text}: this cannot be read as JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(
            f'--field-map {text}: write an object whose values are strings, as {{"image": "jpg", "caption": "txt"}}'
        )
    return found


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
