"""Decodes every part of every sample of a store, in worker processes, to find those that cannot be decoded."""

from __future__ import annotations

import collections
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import HeadraceError, InputError, MissingExtraError, SampleError, WorkerError
from headrace.inspect.answers import OnProgress
from headrace.inspect.figures import count, plural
from headrace.inspect.sample_preview import field_map_of
from headrace.samples.media import AVDecoder, SampleDecoder
from headrace.samples.media.decoding.av_streams import audio_stream, open_container, video_stream
from headrace.samples.media.decoding.failing import MAX_PIXELS, reraise
from headrace.samples.media.field_map import META_PARTS, FieldMap, first_that_works, parts_of
from headrace.stores import Problem
from headrace.stores.quarantine import BadSample
from headrace.stores.store import RawSample, SampleStore

TASK_SAMPLES: Final = 64
MAX_NAMED: Final = 1000
"""The most faults that are named one by one; any others are counted."""


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples and parts were decoded, and which samples have faults."""

    samples: int
    faulty_samples: int
    parts: dict[str, int]
    """Name of the part -> how many were decoded."""

    faulty_parts: dict[str, int]
    bad: tuple[BadSample, ...]
    """The samples that have a faulty part or field."""


class _Result(msgspec.Struct, frozen=True):
    """The result of one task."""

    samples: int
    faulty_samples: int
    parts: dict[str, int]
    faulty_parts: dict[str, int]
    problems: list[Problem]
    bad: list[BadSample]


class _Task:
    """Decodes ranges of samples. It can be pickled."""

    def __init__(self, store: SampleStore, exclude: frozenset[str]) -> None:
        self.store = store
        self._exclude = exclude
        self._fields = field_map_of(store)
        self._parts = None if self._fields is None else parts_of(self._fields)
        self._decoder = SampleDecoder(image_decode="rgb8")

    def run(self, first: int, end: int) -> _Result:
        result = _Result(0, 0, {}, {}, [], [])
        samples = faulty = 0
        for number in range(first, end):
            problems = self._sample(number, result)
            samples += problems is not None
            faulty += bool(problems)
            result.problems.extend(problems or ())
        return msgspec.structs.replace(result, samples=samples, faulty_samples=faulty)

    def _sample(self, number: int, result: _Result) -> list[Problem] | None:
        """Return what is wrong with a sample; None if it is excluded."""
        try:
            raw = self.store.read(np.array([number]), self._parts)[0]
        except HeadraceError as error:
            return [Problem(path=self.store.path, place=f"sample {number}", message=str(error))]
        if raw.shard in self._exclude or f"{raw.shard}/{raw.key}" in self._exclude:
            return None
        values: dict[str, Any] = {}
        problems = []
        for name, data in raw.parts.items():
            try:
                values[name] = self._decode(name, data)
                result.parts[name] = result.parts.get(name, 0) + 1
            except MissingExtraError:
                raise
            except HeadraceError as error:
                result.faulty_parts[name] = result.faulty_parts.get(name, 0) + 1
                problems.append(self._problem(raw, number, name, error))
        if self._fields is not None and not problems:
            try:
                _make_fields(self._fields, raw, values)
            except InputError as error:
                problems.append(self._problem(raw, number, getattr(error, "part", None), error))
        if problems:
            result.bad.append(BadSample(shard=raw.shard, index=raw.index, key=raw.key, reason=problems[0].message))
        return problems

    def _decode(self, name: str, data: bytes) -> Any:
        value = self._decoder.decode(name, data)
        if isinstance(value, AVDecoder):
            try:
                decode_media(value.data)
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


def decode_all(
    store: SampleStore,
    *,
    exclude: frozenset[str] = frozenset(),
    workers: int,
    on_progress: OnProgress,
    on_problem: Callable[[Problem], None],
) -> Decoded:
    """Decode the parts of all samples: those that the field map of the ``dataset.yaml`` names, or else all parts.

    Args:
        store: the store, which must pickle.
        exclude: ``"<shard>"`` or ``"<shard>/<key>"`` of samples to skip.
        workers: the number of processes; with 1, this process decodes.
        on_progress: called now and then with the samples that are done.
        on_problem: called for each fault, in the order of the store.

    Raises:
        WorkerError: a process has ended, as a codec written in C can cause; the message says among which samples.
        MissingExtraError: the package that decodes a part is not installed.
    """
    samples = faulty = unnamed = named = 0
    bad: list[BadSample] = []
    parts: collections.Counter[str] = collections.Counter()
    faulty_parts: collections.Counter[str] = collections.Counter()
    for result in _results(_Task(store, exclude), workers):
        samples += result.samples
        faulty += result.faulty_samples
        bad += result.bad
        parts.update(result.parts)
        faulty_parts.update(result.faulty_parts)
        for problem in result.problems:
            if named < MAX_NAMED:
                on_problem(problem)
                named += 1
            else:
                unnamed += 1
        text = f"{count(samples)} of {plural(len(store), 'sample')}"
        on_progress("decoding", samples, len(store), text=text, speeds={"samples": samples})
    if unnamed:
        on_problem(Problem(path=store.path, place="", message=f"{unnamed:,} more faulty parts"))
    return Decoded(
        samples=samples,
        faulty_samples=faulty,
        parts=dict(sorted(parts.items())),
        faulty_parts=dict(sorted(faulty_parts.items())),
        bad=tuple(bad),
    )


def _results(task: _Task, workers: int) -> Iterator[_Result]:
    """Yield the results of all tasks, in the order of the store; twice as many run ahead as there are workers."""
    store = task.store
    tasks = [(first, min(first + TASK_SAMPLES, len(store))) for first in range(0, len(store), TASK_SAMPLES)]
    if workers == 1 or len(tasks) < 2:
        for first, end in tasks:
            yield task.run(first, end)
        return
    # Spawned, since a fork is not safe if the caller has threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (task,)) as pool:
        waiting: collections.deque[tuple[tuple[int, int], Future[_Result]]] = collections.deque()
        span = (0, 0)
        try:
            for task_span in tasks:
                waiting.append((task_span, pool.submit(_run, *task_span)))
                if len(waiting) >= 2 * workers:
                    span, future = waiting.popleft()
                    yield future.result()
            while waiting:
                span, future = waiting.popleft()
                yield future.result()
        except BrokenProcessPool as error:
            raise WorkerError(
                f"{store.path}: a process ended while samples from {span[0]:,} on were decoded: a codec crashed, or"
                " memory ran out; `workers=1` shows which sample it is"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_TASK: _Task | None = None
"""The task of this worker process."""


def _begin(task: _Task) -> None:
    global _TASK
    _TASK = task


def _run(first: int, end: int) -> _Result:
    if _TASK is None:
        raise WorkerError("a worker got samples before their store. This is a defect of Headrace: please report it.")
    return _TASK.run(first, end)


def decode_media(data: bytes) -> int:
    """Decode all of a video or a sound, one frame after another, and return the number of frames.

    Raises:
        DecodeError: the data cannot be opened, or are too large.
        ValueError: there are no frames.
        Exception: whatever the codec raises.
    """
    frames = 0
    container = open_container(data, MAX_PIXELS)
    try:
        for stream in (video_stream(container), audio_stream(container)):
            if stream is not None:
                container.seek(0)
                frames += sum(1 for _ in container.decode(stream))
    finally:
        container.close()
    if not frames:
        raise ValueError("it holds neither a picture nor a sound")
    return frames


def _make_fields(fields: FieldMap, raw: RawSample, values: dict[str, Any]) -> None:
    meta = dict.fromkeys(META_PARTS) | {"__key__": raw.key, "__shard__": raw.shard}

    def part(name: str) -> Any:
        if name in meta:
            return meta[name]
        if name not in values:
            raise KeyError(name, tuple(values))
        return values[name]

    for field, options in fields.items():
        first_that_works(options, field, part)
