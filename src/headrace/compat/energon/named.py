"""Media datasets under the names of Energon's classes: a path, what its samples are, and the order to go through them.

    BaseCoreDataset                     samples that were made before
      BaseWebdataset                    ... of a path
        DefaultGenericWebdataset        ... made by a field map or a loader
          DefaultDecoderWebdataset      ... with a decoder
            CaptioningWebdataset ...    ... of one sample type
        CrudeWebdataset                 ... left to cookers

Each is a recipe: ``dataset`` is the map-style dataset, ``run`` feeds a `Loader`, and ``iterable`` is a thin view on the
same order for a ``DataLoader`` of one's own. A ``dataset.yaml`` is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from headrace.datasets.dataset import Dataset
from headrace.datasets.lengths import Subset
from headrace.datasets.media.dataset import DEFAULT_DECODER, MediaDataset
from headrace.datasets.mix import Mix
from headrace.datasets.run import Run
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Order, SubsetRange
from headrace.samples.media import (
    CaptioningSample,
    Cooker,
    CrudeSample,
    ImageSample,
    OCRSample,
    SampleDecoder,
    VQASample,
)
from headrace.stores import EnergonStore, SampleStore
from headrace.stores import open as open_store
from headrace.stores.sample_layouts import sample_layout

_TOGETHER = 16
"""Samples that an iterable reads at a time: neighbours on disk are read together."""

_FOR_EVER = 1 << 61

Filter = Collection[str] | Callable[[str], bool]


class BaseCoreDataset:
    """Samples and the order to go through them: for ever and shuffled to train, once and in order to validate.

    Args:
        dataset: the samples; a dataset or a subset of one.
        training: shuffle, for ever.
        max_samples_per_sequence: neighbours of a shard that stay together, in training.
        parallel_shard_iters: slices open at once, in training.
        seed: of the order.
    """

    def __init__(
        self,
        dataset: Dataset | Mix,
        *,
        training: bool,
        max_samples_per_sequence: int | None = None,
        parallel_shard_iters: int | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset = dataset
        self.training = training
        given = {
            "max_samples_per_sequence": max_samples_per_sequence,
            "parallel_shard_iters": parallel_shard_iters,
        }
        sizes = {name: size for name, size in given.items() if size is not None}
        self.order = Order(kind="shards", seed=seed, **sizes) if training else Order(kind="none")
        self._stream = self.run(1)

    def run(self, global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]]) -> Run:
        """The run of these samples in this order, for a `Loader`."""
        epochs = None if self.training else 1
        return Run(self.dataset, global_batch_size=global_batch_size, order=self.order, epochs=epochs)

    def samples(self, *, first: int = 0, every: int = 1) -> Iterator[Any]:
        """The samples at positions ``first``, ``first + every`` and so on."""
        if first < 0 or every < 1:
            raise ConfigError(f"first is at least 0 and every at least 1, found {first} and {every}")
        length = self._stream.length
        places = iter(range(first, _FOR_EVER if length is None else length, every))
        source = self._stream.datasets[0]
        while positions := list(islice(places, _TOGETHER)):
            located = self._stream.locate(np.array(positions, dtype=np.int64))
            yield from source.samples(located.addresses)

    def iterable(self, *, rank: int = 0, world_size: int = 1, first: int = 0) -> Any:
        """A ``torch.utils.data.IterableDataset`` of the samples of one rank, each once, shared out among workers.

        In a ``DataLoader`` with ``batch_size=None`` they come in the order of the run, for any number of workers; with
        batches each worker fills its own.

        Args:
            rank: position p is that of rank ``p % world_size``.
            world_size: ranks.
            first: the position to begin at, as many as all ranks had before.

        Raises:
            ConfigError: no such rank, or a position below 0.
        """
        if not 0 <= rank < world_size or first < 0:
            raise ConfigError(f"rank {rank} of {world_size} from position {first}: ranks run from 0 to world_size - 1")
        return _iterable(self, rank, world_size, first)

    def __len__(self) -> int:
        """Samples of one pass."""
        return self._stream.plan.leaves[0].num_samples

    def __repr__(self) -> str:
        kind = "training" if self.training else "validation"
        return f"<{type(self).__name__}: {kind}, {self.dataset!r}>"


class BaseWebdataset(BaseCoreDataset):
    """Samples at a path: a dataset of Energon's, tar shards, a ``.jsonl``.

    Args:
        path: what `headrace.open` takes.
        sample_type: what samples are.
        training: see `BaseCoreDataset`.
        split_part: of a dataset of Energon's; None for all shards. Others have one part.
        split_config: name of another split file in ``.nv-meta``.
        subset: a range of the samples, ``["25%", "75%"]`` or ``[100, "end"]``.
        media_options: the other arguments of `MediaDataset`.
        order: those of `BaseCoreDataset`.

    Raises:
        StoreError: nothing is there, or it is malformed.
        ConfigError: there is no such part; the path holds tokens; as `MediaDataset`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sample_type: type[Any] = CrudeSample,
        *,
        training: bool,
        split_part: str | None = "train",
        split_config: str | None = None,
        subset: SubsetRange | Sequence[int | str] | None = None,
        media_options: Mapping[str, Any] | None = None,
        **order: Any,
    ) -> None:
        store = _opened(path, split_part, split_config)
        made = MediaDataset(store, sample_type, **(media_options or {}))
        self.subflavors = made.subflavors
        super().__init__(made if subset is None else Subset(made, subset), training=training, **order)


class DefaultGenericWebdataset(BaseWebdataset):
    """Samples of a type, made by a field map or by a function.

    Args:
        path, sample_type: see `BaseWebdataset`.
        field_map: field -> part, ``{"image": "jpg", "caption": "txt,json[text]"}``; or
        sample_loader: decoded parts -> fields; then
        part_filter: names of the parts to read.
        subflavors: set on every sample.
        decoder: None hands out bytes.
        options: those of `BaseWebdataset`.
    """

    default_decoder: ClassVar[SampleDecoder | None] = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        sample_type: type[Any],
        *,
        field_map: Mapping[str, str] | None = None,
        sample_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        part_filter: Filter | None = None,
        subflavors: Mapping[str, Any] | None = None,
        decoder: SampleDecoder | None = None,
        **options: Any,
    ) -> None:
        media_options = {
            "field_map": field_map,
            "sample_loader": sample_loader,
            "part_filter": part_filter,
            "subflavors": subflavors,
            "decoder": self.default_decoder if decoder is None else decoder,
        }
        super().__init__(path, sample_type, media_options=media_options, **options)


class DefaultDecoderWebdataset(DefaultGenericWebdataset):
    """`DefaultGenericWebdataset` whose parts are decoded, by default as `MediaDataset` does."""

    default_decoder = DEFAULT_DECODER


class _OfOneType(DefaultDecoderWebdataset):
    sample_type: ClassVar[type[Any]]

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, self.sample_type, **options)


class CaptioningWebdataset(_OfOneType):
    """`CaptioningSample`; options as of `DefaultDecoderWebdataset`."""

    sample_type = CaptioningSample


class ImageWebdataset(_OfOneType):
    """`ImageSample`; options as of `DefaultDecoderWebdataset`."""

    sample_type = ImageSample


class OCRWebdataset(_OfOneType):
    """`OCRSample`; options as of `DefaultDecoderWebdataset`."""

    sample_type = OCRSample


class VQAWebdataset(_OfOneType):
    """`VQASample`; options as of `DefaultDecoderWebdataset`."""

    sample_type = VQASample


class CrudeWebdataset(BaseWebdataset):
    """Decoded parts in a dict, or what a cooker makes of them.

    Args:
        path: see `BaseWebdataset`.
        cookers, subflavors, part_filter, decoder, aux: see `MediaDataset`.
        options: those of `BaseWebdataset`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cookers: Sequence[Cooker] = (),
        subflavors: Mapping[str, Any] | None = None,
        part_filter: Filter | None = None,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        aux: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        media_options = {
            "cookers": cookers,
            "subflavors": subflavors,
            "part_filter": part_filter,
            "decoder": decoder,
            "aux": aux,
        }
        super().__init__(path, CrudeSample, media_options=media_options, **options)


def _opened(path: str | os.PathLike[str], split_part: str | None, split_config: str | None) -> SampleStore:
    if sample_layout(path) == "energon":
        return EnergonStore(path, split_part=split_part, split_config=split_config)
    if split_part not in (None, "train") or split_config is not None:
        raise ConfigError(f"{path}: has no split file, as it has no .nv-meta; it is opened whole")
    store = open_store(path)
    if not isinstance(store, SampleStore):
        raise ConfigError(f"{path}: holds tokens ({store.format}); use headrace.open and a dataset of tokens")
    return store


def _iterable(recipe: BaseCoreDataset, rank: int, world_size: int, first: int) -> Any:
    from torch.utils.data import IterableDataset, get_worker_info

    class Stream(IterableDataset[Any]):
        """The samples of one rank; of a worker process its part of them."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
            return recipe.samples(first=first + rank + worker * world_size, every=world_size * workers)

        def __reduce__(self) -> tuple[Any, ...]:
            # A class within a function does not pickle; what it is made of does.
            return _iterable, (recipe, rank, world_size, first)

    return Stream()
