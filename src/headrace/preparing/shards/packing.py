"""One task: write its range of the list into tar shards with their indexes, or hash a table.

Besides the shards a task leaves a `PackedTask`, from which the end of the run makes the manifest, the table of origins
and the index of Energon. The samples of a task are found first, so that the sizes of all are known; values of rows go
to a temporary file. Then the shards are written, each in one go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryDirectory
from typing import IO, Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.engine.job import TaskResult, Tell
from headrace.engine.serving import decoded, save
from headrace.errors import InputError, OutputError
from headrace.io import Storage, output_errors, reader, reader_at
from headrace.io.finding import storage_for
from headrace.plan.keys import source_key
from headrace.plan.permutation import permute
from headrace.preparing.ledger import BAD, DUPLICATE, check_tolerance
from headrace.preparing.shards.listing import CHUNK_BYTES, ListedFile, contents_of
from headrace.preparing.shards.parts import ListedPart, ListedSample, PartFinder, Rows
from headrace.preparing.shards.plan import (
    MediaPlan,
    PackSetup,
    PackTask,
    Planner,
    error_entry,
    key_hash,
    shard_name,
)
from headrace.stores import ErrorEntry, KeyInfo, OutputShard
from headrace.stores.arguments import IntArray
from headrace.stores.tar.scan import ScannedShard
from headrace.stores.tar.writer import TarWriter

_MEMORY_BYTES: Final = 64 << 20
"""Values of this size stay in memory."""

_AT_ONCE: Final = 256
"""Entries whose files are looked up together."""


class BadSampleError(InputError):
    """A sample is bad, on every host, and the options do not allow it."""


def file_digest(name: str, digest: bytes) -> int:
    """Return what a file adds to the sum of an input, given the xxh3_128 of its content.

    The sum is the same in any order; a file that is used twice counts twice.
    """
    return xxhash.xxh3_128_intdigest(name.encode() + b"\0" + digest)


def in_hex(total: int) -> str:
    """Return a sum of digests as the hash of all."""
    return f"{total % (1 << 128):032x}"


class PackedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was written."""

    number: int
    part: int
    """The part of the split."""

    output: OutputShard
    samples: IntArray
    """(n,) the number of each sample among those of all inputs."""

    names: tuple[str, ...]
    """The name of each sample in its input."""


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """A sample that is in no shard."""

    sample: int
    num_bytes: int
    reason: str
    error: ErrorEntry | None = None
    """What is wrong with it; None if its key is that of an earlier one."""


class PackedTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has found."""

    shards: tuple[PackedShard, ...] = ()
    scanned: tuple[ScannedShard, ...] = ()
    """What a scan of each of their tars would find."""

    left_out: tuple[LeftOut, ...] = ()
    file_bytes: dict[int, int] = {}
    """For each input the number of bytes that came from files below its root."""

    file_hashes: dict[int, str] = {}
    """For each input the sum of the digests of these files, in hex; see `file_digest`."""

    xxh3_128: str = ""
    """Hash of a table."""


class Packer:
    """Does tasks. Memory is bounded for parts of any size; of objects some are fetched ahead, see `contents_of`.

    Args:
        plan: the plan.
        given: where the list is.
    """

    def __init__(self, plan: MediaPlan, given: PackSetup) -> None:
        self._plan = plan
        self._given = given
        self._using = reader(reader_at(given.listed, "pread", storage_for(given.listed, given.storage)))
        self._finder = PartFinder(plan.inputs, plan.options.source, given.storage)
        self.duplicates = frozenset(plan.duplicates)

    def run(self, task: PackTask, results: Path, tell: Tell) -> TaskResult:
        """Do a task.

        Raises:
            BadSampleError: a sample is bad, and the options do not allow it.
            InputError: a file cannot be read, or has changed since it was listed.
            StoreError: the same of an object.
            OutputError: a file cannot be written.
        """
        if task.table >= 0:
            packed = PackedTask(xxh3_128=self.table_hash(task.table))
        else:
            with SpooledTemporaryFile(_MEMORY_BYTES, dir=str(results)) as values:
                packed = self._packed(task, values, results, tell)
        name, errors = f"task-{task.task_index:06d}", [one.error for one in packed.left_out if one.error is not None]
        save(results / name, packed)
        return TaskResult(
            files=(name, *(file.name for shard in packed.shards for file in shard.output.files)),
            counts={
                "bytes": task.num_bytes,
                "samples": sum(len(shard.samples) for shard in packed.shards),
                "bad": len(errors),
            },
            value=msgspec.to_builtins(errors[-1]) if errors else None,
        )

    def table_hash(self, given: int) -> str:
        """Return the hash of the table of an input; raises as `run` does."""
        return self._finder.tables[given].digest()

    def listed(self, task: PackTask) -> list[ListedSample | Rows]:
        """Return the items of the range of the list of a task.

        Raises:
            OutputError, StoreError: the list cannot be read.
        """
        data = self._using.read(self._given.listed, task.begin, task.end - task.begin)
        found = decoded(data.tobytes(), list[ListedSample | Rows])
        if found is None:
            raise OutputError(f"{self._given.listed}: the list is damaged: run again with --restart")
        return found

    def found(self, items: Sequence[ListedSample | Rows]) -> Iterator[ListedSample]:
        """Yield all samples of items, with their parts or with their faults."""
        waiting: list[ListedSample] = []
        for item in items:
            if isinstance(item, ListedSample):
                waiting.append(item)
            if len(waiting) == _AT_ONCE or isinstance(item, Rows):
                yield from self._finder.found(waiting)
                waiting.clear()
            if isinstance(item, Rows):
                for block in self._finder.rows(item):
                    yield from self._finder.found(block)
        yield from self._finder.found(waiting)

    def _packed(self, task: PackTask, values: IO[bytes], results: Path, tell: Tell) -> PackedTask:
        items = self.listed(task)
        samples: list[ListedSample] = []
        left_out: list[LeftOut] = []
        errors: list[ErrorEntry] = []
        offset = 0
        for entry in self.found(items):
            if entry.bad:
                errors.append(error_entry(self._plan.inputs, entry))
                left_out.append(LeftOut(entry.number, entry.num_bytes, BAD, errors[-1]))
                self._check(errors)
            elif entry.number in self.duplicates:
                left_out.append(LeftOut(entry.number, entry.num_bytes, DUPLICATE))
            else:
                kept = tuple(part if part.file else ListedPart(part.name, part.size) for part in entry.parts)
                samples.append(msgspec.structs.replace(entry, parts=kept, offset=offset))
                with output_errors(results, "write values in"):
                    offset += sum(values.write(part.content) for part in entry.parts)
        seed = self._plan.options.output.shuffle
        if seed is not None and any(isinstance(item, Rows) for item in items):
            key = source_key(seed, f"{task.task_index}", "prepare shuffle")
            samples = [samples[at] for at in permute(np.arange(len(samples)), len(samples), key).tolist()]
        shards = list(self._cut(task, samples))
        roots = [given.root for given in self._plan.inputs]
        entries = (entry for _, _, some in shards for entry in some)
        wanted = ((roots[entry.input], part.file) for entry in entries for part in entry.parts if part.file is not None)

        def done(count: int) -> None:
            tell({"bytes": task.num_bytes * count // len(samples), "samples": count})

        with closing(contents_of(wanted, self._given.storage)) as files:
            writer = _ShardWriter(results, files, values, done)
            written = [writer.write(number, part, some) for number, part, some in shards]
        return PackedTask(
            shards=tuple(shard for shard, _ in written),
            scanned=tuple(scanned for _, scanned in written),
            left_out=tuple(left_out),
            file_bytes=writer.file_bytes,
            file_hashes={given: in_hex(total) for given, total in writer.file_sums.items()},
        )

    def _check(self, errors: Sequence[ErrorEntry]) -> None:
        try:
            check_tolerance(errors, self._plan.options.errors, noun="sample")
        except InputError as error:
            raise BadSampleError(str(error)) from None

    def _cut(self, task: PackTask, samples: Sequence[ListedSample]) -> Iterator[tuple[int, int, list[ListedSample]]]:
        """Yield number, part of the split and samples of each shard; those of a part are of nearly equal size."""
        for part, first, count in task.shards:
            mine = [
                sample
                for sample in samples
                if len(task.shards) == 1 or bisect_right(self._plan.borders, key_hash(sample.key)) == part
            ]
            sums = np.cumsum([0, *(sample.tar_bytes for sample in mine)])
            ends = np.searchsorted(sums, sums[-1] * np.arange(count + 1) // count).tolist()
            for number, (begin, end) in enumerate(pairwise(ends), first):
                if begin < end:
                    yield number, part, mine[begin:end]


@contextmanager
def listed_here(planner: Planner, storage: Storage | None) -> Iterator[tuple[MediaPlan, Packer]]:
    """Plan a run for a look at its samples, with the list in a temporary folder; raises as `Planner.plan` does."""
    with TemporaryDirectory() as folder:
        plan = planner.plan(Path(folder), {})
        yield plan, Packer(plan, PackSetup(listed=str(Path(folder) / plan.list_name), storage=storage))


class _ShardWriter:
    """Writes the shards of a task.

    Args:
        folder: where they are written.
        files: the contents of all files, in the order in which they are written.
        values: the values of all samples.
        done: called with the number of samples that are written so far.
    """

    def __init__(
        self, folder: Path, files: Iterator[Iterator[Any]], values: IO[bytes], done: Callable[[int], None]
    ) -> None:
        self._folder = folder
        self._files = files
        self._values = values
        self._done = done
        self._num_done = 0
        self.file_bytes = Counter[int]()
        self.file_sums = Counter[int]()

    def write(self, number: int, part: int, samples: Sequence[ListedSample]) -> tuple[PackedShard, ScannedShard]:
        """Write a shard; raises as `Packer.run`."""
        with TarWriter(self._folder / shard_name(number)) as writer:
            for sample in samples:
                offset = sample.offset
                writer.begin_sample(sample.key)
                for one in sample.parts:
                    data = self._hashed(sample.input, one.file) if one.file else self._read(offset, one.size)
                    offset += 0 if one.file else one.size
                    writer.add_part(one.name, one.size, data)
                self._num_done += 1
                self._done(self._num_done)
            written = writer.finish()
        output = OutputShard(
            prefix=shard_name(number).removesuffix(".tar"),
            format="tar",
            documents=len(samples),
            keys={
                name: KeyInfo(dtype="uint8", tokens=size, ids=False)
                for name, size in sorted(written.part_bytes.items())
            },
            contiguous=False,
            files=written.files,
        )
        numbers = np.array([sample.number for sample in samples], np.int64)
        own_names = tuple(sample.name or sample.key for sample in samples)
        packed = PackedShard(number=number, part=part, output=output, samples=numbers, names=own_names)
        return packed, written.scanned

    def _hashed(self, given: int, file: ListedFile) -> Iterator[Any]:
        """Yield the content of the next file, and add it to the sums at its end."""
        hasher = xxhash.xxh3_128()
        for data in next(self._files):
            hasher.update(data)
            yield data
        self.file_sums[given] += file_digest(file.name, hasher.digest())
        self.file_bytes[given] += file.size

    def _read(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield a value."""
        with output_errors(self._folder, "read values in"):
            self._values.seek(offset)
            while size and (data := self._values.read(min(size, CHUNK_BYTES))):
                size -= len(data)
                yield data
