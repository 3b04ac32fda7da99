"""``headrace job plan``, ``task``, ``status`` and ``finish``: work that other hosts do, from its plan to its output.

The options that say where the work of a command is done are here, too; each `JobCommand` has them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click import Option

from headrace.cli import main
from headrace.cli.command import Command, json_option, print_found
from headrace.cli.progress import ProgressBar, notes
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, size

if TYPE_CHECKING:
    from headrace.engine.executors import Executor, Handed
    from headrace.engine.job import Show, TaskProgress
    from headrace.engine.status import JobStatus

_COUNT = click.IntRange(min=1)
_EXECUTOR = Option(
    ["--executor"],
    type=click.Choice(["local", "ray", "slurm"]),
    help="Where the work is done: on this host (default: local), or on those of Ray or Slurm.",
)
_ADDRESS = Option(["--address"], metavar="ADDRESS", help="Address of the Ray cluster (default: as ray.init finds it).")
OPTIONS: Final = (
    _EXECUTOR,
    _ADDRESS,
    Option(["--partition"], metavar="NAME", help="Partition of the jobs (default: that of the cluster)."),
    Option(["--time"], metavar="TIME", help="Time limit of each job, as 4:00:00."),
    Option(["--array-parallel"], metavar="N", type=_COUNT, help="Jobs of the array that may run at the same time."),
    Option(
        ["--tasks-per-job"],
        metavar="N",
        type=_COUNT,
        help="Tasks for each job of the array (default: as many as give 32 jobs).",
    ),
    Option(["--cpus-per-job"], metavar="N", type=_COUNT, help="Worker processes and CPUs of each job (default: 1)."),
    Option(["--setup"], metavar="COMMAND", help="Shell command before each job, as 'source env.sh'."),
)
_PLAN: Final = "plan"
"""Stands for the executor below ``headrace job plan``."""


class ExecutorOptions(NamedTuple):
    """Where the work of a command is done, as its options say."""

    name: str
    given: Mapping[str, Any]
    """The options of the executor that were given."""

    @property
    def is_local(self) -> bool:
        """Whether this process does the work; otherwise it is planned first."""
        return self.name == "local"

    def executor(self, *, workers: int | None) -> Executor:
        """Return the executor with these options.

        Raises:
            ConfigError: there are ``workers``, and another executor than the local one.
            MissingExtraError: Ray is not installed.
        """
        from headrace.engine.executors import LocalExecutor
        from headrace.engine.processes import usable_cores

        if self.is_local:
            return LocalExecutor(workers=workers or usable_cores())
        if workers is not None:
            instead = "; --cpus-per-job says how many each job has" if self.name == "slurm" else ""
            raise ConfigError(f"--workers {workers} is for --executor local, not for {self.name}{instead}")
        if self.name == "slurm":
            from headrace.engine.slurm import SlurmExecutor

            return SlurmExecutor(**self.given)
        from headrace.engine.ray import RayExecutor

        return RayExecutor(**self.given)


class JobCommand(Command):
    """A command whose work other hosts may do. It gets the options of the executors as one value, ``executor``.

    Args:
        groups: further options, by the heading of the help below which they stand.
    """

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[Option]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._groups = groups or {}
        self._grouped = [option for group in (*self._groups.values(), OPTIONS) for option in group]
        self.params += self._grouped

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and make one value of the options of the executors."""
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell asks how to go on
            return rest
        given = {option: value for option in OPTIONS if (value := ctx.params.pop(str(option.name))) is not None}
        if given and ctx.obj == _PLAN:
            flag = next(iter(given)).opts[0]
            raise click.UsageError(f"{flag} says who does the work, and headrace job plan only plans it: choose one")
        if ctx.obj == _PLAN and ctx.params.get("workers") is not None:
            raise click.UsageError("--workers is for doing the work, and headrace job plan only plans it: leave it out")
        executor = given.pop(_EXECUTOR, ctx.obj or "local")
        for option in given:
            owner = "ray" if option is _ADDRESS else "slurm"
            if owner != executor:
                raise click.UsageError(f"{option.opts[0]} is for --executor {owner}, not for {executor}")
        ctx.params["executor"] = ExecutorOptions(executor, {str(key.name): value for key, value in given.items()})
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        options = [param for param in self.get_params(ctx) if isinstance(param, Option)]
        sections = {**self._groups, "Options": [option for option in options if option not in self._grouped]}
        if ctx.obj != _PLAN:
            sections["Where the work is done"] = OPTIONS
        for heading, params in sections.items():
            with formatter.section(heading):
                formatter.write_dl([record for param in params if (record := param.get_help_record(ctx))])


WATCH_S = 5.0
_SHOWN = 5


_PHASES: Final = {
    "tokenizer": "loading the tokeniser",
    "probe": "probing the tokeniser",
    "prove": "proving the first documents",
    "encode": "encoding",
    "duplicates": "finding duplicates",
    "cut": "cutting shards",
    "join": "joining shards",
    "scan": "reading",
    "merge": "indexing",
}
"""How phases are called that have another name."""


def show_tasks(bar: ProgressBar, progress: TaskProgress) -> None:
    """Show how far the tasks of a phase are."""
    counts, name = progress.counts, progress.phase.partition("-")[0]
    if name in ("tokenizer", "probe", "prove"):
        bar.update(_PHASES[name], counts["bytes"], progress.total_bytes)
        return
    done, total = progress.done, progress.num_tasks
    text = f"{count(done)} of {plural(total, 'task')}"
    if progress.total_bytes and "bytes" in counts:
        done, total = counts["bytes"], progress.total_bytes
    for one in ("documents", "samples"):
        text = f"{count(counts[one])} {one}, {text}" if one in counts else text
    speeds = {"B": counts["bytes"]} if "bytes" in counts else {"tasks": progress.done}
    speeds |= {"tokens": counts["tokens"]} if "tokens" in counts else {}
    bar.update(_PHASES.get(name, name), done, total, text=text, speeds=speeds)


@click.command(cls=Command, urls=("output",), name="task", short_help="Do tasks of a planned job on this host.")
@click.argument("output", metavar="DIR")
@click.option("--tasks", metavar="RANGES", help="Tasks to do, as 0-99,120 (default: all that are open).")
@click.option("--most", metavar="N", type=_COUNT, help="Begin at most N tasks.")
@click.option("--workers", metavar="N", type=_COUNT, help="Number of worker processes (default: one per usable core).")
@click.option("--no-wait", is_flag=True, help="Do not wait for tasks that other processes have begun.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress, notes or summary.")
@json_option
def task(
    output: str, tasks: str | None, most: int | None, workers: int | None, no_wait: bool, quiet: bool, as_json: bool
) -> None:
    """Do tasks of the job that was planned in DIR, together with any number of other processes on any hosts.

    The same command may run on many hosts that share DIR, or reach it if it is a URL: each takes the next open task,
    and a task that a host leaves undone is done by another. On SIGTERM, the tasks that are under way are completed, and
    no others are begun. Without --tasks, --most or --no-wait, the processes stay until the tasks of all phases are
    done. Then `headrace job finish DIR` makes the output.
    """
    from headrace.engine.doing import Limits
    from headrace.engine.executors import take_part
    from headrace.engine.processes import usable_cores
    from headrace.engine.slurm import job_end_s
    from headrace.kinds import open_job

    job = open_job(output)
    phase = job.phase()
    found: dict[str, Any] = {"output": output, "phase": None, "done": 0, "open": 0}
    if phase is not None:
        wanted = None if tasks is None else _ranges(tasks, job.receipts(phase).tasks)
        with ProgressBar(quiet=quiet or as_json) as bar, Limits(most, job_end_s()) as limits:
            show = _shown_in(bar, _kind_of(output), quiet=quiet or as_json)
            waits = not no_wait and most is None
            done = take_part(job, limits, show, workers=workers or usable_cores(), wanted=wanted, waits=waits)
        if (phase := job.phase() or phase) is not None:
            job.receipts(phase).refresh()
            found |= {"phase": phase.name, "done": done, "open": len(job.receipts(phase).open_tasks)}
    left = f"{plural(found['open'], 'task')} open" if found["open"] else f"next: headrace job finish {output}"
    report = [f"{output}: {plural(found['done'], 'task')} done here, {left}"]
    print_found(found, report, as_json=as_json, quiet=quiet)


def _ranges(text: str, tasks: range) -> list[int]:
    """Parse ``0-99,120``; raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"--tasks {text}: write numbers and ranges, as 0-99,120")
        found += range(int(first), int(last if dash else first) + 1)
    for number in found:
        if number not in tasks:
            raise ConfigError(
                f"--tasks {text}: there is no task {number}; this phase has {tasks.start} to {tasks.stop - 1}"
            )
    return found


@click.command(cls=Command, urls=("output",), name="status", short_help="Show how far a planned job is.")
@click.argument("output", metavar="DIR")
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until the job is complete.")
@json_option
def status(output: str, watch: bool, as_json: bool) -> None:
    """Show how far the job is that was planned in DIR: what is done, under way and failed, how fast, and what is left.

    All of it is read from the folder or the store, on any host.
    """
    from headrace.engine.status import StatusReader
    from headrace.kinds import open_job

    reader = StatusReader(open_job(output, checks_software=False))
    while True:
        found = reader.read()
        print_found(found, status_lines(found), as_json=as_json)
        if not watch or not found.phase:
            return
        time.sleep(WATCH_S)


def status_lines(found: JobStatus) -> list[str]:
    """Return the report of ``headrace job status``."""
    slurm = [
        ("slurm", f"{'array' if job.is_array else 'behind it, job'} {job.name}: {_in_words(job.states)}")
        for job in found.slurm
    ]
    if not found.phase:
        done = f"{found.output}: all tasks are done; next: headrace job finish {found.output}"
        return [done, *listing(slurm)]
    share = f" ({found.done / found.num_tasks:.1%})" if found.num_tasks else ""
    pairs = [("tasks", f"{count(found.done)} of {count(found.num_tasks)} done{share}")]
    for name, number in found.counts.items():
        if name == "bytes":
            of = f" of {size(found.total_bytes)}" if found.total_bytes else ""
            pairs.append(("input", f"{size(number)}{of}, {size(found.bytes_per_s)}/s"))
        else:
            pairs.append((name, count(number)))
    if found.left_s is not None:
        pairs.append(("left", f"about {duration(found.left_s)}"))
    pairs.append(("running", f"{plural(len(found.running), 'task')} on {plural(len(found.hosts), 'host')}"))
    pairs += slurm
    slow = [one for one in found.running if one.is_straggler]
    pairs += [
        ("slow", f"task {one.task} on {one.host}, process {one.process}: {duration(one.seconds)}")
        for one in slow[:_SHOWN]
    ]
    pairs += [("failed", f"task {one.task} on {one.host}: {one.error}") for one in found.failed[:_SHOWN]]
    if len(found.failed) > _SHOWN:
        pairs.append(("", f"and {plural(len(found.failed) - _SHOWN, 'other task')}"))
    return [f"{found.output}: {found.phase.partition('-')[0]}", *listing(pairs)]


def _in_words(states: dict[str, int]) -> str:
    told = ", ".join(f"{count(number)} {state.lower()}" for state, number in states.items())
    return told or "ended, or no Slurm here"


@click.command(cls=JobCommand, urls=("output",), name="finish", short_help="Complete a planned job.")
@click.argument("output", metavar="DIR")
@click.option(
    "--workers",
    metavar="N",
    type=_COUNT,
    help="Worker processes for tasks that are open (default: one per usable core).",
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress, notes or summary.")
@json_option
def finish(output: str, workers: int | None, quiet: bool, as_json: bool, executor: ExecutorOptions) -> None:
    """Complete the job that was planned in DIR: do the tasks that are open, and put the output into place.

    With --executor ray or slurm, the open tasks are done there. The output has the same bytes as that of a run on one
    host, whoever did the tasks, and however often a process died.
    """
    _run_job(output, executor.executor(workers=workers), quiet=quiet, as_json=as_json)


def _run_job(output: str, executor: Executor, *, quiet: bool, as_json: bool) -> None:
    """Take a planned job to its end with an executor, and print the report."""
    from headrace.engine.executors import Handed
    from headrace.kinds import finish_job

    kind = _kind_of(output)
    with ProgressBar(quiet=quiet) as bar:
        found = finish_job(output, executor, _shown_in(bar, kind, quiet=quiet))
        elapsed_s = bar.elapsed_s
    if isinstance(found, Handed):
        _print_handed(found, quiet=quiet, as_json=as_json)
    else:
        kind.tell(found, output, elapsed_s, quiet=quiet, as_json=as_json)


def _kind_of(output: str) -> Any:
    """Return the module of the command that makes such an output."""
    from headrace.kinds import kind_of

    return import_module(f"headrace.cli.{_KINDS[kind_of(output)]}")


def _shown_in(bar: ProgressBar, kind: Any, *, quiet: bool) -> Show:
    """Return what shows the progress of a job, by the module of its kind."""
    from headrace.engine.job import Show

    show = getattr(kind, "show", None)  # of kinds that do something in order
    progress = partial(show, bar) if show is not None else lambda found: None
    return Show(tasks=partial(show_tasks, bar), progress=progress, notice=notes(bar, quiet=quiet))


def _print_handed(found: Handed, *, quiet: bool, as_json: bool) -> None:
    print_found(found, [f"{found.output}: {line}" for line in found.notes], as_json=as_json, quiet=quiet)


def hand_over(options: ExecutorOptions, output: str, *, workers: int | None, quiet: bool, as_json: bool) -> None:
    """Give a job that was planned just now to its executor, or say what others have to run.

    Raises:
        ConfigError, MissingExtraError: see `ExecutorOptions.executor`.
    """
    from headrace.engine.executors import planned
    from headrace.kinds import open_job

    if options.name != _PLAN:
        _run_job(output, options.executor(workers=workers), quiet=quiet, as_json=as_json)
    elif (found := planned(open_job(output))) is not None:
        _print_handed(found, quiet=quiet, as_json=as_json)
    else:
        report = [f"{output}: all tasks are done; next: headrace job finish {output}"]
        print_found({"output": output, "phase": "", "num_tasks": 0}, report, as_json=as_json, quiet=quiet)


_KINDS: Final = {
    "text": "prepare_text",
    "shards": "prepare_media",
    "energon": "prepare_energon",
    "copy": "copying",
    "measure": "measure",
    "decode": "stores",
}
"""For each kind of work the module of the command; its functions ``show`` and ``tell`` show progress and report."""

PLANNED: Final = {
    "prepare": "[text|media|energon] INPUT...",
    "merge": "SRC... --output DIR",
    "convert": "SRC DST --format NAME",
    "split": "SRC DST --split SHARES",
    "measure": "DATASET --encoder MODULE:CLASS",
    "check": "DATASET --decode",
}
"""The commands that have a job, and the arguments that each needs."""


class PlanGroup(click.Group):
    """The commands that have a job; each is the one of the same name below ``headrace``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in their order."""
        return list(PLANNED)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None if there is none."""
        return main.get_command(ctx, cmd_name) if cmd_name in PLANNED else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(PLANNED.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does; the error for another one lists those that have a job."""
        if args[0] not in PLANNED and not args[0].startswith("-"):
            ctx.fail(f"{args[0]!r} has no job; the commands that have one are: {', '.join(PLANNED)}")
        return super().resolve_command(ctx, args)


@click.group(cls=PlanGroup, name="plan", short_help="Plan the work of a command for any hosts.")
@click.pass_context
def plan(ctx: click.Context) -> None:
    """Plan the work of COMMAND, and say what the hosts have to run.

    The arguments of COMMAND are its own; `headrace job plan COMMAND --help` lists them.
    """
    ctx.obj = _PLAN


@click.group(
    name="job",
    commands={str(command.name): command for command in (plan, task, status, finish)},
    short_help="Plan work for any hosts; do, watch and complete it.",
)
def command() -> None:
    """Plan the work of another command, do its tasks on any hosts, show how far they are, and complete the output.

    DIR is the output of that command: the folder or the URL that was named as the output, or the dataset that is
    prepared in place or checked. Each of the commands has --json.
    """
