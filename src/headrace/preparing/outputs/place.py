"""Where a run writes to: what a folder and a URL have in common; how runs are described, compared and done here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Job, Show
from headrace.engine.planning import NewPlan
from headrace.engine.processes import usable_cores
from headrace.engine.receipts import Receipts
from headrace.engine.shared import Shared
from headrace.engine.work_folder import RUN_NAME
from headrace.errors import HeadraceError, InputError, OutputError, StoreAwayError, StoreError
from headrace.io import AnyPath, hash_bytes, output_errors
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest, save_manifest

ONE_STORE: Final = ("",)
WORK_VERSION = 1
"""Version of the files in the work folder of an unfinished run. It increases with each change of their format."""
_MANIFESTS: Final = "manifests"

STDIN_NAME = "stdin"
"""Name of the copy of standard input, if that is an input."""


def mark_of(work: Path) -> str:
    """A short hash of what decides the bytes of the run in a work folder, for the names of folders in it."""
    return hash_bytes((work / RUN_NAME).read_bytes())[:8]


_MAX_DIFFERENCES = 8


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The differences between two descriptions of a run, a line each. Different lengths of lists come first."""
    before, after = dict(_flat(then, "")), dict(_flat(now, ""))
    for name in sorted(before.keys() | after.keys(), key=lambda name: (not name.startswith("number of "), name)):
        if name not in before or name not in after or before[name] != after[name]:
            yield f"{name} was {_shown(before, name)}, is {_shown(after, name)}"


def differences_in_words(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first differences between two descriptions of a run, and how many more there are; empty if there are none."""
    found = list(differences(then, now))
    more = f" and {len(found) - _MAX_DIFFERENCES} more" if len(found) > _MAX_DIFFERENCES else ""
    return "; ".join(found[:_MAX_DIFFERENCES]) + more


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        yield f"number of {path}", len(value)
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{number}]")
    else:
        yield path, value


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "not there"


class NothingLeftError(InputError):
    """Nothing of the inputs is left to store. Reading them again cannot help, so the work is not kept."""


class OutputPlace(Protocol):
    """Where a run writes to, as a context manager that holds it: an `OutputFolder`, or an `OutputUrl`."""

    work: Path
    """A folder on this host for files on their way; for an `OutputFolder` it is that of the job."""

    is_continued: bool
    """Whether the run that was begun was unfinished before."""

    @property
    def output(self) -> AnyPath:
        """The folder, or the URL."""

    @property
    def earlier(self) -> Mapping[str, Any]:
        """The description of an unfinished run in this place, or of the run whose output is here; else empty."""

    def look(self) -> str:
        """Return what a user should know of the place before a run, and write nothing.

        Raises:
            OutputError: the place holds something else, is no folder, or may not be written to.
        """

    def begin(self, run: Mapping[str, Any], *, is_made: Callable[[list[Manifest]], bool]) -> str:
        """Begin or continue this run.

        Args:
            run: what decides the bytes of the run, as JSON.
            is_made: called with the manifests of complete output in this place; returns whether the run would make it.

        Returns:
            An empty string if the run is to be done; a notice for the user if its output is complete already.

        Raises:
            OutputError: the place holds something else, or another unfinished run.
        """

    def save_plan(self, new: NewPlan) -> None:
        """Write the plan of this run, whose tasks any processes may do from then on. Files that are made are in `work`.

        Raises:
            OutputError: the system or the store refuses a write.
        """

    def shared(self) -> Shared:
        """Return what the processes of the job share that is planned in this place, which need not be held."""

    def resume(self) -> list[Manifest] | None:
        """Go on with the run that was planned in this place, to put its output into place.

        Returns:
            The manifests of its output, if another process has completed the run meanwhile; None if it is to be done.

        Raises:
            OutputError: the work folder cannot be read.
            StoreError: there is neither an unfinished run nor output.
        """

    def put(self, gather: Callable[[Path], None], names: Iterable[str], made: Mapping[str, str]) -> None:
        """Put the output of a job into place.

        Args:
            gather: brings the files that tasks have made to a folder, see `headrace.engine.job.Job.gather`.
            names: the names of these files.
            made: further files in ``work``, with their names in the output, the manifests last.

        Raises:
            OutputError, StoreError: a file is not there, or the system refuses a write or a move.
        """

    def discard(self) -> None:
        """Remove what an unfinished run has left."""

    def clear_left(self) -> None:
        """Remove what runs whose output is complete have left."""

    def __enter__(self) -> OutputPlace:
        """Hold the place, which is free, or has an unfinished run; raises OutputError otherwise."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the place as it was before, unless a run was planned or completed."""


def write_manifests(work: Path, manifests: Mapping[str, Manifest]) -> tuple[list[Manifest], dict[str, str]]:
    """Write the manifests of the stores of an output, given by the names of their folders, to a work folder.

    Returns:
        The manifests, with their hashes; and the name of each in the work folder with that in the output, see
        `OutputPlace.put`.

    Raises:
        OutputError: the system refuses a write.
    """
    saved, made = [], {}
    for name, manifest in manifests.items():
        place = work / _MANIFESTS / name
        with output_errors(place, "make the folder"):
            place.mkdir(parents=True, exist_ok=True)
        saved.append(save_manifest(place, manifest))
        made[f"{_MANIFESTS}/{Path(name, MANIFEST_NAME).as_posix()}"] = Path(name, MANIFEST_NAME).as_posix()
    return saved, made


def described_run(run: Mapping[str, Any]) -> bytes:
    """Return what ``run.json`` says of a run, given what decides its bytes."""
    return json.dumps({"version": WORK_VERSION, **run}).encode()


def whole_output(output: AnyPath, stores: Sequence[str]) -> list[Manifest] | None:
    """Return the manifests of the stores of an output, if all their files are there; no file is read.

    Raises:
        StoreAwayError: the store of a URL cannot be reached.
    """
    found = []
    for place in [output / name for name in stores]:
        try:
            manifest = load_manifest(place)
        except StoreAwayError:
            raise
        except StoreError:
            return None
        if not manifest.is_complete(place):
            return None
        found.append(manifest)
    return found


def tell_kept(error: BaseException, shared: Shared) -> None:
    """Let an error that ends a run say where what is done of it is kept, in place of that nothing was written."""
    if error.args:
        kept = f"What is done so far is kept in {shared.here if shared.is_folder else shared.address}"
        error.args = (str(error.args[0]).replace("Nothing was written", kept), *error.args[1:])


def _is_worth_keeping(job: Job, receipts: Receipts, error: BaseException) -> bool:
    """Whether the same command could go on: not after a defect, nor if nothing is done, or inputs have changed."""
    if isinstance(error, NothingLeftError) or type(error) is HeadraceError:
        return False
    try:
        receipts.refresh()
        job.check_inputs()
    except InputError:
        return False
    except (OutputError, StoreError):  # if the store is away, the same command may go on later
        return True
    return len(receipts.done) > len(receipts.failed)


def do_here(place: OutputPlace, make: Callable[[AnyPath, Shared], Job], *, workers: int | None, show: Show) -> Manifest:
    """Do a run that was planned in a place, on this host.

    If it ends without output, and nothing was done before that the same command could go on with, nothing stays.

    Args:
        place: where it was planned; it is not held any more.
        make: makes the job, given the output and what its processes share.
        workers: number of worker processes; None uses the number of cores that this process may run on.
        show: what tells how far it is.

    Raises:
        Exception: what ended the run.
    """
    try:
        job = make(place.output, place.shared())
        phase = job.phase()
    except (OutputError, StoreError):
        with place:
            completed = place.resume()
        if completed is None:
            raise
        return completed[0]  # another process has completed the run meanwhile
    receipts = None if phase is None else job.receipts(phase)
    if receipts is not None and receipts.done:
        done = f"{len(receipts.done):,} of {len(receipts.tasks):,} tasks are done"
        show.notice(f"continuing the unfinished run in this folder: {done}")
    try:
        found: Manifest = drive(job, LocalExecutor(workers=workers or usable_cores()), show)
    except BaseException as error:
        is_worth = receipts is None or _is_worth_keeping(job, receipts, error)
        if not is_worth and not place.is_continued:
            with contextlib.suppress(HeadraceError), place:
                place.discard()
        elif is_worth and not isinstance(error, HeadraceError):
            show.notice("what is done so far is kept: the same command goes on from there")
        else:
            tell_kept(error, job.shared)
        raise
    return found
