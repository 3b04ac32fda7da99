"""``headrace job plan``, ``task``, ``status`` and ``finish``: work that other hosts do, from its plan to its output.

``--executor``, which says where the work of a command is done, is here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import click

from headrace import inspect
from headrace.cli import main
from headrace.cli.command import PLAN, Found, command, group
from headrace.cli.options import Positive, once, pairs_of, struct_of
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, plural, size

if TYPE_CHECKING:
    from headrace.engine.executors import Executor
    from headrace.engine.job import Show, TaskProgress
    from headrace.engine.status import JobStatus


class ExecutorOptions(NamedTuple):
    """Where the work of a command is done, as ``--executor`` says."""

    name: str
    given: Mapping[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> ExecutorOptions:
        """Read ``slurm,time=1:00:00,cpus_per_job=8``.

        Raises:
            ValueError: there is no such executor, or it has no such option.
        """
        from headrace.config import check_choice

        given = once(pairs_of(text, "name"), "--executor")
        name = given.pop("name", "")
        check_choice("the executor", name, ("local", "ray", "slurm"))
        found = cls(name, given)
        if given or name != "local":
            found.executor(workers=None)  # refuses what is wrong
        return found

    @property
    def is_local(self) -> bool:
        """Whether this process does the work; otherwise it is planned first."""
        return self.name == "local"

    def executor(self, *, workers: int | None) -> Executor:
        """Return the executor with these options.

        Raises:
            ConfigError: an option is unknown or out of range; or there are ``workers``, and another executor than the
                local one.
        """
        from headrace.engine.executors import LocalExecutor
        from headrace.engine.processes import usable_cores
        from headrace.engine.ray import RayExecutor
        from headrace.engine.slurm import SlurmExecutor

        if self.is_local and not self.given:
            return LocalExecutor(workers=workers or usable_cores())
        if workers is not None:
            instead = "; cpus_per_job says how many each job has" if self.name == "slurm" else ""
            raise ConfigError(f"--workers {workers} is for --executor local, not for {self.name}{instead}")
        kind: Any = {"local": LocalExecutor, "slurm": SlurmExecutor, "ray": RayExecutor}[self.name]
        found: Executor = struct_of(kind, self.given, f"--executor {self.name}")
        return found


LOCAL: Final = ExecutorOptions("local")


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


@command("task", "Do tasks of a planned job on this host.", urls=("output",))
def task(
    output: Annotated[str, "DIR"],
    *,
    tasks: Annotated[Sequence[int], "N,N-M"] = (),
    num: Positive | None = None,
    workers: Positive | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> Found:
    """Do tasks of the job that was planned in DIR, together with any number of other processes on any hosts.

    The same command may run on many hosts that share DIR, or reach it if it is a URL: each takes the next open task,
    and a task that a host leaves undone is done by another. On SIGTERM, the tasks that are under way are completed, and
    no others are begun. Without --tasks or --num, the processes stay until the tasks of all phases are
    done. Then `headrace job finish DIR` makes the output.

    Args:
        tasks: tasks to do, as 0-99,120; by default all that are open.
        num: begin at most so many tasks, and do not wait for those that other processes have begun.
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
        wanted = _among(tasks, job.receipts(phase).tasks) if tasks else None
        with ProgressBar(quiet=quiet or as_json) as bar, Limits(num, job_end_s()) as limits:
            show = _shown_in(bar)
            done = take_part(job, limits, show, workers=workers or usable_cores(), wanted=wanted, waits=num is None)
        phase = job.phase() or phase
        job.receipts(phase).refresh()
        found |= {"phase": phase.name, "done": done, "open": len(job.receipts(phase).open_tasks)}
    left = f"{plural(found['open'], 'task')} open" if found["open"] else f"next: headrace job finish {output}"
    report = [f"{output}: {plural(found['done'], 'task')} done here, {left}"]
    return Found(found, report)


def _among(numbers: Sequence[int], tasks: range) -> list[int]:
    for number in numbers:
        if number not in tasks:
            raise ConfigError(f"--tasks: there is no task {number}; this phase has {tasks.start} to {tasks.stop - 1}")
    return [*numbers]


@command("status", "Show how far a planned job is.", urls=("output",))
def status(output: Annotated[str, "DIR"]) -> Found:
    """Show how far the job is that was planned in DIR: what is done, under way and failed, how fast, and what is left.

    All of it is read from the folder or the store, on any host.
    """
    from headrace.engine.status import StatusReader
    from headrace.kinds import open_job

    found = StatusReader(open_job(output, checks_software=False)).read()
    return Found(found, status_lines(found))


def status_lines(found: JobStatus) -> list[inspect.Block]:
    """Return the report of ``headrace job status``."""
    slurm = [
        ("slurm", f"{'array' if job.is_array else 'behind it, job'} {job.name}: {_in_words(job.states)}")
        for job in found.slurm
    ]
    if not found.phase:
        done = f"{found.output}: all tasks are done; next: headrace job finish {found.output}"
        return [done, inspect.Pairs(slurm)]
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
    return [f"{found.output}: {found.phase.partition('-')[0]}", inspect.Pairs(pairs)]


def _in_words(states: dict[str, int]) -> str:
    told = ", ".join(f"{count(number)} {state.lower()}" for state, number in states.items())
    return told or "ended, or no Slurm here"


@command("finish", "Complete a planned job.", urls=("output",))
def finish(
    output: Annotated[str, "DIR"],
    *,
    workers: Positive | None = None,
    executor: ExecutorOptions = LOCAL,
    quiet: bool = False,
) -> Found:
    """Complete the job that was planned in DIR: do the tasks that are open, and put the output into place.

    With --executor ray or slurm, the open tasks are done there. The output has the same bytes as that of a run on one
    host, whoever did the tasks, and however often a process died.
    """
    return hand_over(executor, output, workers=workers, quiet=quiet)


def _shown_in(bar: ProgressBar) -> Show:
    """Return what shows the progress of a job."""
    from headrace.engine.job import Show

    return Show(tasks=partial(show_tasks, bar), progress=bar.update, notice=bar.notice)


def hand_over(options: ExecutorOptions, output: str, *, workers: int | None, quiet: bool) -> Found:
    """Take a planned job to its end with its executor, and return the report; or say what others have to run.

    Raises:
        ConfigError, MissingExtraError: see `ExecutorOptions.executor`.
    """
    from headrace.engine.executors import Handed, planned
    from headrace.kinds import finish_job, kind_of, open_job

    if options.name == PLAN:
        found = planned(open_job(output))
        if found is None:
            report = [f"{output}: all tasks are done; next: headrace job finish {output}"]
            return Found({"output": output, "phase": "", "num_tasks": 0}, report)
    else:
        executor, kind = options.executor(workers=workers), _KINDS[kind_of(output)]
        with ProgressBar(quiet=quiet) as bar:
            found = finish_job(output, executor, _shown_in(bar))
            elapsed_s = bar.elapsed_s
        if not isinstance(found, Handed):
            told: Found = import_module(f"headrace.cli.{kind}").tell(found, output, elapsed_s)
            return told
    return Found(found, [f"{found.output}: {line}" for line in found.notes])


_KINDS: Final = {
    "text": "prepare_text",
    "shards": "prepare_media",
    "energon": "prepare_energon",
    "copy": "copying",
    "measure": "measure",
    "decode": "stores",
}
"""For each kind of work the module of the command; its function ``tell`` makes the report."""

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
    ctx.obj = PLAN


job = group(
    "job",
    "Plan work for any hosts; do, watch and complete it.",
    "Plan the work of another command, do its tasks on any hosts, show how far they are, and complete the output.\n\n"
    "DIR is the output of that command: the folder or the URL that was named as the output, or the dataset that is "
    "prepared in place or checked. Each of the commands has --json.",
    *(plan, task, status, finish),
)
