"""``headrace prepare``: its subcommands, and the bare form, which finds the one that is meant by its arguments.

headrace prepare INPUT... --tokenizer PATH      is  headrace prepare text INPUT... --tokenizer PATH
headrace prepare INPUT... --recipe FILE         is  headrace prepare text INPUT... --recipe FILE
headrace prepare INPUT... --format tar          is  headrace prepare media INPUT...
headrace prepare DIR                            is  headrace prepare energon DIR
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from headrace.cli import prepare_energon, prepare_media, prepare_text
from headrace.cli.command import usage_errors

_SUBCOMMANDS = (prepare_text.text, prepare_media.media, prepare_energon.energon)


class Prepare(click.Group):
    """The group of subcommands. It puts the subcommand that is meant in front of arguments that begin with none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands, in their order."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after naming the subcommand that is meant."""
        is_named = bool(args) and args[0] in self.commands
        if is_named and Path(args[0]).exists():
            click.echo(f"note: {args[0]} is the subcommand here; for the path write ./{args[0]}", err=True)
        with usage_errors(args):
            return super().parse_args(ctx, args if is_named else _named(ctx, args))


def _named(ctx: click.Context, args: list[str]) -> list[str]:
    """Return arguments with the subcommand in front that does what they ask for; text, if nothing says otherwise."""
    flags = {arg.partition("=")[0] for arg in args if arg.startswith("-")}
    if flags & {*ctx.help_option_names}:
        return ["--help"]
    if "--recipe" in flags:
        return ["text", *args]
    at = next(
        (at for at, arg in enumerate(args) if arg == "--format=tar" or args[at : at + 2] == ["--format", "tar"]), None
    )
    if at is not None:  # which says media, and is no option of theirs
        return ["media", *args[:at], *args[at + (1 if "=" in args[at] else 2) :]]
    if flags & {"--tokenizer", "--output", "-o"}:
        return ["text", *args]  # without loading what the options of the other subcommands need
    *others, in_place = ({option for param in one.get_params(ctx) for option in param.opts} for one in _SUBCOMMANDS)
    return ["energon" if flags & in_place.difference(*others) or sum(map(_is_place, args)) == 1 else "text", *args]


def _is_place(name: str) -> bool:
    """Whether an input is prepared in place, if neither output nor tokeniser nor recipe is given."""
    path = Path(name)
    if "://" in name or (path.suffix in (".jsonl", ".yaml") and path.is_file()):
        return True  # what can be prepared without output and tokeniser
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
