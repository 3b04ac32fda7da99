"""Previews of samples: those of one store, or those of a metadataset in the order of its mix."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import msgspec
import numpy as np

from headrace.config import check_choice
from headrace.datasets import Run
from headrace.datasets.media import SampleDataset
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.mix import named_datasets
from headrace.datasets.origins import Origin
from headrace.errors import ConfigError
from headrace.inspect.answers import Answer
from headrace.inspect.blocks import Block, Pairs, Title, Titled
from headrace.inspect.figures import count, plural
from headrace.inspect.samples import (
    LookedAtSample,
    MixPlace,
    PartViewer,
    PlainSources,
    SampleOptions,
    ShownPart,
    ShownParts,
    closed,
    dataset_of,
    find_sample,
    look_at,
    need_samples,
)
from headrace.inspect.shown import PreviewOptions, chosen
from headrace.inspect.token_texts import TokenTexts, find_texts
from headrace.plan import Order, OrderKind
from headrace.samples.media import parse_field_map
from headrace.samples.media.mapper import FieldMap
from headrace.stores import RawSample, SampleStore


class SamplePreview(Answer, frozen=True, kw_only=True):
    """Some samples of a store, and facts about the store."""

    path: str
    format: str
    split_part: str | None
    num_samples: int
    num_shards: int
    sample_type: str | None
    field_map: dict[str, str] | None
    samples: tuple[ShownParts, ...] = ()

    @property
    def words(self) -> str:
        """What the store is, in words."""
        part = "" if self.split_part is None else f", part {self.split_part}"
        kind = "" if self.sample_type is None else f", {self.sample_type}"
        return f"{self.format}{part}, {plural(self.num_shards, 'shard')}{kind}"


class MixPreview(Answer, frozen=True, kw_only=True):
    """Some samples of a metadataset in the order of its mix, and facts about the mix."""

    path: str
    format: str
    split_part: str
    num_samples: int | None
    """The number of samples of one pass; None for an endless mix."""

    sources: tuple[str, ...]
    order: OrderKind
    seed: int
    samples: tuple[ShownParts, ...] = ()

    @property
    def words(self) -> str:
        """What the mix is, in words."""
        order = f"order {self.order}, seed {self.seed}"
        return f"{self.format}, split {self.split_part}, {plural(len(self.sources), 'source')}, {order}"


@dataclasses.dataclass(frozen=True)
class OpenPreview:
    """An open store or metadataset, and the samples of it that a user wants to see. Iterating decodes them one by one.

    Attributes:
        facts: the preview, still without samples.
        numbers: the numbers of the samples; in a metadataset, positions of the mix.
        look: yields the samples; called anew for each iteration.
    """

    facts: SamplePreview | MixPreview
    numbers: list[int]
    look: Callable[[], Iterator[LookedAtSample]]

    def __iter__(self) -> Iterator[LookedAtSample]:
        """Yield the samples. A part that cannot be decoded says so itself.

        Raises:
            InputError: a sample is malformed.
            StoreError: a file, or the tokeniser of a store, is missing or has changed.
        """
        return self.look()

    def read(self) -> SamplePreview | MixPreview:
        """Return the preview with its samples, without their bytes and pictures."""
        return msgspec.structs.replace(self.facts, samples=tuple(sample.shown for sample in self))

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, and read the samples while doing so."""
        facts, shown = self.facts, len(self.numbers)
        yield Title(facts.path, facts.words)
        if facts.num_samples is None:
            yield f"{plural(shown, 'sample')} of an endless mix"
        else:
            of_passes = " a pass" if isinstance(facts, MixPreview) else ""
            yield f"{count(shown)} of {plural(facts.num_samples, 'sample')}{of_passes}"
        if isinstance(facts, SamplePreview) and facts.field_map:
            yield Titled("fields", [Pairs.of(facts.field_map)])
        for sample in self:
            yield sample.section()

    def to_dict(self) -> dict[str, Any]:
        """Read the samples; see `Answer.to_dict`."""
        return self.read().to_dict()


@contextlib.contextmanager
def open_samples(path: str, options: PreviewOptions) -> Iterator[OpenPreview]:
    """Open a store to show its samples.

    Raises:
        HeadraceError: the store cannot be opened.
        ConfigError: there is no such sample.
    """
    viewer = _viewer(options)
    with need_samples(path, SampleOptions.of(options)) as store:
        dataset, fields = dataset_of(store), field_map_of(store)
        key = options.get("key")
        numbers = chosen(path, "sample", len(store), options) if key is None else [find_sample(store, key)]

        def look() -> Iterator[LookedAtSample]:
            for number in numbers:
                yield look_at(store.read(np.array([number]))[0], number, fields, viewer)

        sample_type = None
        if dataset is not None:
            sample_type = "crude" if dataset.kind == "crude" else (dataset.sample_type or dataset.class_ref).name
        facts = SamplePreview(
            path=store.path,
            format=store.format,
            split_part=options.get("split_part"),
            num_samples=len(store),
            num_shards=len(store.shards),
            sample_type=sample_type,
            field_map=None if dataset is None else dataset.field_map,
        )
        yield OpenPreview(facts, numbers, look)


def look_at_sample(store: SampleStore, number: int, part: str | None, *, max_chars: int) -> LookedAtSample:
    """Return what a preview shows of one sample of a store, or of one part of it, without pictures."""
    raw = store.read(np.array([number]), None if part is None else (part,))[0]
    fields = field_map_of(store) if part is None else None
    return look_at(raw, number, fields, PartViewer(max_chars=max_chars, pictures=False))


def _viewer(options: PreviewOptions) -> PartViewer:
    limit = options.get("limit")
    max_chars = 2000 if limit is None else limit
    if options.get("key") is not None and (options.get("samples") is not None or "num" in options):
        raise ConfigError("`key` names the one sample to show: leave out `samples` and `num`")
    if max_chars < 1:
        raise ConfigError(f"`limit={max_chars}`: must be at least 1")
    return PartViewer(max_chars=max_chars, pictures=options.get("pictures", False))


def field_map_of(store: SampleStore) -> FieldMap | None:
    """Return the field map of an Energon dataset, if it has one.

    Raises:
        ConfigError: the field map cannot be parsed.
    """
    dataset = dataset_of(store)
    return None if dataset is None or dataset.field_map is None else parse_field_map(dataset.field_map)


_FIELD = "input_ids"


def _look_at_tokens(
    run: Run, position: int, number: int, place: MixPlace, texts: TokenTexts, max_chars: int
) -> LookedAtSample:
    """Return a sample of a run that consists of tokens."""
    located = run.locate(np.array([position]))
    (origins,) = run.datasets[int(located.sources[0])].origins(located.addresses)
    # Only pads follow the documents of a pack.
    ids = run.read(located)[_FIELD][0][: sum(origin.tokens or 0 for origin in origins)]
    text = "".join(group.text for group in texts.groups(ids.tolist()))
    part = ShownPart(
        name=_FIELD,
        size=ids.nbytes,
        kind="text",
        text=text[:max_chars],
        left_out=max(0, len(text) - max_chars),
        facts={"dtype": str(ids.dtype), "shape": str(ids.shape)},
    )
    key = _documents(origins)
    shown = ShownParts(number=number, key=key, shard="", index=number, parts=(part,), fields={}, place=place)
    return LookedAtSample(shown, RawSample(key=key, shard="", index=number, parts={_FIELD: ids.tobytes()}), {})


def _documents(origins: tuple[Origin, ...]) -> str:
    """Return ``document 12 from token 30, document 13``."""
    found = []
    for origin in origins:
        begin = f" from token {count(origin.begin)}" if origin.begin else ""
        found.append(f"document {count(origin.document or 0)}{begin}")
    return ", ".join(found)


@contextlib.contextmanager
def open_mix(path: str, options: PreviewOptions) -> Iterator[OpenPreview]:
    """Open a metadataset to show samples of its mix.

    Raises:
        HeadraceError: a dataset cannot be opened, or the metadataset is wrong.
        ConfigError: there is no such split, or options contradict each other.
    """
    viewer = _viewer(options)
    metadataset = load_dataset(path)
    split = _split(path, metadataset.splits, options.get("split_part"))
    data = metadataset.train(split, options=PlainSources(), global_batch_size=options.get("global_batch_size"))
    with contextlib.ExitStack() as stack:
        for dataset in named_datasets(data).values():
            stack.callback(closed, dataset)
        kind = options.get("order") or "full"
        check_choice("`order`", kind, get_args(OrderKind))
        order = Order(kind=cast(OrderKind, kind), seed=options.get("seed", 0))
        run = Run(data, global_batch_size=1, order=order)
        if (key := options.get("key")) is not None:
            raise ConfigError(
                f"{path}: `key={key}` names a sample of one dataset, and this is a mix of several: preview the dataset"
                " itself"
            )
        length = run.plan.root.num_samples
        # Positions behind one pass are those of the next.
        positions = chosen(path, "sample", length if options.get("samples") is None else None, options)
        facts = MixPreview(
            path=path,
            format="metadataset",
            split_part=split,
            num_samples=length,
            sources=run.paths,
            order=order.kind,
            seed=order.seed,
        )
        yield OpenPreview(facts, positions, functools.partial(_look_at_mix, run, positions, viewer))


def _look_at_mix(run: Run, positions: list[int], viewer: PartViewer) -> Iterator[LookedAtSample]:
    found = run.lookup(np.array(positions, dtype=np.int64))
    texts_of = functools.cache(lambda path: find_texts(path).texts)
    rows = zip(positions, found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True)
    for position, source, epoch, number in rows:
        dataset = run.datasets[source]
        path = dataset.store.path  # windows, packs and samples have one
        place = MixPlace(position=position, source=run.paths[source], epoch=epoch, path=path)
        if isinstance(dataset, SampleDataset):
            raw = dataset.store.read(np.array([number]))[0]
            yield look_at(raw, number, field_map_of(dataset.store), viewer, place)
        else:
            yield _look_at_tokens(run, position, number, place, texts_of(path), viewer.max_chars)


def _split(path: str, splits: tuple[str, ...], wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if "train" in splits or len(splits) == 1:
        return "train" if "train" in splits else splits[0]
    raise ConfigError(f"{path}: choose a split with `split_part`; the splits are {', '.join(splits)}")
