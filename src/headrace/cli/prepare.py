"""``headrace prepare``: its subcommands, and the bare form, which finds the one that is meant by its arguments.

headrace prepare INPUT... --tokenizer PATH      is  headrace prepare text INPUT... --tokenizer PATH
headrace prepare INPUT... --recipe FILE         is  headrace prepare text INPUT... --recipe FILE
headrace prepare INPUT... --format tar          is  headrace prepare media INPUT...
headrace prepare DIR                            is  headrace prepare energon DIR
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click import Option

from headrace.cli import prepare_energon, prepare_media, prepare_text
from headrace.cli.command import usage_errors

_SUBCOMMANDS = (prepare_text.text, prepare_media.media, prepare_energon.energon)


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
        given_flags = {arg.partition("=")[0] for arg in args}
        if not is_named and given_flags & {"--tokenizer", "--recipe"} and not given_flags & {"--format", *names}:
            return ["text", *args]  # without loading what the options of the other subcommands need
        bare, flags = _bare(ctx)
        try:
            values, inputs, given = bare.command.make_parser(bare).parse_args(list(args))
        except click.UsageError:
            if is_named:
                return args
            raise
        if any(param.opts == names for param in given):
            return args if is_named else ["--help"]
        options = {param.opts[0]: values[str(param.name)] for param in given if param.name in values}
        if is_named and (len(inputs) > 1 or (args[0] == "text" and "--recipe" in options)):
            click.echo(f"note: {args[0]} is the subcommand here; for the path write ./{args[0]}", err=True)
            return args
        name = _meant(inputs, options, flags)
        if name == "media" and "--format" in args:  # which says media, and is no option of theirs
            at = args.index("--format")
            args = args[:at] + args[at + 2 :]
        return [name, *(arg for arg in args if name != "media" or arg != "--format=tar")]


def _bare(ctx: click.Context) -> tuple[click.Context, set[str]]:
    """Return a context in which the options of all subcommands are parsed, and the options of those in place alone.

    It only finds out which are given; the subcommand reads their values.
    """
    options = [[param for param in one.get_params(ctx) if isinstance(param, Option)] for one in _SUBCOMMANDS]
    params = {param.opts[0]: param for some in options for param in some if param.opts[0] != "--help"}
    command = click.Command("prepare", options_metavar="[OPTIONS] INPUT...", params=[*params.values()])
    bare = click.Context(command, parent=ctx.parent, info_name=ctx.info_name, help_option_names=ctx.help_option_names)
    *others, last = ({param.opts[0] for param in some} for some in options)
    return bare, last.difference(*others)


def _meant(inputs: Sequence[str], values: Mapping[str, Any], in_place: set[str]) -> str:
    """Return the name of the subcommand that does what these arguments ask for."""
    if not values.keys() & {"--output", "--tokenizer", "--recipe"} and (in_place & values.keys() or _is_place(inputs)):
        return "energon"
    return "media" if values.get("--format") == "tar" and "--recipe" not in values else "text"


def _is_place(inputs: Sequence[str]) -> bool:
    """Whether the inputs are prepared in place, if neither output nor tokeniser nor recipe is given."""
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


prepare = Prepare(
    "prepare",
    {str(command.name): command for command in _SUBCOMMANDS},
    short_help="Make a store of text, records or media.",
    subcommand_metavar="[text|media|energon] INPUT...",
    help="Make a store of text, of records or of media, with the subcommand for it.\n\n"
    "Without a subcommand the arguments say what is made: --tokenizer makes tokens of text, --recipe FILE makes "
    "samples of records, and --format tar makes tar shards of media. A folder of .tar shards, a .jsonl or the .yaml of "
    "a metadataset, without --output, is prepared in place. The options are those of the subcommand, as --json.",
)
