"""Samples through a task encoder whose results decide what comes next: what is made into units, and how.

The datasets of a framed source, each under the task encoder: samples become outputs, and keys become them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.datasets import watched
from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.keys import OutputKey, PackKey, keyed, output_key, pack_key, restore_key_of
from headrace.datasets.encoded.samples import Encoder, Media, SampleEncoder, raised
from headrace.datasets.mix import Mix, named_datasets
from headrace.encoders import EncoderPipeline, ErrorPolicy, FaultLog, HookFailure, TaskEncoder, at_positions
from headrace.encoders.hooks import hooks_of
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, SkipSample
from headrace.plan import IntArray
from headrace.plan.framed import BestFit, Form, Frame, GroupBatches, Items, Selected, ShuffleBuffer, Singles
from headrace.plan.recorded_names import recorded_name

_TOGETHER = 64
"""Samples whose bytes are read at once."""


class MadeOutput(NamedTuple):
    """An output of the sample at a position of the run: its number there, the dataset it is of, and itself."""

    number: int
    source: int
    output: Output


class FramedSources:
    """One process's own: it counts faults, and what the hooks keep is theirs.

    Args:
        datasets: path -> dataset, in the order of their numbers in the run.
        pipeline: the hooks.
        seed: of the random numbers in them.
        errors: what is done about samples that cannot be made.
    """

    def __init__(
        self, datasets: Mapping[str, Media], pipeline: EncoderPipeline, *, seed: int, errors: ErrorPolicy
    ) -> None:
        self.pipeline = pipeline
        self.paths = tuple(datasets)
        self.encoders = tuple(
            SampleEncoder(dataset, pipeline, seed=seed, errors=errors, may_skip=True, path=path)
            for path, dataset in datasets.items()
        )
        self._kind = type(pipeline.encoder).__name__

    @property
    def not_stateless(self) -> str | None:
        """The first hook that is used and not marked ``@stateless``, or None."""
        return next((found for one in self.encoders if (found := one.not_stateless) is not None), None)

    def addresses(self, sources: IntArray, indices: IntArray, keys: Any) -> IntArray:
        """(n,) int64: those of samples with these numbers in their datasets; ``keys`` of their epochs, or None."""
        found = np.empty_like(indices)
        for source, rows in _by_source(sources):
            found[rows] = self.encoders[source].addresses(indices[rows], None if keys is None else keys[rows])
        return found

    def outputs(self, sources: IntArray, addresses: IntArray) -> tuple[list[list[MadeOutput]], list[FaultLog | None]]:
        """Those of each sample, and what failed while it was made.

        Raises:
            SampleError, ConfigError: see `SampleEncoder.makers`; and what hooks raise.
        """
        made: list[list[MadeOutput]] = [[]] * len(addresses)
        faults: list[FaultLog | None] = [None] * len(addresses)
        with self.pipeline:
            for begin in range(0, len(addresses), _TOGETHER):
                for source, part in _by_source(sources[begin : begin + _TOGETHER]):
                    rows = part + begin
                    encoder = self.encoders[source]
                    log = encoder.faults = FaultLog()
                    for row, make in zip(rows.tolist(), encoder.makers(addresses[rows]), strict=True):
                        [outputs] = watched.made(addresses[row : row + 1], [make], row)
                        made[row] = [MadeOutput(number, source, one) for number, one in enumerate(outputs)]
                        if log.total:
                            faults[row] = log
                            log = encoder.faults = FaultLog()
        return made, faults

    def again(self, keys: Sequence[OutputKey]) -> list[MadeOutput]:
        """The outputs of some keys.

        Raises:
            ConfigError: there is no such dataset, sample or output, or it is no longer what it was.
        """
        wanted: dict[tuple[str, int], list[MadeOutput]] = {}
        for path, address, *_ in keys:
            if (path, address) in wanted:
                continue
            if path not in self.paths:
                raise ConfigError(
                    f"there is no dataset {path!r} here, of which a restore key is; there are {self.paths}"
                )
            source, addresses = self.paths.index(path), np.array([address], dtype=np.int64)
            encoder = self.encoders[source]
            if address < 0 or encoder.indices(addresses)[0] >= len(encoder.dataset):
                raise ConfigError(f"{path!r} has no sample at the address {address} of a restore key")
            wanted[path, address] = self.outputs(np.array([source], dtype=np.int64), addresses)[0][0]
        found = []
        for key in keys:
            outputs = wanted[key.path, key.address]
            one = outputs[key.output] if 0 <= key.output < len(outputs) else None
            within = None if one is None else tuple(restore_key_of(one.output.sample) or ())
            if one is None or within != key.within:
                raise ConfigError(f"{key} is now {within}: the data, the encoder or the policy has changed")
            found.append(one)
        return found

    def key(self, one: MadeOutput) -> tuple[Any, ...]:
        """The restore key of an output, as long as it is not marked."""
        return output_key(self.paths[one.source], one.output)

    def marked(self, one: MadeOutput) -> Any:
        """The sample of an output, with its restore key."""
        return keyed(one.output.sample, self.key(one), self._kind)

    def packs(self, items: Sequence[MadeOutput], positions: Sequence[int] = ()) -> tuple[list[Output], FaultLog]:
        """Outputs as packs, mostly one, and what failed; no packs where a generator skips them.

        By the policy "substitute" a sample that fails in ``postencode_sample`` is left out of its pack: that it comes
        into this one is settled, and another one might not fit. `SkipSample` there leaves it out, too, and is no fault.

        Args:
            items: of one selection.
            positions: theirs in the run, where faults are to name them.

        Raises:
            ConfigError: `SkipSample` in ``pack_selected_samples``, or of all samples of a pack.
            SampleError: none of the samples of a pack can be made; what hooks raise.
        """
        faults = FaultLog()

        def without(number: int, failure: HookFailure) -> None:
            if isinstance(failure.error, SkipSample):
                return
            encoder, one = self.encoders[items[number].source], items[number].output
            encoder.faults = faults
            with at_positions(np.array(positions[number : number + 1], dtype=np.int64)):
                encoder.left_out(failure, one.place.position)

        try:
            return self.pipeline.pack([one.output for one in items], without), faults
        except HookFailure as failure:
            where = f"the pack that begins with {self.key(items[0])!r}"
            if isinstance(failure.error, SkipSample):
                if failure.hook.name == "pack_selected_samples" and failure.hook.is_generator:
                    return [], faults
                raise ConfigError(
                    f"SkipSample in {failure.hook.name} of {self._kind}: {where}, of {len(items)} samples, whose place"
                    " is settled; skip samples in preencode_sample, or write pack_selected_samples as a generator,"
                    " which may give no pack"
                ) from failure.error
            raise raised(failure, self._kind, where) from failure.error.__cause__

    def restored(self, key: OutputKey | PackKey) -> Any:
        """The sample of a restore key, with that key.

        Raises:
            ConfigError: as `again`; there is no such pack.
        """
        items = self.again([key] if isinstance(key, OutputKey) else key.outputs)
        if isinstance(key, OutputKey):
            return self.marked(items[0])
        keys = [self.key(one) for one in items]
        packs, _ = self.packs(items)
        if not 0 <= key.part < len(packs):
            raise ConfigError(f"a restore key is of pack {key.part}, and there are now {len(packs)} of {keys}")
        return keyed(packs[key.part].sample, pack_key(keys, key.part), self._kind)


def _by_source(sources: IntArray) -> Iterator[tuple[int, IntArray]]:
    """(source, the rows it has) for each source that occurs; frames are short, and a set is cheaper than sorting."""
    for source in sorted(set(sources.tolist())):
        yield source, np.flatnonzero(sources == source)


_SINGLES_POSITIONS = 32
_FRAME_POSITIONS = 1_000


@dataclass(frozen=True)
class HookPacks:
    """Packs as ``select_samples_to_pack`` of the task encoder chooses them; whoever reads gives it the samples."""

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """Not without samples: raises ConfigError."""
        raise ConfigError("select_samples_to_pack chooses among samples, and here are only their numbers: use a reader")


class Framed:
    """Samples of media through any task encoder: one may have no output, or several; they are grouped or packed.

    What becomes of a sample shows when it is encoded, so the order of units is found as the run goes: positions are
    assigned to lanes, and each lane makes units of its own, a frame of positions at a time. Nothing is dropped: what is
    not selected comes into a later unit. This describes, and reads nothing; `FramedRun` gives it an order and batches.

    Args:
        data: a dataset of media, or a mix of some.
        encoder: the task encoder. Hooks that are not marked ``@stateless`` work, and then nothing can be made again.
        form: how outputs become units: `Singles`, `ShuffleBuffer`, `GroupBatches`, `BestFit`, `Selected`. None: by the
            hooks that the encoder has, ``select_samples_to_pack`` or ``batch_group_criterion`` or none of them.
        frame_positions: how many positions a lane looks at together. None: 1,000 for packs and groups, 32 for single
            outputs, the size of a shuffle buffer.
        batch_size: of groups, where ``batch_group_criterion`` gives none.
        seed: of the random numbers in hooks and of what forms draw, beside that of the order.
        errors: what is done about samples that cannot be made.
        buffer_bytes: up to how many bytes one process keeps of outputs that wait for their unit, beside the frame that
            it plans; what is over it is encoded again, once for each unit.
        most_empty_positions: a lane that finds nothing at so many positions in a row is an error.

    Raises:
        ConfigError: not media; what `EncoderPipeline` refuses; a form that the encoder has no hooks for; a generator as
            ``encode_batch``; packs that are to be grouped.
    """

    def __init__(
        self,
        data: Dataset | Mix,
        encoder: Encoder,
        *,
        form: Form | None = None,
        frame_positions: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        buffer_bytes: int = 1 << 30,
        most_empty_positions: int = 100_000,
    ) -> None:
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(f"data is {data!r:.80}; expected a dataset of media, or a mix of some")
        if not isinstance(encoder, TaskEncoder):
            raise ConfigError(f"task encoder is {encoder!r:.80}; expected a TaskEncoder, as DefaultTaskEncoder()")
        self.data = data
        self.encoder = encoder
        self.form = form_of(encoder, batch_size) if form is None else form
        self.frame_positions = _positions(self.form) if frame_positions is None else frame_positions
        self.batch_size = batch_size
        self.seed = seed
        self.errors = ErrorPolicy() if errors is None else errors
        self.buffer_bytes = buffer_bytes
        self.most_empty_positions = most_empty_positions
        _check_numbers(self.frame_positions, buffer_bytes, most_empty_positions)
        self._check_form(self.pipeline())
        # What the sources refuse is refused here, and not by the first worker.
        self.not_stateless = self.sources(named_datasets(data)).not_stateless

    @property
    def is_packs(self) -> bool:
        """Whether a unit is a pack, made of outputs."""
        return isinstance(self.form, HookPacks | BestFit | Selected)

    @property
    def is_group_batches(self) -> bool:
        """Whether a unit is a whole batch, of outputs of one group."""
        return isinstance(self.form, GroupBatches)

    def pipeline(self) -> EncoderPipeline:
        """The hooks, for one reader."""
        return EncoderPipeline(self.encoder, packing=self.is_packs, batch_size=self.batch_size)

    def sources(self, datasets: Mapping[str, Any]) -> FramedSources:
        """The datasets of the mix, in the order of the run, under the hooks: for one reader."""
        return FramedSources(datasets, self.pipeline(), seed=self.seed, errors=self.errors)

    @cached_property
    def recipe(self) -> Mapping[str, Any]:
        """JSON-safe: what the encoder and the policy make of a sample, and how units are formed."""
        return {
            "encoder": {**self.pipeline().recipe, "seed": self.seed, "on_error": self.errors.on_error},
            "form": _form_recipe(self.form),
            "frame_positions": self.frame_positions,
        }

    def describe(self) -> str:
        """One line: what units are."""
        return f"{type(self.encoder).__name__}, {self.frame_positions:,} positions a frame: {_named(self.form)}"

    def _check_form(self, pipeline: EncoderPipeline) -> None:
        form, kind = self.form, type(self.encoder).__name__
        if not isinstance(form, Singles | ShuffleBuffer | GroupBatches | BestFit | Selected | HookPacks):
            raise ConfigError(
                f"form is {form!r:.80}; expected Singles, ShuffleBuffer, GroupBatches, BestFit or Selected of"
                " headrace.plan.framed, or None"
            )
        if pipeline.hooks["encode_batch"].is_generator:
            raise ConfigError(
                f"{kind}.encode_batch is a generator: how many batches it gives would move all later steps; return one,"
                " or give several outputs of a sample in encode_sample, or of a pack in pack_selected_samples"
            )
        if isinstance(form, BestFit) and not pipeline.hooks["sample_length"].is_overridden:
            raise ConfigError(f"BestFit packs by lengths: override {kind}.sample_length, which gives that of a sample")
        if isinstance(form, GroupBatches) and not pipeline.groups:
            raise ConfigError(f"GroupBatches takes groups: override {kind}.batch_group_criterion, which gives them")
        if isinstance(form, GroupBatches) and form.size != self.batch_size:
            raise ConfigError(
                f"form is {form} and batch_size {self.batch_size}: give the size of groups as batch_size, and leave the"
                " form out"
            )
        if self.batch_size is not None and not self.is_group_batches:
            raise ConfigError(
                f"batch_size is {self.batch_size}, and units are no batches: batch_size is of groups; all others are"
                " batched by the loader, micro_batch_size=..."
            )


def form_of(encoder: Encoder, batch_size: int | None) -> Form:
    """The form that the hooks of an encoder ask for. Raises ConfigError: packs that are to be grouped."""
    hooks = hooks_of(encoder)
    kind = type(encoder).__name__
    groups, packs = (hooks[name].is_overridden for name in ("batch_group_criterion", "pack_selected_samples"))
    if groups and packs:
        raise ConfigError(
            f"{kind} overrides batch_group_criterion and pack_selected_samples: packs cannot be grouped; say which by"
            " form=, GroupBatches() for groups of outputs that are not packed, or leave one of them out"
        )
    if packs and not hooks["select_samples_to_pack"].is_overridden:
        raise ConfigError(
            f"{kind} packs, and does not override select_samples_to_pack: say how long a pack is, form=BestFit(4096)"
        )
    if packs:
        return HookPacks()
    return GroupBatches(batch_size) if groups else Singles()


def _positions(form: Form) -> int:
    if isinstance(form, ShuffleBuffer):
        return form.num_items
    return _SINGLES_POSITIONS if isinstance(form, Singles) else _FRAME_POSITIONS


def _check_numbers(frame_positions: int, buffer_bytes: int, most_empty_positions: int) -> None:
    if frame_positions < 1 or buffer_bytes < 0 or most_empty_positions < 1:
        raise ConfigError(
            f"frame_positions is {frame_positions}, buffer_bytes {buffer_bytes} and most_empty_positions "
            f"{most_empty_positions}; allowed are at least 1, 0 and 1"
        )


def _form_recipe(form: Any) -> dict[str, Any]:
    values = {field.name: getattr(form, field.name) for field in fields(form)}
    named = {name: recorded_name(value) if callable(value) else value for name, value in values.items()}
    return {"kind": type(form).__name__, **named}


def _named(form: Form) -> str:
    match form:
        case Singles():
            return "each output is a unit"
        case ShuffleBuffer(num_items=size):
            return f"each output is a unit, through a shuffle buffer of {size:,}"
        case GroupBatches(size=size):
            return f"a unit is a batch of one group, of {'its own size' if size is None else f'{size:,} samples'}"
        case BestFit(max_length=length):
            return f"a unit is a pack of {length:,}, by best fit"
        case HookPacks():
            return "a unit is a pack, as select_samples_to_pack chooses"
    return f"a unit is a pack, as {_form_recipe(form).get('select')} chooses"
