"""`EncodedDataset`: media samples under a task encoder that makes one output of each, for a dataset or a whole mix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.datasets.dataset import SampleWatch
from headrace.datasets.encoded.samples import Encoder, EncoderDataset, Media, RestoreKey, keyed, restore_key_of
from headrace.datasets.media import MediaDataset
from headrace.datasets.media.dataset import OfCrude
from headrace.datasets.origins import Origins
from headrace.datasets.recipes import Maker, named_thing
from headrace.encoders import (
    EncoderPipeline,
    ErrorPolicy,
    TaskEncoder,
    bound_cookers,
    checked_encoder,
)
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.recipe import OURS
from headrace.stores.store import Extents


class EncodedDataset(EncoderDataset):
    """Sample i is sample i of a dataset, cooked and encoded by a task encoder, whose hooks also make the batches.

    An address is the number of the sample together with bits of the epoch's key, so that a hook draws other random
    numbers in every epoch, but the same ones on any rank or worker and after a resume. Hooks see it as
    ``current_sample_index``, and the restore key of an output holds it, so that `restore_sample` needs nothing else.
    ``batch`` and ``encode_batch`` run for each micro-batch, with the place of its first sample.

    Args:
        dataset: a dataset of media; crude samples without a cooker are cooked by the cookers of the encoder.
        encoder: the task encoder. It must not use generators, packing or grouping, since the number of outputs has to
            be known.
        seed: seed of the random numbers in hooks, in addition to that of the order.
        errors: what happens when samples cannot be made; by default what the dataset says.

    Raises:
        ConfigError: not a dataset of media; what `EncoderPipeline` refuses; an encoder that may return another number
            of outputs than one; ``cook_crude_sample`` for samples that have a cooker.

    Example:
        >>> dataset = headrace.MediaDataset(headrace.open("shards"))
        >>> encoded = headrace.datasets.EncodedDataset(dataset, headrace.encoders.DefaultTaskEncoder())
        >>> sample = encoded[3]
        >>> encoded.restore_sample(sample["__restore_key__"])["txt"] == sample["txt"]
        True
    """

    key_kind = "Encoded"
    batch_words = ("a fixed source", "replace samples with substitutes, or use a framed source")

    def __init__(
        self,
        dataset: Media,
        encoder: Encoder,
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
    ) -> None:
        pipeline = EncoderPipeline(encoder)
        if pipeline.not_fixed:
            raise ConfigError(
                f"{type(encoder).__name__}: {', '.join(pipeline.not_fixed)}, so that a sample may have another"
                " number of outputs than one, and their places are not known beforehand. EncodedDataset is a fixed"
                " source: use a measured one, where the counts are stored once, or a framed one, where they are found"
                " while running"
            )
        own = errors or getattr(dataset, "errors", None)
        super().__init__(dataset, pipeline, seed=seed, errors=own, may_skip=False)

    @classmethod
    def open(
        cls,
        path: Any,
        encoder: Encoder,
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        **options: Any,
    ) -> EncodedDataset:
        """Open what lies at a path, and apply the decoder, the cookers and the hooks of a task encoder to it.

        Args:
            path: see `MediaDataset.open`.
            encoder, seed, errors: see the class.
            options: those of `MediaDataset.open`, including ``aux``.

        Raises:
            StoreError, ConfigError: as `MediaDataset.open` and the class.
        """
        checked_encoder(encoder)
        return cls(MediaDataset.open(path, **opening_options(encoder, options)), encoder, seed=seed, errors=errors)

    @property
    def collated_by(self) -> dict[str, Any]:
        """The encoder, whose hooks make the batches."""
        return {"kind": "encoded samples", **self.pipeline.recipe}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: see `SampleEncoder.addresses`."""
        return self.outputs.addresses(indices, keys)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples, without the bits of the epoch."""
        return self.outputs.indices(addresses)

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read samples; see `SampleDataset.makers`. Each function cooks and encodes one."""
        makers = self.outputs.makers(addresses, watch)
        return [partial(self._only, address, make) for address, make in zip(addresses.tolist(), makers, strict=True)]

    def _only(self, address: int, make: Callable[[], list[Output]]) -> Any:
        outputs = make()
        if len(outputs) != 1:
            index = int(self.indices(np.array([address], dtype=np.int64))[0])
            raise ConfigError(
                f"{type(self.encoder).__name__} returned {len(outputs)} outputs for sample {index:,} of"
                f" {self.store.path}; EncodedDataset is a fixed source and needs exactly one: return one, or use a"
                " measured or a framed source"
            )
        sample = outputs[0].sample
        return keyed(sample, RestoreKey("Encoded", restore_key_of(sample), address), type(self.encoder).__name__)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the origins of the original samples; a substitute shows in the restore key and in ``faults``."""
        return self.dataset.origins(self.indices(addresses))

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of the samples of the dataset; those of substitutes are not known beforehand."""
        return self.dataset.extents(self.indices(addresses))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; the encoder is recorded by name and version."""
        return {
            "kind": "encoded",
            "version": 1,
            "dataset": self.dataset.recipe,
            **self.pipeline.recipe,
            "seed": self.seed,
            "on_error": self.outputs.errors.on_error,
        }

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker) -> EncodedDataset:
        """Return the dataset of a recipe; its task encoder is imported, and made without arguments."""
        name = recipe["encoder"]
        encoder = named_thing(name) if name.startswith(OURS) else maker.named(name, "task encoder")
        if name.startswith(OURS) and not (isinstance(encoder, type) and issubclass(encoder, TaskEncoder)):
            # Any other name would be called, whatever it is, without the code being trusted.
            raise ConfigError(
                f"task encoder is {name}, which is {encoder!r:.80}; expected a class of Headrace derived from "
                "TaskEncoder, such as DefaultTaskEncoder"
            )
        dataset = maker.dataset(recipe["dataset"])
        try:
            made = encoder()
        except TypeError as error:
            raise ConfigError(
                f"the task encoder {name} needs arguments, which the file does not hold: {error}"
            ) from error
        return cls(dataset, made, seed=recipe["seed"], errors=ErrorPolicy(on_error=recipe["on_error"]))

    def describe(self) -> str:
        """Describe dataset and encoder in one line."""
        return f"{self.dataset.describe()}, encoded by {type(self.encoder).__name__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), seed=self.seed, errors=self.errors), (self.dataset, self.encoder)


def opening_options(encoder: Encoder, options: dict[str, Any]) -> dict[str, Any]:
    """Return options for `MediaDataset.open`: decoder and cookers of an encoder, unless ``options`` set them."""
    return {"decoder": encoder.decoder, "cookers": OfCrude(bound_cookers(encoder)), **options}
