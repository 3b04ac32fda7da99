"""A metadataset -> the samples of a split as a run would see them: in the order of the mix, each with its source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

import msgspec
import numpy as np

from headrace.cli.media.mix_tokens import TokenViewer
from headrace.cli.media.parts import PartViewer
from headrace.cli.media.preview import MixFacts, OrderKind, SamplePreviewOptions, field_map_of
from headrace.cli.media.samples import LookedAtSample, Place, look_at
from headrace.cli.media.sources import closed, plain_dataset
from headrace.cli.views.choosing import MAX_SAMPLES
from headrace.datasets import Run
from headrace.datasets.media.face import SampleDataset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.datasets.mix import named_datasets
from headrace.errors import ConfigError
from headrace.plan import Order


class MixOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which mix of a metadataset, and in which order."""

    split_part: str | None = None
    """None: ``train``, or the only one."""

    order: OrderKind = "full"
    seed: int = 0
    global_batch_size: int | None = None
    """For schedules that count in steps."""


class MixPreview:
    """A metadataset that is opened, and the samples of its mix that a user wants to see.

    Attributes:
        facts: of the mix.
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
        """The samples. What is wrong with their parts is said there.

        Raises:
            InputError: a sample is malformed.
            StoreError: a file is missing, or changed; the tokeniser of a store is.
        """
        found = self._run.lookup(np.array(self.numbers, dtype=np.int64))
        rows = zip(self.numbers, found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True)
        for position, source, epoch, number in rows:
            dataset = self._run.datasets[source]
            path = dataset.store.path  # windows, packs and samples have one
            place = Place(position=position, source=self._run.paths[source], epoch=epoch, path=path)
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
    raise ConfigError(f"{path}: which split? --split-part takes {', '.join(splits)}")


def _positions(path: str, options: SamplePreviewOptions, length: int | None) -> list[int]:
    if options.key is not None:
        raise ConfigError(
            f"{path}: --key {options.key} names a sample of one dataset, and this is a mix of some: preview that one"
        )
    if options.numbers is None:
        if not 1 <= options.num <= MAX_SAMPLES:
            raise ConfigError(f"--num {options.num}: from 1 to {MAX_SAMPLES:,} samples are shown at once")
        return list(range(options.num if length is None else min(options.num, length)))
    return list(options.numbers)
