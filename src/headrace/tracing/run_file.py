"""``run.json``: a file from which the run of a training is built again, with its data or without.

The file is written beside the checkpoints at every start, and holds the runs of the training one after another. If a
run continues, whether it was edited or not, it stays one run; if the training goes on with another one, this is added
with the step from which it holds.

    Run, its edits -- save_run --> run.json: recipes of datasets and mixes -- SavedRun.run --> Run

A run is written as it was begun, with its edits: for each what it asks for and why, and the data that it leads to.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.config import convert, nearest_path, whole
from headrace.datasets import Dataset, FramedRun, Mix, Run
from headrace.datasets.editing import Edit
from headrace.datasets.recipes import DataRecipe, data_of
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.io import as_read_back, check_local, holds, read_small, write_json_file
from headrace.plan import BatchSchedule, Bucketing, Order, RunRecipe
from headrace.plan.chaptered.chapters import Length
from headrace.plan.cursor import outside_run
from headrace.plan.framed import Lanes, lanes_key
from headrace.plan.recipe import differing_parts
from headrace.tracing.recorded import RecordedDataset, SavedSource, SourceTable

VERSION = 3
"""Version of the file."""


class SavedEdit(Edit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit, with the recipe of its data."""

    data: DataRecipe | None = None  # type: ignore[assignment]


class SavedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, from a step of the training on, at which it has a position of its own.

    ``data`` is the recipe of the mix as the run was begun, before its ``edits``, over the numbers of ``sources``.
    ``hashes`` are those of the run as it was begun, and ``edited`` those of the edited one. Of a framed run ``data``,
    ``order`` and ``length`` are those of its samples, and ``units`` is what makes units of them.
    """

    first_step: int
    position: int
    hashes: dict[str, str]
    format: dict[str, Any]
    sources: tuple[SavedSource, ...]
    data: DataRecipe
    order: Order
    batch: dict[str, Any]
    length: Length
    units: dict[str, Any] | None = None
    edits: tuple[SavedEdit, ...] = ()
    edited: dict[str, str] | None = None

    @property
    def shift(self) -> int:
        """Number that is added to a step of the run to get one of the training."""
        return self.first_step - self.schedule.step_of(self.position)

    @property
    def schedule(self) -> BatchSchedule:
        """The global batches; in a framed run they count units."""
        return BatchSchedule(tuple((step, size) for step, size in self.batch["pieces"]))

    @property
    def lanes(self) -> Lanes | None:
        """The lanes of a framed run; None for any other."""
        if self.units is None:
            return None
        lanes = msgspec.convert({name: self.batch.get(name) for name in Lanes.__struct_fields__}, Lanes)
        return lanes if self.format["framed"] == 1 else msgspec.structs.replace(lanes, key=lanes_key(self.order.seed))

    def run(self, datasets: Sequence[Dataset] | None = None) -> Run:
        """Return the run with its edits, over the datasets of ``sources``; see `stream`, and `check_plain`."""
        self.check_plain()
        return self.stream(datasets)

    def check_plain(self) -> None:
        """Raise ConfigError if the run is framed."""
        if self.units is not None:
            raise ConfigError(
                f"the run from step {self.first_step:,} on is framed: which samples a step has is known only from its "
                "journals, so ask `headrace trace`; and its task encoder is not made again from a file, so to go on, "
                "build the run in Python and pass it to save_run"
            )

    def stream(self, datasets: Sequence[Dataset] | None = None) -> Run:
        """Return the run as `run` does; of a framed run that of its samples, one in each step.

        By default the datasets are `RecordedDataset`: such a run can be edited and asked, and cannot be read.

        Raises:
            StateError: the content does not match its hashes, or is of another version of the algorithms.
        """
        found = [RecordedDataset(source) for source in self.sources] if datasets is None else datasets

        def dataset(number: int) -> Dataset:
            if not 0 <= number < len(found):
                raise ConfigError(f"the data name source {number}, and there are {len(found):,} sources")
            return found[number]

        try:
            run = Run(
                data_of(self.data, dataset),
                global_batch_size=self.schedule if self.units is None else 1,
                order=self.order,
                bucketing=_bucketing(self.batch),
                **msgspec.structs.asdict(self.length),
            )
            recipe = run.recipe
            if self.units is not None and self.lanes is not None:
                made = {path: {**self.units, "dataset": one} for path, one in recipe.dataset.items()}
                versions = recipe.format | {"framed": self.lanes.format}
                recipe = msgspec.structs.replace(recipe, format=versions, dataset=made, batch=self.batch)
            if self.format != recipe.format:
                raise StateError(
                    f"the run from step {self.first_step:,} on was planned by the algorithms {self.format}, and this "
                    f"Headrace has {recipe.format}: use the version that wrote it"
                )
            self._check_hashes(recipe, self.hashes)
            if self.edits:
                data = [None if edit.data is None else data_of(edit.data, dataset) for edit in self.edits]
                pairs = zip(self.edits, data, strict=True)
                run = run.rebuilt([Edit(**msgspec.structs.asdict(edit) | {"data": one}) for edit, one in pairs])
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, ConfigError) as error:
            raise StateError(f"the run from step {self.first_step:,} on is damaged: {error}") from error
        if self.edits:
            self._check_hashes(run.recipe, self.edited or {})
        return run

    def _check_hashes(self, recipe: RunRecipe, hashes: Mapping[str, str]) -> None:
        if differing := differing_parts(recipe.hashes(), hashes):
            raise StateError(
                f"the run from step {self.first_step:,} on was changed since it was written: its parts"
                f" {', '.join(differing)} do not match their hashes"
            )


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Paths of stores are relative to ``folder``, where the training began.

    ``generation`` is how often the runs were changed. ``reached`` is the position of the last run in the last state
    that was given out, or else at the last start of the training. ``digest`` is a hash of all else.
    """

    kind: Literal["headrace.run"] = "headrace.run"
    version: int = VERSION
    folder: str
    generation: int = 0
    reached: int = 0
    runs: tuple[SavedRun, ...]
    digest: str = ""


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """Return what `save_run` wrote.

    Raises:
        StateError: the file cannot be read, is not a saved run, was changed by hand, or is of a later version.
    """
    check_local(path)
    try:
        data = read_small(Path(path))
    except OSError as error:
        raise StateError(f"the saved run cannot be read: {error}{nearest_path(path)}") from error
    try:
        content = msgspec.json.decode(data)
        if not isinstance(content, dict) or content.get("kind") != "headrace.run":
            raise StateError(f"{path}: this is not a saved run; expected a file that save_run wrote")
        version = content.get("version")
        if version != VERSION:
            raise StateError(
                f"{path}: has version {version!r}, and this Headrace reads version {VERSION}: use the version that"
                " wrote it, or a newer one"
            )
        if content.get("digest") != _digest(content):
            raise StateError(
                f"{path}: the saved run was changed since it was written, or is damaged: its content does not match "
                "its digest. Restore the file; to change the run use `headrace run edit`, or Run.edit and save_run"
            )
        found = convert(content, RunFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise StateError(f"{path}: the saved run is damaged: {error}") from error
    steps = [run.first_step for run in found.runs]
    if not steps or steps != sorted(set(steps)):
        raise StateError(f"{path}: the saved run is damaged: its runs begin at the steps {steps}, which do not rise")
    return found


def write_run_file(path: str | os.PathLike[str], file: RunFile, *, before: RunFile | None) -> None:
    """Write a file, unless another process has changed it since it was read.

    Args:
        path: the file.
        file: what is written; it gets its version and digest here.
        before: what was read; None if there was no file.

    Raises:
        StateError: the file is another one now; nothing was written.
        OutputError: it cannot be written.
    """
    with _locked(Path(path)):
        now = read_run_file(path) if holds(Path(path).exists) else None
        if now != before:
            found = "is gone" if now is None else f"has generation {now.generation:,}"
            expected = "there was none" if before is None else f"generation {before.generation:,} was read"
            raise StateError(
                f"{path}: another process has changed this file meanwhile: it {found}, and {expected}. Nothing was "
                "written: look at it with `headrace run show`, and try again"
            )
        _write(path, file)


def note_state(path: str | os.PathLike[str], position: int) -> None:
    """Note in a file that a state of its last run was given out; if this fails, it warns, and the training goes on."""
    try:
        with _locked(Path(path)):
            file = read_run_file(path)
            noted = msgspec.structs.replace(file, reached=position)
            if noted != file:
                _write(path, noted)
    except HeadraceError as error:
        warnings.warn(
            f"that a state was given out at position {position:,} is not noted in the file of the run, so that "
            f"`headrace run edit` has to be told with --state: {error}",
            stacklevel=2,
        )


def _write(path: str | os.PathLike[str], file: RunFile) -> None:
    content = as_read_back(msgspec.structs.replace(file, version=VERSION))
    write_json_file(path, content | {"digest": _digest(content)})


def _digest(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "digest"}
    return sha256(msgspec.json.encode(rest, order="sorted")).hexdigest()[:32]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time write into the folder of a file, where the file system has locks."""
    folder = None
    # Without a folder, writing fails with a message of its own.
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if folder is not None:
            os.close(folder)


def save_run(
    run: Run | FramedRun, path: str | os.PathLike[str], *, position: int | None = None, step: int | None = None
) -> None:
    """Write the file of a run: a few KB, without the data. `Run.load` and ``headrace trace`` read it.

    Call it in one process at every start, with ``position=loader.position``; this process then notes each state that
    it gives out in the file, so that ``headrace run edit`` knows what is past. If the run is unchanged, only the
    position is noted. If it was edited from this position on, or later, its edits are written. If it is another run,
    that holds from this position on, and what the file says about later steps is dropped, since they were undone.
    Without a position, the file must be new or of the same run.

    Which samples a unit of a framed run holds is known only while the run goes on; the journals of the loaders, beside
    this file, record that.

    Args:
        run: the run that begins or resumes.
        path: the file to write, such as ``run.json`` beside the checkpoints.
        position: position of this run at which it begins or resumes; in a framed run a number of units.
        step: number of this step in the training, if it differs from the run's own.

    Raises:
        ConfigError: the file describes another run and no position was given, or the run has no such position; or the
            file holds edits that this run lacks.
        StateError: the file is damaged, is not a run file, or was changed by another process at the same time.
        OutputError: the file cannot be written.
    """
    if not isinstance(run, Run | FramedRun):
        raise ConfigError(f"run is {run!r:.80}; expected a Run or a FramedRun")
    check_local(path)
    file = read_run_file(path) if holds(Path(path).exists) else None
    runs = () if file is None else file.runs
    if position is None and runs:
        if not _is_same(runs[-1], saved_run(run, 0, 0)):
            raise ConfigError(
                f"{path}: describes another run: pass the position from which this run holds, position=loader.position,"
                " or give it a file of its own"
            )
        _note_states_of(run, path)
        return
    position = whole(0 if position is None else position, "position")
    if (outside := outside_run(position, run.length)) is not None:
        raise ConfigError(outside)
    first_step = run.schedule.step_of(position) if step is None else whole(step, "step", least=0)
    new = saved_run(run, first_step, position)
    if runs:
        _check_edits(path, runs[-1], new)
    # Later runs were undone when the training went back to this step.
    kept = [one for one in runs if one.first_step < first_step]
    if kept and kept[-1].shift == new.shift and _goes_on(kept[-1], run, new, position):
        # The same run goes on, maybe for longer, or with its data at another path.
        last = kept.pop()
        new = msgspec.structs.replace(new, first_step=last.first_step, position=last.position)
    runs_now = (*kept, new)
    generation = 1 if file is None else file.generation + (runs_now != runs)
    written = RunFile(folder=str(Path.cwd()), generation=generation, reached=position, runs=runs_now)
    if file is None or msgspec.structs.replace(file, digest="") != written:
        write_run_file(path, written, before=file)
    _note_states_of(run, path)


def _note_states_of(run: Run | FramedRun, path: str | os.PathLike[str]) -> None:
    # The folder may change before a state is given out.
    if isinstance(run, Run):
        run.on_state = partial(note_state, Path(path).absolute())


def saved_run(run: Run | FramedRun, first_step: int, position: int) -> SavedRun:
    """Return a run in the form that is written."""
    if isinstance(run, FramedRun) and run.edits:
        raise ConfigError(
            "run.json cannot hold the edits of a framed run: keep the program that makes the run, and ask about its "
            "steps with headrace.tracing.framed_history(run, journals)"
        )
    begun = run.rebuilt(()) if isinstance(run, Run) and run.edits else run
    fed = begun if isinstance(begun, Run) else begun.stream
    every_data = [fed.data, *(edit.data for edit in run.edits if edit.data is not None)]
    table = SourceTable(with_tokens=any(map(is_by_tokens, every_data)))
    data = table.recipe(fed.data)
    edits = [
        SavedEdit(**msgspec.structs.asdict(edit) | {"data": None if edit.data is None else table.recipe(edit.data)})
        for edit in run.edits
    ]
    found = SavedRun(
        first_step=first_step,
        position=position,
        hashes=begun.recipe.hashes(),
        format=begun.recipe.format,
        sources=tuple(table.sources),
        data=data,
        order=fed.order,
        batch=begun.recipe.batch,
        length=fed.measured_by,
        units=None if isinstance(begun, Run) else begun.made,
        edits=tuple(edits),
        edited=run.recipe.hashes() if edits else None,
    )
    return convert(as_read_back(found), SavedRun)  # as it compares with what is read


def is_by_tokens(data: Dataset | Mix) -> bool:
    """Whether any part of a mix is weighed by tokens."""
    if not isinstance(data, Mix):
        return False
    return getattr(data, "unit", None) == "tokens" or any(map(is_by_tokens, data.children.values()))


def _bucketing(batch: dict[str, Any]) -> Bucketing | None:
    bucketing = batch.get("bucketing")
    if bucketing is None:
        return None
    return Bucketing(window_steps=bucketing["window_steps"], group_samples=bucketing["group_samples"])


def _is_same(one: SavedRun, other: SavedRun) -> bool:
    return not differing_parts(one.hashes, other.hashes) and _changes(one) == _changes(other)


def _changes(run: SavedRun) -> list[SavedEdit]:
    """Return the edits of a run as far as they decide samples."""
    return [msgspec.structs.replace(edit, reason="", date="", asked=()) for edit in run.edits]


def _goes_on(saved: SavedRun, run: Run | FramedRun, new: SavedRun, position: int) -> bool:
    """Whether what a saved run fed before a position is what a run would have fed."""
    if _is_same(saved, new):
        return True
    if not isinstance(run, Run) or saved.lanes is not None or not (saved.edits or new.edits):
        return False
    return not differing_parts(saved.run().past(position).hashes(), run.past(position).hashes())


def _check_edits(path: str | os.PathLike[str], saved: SavedRun, new: SavedRun) -> None:
    """Raise ConfigError if the file holds edits that a run lacks, which else is the same."""
    before, now = _changes(saved), _changes(new)
    if differing_parts(saved.hashes, new.hashes) or len(before) <= len(now) or any(edit not in before for edit in now):
        return
    missing = [edit for edit, change in zip(saved.edits, before, strict=True) if change not in now]
    named = "; ".join(
        f"step {edit.at_step + saved.shift:,}: {', '.join(edit.asked)} {edit.reason}".rstrip() for edit in missing
    )
    raise ConfigError(
        f"{path}: holds edits that this run lacks ({named}): load the run from its file, headrace.Run.load("
        f"{str(path)!r}), or make the same edits in Python; to give them up, use `headrace run undo`, or write this "
        "run to a file of its own"
    )
