"""`Framed`: a task encoder whose outputs are made into units while the run goes on.

`FramedSources` has the datasets under the task encoder in one process: it makes outputs of samples, and makes them
again from restore keys.

The forms of units, and the hooks that each needs, are those of framed and of measured sources:

    a unit is               form                                    hooks
    one output              Singles, ShuffleBuffer (framed)
    a batch of one group    Grouping                                batch_group_criterion
    a pack, by lengths      Packing                                 sample_length, pack_selected_samples
    a pack, as selected     Selected (framed)                       select_samples_to_pack, pack_selected_samples
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np

from headrace.datasets.dataset import Dataset, SampleWatch
from headrace.datasets.encoded.samples import (
    Encoder,
    Media,
    RestoreKey,
    SampleEncoder,
    columns_of,
    cooked,
    keyed,
    packed,
    restore_key_of,
)
from headrace.datasets.mix import Mix, named_datasets
from headrace.datasets.run import by_source
from headrace.encoders import EncoderPipeline, ErrorPolicy, Fault, HookFailure, checked_encoder
from headrace.encoders.pipeline import Output
from headrace.encoders.task_encoder import hooks_of
from headrace.errors import ConfigError, SkipSample
from headrace.plan import IntArray
from headrace.plan.framed import FramedForm, Selected, ShuffleBuffer, Singles
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing
from headrace.plan.recipe import recorded_name

MeasuredForm = Singles | Grouping | Packing
"""What makes the units of a measured source: all packs and groups are known, and the order of the run shuffles."""


def is_packs(form: FramedForm) -> bool:
    """Whether a unit is a pack of outputs."""
    return isinstance(form, Packing | Selected)


def is_groups(form: FramedForm) -> bool:
    """Whether a unit is a whole batch of outputs of one group."""
    return isinstance(form, Grouping)


def form_by_hooks(encoder: Encoder, *, is_measured: bool = False) -> FramedForm:
    """Return the form that the hooks of an encoder ask for. Raises ConfigError if they leave it open."""
    hooks = hooks_of(encoder)
    kind = type(encoder).__name__
    groups, packs = (hooks[name].is_overridden for name in ("batch_group_criterion", "pack_selected_samples"))
    if packs and (is_measured or not (groups or hooks["select_samples_to_pack"].is_overridden)):
        how = "" if is_measured else ", and does not override select_samples_to_pack"
        raise ConfigError(f"{kind} packs{how}: set the length of packs, form=headrace.Packing(seq_len=4096)")
    if groups and packs:
        raise ConfigError(
            f"{kind} overrides batch_group_criterion and pack_selected_samples: packs cannot be grouped; choose with"
            " form=, Grouping() for groups of outputs that are not packed, or remove one of the two hooks"
        )
    if packs:
        return Selected()
    return Grouping() if groups else Singles()


def check_form(form: FramedForm, pipeline: EncoderPipeline, *, is_measured: bool) -> None:
    """Check a form against the hooks of an encoder.

    Raises:
        ConfigError: the source cannot have the form, or an option of it; a hook that it needs is not overridden.
    """
    kind = type(pipeline.encoder).__name__
    allowed: Any = MeasuredForm if is_measured else FramedForm
    if not isinstance(form, allowed):
        names = ", ".join(one.__name__ for one in get_args(allowed))
        raise ConfigError(f"form is {form!r:.80}; expected {names}, or None")
    if is_measured and pipeline.packing and not isinstance(form, Packing):
        raise ConfigError(
            f"{kind} packs: set the length of packs, form=headrace.Packing(seq_len=4096); found form={form!r:.80}"
        )
    if isinstance(form, Packing):
        _check_packing(form, pipeline, kind, is_measured=is_measured)
    if isinstance(form, Grouping) and not pipeline.groups:
        raise ConfigError(
            f"Grouping needs groups: override {kind}.batch_group_criterion, which returns them, and measure again if"
            " the source is measured"
        )
    if isinstance(form, Grouping) and not is_measured and form != Grouping(size=form.size):
        raise ConfigError(f"the groups of a framed source have a size alone, and the rest is short; found {form}")
    if not is_measured and pipeline.hooks["encode_batch"].is_generator:
        raise ConfigError(
            f"{kind}.encode_batch is a generator: the number of its batches would move all later steps; return one"
            " batch, or yield several outputs of a sample in encode_sample, or of a pack in pack_selected_samples"
        )


def _check_packing(form: Packing, pipeline: EncoderPipeline, kind: str, *, is_measured: bool) -> None:
    """Raise ConfigError unless an encoder makes packs by lengths, and these hold whole outputs."""
    if not pipeline.packing:
        raise ConfigError(
            f"{kind} does not override pack_selected_samples, which makes a pack of the outputs chosen for it"
        )
    if not pipeline.hooks["sample_length"].is_overridden:
        raise ConfigError(f"Packing goes by lengths: override {kind}.sample_length, which returns a sample's length")
    if not is_measured and form != Packing(seq_len=form.seq_len, segment_multiple=form.segment_multiple):
        raise ConfigError(
            f"the packs of a framed source are best fit over a frame, with seq_len and segment_multiple alone; found"
            f" {form}"
        )
    if pipeline.groups and is_measured:
        raise ConfigError(
            f"{kind} packs and groups its packs, and measured sources do one of the two: use a framed source, or"
            " remove one of pack_selected_samples and batch_group_criterion"
        )
    if form.cuts or form.over_long not in ("error", "drop"):
        raise ConfigError(
            f"strategy={form.strategy!r}, over_long={form.over_long!r} cuts samples, and outputs of an encoder are"
            " packed whole: use over_long='error' or 'drop' with best_fit, first_fit or greedy, and cut in"
            " preencode_sample"
        )


def form_recipe(form: FramedForm) -> dict[str, Any]:
    """Return a form as recipes record it; JSON-safe, and for measured sources as `recorded_form` reads it."""
    match form:
        case Packing() | Grouping():
            return {type(form).__name__.lower(): msgspec.to_builtins(form, str_keys=True)}
        case ShuffleBuffer(num_items=size):
            return {"shuffle_buffer": size}
        case Selected(select=select):
            return {"selected": None if select is None else recorded_name(select)}
    return {}


def recorded_form(recipe: Mapping[str, Any]) -> MeasuredForm:
    """Return the form of a measured source from its recipe."""
    if "grouping" in recipe:
        return msgspec.convert(recipe["grouping"], Grouping, str_keys=True)
    return msgspec.convert(recipe["packing"], Packing, str_keys=True) if recipe else Singles()


def form_words(form: FramedForm) -> str:
    """Return in words what a unit is."""
    match form:
        case ShuffleBuffer(num_items=size):
            return f"each output is a unit, through a shuffle buffer of {size:,}"
        case Grouping(size=size):
            return f"a unit is a batch of one group, of {'its own size' if size is None else f'{size:,} samples'}"
        case Packing(seq_len=length):
            return f"a unit is a pack of {length:,}, by best fit"
        case Selected(select=select):
            return f"a unit is a pack, as {recorded_name(select) if select else 'select_samples_to_pack'} chooses"
    return "each output is a unit"


_TOGETHER = 64
"""Number of samples whose bytes are read together."""


class MadeOutput(NamedTuple):
    """An output of the sample at a position of the run: its number there, the number of its dataset, and the output."""

    number: int
    source: int
    output: Output


class MadeSample(NamedTuple):
    """The outputs of a sample, and what failed while they were made."""

    outputs: list[MadeOutput]
    faults: list[Fault]


class FramedSources:
    """The datasets of a run under the hooks, for one process, in which hooks may keep state.

    Args:
        datasets: path and dataset, in the order of their numbers in the run. A source whose order was changed comes
            several times.
        pipeline: the hooks.
        seed: seed of the random numbers in hooks.
        errors: what happens when samples cannot be made.
    """

    def __init__(
        self, datasets: Sequence[tuple[str, Media]], pipeline: EncoderPipeline, *, seed: int, errors: ErrorPolicy
    ) -> None:
        self.pipeline = pipeline
        self.paths = tuple(path for path, _ in datasets)
        self.encoders = tuple(
            SampleEncoder(dataset, pipeline, seed=seed, errors=errors or dataset.errors, may_skip=True, path=path)
            for path, dataset in datasets
        )
        self._kind = type(pipeline.encoder).__name__

    @property
    def unrestorable(self) -> str | None:
        """The first hook in use that is not marked ``@stateless``; None if all are."""
        return next((found for one in self.encoders if (found := one.unrestorable) is not None), None)

    def outputs(self, sources: IntArray, addresses: IntArray, watch: SampleWatch | None = None) -> list[MadeSample]:
        """Return the outputs of each sample, and what failed while it was made, which is taken from the ``watch``.

        Raises:
            SampleError, ConfigError: as `SampleEncoder.makers`; also whatever hooks raise.
        """
        watch = watch or SampleWatch()
        found: dict[int, MadeSample] = {}
        with self.pipeline:
            for begin in range(0, len(addresses), _TOGETHER):
                together = np.arange(begin, min(begin + _TOGETHER, len(addresses)), dtype=np.int64)
                for source, part in by_source(sources[together]):
                    rows = together[part]
                    makers = self.encoders[source].makers(addresses[rows], watch)
                    for row, outputs in zip(rows.tolist(), watch.make(addresses[rows], makers, rows), strict=True):
                        made = [MadeOutput(number, source, one) for number, one in enumerate(outputs)]
                        found[row] = MadeSample(made, [])
        for row, fault in watch.take():
            found[row].faults.append(fault)
        return [found[row] for row in range(len(addresses))]

    def again(self, keys: Sequence[RestoreKey]) -> list[MadeOutput]:
        """Make the outputs of some restore keys again.

        Raises:
            ConfigError: there is no such dataset, sample or output, or the output has changed.
        """
        wanted: dict[tuple[str, int], list[MadeOutput]] = {}
        for path, address in ((key.path, key.address) for key in keys):
            if (path, address) in wanted:
                continue
            if path not in self.paths:
                raise ConfigError(
                    f"a restore key is of the dataset {path!r}, which this run does not have; it has {self.paths}"
                )
            source, addresses = self.paths.index(path), np.array([address], dtype=np.int64)
            encoder = self.encoders[source]
            if address < 0 or encoder.indices(addresses)[0] >= len(encoder.dataset):
                raise ConfigError(f"{path!r} has no sample at the address {address} of a restore key")
            wanted[path, address] = self.outputs(np.array([source], dtype=np.int64), addresses)[0].outputs
        found = []
        for key in keys:
            outputs = wanted[key.path, key.address]
            one = outputs[key.number] if 0 <= key.number < len(outputs) else None
            now = None if one is None else self.key(one)
            if one is None or now != key:
                raise ConfigError(f"{key} is now {now}: the data, the encoder or the policy has changed")
            found.append(one)
        return found

    def key(self, one: MadeOutput) -> RestoreKey:
        """Return the restore key of an output whose sample does not have it yet."""
        place, sample = one.output
        return RestoreKey("Framed", restore_key_of(sample), place.position, place.output, self.paths[one.source])

    def marked(self, one: MadeOutput) -> Any:
        """Return the sample of an output, with its restore key."""
        return keyed(one.output.sample, self.key(one), self._kind)

    def packs(self, items: Sequence[MadeOutput], watch: SampleWatch | None = None) -> list[Output]:
        """Return packs made of outputs, usually one; no packs if a generator skips them.

        With the policy "substitute", a sample that fails in ``postencode_sample`` is left out of its pack: the pack is
        already chosen, and another sample might not fit. `SkipSample` there also leaves the sample out, and is not a
        fault.

        Args:
            items: the outputs of one selection.
            watch: of the reader, with their positions in the run, if faults are to name them.

        Raises:
            ConfigError: `SkipSample` in ``pack_selected_samples``, or for all samples of a pack.
            SampleError: no sample of a pack can be made; also whatever hooks raise.
        """
        watch = watch or SampleWatch()

        def without(number: int, failure: HookFailure) -> None:
            if isinstance(failure.error, SkipSample):
                return
            watch.row = number
            self.encoders[items[number].source].left_out(failure, items[number].output.place.position, watch)

        instead = (
            "skip samples in preencode_sample, or write pack_selected_samples as a generator, which may yield no pack"
        )
        outputs = [one.output for one in items]
        return packed(self.pipeline, outputs, self.key(items[0]).written(), instead, without)

    def restored(self, key: RestoreKey) -> Any:
        """Return the sample of a restore key, with that key.

        Raises:
            ConfigError: as `again`; there is no such pack.
        """
        items = self.again(key.outputs)
        if key.kind == "Framed":
            return self.marked(items[0])
        packs = self.packs(items)
        if not 0 <= key.number < len(packs):
            raise ConfigError(f"{key.written()} is of pack {key.number}, and its outputs now make {len(packs)} packs")
        return keyed(packs[key.number].sample, key, self._kind)


class Framed:
    """Media samples under any task encoder: a sample may have no output or several, which may be grouped or packed.

    What a sample becomes is known only when it is encoded, so the order of units is found while the run goes on:
    positions are assigned to lanes, and each lane makes its own units, a frame of positions at a time. Nothing is
    dropped: an output that is not selected goes into a later unit. This class describes the units and reads nothing;
    `FramedRun` adds an order and batches.

    Args:
        data: a dataset of media, or a mix of such datasets.
        encoder: the task encoder. Hooks that are not marked ``@stateless`` are allowed, but then nothing can be made
            again.
        form: how outputs become units: `Singles`, `ShuffleBuffer`, a `Grouping` with a size if
            ``batch_group_criterion`` returns none, a `Packing` with its ``seq_len`` and ``segment_multiple``, or
            `Selected`. None chooses by the hooks of the encoder: ``select_samples_to_pack``,
            ``batch_group_criterion``, or neither.
        frame_positions: number of positions that a lane plans together. None is 1,000 for packs and groups, 32 for
            single outputs, and the size of a shuffle buffer.
        seed: seed of the random numbers in hooks and forms, in addition to that of the order.
        errors: what happens when samples cannot be made.
        buffer_bytes: most bytes that one process keeps of outputs that wait for their unit, in addition to the frame
            that it plans; outputs beyond that are encoded again, once for each unit.
        most_empty_positions: it is an error if a lane finds no output at so many positions in a row.

    Attributes:
        is_packs: whether a unit is a pack of outputs.
        is_group_batches: whether a unit is a whole batch of outputs of one group.
        unrestorable: the first hook in use that is not marked ``@stateless``; None if all are.

    Raises:
        ConfigError: not media; what `EncoderPipeline` refuses; a form that the encoder has no hooks for; a generator as
            ``encode_batch``; packs that would have to be grouped.

    Example:
        >>> dataset = headrace.MediaDataset(headrace.open("shards"))
        >>> framed = headrace.datasets.Framed(dataset, headrace.encoders.DefaultTaskEncoder())
        >>> framed.describe()
        'DefaultTaskEncoder, 32 positions a frame: each output is a unit'
    """

    def __init__(
        self,
        data: Dataset | Mix,
        encoder: Encoder,
        *,
        form: FramedForm | None = None,
        frame_positions: int | None = None,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        buffer_bytes: int = 1 << 30,
        most_empty_positions: int = 100_000,
    ) -> None:
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(f"data is {data!r:.80}; expected a dataset of media, or a mix of such datasets")
        self.data = data
        self.encoder = checked_encoder(encoder)
        self.form = form_by_hooks(encoder) if form is None else form
        self.is_packs, self.is_group_batches = is_packs(self.form), is_groups(self.form)
        self.frame_positions = _positions(self.form) if frame_positions is None else frame_positions
        self.seed = seed
        self.errors = ErrorPolicy() if errors is None else errors
        self.buffer_bytes = buffer_bytes
        self.most_empty_positions = most_empty_positions
        _check_numbers(self.frame_positions, buffer_bytes, most_empty_positions)
        # Make the sources once, so that errors are raised here and not by the first worker.
        sources = self.sources(named_datasets(data).items())
        check_form(self.form, sources.pipeline, is_measured=False)
        self.unrestorable = sources.unrestorable

    def pipeline(self) -> EncoderPipeline:
        """Return the hooks, for one reader."""
        size = self.form.size if isinstance(self.form, Grouping) else None
        return EncoderPipeline(self.encoder, packing=self.is_packs, batch_size=size)

    def sources(self, named: Iterable[tuple[str, Dataset]]) -> FramedSources:
        """Return datasets, given with their paths in the mix, under the hooks, in this order, for one reader."""
        # Cooked datasets hold the cookers themselves, which need not be functions that can be pickled.
        datasets = [(path, cooked(dataset, self.encoder)) for path, dataset in named]
        return FramedSources(datasets, self.pipeline(), seed=self.seed, errors=self.errors)

    def columns_of(self, batch: Any) -> dict[str, Any]:
        """Return a batch that the hooks made in columns, see `samples.columns_of`."""
        return columns_of(batch, type(self.encoder).__name__)

    @cached_property
    def recipe(self) -> Mapping[str, Any]:
        """What encoder and policy make of a sample, and how units are formed; JSON-safe."""
        return {
            "encoder": {**self.pipeline().recipe, "seed": self.seed, "on_error": self.errors.on_error},
            "form": form_recipe(self.form),
            "frame_positions": self.frame_positions,
        }

    def describe(self) -> str:
        """Describe the units in one line."""
        return f"{type(self.encoder).__name__}, {self.frame_positions:,} positions a frame: {form_words(self.form)}"


_SINGLES_POSITIONS = 32
_FRAME_POSITIONS = 1_000


def _positions(form: FramedForm) -> int:
    if isinstance(form, ShuffleBuffer):
        return form.num_items
    return _SINGLES_POSITIONS if isinstance(form, Singles) else _FRAME_POSITIONS


def _check_numbers(frame_positions: int, buffer_bytes: int, most_empty_positions: int) -> None:
    if frame_positions < 1 or buffer_bytes < 0 or most_empty_positions < 1:
        raise ConfigError(
            f"frame_positions is {frame_positions}, buffer_bytes {buffer_bytes} and most_empty_positions "
            f"{most_empty_positions}; they must be at least 1, 0 and 1"
        )
