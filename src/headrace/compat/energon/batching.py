"""Opens the data at a path for a run, and applies a task encoder to them."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from headrace.datasets import Dataset, Framed, MediaDataset
from headrace.datasets.encoded.dataset import EncodedSources, encoded, encoder_or_none, opening_options
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.lengths import Concat, Subset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.datasets.mix import Mix, named_datasets
from headrace.encoders import DefaultTaskEncoder, EncoderPipeline, ErrorPolicy
from headrace.errors import ConfigError
from headrace.plan.framed import FramedForm, GroupBatches, Singles


class Batching:
    """How samples become batches, according to the arguments of `get_train_dataset`.

    Args:
        task_encoder, errors, packing_buffer_size, framed, num_lanes, batch_size: see `get_train_dataset`.
        seed: the seed of the random numbers in hooks.

    Raises:
        ConfigError: it is not a task encoder, or its hooks contradict each other.
    """

    def __init__(
        self,
        task_encoder: Encoder | None,
        *,
        seed: int,
        batch_size: int | None,
        packing_buffer_size: int | None,
        errors: ErrorPolicy | None,
        framed: bool,
        num_lanes: int | None,
    ) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self.packing_buffer_size = packing_buffer_size
        self.errors = errors
        self.num_lanes = num_lanes
        self._asked = framed or packing_buffer_size is not None
        given = {"task_encoder": task_encoder, "packing_buffer_size": packing_buffer_size, "errors": errors}
        self._given = [name for name, value in given.items() if value is not None] + ["framed"] * framed
        self.encoder = encoder_or_none(task_encoder)
        if self.encoder is None and (self._asked or errors is not None):
            self.encoder = DefaultTaskEncoder()

    @cached_property
    def is_framed(self) -> bool:
        """Whether a sample may have any number of outputs, so that a framed source is needed."""
        return self.encoder is not None and (self._asked or bool(EncoderPipeline(self.encoder).not_fixed))

    def opening(self, options: dict[str, Any]) -> dict[str, Any]:
        """The opening options with the encoder's decoder and cookers added; the given options take precedence."""
        return options if self.encoder is None else opening_options(self.encoder, options)

    def sources(self, options: dict[str, Any]) -> SourceOptions:
        """The opening options for the datasets of a metadataset, each wrapped by the encoder unless it is framed."""
        if self.encoder is None or self.is_framed:
            return SourceOptions(**self.opening(options))
        return EncodedSources(**self.opening(options), encoder=self.encoder, seed=self.seed, errors=self.errors)

    def around(self, data: Dataset | Mix) -> Dataset | Mix:
        """The same mix with each dataset wrapped by the encoder, unless the encoder is framed."""
        if self.encoder is None or self.is_framed:
            return data
        return encoded(data, self.encoder, seed=self.seed, errors=self.errors)

    def units(self, data: Dataset | Mix) -> Framed | None:
        """The framed source over the data; None if every sample has one output.

        Units are packs if there is a packing buffer, as in Energon. Otherwise they are groups, or single outputs.

        Raises:
            ConfigError: a packing buffer is given but not both packing hooks, lanes are given although the source is
                not framed, or as `Framed`.
        """
        if self.encoder is None or not self.is_framed:
            if self.num_lanes is not None:
                raise ConfigError(
                    f"num_lanes is {self.num_lanes}, but only framed sources have lanes, and here every sample has one"
                    " output; leave it out"
                )
            return None
        form = self._form(EncoderPipeline(self.encoder))
        return Framed(
            data,
            self.encoder,
            form=form,
            frame_positions=self.packing_buffer_size,
            batch_size=self.batch_size if isinstance(form, GroupBatches) else None,
            seed=self.seed,
            errors=self.errors,
        )

    def _form(self, pipeline: EncoderPipeline) -> FramedForm | None:
        if self.packing_buffer_size is None:
            return GroupBatches(self.batch_size) if pipeline.groups else Singles()
        hooks = ("select_samples_to_pack", "pack_selected_samples")
        if not all(pipeline.hooks[name].is_overridden for name in hooks):
            raise ConfigError(
                f"packing_buffer_size is {self.packing_buffer_size:,}, but {type(self.encoder).__name__} does not"
                f" override {' and '.join(hooks)}; override both, or leave packing_buffer_size out. To pack by lengths,"
                " pass Framed(data, encoder, form=BestFit(4096)) instead of the path"
            )
        return None

    def only_lanes(self, data: Framed, options: dict[str, Any]) -> Framed:
        """Return a framed source that the user made; raises ConfigError if arguments also say how to make it."""
        if found := [*options, *self._given]:
            raise ConfigError(
                f"{', '.join(found)}: says how units are made, but the framed source that was passed instead of a path"
                f" already says so ({data.describe()}); leave it out"
            )
        return data

    def samples(self, data: Dataset | Mix) -> int:
        """The number of samples in a batch. Raises ConfigError if nothing determines it."""
        if self.batch_size is not None:
            return self.batch_size
        # A measured dataset may already consist of batches of groups.
        if any(dataset.traits.is_group_batches for dataset in named_datasets(data).values()):
            return 1
        raise ConfigError(
            "batch_size is None, and nothing else says how many samples a batch has, as batch_group_criterion would; "
            "give a number, 1 for single samples"
        )


def over(data: Framed, part: Dataset | Mix) -> Framed:
    """The same framed source over other data."""
    return Framed(
        part,
        data.encoder,
        form=data.form,
        frame_positions=data.frame_positions,
        batch_size=data.batch_size,
        seed=data.seed,
        errors=data.errors,
        buffer_bytes=data.buffer_bytes,
        most_empty_positions=data.most_empty_positions,
    )


PathOrData = str | os.PathLike[str] | Dataset | Mix | Framed


class OpenedUnits(NamedTuple):
    """Open data, and the framed source over them; None if samples are fed as they are."""

    data: Dataset | Mix
    units: Framed | None


def opened(
    given: PathOrData,
    split_part: str,
    batching: Batching,
    *,
    training: bool,
    global_batch_size: Any,
    options: dict[str, Any],
) -> OpenedUnits:
    """Open a path for training or validation; data that are open already are used as they are.

    Args:
        given: a path, or open data.
        split_part: the part of an Energon dataset or a metadataset.
        batching: how samples become batches.
        training: whether to mix the datasets of a metadataset; otherwise they come one after another.
        global_batch_size: the global batch size of the run, for metadatasets that count in steps.
        options: those of `MediaDataset.open`, and ``subset``; for a metadataset those of `SourceOptions`.

    Raises:
        ConfigError: the options do not go with the data, or opening the data raises it.
        StoreError: nothing is there, or the data are malformed.
    """
    if isinstance(given, Framed):
        return OpenedUnits(given.data, batching.only_lanes(given, options))
    data = _data(given, split_part, batching, training=training, global_batch_size=global_batch_size, options=options)
    return OpenedUnits(data, batching.units(data))


def _data(
    given: str | os.PathLike[str] | Dataset | Mix,
    split_part: str,
    batching: Batching,
    *,
    training: bool,
    global_batch_size: Any,
    options: dict[str, Any],
) -> Dataset | Mix:
    if isinstance(given, Dataset | Mix):
        if options:
            raise ConfigError(
                f"{', '.join(options)}: says how to open a path, but the data are open already; leave it out"
            )
        return batching.around(given)
    if Path(given).suffix in (".yaml", ".yml"):
        known = SourceOptions.__struct_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(
                f"{', '.join(unknown)}: cannot be set for a metadataset, whose file says it; allowed here are"
                f" {', '.join(known)}"
            )
        metadataset = load_dataset(given)
        opening = batching.sources(options)
        if training:
            return metadataset.train(split_part, options=opening, global_batch_size=global_batch_size)
        return metadataset.validation(split_part, options=opening)
    subset = options.pop("subset", None)
    # Plain shards and JSONL files have only one part, whatever it is called.
    part = split_part if Path(given, ".nv-meta").is_dir() else None
    dataset = MediaDataset.open(given, part, **batching.opening(options))
    return batching.around(dataset if subset is None else Subset(dataset, subset))


def parts(data: Dataset | Mix) -> list[Dataset | Mix]:
    """The datasets that come one after another, depth first, each with the subset or limit around it.

    Raises:
        ConfigError: several datasets are combined by something other than `Concat`.
    """
    if isinstance(data, Concat):
        return [part for child in data.children.values() for part in parts(child)]
    if len(named_datasets(data)) > 1:
        raise ConfigError(f"{data!r}: combines several datasets, which cannot be used for validation one by one")
    return [data]
