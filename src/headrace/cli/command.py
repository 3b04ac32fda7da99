"""What all commands share: common options, errors with exit codes, ``--json``, and how signals end a command."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from headrace.cli import options
from headrace.errors import ConfigError, HeadraceError, StoreAwayError
from headrace.inspect.figures import writable

if TYPE_CHECKING:
    from headrace.inspect import Block
    from headrace.inspect.terminal import Draw

AWAY = "run the command again when the object store answers, or correct how it is reached; no file is at fault"
"""How an error ends for which nothing in the command or in the data is to blame; other messages say what to do."""

FAULTY = 1
"""The exit code of a check that finds faults."""

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

PLAN = "plan"
"""Stands for the executor below ``headrace job plan``."""

HANDS = ("--executor", "--workers")
"""The options that say who does the work of a command."""

_PATHS = ("DATA", "DATASET", "DIR", "DST", "FILE", "INPUT", "PATH", "RECIPE", "SOURCE", "SRC")


def _names_paths(param: click.Parameter) -> bool:
    """Whether a parameter accepts paths, as its metavar shows."""
    shown = (param.metavar or "").strip("[]").removesuffix("...")
    return shown in _PATHS


class Found(NamedTuple):
    """What a command found."""

    value: Any
    """What ``--json`` prints: a struct, or a dict."""

    report: Iterable[Block] = ()
    """What the report shows, which ``--quiet`` leaves out."""

    always: Iterable[Block] = ()
    """What is printed in front of it even so."""

    notes: Iterable[str] = ()
    """What is said on standard error, unless there is ``--quiet``."""

    is_faulty: bool = False
    """Whether the exit code is that of a check that finds faults."""


class Command(click.Command):
    """A command: a function, whose signature and docstring say what there is to give; see `headrace.cli.options`.

    A `HeadraceError` ends it with its message and exit code; other exceptions show a traceback. If the function accepts
    an ``executor``, other hosts may do the work, and `headrace job plan` plans it.

    Args:
        urls: names of the parameters that may be the URL of an object; all other paths must be local.
    """

    def __init__(
        self, function: Callable[..., Found | None], name: str, short_help: str, urls: tuple[str, ...] = ()
    ) -> None:
        text = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")[0]
        super().__init__(name, help=text.replace("``", ""), short_help=short_help)
        self.function, self.urls = function, urls

    @property
    def has_job(self) -> bool:
        """Whether other hosts may do the work."""
        return "executor" in self.function.__annotations__

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the arguments and options, which are made when they are first needed."""
        if not self.params:
            self.params = options.parameters(self.function)
            if "as_json" not in self.function.__annotations__:
                self.params.append(options.json_option())
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; below ``job plan`` nothing says who does the work."""
        rest = super().parse_args(ctx, args)
        if ctx.obj == PLAN and self.has_job and not ctx.resilient_parsing:
            for param in self.params:
                if (flag := max(param.opts, key=len)) in HANDS and options.is_given(param, ctx):
                    raise click.UsageError(f"{flag} says who does the work, and headrace job plan only plans it")
            ctx.params["executor"] = ctx.params["executor"]._replace(name=PLAN)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            is_shown = isinstance(param, click.Option) and not (ctx.obj == PLAN and param.opts[0] in HANDS)
            if is_shown and (record := param.get_help_record(ctx)):
                heading = param.place.heading if isinstance(param, options.Flag) else "Options"
                sections.setdefault(heading, []).append(record)
        for heading in sorted(sections, key="Options".__eq__):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def told(self, error: HeadraceError) -> str:
        """Return a message with options in place of the arguments in it: ``--num 5`` for ```num=5```."""
        flags = {name: known.flags.split()[0] for name, known in options.KNOWN.items() if known.flags}
        for param in self.params:
            if isinstance(param.type, options.Value):
                flags |= {name: f"{param.opts[0]} {name}" for name in param.type.names}
        flags |= {
            name: max(param.opts, key=len)
            for param in self.params
            if isinstance(param, options.Flag)
            for name in param.place.path[-1:]
        }

        def shown(match: re.Match[str]) -> str:
            name, value = match.groups()
            return match[0] if name not in flags else f"{flags[name]} {value}" if value else flags[name]

        return re.sub(r"`(\w+)(?:=([^`]+))?`", shown, str(error))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; with ``--json`` an error of click's is printed as JSON too."""
        with usage_errors(args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn errors and signals into messages and exit codes."""
        try:
            from headrace.io import check_local, check_readable

            for param in self.params:
                if _names_paths(param):
                    name = param.place.path[-1] if isinstance(param, options.Flag) else param.name
                    check = check_readable if name in self.urls else check_local
                    check(ctx.params[str(param.name)])
            try:
                with _terminable():
                    found = self.function(**options.arguments(self.function, self.params, ctx))
                    if found is not None:
                        _print_found(found, ctx)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise ConfigError(
                    f"{error.filename}: the name is too long for the file system; most allow 255 bytes for a name"
                ) from error
        except HeadraceError as error:
            message = self.told(error)
            if ctx.params.get("as_json"):
                _print_error(type(error).__name__, message, error.exit_code)
            advice = f"\nto do: {AWAY}" if isinstance(error, StoreAwayError) else ""
            click.echo(f"error: {message}{advice}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except _Terminated:
            click.echo("terminated", err=True)
            ctx.exit(TERMINATED)


def command(
    name: str, short_help: str, urls: tuple[str, ...] = (), kind: type[Command] = Command
) -> Callable[[Callable[..., Found | None]], Command]:
    """Make a command of a function."""
    return lambda function: kind(function, name, short_help, urls)


def given_names() -> set[str]:
    """Return the names of the fields that the user gave on the command line, even if they have their defaults."""
    ctx = click.get_current_context()
    found: set[str] = set()
    for param in ctx.command.get_params(ctx):
        if isinstance(param, options.Flag) and options.is_given(param, ctx):
            found.update(param.place.path[-1:])
            if isinstance(param.type, options.Value) and param.type.is_pairs:
                found.update(name for one in ctx.params[str(param.name)] for name, _ in one)
    return found


def group(name: str, short_help: str, text: str, *commands: click.Command) -> click.Group:
    """Return a command that has others below it."""
    return click.Group(name, {str(one.name): one for one in commands}, help=text, short_help=short_help)


@contextlib.contextmanager
def usage_errors(args: list[str]) -> Iterator[None]:
    """If ``--json`` is among the arguments, print errors of click's as JSON too."""
    as_json = "--json" in args  # click empties the list
    try:
        yield
    except click.UsageError as error:
        if as_json:
            _print_error("ConfigError", error.format_message(), error.exit_code)
        raise


def print_json(value: Any) -> None:
    """Print one JSON document on standard output; structs become objects."""
    import msgspec

    plain = value.to_dict() if hasattr(value, "to_dict") else writable(msgspec.to_builtins(value))
    click.echo(json.dumps(plain, indent=2, ensure_ascii=False))


def _print_found(found: Found, ctx: click.Context) -> None:
    """Print what a command found as JSON, or the lines of its report."""
    quiet = ctx.params.get("quiet")
    for note in () if quiet else found.notes:
        click.echo(f"note: {note}", err=True)
    if ctx.params["as_json"]:
        print_json(found.value)
    else:
        blocks = [*found.always, *(() if quiet else found.report)]
        if blocks:  # else nothing that prints needs to be loaded
            print_blocks(blocks)
    if found.is_faulty:
        ctx.exit(FAULTY)


def write_file(name: str, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        OutputError: it cannot be written.
    """
    from headrace.io import atomic_write

    atomic_write(name, data)


def print_blocks(blocks: Iterable[Block], draw: Draw | None = None) -> None:
    """Print blocks on standard output, in colours if it is a terminal; ``draw`` draws pictures."""
    from headrace.inspect import Style, lines

    for line in lines(blocks, Style.of(sys.stdout), draw):
        click.echo(line, color=True)


def _print_error(kind: str, message: str, exit_code: int) -> None:
    print_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})


class _Terminated(BaseException):
    """SIGTERM as an exception, so that temporary files are removed."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # Outside the main thread signals belong to the caller.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
