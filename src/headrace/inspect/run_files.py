"""The file of a run: what it says, its mix, batches and edits, what an edit would change, and how runs are traced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headrace.datasets import Run
from headrace.datasets.editing import Edit, Replace
from headrace.datasets.mix import node_of
from headrace.errors import ConfigError
from headrace.inspect.answers import Report
from headrace.inspect.blocks import Block, Note, Pairs, Tabular, Title, Titled
from headrace.inspect.figures import count, plural
from headrace.plan import Declared, Order
from headrace.plan.nodes import leaf_shares
from headrace.tracing import (
    ExclusionAccount,
    Fed,
    FileEdit,
    FramedHistory,
    History,
    MixPoint,
    RunAccount,
    SourceAccount,
    Sources,
    Topology,
    account,
    read_run_file,
    read_state,
)
from headrace.tracing.curves import samples_of

SHOWN_STEPS = 3
"""Number of steps from an edit on whose samples are counted by source."""


class ToldEdit(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: the first step of the training that is different, why and when it was made, and what it changes."""

    at_step: int
    reason: str
    date: str
    asked: tuple[str, ...]
    changes: tuple[str, ...]


class ToldRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a file.

    Attributes:
        first_step: the step of the training from which it holds.
        position: its position there.
        begun: the share of each source in the mix that it was begun with.
        mix: the same of the mix that its last edit led to.
        batches: pieces of the global batch size, as (first step, size), with steps of the training.
        order: kind and seed of the order.
        num_samples, num_steps: its length; None if it is endless.
        edits: what was changed.
    """

    first_step: int
    position: int
    begun: dict[str, float]
    mix: dict[str, float]
    batches: tuple[tuple[int, int], ...]
    order: str
    num_samples: int | None
    num_steps: int | None
    edits: tuple[ToldEdit, ...]

    def section(self) -> Titled:
        """Return the facts, and below them the edits."""
        pairs = [
            ("mix", _shares(self.mix)),
            ("batches", ", ".join(f"{plural(size, 'sample')} from step {count(step)}" for step, size in self.batches)),
            ("order", self.order),
            ("length", _length(self.num_samples, self.num_steps)),
            *([("begun", _shares(self.begun))] if self.edits else []),
        ]
        edits = [line for edit in self.edits for line in edit_lines(edit)]
        return Titled(f"from step {count(self.first_step)}, at position {count(self.position)}", [Pairs(pairs), *edits])


class ToldFile(Report, frozen=True, kw_only=True):
    """The whole file; ``reached`` is the position of its last run in the last state, or where the training began."""

    run: str
    generation: int
    reached: int
    runs: tuple[ToldRun, ...]

    def shown(self) -> list[Block]:
        """Return what is shown, as blocks."""
        title = Title(self.run, f"{plural(len(self.runs), 'run')}, generation {count(self.generation)}")
        sections = [run.section() for run in self.runs]
        return [title, *sections, "", f"the training has come to position {count(self.reached)}"]


class ToldStep(msgspec.Struct, frozen=True, kw_only=True):
    """The number of samples of each source in a step, before and after an edit; empty where there is no such step."""

    step: int
    before: dict[str, int]
    after: dict[str, int]


class ToldAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a run before and after an edit; ``at`` says of which step, and steps are those of the run."""

    at: str
    before: RunAccount
    after: RunAccount

    def section(self) -> Titled:
        """Return a row for each source, which shows what differs as before -> after."""
        both = [_account_rows(one) for one in (self.before, self.after)]
        rows = []
        for name in dict.fromkeys((*both[0], *both[1])):
            cells = [one.get(name, ("-",) * len(_COLUMNS)) for one in both]
            pairs = zip(*cells, strict=True)
            rows.append([name, *(old if old == new else f"{old} -> {new}" for old, new in pairs)])
        return Titled(f"account {self.at}", [Tabular(["source", *_COLUMNS], rows)])


class ToldChange(Report, frozen=True, kw_only=True):
    """What an edit of a file changes, whether it was written, and the generation of the file after it.

    ``edit`` is None if edits were only undone. ``undone`` are edits that are no longer there. ``skipped`` is the number
    of samples of each source that the edit skips, from position ``skipped_positions[0]`` up to the other.
    ``accounts`` are those at the step of the edit, and at the end of a run that ends; empty if the edit was written.
    """

    run: str
    written: bool
    generation: int
    edit: ToldEdit | None
    undone: tuple[ToldEdit, ...]
    skipped: dict[str, int]
    skipped_positions: tuple[int, int] | None
    before: dict[str, float]
    after: dict[str, float]
    num_samples_before: int | None
    num_samples: int | None
    steps: tuple[ToldStep, ...]
    accounts: tuple[ToldAccount, ...]
    notes: tuple[str, ...]

    def shown(self) -> list[Block]:
        """Return what is shown, as blocks."""
        what = f"generation {count(self.generation)} is written" if self.written else "nothing is written (--dry-run)"
        said = [] if self.edit is None else edit_lines(self.edit)
        if self.skipped_positions is not None:
            first, end = self.skipped_positions
            skipped = ", ".join(f"{name} {count(number)}" for name, number in self.skipped.items())
            said.append(f"skipped {plural(end - first, 'sample')}, positions {first:,} to {end - 1:,}: {skipped}")
        said += [f"undone  {line}" for one in self.undone for line in edit_lines(one)]
        pairs = []
        if self.before != self.after:
            pairs += [("mix before", _shares(self.before)), ("mix after", _shares(self.after))]
        if self.num_samples_before != self.num_samples:
            before, after = (_length(number, None) for number in (self.num_samples_before, self.num_samples))
            pairs.append(("length", f"{before} -> {after}"))
        names = list(dict.fromkeys(name for step in self.steps for name in (*step.before, *step.after)))
        rows = [
            [count(step.step), *(f"{step.before.get(name, 0):,} -> {step.after.get(name, 0):,}" for name in names)]
            for step in self.steps
        ]
        steps = Titled("samples of each source", [Tabular(["step", *names], rows)])
        accounts = [one.section() for one in self.accounts]
        return [
            Title(self.run, what),
            *(f"  {line}" for line in said),
            Pairs(pairs),
            steps,
            *accounts,
            *map(Note, self.notes),
        ]


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which run is traced, and how."""

    run: Annotated[str, "FILE"] = "run.json"
    """File that ``save_run`` wrote."""

    state: Annotated[str | None, "FILE"] = None
    """State of a loader as JSON, which says how far the training run is."""

    topology: Topology | None = None
    """Number of data-parallel ranks, and of samples in a micro-batch, to show which rank reads a sample."""

    no_data: bool = False
    """Open no store, and show only the numbers of the samples."""

    journal: Annotated[tuple[str, ...], "FILE"] = ()
    """For framed runs, file that ``Loader(journal=FILE)`` wrote; repeat for each rank and start."""

    def opened(self, step: int | None = None) -> tuple[Sources, History | FramedHistory]:
        """Open the runs of the file as a history; if the one that holds a step, or the last one, is framed, only that.

        Raises:
            ConfigError: it is framed and there are no journals, or the other way round.
            StateError: a file cannot be read, or is damaged.
        """
        file = read_run_file(self.run)
        begun = [number for number, saved in enumerate(file.runs) if step is None or saved.first_step <= step]
        number = max(begun, default=0)
        is_framed = file.runs[number].lanes is not None
        if is_framed and not self.journal:
            raise ConfigError(
                f"{self.run}: this run is framed: its journals say what was in its units. Give `journal=FILE`, written"
                " by Loader(run, journal=FILE), for each rank and start"
            )
        if self.journal and not is_framed:
            raise ConfigError(f"{self.run}: this run is not framed, and `journal` is for framed runs: leave it out")
        sources = Sources(file, read_data=not self.no_data)
        state = None if self.state is None else read_state(self.state)
        return sources, sources.framed(number, self.journal, state) if is_framed else sources.history(state)


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the file of a run is changed."""

    state: Annotated[str | None, "FILE|N"] = None
    """State, as JSON, from which the training goes on, or the number of steps so far."""

    dry_run: bool = False
    """Show what would change, and write nothing."""

    def change(self, path: str, do: Callable[..., FileEdit], *given: Any, **more: Any) -> ToldChange:
        """Change a file with a function of `headrace.tracing`, and return what that changed; raises what that does."""
        state = self.state
        trained = None if state is None else int(state) if state.isdecimal() else read_state(state)
        return tell_change(
            path, do(path, *given, dry_run=self.dry_run, trained=trained, **more), written=not self.dry_run
        )


class EditOptions(ChangeOptions, frozen=True, kw_only=True):
    """How an edit is made."""

    reason: Annotated[str, "TEXT"]
    """Why; it is kept in the file."""

    replace: Replace = "no"
    """Take the place of the edit at this step, or of this one and all later ones."""


def tell_run_file(path: str | os.PathLike[str]) -> ToldFile:
    """Return what the file of a run says. Opens no data.

    Raises:
        StateError: the file cannot be read, or is damaged.
        ConfigError: a run is framed; only ``headrace trace`` reads such a file.
    """
    file = read_run_file(path)
    runs = []
    for saved in file.runs:
        run = saved.run()
        begun = run.rebuilt(())
        runs.append(
            ToldRun(
                first_step=saved.first_step,
                position=saved.position,
                begun=shares(node_of("", begun.data)),
                mix=shares(node_of("", run.data)),
                batches=tuple((step + saved.shift, size) for step, size in run.schedule.pieces),
                order=_order(run.order),
                num_samples=run.length,
                num_steps=run.num_steps,
                edits=tuple(_told(begun, run.edits, saved.shift)),
            )
        )
    return ToldFile(
        run=str(path),
        generation=file.generation,
        reached=file.reached,
        runs=tuple(runs),
    )


def tell_change(path: str | os.PathLike[str], edit: FileEdit, *, written: bool) -> ToldChange:
    """Return what an edit of a file changes, with the first steps from it on."""
    before, after, made = edit.before, edit.after, edit.made
    at_step = edit.undone[0].at_step if made is None else made.at_step
    begun = after.rebuilt(())
    skipped: dict[str, int] = {}
    positions = None
    if made is not None and made.skip_steps:
        run = after.rebuilt(after.edits[:-1])
        positions = run.schedule.begin(at_step), run.begin(at_step + made.skip_steps)
        skipped = samples_of(run.plan, *positions)
    accounts: tuple[ToldAccount, ...] = ()
    notes = edit.notes
    if not written:
        try:
            accounts = tuple(_accounts(edit, at_step))
        except ConfigError as error:
            notes = (*notes, f"no account: {error}")
    return ToldChange(
        run=str(path),
        written=written,
        generation=edit.generation,
        edit=None if made is None else list(_told(begun, after.edits, edit.shift))[-1],
        undone=tuple(_told(begun, before.edits, edit.shift))[len(before.edits) - len(edit.undone) :],
        skipped=skipped,
        skipped_positions=positions,
        before=shares(node_of("", before.data)),
        after=shares(node_of("", after.data)),
        num_samples_before=before.length,
        num_samples=after.length,
        steps=tuple(
            ToldStep(step=step + edit.shift, before=source_counts(before, step), after=source_counts(after, step))
            for step in range(at_step, at_step + SHOWN_STEPS)
        ),
        accounts=accounts,
        notes=notes,
    )


_COLUMNS = ("fed", "epochs begun", "to come", "deferred", "dropped", "excluded", "left behind")


def _account_rows(found: RunAccount) -> dict[str, tuple[str, ...]]:
    """Return the cells of each source, and of each dataset that it had; the columns from "to come" are of one epoch."""
    rows: dict[str, tuple[str, ...]] = {}
    for one in found.sources:
        name, number = one.source, 2
        while name in rows:
            name, number = f"{one.source} ({number})", number + 1
        cells = [one.fed.samples, one.epochs_begun]
        if (last := one.present) is not None:
            cells += [last.to_come, last.deferred, last.dropped, last.excluded, last.left_behind]
        shown = tuple(map(count, cells))
        rows[name] = shown + ("-",) * (len(_COLUMNS) - len(shown))
    return rows


def _accounts(edit: FileEdit, step: int) -> Iterator[ToldAccount]:
    """Yield the accounts before and after an edit: at its step, and at the end."""
    before, after = account(edit.before, step), account(edit.after, step)
    yield ToldAccount(at=f"before step {count(step + edit.shift)}", before=before, after=after)
    if edit.before.num_steps is not None and edit.after.num_steps is not None:
        yield ToldAccount(at="at the end of the run", before=account(edit.before), after=account(edit.after))


def source_counts(run: Run, step: int) -> dict[str, int]:
    """Return how many samples of each source a step of a run has; nothing if there is no such step. Reads no data."""
    begin, end = run.begin(step), run.begin(step + 1)
    return samples_of(run.plan, begin, end) if 0 <= begin < end else {}


def shares(root: Declared) -> dict[str, float]:
    """Return the share of each source in a tree, as parts of 1; of a schedule those at its end."""
    return {path or ".": float(share) for path, share in leaf_shares(root).items()}


def edit_lines(edit: ToldEdit) -> list[str]:
    """Return an edit as lines: where, when and why, and each change."""
    head = f"step {count(edit.at_step)}, {edit.date}" + (f": {edit.reason}" if edit.reason else "")
    return [head, *(f"  {change}" for change in edit.changes)]


def _told(begun: Run, edits: Sequence[Edit], shift: int) -> Iterator[ToldEdit]:
    """Yield the edits of a run, each with what it changes."""
    last = shares(node_of("", begun.data))
    for edit in edits:
        now = last if edit.data is None else shares(node_of("", edit.data))
        yield ToldEdit(
            at_step=edit.at_step + shift,
            reason=edit.reason,
            date=edit.date,
            asked=edit.asked,
            changes=tuple(_changes(edit, last, now)),
        )
        last = now


def _changes(edit: Edit, before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            share = _part(after.get(name))
            yield f"{name} {_part(before[name])} -> {share}" if name in before else f"{name} is new, {share}"
    yield from (f"{new} goes on as {old} did" for new, old in edit.renamed.items())
    for step, size in edit.pieces:
        later = f", {plural(step, 'step')} later" if step else ""
        yield f"{plural(size, 'sample')} a step{later}"
    if edit.order is not None:
        yield f"order {_order(edit.order)}, from the next epoch of each source on"
    if edit.length is not None:
        epochs, samples = edit.length.epochs, edit.length.samples
        yield f"length {plural(epochs, 'epoch')}" if epochs is not None else f"length {plural(samples or 0, 'sample')}"
    if edit.skip_steps:
        yield f"skips {plural(edit.skip_steps, 'step')}, whose samples {_THEN[edit.then]}"
    for path, one in edit.exclude.items():
        yield f"{path or '.'}: {one.describe()}"


_THEN = {"drop": "do not come in their epochs", "defer": "come at the end of their epochs"}


def _shares(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_part(share)}" for name, share in mix.items())


def _part(share: float | None) -> str:
    return "removed" if share is None else f"{100 * share:.4g} %"


def _order(order: Order) -> str:
    return f"{order.kind}, seed {order.seed}" if order.draws else "as stored"


def _length(num_samples: int | None, num_steps: int | None) -> str:
    if num_samples is None:
        return "endless"
    return plural(num_samples, "sample") + ("" if num_steps is None else f", {plural(num_steps, 'step')}")


def account_blocks(
    name: str, answer: RunAccount, *, shift: int = 0, called: Callable[[str], str] = str
) -> Iterator[Block]:
    """Yield what is shown of an account.

    Args:
        name: the file of the run.
        answer: the account.
        shift: the steps of the training that were before the run.
        called: returns what a source is called, by its path.
    """
    names = {"tokens": "token", "supervised_tokens": "supervised token", "documents": "document"}
    parts = [plural(answer.fed.samples, "sample")]
    parts += [
        f"{_about(answer.fed, field)}{plural(getattr(answer.fed, field), noun)}"
        for field, noun in names.items()
        if getattr(answer.fed, field) is not None
    ]
    yield f"{name}: before step {count(answer.step + shift)}: {', '.join(parts)}"
    yield ""
    rows = [
        [
            called(one.source),
            count(one.fed.samples),
            _percent(one.share),
            *(_amount(one.fed, field) for field in names),
            count(one.epochs_begun),
            count(one.epochs_complete),
            one.data,
        ]
        for one in answer.sources
    ]
    heads = ("fed", "samples", "share", "tokens", "supervised", "documents", "epochs begun", "complete", "data")
    yield Tabular(heads, rows, left=(len(heads) - 1,))
    columns = ("to_come", "deferred", "dropped", "excluded", "left_behind")
    rows = [
        [
            called(one.source),
            *map(count, (last.epoch, one.num_samples, last.fed)),
            _percent(last.fed / max(1, one.num_samples)),
            *(count(getattr(last, column)) for column in columns),
        ]
        for one in answer.sources
        if (last := one.present) is not None
    ]
    if rows:
        of_epoch = ("epoch", "number", "samples", "fed", "share", *(column.replace("_", " ") for column in columns))
        yield ""
        yield Tabular(of_epoch, rows)
    if seen := [f"{called(one.source)}: {line}" for one in answer.sources for line in _seen_lines(one)]:
        yield Titled("how often samples were seen", seen)
    if answer.chapters:
        lines = [_chapter_line(one, shift, called) for one in answer.chapters]
        yield Titled("the mix, as it came (as planned)", lines)


def _about(fed: Fed, field: str) -> str:
    return "~" if field in fed.estimated else ""


def _amount(fed: Fed, field: str) -> str:
    value = getattr(fed, field)
    return "" if value is None else f"{_about(fed, field)}{count(value)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _seen_lines(one: SourceAccount) -> Iterator[str]:
    about = "" if one.is_exact else "~"
    if one.seen:
        yield ", ".join(f"{_times(often)}: {about}{count(number)}" for often, number in one.seen.items())
    over = {name: one.total(name) for name in ("dropped", "deferred", "left_behind")}
    if passed := ", ".join(f"{count(number)} {name.replace('_', ' ')}" for name, number in over.items() if number):
        yield f"over all epochs {passed}"
    yield from map(_exclusion, one.exclusions)
    if not one.is_current:
        yield f"these were its data before: {one.data}"


def _exclusion(part: ExclusionAccount) -> str:
    what = f"documents {part.documents}" if part.documents else f"samples {part.samples}"
    done = f"{what} {'masked' if part.how == 'mask' else 'dropped'} from step {count(part.step)} on"
    others = f", with tokens of the documents {part.other_documents}" if part.other_documents else ""
    return done + others


def _times(often: int) -> str:
    return ("never", "once", "twice")[often] if often < 3 else f"{count(often)} times"


def _chapter_line(one: MixPoint, shift: int, called: Callable[[str], str]) -> str:
    mix = ", ".join(
        f"{called(name)} {_percent(one.share(name))} ({_percent(planned)})" for name, planned in one.planned.items()
    )
    reason = f" ({one.reason})" if one.reason else ""
    return f"from step {count(one.step + shift)}{reason}: {plural(one.samples, 'sample')}: {mix}"
