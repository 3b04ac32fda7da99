"""Plan a run: list the samples of all inputs, and cut the list into the shards of tasks.

    list            a sample for each group of files of a folder, and for each row of a table; of a table that holds the
                    media themselves, only spans of its rows, with the number of their samples
    duplicates      by hashes of the keys
    order           that of the inputs, or a permutation of the list
    split           by hashes of the keys
    cut             by counts, and by sizes as far as the list tells them: neighbours share a shard until it is full

Each table is read once for that. The list is written to a file, of which each task reads a range.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise, repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.job import Do, Phase
from headrace.errors import ConfigError, InputError, some
from headrace.io import Storage, file_sum, hash_bytes, output_errors
from headrace.plan.keys import source_key
from headrace.plan.permutation import permute
from headrace.preparing.duplicates import first_of_each
from headrace.preparing.ledger import advice, described, reasons_in_words
from headrace.preparing.outputs.folder import NothingLeftError
from headrace.preparing.shards.inputs import captions_of, planned_input
from headrace.preparing.shards.listing import SPEC, BadEntryError, checked_key, group_files, numbered
from headrace.preparing.shards.options import ShardOptions, ShardOutput
from headrace.preparing.shards.parts import ListedSample, MediaInput, PartFinder, Rows
from headrace.preparing.sources import (
    Block,
    RecordSpec,
    SourceFile,
    Span,
    choose_task_bytes,
    counted_from,
    plan_tasks,
    record_noun,
)
from headrace.stores import ErrorEntry
from headrace.stores.arguments import IntArray
from headrace.stores.writer import ShardFilling

LISTED_NAME: Final = "listed"
FEW_SAMPLES: Final = 1000
"""Fewer samples than these are split by the ranks of their hashes, so that no part is empty."""

_LOOKED_AT: Final = 256
"""Rows of a table, or spans of it, by which the sizes of all are estimated."""
_MIN_TASKS: Final = 64
HASH_BITS: Final = 63


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What planning has found in an input."""

    lines: int
    samples: int
    blank: tuple[int, ...] = ()
    """Lines of a table that are blank."""

    xxh3_128: str = ""
    """Hash of the table, or of the captions of a folder; empty if there are none, or a task finds it."""


class PackTask(msgspec.Struct, frozen=True):
    """Write shards, or hash a table."""

    task_index: int
    begin: int = 0
    end: int = 0
    """The range of the list."""

    shards: tuple[tuple[int, int, int], ...] = ()
    """The part of the split, the number of the first shard and the number of shards, for each part that has samples."""

    num_bytes: int = 0
    """Bytes of the samples in a tar, as far as the list tells."""

    table: int = -1
    """The input whose table is hashed."""

    @property
    def label(self) -> str:
        """What an error calls the task."""
        if self.table >= 0:
            return f"the hash of table {self.table + 1:,}"
        return " and ".join(shard_name(first) for _, first, _ in self.shards) or "samples that are left out"


def shard_name(number: int) -> str:
    """Return the name of a shard, such as ``shard-000017.tar``."""
    return f"shard-{number:06d}.tar"


class PackSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of the job knows besides the plan."""

    listed: str
    """The path or URL of the list."""

    storage: Storage | None
    """How the stores of URLs are reached; None goes by the environment."""


class MediaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a run, on any host; see `TaskPlan`."""

    inputs: tuple[MediaInput, ...]
    """Tables and folders, without what only planning needs: listings, and sizes of units."""

    options: ShardOptions
    asked: dict[str, Any]
    """What the manifest records of the options; a number is written there as it was given, 8 or 8.0."""

    counted: tuple[Counted, ...]
    duplicates: tuple[int, ...]
    """The numbers of samples with the key of an earlier one, which are left out."""

    borders: tuple[int, ...]
    """Where the parts of the split end among the hashes of keys, without the last; see `split_borders`."""

    listed: str
    """Hash of the list."""

    tasks: tuple[PackTask, ...]

    @property
    def phase(self) -> Phase:
        """The only phase. What is done about errors does not decide its results."""
        options = ShardOptions(source=self.options.source, output=self.options.output)
        name = hash_bytes(msgspec.json.encode(msgspec.structs.replace(self, options=options, asked={})))[:8]
        total_bytes = sum(task.num_bytes for task in self.tasks)
        return Phase(name=f"pack-{name}", num_tasks=len(self.tasks), total_bytes=total_bytes)

    @property
    def list_name(self) -> str:
        """Name of the list in the work folder; no other plan has it."""
        return f"{LISTED_NAME}-{self.listed[:8]}"

    @contextmanager
    def doing(self, given: PackSetup) -> Iterator[Do]:
        """See `TaskPlan`."""
        yield resolve_name("headrace.preparing.shards.packing:Packer")(self, given).run


def error_entry(inputs: Sequence[MediaInput], entry: ListedSample) -> ErrorEntry:
    """Return what the manifest says of a bad sample."""
    given = inputs[entry.input]
    unit = "sample" if given.table is None else record_noun(given.table.format, "document")
    message = f"{entry.name or entry.key}: {entry.bad}" if given.table is None else entry.bad
    return ErrorEntry(file=given.name, unit=unit, line=entry.line + counted_from(unit), message=message)


def key_hash(key: str) -> int:
    """Return the hash by which the part of the split is chosen."""
    return (xxhash.xxh3_128_intdigest(key.encode()) & (1 << 64) - 1) >> (64 - HASH_BITS)


def split_borders(hashes: NDArray[np.uint64], shares: Sequence[float]) -> tuple[int, ...]:
    """Return where each part of a split ends among the hashes of keys, without the last part.

    Args:
        hashes: the `key_hash` of each sample. If there are fewer than `FEW_SAMPLES`, the ranks decide, so that each
            part has its share to the sample, and at least one if there are enough.
        shares: the shares of the parts.

    >>> split_borders(np.array([5, 1, 9, 7, 3], np.uint64), (4, 1))
    (9,)
    """
    total = sum(map(Fraction, shares))
    ends = [sum(map(Fraction, shares[:count])) / total for count in range(1, len(shares))]
    if len(hashes) >= FEW_SAMPLES:
        return tuple(int(end * (1 << HASH_BITS)) for end in ends)
    bounds = [0, *(int(end * len(hashes)) for end in ends), len(hashes)]
    counts = [end - begin for begin, end in pairwise(bounds)]
    for part, share in enumerate(shares):
        if share and not counts[part] and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[part] = 1
    ranked = [*np.sort(hashes).tolist(), 1 << HASH_BITS]
    return tuple(int(ranked[sum(counts[:count])]) for count in range(1, len(shares)))


def check_left(num_read: int, dropped: Mapping[str, int], errors: Sequence[ErrorEntry]) -> None:
    """Raise NothingLeftError if all samples are left out, for these reasons."""
    if num_read == sum(dropped.values()):
        why = reasons_in_words(dropped, errors) if num_read else "the inputs are empty."
        raise NothingLeftError(f"none of {num_read:,} samples is left: {why} Nothing was written.")


def num_shards(num_bytes: int, samples: int, output: ShardOutput) -> int:
    """Return into how many shards so much is cut that is one task; at least one."""
    limits = ((num_bytes, output.shard_bytes), (samples, output.samples_per_shard))
    return max([1, *(-(-size // most) for size, most in limits if most is not None)])


class SampleList:
    """The samples of all inputs in their order, in a file. Some 60 bytes for each are kept in memory.

    An item of the list is a `ListedSample`, or `Rows`.

    Args:
        file: the file, for reading and writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offsets, self._firsts = array("q", [0]), array("q", [0])
        self._low, self._high = array("Q"), array("Q")
        self._is_good = bytearray()
        self.num_bytes = array("q")
        """The bytes of each item in a tar."""

    def __len__(self) -> int:
        return len(self._is_good)

    def add_sample(self, key: str, *, is_bad: bool) -> None:
        """Add a sample, which belongs to the next item."""
        digest = xxhash.xxh3_128_intdigest(key.encode()) if not is_bad else 0
        self._low.append(digest & (1 << 64) - 1)
        self._high.append(digest >> 64)
        self._is_good.append(not is_bad)

    def add(self, item: ListedSample | Rows, num_bytes: int) -> None:
        """Add an item, after its samples."""
        data = msgspec.msgpack.encode(item)
        self._file.write(data)
        self._offsets.append(self._offsets[-1] + len(data))
        self._firsts.append(len(self))
        self.num_bytes.append(num_bytes)

    def flush(self) -> None:
        """Write what is in memory."""
        self._file.flush()

    def encoded(self, item: int) -> bytes:
        """Return an item as it is in the file, once that is flushed."""
        begin, end = self._offsets[item : item + 2]
        return os.pread(self._file.fileno(), end - begin, begin)

    def item(self, number: int) -> ListedSample | Rows:
        """Return an item, once it is in the file."""
        found: ListedSample | Rows = msgspec.msgpack.decode(self.encoded(number), type=ListedSample | Rows)
        return found

    @property
    def firsts(self) -> IntArray:
        """(items + 1,) int64, the first sample of each item, and the end."""
        return np.array(self._firsts, np.int64)

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """(n,) uint64, the `key_hash` of each sample; 0 for bad ones."""
        return np.array(self._low, np.uint64) >> np.uint64(64 - HASH_BITS)

    def new(self) -> tuple[NDArray[np.bool_], IntArray]:
        """Return (n,) which samples have a key that no earlier one has, and those that have the key of an earlier one.

        Keys are compared by a hash of 128 bits: among 10^12 keys two different ones have the same hash with a
        probability of about 10^-15. Bad samples have no key.
        """
        good = np.flatnonzero(np.frombuffer(self._is_good, np.bool_))
        is_new = np.zeros(len(self), np.bool_)
        is_new[good[first_of_each(np.stack([np.array(self._high), np.array(self._low)], axis=1)[good])]] = True
        return is_new, good[~is_new[good]]

    def first_like(self, sample: int) -> int:
        """Return the first sample that has the key of this one."""
        is_like = (np.array(self._high) == self._high[sample]) & (np.array(self._low) == self._low[sample])
        return int(np.argmax(is_like))


class Planner:
    """Lists the samples of inputs, and plans the tasks.

    Args:
        inputs: the inputs.
        options: all options.
        storage: how the stores of URLs are reached; None goes by the environment.
        on_notice: called with messages that a user should see.
        on_read: called with the bytes of tables, and the number of samples, that were read so far.
    """

    def __init__(
        self,
        inputs: Sequence[MediaInput],
        options: ShardOptions,
        *,
        storage: Storage | None,
        on_notice: Callable[[str], None] = lambda message: None,
        on_read: Callable[[int, int], None] = lambda num_bytes, samples: None,
    ) -> None:
        self._inputs = inputs
        self._options = options
        self._on_notice = on_notice
        self._on_read = on_read
        self._read_bytes = 0
        self._finder = PartFinder(inputs, options.source, storage)
        self._list: SampleList

    def plan(self, folder: Path, asked: dict[str, Any]) -> MediaPlan:
        """Return the plan, whose list is in the folder, by its `MediaPlan.list_name`.

        Raises:
            InputError: a sample cannot be used, or a key comes twice, and the options do not allow it; no samples are
                left; or a file cannot be read.
            ConfigError: no file of a folder is part of a sample.
            OutputError: the list cannot be written.
        """
        path, raw = folder / LISTED_NAME, folder / f"{LISTED_NAME}.raw"
        with output_errors(raw, "write"), raw.open("w+b", buffering=1 << 20) as file:
            raw.unlink()
            self._list = SampleList(file)
            counted = [
                self._folder(given, one) if one.table is None else self._table(given, one.table)
                for given, one in enumerate(self._inputs)
            ]
            self._list.flush()
            duplicates, borders, tasks = self._cut(path)
        hashed = [
            given for given, one in enumerate(self._inputs) if one.table is not None and not counted[given].xxh3_128
        ]
        plan = MediaPlan(
            inputs=tuple(map(planned_input, self._inputs)),
            options=self._options,
            asked=asked,
            counted=tuple(counted),
            duplicates=duplicates,
            borders=borders,
            listed=file_sum(path).xxh3_128,
            tasks=(*tasks, *(PackTask(at, table=given) for at, given in enumerate(hashed, len(tasks)))),
        )
        with output_errors(path, "rename"):
            path.rename(folder / plan.list_name)
        return plan

    def _folder(self, given: int, one: MediaInput) -> Counted:
        groups, ignored = group_files(one.files, self._options.source.key_dots)
        if ignored:
            names = some(list(map(repr, ignored)))
            self._on_notice(f"{one.name}: {len(ignored):,} files have no extension and belong to no sample: {names}")
        captions, rows, digest = captions_of(one), None, ""
        if captions is not None and one.captions is not None:
            digest = one.captions.digest()
            rows = [
                [captions.pop(file.name) for _, file in files if file.name in captions] for files in groups.values()
            ]
            if captions:
                what = f"{len(captions):,} rows name files that are not in {one.name}"
                message = f"{one.captions.name}: {what}: {some(list(map(repr, captions)))}"
                if self._options.errors.on_error == "stop":
                    raise InputError(f"{message}. Correct them, or skip them with --on-error skip.")
                self._on_notice(message)
        if not groups:
            raise ConfigError(f"input {one.name!r}: no file has an extension, which would name its part of a sample")
        for line, (name, files) in enumerate(groups.items()):
            named = None if rows is None else rows[line]
            self._add(self._finder.of_group(given, len(self._list), line, name, files, named))
        return Counted(lines=len(groups), samples=len(groups), xxh3_128=digest)

    def _table(self, given: int, table: SourceFile) -> Counted:
        """List a table.

        Of a table that holds the media themselves only the keys are read, and spans of its rows are listed.
        """
        holds_media = any(spec.kind == "bytes" for spec in self._inputs[given].parts)
        spans, spec = [Span(0, 0, table.extent)], SPEC
        if holds_media:
            task_bytes = choose_task_bytes(table.text_bytes)
            spans = [task.spans[0] for task in plan_tasks([table], task_bytes=task_bytes, max_spans=1)]
            spec = RecordSpec(fields=(), id_field=self._options.source.key_field)
        begin, first = len(self._list.num_bytes), len(self._list)
        lines, blank, is_known, xxh3_128 = 0, list[int](), True, ""
        for span in spans:
            rows, num_bytes, first_line = Rows(given, span, len(self._list), lines), 0, lines
            reader = self._finder.reader(given, span, spec)
            for block in reader.blocks():
                if holds_media:
                    self._add_keys(block)
                else:
                    for sample in self._finder.of_block(block, given, len(self._list), first_line):
                        is_known = is_known and all(part.size >= 0 for part in sample.parts)
                        self._add(sample)
                blank += (block.blank_lines + first_line).tolist()
                lines += block.num_lines
                num_bytes += block.input_bytes
                self._read_bytes += block.input_bytes
                self._on_read(self._read_bytes, len(self._list))
            if holds_media and lines > first_line:
                self._list.add(rows, num_bytes)
            xxh3_128 = reader.xxh3_128
        if holds_media or not is_known:
            self._weigh(begin)
        xxh3_128 = xxh3_128 or ("" if holds_media else table.digest())
        return Counted(lines=lines, samples=len(self._list) - first, blank=tuple(blank), xxh3_128=xxh3_128)

    def _weigh(self, begin: int) -> None:
        """Estimate the sizes of the items of a table, from ``begin`` on, by some of them that are spread evenly."""
        sizes = self._list.num_bytes
        self._list.flush()
        samples: list[ListedSample] = []
        weight = 0
        for at in sorted({begin + at * (len(sizes) - begin) // _LOOKED_AT for at in range(_LOOKED_AT)}):
            item = self._list.item(at) if at < len(sizes) else None
            if isinstance(item, Rows) and len(samples) < _LOOKED_AT:
                block = next(self._finder.reader(item.input, item.span).blocks())
                samples += self._finder.of_block(block, item.input, item.number, item.line)
                weight += block.input_bytes
            elif isinstance(item, ListedSample):
                samples.append(item)
                weight += sizes[at]
        content = sum(sample.tar_bytes for sample in self._finder.found(samples) if not sample.bad)
        for at in range(begin, len(sizes)):
            sizes[at] = sizes[at] * content // max(weight, 1)

    def _add_keys(self, block: Block) -> None:
        """Add the samples of a block, of which only the keys are known."""
        found: list[tuple[int, str | None]] = [(bad.line, "") for bad in block.bad]
        found += zip(block.lines.tolist(), block.ids or repeat(None), strict=False)
        for _, key in sorted(found, key=lambda row: row[0]):
            name = numbered(len(self._list)) if key is None else key
            try:
                self._list.add_sample(checked_key(name, self._options.source.key_dots), is_bad=False)
            except BadEntryError:
                self._list.add_sample("", is_bad=True)

    def _add(self, sample: ListedSample) -> None:
        if sample.bad and self._options.errors.on_error == "stop":
            raise InputError(f"{described(error_entry(self._inputs, sample))} {advice('sample')}")
        self._list.add_sample(sample.key, is_bad=bool(sample.bad))
        self._list.add(sample, sample.tar_bytes)

    def _cut(self, path: Path) -> tuple[tuple[int, ...], tuple[int, ...], list[PackTask]]:
        """Cut the list into tasks, and write it in their order; return duplicates, borders of the split, and tasks."""
        listed, output = self._list, self._options.output
        is_kept, twice = listed.new()
        duplicates = tuple(twice.tolist())
        if duplicates and self._options.source.duplicates == "error":
            self._refuse(duplicates, listed.first_like(duplicates[0]))
        shares = output.split_ratio or (1.0,)
        hashes = listed.hashes
        borders = split_borders(hashes[is_kept], shares)
        part = np.searchsorted(np.array(borders, np.uint64), hashes, side="right")
        counts = np.zeros((len(shares), len(is_kept) + 1), np.int64)
        for number in range(len(shares)):
            counts[number, 1:] = np.cumsum((part == number) & is_kept)
        # (parts, items): how many samples of each part of the split an item has.
        counts = np.diff(counts[:, listed.firsts], axis=1)
        num_bytes = np.where(counts.any(axis=0), np.array(listed.num_bytes, np.int64), 0)
        order = np.arange(len(num_bytes))
        if output.shuffle is not None:
            order = permute(order, len(order), source_key(output.shuffle, "", "prepare shuffle"))
        # Items of one part come apart from those of several.
        lanes = np.where((counts > 0).sum(axis=0) > 1, len(shares), np.argmax(counts > 0, axis=0))[order]
        runs: list[IntArray] = []
        for lane in range(len(shares) + 1):
            own = order[lanes == lane]
            total = num_shards(int(num_bytes[own].sum()), int(counts[:, own].sum()), output)
            # So many shards are cut together that those of the smallest part are not too small, if there are many.
            times = round(sum(shares) / min(filter(None, shares))) if lane == len(shares) else 1
            times = max(min(times, total // _MIN_TASKS), 1)
            cuts = ShardFilling().cut(
                num_bytes[own],
                None if output.shard_bytes is None else output.shard_bytes * times,
                None if output.samples_per_shard is None else output.samples_per_shard * times,
                counts[:, own].sum(axis=0),
            )
            runs += [own[first:last] for first, last, _ in cuts]
        return duplicates, borders, self._write(path, runs, counts, num_bytes)

    def _write(self, path: Path, runs: Sequence[IntArray], counts: IntArray, num_bytes: IntArray) -> list[PackTask]:
        """Write the list, and return the tasks: one for each run of items."""
        widths = np.diff(self._list.firsts)
        shards = np.zeros((len(counts), len(runs)), np.int64)
        ends = [0]
        with output_errors(path, "write"), path.open("wb") as file:
            for number, run in enumerate(runs):
                data = msgspec.msgpack.encode([msgspec.Raw(self._list.encoded(item)) for item in run.tolist()])
                file.write(data + xxhash.xxh3_64_digest(data))
                ends.append(file.tell())
                in_parts = counts[:, run].sum(axis=1).tolist()
                size, has_rows = int(num_bytes[run].sum()), bool((widths[run] > 1).any())
                for part, count in enumerate(in_parts):
                    own = size * count // max(sum(in_parts), 1)
                    more = num_shards(own, count, self._options.output) if has_rows else 1
                    shards[part, number] = more if count else 0
        # Each part of the split has its shards one after another.
        begins = np.cumsum(shards).reshape(shards.shape) - shards
        return [
            PackTask(
                task_index=number,
                begin=ends[number],
                end=ends[number + 1],
                shards=tuple(
                    (part, int(begins[part, number]), int(shards[part, number]))
                    for part in np.flatnonzero(shards[:, number]).tolist()
                ),
                num_bytes=int(num_bytes[run].sum()),
            )
            for number, run in enumerate(runs)
        ]

    def _refuse(self, duplicates: Sequence[int], earlier: int) -> None:
        samples = [self._sample(earlier), self._sample(duplicates[0])]
        places = (error_entry(self._inputs, sample) for sample in samples)
        first, second = (f"{one.file}, {one.unit} {one.line:,}" for one in places)
        raise InputError(
            f"the key {samples[1].key!r} comes twice: {first}, and {second} ({len(duplicates):,} such samples in all)."
            " A key must name one sample: choose another --id-field, or keep the first of each with --duplicates drop."
            " Nothing was written."
        )

    def _sample(self, sample: int) -> ListedSample:
        item = self._list.item(int(np.searchsorted(self._list.firsts, sample, side="right")) - 1)
        if isinstance(item, ListedSample):
            return item
        return next(one for block in self._finder.rows(item) for one in block if one.number == sample)
