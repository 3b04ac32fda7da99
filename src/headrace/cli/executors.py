"""The options that say where the tasks of a job are done. They belong to every command that runs a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from click import Option

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.engine.executors import Executor

EXECUTOR = Option(
    ["--executor"],
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    help="Where the tasks are done: on this host (default: local), or on those of Ray or Slurm.",
)
_RAY = (Option(["--address"], metavar="ADDRESS", help="Address of the Ray cluster (default: as ray.init finds it)."),)
_SLURM = (
    Option(["--partition"], metavar="NAME", help="Partition of the jobs (default: that of the cluster)."),
    Option(["--time"], metavar="TIME", help="Time limit of each job, as 4:00:00."),
    Option(["--array-parallel"], metavar="N", type=int, help="Jobs of the array that may run at the same time."),
    Option(
        ["--tasks-per-job"],
        metavar="N",
        type=int,
        help="Tasks for each job of the array (default: as many as give 32 jobs).",
    ),
    Option(["--cpus-per-job"], metavar="N", type=int, help="Worker processes and CPUs of each job (default: 1)."),
    Option(["--setup"], metavar="COMMAND", help="Shell command before each job, as 'source env.sh'."),
)
OPTIONS: Final = (EXECUTOR, *_RAY, *_SLURM)
_OWNERS: Final = {"ray": {option.name for option in _RAY}, "slurm": {option.name for option in _SLURM}}


def taken_from(args: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments without those of these options, and the values of these options.

    Raises:
        click.UsageError: an option lacks its value, or the value is not allowed.
    """
    known = {flag: option for option in OPTIONS for flag in option.opts}
    rest: list[str] = []
    own: list[str] = []
    left = list(args)
    while left:
        arg = left.pop(0)
        if arg == "--":
            return [*rest, arg, *left], _parsed(own)
        if arg.partition("=")[0] not in known:
            rest.append(arg)
            continue
        own.append(arg)
        if "=" not in arg:
            own += left[:1]
            del left[:1]
    return rest, _parsed(own)


def _parsed(args: list[str]) -> dict[str, Any]:
    """Return the values of the options that are given."""
    command = click.Command("prepare", params=list(OPTIONS))
    context = command.make_context("prepare", list(args))
    given = {name: value for name, value in context.params.items() if value is not None}
    name = given["executor"]
    for option in given.keys() - {"executor"}:
        owner = next(owner for owner, options in _OWNERS.items() if option in options)
        if owner != name:
            raise click.UsageError(f"--{option.replace('_', '-')} is for --executor {owner}, not for {name}")
    return given if args else {}


def executor_of(given: dict[str, Any], *, workers: int | None) -> Executor:
    """Return the executor that the values of these options describe.

    Raises:
        ConfigError: a value is out of range.
        MissingExtraError: Ray is not installed.
    """
    from headrace.engine.executors import LocalExecutor
    from headrace.engine.processes import usable_cores

    values = {name: value for name, value in given.items() if name != "executor"}
    for name, value in values.items():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")
    if given.get("executor") == "plan":
        from headrace.engine.executors import PlanOnly

        return PlanOnly()
    if given.get("executor") == "slurm":
        from headrace.engine.slurm import SlurmExecutor

        return SlurmExecutor(**values)
    if given.get("executor") == "ray":
        from headrace.engine.ray import RayExecutor

        return RayExecutor(**values)
    return LocalExecutor(workers=workers or usable_cores())
