"""``headrace job task``, ``status`` and ``finish``: jobs that were planned; ``headrace prepare`` has them, too.

The options that say where the tasks of a job are done are here, too. They may stand behind every subcommand of
``headrace prepare``, and behind each `JobCommand`.
"""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click
from click import Option

from headrace.cli.command import Command, json_option, print_json, print_report, usage_errors
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, size

if TYPE_CHECKING:
    from headrace.engine.executors import Executor, Handed
    from headrace.engine.job import Show, TaskProgress
    from headrace.engine.status import JobStatus

EXECUTOR = Option(
    ["--executor"],
    type=click.Choice(["local", "ray", "slurm", "plan"]),
    default="local",
    help="Where the work is done: on this host (default: local), on those of Ray or Slurm, or, with plan, wherever"
    " headrace job task runs.",
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
PLAN: Final = "plan"
"""What stands for the executor if a job is only planned."""

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


class JobCommand(Command):
    """A command whose work other hosts may do: it has the options of the executors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; the options of the executors may also have been found before, by `taken_from`."""
        with usage_errors(args):
            rest, found = taken_from(args)
        if found:
            ctx.obj = found
        return super().parse_args(ctx, rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and those of the executors."""
        super().format_options(ctx, formatter)
        write_options(ctx, formatter)


def write_options(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of the executors into a help page."""
    with formatter.section("Where the work is done"):
        formatter.write_dl([record for option in OPTIONS if (record := option.get_help_record(ctx))])


def executor_of(given: dict[str, Any], *, workers: int | None) -> Executor:
    """Return the executor that the values of these options describe.

    Raises:
        ConfigError: a value is out of range.
        MissingExtraError: Ray is not installed.
    """
    from headrace.engine.executors import LocalExecutor
    from headrace.engine.processes import usable_cores
    from headrace.preparing.options import at_least_one

    name = given.get("executor", "local")
    values = {option: value for option, value in given.items() if option != "executor"}
    at_least_one(workers=workers, **{option: value for option, value in values.items() if isinstance(value, int)})
    if name == PLAN:
        raise ConfigError("--executor plan only plans: there is nothing to complete")
    if name == "local":
        return LocalExecutor(workers=workers or usable_cores())
    if workers is not None:
        instead = "; --cpus-per-job says how many each job has" if name == "slurm" else ""
        raise ConfigError(f"--workers {workers} is for --executor local, not for {name}{instead}")
    if name == "slurm":
        from headrace.engine.slurm import SlurmExecutor

        return SlurmExecutor(**values)
    from headrace.engine.ray import RayExecutor

    return RayExecutor(**values)


WATCH_S = 5.0
_SHOWN = 5


def show_tasks(bar: ProgressBar, progress: TaskProgress) -> None:
    """Show how far the tasks of a phase are."""
    counts = progress.counts
    done, total = progress.done, progress.num_tasks
    text = f"{count(done)} of {plural(total, 'task')}"
    if progress.total_bytes and "bytes" in counts:
        done, total = counts["bytes"], progress.total_bytes
    for name in ("documents", "samples"):
        text = f"{count(counts[name])} {name}, {text}" if name in counts else text
    speeds = {"B": counts["bytes"]} if "bytes" in counts else {"tasks": progress.done}
    bar.update(progress.phase.partition("-")[0], done, total, text=text, speeds=speeds)


@click.command(cls=Command, urls=("output",), name="task", short_help="Do tasks of a planned job on this host.")
@click.argument("output", metavar="DIR")
@click.option("--tasks", metavar="RANGES", help="Tasks to do, as 0-99,120 (default: all that are open).")
@click.option("--most", metavar="N", type=int, help="Begin at most N tasks.")
@click.option("--workers", metavar="N", type=int, help="Number of worker processes (default: one per usable core).")
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
    from headrace.engine.doing import Doer, Limits
    from headrace.engine.executors import take_part
    from headrace.engine.processes import usable_cores
    from headrace.engine.slurm import job_end_s
    from headrace.kinds import open_job
    from headrace.preparing.options import at_least_one

    refuse_executor()
    at_least_one(workers=workers, most=most)
    job = open_job(output)
    phase = job.phase()
    found: dict[str, Any] = {"output": output, "phase": None, "done": 0, "open": 0}
    if phase is not None:
        wanted = None if tasks is None else _ranges(tasks, job.receipts(phase).tasks)
        num_workers = workers or usable_cores()
        with ProgressBar(quiet=quiet or as_json) as bar, Limits(most, job_end_s()) as limits:
            show = _shown_in(bar, output, quiet=quiet or as_json)
            if wanted is None and most is None and not no_wait:
                done = take_part(job, limits, show, workers=num_workers)
            else:
                doer = Doer(
                    job,
                    phase,
                    wanted=wanted,
                    workers=num_workers,
                    waits=not no_wait and most is None,
                    limits=limits,
                    on_progress=show.tasks,
                )
                done = doer.run()
        if (phase := job.phase() or phase) is not None:
            job.receipts(phase).refresh()
            found |= {"phase": phase.name, "done": done, "open": len(job.receipts(phase).open_tasks)}
    if as_json:
        print_json(found)
    elif not quiet:
        left = f"{plural(found['open'], 'task')} open" if found["open"] else f"next: headrace job finish {output}"
        print_report([f"{output}: {plural(found['done'], 'task')} done here, {left}"])


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

    refuse_executor()
    reader = StatusReader(open_job(output, checks_software=False))
    while True:
        found = reader.read()
        if as_json:
            print_json(found.to_dict())
        else:
            print_report(status_lines(found))
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
    "--workers", metavar="N", type=int, help="Worker processes for tasks that are open (default: one per usable core)."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress, notes or summary.")
@json_option
def finish(output: str, workers: int | None, quiet: bool, as_json: bool) -> None:
    """Complete the job that was planned in DIR: do the tasks that are open, and put the output into place.

    With --executor ray or slurm, the open tasks are done there. The output has the same bytes as that of a run on one
    host, whoever did the tasks, and however often a process died.
    """
    run_job(output, executor_of(_chosen(), workers=workers), quiet=quiet, as_json=as_json)


def run_job(output: str, executor: Executor, *, quiet: bool, as_json: bool) -> None:
    """Take a planned job to its end with an executor, and print the report."""
    from headrace.engine.executors import Handed
    from headrace.kinds import finish_job

    kind = _kind_of(output)
    with ProgressBar(quiet=quiet) as bar:
        found = finish_job(output, executor, _shown_in(bar, output, quiet=quiet))
        elapsed_s = bar.elapsed_s
    if isinstance(found, Handed):
        _show_handed(found, quiet=quiet, as_json=as_json)
    else:
        kind.tell(found, output, elapsed_s, quiet=quiet, as_json=as_json)


def _kind_of(output: str) -> Any:
    """Return the module of the command that makes such an output."""
    from headrace.kinds import kind_of

    return import_module(f"headrace.cli.{_KINDS[kind_of(output)]}")


def _shown_in(bar: ProgressBar, output: str, *, quiet: bool) -> Show:
    """Return what shows the progress of a job."""
    from headrace.cli.prepare_options import notes
    from headrace.engine.job import Show

    show = getattr(_kind_of(output), "show", None)  # of kinds that do something in order
    progress = partial(show, bar) if show is not None else lambda found: None
    return Show(tasks=partial(show_tasks, bar), progress=progress, notice=notes(bar, quiet=quiet))


def _show_handed(found: Handed, *, quiet: bool, as_json: bool) -> None:
    _print(found, [f"{found.output}: {line}" for line in found.notes], as_json=as_json, quiet=quiet)


def _print(found: object, report: list[str], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not quiet:
        print_report(report)


def is_planned_only() -> bool:
    """Whether the command line asks for a plan, or for an executor that needs one."""
    return bool(_chosen().get("executor", "local") != "local")


def hand_over(output: str, *, workers: int | None, quiet: bool, as_json: bool) -> None:
    """Give a job that was planned just now to the executor of the command line, or say who has to do it.

    Raises:
        ConfigError, MissingExtraError: see `executor_of`.
    """
    from headrace.engine.executors import planned
    from headrace.kinds import open_job

    chosen = _chosen()
    if chosen["executor"] != PLAN:
        run_job(output, executor_of(chosen, workers=workers), quiet=quiet, as_json=as_json)
    elif (found := planned(open_job(output))) is not None:
        _show_handed(found, quiet=quiet, as_json=as_json)
    else:
        report = [f"{output}: all tasks are done; next: headrace job finish {output}"]
        _print({"output": output, "phase": "", "num_tasks": 0}, report, as_json=as_json, quiet=quiet)


def refuse_executor() -> None:
    """Raise ConfigError if an executor is given to a command that works on this host."""
    if _chosen():
        raise ConfigError("--executor is for the commands that do a whole job, and for `headrace job finish`")


def _chosen() -> dict[str, Any]:
    """Return the values of the options that say where the work is done, as `taken_from` found them."""
    return click.get_current_context().obj or {}


_KINDS: Final = {
    "text": "prepare_text",
    "shards": "prepare_media",
    "energon": "prepare_energon",
    "copy": "copying",
    "measure": "measure",
    "decode": "stores",
}
"""For each kind of work the module of the command; its functions ``show`` and ``tell`` show progress and report."""


@click.group(
    name="job",
    commands={str(command.name): command for command in (task, status, finish)},
    short_help="Do, watch and complete what was planned.",
)
def command() -> None:
    """Do the tasks of a job that was planned, on any hosts; show how far it is; complete it.

    `headrace prepare plan`, and --executor plan of the commands that prepare, copy, measure and check, plan a job. DIR
    is its output: the folder or the URL that was named as the output, or the dataset that is prepared in place or
    checked. Each of the three commands has --json.
    """
