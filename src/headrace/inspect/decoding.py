"""Decodes all samples of a store by a job of one phase: a task for each range of samples."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Do, Phase, Show, TaskProgress, TaskResult, Tell
from headrace.engine.planning import JobPlace, NewPlan
from headrace.engine.serving import load, save
from headrace.engine.tasks import PlannedJob, SpanTask, spans
from headrace.errors import HeadraceError, InputError, MissingExtraError, SampleError, StoreAwayError, StoreError
from headrace.inspect.answers import OnProgress
from headrace.inspect.figures import count, plural
from headrace.inspect.sample_preview import field_map_of
from headrace.inspect.samples import WHOLE, SampleOptions, fields_of, open_sample_store
from headrace.io import PreadReader, hash_bytes, output_errors, path_at, path_in
from headrace.samples.media import AVDecoder, SampleDecoder, parts_of
from headrace.samples.media.decoding.basic import reraise
from headrace.stores import Problem, RawSample, SampleStore
from headrace.stores.energon import EnergonStore, Splits
from headrace.stores.energon.splits import find_splits
from headrace.stores.quarantine import BadSample

KIND: Final = "decode"

TASK_SAMPLES: Final = 64
_MOST_TASKS: Final = 4096

_READ_SAMPLES: Final = 16
"""Samples that are read together, so that those at a URL take one round trip."""


def as_ascii(found: msgspec.Struct) -> str:
    """Return a struct as JSON of ASCII: names of files need not be valid Unicode."""
    return json.dumps(msgspec.to_builtins(found))


class Decoded(msgspec.Struct):
    """How many samples and parts were decoded, and which samples have faults."""

    samples: int = 0
    faulty_samples: int = 0
    parts: dict[str, int] = {}
    """Name of the part -> how many were decoded."""

    kept_parts: dict[str, int] = {}
    """Those that no decoder knows: a run gets their bytes as they are."""

    faulty_parts: dict[str, int] = {}
    bad: list[BadSample] = []
    """The samples that have a faulty part or field."""


class DecodedRange(Decoded):
    """The same of a range of samples, with what is wrong with them."""

    problems: list[Problem] = []


def open_checked(path: str, options: SampleOptions, using: str | PreadReader) -> SampleStore:
    """Open samples that may be damaged.

    Raises:
        StoreError, InputError, ConfigError: as `open_sample_store`; there are no samples.
    """
    store = open_sample_store(path, options, using=using, faulty=True)
    if store is None:
        raise StoreError(f"{path}: was removed during the check")
    return store


def splits_of(store: SampleStore, options: SampleOptions) -> Splits | Problem | None:
    """Return the split file of an Energon dataset, or what is wrong with it; None if there is none.

    Raises:
        StoreAwayError: the object store gives no answer.
    """
    try:
        return find_splits(store.root, options.split_config) if isinstance(store, EnergonStore) else None
    except HeadraceError as error:
        return Problem.of(store.path, error, place="split file")


class RangeDecoder:
    """Decodes ranges of samples, but those that ``exclude`` names."""

    def __init__(self, store: SampleStore, exclude: frozenset[str]) -> None:
        self.store = store
        self._exclude = exclude
        self._fields = field_map_of(store)
        self._parts = None if self._fields is None else parts_of(self._fields)
        self._decoder = SampleDecoder(image_decode="rgb8")

    def run(self, first: int, end: int) -> DecodedRange:
        """Decode the samples ``[first, end)``."""
        result = DecodedRange()
        for begin in range(first, end, _READ_SAMPLES):
            for number, raw in self._read(begin, min(begin + _READ_SAMPLES, end)):
                problems = self._sample(number, raw, result)
                result.samples += problems is not None
                result.faulty_samples += bool(problems)
                result.problems += problems or ()
        return result

    def _read(self, first: int, end: int) -> Sequence[tuple[int, RawSample | HeadraceError]]:
        """Read samples; if one of several cannot be read, each is read by itself.

        Raises:
            StoreAwayError: the object store gives no answer, of which no sample is guilty.
        """
        numbers = np.arange(first, end)
        try:
            return list(zip(numbers.tolist(), self.store.read(numbers, self._parts), strict=True))
        except StoreAwayError:
            raise
        except HeadraceError as error:
            if end - first == 1:
                return [(first, error)]
        return [found for number in range(first, end) for found in self._read(number, number + 1)]

    def _sample(self, number: int, raw: RawSample | HeadraceError, result: DecodedRange) -> list[Problem] | None:
        """Return what is wrong with a sample; None if it is excluded."""
        if isinstance(raw, HeadraceError):
            return [Problem(path=self.store.path, place=f"sample {number}", message=str(raw))]
        if raw.shard in self._exclude or f"{raw.shard}/{raw.key}" in self._exclude:
            return None
        values: dict[str, Any] = {}
        problems = []
        for name, data in raw.parts.items():
            try:
                values[name] = self._decode(name, data)
                counts = result.kept_parts if isinstance(values[name], bytes) else result.parts
                counts[name] = counts.get(name, 0) + 1
            except MissingExtraError:
                raise
            except HeadraceError as error:
                result.faulty_parts[name] = result.faulty_parts.get(name, 0) + 1
                problems.append(self._problem(raw, number, name, error))
        if self._fields is not None and not problems:
            for _, value in fields_of(self._fields, raw, values, {}):
                if isinstance(value, InputError):
                    problems.append(self._problem(raw, number, getattr(value, "part", None), value))
                    break
                if isinstance(value, HeadraceError):
                    raise value
        if problems:
            result.bad.append(BadSample(shard=raw.shard, index=raw.index, key=raw.key, reason=problems[0].message))
        return problems

    def _decode(self, name: str, data: bytes) -> Any:
        value = self._decoder.decode(name, data)
        if isinstance(value, AVDecoder):
            try:
                value.verify()
            except Exception as error:
                reraise(name, error)
        return value

    def _problem(self, raw: RawSample, number: int, part: str | None, error: HeadraceError) -> Problem:
        place = self.store.places(number).get(part or "")
        path = self.store.path if place is None else place.file
        byte = "" if place is None else f", byte {place.offset}"
        where = "" if part is None else f", part {part!r}{byte}"
        message = error.reason if isinstance(error, SampleError) else str(error)
        return Problem(path=path, place=f"sample {raw.index}, key {raw.key!r}{where}", message=message)


class DecodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the job."""

    path: str
    folder: str = ""
    """The folder that the path is in; empty if it is absolute, or a URL."""

    dataset: SampleOptions = WHOLE
    quarantine: bool = False
    """Whether samples that cannot be decoded are left out of the dataset at the end."""

    fingerprint: str
    samples: int
    task_samples: int

    @classmethod
    def of(cls, store: SampleStore, path: str, **more: Any) -> DecodePlan:
        """Return the plan for a store. Of very many samples, a task has more than `TASK_SAMPLES`."""
        num = len(store)
        size = TASK_SAMPLES * max(1, -(-num // (TASK_SAMPLES * _MOST_TASKS)))
        return cls(path=path, fingerprint=store.fingerprint, samples=num, task_samples=size, **more)

    @property
    def phase(self) -> Phase:
        """The only phase. Its name tells it from that of another plan."""
        name = f"decode-{hash_bytes(msgspec.json.encode(self))[:8]}"
        return Phase(name=name, num_tasks=len(self.tasks))

    @property
    def tasks(self) -> list[SpanTask]:
        """All tasks, in the order of the samples."""
        return spans(self.samples, self.task_samples)

    @contextlib.contextmanager
    def doing(self, given: Any) -> Iterator[Do]:
        """See `TaskPlan`; nothing is given.

        Raises:
            StoreError: the dataset has changed since the plan.
            OutputError: the folder of the plan is not there.
        """
        with contextlib.ExitStack() as stack:
            if self.folder:  # faults name the path as it was given
                with output_errors(Path(self.folder), "work in"):
                    stack.enter_context(contextlib.chdir(self.folder))
            store = stack.enter_context(open_checked(self.path, self.dataset, "mmap"))
            self.check_fingerprint(store.fingerprint)
            splits = splits_of(store, self.dataset)
            # What the split file excludes is never decoded in a run.
            decoder = RangeDecoder(store, splits.exclude if isinstance(splits, Splits) else frozenset())

            def do(task: SpanTask, results: Path, tell: Tell) -> TaskResult:
                found = decoder.run(task.first, task.end)
                save(results / task.name, as_ascii(found))
                return TaskResult(files=(task.name,), counts={"samples": found.samples, "faulty": found.faulty_samples})

            yield do

    def check_fingerprint(self, fingerprint: str) -> None:
        """Refuse a dataset that has changed since the plan.

        Raises:
            StoreError: it has.
        """
        if fingerprint != self.fingerprint:
            place = path_in(self.folder, self.path)
            raise StoreError(f"{place}: the dataset changed since the check was planned: plan it again")


class DecodingJob(PlannedJob):
    """The job that decodes samples."""

    kind = KIND
    plan_type: ClassVar[type[Any]] = DecodePlan
    plan: DecodePlan

    def finish(self, show: Show) -> Iterator[DecodedRange]:
        """See `Job`: yield what was found, in the order of the samples; a result that was lost is made again."""
        with contextlib.closing(self.results(lambda path: load(path, str))) as found:
            for one in found:
                yield msgspec.convert(json.loads(one), DecodedRange)


@contextlib.contextmanager
def decoded_here(
    store: SampleStore, path: str, dataset: SampleOptions, workers: int, on_progress: OnProgress
) -> Iterator[Iterator[DecodedRange]]:
    """Decode the parts of all samples: those that the field map of the ``dataset.yaml`` names, or else all parts.

    The work folder is a temporary one: a check changes nothing beside the dataset.

    Args:
        store: the store; what decodes opens it anew.
        path: its path.
        dataset: how it is opened.
        workers: the number of processes; with 1, this process decodes.
        on_progress: called now and then with the samples that are done.

    Raises:
        StoreAwayError: the object store of the samples gives no answer.
        WorkerError: a process has ended, as a codec written in C can cause; the message says among which samples.
        MissingExtraError: the package that decodes a part is not installed.
    """

    def tell(progress: TaskProgress) -> None:
        done = progress.counts.get("samples", 0)
        text = f"{count(done)} of {plural(len(store), 'sample')}"
        on_progress("decoding", done, len(store), text=text, speeds={"samples": done})

    with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
        plan = DecodePlan.of(store, path, dataset=dataset)
        place = JobPlace(Path(folder))
        place.save(NewPlan(KIND, plan))
        job = DecodingJob(path_at(path), place.shared(), msgspec.Raw(msgspec.json.encode(plan)))
        yield drive(job, LocalExecutor(workers=0 if workers == 1 else workers), Show(tasks=tell))
