"""``headrace prepare``: its subcommands, and the bare form, which finds the one that is meant by its arguments.

headrace prepare INPUT... --tokenizer PATH      is  headrace prepare text INPUT... --tokenizer PATH
headrace prepare INPUT... --recipe FILE         is  headrace prepare text INPUT... --recipe FILE
headrace prepare INPUT... --format tar          is  headrace prepare media INPUT...
headrace prepare DIR                            is  headrace prepare energon DIR
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
from click import Option

from headrace.cli import prepare_energon, prepare_media, prepare_text
from headrace.cli.command import usage_errors

_SUBCOMMANDS = (prepare_text.command, prepare_media.command, prepare_energon.command)
_OPTIONS = [[param for param in command.params if isinstance(param, Option)] for command in _SUBCOMMANDS]
_IN_PLACE = {param.name for param in _OPTIONS[-1]} - {param.name for options in _OPTIONS[:-1] for param in options}
_BARE = click.Command(
    "prepare",
    options_metavar="[OPTIONS] INPUT...",
    params=[*{param.name: param for some in _OPTIONS for param in some}.values()],
)
"""All options of all subcommands. It only finds out which are given; the subcommand reads their values."""


class Prepare(click.Group):
    """The group of subcommands. It puts the subcommand that is meant in front of arguments that name none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands, in their order."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after naming the subcommand that is meant."""
        with usage_errors(args):
            return super().parse_args(ctx, self._with_name(ctx, args))

    def _with_name(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with a subcommand in front; a name that is the only input and exists is a path.

        With ``text --recipe FILE`` it is no path, since the recipe has inputs.
        """
        is_named = bool(args) and args[0] in self.commands
        if is_named and not Path(args[0]).exists():
            return args
        names = ctx.help_option_names
        bare = click.Context(_BARE, parent=ctx.parent, info_name=ctx.info_name, help_option_names=names)
        try:
            values, inputs, given = _BARE.make_parser(bare).parse_args(list(args))
        except click.UsageError:
            if is_named:
                return args
            raise
        if any(param.opts == names for param in given):
            return args if is_named else ["--help"]
        if is_named and (len(inputs) > 1 or (args[0] == "text" and "recipe" in values)):
            click.echo(f"note: {args[0]} is the subcommand here; for the path write ./{args[0]}", err=True)
            return args
        return _completed(inputs, values, given)


def _completed(inputs: list[str], values: dict[str, Any], given: Sequence[click.Parameter]) -> list[str]:
    """Return the arguments of the subcommand that is meant, with its name in front."""
    name = _meant(inputs, values)
    if name == "media":
        del values["format"]
    options = [param for param in dict.fromkeys(given) if isinstance(param, Option) and param.name in values]
    return [name, *(arg for option in options for arg in _again(option, values[str(option.name)])), "--", *inputs]


def _meant(inputs: Sequence[str], values: dict[str, Any]) -> str:
    """Return the name of the subcommand that does what these arguments ask for."""
    if not values.keys() & {"output", "tokenizer", "recipe"} and _is_in_place(inputs, values):
        return "energon"
    return "media" if values.get("format") == "tar" and "recipe" not in values else "text"


def _again(option: Option, value: Any) -> list[str]:
    """Return the arguments that give an option this value."""
    if option.is_flag:
        return [option.opts[0]]
    return [arg for one in (value if option.multiple else [value]) for arg in (option.opts[0], one)]


def _is_in_place(inputs: Sequence[str], given: Collection[str]) -> bool:
    """Whether the inputs are prepared in place, if neither output nor tokeniser nor recipe is given."""
    if _IN_PLACE & set(given):
        return True
    if len(inputs) != 1:
        return False
    if "://" in inputs[0]:
        return True  # what can be prepared without output and tokeniser
    path = Path(inputs[0])
    if path.is_file():
        return path.suffix in (".jsonl", ".yaml")
    return path.is_dir() and ((path / ".nv-meta").is_dir() or _has_tar(path))


def _has_tar(folder: Path) -> bool:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")) for name in files):
            return True
    return False


@click.group(
    cls=Prepare,
    name="prepare",
    commands={str(command.name): command for command in _SUBCOMMANDS},
    short_help="Make a store of text, records or media.",
    subcommand_metavar="[text|media|energon] INPUT...",
)
def command() -> None:
    """Make a store of text, of records or of media, with the subcommand for it.

    Without a subcommand the arguments say what is made: --tokenizer makes tokens of text, --recipe FILE makes samples
    of records, and --format tar makes tar shards of media. A folder of .tar shards, a .jsonl or the .yaml of a
    metadataset, without --output, is prepared in place. The options are those of the subcommand, as --json.
    """
