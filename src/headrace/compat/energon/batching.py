"""What lies at a path, opened as the data of a run, and what a task encoder makes of its samples."""

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
from headrace.plan.framed import Form, GroupBatches, Singles


class Batching:
    """How samples become batches, as the arguments of `get_train_dataset` say it.

    Args:
        task_encoder, errors, packing_buffer_size, framed, num_lanes, batch_size: see there.
        seed: of the random numbers in hooks.

    Raises:
        ConfigError: not a task encoder; one whose hooks contradict each other.
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
        """Whether a sample may have another number of outputs than one."""
        return self.encoder is not None and (self._asked or bool(EncoderPipeline(self.encoder).not_fixed))

    def opening(self, options: dict[str, Any]) -> dict[str, Any]:
        """The decoder and the cookers of the encoder, below the options that are given."""
        return options if self.encoder is None else opening_options(self.encoder, options)

    def sources(self, options: dict[str, Any]) -> SourceOptions:
        """The same for the datasets of a metadataset, each with the encoder around it."""
        if self.encoder is None or self.is_framed:
            return SourceOptions(**self.opening(options))
        return EncodedSources(**self.opening(options), encoder=self.encoder, seed=self.seed, errors=self.errors)

    def around(self, data: Dataset | Mix) -> Dataset | Mix:
        """The same mix with the encoder around each dataset, unless it is for units."""
        if self.encoder is None or self.is_framed:
            return data
        return encoded(data, self.encoder, seed=self.seed, errors=self.errors)

    def units(self, data: Dataset | Mix) -> Framed | None:
        """What is made into units; None where every sample has one output.

        Packs where there is a buffer for them, as with Energon; else groups, or the outputs.

        Raises:
            ConfigError: a buffer, and not both hooks that pack; what `Framed` refuses; lanes of what has none.
        """
        if self.encoder is None or not self.is_framed:
            if self.num_lanes is not None:
                raise ConfigError(
                    f"num_lanes is {self.num_lanes}, and every sample has one output here, which takes no lanes; leave"
                    " it out"
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

    def _form(self, pipeline: EncoderPipeline) -> Form | None:
        if self.packing_buffer_size is None:
            return GroupBatches(self.batch_size) if pipeline.groups else Singles()
        hooks = ("select_samples_to_pack", "pack_selected_samples")
        if not all(pipeline.hooks[name].is_overridden for name in hooks):
            raise ConfigError(
                f"packing_buffer_size is {self.packing_buffer_size:,}, and {type(self.encoder).__name__} does not"
                f" override {' and '.join(hooks)}: override both, or leave it out; to pack by lengths, give"
                " Framed(data, encoder, form=BestFit(4096)) in the place of the path"
            )
        return None

    def only_lanes(self, data: Framed, options: dict[str, Any]) -> Framed:
        """Units that are made as they say themselves. Raises ConfigError: the arguments say it, too."""
        if found := [*options, *self._given]:
            raise ConfigError(
                f"{', '.join(found)}: says how units are made, and what was given in the place of a path says it"
                f" already ({data.describe()}); leave it out"
            )
        return data

    def samples(self, data: Dataset | Mix) -> int:
        """How many a batch has. Raises ConfigError: nothing says it."""
        if self.batch_size is not None:
            return self.batch_size
        # Facts that were measured can have made batches of a group already.
        if any(dataset.is_group_batches for dataset in named_datasets(data).values()):
            return 1
        raise ConfigError(
            "batch_size is None, and nothing else says how many samples a batch has, as batch_group_criterion does; "
            "give a number, 1 for single samples"
        )


def over(data: Framed, part: Dataset | Mix) -> Framed:
    """The same units of other data."""
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
    """The data, and the units that are made of them; None where samples are fed as they are."""

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
    """A path opened to train on or to validate with; data as they are.

    Args:
        given: a path or data.
        split_part: of a dataset of Energon's or a metadataset.
        batching: what a task encoder does with them.
        training: mix; else one after another.
        global_batch_size: of the run, for metadatasets that count in steps.
        options: of `MediaDataset.open`, and ``subset``; of a metadataset those of `SourceOptions`.

    Raises:
        ConfigError: options that do not go with it; what opening it raises.
        StoreError: nothing is there, or it is malformed.
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
            raise ConfigError(f"{', '.join(options)}: says how a path is opened, and the data is open already")
        return batching.around(given)
    if Path(given).suffix in (".yaml", ".yml"):
        known = SourceOptions.__struct_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(
                f"{', '.join(unknown)}: of a metadataset its file says it; allowed here are {', '.join(known)}"
            )
        metadataset = load_dataset(given)
        opening = batching.sources(options)
        if training:
            return metadataset.train(split_part, options=opening, global_batch_size=global_batch_size)
        return metadataset.validation(split_part, options=opening)
    subset = options.pop("subset", None)
    # Plain shards and JSONL files are of one part, whatever it is called.
    part = split_part if Path(given, ".nv-meta").is_dir() else None
    dataset = MediaDataset.open(given, part, **batching.opening(options))
    return batching.around(dataset if subset is None else Subset(dataset, subset))


def parts(data: Dataset | Mix) -> list[Dataset | Mix]:
    """The datasets that are one after another, depth first, each with the range or the limit around it.

    Raises:
        ConfigError: something else than `Concat` is around several.
    """
    if isinstance(data, Concat):
        return [part for child in data.children.values() for part in parts(child)]
    if len(named_datasets(data)) > 1:
        raise ConfigError(f"{data!r}: is of several datasets together, which cannot be validated with one by one")
    return [data]
