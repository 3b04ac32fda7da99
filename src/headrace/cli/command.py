"""What all commands share: common options, errors with exit codes, ``--json``, and how signals end a command."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

import headrace
from headrace.errors import ConfigError, HeadraceError, StoreAwayError
from headrace.inspect.figures import Heading, NamedValue, writable

if TYPE_CHECKING:
    from headrace.plan.packing import Packing

AWAY = "run the command again when the object store answers, or correct how it is reached; no file is at fault"
"""How an error ends for which nothing in the command or in the data is to blame; other messages say what to do."""

FAULTY = 1
"""The exit code of a check that finds faults."""

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

F = TypeVar("F", bound=Callable[..., Any])


_OF_TOKENS = {
    "--dialect": "Program that wrote .bin/.idx, if the bytes do not show it: megatron, neox, ...",
    "--documents": "What a document of .bin/.idx is: 'sequences' makes each sequence a document (default: 'indices').",
    "--bin-dtype": "Dtype of a .bin without .idx and without a header: uint16 or uint32.",
    "--eod": "Of a .bin without .idx: the id with which each document ends.",
    "--bos": "Of a .bin without .idx: the id with which each document begins.",
}


def dialect_options(command: F, bin_dtype: str = "dtype") -> F:
    """Add the options that say how tokens are read; ``bin_dtype`` is the argument that gets ``--bin-dtype``."""
    for name, text in reversed(_OF_TOKENS.items()):
        names = [name, bin_dtype] if name == "--bin-dtype" else [name]
        kind, default = int if name in ("--eod", "--bos") else str, "indices" if name == "--documents" else None
        command = click.option(*names, metavar="NAME" if kind is str else "ID", type=kind, default=default, help=text)(
            command
        )
    return command


def part_options(command: F) -> F:
    """Add ``--split-part`` and `config_options`, which choose the samples of an Energon dataset."""
    return click.option(
        "--split-part",
        "--split-parts",
        "split_part",
        metavar="NAME",
        help="Part of an Energon dataset: train, val, ... (default: all shards).",
    )(config_options(command))


def config_options(command: F) -> F:
    """Add ``--split-config`` and ``--dataset-config``, which name files in the ``.nv-meta`` of an Energon dataset."""
    split = click.option(
        "--split-config", metavar="NAME", help="Split file in .nv-meta of an Energon dataset (default: split.yaml)."
    )
    dataset = click.option("--dataset-config", metavar="NAME", help="Dataset file in .nv-meta (default: dataset.yaml).")
    return split(dataset(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether the user gave this option on the command line."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def given_options(ctx: click.Context, *but: str) -> dict[str, Any]:
    """Return the parameters that the user gave, except those of these names; the library has the defaults."""
    return {name: value for name, value in ctx.params.items() if name not in but and is_given(ctx, name)}


def packing_of(given: Mapping[str, Any], without_length: str) -> Packing | None:
    """Return how to pack, by the options that are not None; None if there are none.

    Raises:
        ConfigError: with the message ``without_length``, if there are options but no length.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and "seq_len" not in chosen:
        raise ConfigError(without_length)
    return headrace.Packing(**chosen) if chosen else None


def check_shards(given: Mapping[str, Any]) -> None:
    """Raise ConfigError if one shard and the size of several are asked for."""
    if given.get("single") and given.get("shard_tokens") is not None:
        raise ConfigError("--single writes one shard and --shard-tokens cuts it into several: use only one of them")


_PATHS = ("DATA", "DATASET", "DIR", "DST", "FILE", "INPUT", "PATH", "RECIPE", "SOURCE", "SRC")


def _names_paths(param: click.Parameter) -> bool:
    """Whether a parameter accepts paths, as its metavar shows."""
    shown = (param.metavar or "").strip("[]").removesuffix("...")
    return shown in _PATHS


_ARGUMENTS = {"packing": "--pack", "read_all": "--show"}
"""Arguments of the library that commands do not have as a parameter of the same name."""


class Command(click.Command):
    """A command that a `HeadraceError` ends with its message and exit code; other exceptions show a traceback.

    Args:
        urls: names of the parameters that may be the URL of an object; all other paths must be local.
    """

    def __init__(self, *args: Any, urls: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.urls = urls

    def told(self, error: HeadraceError) -> str:
        """Return a message with options in place of the arguments in it: ``--num 5`` for ```num=5```."""
        flags = dict(_ARGUMENTS)
        for param in self.params:
            flag = f"--{str(param.name).replace('_', '-')}"
            if isinstance(param, click.Option):
                flags[str(param.name)] = flag if flag in param.opts else param.opts[0]

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
                if param.name and _names_paths(param):
                    check = check_readable if param.name in self.urls else check_local
                    check(ctx.params[param.name])
            try:
                with _terminable():
                    return super().invoke(ctx)
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


def print_found(found: object, report: Iterable[str], *, as_json: bool, quiet: bool = False) -> None:
    """Print what a command found as JSON, or the lines of its report."""
    if as_json:
        print_json(found)
    elif not quiet:
        print_report(report)


def write_file(name: str, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        OutputError: it cannot be written.
    """
    from headrace.io import atomic_write

    atomic_write(name, data)


def print_report(lines: Iterable[str]) -> None:
    """Print lines on standard output; on a terminal headings are bold and the names of values faint."""
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
