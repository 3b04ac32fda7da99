"""What all commands share: errors with their exit codes, ``--json``, and the end by signals."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import click

from headrace.errors import HeadraceError
from headrace.inspect.figures import Heading, NamedValue, writable

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

F = TypeVar("F", bound=Callable[..., Any])


def dialect_options(command: F) -> F:
    """``--dialect`` and ``--documents``: how pairs of .bin and .idx are to be understood."""
    documents = click.option(
        "--documents", metavar="NAME", default="indices", help="Of .bin/.idx: sequences takes each as a document."
    )
    dialect = click.option(
        "--dialect", metavar="NAME", help="Who wrote .bin/.idx, where the bytes do not tell: megatron, neox, ..."
    )
    return dialect(documents(command))


def part_options(command: F) -> F:
    """``--split-part`` and `config_options`: which samples of a dataset of Energon's."""
    return click.option("--split-part", metavar="NAME", help="Of Energon's datasets: train, val, ...; all shards.")(
        config_options(command)
    )


def config_options(command: F) -> F:
    """``--split-config`` and ``--dataset-config``: by which files of a dataset of Energon's."""
    split = click.option(
        "--split-config", metavar="NAME", help="Of Energon's datasets: another split file in .nv-meta."
    )
    dataset = click.option("--dataset-config", metavar="NAME", help="Another dataset.yaml there.")
    return split(dataset(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether the user said this option."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


_PATHS = ("DATA", "DATASET", "DIR", "DST", "FILE", "INPUT", "PATH", "RECIPE", "SOURCE", "SRC")


def _names_paths(param: click.Parameter) -> bool:
    """Whether a parameter takes paths, which its metavar says."""
    shown = (param.metavar or "").strip("[]").removesuffix("...")
    return shown in _PATHS


class Command(click.Command):
    """A command whose `HeadraceError`s end it with a message and their exit code; other exceptions show a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the arguments; what click refuses is an error like any other."""
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if as_json:
                _print_error("ConfigError", error.format_message(), error.exit_code)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            from headrace.io import check_local

            check_local(*(ctx.params[param.name] for param in self.params if param.name and _names_paths(param)))
            with _terminable():
                return super().invoke(ctx)
        except HeadraceError as error:
            if ctx.params.get("as_json"):
                _print_error(type(error).__name__, str(error), error.exit_code)
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except _Terminated:
            click.echo("terminated", err=True)
            ctx.exit(TERMINATED)


def print_json(value: object) -> None:
    """One JSON document on standard output, and nothing else; structs become objects."""
    import msgspec

    click.echo(json.dumps(writable(msgspec.to_builtins(value)), indent=2, ensure_ascii=False))


def print_report(lines: Iterable[str]) -> None:
    """Lines on standard output; on a terminal with headings in bold and names of values faint, by rich."""
    if not sys.stdout.isatty():
        click.echo("\n".join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        text = Text(line)
        if isinstance(line, Heading):
            text.stylize("bold")
        elif isinstance(line, NamedValue):
            text.stylize("dim", 0, line.name_chars)
        console.print(text)


def _print_error(kind: str, message: str, exit_code: int) -> None:
    print_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})


class _Terminated(BaseException):
    """SIGTERM, turned into an exception so that temporary files are removed."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: whoever runs us there has the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
