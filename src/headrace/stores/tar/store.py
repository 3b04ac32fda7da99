"""Reads samples of tar shards: `TarShards` by shard and number, with an index for each shard, and checks them.

`TarStore` numbers the samples of plain tars, as webdataset writes them, with or without an index.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, InputError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, reader, reader_at
from headrace.io.finding import folder_of_all, names_in
from headrace.stores.arguments import IntArray, prefix_sums
from headrace.stores.checking import Faults
from headrace.stores.kept_arrays import ENTRY, ENTRY_BYTES, with_ends
from headrace.stores.store import AnyStore, Extents, Numbering, PartPlace, Problem, RawSample, SampleStore
from headrace.stores.tar.index import (
    IndexPlace,
    IndexWhere,
    KeyTable,
    TarPaths,
    beside,
    find_tars,
    index_entries,
    index_faults,
    open_index,
    shard_indexes,
)
from headrace.stores.tar.members import (
    Fetch,
    Places,
    Take,
    WalkError,
    copies,
    fetches,
    sample_places,
    walk_samples,
)
from headrace.stores.tar.scan import ScannedShard, TarFault, Window, read_runs, scan_shard


def check_shard(path: str, offsets: IntArray, *, using: Reader, hidden: bool) -> Iterator[Problem]:
    """Yield the faults of a shard and its differences from its index. A tar has no checksums of contents."""
    try:
        found = scan_shard(path, hidden=hidden, on_fault="keep", using=using.for_pass())
    except HeadraceError as error:
        yield Problem.of(path, error)
        return
    for fault in found.faults:
        yield Problem(path=path, place=f"byte {fault.byte}", message=f"sample {fault.sample}: {fault.message}")
    if found.offsets[-1] == found.size and not found.faults:
        yield Problem(
            path=path, place=f"byte {found.size}", message="the archive has no end: it may have been cut short"
        )
    yield from _index_problems(path, offsets, found)
    yield from _part_problems(path, found)


def _index_problems(path: str, offsets: IntArray, found: ScannedShard) -> Iterator[Problem]:
    yield from (
        Problem(path=path, place=f"index entry {entry}", message=message) for entry, message in index_faults(offsets)
    )
    # Nothing is known after a fault that ended the pass.
    ended = any(fault.ends for fault in found.faults)
    if len(offsets) != len(found.offsets) and not ended:
        message = f"the index has {len(offsets) - 1:,} samples, but the shard holds {len(found.keys):,}"
        yield Problem(path=path, place="", message=message)
    both = min(len(offsets), len(found.offsets)) - ended
    faults = Faults(path, "entries of the index")
    # Entry 0 is never read.
    for at in faults.to_name(offsets[1:both] != found.offsets[1:both]):
        message = f"byte {offsets[at + 1]} in the index, but byte {found.offsets[at + 1]} in the shard"
        yield Problem(path=path, place=f"index entry {at + 1}", message=message)
    yield from faults.rest()


def _part_problems(path: str, found: ScannedShard) -> Iterator[Problem]:
    """Find parts that occur twice, and keys that would leave the folder if the tar was unpacked."""
    twice, leaving = Faults(path, "samples with a part twice"), Faults(path, "keys")
    bounds = found.part_bounds.tolist()
    doubled = [len(set(found.part_names[begin:end])) < end - begin for begin, end in itertools.pairwise(bounds)]
    for at in twice.to_name(np.array(doubled, bool)):
        names = found.part_names[bounds[at] : bounds[at + 1]]
        part = next(name for name in names if names.count(name) > 1)
        message = f"key {found.keys[at]!r}: part {part!r} occurs more than once; the last one counts"
        yield Problem(path=path, place=f"sample {at}", message=message)
    yield from twice.rest()
    unsafe = [key.startswith("/") or "\0" in key or ".." in key.split("/") for key in found.keys]
    for at in leaving.to_name(np.array(unsafe, bool)):
        message = f"key {found.keys[at]!r} leaves its folder: this is harmless here, but not if the tar is unpacked"
        yield Problem(path=path, place=f"sample {at}", message=message)
    yield from leaving.rest()


def find_repeated_keys(path: str, shards: TarShards, place: Literal["sample", "key"]) -> Iterator[Problem]:
    """Find keys that several samples of shards have, by another pass over the headers, with 16 bytes a sample.

    Each problem is placed at the key, or at the first of its samples.
    """
    bounds = [0]
    read: list[int] = []

    def keys() -> Iterator[str]:
        for at in range(len(shards.names)):
            try:
                found = shards.keys(at)
            except StoreAwayError:
                raise
            except HeadraceError:
                continue  # the check of the shard reports this
            read.append(at)
            bounds.append(bounds[-1] + len(found))
            yield from found

    def located(number: int) -> tuple[int, int]:
        which = bisect_right(bounds, number) - 1
        return read[which], number - bounds[which]

    faults = Faults(path, "keys")
    for key, numbers in KeyTable(keys(), -1).repeated(lambda number: shards.key(*located(number))):
        if faults.to_name(np.array([True])):
            where = ", ".join(f"{shards.names[at]} sample {index}" for at, index in map(located, numbers[:5]))
            message = f"occurs {len(numbers)} times: {where}; keys must be unique"
            if place == "key":
                yield Problem(path=path, place=f"key {key!r}", message=message)
            else:
                yield Problem(path=path, place=f"sample {numbers[0]}", message=f"key {key!r} {message}")
    yield from faults.rest()


_BYTES: Final = 8 << 20
"""More than the parts of most samples; glibc adapts to blocks of up to 32 MiB."""


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to twice ``_BYTES``, which saves time.

    Glibc returns memory to the system as soon as 128 KiB are free at the end of its heap, until a larger block has been
    freed once. Freeing a batch of images and reading the next one then costs a page fault and 4 KiB of zeros for each
    page, about as much as copying the bytes. The call takes a few microseconds.
    """
    np.empty(_BYTES, np.uint8)


_TOGETHER_BYTES: Final = 64 << 10
"""Without a mapping, entries of an index that lie within this many bytes are read at once."""


_NO_SAMPLE: Final = RawSample("", "", -1, {})


class _Used(NamedTuple):
    """A shard whose index was verified."""

    path: str
    place: IndexPlace
    num_samples: int


class TarShards:
    """Reads samples of tar shards by shard and number in the shard. A shard is opened when it is first read.

    It is safe in threads and across a fork; only its arguments are pickled.

    Args:
        root: the folder to which ``names`` are relative.
        names: names of the shards; a shard may be listed twice.
        counts: (shards,) int64, the number of samples in each shard; an index with another number is refused.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        hidden: whether ``dir/.hid`` is a sample, as in Energon. Indexes must have been made with the same option.
        index: returns the place of a shard's index, by default beside the shard; it must be possible to pickle it.

    Attributes:
        names: names of the shards.
        counts: (shards,) int64, their numbers of samples.
        reader: the reader of the shards.
    """

    def __init__(
        self,
        root: str | AnyPath,
        names: Sequence[str],
        counts: IntArray,
        *,
        using: str | Reader = "mmap",
        hidden: bool = True,
        index: Callable[[int], IndexPlace] | None = None,
    ) -> None:
        self.names = tuple(names)
        self._root = str(root)
        self.counts = np.asarray(counts, np.int64)
        self.reader = reader(using)
        self._hidden = hidden
        self._index = index
        self._used: dict[int, _Used] = {}
        self._table: KeyTable | None = None
        keep_freed_memory()

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The shards, each followed by its index, unless that is kept in memory."""
        paths: dict[str, None] = {}
        for shard in range(len(self.names)):
            index = self._place(shard)
            paths |= dict.fromkeys([self.path(shard)] + ([index] if isinstance(index, str) else []))
        return tuple(map(self.reader.path_at, paths))

    def path(self, shard: int) -> str:
        """Return the path of a shard."""
        return f"{self._root}/{self.names[shard]}"

    def read(self, shards: IntArray, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples in the order of the arguments; 5 to 8 us a small sample of two parts, in any order.

        Args:
            shards: (n,) int64, the shard of each sample.
            indices: (n,) int64, the number of each sample in its shard.
            parts: names of the parts to read; None reads all.

        Raises:
            IndexError: there is no such sample.
            InputError: a sample is malformed; the message names shard, key and byte.
            StoreError: a file is missing, changed or cut short, or the index belongs to another shard.
        """
        wanted = None if parts is None else frozenset(parts)
        order = np.lexsort((indices, shards)).tolist() if len(indices) > 1 else range(len(indices))
        owners, numbers = shards.tolist(), indices.tolist()
        found: list[RawSample] = [_NO_SAMPLE] * len(order)
        first = 0
        while first < len(order):
            shard = owners[order[first]]
            last = first + 1
            while last < len(order) and owners[order[last]] == shard:
                last += 1
            self._read_shard(shard, order[first:last], numbers, wanted, found)
            first = last
        return found

    def places(self, shard: int, index: int) -> dict[str, PartPlace]:
        """Return where the parts of a sample lie; raises the same errors as `read`."""
        path = self.path(shard)
        return {part: PartPlace(path, *place) for part, place in self._sample(shard, index)[1].items()}

    def key(self, shard: int, index: int) -> str:
        """Return the key of a sample; raises the same errors as `read`."""
        return self._sample(shard, index)[0]

    def keys(self, shard: int) -> list[str]:
        """Return the keys of all samples of a shard, by a pass over its headers; raises the same errors as `read`."""
        used = self._verified(shard)
        path = used.path
        spans = self._spans(used, range(used.num_samples), self.reader.size(path))
        passing = self.reader.for_pass()
        fetch = Window(passing, path).fetch
        keys = [self._located(shard, index, fetch, span)[0] for index, span in enumerate(spans)]
        if passing is not self.reader:
            passing.release(path)
        return keys

    def find(self, key: str) -> Iterator[tuple[int, int]]:
        """Yield shard and number of each sample with a key; the first call reads the headers of all shards."""
        if self._table is None:
            keys = (found for shard in range(len(self.names)) for found in self.keys(shard))
            self._table = KeyTable(keys, int(self.counts.sum()))
        bounds = prefix_sums(self.counts.tolist())
        for number in self._table.candidates(key):
            shard = bisect_right(bounds, number) - 1
            index = number - int(bounds[shard])
            if self.key(shard, index) == key:
                yield shard, index

    def offsets(self, shard: int) -> IntArray:
        """Return the index of a shard, (samples + 1,) int64.

        Raises:
            StoreError: the index is missing or malformed, or belongs to another shard.
        """
        used = self._used.get(shard) or self._verified(shard)
        if not isinstance(used.place, str):
            return used.place
        mapped = self.reader.kept(used.place, "offsets", _offsets)
        return open_index(used.place, self.reader, used.path) if mapped is None else mapped

    @cached_property
    def data_files(self) -> tuple[str, ...]:
        """The path of each shard."""
        return tuple(map(self.path, range(len(self.names))))

    def extents(self, store: AnyStore, shards: IntArray, indices: IntArray) -> Extents:
        """Return where samples lie, with headers and padding, as ranges of the files of a store."""
        begins, ends = np.empty_like(indices), np.empty_like(indices)
        order = np.argsort(shards, kind="stable")
        borders = np.flatnonzero(np.diff(shards[order])) + 1
        for rows in np.split(order, borders) if len(order) else ():
            offsets = self.offsets(int(shards[rows[0]]))
            # Sample 0 begins at byte 0, whatever its entry says.
            begins[rows] = np.where(indices[rows] == 0, 0, offsets[indices[rows]])
            ends[rows] = offsets[indices[rows] + 1]
        return Extents(store, np.arange(len(indices), dtype=np.int64), shards.astype(np.int64), begins, ends)

    def check(self, shard: int) -> Iterator[Problem]:
        """Read all headers of a shard, compare them with its index, and yield what is wrong."""
        path = self.path(shard)
        try:
            self._verified(shard)
            offsets = self.offsets(shard)
        except StoreError as error:
            yield Problem.of(path, error)
            return
        yield from check_shard(path, offsets, using=self.reader, hidden=self._hidden)

    def close(self) -> None:
        """Close the files. Samples stay valid, and a later read opens the files again."""
        self.reader.close()
        self._used.clear()

    def _place(self, shard: int) -> IndexPlace:
        return beside(self.path(shard)) if self._index is None else self._index(shard)

    def _verified(self, shard: int) -> _Used:
        """Compare an index with its shard. If a file changes later, the reader notices it."""
        place, path, count = self._place(shard), self.path(shard), int(self.counts[shard])
        entries = open_index(place, self.reader, path) if isinstance(place, str) else place
        where = place if isinstance(place, str) else "the index in memory"
        size = self.reader.size(path)
        if len(entries) != count + 1 or entries[-1] > size:
            raise StoreError(
                f"{path}: has {size:,} bytes, and {count:,} samples were expected; but {where} has"
                f" {len(entries) - 1:,} samples in {entries[-1]:,} bytes: the file was cut short, or the index belongs"
                " to another file; make it again with headrace prepare"
            )
        used = self._used[shard] = _Used(path, place, count)
        return used

    def _spans(self, used: _Used, numbers: Sequence[int], size: int) -> list[tuple[int, int]]:
        """Return begin and end of samples in ascending order. Sample 0 begins at byte 0, whatever its entry says."""
        path, place, count = used
        if numbers and not 0 <= numbers[0] <= numbers[-1] < count:
            wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
            raise IndexError(f"sample {wrong} is out of range; {path} has {count:,} samples")
        entries = self.reader.kept(place, "entries", index_entries) if isinstance(place, str) else index_entries(place)
        if entries is not None:
            spans = [(entries[at] if at else 0, entries[at + 1]) for at in numbers]
        else:
            spans = _read_spans(self.reader, str(place), numbers)
        for begin, end in spans:
            if not 0 <= begin <= end <= size:
                number = numbers[spans.index((begin, end))]
                raise StoreError(
                    f"{path}: sample {number} goes from byte {begin} to byte {end} in the index, but the file has"
                    f" {size:,} bytes; make the index again with headrace prepare"
                )
        return spans

    def _read_shard(
        self,
        shard: int,
        slots: Sequence[int],
        numbers: list[int],
        wanted: frozenset[str] | None,
        found: list[RawSample],
    ) -> None:
        """Fill the slots of ``found`` that belong to one shard; they ascend by the number of the sample."""
        used = self._used.get(shard) or self._verified(shard)
        path, name = used.path, self.names[shard]
        data = self.reader.kept(path, "memory", _memory)
        size = self.reader.size(path) if data is None else len(data)
        spans = self._spans(used, [numbers[slot] for slot in slots], size)
        if data is None:
            runs = read_runs(self.reader, path, spans, partly=wanted is not None)
            takes: Iterator[tuple[Fetch, Take[bytes]]] = ((fetch, _copied(fetch)) for fetch in runs)
        else:
            takes = repeat((fetches(data), copies(data)))
        try:
            samples = walk_samples(spans, takes, wanted, self._hidden)
        except WalkError as error:
            self._malformed(shard, numbers[slots[error.row]], error)
        for slot, (key, parts) in zip(slots, samples, strict=True):
            found[slot] = RawSample(key, name, numbers[slot], parts)

    def _sample(self, shard: int, index: int) -> tuple[str, Places]:
        used = self._used.get(shard) or self._verified(shard)
        path = used.path
        (span,) = self._spans(used, [index], self.reader.size(path))
        data = self.reader.kept(path, "memory", _memory)
        fetch = Window(self.reader, path).fetch if data is None else fetches(data)
        return self._located(shard, index, fetch, span)

    def _located(self, shard: int, index: int, fetch: Fetch, span: tuple[int, int]) -> tuple[str, Places]:
        try:
            return sample_places(fetch, *span, hidden=self._hidden)
        except WalkError as error:
            self._malformed(shard, index, error)

    def _malformed(self, shard: int, index: int, error: WalkError) -> NoReturn:
        key = "" if error.key is None else f", key {error.key!r}"
        raise InputError(f"{self.path(shard)}: sample {index}{key}: byte {error.at}: {error.message}") from None


def _read_spans(using: Reader, place: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Read entries of an index that is not mapped: all at once if they are near each other, otherwise in pairs."""
    if not numbers:
        return []
    first, count = numbers[0], numbers[-1] - numbers[0] + 2
    if count * ENTRY_BYTES <= _TOGETHER_BYTES:
        entries = using.read(place, first * ENTRY_BYTES, count * ENTRY_BYTES).view("<i8").tolist()
        return [(entries[at - first] if at else 0, entries[at - first + 1]) for at in numbers]
    begins = np.asarray(numbers, np.int64) * ENTRY_BYTES
    pairs = using.read_ranges(place, begins, np.full(len(begins), 2 * ENTRY_BYTES)).view("<i8").reshape(-1, 2)
    return [(begin if at else 0, end) for at, (begin, end) in zip(numbers, pairs.tolist(), strict=True)]


def _offsets(data: NDArray[np.uint8]) -> IntArray:
    return data.view(ENTRY)


def _memory(data: NDArray[np.uint8]) -> memoryview:
    return data.data


def _copied(fetch: Fetch) -> Take[bytes]:
    return lambda at, length: fetch(at, length).tobytes()


_PROBES: Final = 8
"""How many entries of each index go into the fingerprint, in addition to the last one."""


class TarSamples(SampleStore):
    """Samples in tars that `TarShards` reads."""

    _shards: TarShards

    @property
    def readers(self) -> tuple[Reader, ...]:
        """What reads the tars."""
        return (self._shards.reader,)

    @property
    def data_files(self) -> tuple[str, ...]:
        """The tar of each shard."""
        return self._shards.data_files

    def extents(self, indices: IntArray) -> Extents:
        """Return one range for each sample, of all its members."""
        return self._shards.extents(self, *self._located(indices))

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does. 5 to 8 us a small sample of two parts, in any order."""
        return self._shards.read(*self._located(indices), parts)

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        return self._shards.key(*self._locate(index))

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part of a sample lies."""
        return self._shards.places(*self._locate(index))

    def close(self) -> None:
        """Close the files. Samples that were returned stay valid."""
        self._shards.close()


class TarStore(TarSamples):
    """Samples made of the members ``<key>.<part>`` of tars, addressed by number.

    A tar without an up-to-date ``.tar.idx`` is indexed when it is opened, by a pass over its headers that takes about 3
    us a member. The index is kept beside the tar or, if that cannot be written, in ``$HEADRACE_CACHE`` or
    ``~/.cache/headrace``; an existing file beside the tar is never replaced. If a key occurs twice, `find` returns the
    first sample and `check` reports it.

    Args:
        path: a tar, a folder (all ``*.tar`` below, in natural order), a pattern (``train-{000..127}.tar``, ``*.tar``),
            or a list of these.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        hidden: whether ``dir/.hid`` belongs to a sample ``dir/``, as in Energon.
        index: where new indexes are kept: ``"beside"``, ``"cache"``, or ``"memory"``, which writes none.
        faulty: for a tar that is damaged or cut short, ``"error"`` raises an error; ``"skip"`` uses the samples before
            the fault, and lists the fault in ``faults``.

    Raises:
        StoreError: nothing is there, or it cannot be read.
        InputError: a tar is faulty or compressed.
        ConfigError: an option is unknown.

    Example:
        >>> store = headrace.stores.TarStore("shards")
        >>> len(store), sorted(store[0].parts)
        (20, ['jpg', 'txt'])
    """

    format = "tar"

    def __init__(
        self,
        path: TarPaths,
        *,
        using: str | Reader = "mmap",
        hidden: bool = True,
        index: IndexWhere = "beside",
        faulty: Literal["error", "skip"] = "error",
    ) -> None:
        if index not in get_args(IndexWhere) or faulty not in ("error", "skip"):
            raise ConfigError(
                f"index={index!r}, faulty={faulty!r}: allowed are index='beside', 'cache' or 'memory', and"
                " faulty='error' or 'skip'"
            )
        using = reader(reader_at(path, using))
        self._tars = path if isinstance(path, str | os.PathLike) else tuple(path)
        self._options: dict[str, Any] = {"hidden": hidden, "index": index, "faulty": faulty}
        tars = find_tars(path, using)
        self.path = os.fspath(path) if isinstance(path, str | os.PathLike) else f"{tars[0]} and {len(tars) - 1} more"
        root = folder_of_all(tars)
        names = names_in(root, tars)
        self._indexes = shard_indexes(tars, where=index, hidden=hidden, skip=faulty == "skip", using=using)
        counts = np.array([shard.count for shard in self._indexes], np.int64)
        places = [shard.place for shard in self._indexes].__getitem__
        self._shards = TarShards(root, names, counts, using=using, hidden=hidden, index=places)
        self._numbering = Numbering(counts)

    @property
    def shards(self) -> tuple[str, ...]:
        """The tars, relative to the deepest folder that holds them all."""
        return self._shards.names

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The tars and their indexes."""
        return self._shards.files

    @property
    def shard_files(self) -> tuple[AnyPath, ...]:
        """The tar of each shard."""
        return tuple(map(self._shards.reader.path_at, self.data_files))

    @property
    def faults(self) -> dict[str, tuple[TarFault, ...]]:
        """The faults of shards of which only the samples before the fault are used, by shard."""
        return {name: index.faults for name, index in zip(self.shards, self._indexes, strict=True) if index.faults}

    @cached_property
    def fingerprint(self) -> str:
        """xxh3_128 of ``layout_fingerprint``, and of the first and last 4 KiB of each tar. O(1) a shard."""
        return self._numbering.hashed(with_ends(self.whole, self.data_files, self._shards.reader))

    @property
    def layout_fingerprint(self) -> str:
        """xxh3_128 over the names of the shards, their sizes, numbers of samples, and nine entries of each index."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for shard, (name, index) in enumerate(zip(self.shards, self._indexes, strict=True)):
            probes = np.linspace(0, index.count, _PROBES + 1).astype(np.int64)
            facts = (name, index.size, index.count, self._shards.offsets(shard)[probes].tolist())
            hasher.update(repr(facts).encode("utf-8", "surrogateescape"))
        return self._numbering.hashed(hasher.hexdigest())

    def find(self, key: str) -> int:
        """Return the number of the first sample with a key. The first call reads all headers.

        Raises:
            KeyError: there is none, or the first one is left out.
        """
        found = next(self._shards.find(key), None)
        if found is None:
            raise KeyError(key)
        return self._numbering.found(*found, f"{self.path}: sample {key!r}")

    def check(self) -> Iterator[Problem]:
        """Read all headers and yield what is wrong with tars, indexes and keys. A tar has no checksums of contents."""
        for shard in range(len(self.shards)):
            yield from self._shards.check(shard)
        yield from find_repeated_keys(self.path, self._shards, "sample")

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced_whole(path=self._tars, using=self._shards.reader, **self._options)
