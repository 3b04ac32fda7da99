"""The command line: one file per command or family of commands, imported when the command runs.

    headrace demo                                               kill, edit and resume a training run, with proof
    headrace prepare text INPUT... -o DIR --tokenizer PATH      text -> tokens on disk
    headrace prepare text --recipe FILE --output DIR            records -> samples for fine-tuning and more
    headrace prepare media INPUT... --output DIR                media -> tar shards
    headrace prepare energon PATH                               tars -> an Energon dataset, in place
    headrace job plan COMMAND ...                               plan the work of a command for any hosts
    headrace job task|status|finish DIR                         do, watch and complete what was planned
    headrace info PATH                                          what a store holds
    headrace check PATH                                         whether it is whole
    headrace preview PATH                                       its documents as text, and which tokens are trained
    headrace ls DATASET [PATTERN]                               the samples of tar shards and other media
    headrace cat DATASET KEY[.PART]                             one sample, or the bytes of one part
    headrace render RECIPE --record N                           what a recipe makes of one record, step by step
    headrace merge SRC... --output DIR                          several stores -> one
    headrace convert SRC DST --format NAME                      a store in another format, dtype or other shards
    headrace split SRC DST --split 969,30,1                     a store -> several, by shares or in equal parts
    headrace where PATH DOC...                                  which line of which input a document comes from
    headrace trace step N                                       what step N of a training run was fed
    headrace trace sample SOURCE NUMBER                         which steps see a sample
    headrace account FILE                                       what a training run was fed, or where two part
    headrace run show|log FILE                                  the mix of a run, and its edits
    headrace run edit FILE --at-step N ...                      change it from a step on
    headrace run skip FILE A:B                                  leave out the samples of some steps
    headrace cache plan FILE --limit BYTES                      what a run reads, and what caches would save
    headrace cache info|verify|clear DIR                        what is in a cache, whether it is whole; empty it
    headrace measure DATASET --encoder MODULE:CLASS             run a task encoder once over every sample
    headrace ui PATH...                                         data, mixes and runs as pages in the browser
    headrace quarantine DATASET --faults REPORT                 leave bad samples out of it
    headrace export-cache DATA... --samples N                   write the index caches that Megatron looks for

`command` holds what all commands share: errors, exit codes and ``--json``. `progress` shows how far a long run is. The
functions that look things up for the commands are in ``headrace.inspect``. This package may import every other one;
importing it loads click only.
"""

from __future__ import annotations

from importlib import import_module

import click

from headrace._version import __version__

TASKS = {
    "See it work": {"demo": "demo"},
    "Make data": {
        "prepare": "prepare",
        "job": "job",
        "render": "preview",
        "merge": "copying",
        "convert": "copying",
        "split": "copying",
        "measure": "measure",
    },
    "Look at data": {
        "info": "stores",
        "check": "stores",
        "preview": "preview",
        "ls": "stores",
        "cat": "stores",
        "where": "origins",
        "quarantine": "stores",
        "ui": "preview",
    },
    "Follow a run": {"trace": "origins", "account": "origins", "run": "runs", "cache": "caches"},
    "Work beside Megatron": {"export-cache": "caches"},
}
"""The commands by task, in the order of ``headrace --help``, each with its module."""

COMMANDS = {name: module for commands in TASKS.values() for name, module in commands.items()}

__all__ = ["main"]


class LazyGroup(click.Group):
    """A group that imports the module of a command when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name, or None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"headrace.cli.{COMMANDS[cmd_name]}"), cmd_name.replace("-", "_"))
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task."""
        width = max(map(len, COMMANDS)) + 2
        limit = formatter.width - 2 - width
        for task, names in TASKS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, command.get_short_help_str(limit)) for name, command in commands if command is not None]
            with formatter.section(task):
                formatter.write_dl([(name.ljust(width - 2), text) for name, text in rows])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does; the error for an unknown one suggests the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from headrace.config import nearest

            hint = nearest(args[0], COMMANDS) or f"; the commands are: {', '.join(COMMANDS)}."
            ctx.fail(f"no such command {args[0]!r}{hint}")
        if args and args[0] == "prepare":
            from headrace.engine.forking import be_one_thread

            # Before its options import NumPy, which would start threads: workers are forks of a process without them.
            be_one_thread()
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Completion of commands and options in bash: eval "$(_HEADRACE_COMPLETE=bash_source headrace)"',
)
@click.option("--version", is_flag=True, help="Print the version and exit.")
@click.option(
    "--verbose", is_flag=True, help="With --version: also of Python and all packages, for the report of a bug."
)
@click.pass_context
def main(ctx: click.Context, version: bool, verbose: bool) -> None:
    """Feed training runs: text, conversations and media in, model-ready batches out."""
    if version:
        lines = import_module("headrace.cli.versions").version_lines() if verbose else [f"headrace {__version__}"]
        click.echo("\n".join(lines))
        ctx.exit()
    if verbose:
        raise click.UsageError("--verbose goes with --version: write headrace --version --verbose")
