"""Media datasets under the names of Energon's classes: a path, the type of its samples, and their order.

    BaseCoreDataset                     the samples of an existing dataset
      BaseWebdataset                    the samples at a path
        DefaultGenericWebdataset        ... made by a field map or a function
          DefaultDecoderWebdataset      ... with a decoder
            CaptioningWebdataset ...    ... of one sample type
        CrudeWebdataset                 ... as dicts of parts, or made by cookers

Each object offers three views: ``dataset`` is the map-style dataset, ``run`` makes a run for a `Loader`, and
``iterable`` makes an iterable dataset in the same order for a ``DataLoader``. A ``dataset.yaml`` is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from headrace.compat.energon.dataset import FOR_EVER
from headrace.config import whole
from headrace.datasets import Dataset, Mix, Run, Subset
from headrace.datasets.media import MediaDataset
from headrace.datasets.media.dataset import DEFAULT_DECODER, opened_samples
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Order, SubsetRange
from headrace.samples.media import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SampleDecoder,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)

_TOGETHER = 16
"""The number of samples that an iterable reads at a time, so that neighbours on disk are read together."""


class BaseCoreDataset:
    """Samples and their order: shuffled and endless for training, or once and in order for validation.

    Args:
        dataset: the samples; a dataset, or a subset of one.
        training: whether to shuffle without end.
        max_samples_per_sequence: the number of neighbouring samples of a shard that stay together, in training.
        parallel_shard_iters: the number of slices that are open at once, in training.
        seed: the seed of the order.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> samples = headrace.compat.energon.BaseCoreDataset(captions, training=False)
        >>> len(samples) == len(captions)
        True
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
        """A run of these samples in this order, for a `Loader`."""
        epochs = None if self.training else 1
        return Run(self.dataset, global_batch_size=global_batch_size, order=self.order, epochs=epochs)

    def samples(self, *, first: int = 0, every: int = 1) -> Iterator[Any]:
        """Yield the samples at positions ``first``, ``first + every`` and so on."""
        first, every = whole(first, "first", least=0), whole(every, "every", least=1)
        length = self._stream.length
        places = iter(range(first, FOR_EVER if length is None else length, every))
        while positions := list(islice(places, _TOGETHER)):
            located = self._stream.locate(np.array(positions, dtype=np.int64))
            yield from self._stream.samples(located)

    def iterable(self, *, rank: int = 0, world_size: int = 1, first: int = 0) -> IterableDataset[Any]:
        """A ``torch.utils.data.IterableDataset`` of the samples of one rank, divided among the workers.

        Each sample comes once. In a ``DataLoader`` with ``batch_size=None`` the samples come in the order of the run,
        for any number of workers. With another batch size, each worker fills its own batches.

        Args:
            rank: the rank; position p belongs to rank ``p % world_size``.
            world_size: the number of ranks.
            first: the position to begin at, which is the number of samples that all ranks together had before.

        Raises:
            ConfigError: there is no such rank, or the position is below 0.
        """
        if not 0 <= rank < world_size or first < 0:
            raise ConfigError(
                f"rank {rank} of {world_size} from position {first}: ranks run from 0 to world_size - 1, and positions"
                " begin at 0"
            )
        return _Stream(self, rank, world_size, first)

    def __len__(self) -> int:
        """The number of samples of one pass."""
        return self._stream.plan.leaves[0].num_samples

    def __repr__(self) -> str:
        kind = "training" if self.training else "validation"
        return f"<{type(self).__name__}: {kind}, {self.dataset!r}>"


class BaseWebdataset(BaseCoreDataset):
    """The samples at a path: an Energon dataset, tar shards, or a ``.jsonl`` file.

    Args:
        path: a path that `headrace.open` accepts.
        sample_type: the class of the samples; None is that of the class.
        training, max_samples_per_sequence, parallel_shard_iters, seed: see `BaseCoreDataset`.
        split_part: the part of an Energon dataset, or None for all shards. Other data have only one part.
        split_config: the name of another split file in ``.nv-meta``.
        subset: a range of the samples, ``["25%", "75%"]`` or ``[100, "end"]``.
        media: the other arguments of `MediaDataset`, such as a ``field_map``.

    Raises:
        StoreError: nothing is there, or the data are malformed.
        ConfigError: there is no such part, the path holds tokens, or as `MediaDataset`.

    Example:
        >>> shards = headrace.compat.energon.BaseWebdataset("shards", training=True, seed=1)
        >>> run = shards.run(global_batch_size=4)
    """

    sample_type: ClassVar[type[Any]] = CrudeSample
    default_decoder: ClassVar[SampleDecoder | None] = DEFAULT_DECODER

    def __init__(
        self,
        path: str | os.PathLike[str],
        sample_type: type[Any] | None = None,
        *,
        training: bool,
        split_part: str | None = "train",
        split_config: str | None = None,
        subset: SubsetRange | Sequence[int | str] | None = None,
        max_samples_per_sequence: int | None = None,
        parallel_shard_iters: int | None = None,
        seed: int = 0,
        **media: Any,
    ) -> None:
        store = opened_samples(path, split_part, split_config)
        made = MediaDataset(store, sample_type or self.sample_type, **{"decoder": self.default_decoder, **media})
        self.subflavors = made.subflavors
        super().__init__(
            made if subset is None else Subset(made, subset),
            training=training,
            max_samples_per_sequence=max_samples_per_sequence,
            parallel_shard_iters=parallel_shard_iters,
            seed=seed,
        )


class DefaultGenericWebdataset(BaseWebdataset):
    """Samples of one type, made by a field map or by a function; without a ``decoder``, they hold bytes.

    Example:
        >>> from headrace.samples.media import CaptioningSample
        >>> captions = headrace.compat.energon.DefaultGenericWebdataset(
        ...     "shards", CaptioningSample, field_map={"image": "jpg", "caption": "txt"}, training=False
        ... )
        >>> next(captions.samples()).caption[:12]
        b'a picture of'
    """

    default_decoder: ClassVar[SampleDecoder | None] = None


class DefaultDecoderWebdataset(DefaultGenericWebdataset):
    """A `DefaultGenericWebdataset` whose parts are decoded, by default with the decoder of `MediaDataset`."""

    default_decoder = DEFAULT_DECODER


class CaptioningWebdataset(DefaultDecoderWebdataset):
    """Samples of type `CaptioningSample`; arguments as for `DefaultDecoderWebdataset`.

    Example:
        >>> captions = headrace.compat.energon.CaptioningWebdataset(
        ...     "shards", field_map={"image": "jpg", "caption": "txt"}, training=False
        ... )
        >>> next(captions.samples()).caption[:12]
        'a picture of'
    """

    sample_type = CaptioningSample


class ImageWebdataset(DefaultDecoderWebdataset):
    """Samples of type `ImageSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = ImageSample


class OCRWebdataset(DefaultDecoderWebdataset):
    """Samples of type `OCRSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = OCRSample


class VQAWebdataset(DefaultDecoderWebdataset):
    """Samples of type `VQASample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = VQASample


class ImageClassificationWebdataset(DefaultDecoderWebdataset):
    """Samples of type `ImageClassificationSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = ImageClassificationSample


class InterleavedWebdataset(DefaultDecoderWebdataset):
    """Samples of type `InterleavedSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = InterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdataset):
    """Samples of type `MultiChoiceVQASample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = MultiChoiceVQASample


class SimilarityInterleavedWebdataset(DefaultDecoderWebdataset):
    """Samples of type `SimilarityInterleavedSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = SimilarityInterleavedSample


class TextWebdataset(DefaultDecoderWebdataset):
    """Samples of type `TextSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = TextSample


class VidQAWebdataset(DefaultDecoderWebdataset):
    """Samples of type `VidQASample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = VidQASample


class VQAOCRWebdataset(DefaultDecoderWebdataset):
    """Samples of type `VQAOCRSample`; arguments as for `DefaultDecoderWebdataset`."""

    sample_type = VQAOCRSample


class CrudeWebdataset(BaseWebdataset):
    """Samples that are dicts of decoded parts, or what one of ``cookers=`` makes of these dicts.

    Example:
        >>> crude = headrace.compat.energon.CrudeWebdataset("shards", part_filter={"txt"}, training=False)
        >>> next(crude.samples())["txt"][:12]
        'a picture of'
    """


class _Stream(IterableDataset[Any]):
    """The samples of one rank, or in a worker process its share of them."""

    def __init__(self, samples: BaseCoreDataset, rank: int, world_size: int, first: int) -> None:
        self._samples = samples
        self._begin = first + rank
        self._every = world_size

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return self._samples.samples(first=self._begin + worker * self._every, every=self._every * workers)
