"""Previews of samples: those of one store, or those of a metadataset in the order of its mix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, Self

import msgspec
import numpy as np

from headrace.datasets import Run
from headrace.datasets.media.face import SampleDataset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.datasets.mix import named_datasets
from headrace.datasets.origins import Origin
from headrace.errors import ConfigError
from headrace.inspect.description import find_manifest
from headrace.inspect.documents import MAX_SAMPLES
from headrace.inspect.figures import count
from headrace.inspect.samples import (
    LookedAtSample,
    MixPlace,
    PartViewer,
    SampleOptions,
    ShownPart,
    ShownParts,
    closed,
    dataset_of,
    look_at,
    open_sample_store,
    plain_dataset,
)
from headrace.inspect.token_texts import TokenTexts, find_texts
from headrace.plan import Order
from headrace.samples.media import parse_field_map
from headrace.samples.media.field_map import FieldMap
from headrace.stores import RawSample
from headrace.stores.sample_store import SampleStore

OrderKind = Literal["full", "blocks", "shards", "none"]


class SamplePreviewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of a store of samples. Pass it to `open_preview`.

    Attributes:
        numbers: the numbers of samples; None shows the first ``num``.
        num: how many samples are shown if they are not named.
        key: show only the sample of this key.
        max_chars: the most characters that are kept of each text.
        pictures: whether pictures of images and videos are made.
        dataset: which part of an Energon dataset is shown, and by which of its files.

    Example:
        >>> from headrace.inspect import SamplePreviewOptions, open_preview
        >>> with open_preview("shards", SamplePreviewOptions(num=2)) as preview:
        ...     for sample in preview:
        ...         print(sample.shown.number, [part.name for part in sample.shown.parts])
        0 ['jpg', 'txt']
        1 ['jpg', 'txt']
    """

    numbers: tuple[int, ...] | None = None
    num: int = 3
    key: str | None = None
    max_chars: int = 2000
    pictures: bool = True
    dataset: SampleOptions = SampleOptions()


class SamplePreview(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a store whose samples are shown."""

    path: str
    format: str
    split_part: str | None
    num_samples: int
    num_shards: int
    sample_type: str | None
    field_map: dict[str, str] | None


class MixFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a metadataset whose samples are shown."""

    path: str
    format: str
    split_part: str
    num_samples: int | None
    """The number of samples of one pass; None for an endless mix."""

    sources: tuple[str, ...]
    order: OrderKind
    seed: int


class StorePreview:
    """An open store, and the samples of it that a user wants to see. Iterating reads and decodes them one by one.

    Attributes:
        facts: facts about the store.
        numbers: the numbers of the samples.
    """

    def __init__(self, store: SampleStore, options: SamplePreviewOptions) -> None:
        dataset = dataset_of(store)
        self._store = store
        self._viewer = PartViewer(max_chars=options.max_chars, pictures=options.pictures)
        self._fields = field_map_of(store)
        self.numbers = _numbers(store, options)
        self.facts = SamplePreview(
            path=store.path,
            format=store.format,
            split_part=options.dataset.split_part,
            num_samples=len(store),
            num_shards=len(store.shards),
            sample_type=None if dataset is None else "crude" if dataset.kind == "crude" else type_name(store),
            field_map=None if dataset is None else dataset.field_map,
        )

    def __iter__(self) -> Iterator[LookedAtSample]:
        """Yield the samples. A part that cannot be decoded says so itself.

        Raises:
            InputError: a sample is malformed.
            StoreError: a file is missing, or has changed.
        """
        for number in self.numbers:
            yield look_at(self._store.read(np.array([number]))[0], number, self._fields, self._viewer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()


def open_preview(path: str, options: SamplePreviewOptions) -> StorePreview | None:
    """Open a store to show its samples; None if the path holds no samples.

    Raises:
        HeadraceError: the store cannot be opened.
        ConfigError: there is no such sample.
    """
    store = open_sample_store(path, options.dataset)
    if store is None:
        return None
    try:
        return StorePreview(store, options)
    except BaseException:
        store.close()
        raise


def field_map_of(store: SampleStore) -> FieldMap | None:
    """Return the field map of an Energon dataset, if it has one.

    Raises:
        ConfigError: the field map cannot be parsed.
    """
    dataset = dataset_of(store)
    return None if dataset is None or dataset.field_map is None else parse_field_map(dataset.field_map)


def type_name(store: SampleStore) -> str | None:
    """Return the name of the sample type in the ``dataset.yaml``."""
    dataset = dataset_of(store)
    if dataset is None:
        return None
    return dataset.class_ref.name if dataset.sample_type is None else dataset.sample_type.name


def find_sample(store: SampleStore, key: str) -> int:
    """Return the number of the sample with a key.

    Raises:
        ConfigError: no sample has the key.
    """
    try:
        return store.find(key)
    except KeyError:
        raise ConfigError(f"{store.path}: has no sample {key!r}; headrace ls lists the keys") from None


def _numbers(store: SampleStore, options: SamplePreviewOptions) -> list[int]:
    if options.key is not None:
        return [find_sample(store, options.key)]
    if options.numbers is None:
        if not 1 <= options.num <= MAX_SAMPLES:
            raise ConfigError(f"--num {options.num}: from 1 to {MAX_SAMPLES:,} samples are shown at once")
        return list(range(min(options.num, len(store))))
    for number in options.numbers:
        if number >= len(store):
            raise ConfigError(f"{store.path}: has no sample {number:,}; its {len(store):,} samples are counted from 0")
    return list(options.numbers)


_FIELD = "input_ids"


class TokenViewer:
    """Shows the samples of a run that consist of tokens. Each store is read with the tokeniser that made it.

    Args:
        run: a run with one sample for each step.
        max_chars: the most characters that are kept of each text.
    """

    def __init__(self, run: Run, *, max_chars: int) -> None:
        self._run = run
        self._max_chars = max_chars
        self._texts: dict[str, TokenTexts] = {}

    def look(self, position: int, number: int, place: MixPlace) -> LookedAtSample:
        """Return the sample at a position.

        Args:
            position: the position in the run.
            number: the number of the sample in its dataset.
            place: the place of the sample in the mix.

        Raises:
            StoreError: the tokeniser of the store is missing, or has changed.
        """
        located = self._run.locate(np.array([position]))
        (origins,) = self._run.datasets[int(located.sources[0])].origins(located.addresses)
        # Only pads follow the documents of a pack.
        ids = self._run.read(located)[_FIELD][0][: sum(origin.tokens or 0 for origin in origins)]
        text = "".join(group.text for group in self._texts_of(place.path).groups(ids.tolist()))
        part = ShownPart(
            name=_FIELD,
            size=ids.nbytes,
            kind="text",
            text=text[: self._max_chars],
            left_out=max(0, len(text) - self._max_chars),
            facts={"dtype": str(ids.dtype), "shape": str(ids.shape)},
        )
        shown = ShownParts(
            number=number,
            key=_documents(origins),
            shard="",
            index=number,
            parts=(part,),
            fields={},
            boxes=(),
            place=place,
        )
        raw = RawSample(key=shown.key, shard="", index=number, parts={_FIELD: ids.tobytes()})
        return LookedAtSample(shown, raw, {})

    def _texts_of(self, path: str) -> TokenTexts:
        if path not in self._texts:
            manifest = find_manifest(path)
            made_by = None if manifest is None else manifest.tokenizer
            self._texts[path] = find_texts(made_by, given=None, is_any=False, path=path).texts
        return self._texts[path]


def _documents(origins: tuple[Origin, ...]) -> str:
    """Return ``document 12 from token 30, document 13``."""
    found = []
    for origin in origins:
        begin = f" from token {count(origin.begin)}" if origin.begin else ""
        found.append(f"document {count(origin.document or 0)}{begin}")
    return ", ".join(found)


class MixOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which mix of a metadataset is shown, and in which order."""

    split_part: str | None = None
    """The split; None means ``train``, or the only one."""

    order: OrderKind = "full"
    seed: int = 0
    global_batch_size: int | None = None
    """Needed for schedules that count in steps."""


class MixPreview:
    """An open metadataset, and the samples of its mix that a user wants to see.

    Attributes:
        facts: facts about the mix.
        numbers: the positions of the samples.
    """

    def __init__(self, path: str, options: SamplePreviewOptions, mix: MixOptions) -> None:
        metadataset = load_dataset(path)
        split = _split(path, metadataset.splits, mix.split_part)
        data = metadataset.train(
            split, options=SourceOptions(open=plain_dataset), global_batch_size=mix.global_batch_size
        )
        self._closing = contextlib.ExitStack()
        for dataset in named_datasets(data).values():
            self._closing.callback(closed, dataset)
        try:
            self._run = Run(data, global_batch_size=1, order=Order(kind=mix.order, seed=mix.seed))
            length = self._run.plan.root.num_samples
            self.numbers = _positions(path, options, length)
        except BaseException:
            self._closing.close()
            raise
        self._tokens = TokenViewer(self._run, max_chars=options.max_chars)
        self._viewer = PartViewer(max_chars=options.max_chars, pictures=options.pictures)
        self.facts = MixFacts(
            path=path,
            format="metadataset",
            split_part=split,
            num_samples=length,
            sources=self._run.paths,
            order=mix.order,
            seed=mix.seed,
        )

    def __iter__(self) -> Iterator[LookedAtSample]:
        """Yield the samples. A part that cannot be decoded says so itself.

        Raises:
            InputError: a sample is malformed.
            StoreError: a file, or the tokeniser of a store, is missing or has changed.
        """
        found = self._run.lookup(np.array(self.numbers, dtype=np.int64))
        rows = zip(self.numbers, found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True)
        for position, source, epoch, number in rows:
            dataset = self._run.datasets[source]
            path = dataset.store.path  # windows, packs and samples have one
            place = MixPlace(position=position, source=self._run.paths[source], epoch=epoch, path=path)
            if isinstance(dataset, SampleDataset):
                raw = dataset.store.read(np.array([number]))[0]
                yield look_at(raw, number, field_map_of(dataset.store), self._viewer, place)
            else:
                yield self._tokens.look(position, number, place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()


def _split(path: str, splits: tuple[str, ...], wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if "train" in splits or len(splits) == 1:
        return "train" if "train" in splits else splits[0]
    raise ConfigError(f"{path}: choose a split with --split-part; the splits are {', '.join(splits)}")


def _positions(path: str, options: SamplePreviewOptions, length: int | None) -> list[int]:
    if options.key is not None:
        raise ConfigError(
            f"{path}: --key {options.key} names a sample of one dataset, and this is a mix of several: preview the"
            " dataset itself"
        )
    if options.numbers is None:
        if not 1 <= options.num <= MAX_SAMPLES:
            raise ConfigError(f"--num {options.num}: from 1 to {MAX_SAMPLES:,} samples are shown at once")
        return list(range(options.num if length is None else min(options.num, length)))
    return list(options.numbers)
