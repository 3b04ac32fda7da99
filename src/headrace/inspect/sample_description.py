"""The numbers of a store of samples, for ``headrace info``, and a list of its samples, for ``headrace ls``."""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.inspect.answers import Report, bytes_of
from headrace.inspect.blocks import Block, Pairs, Tabular, Title, Titled
from headrace.inspect.description import MAX_ERRORS, ledger_sections, own_manifest
from headrace.inspect.figures import as_json, count, plural, size
from headrace.inspect.samples import SampleOptions, need_samples, part_sizes
from headrace.io import AnyPath
from headrace.stores import ErrorEntry, Ledger, SampleStore
from headrace.stores.energon import EnergonStore, FilesystemStore, Splits, SqliteIndex, read_splits
from headrace.stores.energon.config_file import META_FOLDER, UUID_NAME
from headrace.stores.energon.splits import find_splits

LOOKED_AT: Final = 1000
"""The number of samples whose parts are examined, evenly spread over the store."""


class PartKind(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of one name: how many of the examined samples have one, and their sizes in bytes."""

    name: str
    samples: int
    bytes: int
    min: int
    max: int


class SplitNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the split file."""

    name: str
    shards: int
    samples: int
    """The number of samples, without excluded ones."""

    excluded: int
    """The number of samples that are excluded one by one."""

    excluded_shards: int


class MediaNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The stored metadata of media: how many entries of each kind, and by which patterns they were found."""

    entries: dict[str, int]
    filters: tuple[tuple[str, str], ...]


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the ``dataset.yaml`` says about the type of the samples."""

    file: str
    kind: str
    """``typed``, ``crude``, or ``other``, which is a class of the user's own."""

    class_name: str
    sample_type: str | None
    field_map: dict[str, str] | None
    sample_loader: str | None
    part_filter: str | None
    subflavors: dict[str, Any]


class SampleDescription(Report, frozen=True, kw_only=True):
    """All that ``headrace info`` says of a store of samples."""

    path: str
    format: str
    samples: int
    left_out: int
    """The number of bad samples that a quarantine list leaves out. For Energon's datasets see ``splits``."""

    shards: int
    bytes: int
    """The size of all files, indices included."""

    energon_version: str | None
    uuid: str | None
    type: TypeInfo | None
    splits: tuple[SplitNumbers, ...] | None
    looked_at: int
    """The number of samples whose parts were examined."""

    parts: tuple[PartKind, ...]
    media: MediaNumbers | None
    index: dict[str, tuple[str, ...]] | None
    """Table of ``index.sqlite`` -> its columns."""

    ledger: Ledger | None = None
    """What was dropped and why, from the manifest."""

    errors: int = 0
    """The number of bad records that were skipped."""

    bad_records: tuple[ErrorEntry, ...] = ()
    """The first of them."""

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        pairs: list[tuple[str, str | None]] = [
            ("format", f"{self.format}, {plural(self.shards, 'shard')}"),
            ("samples", count(self.samples) + (f", {count(self.left_out)} bad ones left out" if self.left_out else "")),
            ("on disk", size(self.bytes)),
            *_recorded(self),
        ]
        yield Title(self.path)
        yield Pairs([(name, value) for name, value in pairs if value is not None])
        if self.type is not None and self.type.field_map is not None:
            yield Titled("fields", [Pairs.of(self.type.field_map)])
        if self.splits is not None:
            yield Titled("splits", [_split_table(self.splits)])
        if self.parts:
            of = "all samples" if self.looked_at == self.samples else f"{count(self.looked_at)} samples, evenly spread"
            yield Titled(f"parts of {of}", [_part_table(self)])
        yield from ledger_sections(self.ledger, self.errors, self.bad_records, "samples")


def describe_samples(path: str, options: SampleOptions) -> SampleDescription:
    """Open a store and gather its numbers. This reads the headers of a thousand samples.

    Raises:
        HeadraceError: the store cannot be opened.
    """
    split_config = options.split_config
    manifest = own_manifest(path)
    with need_samples(path, msgspec.structs.replace(options, split_config=None)) as store:
        if split_config is not None and not isinstance(store, EnergonStore):
            raise ConfigError(f"{path}: `split_config` is only for Energon datasets, and this has no .nv-meta")
        index = store.index if isinstance(store, EnergonStore | FilesystemStore) else None
        looked_at, parts = _parts(store)
        energon = store if isinstance(store, EnergonStore) else None
        return SampleDescription(
            path=path,
            format=store.format,
            samples=len(store),
            left_out=0 if energon else store.num_left_out,
            shards=len(store.shards),
            bytes=bytes_of(store.files),
            energon_version=None if energon is None else energon.info.energon_version,
            uuid=None if energon is None else _uuid(energon.root),
            type=None if energon is None else _type(energon),
            splits=None if energon is None else _splits(energon, split_config),
            looked_at=looked_at,
            parts=parts,
            media=None if index is None or not index.has_media else _media(index),
            index=None if index is None else index.tables,
            ledger=None if manifest is None else manifest.ledger,
            errors=0 if manifest is None else len(manifest.errors),
            bad_records=() if manifest is None else manifest.errors[:MAX_ERRORS],
        )


def _parts(store: SampleStore) -> tuple[int, tuple[PartKind, ...]]:
    looked_at = min(len(store), LOOKED_AT)
    sizes: dict[str, list[int]] = {}
    for number in np.linspace(0, len(store) - 1, looked_at).astype(np.int64).tolist():
        for name, num_bytes in part_sizes(store, number).items():
            sizes.setdefault(name, []).append(num_bytes)
    kinds = (
        PartKind(name=name, samples=len(found), bytes=sum(found), min=min(found), max=max(found))
        for name, found in sizes.items()
    )
    return looked_at, tuple(sorted(kinds, key=lambda kind: (-kind.samples, kind.name)))


def _uuid(root: AnyPath) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (root / META_FOLDER / UUID_NAME).read_text().strip()
    return None


def _type(store: EnergonStore) -> TypeInfo | None:
    found = store.dataset
    if found is None:
        return None
    given = found.part_filter
    part_filter = ", ".join(given) if isinstance(given, tuple) else None if given is None else str(given)
    return TypeInfo(
        file=found.path.name,
        kind=found.kind,
        class_name=str(found.class_ref),
        sample_type=None if found.sample_type is None else str(found.sample_type),
        field_map=found.field_map,
        sample_loader=None if found.sample_loader is None else str(found.sample_loader),
        part_filter=part_filter,
        subflavors=found.subflavors,
    )


def _splits(store: EnergonStore, split_config: str | None) -> tuple[SplitNumbers, ...] | None:
    found = find_splits(store.root) if split_config is None else read_splits(store.root, split_config)
    if found is None:
        return None
    return tuple(_split(store, found, name, split_config) for name in found.parts)


def _split(store: EnergonStore, splits: Splits, name: str, split_config: str | None) -> SplitNumbers:
    listed = splits.parts[name]
    kept = [shard for shard in listed if shard not in splits.exclude]
    samples = excluded = 0
    if kept:  # a part without shards cannot be opened
        with EnergonStore(store.root, split_part=name, split_config=split_config) as part:
            samples, excluded = len(part), part.num_left_out
    return SplitNumbers(
        name=name, shards=len(kept), samples=samples, excluded=excluded, excluded_shards=len(listed) - len(kept)
    )


def _media(index: SqliteIndex) -> MediaNumbers:
    kinds = collections.Counter(row.kind for row in index.media())
    return MediaNumbers(entries=dict(sorted(kinds.items())), filters=tuple(index.media_filters()))


_BATCH: Final = 1024
_MAGIC: Final = re.compile(r"[*?\[]")


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of a listing."""

    key: str
    number: int
    """The number of the sample in the store."""

    shard: str
    index: int
    """The number of the sample in its shard."""

    parts: dict[str, int] | None = None
    """The bytes of each part, if they were asked for."""


def listed(store: SampleStore, pattern: str | None, *, with_parts: bool) -> Iterator[Listed]:
    """Yield the samples whose keys match, in the order of the store, as they are found. Contents are not read.

    Args:
        store: the store.
        pattern: such as ``cats/*``, with ``*``, ``?`` and ``[a-z]`` as in a shell, except that they also match
            slashes; None matches all.
        with_parts: whether to add the sizes of the parts, which doubles the cost.

    Raises:
        InputError: a sample is malformed.
        StoreError: a file is missing, or has changed.
    """
    batches: Iterable[Sequence[int]]
    wanted = None
    if pattern is not None and not _MAGIC.search(pattern):
        # Without wildcards it is a key, which the index of a dataset finds at once.
        try:
            batches = [[store.find(pattern)]]
        except KeyError:
            return
    else:
        wanted = None if pattern is None else re.compile(fnmatch.translate(pattern))
        batches = (range(first, min(first + _BATCH, len(store))) for first in range(0, len(store), _BATCH))
    for numbers in batches:
        for number, sample in zip(numbers, store.read(np.array(numbers, np.int64), ()), strict=True):
            if wanted is None or wanted.match(sample.key):
                parts = part_sizes(store, number) if with_parts else None
                yield Listed(key=sample.key, number=number, shard=sample.shard, index=sample.index, parts=parts)


def _recorded(found: SampleDescription) -> list[tuple[str, str | None]]:
    """Return what the files beside the samples say of them, None for each that says nothing."""
    known, sample_type, loader = found.type, None, None
    if known is None and found.format == "energon":
        sample_type = "unknown: there is no dataset.yaml"
    if known is not None:
        words = f"crude, {known.class_name}" if known.kind == "crude" else known.sample_type or known.class_name
        sample_type, loader = f"{words} ({known.file})", known.sample_loader
    return [
        ("prepared by", found.energon_version and f"energon {found.energon_version}"),
        ("uuid", found.uuid),
        ("sample type", sample_type),
        ("loader", loader and f"{loader}, which is code and was not run"),
        ("part filter", None if known is None else known.part_filter),
        ("subflavors", as_json(known.subflavors) if known is not None and known.subflavors else None),
        ("media facts", None if found.media is None else _media_words(found.media)),
        ("index.sqlite", None if found.index is None else ", ".join(found.index) or "no tables"),
    ]


def _media_words(media: MediaNumbers) -> str:
    kinds = ", ".join(f"{count(number)} {kind}" for kind, number in media.entries.items()) or "none"
    by = "; ".join(f"{strategy.lower()}: {patterns}" for strategy, patterns in media.filters)
    return kinds + (f" (by {by})" if by else "")


def _split_table(splits: tuple[SplitNumbers, ...]) -> Tabular:
    total = sum(part.samples for part in splits)
    rows = [
        (
            part.name,
            count(part.samples),
            f"{part.samples / max(total, 1):.1%}",
            count(part.shards),
            count(part.excluded),
            count(part.excluded_shards),
        )
        for part in splits
    ]
    return Tabular(("split", "samples", "share", "shards", "samples excluded", "shards excluded"), rows)


def _part_table(found: SampleDescription) -> Tabular:
    rows = [
        (
            part.name or "(no name)",
            count(part.samples),
            f"{part.samples / found.looked_at:.1%}",
            *map(size, (part.bytes / part.samples, part.min, part.max)),
        )
        for part in found.parts
    ]
    return Tabular(("part", "samples", "share", "mean", "min", "max"), rows)
