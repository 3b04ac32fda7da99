"""`measure`: finds stored facts, or measures them by a job, whose tasks make chunks, and merges the chunks.

Merged arrays hold the chunks one after another; groups are numbered in the order in which they first occur.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.encoded.samples import Encoder, Media
from headrace.datasets.measuring.chunk import Chunk, FaultCount, GroupFacts, MeasuredFacts, Measuring, Summary
from headrace.encoders import Fault
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Do, Phase, Show, TaskResult, Tell
from headrace.engine.planning import JobPlace, NewPlan, job_at
from headrace.engine.tasks import PlannedJob, SpanTask, spans
from headrace.engine.work_folder import beside, remove_work
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.io import cache_folder, check_local, hash_bytes
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.recipe import contents_hash
from headrace.stores import find_cache, keep_arrays


class ChunkMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of a chunk in addition to its arrays."""

    keys: list[tuple[str, int | None]]
    faults: list[Fault]


def keep_chunk(folder: Path, name: str, chunk: Chunk) -> None:
    """Write a chunk, whole or not at all. Raises OutputError."""
    keep_arrays(folder, name, chunk.arrays, msgspec.json.encode(ChunkMeta(chunk.keys, chunk.faults)))


def find_chunk(folder: Path, name: str) -> Chunk | None:
    """Return a chunk that was stored, memory-mapped; None if there is none, or it is incomplete."""
    found = find_cache(folder, name)
    if found is None:
        return None
    meta = msgspec.json.decode(found[1], type=ChunkMeta)
    return Chunk(found[0], meta.keys, meta.faults)


class _Totals:
    """What is known after one pass over all chunks."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self.sizes: dict[str, int | None] = {}
        self.members: Counter[str] = Counter()
        self.faults: list[bytes] = []
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.skipped = self.outputs = self.tokens = 0
        for chunk in chunks:
            self._add(chunk)
        self.largest["groups"] = len(self.sizes)

    def _add(self, chunk: Chunk) -> None:
        members = np.bincount(chunk.arrays.get("groups", NOTHING), minlength=len(chunk.keys)).tolist()
        for (key, size), count in zip(chunk.keys, members, strict=True):
            if (known := self.sizes.setdefault(key, size)) != size:
                raise ConfigError(
                    f"batch_group_criterion returned two sizes for the group {key}, {known} and {size};"
                    " all batches of a group must have one size"
                )
            self.members[key] += count
        for fault in chunk.faults:
            self.faults.append(msgspec.json.encode(fault) + b"\n")
            self.kinds[fault.hook, fault.kind] += 1
        for name, array in chunk.arrays.items():
            self.rows[name] += len(array)
            self.largest[name] = max(self.largest[name], int(array.max(initial=0)))
        counts = chunk.arrays["num_outputs"]
        self.skipped += int((chunk.arrays["is_good"] & (counts == 0)).sum())
        self.outputs += int(counts.sum(dtype=np.int64))
        if "lengths" in chunk.arrays:
            self.tokens += int(chunk.arrays["lengths"].sum(dtype=np.int64))


def merged(measuring: Measuring, chunks: Sequence[Path], scratch: Path) -> tuple[Summary, dict[str, NDArray[Any]]]:
    """Return all chunks as one, with the arrays in files of ``scratch``; one chunk is in memory at a time.

    Raises:
        StoreError: a chunk is missing or damaged.
        ConfigError: a group has two sizes.
    """
    totals = _Totals(_chunks(chunks))
    numbers = {key: number for number, key in enumerate(totals.sizes)}
    arrays: dict[str, NDArray[Any]] = {}
    for name in totals.rows:
        values = (_numbered(one, numbers) if name == "groups" else one.arrays[name] for one in _chunks(chunks))
        dtype = np.dtype(bool) if name == "is_good" else np.min_scalar_type(totals.largest[name])
        arrays[name] = _joined(scratch / name, dtype, values)
    arrays["faults"] = np.frombuffer(b"".join(totals.faults), dtype=np.uint8)
    kinds = sorted(totals.kinds.items(), key=lambda item: (-item[1], item[0]))
    summary = Summary(
        dataset=measuring.dataset.fingerprint,
        encoder=measuring.recipe,
        settings=measuring.settings,
        samples=totals.rows["is_good"],
        bad_samples=totals.kinds.total(),
        skipped_samples=totals.skipped,
        outputs=totals.outputs,
        tokens=totals.tokens if "lengths" in arrays else None,
        groups=tuple(GroupFacts(key=key, size=size, outputs=totals.members[key]) for key, size in totals.sizes.items()),
        faults=tuple(FaultCount(hook=hook, kind=kind, count=count) for (hook, kind), count in kinds),
        xxh3_128=_hash(arrays),
        contents=contents_hash(measuring.dataset.recipe),
    )
    return summary, arrays


def _chunks(places: Sequence[Path]) -> Iterator[Chunk]:
    for place in places:
        chunk = find_chunk(place.parent, place.name)
        if chunk is None:
            raise StoreError(
                f"{place}: was there before, and another process has removed it: run again, which continues"
            )
        yield chunk


def _numbered(chunk: Chunk, numbers: Mapping[str, int]) -> NDArray[Any]:
    """(outputs,) int64: the group of each output of a chunk, by its number in the whole."""
    table = np.array([numbers[key] for key, _ in chunk.keys], dtype=np.int64)
    return np.take(table, chunk.arrays["groups"])


def _joined(path: Path, dtype: np.dtype[Any], values: Iterator[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays as one, in a file, which takes no memory however many samples there are."""
    with path.open("wb") as file:
        for some in values:
            file.write(some.astype(dtype).data)
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def _hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    hasher = xxhash.xxh3_128()
    for name, array in sorted(arrays.items()):
        hasher.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
        hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()


_CHUNK_SAMPLES: Final = 8192
"""Most samples that are measured again after a process was killed."""

_MIN_CHUNK: Final = 64
_MIN_CHUNKS: Final = 64
"""Small datasets have at least this many chunks, if these keep `_MIN_CHUNK` samples, to share between processes."""

WORK: Final = beside("measuring")
"""The work folder of the job is beside the folder of the facts."""

KIND: Final = "measure"


class MeasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the measuring of objects of a program, see `TaskPlan`: what is given is their `Measuring`."""

    facts: str
    """Hash of everything that decides the facts."""

    samples: int
    code: str = ""
    """Fingerprint of the module of the encoder, if that is named."""

    @property
    def phase(self) -> Phase:
        """The only phase. Its chunks depend on nothing else."""
        name = hash_bytes(f"{self.facts} {self.samples} {self.code}".encode())[:8]
        return Phase(name=f"measure-{name}", num_tasks=len(self.tasks))

    @property
    def tasks(self) -> list[SpanTask]:
        """All tasks, a chunk each, in the order of the samples. They do not depend on the number of processes."""
        return spans(self.samples, min(_CHUNK_SAMPLES, max(_MIN_CHUNK, -(-self.samples // _MIN_CHUNKS))))

    def opened(self) -> AbstractContextManager[Measuring]:
        """Open what is measured, if nothing is given.

        Raises:
            ConfigError: it is not named.
        """
        raise ConfigError(
            "a program measures its own objects here, which no other process has: run it again, with more workers, or"
            " plan the work with headrace job plan measure"
        )

    @contextmanager
    def doing(self, given: Any) -> Iterator[Do]:
        """See `TaskPlan`."""
        with self.opened() if given is None else nullcontext(given) as measuring:

            def do(task: SpanTask, results: Path, tell: Tell) -> TaskResult:
                chunk = measuring.chunk(task.first, task.end, lambda number: tell({"samples": number}))
                keep_chunk(results, task.name, chunk)
                outputs = int(chunk.arrays["num_outputs"].sum())
                return TaskResult(files=(task.name,), counts={"samples": task.end - task.first, "outputs": outputs})

            yield do


class MeasureJob(PlannedJob):
    """The job of measuring, of one phase: a task for each chunk. The output is the folder of the facts."""

    kind = KIND
    plan_type: ClassVar[type[MeasurePlan]] = MeasurePlan
    given_name = "the encoder and its dataset"
    output: Path

    def finish(self, show: Show) -> MeasuredFacts:
        """See `Job`: merge the chunks."""
        place, found = self.output.absolute(), MeasuredFacts.find(self.output)
        if found is None:
            if not self.is_planned:
                raise OutputError(f"{self.output}: what was planned is not there any more, nor are the facts")
            with self.plan.opened() if self.given is None else nullcontext(self.given) as self.given:
                chunks = list(self.results(lambda path: find_chunk(path.parent, path.name) and path))
                _finish(self.given, self.work.absolute(), place, chunks)
            found = MeasuredFacts.open(self.output)
        remove_work(self.work)
        return found


def begin(place: Path, plan: MeasurePlan) -> JobPlace:
    """Write a plan beside the folder of the facts, and return where it lies; raises OutputError."""
    job = job_at(WORK(place))
    job.save(NewPlan(KIND, plan))
    return job


def remove_left(place: Path) -> None:
    """Remove the work folder beside facts that are complete, of a process that was killed at its end."""
    remove_work(Path(WORK(place)))


def measure(
    dataset: Media,
    encoder: Encoder,
    *,
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int = 1,
    on_samples: Callable[[int, int], None] = lambda done, total: None,
) -> MeasuredFacts:
    """Return what a task encoder makes of every sample: measured now, once, or found where it was stored.

    Each sample is decoded, cooked and encoded. The number of its outputs is stored, and the length and group of each if
    the encoder has ``sample_length`` and ``batch_group_criterion``, a few bytes each. A sample that cannot be made is
    bad; one for which ``SkipSample`` is raised is good and has no outputs. A fault that is not due to a sample ends the
    run.

    The facts are in ``folder``, in a folder named by the fingerprint of the dataset, the encoder's name, ``version``,
    hooks, and those of its attributes that are plain numbers or texts and whose name does not begin with ``_``. A run
    that was ended in any way continues after the last whole chunk, and ends in the same bytes, for any number of
    processes. In a training, call it in one process before the others.

    Args:
        dataset: a dataset of media, as for `EncodedDataset`.
        encoder: the task encoder. Raise its ``version`` whenever the results of its hooks change.
        folder: None is the cache folder, ``$HEADRACE_CACHE/facts``.
        settings: whatever else decides the facts, JSON-safe.
        workers: number of processes, which are fresh ones: dataset and encoder must be picklable, and a script needs
            ``if __name__ == "__main__"``. 1 measures in this process.
        on_samples: called now and then with the number of samples that are done, and of all samples.

    Raises:
        ConfigError: what `EncodedDataset` refuses, except for the number of outputs; a hook that is not ``@stateless``;
            a group key that is not JSON, a group with two sizes; no cache folder.
        StoreError, OSError: data cannot be read, or stored facts are damaged.
        OutputError: the folder cannot be written.
        WorkerError: a process ended.
    """
    check_local(folder)
    if workers < 1:
        raise ConfigError(f"workers is {workers}; expected at least 1, which measures in this process")
    measuring = Measuring(dataset, encoder, settings)
    place, found = stored_facts(measuring, folder)
    if found is not None:
        remove_left(place)
        return found
    plan = MeasurePlan(facts=measuring.contents_name, samples=len(dataset))
    shared = begin(place, plan).shared()
    job = MeasureJob(place, shared, msgspec.Raw(msgspec.json.encode(plan)), measuring)
    show = Show(tasks=lambda progress: on_samples(progress.counts.get("samples", 0), plan.samples))
    facts: MeasuredFacts = drive(job, LocalExecutor(workers=0 if workers == 1 else workers), show)
    return facts


def stored_facts(measuring: Measuring, folder: str | os.PathLike[str] | None) -> tuple[Path, MeasuredFacts | None]:
    """Return the folder of facts, and the facts if they are there.

    If it holds those of other data with the same layout, the folder has another name.
    """
    place = facts_folder(folder) / measuring.name
    found = MeasuredFacts.find(place)
    if found is not None and not found.is_of(measuring.dataset):
        place = place.with_name(measuring.contents_name)
        found = MeasuredFacts.find(place)
    return place, found


def facts_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder where facts are stored. Raises ConfigError if there is no cache folder."""
    check_local(folder)
    place = cache_folder("facts") if folder is None else Path(folder)
    if place is None:
        raise ConfigError(
            "there is no cache folder, since the user has no home folder: set HEADRACE_CACHE, or pass folder="
        )
    return place


def _finish(measuring: Measuring, work: Path, place: Path, chunks: Sequence[Path]) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=work, prefix="merged-") as scratch:
            summary, arrays = merged(measuring, chunks, Path(scratch))
            # Written here and then renamed, so that a killed process leaves nothing but this folder.
            keep_arrays(work, "facts", arrays, msgspec.json.encode(summary))
        (work / "facts").rename(place)
    except OSError as error:
        if MeasuredFacts.find(place) is None:  # else another process has finished first
            raise OutputError(f"{place}: cannot write: {error.strerror or error}") from error
