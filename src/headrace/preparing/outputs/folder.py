"""The output folder during a run: nothing in it changes until all output is complete, and a killed run can continue.

Runs that prepare and copies write to one in the same way.

    DIR/.headrace/lock             held by a process that begins the run, or puts its output into place
                  run.json         what decides the bytes of the run
                  plan.json        its plan, whose tasks any process may do, see ``headrace.engine``
                  phase-*/         what they have done
                  tokenizer.json   the copy that all workers load
                  output/          the output while it is put together
                  commit           all output is complete, and is being moved up into DIR

A killed run leaves the hidden folder. The same run continues from it; a different run is refused until it is told to
discard the folder. If the move had begun, the next run completes it first. If a run was killed after its last change,
but before it could report success, the same run finds its complete output, and does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Final

import msgspec

from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Job, Show
from headrace.engine.planning import JobPlace, NewPlan
from headrace.engine.processes import usable_cores
from headrace.engine.receipts import Receipts
from headrace.engine.serving import load, save
from headrace.engine.shared import Shared
from headrace.engine.work_folder import PLAN_NAME, RUN_NAME, WORK_NAME, ClaimedFolder
from headrace.errors import HeadraceError, InputError, OutputError, StoreAwayError, StoreError
from headrace.io import (
    AnyPath,
    atomic_write,
    check_new,
    hash_bytes,
    output_errors,
    path_at,
    read_small,
    safe_relative,
    sync_folder,
)
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


def differences_in_words(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first differences between two descriptions of a run, and how many more there are; empty if there are none.

    Different lengths of lists come first.
    """
    before, after = ({name: repr(value) for name, value in _flat(run, "")} for run in (then, now))
    names = sorted(before.keys() | after.keys(), key=lambda name: (not name.startswith("number of "), name))
    pairs = ((name, before.get(name, "not there"), after.get(name, "not there")) for name in names)
    found = [f"{name} was {was}, is {now}" for name, was, now in pairs if was != now]
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


class NothingLeftError(InputError):
    """Nothing of the inputs is left to store. Reading them again cannot help, so the work is not kept."""


COMMIT_NAME = "commit"
_GATHERED: Final = "output"
_OUTPUT_NAMES = re.compile(
    r".+_document(_\d{5,})?\.(bin|idx)|shard_\d{4,}|data_\d{4,}\.h5|provenance|shard-\d{6,}\.tar(\.idx)?|\.nv-meta"
)


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


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The moves of a complete output, which the next process carries out if one is killed at it."""

    run: Mapping[str, Any] | None
    """What decides the bytes of the run."""

    remove: list[str]
    """The files of the output before, which are removed first."""

    moves: list[tuple[str, str]]
    """Names in the work folder, and those in the output."""


class OutputFolder:
    """Where one run writes to: a folder, which this claims as a context manager; or, as `OutputUrl`, a URL.

    If the context is left without a plan or output, the folder is as it was before, and is removed if this object
    created it. It may be entered again.

    Args:
        path: the folder.
        stores: where the stores of the output are in it, see `output_at`.
        overwrite: see `output_at`.
        restart: see `output_at`.

    Raises:
        OutputError: the folder holds something else, another run is writing to it, or the system refuses access.
    """

    def __init__(
        self, path: str | os.PathLike[str], stores: Sequence[str] = ONE_STORE, *, overwrite: bool, restart: bool | None
    ) -> None:
        self.path = Path(path)
        self.name = os.fspath(path)
        self.work = self.path / WORK_NAME
        """A folder on this host for files on their way; for a local output it is that of the job."""
        self._job = JobPlace(self.work)
        self._stores = stores
        self._overwrite = overwrite
        self._restart = restart
        self._claimed = ClaimedFolder(self.work, f"{self.name}: another run is writing to this folder")
        self._replaced: dict[str, None] = {}

    def __enter__(self) -> OutputFolder:
        try:
            with output_errors(self.path, "use as the output folder"):
                self._claimed.make(self.path)
                self._claimed.claim()
                self._complete_commit()
                # If something goes wrong before `begin`, this run must not discard an unfinished run.
                self._keep = self._unfinished() is not None
            self._found = None if self._overwrite or self._keep else whole_output(self.path, self._stores)
            if self._found is None:  # else only `begin` can tell whether it is the output that this run would make
                self._check_content()
        except BaseException:
            self._leave()
            raise
        return self

    def look(self) -> str:
        """Return what a user should know of the place before a run, and write nothing.

        Raises:
            OutputError: the place holds something else, is no folder, or may not be written to.
        """
        above = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            what = "may not be written to" if above.is_dir() else "is not a folder"
            raise OutputError(f"{self.name}: no output can be made there: {above} {what}; choose another place")
        if above != self.path:
            return ""
        if not self._restart and self._unfinished() is not None:
            return f"{self.name} holds an unfinished run: give its own command to continue it, or {self._discarding}"
        if not self._overwrite and whole_output(self.path, self._stores) is not None:
            return (
                f"{self.name} holds the output of an earlier run: if the same inputs and options made it, there is "
                "nothing to do; otherwise --overwrite replaces it"
            )
        self._check_content()
        return ""

    def __exit__(self, *error: object) -> None:
        self._leave()

    _again: ClassVar[str] = " (--overwrite makes it again)"
    _run: Mapping[str, Any] | None = None
    _completed: Mapping[str, Any] | None = None
    _found: list[Manifest] | None = None
    _keep = False
    is_continued = False
    """Whether the run that was begun was unfinished before."""

    @property
    def _discarding(self) -> str:
        what = self.work if isinstance(self.output, Path) else f"what is below {self.name}"
        return f"remove {what} to discard it" if self._restart is None else "give --restart to discard it"

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
        described = described_run(run)
        run = json.loads(described)
        if self._completed is not None and self._completed == run:
            return "the run was complete, except for the move of its files, which is done now"
        if self._found is not None and is_made(self._found):
            self.clear_left()
            done = "the output is complete already: the same inputs and options made it, so there is nothing to do"
            return f"{done}{self._again}"
        if self._found is not None or self._completed is not None:
            self._check_content()
        with output_errors(self.work, "use as the work folder"):
            before: Mapping[str, Any] | None = self._unfinished()
            self.is_continued = before is not None and not self._restart
            if not self.is_continued:
                before = self._create(described, is_anew=before is not None)
            if before is not None:
                self._check_same(before, run)
            self._run = run
        return ""

    def _create(self, described: bytes, *, is_anew: bool) -> Mapping[str, Any] | None:
        """Write down that this run has begun, and discard an unfinished one if it begins anew.

        Returns:
            None; or another run that has begun meanwhile.
        """
        self._keep = False
        self._clear()
        atomic_write(self.work / RUN_NAME, described)
        return None

    def _check_same(self, before: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        if before.get("version") != WORK_VERSION:
            raise OutputError(
                f"{self.name}: an unfinished run of another version of Headrace is in this place: its work files are of"
                f" version {before.get('version')}, those of this Headrace of version {WORK_VERSION}. Finish it with"
                f" the version that began it, or {self._discarding}"
            )
        if found := differences_in_words(before, run):
            raise OutputError(
                f"{self.name}: an unfinished run with other options is in this place: {found}. Give the same command to"
                f" continue it, or {self._discarding}"
            )

    def resume(self) -> list[Manifest] | None:
        """Go on with the run that was planned in this place, to put its output into place.

        Returns:
            The manifests of its output, if another process has completed the run meanwhile; None if it is to be done.

        Raises:
            OutputError: the work folder cannot be read.
            StoreError: there is neither an unfinished run nor output.
        """
        self._run = self._unfinished()
        if self._run is None:
            return [load_manifest(self.path / name) for name in self._stores]
        return None

    def clear_left(self) -> None:
        """Remove what runs whose output is complete have left. With a folder that happens when it is left."""

    @property
    def earlier(self) -> Mapping[str, Any]:
        """The description of an unfinished run in this place, or of the run whose output is here; else empty."""
        if self._completed is not None:
            return self._completed
        if self._found is not None:
            return self._found[0].options
        return (None if self._restart else self._unfinished()) or {}

    def save_plan(self, new: NewPlan) -> None:
        """Write the plan of this run, whose tasks any processes may do from then on. Files that are made are in `work`.

        Raises:
            OutputError: the system or the store refuses a write.
        """
        self._job.save(new, self.work)
        self._keep = True

    @property
    def output(self) -> AnyPath:
        """The folder, or the URL."""
        return self.path

    def shared(self) -> Shared:
        """Return what the processes of the job share that is planned in this place, which need not be held."""
        return self._job.shared()

    def put(self, gather: Callable[[Path], None], names: Iterable[str], made: Mapping[str, str]) -> None:
        """Put the output of a job into place. If the system refuses a move, the next run completes the moves.

        Args:
            gather: brings the files that tasks have made to a folder, see `headrace.engine.job.Job.gather`.
            names: the names of these files.
            made: further files in ``work``, with their names in the output, the manifests last.

        Raises:
            OutputError, StoreError: a file is not there, or the system refuses a write or a move.
        """
        gather(self.work / _GATHERED)
        # The files without which the output cannot be opened come last.
        ordered = sorted(names, key=lambda name: not name.endswith(".bin"))
        self._move_up({**made, **{f"{_GATHERED}/{name}": name for name in ordered}})

    def discard(self) -> None:
        """Remove what an unfinished run has left."""
        self._keep = False

    def _move_up(self, moves: Mapping[str, str]) -> None:
        """Move complete files from names in the work folder to names in the output folder, in this order.

        Raises:
            OutputError: another file has the name of one, or the system refuses a move.
        """
        self._keep = True
        for name in moves.values():
            if name not in self._replaced and (self.path / name).exists():
                raise OutputError(
                    f"{self.name}: holds {name}, which no {MANIFEST_NAME} lists, so it is not replaced: move it away,"
                    " and run again"
                )
        # Old indices are removed first, so that an old index never stands beside new tokens.
        remove = sorted(self._replaced, key=lambda name: not name.endswith((".idx", "meta.json")))
        with output_errors(self.path, "replace the output in"):
            self._move(Commit(run=self._run, remove=remove, moves=list(moves.items())))
        self._claimed.keep_created()
        self._keep = False

    def _move(self, commit: Commit) -> None:
        save(self.work / COMMIT_NAME, commit, sync=True)
        for name in commit.remove:
            (self.path / safe_relative(name)).unlink(missing_ok=True)
        if commit.remove:
            folders = {folder for name in commit.remove for folder in Path(name).parents}
            for folder in sorted(folders, key=lambda folder: -len(folder.parts)):  # from the inside out
                with contextlib.suppress(OSError):
                    if folder.parts:
                        (self.path / folder).rmdir()
            # From here on the names may belong to new files.
            save(self.work / COMMIT_NAME, msgspec.structs.replace(commit, remove=[]), sync=True)
        for source, target in commit.moves:
            place = self.path / safe_relative(target)
            if (self.work / source).exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                (self.work / source).rename(place)
        for folder in {(self.path / target).parent for _, target in commit.moves} | {self.path}:
            sync_folder(folder / MANIFEST_NAME)

    def _complete_commit(self) -> None:
        path = self.work / COMMIT_NAME
        if not path.exists():
            return
        self._keep = True
        if (commit := load(path, Commit)) is None:
            raise OutputError(
                f"{path}: damaged; the output may be half moved: remove {self.work}, and run again with --overwrite"
            )
        self._run = self._completed = commit.run
        self._move(commit)
        self._clear()

    def _unfinished(self) -> dict[str, Any] | None:
        try:
            found = json.loads(read_small(self.work / RUN_NAME))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _clear(self) -> None:
        """Remove what an earlier run left.

        The plan and the description of the run are removed first, so that a kill never leaves them without their files.
        The commit is removed last, so that until then the same run is known to be complete.
        """
        (self.work / PLAN_NAME).unlink(missing_ok=True)
        (self.work / RUN_NAME).unlink(missing_ok=True)
        self._claimed.clear(keep=(STDIN_NAME, COMMIT_NAME))
        (self.work / COMMIT_NAME).unlink(missing_ok=True)

    def _check_content(self) -> None:
        with output_errors(self.path, "list"):
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.name != WORK_NAME)
        if not names:
            return
        stores = [name for name in ["", *names] if (self.path / name / MANIFEST_NAME).exists()]
        own = [name for name in stores if name in ("", *self._stores) or _is_part(self.path / name)]
        if not self._overwrite:
            what = "holds the output of an earlier run" if own else f"is not empty: it holds {names[0]!r}"
            advice = "--overwrite replaces it" if own else "choose a new or an empty folder"
            raise OutputError(f"{self.name}: the output folder {what}; {advice}")
        taken = [name for name in names if _OUTPUT_NAMES.fullmatch(name)]
        if taken and not own:
            raise OutputError(
                f"{self.name}: {taken[0]} was not written by Headrace (there is no {MANIFEST_NAME} beside it), so it is"
                " not overwritten; choose another folder"
            )
        self._replaced = {name: None for store in own for name in self._listed(store)}
        manifests = [Path(store, MANIFEST_NAME).as_posix() for store in stores]
        if kept := [name for name in manifests if name not in self._replaced]:
            raise OutputError(
                f"{self.name}: holds {kept[0]}, of a store that is no output of an earlier run here, so it is not"
                " replaced; choose another folder"
            )

    def _listed(self, folder: str) -> list[str]:
        """The files of a store in this folder."""
        place = self.path / folder
        try:
            names = _file_names(load_manifest(place))
        except StoreError:  # damaged: only names that certainly belong to Headrace are removed
            taken = [path for path in sorted(place.iterdir()) if _OUTPUT_NAMES.fullmatch(path.name)]
            files = [path for one in taken for path in (sorted(one.rglob("*")) if one.is_dir() else [one])]
            names = [path.relative_to(place).as_posix() for path in files if path.is_file()]
        return [Path(folder, name).as_posix() for name in (MANIFEST_NAME, *names)]

    def _leave(self) -> None:
        def end() -> None:
            if not self._keep:
                with contextlib.suppress(OSError):
                    self._clear()
                shutil.rmtree(self.work, ignore_errors=True)

        self._claimed.leave(end)


def output_at(
    output: str | os.PathLike[str] | AnyPath,
    stores: Sequence[str] = ONE_STORE,
    *,
    overwrite: bool,
    restart: bool | None,
) -> OutputFolder:
    """Return the place of the output of a run, not held yet: a local folder, or a URL.

    Args:
        output: a local path or a URL, with what reaches its store; that of a text goes by the environment.
        stores: the folders of the output, each with a manifest, that are stores; an empty name is the output itself.
        overwrite: whether to replace the output of an earlier run; only local ones are replaced.
        restart: whether to discard an unfinished run; None if the command has no such option.

    Raises:
        ConfigError: the output of another run at a URL is to be replaced.
    """
    path = path_at(output)
    if isinstance(path, Path):
        return OutputFolder(output, stores, overwrite=overwrite, restart=restart)
    check_new(path, overwrite=overwrite)
    # What talks to object stores is loaded when the first URL comes.
    made: OutputFolder = resolve_name("headrace.preparing.outputs.url:OutputUrl")(path, stores, restart=restart)
    return made


def write_manifests(work: Path, manifests: Mapping[str, Manifest]) -> tuple[list[Manifest], dict[str, str]]:
    """Write the manifests of the stores of an output, given by the names of their folders, to a work folder.

    Returns:
        The manifests, with their hashes; and the name of each in the work folder with that in the output, see
        `OutputFolder.put`.

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


def do_here(
    place: OutputFolder,
    plan: msgspec.Struct | None,
    make: Callable[[AnyPath, Shared, msgspec.Raw], Job],
    *,
    workers: int | None,
    show: Show,
) -> Manifest:
    """Do a run that was planned in a place, on this host.

    If it ends without output, and nothing was done before that the same command could go on with, nothing stays.

    Args:
        place: where it was planned; it is not held any more.
        plan: its plan; None if its output is complete already.
        make: makes the job, given the output, what its processes share, and the plan.
        workers: number of worker processes; None uses the number of cores that this process may run on.
        show: what tells how far it is.

    Raises:
        Exception: what ended the run.
    """
    if plan is None:
        return load_manifest(place.output)
    try:
        job = make(place.output, place.shared(), msgspec.Raw(msgspec.json.encode(plan)))
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


def _is_part(folder: Path) -> bool:
    """Whether a store is a part of a split, as its manifest says."""
    try:
        copied = load_manifest(folder).options.get("copy", {})
    except StoreError:
        return False
    return bool(copied.get("request", {}).get("part") == folder.name)


def _file_names(manifest: Manifest) -> list[str]:
    """All files that a manifest lists, relative to its folder."""
    names = list(manifest.files())
    if any(shard.format == "tar" for shard in manifest.outputs):
        names += [name for name in manifest.options.get("meta_files", ()) if name.startswith(".nv-meta/")]
    domains = dict.fromkeys(Path(shard.prefix).parent for shard in manifest.outputs)
    return names + [(folder / MANIFEST_NAME).as_posix() for folder in domains if folder.parts]
