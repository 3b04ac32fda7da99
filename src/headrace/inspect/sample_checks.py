"""The checks of a store of samples: headers, indices, split files and hashes, and whether each part can be decoded.

Parts are decoded in worker processes, one range of samples after another.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np

from headrace.engine.processes import usable_cores
from headrace.engine.ranges import run_ranges
from headrace.engine.serving import load
from headrace.errors import (
    ConfigError,
    HeadraceError,
    InputError,
    MissingExtraError,
    SampleError,
    StoreAwayError,
    StoreError,
)
from headrace.inspect.answers import Answer, OnProgress, problem_of, took
from headrace.inspect.figures import count, plural, problem_lines, safe_text, size
from headrace.inspect.sample_preview import field_map_of
from headrace.inspect.samples import SampleOptions, need_samples, open_sample_store, total_bytes
from headrace.io import AnyPath, PreadReader, is_url, path_at
from headrace.io.readers import ByteArray, IntArray
from headrace.preparing.energon.state import STATE_NAME, load_state, state_problems
from headrace.samples.media import AVDecoder, SampleDecoder
from headrace.samples.media.decoding.basic import reraise
from headrace.samples.media.mapper import META_PARTS, FieldMap, first_that_works, parts_of
from headrace.stores import MANIFEST_NAME, Manifest, Problem, check_file, load_manifest
from headrace.stores.energon import EnergonStore, Splits
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME
from headrace.stores.energon.splits import find_splits
from headrace.stores.quarantine import BadSample, add_bad_samples
from headrace.stores.store import RawSample, SampleStore
from headrace.stores.tar.index import index_path

TASK_SAMPLES: Final = 64
_READ_SAMPLES: Final = 16
"""Samples at a URL that are read together, so that they take one round trip."""

MAX_NAMED: Final = 1000
"""The most faults that are named one by one; any others are counted."""


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples and parts were decoded, and which samples have faults."""

    samples: int
    faulty_samples: int
    parts: dict[str, int]
    """Name of the part -> how many were decoded."""

    kept_parts: dict[str, int]
    """Those that no decoder knows: a run gets their bytes as they are."""

    faulty_parts: dict[str, int]
    bad: tuple[BadSample, ...]
    """The samples that have a faulty part or field."""


class DecodedElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges that other processes have decoded."""

    folder: Path
    """The folder of the results, by `result_name`."""

    num_samples: int
    """Samples of a range."""

    def find(self, first: int, end: int) -> DecodedRange | None:
        """Return the result of a range; None if it is not there."""
        text = load(self.folder / result_name(first, end), str)
        return None if text is None else msgspec.convert(json.loads(text), DecodedRange)


def result_name(first: int, end: int) -> str:
    """Return the name of the file with the result of a range."""
    return f"{first}-{end}"


def as_ascii(found: msgspec.Struct) -> str:
    """Return a struct as JSON of ASCII: names of files need not be valid Unicode."""
    return json.dumps(msgspec.to_builtins(found))


class DecodedRange(msgspec.Struct, frozen=True):
    """What was found in a range of samples."""

    samples: int
    faulty_samples: int
    parts: dict[str, int]
    faulty_parts: dict[str, int]
    problems: list[Problem]
    bad: list[BadSample]
    kept_parts: dict[str, int]


class RangeDecoder:
    """Decodes ranges of samples, but those that ``exclude`` names. It can be pickled."""

    def __init__(self, store: SampleStore, exclude: frozenset[str]) -> None:
        self.store = store
        self._exclude = exclude
        self._fields = field_map_of(store)
        self._parts = None if self._fields is None else parts_of(self._fields)
        self._decoder = SampleDecoder(image_decode="rgb8")

    def run(self, first: int, end: int, on_done: Callable[[int], None]) -> DecodedRange:
        """See `RangeWork`."""
        result = DecodedRange(0, 0, {}, {}, [], [], {})
        samples = faulty = 0
        step = _READ_SAMPLES if is_url(self.store.path) else 1
        for begin in range(first, end, step):
            for number, raw in self._read(begin, min(begin + step, end)):
                problems = self._sample(number, raw, result)
                samples += problems is not None
                faulty += bool(problems)
                result.problems.extend(problems or ())
        return msgspec.structs.replace(result, samples=samples, faulty_samples=faulty)

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


def decode_all(
    store: SampleStore,
    *,
    exclude: frozenset[str] = frozenset(),
    workers: int,
    elsewhere: DecodedElsewhere | None = None,
    on_progress: OnProgress,
    on_problem: Callable[[Problem], None],
) -> Decoded:
    """Decode the parts of all samples: those that the field map of the ``dataset.yaml`` names, or else all parts.

    Args:
        store: the store, which must pickle.
        exclude: ``"<shard>"`` or ``"<shard>/<key>"`` of samples to skip.
        workers: the number of processes; with 1, this process decodes.
        elsewhere: what other processes have decoded.
        on_progress: called now and then with the samples that are done.
        on_problem: called for each fault, in the order of the store.

    Raises:
        StoreAwayError: the object store of the samples gives no answer.
        WorkerError: a process has ended, as a codec written in C can cause; the message says among which samples.
        MissingExtraError: the package that decodes a part is not installed.
    """
    samples = faulty = unnamed = named = 0
    bad: list[BadSample] = []
    parts: collections.Counter[str] = collections.Counter()
    kept_parts: collections.Counter[str] = collections.Counter()
    faulty_parts: collections.Counter[str] = collections.Counter()
    for result in _results(RangeDecoder(store, exclude), workers, elsewhere):
        samples += result.samples
        faulty += result.faulty_samples
        bad += result.bad
        parts.update(result.parts)
        kept_parts.update(result.kept_parts)
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
        kept_parts=dict(sorted(kept_parts.items())),
        faulty_parts=dict(sorted(faulty_parts.items())),
        bad=tuple(bad),
    )


def _results(decoder: RangeDecoder, workers: int, elsewhere: DecodedElsewhere | None) -> Iterator[DecodedRange]:
    """Yield the results of all ranges, in the order of the store."""
    store = decoder.store
    if elsewhere is not None:
        ranges = ranges_of(len(store), elsewhere.num_samples)
        return (elsewhere.find(first, end) or decoder.run(first, end, lambda number: None) for first, end in ranges)
    what = f"samples of {store.path} from {{first:,}} on were decoded"
    return run_ranges(decoder, ranges_of(len(store), TASK_SAMPLES), workers=workers, name="the store", what=what)


def ranges_of(total: int, num_samples: int) -> list[tuple[int, int]]:
    """Return ranges of so many samples that hold all of them."""
    return [(first, min(first + num_samples, total)) for first in range(0, total, num_samples)]


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


class SampleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What to check in addition to what is always checked. Pass it to `check_samples`.

    Attributes:
        dataset: which part of an Energon dataset is checked, and by which of its files.
        decode: whether every part of every sample is decoded.
        workers: the number of processes that decode.
        elsewhere: what other processes have decoded.

    """

    dataset: SampleOptions = SampleOptions()
    decode: bool = False
    workers: int = 1
    elsewhere: DecodedElsewhere | None = None

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


class SampleVerdict(Answer, frozen=True, kw_only=True):
    """What a check found, and how much it read. Counts are zero if the store cannot be opened."""

    path: str
    ok: bool
    problems: tuple[Problem, ...]
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

    seconds: float | msgspec.UnsetType = msgspec.UNSET
    """How long the check took; unset for a dataset of a metadataset."""

    def lines(self) -> list[str]:
        """Return the lines that sum the check up, as ``headrace check`` prints them."""
        return list(map(safe_text, _lines(self)))

    def fault_lines(self) -> list[str]:
        """Return a line for each fault; of many that are alike, three are shown."""
        return problem_lines(self.problems)


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


def check_samples(path: str, check: SampleCheck, *, on_progress: OnProgress) -> SampleVerdict:
    """Check everything at a path that holds samples, and collect what is wrong.

    Args:
        path: the same as for `headrace.open`.
        check: what to check in addition.
        on_progress: called before each read, and now and then with the samples that are decoded.

    Raises:
        StoreError: the path does not exist.
        StoreAwayError: the object store gives no answer.
        ConfigError: there is no such split part.
        WorkerError: a process that decodes has ended.
    """
    try:
        # What an object store sends is not watched: it is read in few large pieces.
        store = open_checked(path, check.dataset, "mmap" if is_url(path) else Watched(on_progress))
        manifest = _manifest(path)
    except StoreAwayError:
        raise
    except (StoreError, InputError) as error:
        if not path_at(path).exists():
            raise
        return SampleVerdict(path=path, ok=False, problems=(problem_of(error, path),))
    with store:
        problems = list(_problems(store, path, manifest, check, on_progress))
        decoded = None
        if check.decode:
            # Opened again without the watching reader, since the store is pickled for the workers.
            with open_checked(path, check.dataset, "mmap") as again:
                decoded = decode_all(
                    again,
                    exclude=excluded(store, check.dataset),
                    workers=check.workers,
                    elsewhere=check.elsewhere,
                    on_progress=on_progress,
                    on_problem=problems.append,
                )
        unvouched = _unvouched(store, path, manifest)
        return SampleVerdict(
            path=path,
            ok=not problems,
            problems=tuple(problems),
            notes=tuple(_notes(store, check.dataset)) + _note_of(unvouched, store, manifest),
            unvouched=unvouched,
            samples=len(store),
            shards=len(store.shards),
            files=len(set(store.files)),
            bytes=total_bytes(store),
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


def open_checked(path: str, options: SampleOptions, using: str | PreadReader) -> SampleStore:
    """Open samples that may be damaged.

    Raises:
        StoreError, InputError, ConfigError: as `open_sample_store`; there are no samples.
    """
    store = open_sample_store(path, options, using=using, faulty=True)
    if store is None:
        raise StoreError(f"{path}: was removed during the check")
    return store


def _problems(
    store: SampleStore,
    path: str,
    manifest: Manifest | None,
    check: SampleCheck,
    on_progress: OnProgress,
) -> Iterator[Problem]:
    try:
        yield from store.check()
    except HeadraceError as error:
        yield Problem.of(path, error)
    if isinstance(store, EnergonStore):
        yield from _split_problems(store, check.dataset)
    if manifest is not None:
        listed = [
            (path_at(path) / Path(shard.prefix).parent / file.name, file)
            for shard in manifest.outputs
            for file in shard.files
        ]
        for place, file in listed:
            _tell_read(on_progress, str(place), file.size)
            yield from check_file(place, file)
        if _state_file(store) is not None:  # it was written later, and has the hashes of .nv-meta
            manifest = msgspec.structs.replace(manifest, beside=msgspec.UNSET)
        yield from manifest.check_beside(path)
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
        files |= {file for file in meta.glob("**/*") if file.is_file() and META_WORK_NAME not in file.parts}
        vouched |= _vouched_by_state(store.root)
    if manifest is not None:
        shards = [(Path(shard.prefix).parent, file) for shard in manifest.outputs for file in shard.files]
        vouched |= {path_at(path) / parent / file.name for parent, file in shards}
        vouched |= {path_at(path) / file.name for file in manifest.beside or ()}
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


def _split_problems(store: EnergonStore, options: SampleOptions) -> Iterator[Problem]:
    """Yield split parts that cannot be opened, and excluded samples that do not exist; of one part, or of all."""
    try:
        splits = find_splits(store.root, options.split_config)
    except HeadraceError as error:
        yield Problem.of(store.path, error, place="split file")
        return
    if splits is None:
        return
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


def excluded(store: SampleStore, options: SampleOptions) -> frozenset[str]:
    """Return what the split file excludes, which a run never decodes."""
    if not isinstance(store, EnergonStore):
        return frozenset()
    try:
        splits = find_splits(store.root, options.split_config)
    except StoreAwayError:
        raise
    except HeadraceError:
        return frozenset()  # reported by _split_problems
    return frozenset() if splits is None else splits.exclude


def _notes(store: SampleStore, options: SampleOptions) -> Iterator[str]:
    """Yield notes on shards in several parts or in none, and on tars that no file lists."""
    if not isinstance(store, EnergonStore) or options.split_part is not None:
        return
    known = store.info.shard_counts
    tars = {tar.relative_to(store.root) for tar in store.root.rglob("*.tar")}
    beside = {str(tar) for tar in tars if not any(folder.startswith(".") for folder in tar.parts)} - known.keys()
    if beside:
        yield f"not in the info file: {_some(beside)}; headrace prepare adds new shards"
    try:
        splits = find_splits(store.root, options.split_config)
    except StoreAwayError:
        raise
    except HeadraceError:
        return  # reported by _split_problems
    if splits is None:
        yield "there is no split file, so the dataset can only be opened as a whole"
        return
    yield from _split_notes(splits, known)


def _split_notes(splits: Splits, known: Mapping[str, int]) -> Iterator[str]:
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


def _manifest(path: str) -> Manifest | None:
    return load_manifest(path) if (path_at(path) / MANIFEST_NAME).is_file() else None


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count(number)}" for name, number in parts.items())


def _lines(verdict: SampleVerdict) -> list[str]:
    lines = [f"note: {note}" for note in verdict.notes]
    if verdict.decoded is not None:
        found = verdict.decoded
        told = f"{verdict.path}: decoded: {_counts(found.parts) or 'none'}"
        told += f"; kept as bytes, since no decoder knows them: {_counts(found.kept_parts)}" if found.kept_parts else ""
        lines.append(told + (f"; at fault: {_counts(found.faulty_parts)}" if found.faulty_parts else ""))
    if verdict.problems:
        return [*lines, f"{verdict.path}: {plural(len(verdict.problems), 'fault')}"]
    what = ""
    if verdict.decoded is not None:
        what = ", every part decoded" + (" that has a decoder" if verdict.decoded.kept_parts else "")
    what += ", hashed" if verdict.hashed else " (no headrace.json has hashes of the bytes)"
    numbers = f"{plural(verdict.samples, 'sample')} in {plural(verdict.shards, 'shard')}, {size(verdict.bytes)}"
    return [*lines, f"{verdict.path}: whole: {numbers}, every header read{what}{took(verdict.seconds)}"]
