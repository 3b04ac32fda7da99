"""Runs the checks of a store of samples for ``headrace check``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.cli.media.decoding import Decoded, decode_all
from headrace.cli.media.opening import SampleOptions, open_sample_store, total_bytes
from headrace.errors import HeadraceError, InputError, StoreError
from headrace.io import PreadReader
from headrace.io.readers import ByteArray, IntArray
from headrace.prepare.energon.state import STATE_NAME, load_state, state_problems
from headrace.prepare.energon.work import WORK_NAME
from headrace.stores import MANIFEST_NAME, Manifest, Problem, check_file, load_manifest
from headrace.stores.energon import EnergonStore, Splits
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.splits import find_splits
from headrace.stores.sample_layouts import sample_layout
from headrace.stores.sample_store import SampleStore
from headrace.stores.tar.index import index_path


class SampleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What to check beside what is always checked."""

    dataset: SampleOptions = SampleOptions()
    decode: bool = False
    workers: int = 1


class SampleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found and how much it looked at. Counts are zero where the store does not even open."""

    path: str
    ok: bool
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    """What may be meant, and may be an oversight."""

    unvouched: tuple[str, ...]
    """Files of which no hash was written down: of tars the headers are compared, of the others what they say."""

    samples: int
    shards: int
    files: int
    bytes: int
    hashed: bool
    """Whether a manifest vouches for the bytes of the shards, and they were read."""

    decoded: Decoded | None


class Watched(PreadReader):
    """Reads, and tells which file and how many bytes so far."""

    def __init__(self, on_read: Callable[[str, int], None]) -> None:
        super().__init__()
        self._on_read = on_read
        self._num_bytes = 0

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """See `Reader.read_ranges`."""
        self._num_bytes += int(lengths.sum())
        self._on_read(path, self._num_bytes)
        return super().read_ranges(path, offsets, lengths, out)


def check_samples(
    path: str,
    check: SampleCheck,
    *,
    on_read: Callable[[str, int], None],
    on_decoded: Callable[[int, int], None],
) -> SampleVerdict | None:
    """Check everything at a path and collect what is wrong; None where it holds no samples.

    Args:
        path: as for `headrace.open`.
        check: what else.
        on_read: called before each read with the file, and with the bytes read so far.
        on_decoded: called now and then with the number of samples that were decoded, and of all.

    Raises:
        StoreError: nothing is there.
        ConfigError: there is no such part.
        WorkerError: a process that decodes ended.
    """
    if sample_layout(path) is None:
        return None
    try:
        store = open_sample_store(path, check.dataset, using=Watched(on_read), faulty=True)
        manifest = _manifest(path)
    except (StoreError, InputError) as error:
        if not Path(path).exists():
            raise
        return _faulty(path, error)
    if store is None:
        return None
    with store:
        problems = list(_problems(store, path, manifest, check, on_read))
        decoded = None
        if check.decode:
            # What is read now is pickled, and need not be watched.
            with _reopened(path, check) as again:
                decoded = decode_all(
                    again,
                    exclude=_excluded(store, check.dataset),
                    workers=check.workers,
                    on_samples=lambda done: on_decoded(done, len(again)),
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


def _reopened(path: str, check: SampleCheck) -> SampleStore:
    store = open_sample_store(path, check.dataset, faulty=True)
    if store is None:
        raise StoreError(f"{path}: is gone; it was there a moment ago")
    return store


def _problems(
    store: SampleStore,
    path: str,
    manifest: Manifest | None,
    check: SampleCheck,
    on_read: Callable[[str, int], None],
) -> Iterator[Problem]:
    try:
        yield from store.check()
    except HeadraceError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
    if isinstance(store, EnergonStore):
        yield from _split_problems(store, check.dataset)
    if manifest is not None:
        listed = [
            (Path(path) / Path(shard.prefix).parent / file.name, file)
            for shard in manifest.outputs
            for file in shard.files
        ]
        for place, file in listed:
            on_read(str(place), file.size)
            yield from check_file(place, file)
        if _state_file(store) is not None:  # which was written later, and vouches for .nv-meta
            manifest = msgspec.structs.replace(manifest, beside=msgspec.UNSET)
        yield from manifest.check_beside(path)
    if isinstance(store, EnergonStore):
        yield from state_problems(store.root)


def _state_file(store: SampleStore) -> Path | None:
    """What `headrace prepare` has left in place, None where it was not at work."""
    if not isinstance(store, EnergonStore):
        return None
    path = store.root / META_FOLDER / STATE_NAME
    return path if path.is_file() else None


def _unvouched(store: SampleStore, path: str, manifest: Manifest | None) -> tuple[str, ...]:
    """The files of which no hash was written down."""
    files = set(store.files)
    vouched: set[Path] = set()
    if isinstance(store, EnergonStore):
        meta = store.root / META_FOLDER
        files |= {file for file in meta.glob("**/*") if file.is_file() and WORK_NAME not in file.parts}
        with contextlib.suppress(StoreError):
            if (state := load_state(store.root)) is not None:
                vouched |= {meta / file.name for file in state.files}
                vouched |= {index_path(store.root / name) for name in state.shards}
                vouched |= {meta / STATE_NAME} if state.xxh3_128 else set()
    if manifest is not None:
        shards = [(Path(shard.prefix).parent, file) for shard in manifest.outputs for file in shard.files]
        vouched |= {Path(path) / parent / file.name for parent, file in shards}
        vouched |= {Path(path) / file.name for file in manifest.beside or ()}
    known = {os.path.realpath(file) for file in vouched}
    return tuple(sorted(str(file) for file in files if os.path.realpath(file) not in known))


def _split_problems(store: EnergonStore, options: SampleOptions) -> Iterator[Problem]:
    """Parts that cannot be opened, and excluded samples that are not there; whichever part was asked for."""
    try:
        splits = _splits(store, options)
    except HeadraceError as error:
        yield Problem(path=store.path, place="split file", message=str(error))
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
                        f"part {name!r}: excludes {wanted} samples, of which {wanted - part.num_left_out} are not there"
                    )
                    yield Problem(path=str(splits.path), place="exclude", message=message)
        except HeadraceError as error:
            message = str(error).removeprefix(f"{splits.path}: ")
            yield Problem(path=str(splits.path), place=f"part {name!r}", message=message)


def _splits(store: EnergonStore, options: SampleOptions) -> Splits | None:
    return find_splits(store.root, options.split_config)


def _excluded(store: SampleStore, options: SampleOptions) -> frozenset[str]:
    """What the split file leaves out, which a run never decodes."""
    if not isinstance(store, EnergonStore):
        return frozenset()
    try:
        splits = _splits(store, options)
    except HeadraceError:
        return frozenset()  # a fault that was told
    return frozenset() if splits is None else splits.exclude


def _notes(store: SampleStore, options: SampleOptions) -> Iterator[str]:
    """Shards in several parts, in none, and tars that nobody lists."""
    if not isinstance(store, EnergonStore) or options.split_part is not None:
        return
    known = store.info.shard_counts
    beside = {str(tar.relative_to(store.root)) for tar in store.root.rglob("*.tar")} - known.keys()
    beside = {name for name in beside if not any(folder.startswith(".") for folder in Path(name).parts)}
    if beside:
        yield f"not in the info file: {_some(beside)}; headrace prepare adds new shards"
    try:
        splits = _splits(store, options)
    except HeadraceError:
        return  # which is a fault, and was told
    if splits is None:
        yield "there is no split file: only all shards together can be opened"
        return
    parts: dict[str, list[str]] = {shard: [] for shard in known}
    for name, listed in splits.parts.items():
        for shard in dict.fromkeys(listed):
            parts.setdefault(shard, []).append(name)
    shared = {shard for shard, names in parts.items() if len(names) > 1 and shard not in splits.exclude}
    if shared:
        yield f"in more than one part of the split: {_some(shared)}"
    unused = {shard for shard, names in parts.items() if not names and shard not in splits.exclude}
    if unused:
        yield f"in no part of the split: {_some(unused)}"


def _note_of(unvouched: tuple[str, ...], store: SampleStore, manifest: Manifest | None) -> tuple[str, ...]:
    """A line where hashes were written down, and not of all files."""
    if not unvouched or (manifest is None and _state_file(store) is None):
        return ()
    root = store.root if isinstance(store, EnergonStore) else Path(store.path)
    names = {str(Path(name).relative_to(root)) if Path(name).is_relative_to(root) else name for name in unvouched}
    return (f"no hash vouches for {_some(names)}: of tars the headers are checked alone",)


def _some(names: set[str]) -> str:
    first = sorted(names)[:5]
    return ", ".join(first) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _manifest(path: str) -> Manifest | None:
    return load_manifest(path) if (Path(path) / MANIFEST_NAME).is_file() else None


def _faulty(path: str, error: HeadraceError) -> SampleVerdict:
    file, _, message = str(error).partition(": ")
    is_place = bool(message) and Path(file).exists()
    problem = Problem(path=file if is_place else path, place="", message=message if is_place else str(error))
    return SampleVerdict(
        path=path,
        ok=False,
        problems=(problem,),
        notes=(),
        unvouched=(),
        samples=0,
        shards=0,
        files=0,
        bytes=0,
        hashed=False,
        decoded=None,
    )
