"""The `EnergonDataset` that `get_train_dataset` and `get_val_dataset` return.

`opened` opens the data at a path for a run; `Batching` applies a task encoder to them.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal

import msgspec

from headrace.compat.energon.batches import (
    ADDED,
    FORM,
    LEFT_OUT_BY,
    MadeDataset,
    MadeFramed,
    Unbatched,
    Unpacked,
    as_made,
    typed,
    where_skipped,
    without_form,
)
from headrace.compat.energon.caching import LoaderCache
from headrace.compat.energon.factories import described
from headrace.compat.energon.own_order import OwnOrder
from headrace.compat.energon.workers import WorkerConfig, warn_no_effect
from headrace.config import NotNegative, Positive, check_fields
from headrace.datasets import Concat, Dataset, Framed, FramedRun, MediaDataset, Mix, Run, Subset
from headrace.datasets.encoded.dataset import opening_options
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.metadataset import JoinedSource, NamedSource, SourceOptions, load_dataset
from headrace.datasets.mix import length_of, named_datasets
from headrace.encoders import AugmentTaskEncoder, DefaultTaskEncoder, EncoderPipeline, ErrorPolicy, TaskEncoder
from headrace.errors import ConfigError
from headrace.io import path_at
from headrace.loader import Reading
from headrace.loader.restoring import restored
from headrace.plan import BatchSchedule
from headrace.plan.framed import FramedForm, Singles
from headrace.plan.measured import Grouping
from headrace.samples.media import SampleDecoder

_log = logging.getLogger("headrace")

Tail = Literal["spread", "pad", "drop"]

FOR_EVER = 1 << 61
"""The number of samples of an endless run over a finite mix: more than any run will reach."""


class EnergonDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Samples and their order, to be passed to `get_loader`.

    `get_train_dataset` and `get_val_dataset` return it; it is not constructed directly.

    Attributes:
        stream: the samples, one after another. A state must agree with the recipe of the stream, whose steps are single
            samples, so that it does not depend on ranks and batches.
        worker_config: rank and workers, as they were when the dataset was made.
        batch_size: samples of a batch on this rank.
        training: whether one pass follows another. In validation each iteration is the first pass again.
        pass_samples: samples of one pass; None if it has no end.
        tail: what happens to a last batch that not all ranks can fill.
        virtual_epoch_length: batches of this rank in an iteration; 0 means all.
        limit: batches of this rank in an iteration, for validation with units, whose number is not known in advance.
        global_batch_size: the global batch size, if the user gave one.
        own_order: Energon's own order, which replaces that of the stream.
        framed: the units made from the stream, if a task encoder does not make one output of each sample. Then batches
            consist of units.
        sample_type: the type of all samples, if no task encoder makes the batches: batches are of this type.
        cache: the cache of cookers, which the loader may replace.
        repeats: whether one pass follows another within an iteration, as `RepeatDataset` asks.
        most_batches: the most batches of this rank in an iteration, as `LimitDataset` asks; None for all.
        restarts: whether each iteration begins with the first batch; otherwise it goes on where the last one stopped.
        again: makes the same passes over other data, and units of them.
        given_config: the user's own ``worker_config``, which may be changed later.
    """

    stream: Run
    worker_config: WorkerConfig
    batch_size: Positive
    training: bool
    pass_samples: int | None = None
    tail: Tail = "spread"
    virtual_epoch_length: NotNegative = 0
    global_batch_size: BatchSchedule | None = None
    own_order: OwnOrder | None = None
    framed: FramedRun | None = None
    limit: int | None = None
    sample_type: type[Any] | None = None
    cache: LoaderCache | None = None
    repeats: bool = False
    most_batches: int | None = None
    restarts: bool = False
    again: Callable[[Dataset | Mix, Framed | None], EnergonDataset]
    given_config: WorkerConfig | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range or an unknown tail."""
        if self.given_config is None:
            self.worker_config.check()
            msgspec.structs.force_setattr(self, "given_config", self.worker_config)
            msgspec.structs.force_setattr(self, "worker_config", copy.copy(self.worker_config))
        check_fields(self)
        if self.tail == "drop" and self.pass_samples is not None and self.pass_samples < self.together:
            raise ConfigError(
                f"{self.pass_samples:,} samples are less than a batch of {self.batch_size:,} for each of "
                f"{self.worker_config.world_size:,} ranks, and an incomplete last batch is dropped; choose "
                "tail='spread' or 'pad'"
            )

    @property
    def together(self) -> int:
        """The number of samples that all ranks take at a time."""
        return self.batch_size * self.worker_config.world_size

    def pass_end(self, position: int) -> int | None:
        """The end of the pass that a position is in; None if it has no end."""
        if self.pass_samples is None:
            return None
        return self.pass_samples * (position // self.pass_samples + 1 if self.training else 1)

    def run(self, position: int) -> Run:
        """The run from a position to the end of its pass.

        A step is one batch of every rank, or the global batch that the user gave. The samples before the position form
        a single step, so it does not matter how many ranks they were assigned to.
        """
        end = self.pass_end(position)
        if end is not None and self.tail != "spread":
            left = end - position
            end = position + self.together * (
                left // self.together if self.tail == "drop" else -(-left // self.together)
            )
        if end is None and isinstance(self.stream.data, Mix) and self.stream.data.num_samples is not None:
            end = FOR_EVER
        schedule = self.global_batch_size
        if schedule is None:
            schedule = BatchSchedule.of([(0, position), (1, self.together)] if position else self.together)
        return _PassRun(self, position, global_batch_size=schedule, samples=end)

    def ends_at(self, position: int) -> tuple[int, ...]:
        """Where slots are drawn to at a position before which all samples were delivered.

        It is the position itself if it lies within a step of the stream, otherwise nothing; see `Cursor`.
        """
        schedule = self.stream.schedule
        return () if schedule.begin(schedule.step_of(position)) == position else (position,)

    def describe(self) -> str:
        """The mix as a tree, the order and the batches."""
        if self.framed is not None:
            return self.framed.describe(world_size=self.worker_config.world_size, micro_batch_size=self.batch_size)
        return self.run(0).describe()

    def config(self) -> dict[str, Any]:
        """The JSON-safe recipe that decides which samples come when; a state must agree with it."""
        recipe = (self.own_order or self.framed or self.stream).recipe
        found: dict[str, Any] = msgspec.to_builtins(recipe)
        return found

    def restore_sample(self, key: Any) -> Any:
        """Make a delivered sample or batch again; see `EnergonLoader.restore_sample`."""
        return self.restored(key, self.batch_of)

    def restored(self, key: Any, form: Callable[[dict[str, Any]], Any]) -> Any:
        """Make a sample again, or the columns of a batch, which are put into a ``form``."""
        found = restored(self.framed or self.stream, key, by_position=self.own_order is None)
        is_batch = not isinstance(key, tuple | int) and isinstance(found, dict)
        return form(found) if is_batch else found

    @property
    def unrestorable(self) -> str | None:
        """The first hook that is not marked ``@stateless``; None if all are, so that samples can be restored."""
        return self.framed.unrestorable if self.framed is not None else self.stream.traits.unrestorable

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` can make samples again."""
        return self.unrestorable is None

    def batch_of(self, columns: dict[str, Any]) -> Any:
        """The batch that the task encoder made, from the columns that a loader moves.

        Without a task encoder it is of the type of the samples. Batches of data that are not media stay columns.
        """
        if FORM in columns:
            return as_made(columns)
        if self.sample_type is None:
            return columns
        if issubclass(self.sample_type, dict):
            return {name: value for name, value in columns.items() if name not in ADDED}
        return typed(columns, self.sample_type)

    def columns_of(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The same batch as columns, with the positions of its samples."""
        return without_form(columns)

    @property
    def num_samples(self) -> int:
        """The samples of one pass over all ranks; raises TypeError for a blend that has no length."""
        samples = self.pass_samples if self.pass_samples is not None else length_of(self.stream.data)
        if samples is not None:
            return samples
        return sum(map(len, self.stream.datasets))

    def __len__(self) -> int:
        """The batches of this rank in an iteration of the loader; for endless training, in one pass over all samples.

        As in Energon, a blend by weights counts each dataset once, and an encoder counts as making one output a sample.
        """
        if self.virtual_epoch_length:
            batches = self.virtual_epoch_length
        elif self.own_order is not None:
            batches = self.own_order.num_batches(self.worker_config.rank)
        else:
            left = self.num_samples
            batches = left // self.together if self.tail == "drop" else -(-left // self.together)
            batches = batches if self.limit is None else min(batches, self.limit)
        most = batches if self.most_batches is None else self.most_batches
        return most if self.repeats else min(batches, most)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches in this process, without workers; a loader reads ahead and has a state."""
        return iter(self.loader())

    def loader(self) -> Any:
        """A loader that reads in this process, without workers."""
        return resolve_name("headrace.compat.energon.loader:loader_of")(self, Reading(num_threads=0))

    def __repr__(self) -> str:
        kind = "training" if self.training else "validation"
        units = "" if self.framed is None else f" {self.framed.data.describe()},"
        return f"<EnergonDataset: {kind}, batches of {self.batch_size:,},{units} {self.stream.data!r}>"


class _PassRun(Run):
    """A pass from a position on. Slots of its last step are drawn up to its end, even if these ranks drop some."""

    def __init__(
        self, dataset: EnergonDataset, position: int, *, global_batch_size: BatchSchedule | int, samples: int | None
    ) -> None:
        stream = dataset.stream
        super().__init__(stream.data, global_batch_size=global_batch_size, order=stream.order, samples=samples)
        self._drawn_end = dataset.pass_end(position) if dataset.tail == "drop" else self.length

    @property
    def drawn_end(self) -> int | None:
        """The position up to which slots are drawn."""
        return self._drawn_end


class Batching:
    """How samples become batches, according to the arguments of `get_train_dataset`.

    Args:
        task_encoder, errors, packing_buffer_size, framed, num_lanes, batch_size: see `get_train_dataset`.
        worker_config: has the seed of the random numbers in hooks, and a handler of errors.
        own_order: whether the order is Energon's own.

    Raises:
        ConfigError: it is not a task encoder, or its hooks contradict each other.
    """

    def __init__(
        self,
        task_encoder: Encoder | None,
        worker_config: WorkerConfig,
        *,
        batch_size: int | None,
        packing_buffer_size: int | None,
        errors: ErrorPolicy | None,
        framed: bool,
        num_lanes: int | None,
        own_order: bool,
    ) -> None:
        errors = worker_config.policy(errors)
        self.seed = worker_config.seed_offset
        self.batch_size = batch_size
        self.packing_buffer_size = packing_buffer_size
        self.errors = errors
        self.num_lanes = num_lanes
        self._asked = framed or packing_buffer_size is not None
        self.cache = LoaderCache()
        given = {"task_encoder": task_encoder, "packing_buffer_size": packing_buffer_size, "errors": errors}
        self._given = [name for name, value in given.items() if value is not None] + ["framed"] * framed
        # A plain `DefaultTaskEncoder()` changes nothing.
        is_plain = type(task_encoder) is DefaultTaskEncoder and vars(task_encoder) == vars(DefaultTaskEncoder())
        self.encoder: Encoder | None = None
        if task_encoder is not None and not is_plain:
            self.encoder = EncoderPipeline(task_encoder).encoder
        if self.encoder is None and (self._asked or errors is not None):
            self.encoder = DefaultTaskEncoder()
        if self.encoder is not None and own_order and packing_buffer_size is None:
            # Energon packs only with a buffer; here hooks that pack need a framed source, which has its own order.
            hooks = EncoderPipeline(self.encoder).hooks
            if hooks["select_samples_to_pack"].is_overridden or hooks["pack_selected_samples"].is_overridden:
                self.encoder = Unpacked(self.encoder)
        if task_encoder is not None:
            refuse_builders(task_encoder)
            give_cache(task_encoder, self.cache)

    def settle(self, given: Any) -> None:
        """Decide what ``batch_size=None`` means for what is given: a group says its size, or nothing is batched."""
        if self.batch_size is not None or isinstance(given, Framed):
            return
        if self.encoder is not None and EncoderPipeline(self.encoder).groups:
            return
        if isinstance(given, Dataset | Mix):
            # A measured dataset may already consist of batches of groups; tokens are batched in any case.
            datasets = named_datasets(given).values()
            if not all(isinstance(dataset, MediaDataset | JoinedMediaDataset) for dataset in datasets):
                return
        self.encoder = Unbatched(DefaultTaskEncoder() if self.encoder is None else self.encoder)
        self.batch_size = 1

    @cached_property
    def is_framed(self) -> bool:
        """Whether a sample may have any number of outputs, so that a framed source is needed."""
        return self.encoder is not None and (self._asked or bool(EncoderPipeline(self.encoder).not_fixed))

    def opening(self, options: dict[str, Any]) -> dict[str, Any]:
        """The opening options with the encoder's decoder and cookers added; the given options take precedence."""
        options = {"cache_pool": self.cache, **options}
        return options if self.encoder is None else opening_options(self.encoder, options)

    def around(self, data: Dataset | Mix) -> Dataset | Mix:
        """The same mix with each dataset wrapped by the encoder, unless the encoder is framed."""
        if self.encoder is None or self.is_framed:
            return data
        return encoded(data, self.encoder, self)

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
            self._check_skips(data)
            return None
        return MadeFramed(
            data,
            self.encoder,
            form=self._form(EncoderPipeline(self.encoder)),
            frame_positions=self.packing_buffer_size,
            seed=self.seed,
            errors=self.errors,
        )

    def _check_skips(self, data: Dataset | Mix) -> None:
        """Raise ConfigError if the encoder may raise `SkipSample`, and no other sample may stand in."""
        policies = [getattr(dataset, "errors", None) for dataset in named_datasets(data).values()]
        if self.encoder is None or all(policy and policy.on_error == "substitute" for policy in policies):
            return
        if place := where_skipped(self.encoder):
            raise ConfigError(
                f"{place} raises SkipSample, but here each sample has one output, whose place is fixed:"
                f" {LEFT_OUT_BY}; or pass"
                " errors=ErrorPolicy(on_error='substitute'), by which another sample stands in"
            )

    def _form(self, pipeline: EncoderPipeline) -> FramedForm | None:
        if self.packing_buffer_size is None:
            return Grouping(size=self.batch_size) if pipeline.groups else Singles()
        hooks = ("select_samples_to_pack", "pack_selected_samples")
        if not all(pipeline.hooks[name].is_overridden for name in hooks):
            raise ConfigError(
                f"packing_buffer_size is {self.packing_buffer_size:,}, but {type(self.encoder).__name__} does not"
                f" override {' and '.join(hooks)}; override both, or leave packing_buffer_size out. To pack by lengths,"
                " pass Framed(data, encoder, form=headrace.Packing(seq_len=4096)) instead of the path"
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

    def samples(self, data: Dataset | Mix, units: Framed | None = None) -> int:
        """The number of samples, or units, in a batch. Raises ConfigError if nothing determines it."""
        if units is not None and units.is_group_batches:
            return 1
        if self.batch_size is not None:
            return self.batch_size
        # A measured dataset may already consist of batches of groups.
        if any(dataset.traits.is_group_batches for dataset in named_datasets(data).values()):
            return 1
        raise ConfigError(
            "batch_size is None, and nothing else says how many samples a batch has, as batch_group_criterion would; "
            "give a number, 1 for single samples"
        )


def encoded(data: Dataset | Mix, encoder: Encoder, batching: Batching) -> Dataset | Mix:
    """The same mix with the encoder around each dataset."""
    wrap = partial(MadeDataset, encoder=encoder, seed=batching.seed, errors=batching.errors)
    return data.around(wrap) if isinstance(data, Mix) else wrap(data)


def over(data: Framed, part: Dataset | Mix) -> Framed:
    """The same framed source over other data."""
    found = copy.copy(data)
    found.data = part
    found.unrestorable = found.sources(named_datasets(part).items()).unrestorable
    return found


PathOrData = str | os.PathLike[str] | Mapping[str, Any] | Dataset | Mix | Framed


def opened(
    given: PathOrData,
    split_part: str,
    batching: Batching,
    *,
    training: bool,
    global_batch_size: Any,
    options: dict[str, Any],
) -> tuple[Dataset | Mix, Framed | None]:
    """Open a path for training or validation; data that are open already are used as they are.

    With the data comes the framed source over them; None if samples are fed as they are.

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
        return given.data, batching.only_lanes(given, options)
    options = energon_options(options)
    batching.settle(given)
    data = _data(given, split_part, batching, training=training, global_batch_size=global_batch_size, options=options)
    if batching.encoder is None and not is_of_one_type(data):
        data = encoded(data, DefaultTaskEncoder(), batching)
    warn_unused_cookers(batching.encoder, data)
    return data, batching.units(data)


def is_of_one_type(data: Dataset | Mix) -> bool:
    """Whether batches are made without a task encoder: of plain samples of one type, of crude ones, or of no media."""
    datasets = list(named_datasets(data).values())
    if not all(isinstance(dataset, MediaDataset | JoinedMediaDataset) for dataset in datasets):
        return True
    return common_type(data) is not None


def common_type(data: Dataset | Mix) -> type[Any] | None:
    """The type of all samples, if they are plain: a field map makes them, and neither cooker, joiner nor encoder."""
    kinds: set[type[Any]] = set()
    for dataset in named_datasets(data).values():
        if not isinstance(dataset, MediaDataset) or dataset.cooker is not None:
            return None
        kinds.add(dataset.mapper.sample_type)
    return kinds.pop() if len(kinds) == 1 else None


def warn_unused_cookers(encoder: Encoder | None, data: Dataset | Mix) -> None:
    """Warn if an encoder has cookers, and no dataset is crude, so that none is called."""
    if encoder is None or not encoder.cookers:
        return
    found = []
    for dataset in named_datasets(data).values():
        inner: Any = getattr(dataset, "dataset", dataset)
        for part in getattr(inner, "parts", (inner,)):
            mapper = getattr(part, "mapper", None)
            if mapper is None or mapper.is_crude:
                return
            found.append(f"{part.store.path} ({mapper.sample_type.__name__})")
    if found:
        _log.warning(
            "%s has cookers, which are for crude samples, but every dataset says what its samples are, so that none is"
            " called: %s; set __class__: CrudeWebdataset in dataset.yaml, or leave the cookers out",
            type(encoder).__name__,
            ", ".join(found),
        )


_BUILDERS: Final = (
    "build_batch",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_train_datasets",
    "build_val_datasets",
)


def refuse_builders(encoder: Encoder) -> None:
    """Raise ConfigError for an encoder that overrides how Energon assembles its iterators, which nothing here calls."""
    if found := [name for name in _BUILDERS if hasattr(encoder, name)]:
        raise ConfigError(
            f"{type(encoder).__name__} overrides {', '.join(found)}, by which Energon assembles its iterators; there"
            " are none here, so it would not be called: override the hooks instead (encode_sample, batch,"
            " select_samples_to_pack, ...), and mix datasets in a metadataset or with BlendDataset"
        )


def give_cache(encoder: Encoder, cache: LoaderCache) -> None:
    """Let the hooks of an encoder find the cache of its loader as ``self.cache``."""
    while True:
        if getattr(type(encoder), "cache", None) is TaskEncoder.cache:
            encoder.cache = cache
        if not isinstance(encoder, AugmentTaskEncoder):
            return
        encoder = encoder._task_encoder


_DECODER_OPTIONS: Final = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


def energon_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with those that only Energon has in the words of `MediaDataset.open`.

    Raises:
        ConfigError: a decoder and options of one are both given.
    """
    found = dict(options)
    warn_no_effect(
        "get_train_dataset", {name: found.pop(name, None) for name in ("handler", "ignore_decoder_errors")}, 6
    )
    decoding = {name: found.pop(name) for name in _DECODER_OPTIONS if name in found}
    is_decoded = found.pop("auto_decode", True)
    if (decoding or not is_decoded) and "decoder" in found:
        raise ConfigError(f"decoder: is given, and so are {', '.join(decoding) or 'auto_decode'}; pass one of them")
    if not is_decoded:
        found["decoder"] = None
    elif decoding:
        found["decoder"] = SampleDecoder(**decoding)
    return found


def _data(
    given: str | os.PathLike[str] | Mapping[str, Any] | Dataset | Mix,
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
    says_types = isinstance(given, Mapping) or _says_types(given, options.get("dataset_config"))
    sample_type = options.pop("sample_type", None) if says_types else None
    if isinstance(given, Mapping) or Path(given).suffix in (".yaml", ".yml"):
        known = SourceOptions.__struct_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(
                f"{', '.join(unknown)}: cannot be set for a metadataset, whose file says it; allowed here are"
                f" {', '.join(known)}"
            )
        metadataset = load_dataset(given)
        sources = SourceOptions(**batching.opening({**options, "open": partial(_of_source, options=options)}))
        if training:
            data = metadataset.train(split_part, options=sources, global_batch_size=global_batch_size)
        else:
            data = metadataset.validation(split_part, options=sources)
        _check_type(data, sample_type)
        return batching.around(data)
    subset = options.pop("subset", None)
    options.pop("split_part", None)
    # Plain shards and JSONL files have only one part, whatever it is called.
    part = split_part if (path_at(given) / ".nv-meta").is_dir() else None
    opening = batching.opening(options)
    dataset = _described(given, part, opening) or MediaDataset.open(given, part, **opening)
    _check_type(dataset, sample_type)
    return batching.around(dataset if subset is None else Subset(dataset, subset))


def _described(path: str | os.PathLike[str], part: str | None, opening: dict[str, Any]) -> MediaDataset | None:
    """Open the samples of a class of the user's, see `described`."""
    names = ("split_config", "dataset_config", "trust_code", "subflavors", "decoder")
    return described(path, part, **{name: opening[name] for name in names if name in opening})


def _of_source(source: NamedSource | JoinedSource, *, options: dict[str, Any]) -> Dataset | None:
    """Open a dataset of a metadataset whose ``dataset.yaml`` names a class of the user's; None for any other."""
    given = options.get("open")
    found: Dataset | None = None if given is None else given(source)
    if found is not None or not isinstance(source, NamedSource):
        return found
    files = {"split_config": source.split_config, "dataset_config": source.dataset_config}
    return _described(source.path, source.split_part, {**options, **files, "subflavors": source.subflavors})


def _says_types(path: str | os.PathLike[str], dataset_config: str | None) -> bool:
    """Whether a file says what the samples at a path are, so that ``sample_type`` only says what is expected."""
    return Path(path).suffix in (".yaml", ".yml") or Path(path, ".nv-meta", dataset_config or "dataset.yaml").exists()


def _check_type(data: Dataset | Mix, sample_type: type[Any] | None) -> None:
    """Raise ConfigError if samples are of another type than expected."""
    for name, dataset in named_datasets(data).items() if sample_type is not None else ():
        inner: Any = getattr(dataset, "dataset", dataset)
        kind = inner.mapper.sample_type if isinstance(inner, MediaDataset) else None
        if kind is not None and sample_type is not None and not issubclass(kind, sample_type):
            raise ConfigError(
                f"sample_type is {sample_type.__name__}, but the samples of {name or 'the dataset'} are"
                f" {kind.__name__}, as its dataset.yaml says: leave sample_type out, or change the file"
            )


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
