"""``headrace account``: what a training run was fed, and where two runs part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import headrace
from headrace.cli.command import Command, json_option, print_found
from headrace.inspect.figures import Heading, count, plural, separated, table

if TYPE_CHECKING:
    from headrace.tracing import ExclusionAccount, Fed, MixPoint, RunAccount, SourceAccount


@click.command(cls=Command, name="account", short_help="Say what a run was fed, or where two runs part.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--step", metavar="N", type=int, help="Count what was fed before step N (default: the end of the run).")
@click.option("--exact", is_flag=True, help="Read and count what would be estimated.")
@click.option("--no-data", is_flag=True, help="Open no store; tokens and documents are not counted.")
@click.option("--diff", is_flag=True, help="Say at which step the runs of two files part, and what makes it.")
@json_option
def account(files: tuple[str, ...], step: int | None, exact: bool, no_data: bool, diff: bool, as_json: bool) -> None:
    """Say what the run in FILE, which save_run wrote, was fed before a step.

    For each source the account says how many samples, documents and tokens were fed, how often its samples were seen,
    and where each sample of the present epoch is: fed, still to come, skipped, or excluded. For each chapter of the run
    it says the mix as it was planned and as it came. What is marked with ~ is an estimate.

    With --diff two files are compared: the first step at which their runs are fed otherwise, and the setting that makes
    it so.
    """
    if diff:
        if len(files) != 2 or step is not None or exact:
            raise click.UsageError("--diff compares two files, and goes with --json only")
        found = headrace.tracing.first_difference(
            *(headrace.tracing.filed_run(file, read_data=False) for file in files)
        )
        told = "the same from begin to end" if found is None else found.message
        report = [f"{files[0]} -> {files[1]}: {told}"]
        print_found({"files": files, "difference": found}, report, as_json=as_json)
        return
    if len(files) != 1:
        raise click.UsageError("give one file, or two with --diff")
    answer = headrace.tracing.account(headrace.tracing.filed_run(files[0], read_data=not no_data), step, exact=exact)
    print_found(answer, account_lines(files[0], answer), as_json=as_json)


def account_lines(name: str, answer: RunAccount) -> list[str]:
    """Return an account as lines."""
    parts = [plural(answer.fed.samples, "sample"), *_amounts(answer.fed)]
    head = [f"{name}: before step {count(answer.step)}: {', '.join(parts)}"]
    blocks = [head, _fed_lines(answer.sources), _present_lines(answer.sources), _seen_lines(answer.sources)]
    return separated(block for block in (*blocks, _chapter_lines(answer.chapters)) if block)


def _amounts(fed: Fed) -> list[str]:
    names = {"tokens": "token", "supervised_tokens": "supervised token", "documents": "document"}
    return [
        f"{_about(fed, field)}{plural(getattr(fed, field), name)}"
        for field, name in names.items()
        if getattr(fed, field) is not None
    ]


def _about(fed: Fed, field: str) -> str:
    return "~" if field in fed.estimated else ""


def _amount(fed: Fed, field: str) -> str:
    value = getattr(fed, field)
    return "" if value is None else f"{_about(fed, field)}{count(value)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _fed_lines(sources: tuple[SourceAccount, ...]) -> list[str]:
    rows = [["fed", "samples", "share", "tokens", "supervised", "documents", "epochs begun", "complete"]]
    rows += [
        [
            one.source,
            count(one.fed.samples),
            _percent(one.share),
            *(_amount(one.fed, field) for field in ("tokens", "supervised_tokens", "documents")),
            count(one.epochs_begun),
            count(one.epochs_complete),
        ]
        for one in sources
    ]
    return table(rows)


def _present_lines(sources: tuple[SourceAccount, ...]) -> list[str]:
    columns = ("fed", "to_come", "deferred", "dropped", "excluded", "left_behind")
    rows = [["epoch", "number", "samples", *(name.replace("_", " ") for name in columns)]]
    for one in sources:
        if one.present is not None:
            cells = [count(getattr(one.present, name)) for name in columns]
            rows.append([one.source, count(one.present.epoch), count(one.num_samples), *cells])
    return table(rows) if len(rows) > 1 else []


def _seen_lines(sources: tuple[SourceAccount, ...]) -> list[str]:
    lines: list[str] = [Heading("  how often samples were seen")]
    for one in sources:
        if one.seen:
            about = "" if one.is_exact else "~"
            times = ", ".join(f"{_times(often)}: {about}{count(number)}" for often, number in one.seen.items())
            lines.append(f"  {one.source}: {times}")
        over = {name: one.total(name) for name in ("dropped", "deferred", "left_behind")}
        passed = ", ".join(f"{count(number)} {name.replace('_', ' ')}" for name, number in over.items() if number)
        if passed:
            lines.append(f"  {one.source}: over all epochs {passed}")
        lines += [f"  {one.source}: {_exclusion(part)}" for part in one.exclusions]
        if not one.is_current:
            lines.append(f"  {one.source}: these were its data before: {one.data}")
    return lines if len(lines) > 1 else []


def _exclusion(part: ExclusionAccount) -> str:
    what = f"documents {part.documents}" if part.documents else f"samples {part.samples}"
    done = f"{what} {'masked' if part.how == 'mask' else 'dropped'} from step {count(part.step)} on"
    others = f", with tokens of the documents {part.other_documents}" if part.other_documents else ""
    return done + others


def _times(often: int) -> str:
    return ("never", "once", "twice")[often] if often < 3 else f"{count(often)} times"


def _chapter_lines(chapters: tuple[MixPoint, ...]) -> list[str]:
    lines: list[str] = [Heading("  the mix, as it came (as planned)")]
    for one in chapters:
        mix = ", ".join(f"{name} {_percent(one.share(name))} ({_percent(part)})" for name, part in one.planned.items())
        reason = f" ({one.reason})" if one.reason else ""
        lines.append(f"  from step {count(one.step)}{reason}: {plural(one.samples, 'sample')}: {mix}")
    return lines
