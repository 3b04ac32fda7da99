"""The checks of a store of samples: headers, indices, split files and hashes, and whether each part can be decoded.

``check --decode`` may also be planned, for processes on any hosts to decode the samples. The work folder is then beside
the dataset, and nothing in the dataset changes. The end is a local check that finds on disk what was decoded; it reads
headers and hashes itself. Its verdict stays in the work folder until another check is planned: the process that finds
it may have nobody to tell, as in a job of Slurm. Of a dataset at a URL, the same names stand for URLs, see
`headrace.engine.shared_objects`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from headrace.engine.job import Show
from headrace.engine.planning import NewPlan, job_at
from headrace.engine.processes import usable_cores
from headrace.engine.work_folder import beside
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreAwayError, StoreError
from headrace.inspect.answers import Checked, OnProgress, bytes_of, check_quarantine, kind_of, problem_of
from headrace.inspect.blocks import Block, Note
from headrace.inspect.decoding import (
    KIND,
    Decoded,
    DecodedRange,
    DecodePlan,
    DecodingJob,
    as_ascii,
    decoded_here,
    open_checked,
    splits_of,
)
from headrace.inspect.description import own_manifest
from headrace.inspect.figures import count, plural, size
from headrace.inspect.samples import SampleOptions, need_samples
from headrace.io import AnyPath, PreadReader, can_list, folder_of, path_at, read_whole, remove_file, replace_file
from headrace.io.readers import ByteArray, IntArray
from headrace.preparing.energon.state import STATE_NAME, load_state, state_problems
from headrace.stores import Manifest, Problem, SampleStore, check_file
from headrace.stores.energon import EnergonStore, Splits
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME
from headrace.stores.quarantine import add_bad_samples
from headrace.stores.tar.index import index_path

MAX_NAMED: Final = 1000
"""The most faults that are named one by one; any others are counted."""


def summed(store: SampleStore, ranges: Iterable[DecodedRange], on_problem: Callable[[Problem], None]) -> Decoded:
    """Sum up what was found in all ranges of a store.

    Args:
        store: the store.
        ranges: the ranges, in the order of the store.
        on_problem: called for each fault, in the order of the store.
    """
    whole, named = Decoded(), 0
    for one in ranges:
        whole.samples += one.samples
        whole.faulty_samples += one.faulty_samples
        whole.bad += one.bad
        for kind in ("parts", "kept_parts", "faulty_parts"):
            counts = collections.Counter(getattr(whole, kind))
            counts.update(getattr(one, kind))
            setattr(whole, kind, dict(sorted(counts.items())))
        for problem in one.problems[: max(0, MAX_NAMED - named)]:
            on_problem(problem)
        named += len(one.problems)
    if named > MAX_NAMED:
        on_problem(Problem(path=store.path, place="", message=f"{named - MAX_NAMED:,} more faulty parts"))
    return whole


class SampleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What to check in addition to what is always checked. Pass it to `check_samples`.

    Attributes:
        dataset: which part of an Energon dataset is checked, and by which of its files.
        decode: whether every part of every sample is decoded.
        workers: the number of processes that decode.
    """

    dataset: SampleOptions = SampleOptions()
    decode: bool = False
    workers: int = 1

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return what these options of `check` say about samples.

        Raises:
            ConfigError: ``workers`` is out of range, or given without ``decode``.
        """
        workers, decode = options.get("workers"), options.get("decode", False)
        if workers is not None and (workers < 1 or not decode):
            raise ConfigError(f"`workers={workers}`: give a number of processes, 1 or more, together with `decode`")
        return cls(dataset=SampleOptions.of(options), decode=decode, workers=workers or usable_cores())


class SampleVerdict(Checked, frozen=True, kw_only=True):
    """What a check of samples found, and how much it read. Counts are zero if the store cannot be opened."""

    notes: tuple[str, ...] = ()
    """Remarks on what may be intended or a mistake."""

    unvouched: tuple[str, ...] = ()
    """Files without a recorded hash. Of tars among them only the headers are checked, of others their contents."""

    samples: int = 0
    shards: int = 0
    files: int = 0
    bytes: int = 0
    hashed: bool = False
    """Whether a manifest has the hashes of the shards, and these were compared."""

    decoded: Decoded | None = None

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        yield from map(Note, self.notes)
        what = ""
        if (found := self.decoded) is not None:
            what = ", every part decoded" + (" that has a decoder" if found.kept_parts else "")
            told = f"{self.path}: decoded: {_counts(found.parts) or 'none'}"
            told += (
                f"; kept as bytes, since no decoder knows them: {_counts(found.kept_parts)}" if found.kept_parts else ""
            )
            yield told + (f"; at fault: {_counts(found.faulty_parts)}" if found.faulty_parts else "")
        what += ", hashed" if self.hashed else " (no headrace.json has hashes of the bytes)"
        numbers = f"{plural(self.samples, 'sample')} in {plural(self.shards, 'shard')}, {size(self.bytes)}"
        yield self.told(f"{numbers}, every header read{what}")


class Watched(PreadReader):
    """A reader that reports which file it reads, and how many bytes it has read so far."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress
        self._num_bytes = 0

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """See `Reader.read_ranges`."""
        self._num_bytes += int(lengths.sum())
        _tell_read(self._on_progress, path, self._num_bytes)
        return super().read_ranges(path, offsets, lengths, out)


def _tell_read(on_progress: OnProgress, file: str, num_bytes: int) -> None:
    on_progress("checking", text=f"{file} ({size(num_bytes)} read)", speeds={"B": num_bytes})


def check_samples(
    path: str, check: SampleCheck, *, on_progress: OnProgress, ranges: Iterable[DecodedRange] | None = None
) -> SampleVerdict:
    """Check everything at a path that holds samples, and collect what is wrong.

    Args:
        path: the same as for `headrace.open`.
        check: what to check in addition.
        on_progress: called before each read, and now and then with the samples that are decoded.
        ranges: what other processes have decoded, in the order of the store; None decodes now, if that is to be done.

    Raises:
        StoreError: the path does not exist.
        StoreAwayError: the object store gives no answer.
        ConfigError: there is no such split part.
        WorkerError: a process that decodes has ended.
    """
    try:
        # What an object store sends is not watched: it is read in few large pieces.
        store = open_checked(path, check.dataset, Watched(on_progress) if isinstance(path_at(path), Path) else "mmap")
        manifest = own_manifest(path)
    except (StoreError, InputError) as error:
        problem = problem_of(error, path)
        if not path_at(path).exists():
            raise
        return SampleVerdict(path=path, ok=False, problems=(problem,))
    with store:
        splits = splits_of(store, check.dataset)
        problems = list(_problems(store, path, manifest, splits, check.dataset, on_progress))
        decoded = None
        if check.decode:
            here = decoded_here(store, path, check.dataset, check.workers, on_progress)
            with here if ranges is None else contextlib.nullcontext(ranges) as found:
                decoded = summed(store, found, problems.append)
        unvouched = _unvouched(store, path, manifest)
        return SampleVerdict(
            path=path,
            ok=not problems,
            problems=tuple(problems),
            notes=tuple(_notes(store, splits, check.dataset)) + _note_of(unvouched, store, manifest),
            unvouched=unvouched,
            samples=len(store),
            shards=len(store.shards),
            files=len(set(store.files)),
            bytes=bytes_of(store.files),
            hashed=manifest is not None,
            decoded=decoded,
        )


def leave_out_bad(path: str, verdict: SampleVerdict, options: SampleOptions) -> str:
    """Put the samples that could not be decoded on the list of bad samples, and return a line that says so."""
    bad = () if verdict.decoded is None else verdict.decoded.bad
    if not bad:
        return f"{path}: no sample has to be left out"
    with need_samples(path, options) as store:
        add_bad_samples(store, bad)
    # A process that was killed may have listed some of them before.
    return f"{path}: {plural(len({(one.shard, one.key) for one in bad}), 'sample')} left out from now on"


def _problems(
    store: SampleStore,
    path: str,
    manifest: Manifest | None,
    splits: Splits | Problem | None,
    options: SampleOptions,
    on_progress: OnProgress,
) -> Iterator[Problem]:
    try:
        yield from store.check()
    except HeadraceError as error:
        yield Problem.of(path, error)
    if isinstance(splits, Problem):
        yield splits
    elif splits is not None and isinstance(store, EnergonStore):
        yield from _split_problems(store, splits, options)
    if manifest is not None:
        # A state file was written later, and has the hashes of .nv-meta.
        beside = () if _state_file(store) is not None else manifest.beside or ()
        for name, file in {**manifest.files(), **{file.name: file for file in beside}}.items():
            place = path_at(path) / name
            _tell_read(on_progress, str(place), file.size)
            yield from check_file(place, file)
    if isinstance(store, EnergonStore):
        yield from state_problems(store.root)


def _state_file(store: SampleStore) -> AnyPath | None:
    """Return the state file that `headrace prepare` wrote into an Energon dataset; None if there is none."""
    if not isinstance(store, EnergonStore):
        return None
    path = store.root / META_FOLDER / STATE_NAME
    return path if path.is_file() else None


def _unvouched(store: SampleStore, path: str, manifest: Manifest | None) -> tuple[str, ...]:
    """Return the files without a recorded hash."""
    files, vouched = set(store.files), set[AnyPath]()
    if isinstance(store, EnergonStore):
        meta = store.root / META_FOLDER
        files |= {
            file for file in meta.glob("**/*") if file.is_file() and META_WORK_NAME not in file.as_posix().split("/")
        }
        vouched |= _vouched_by_state(store.root)
    if manifest is not None:
        listed = [*manifest.files(), *(file.name for file in manifest.beside or ())]
        vouched |= {path_at(path) / name for name in listed}
    known = {os.path.realpath(file) for file in vouched}
    return tuple(sorted(str(file) for file in files if os.path.realpath(file) not in known))


def _vouched_by_state(root: AnyPath) -> set[AnyPath]:
    """Return the files of an Energon dataset whose hashes its state file has; none if it has no state that is whole."""
    meta = root / META_FOLDER
    try:
        state = load_state(root)
    except StoreAwayError:
        raise
    except StoreError:
        return set()  # reported by state_problems
    if state is None:
        return set()
    vouched = {meta / file.name for file in state.files} | {index_path(root / name) for name in state.shards}
    return vouched | ({meta / STATE_NAME} if state.xxh3_128 else set())


def _split_problems(store: EnergonStore, splits: Splits, options: SampleOptions) -> Iterator[Problem]:
    """Yield split parts that cannot be opened, and excluded samples that do not exist; of one part, or of all."""
    for name, listed in splits.parts.items():
        if options.split_part not in (None, name) or all(shard in splits.exclude for shard in listed):
            continue
        try:
            with EnergonStore(store.root, split_part=name, split_config=options.split_config) as part:
                wanted = sum(map(len, part.part_shards.keys.values()))
                if part.num_left_out < wanted and len(set(part.shards)) == len(part.shards):
                    message = (
                        f"part {name!r}: excludes {wanted} samples, of which {wanted - part.num_left_out} do not exist"
                    )
                    yield Problem(path=str(splits.path), place="exclude", message=message)
        except HeadraceError as error:
            yield Problem.of(str(splits.path), error, place=f"part {name!r}")


def _notes(store: SampleStore, splits: Splits | Problem | None, options: SampleOptions) -> Iterator[str]:
    """Yield notes on shards in several parts or in none, and on tars that no file lists."""
    if not isinstance(store, EnergonStore) or options.split_part is not None:
        return
    known = store.info.shard_counts
    tars = {tar.relative_to(store.root) for tar in store.root.rglob("*.tar")}
    beside = {str(tar) for tar in tars if not any(folder.startswith(".") for folder in tar.parts)} - known.keys()
    if beside:
        yield f"not in the info file: {_some(beside)}; headrace prepare adds new shards"
    if splits is None:
        yield "there is no split file, so the dataset can only be opened as a whole"
    if not isinstance(splits, Splits):
        return
    num_parts = collections.Counter(dict.fromkeys(known, 0))
    for listed in splits.parts.values():
        num_parts.update(set(listed))
    shared = {shard for shard, number in num_parts.items() if number > 1} - splits.exclude
    if shared:
        yield f"in more than one part of the split: {_some(shared)}"
    unused = {shard for shard, number in num_parts.items() if not number} - splits.exclude
    if unused:
        yield f"in no part of the split: {_some(unused)}"


def _note_of(unvouched: tuple[str, ...], store: SampleStore, manifest: Manifest | None) -> tuple[str, ...]:
    """Return a note if some files have recorded hashes, but not all."""
    if not unvouched or (manifest is None and _state_file(store) is None):
        return ()
    root = store.root if isinstance(store, EnergonStore) else path_at(store.path)
    paths = list(map(path_at, unvouched))
    names = {str(path.relative_to(root)) if path.is_relative_to(root) else str(path) for path in paths}
    return (f"no hash was recorded for {_some(names)}: of tars, only the headers are checked",)


def _some(names: set[str]) -> str:
    first = sorted(names)[:5]
    return ", ".join(first) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count(number)}" for name, number in parts.items())


WORK: Final = beside("checking")
VERDICT_NAME: Final = "verdict.json"


def plan_check(path: str, options: Mapping[str, Any], *, quarantine: bool = False) -> None:
    """Plan a check that decodes all samples, beside the dataset, for processes on any hosts to do its tasks.

    Args:
        path: a dataset of samples.
        options: as for `check`.
        quarantine: whether samples that cannot be decoded are left out of the dataset at the end.

    Raises:
        StoreError: there is no dataset.
        ConfigError: ``decode`` is not asked for, or it is a metadataset, or a plan cannot lie beside it.
        OutputError: the plan cannot be written.
    """
    work = WORK(path_at(path))
    if not can_list(work):
        raise ConfigError(
            f"{path}: a plan lies beside the dataset, and nothing is written to a web server: check it on one host,"
            " or copy the dataset to s3://, gs:// or az://"
        )
    kind = kind_of(path)
    if kind == "metadataset":
        raise ConfigError(f"{path} is a metadataset: plan a check of each of its datasets, see headrace info {path}")
    check = SampleCheck.of(options)
    if not check.decode:
        raise ConfigError("other processes can only decode: add `decode`, or check it on this host")
    if quarantine:
        check_quarantine(path, kind, decodes=True)
    if not work.parent.is_dir():
        raise ConfigError(f"{path}: a plan lies beside the dataset, and there is no folder {work.parent}")
    with open_checked(path, check.dataset, "mmap") as store:
        plan = DecodePlan.of(store, path, dataset=check.dataset, folder=folder_of(path), quarantine=quarantine)
    remove_file(work / VERDICT_NAME)
    job_at(work).save(NewPlan(KIND, plan, [plan.phase]))


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the job found."""

    verdict: SampleVerdict
    left_out: str = ""
    """A line about the samples that are left out from now on, if that was asked for."""


def last_report(path: str | os.PathLike[str]) -> CheckReport | None:
    """Return what the last planned check of a dataset found; None if there is none.

    Raises:
        OutputError: the file cannot be read, or is damaged.
    """
    file = WORK(path_at(path)) / VERDICT_NAME
    if not file.is_file():
        return None
    try:
        data = read_whole(file)
    except OSError as error:
        raise OutputError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return msgspec.convert(json.loads(data), CheckReport)
    except ValueError as error:
        raise OutputError(f"{file}: damaged: {error}; remove it") from error


def clear_left(path: str | os.PathLike[str]) -> None:
    """Remove what a process may have left that was killed after its verdict was there.

    Raises:
        OutputError, StoreError: the system or the store refuses it.
    """
    job_at(WORK(path_at(path))).clear(keep=(VERDICT_NAME,))


class DecodeJob(DecodingJob):
    """See the module."""

    def finish(self, show: Show) -> CheckReport:  # type: ignore[override]
        """See `Job`: check everything else, and put together what was decoded."""
        began_s = time.monotonic()
        plan, path = self.plan, str(self.output)
        if not self.is_planned:
            # Another process has completed the check meanwhile, or has planned another one.
            if (report := last_report(path)) is None:
                raise OutputError(f"{path}: the check that was planned was discarded: another one was planned")
            return report
        # A process that was killed while it left out samples has changed the dataset, but not what it had found. This
        # has the name of its plan, so that a check that is planned anew looks anew.
        checked = f"{plan.phase.name}-checked.json"
        kept = self.shared.read(checked)
        verdict = msgspec.convert(json.loads(kept), SampleVerdict) if kept is not None else self._check(show, began_s)
        if plan.quarantine and kept is None:
            self.shared.create(checked, as_ascii(verdict).encode())
        left_out = leave_out_bad(path, verdict, plan.dataset) if plan.quarantine else ""
        report = CheckReport(verdict=verdict, left_out=left_out)
        data = as_ascii(report).encode()
        if self.is_planned:
            replace_file(WORK(self.output) / VERDICT_NAME, data)
            clear_left(path)
        return report

    @property
    def is_planned(self) -> bool:
        """See `Job`: False also if another check of this dataset was planned meanwhile."""
        found = job_at(WORK(self.output)).planned()
        return found is not None and msgspec.json.decode(found.plan, type=DecodePlan) == self.plan

    def _check(self, show: Show, began_s: float) -> SampleVerdict:
        plan, path = self.plan, str(self.output)
        with open_checked(path, plan.dataset, "mmap") as store:
            plan.check_fingerprint(store.fingerprint)
        check = SampleCheck(dataset=plan.dataset, decode=True)
        verdict = check_samples(path, check, on_progress=show.progress, ranges=super().finish(show))
        return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - began_s, 3))
