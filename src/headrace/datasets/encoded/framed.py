"""`Framed`: a task encoder whose outputs are made into units while the run goes on.

`FramedSources` has the datasets under the task encoder in one process: it makes outputs of samples, and makes them
again from restore keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.forms import check_form, form_by_hooks, form_recipe, form_words, is_groups, is_packs
from headrace.datasets.encoded.samples import Encoder, Media, RestoreKey, SampleEncoder, framed_keys, keyed, packed
from headrace.datasets.mix import Mix, named_datasets
from headrace.datasets.run import by_source
from headrace.datasets.sample_watch import SampleWatch
from headrace.encoders import EncoderPipeline, ErrorPolicy, Fault, HookFailure, checked_encoder
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, SkipSample
from headrace.plan import IntArray
from headrace.plan.framed import FramedForm, ShuffleBuffer, Singles

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
        datasets: path -> dataset, in the order of their numbers in the run.
        pipeline: the hooks.
        seed: seed of the random numbers in hooks.
        errors: what happens when samples cannot be made.
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
        return self.keys([one])[0]

    def keys(self, made: Sequence[MadeOutput]) -> list[RestoreKey]:
        """Return the restore key of each output; see `key`."""
        return framed_keys([one.output for one in made], [self.paths[one.source] for one in made])

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
        form: how outputs become units: `Singles`, `ShuffleBuffer`, `GroupBatches`, `BestFit`, `Selected`,
            `HookPacks`. None chooses by the hooks of the encoder: ``select_samples_to_pack``,
            ``batch_group_criterion``, or neither.
        frame_positions: number of positions that a lane plans together. None is 1,000 for packs and groups, 32 for
            single outputs, and the size of a shuffle buffer.
        batch_size: size of groups, if ``batch_group_criterion`` returns none.
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
        batch_size: int | None = None,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        buffer_bytes: int = 1 << 30,
        most_empty_positions: int = 100_000,
    ) -> None:
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(f"data is {data!r:.80}; expected a dataset of media, or a mix of such datasets")
        self.data = data
        self.encoder = checked_encoder(encoder)
        self.form = form_by_hooks(encoder, batch_size) if form is None else form
        self.is_packs, self.is_group_batches = is_packs(self.form), is_groups(self.form)
        self.frame_positions = _positions(self.form) if frame_positions is None else frame_positions
        self.batch_size = batch_size
        self.seed = seed
        self.errors = ErrorPolicy() if errors is None else errors
        self.buffer_bytes = buffer_bytes
        self.most_empty_positions = most_empty_positions
        _check_numbers(self.frame_positions, buffer_bytes, most_empty_positions)
        # Make the sources once, so that errors are raised here and not by the first worker.
        sources = self.sources(named_datasets(data))
        check_form(self.form, sources.pipeline, FramedForm)
        self.unrestorable = sources.unrestorable

    def pipeline(self) -> EncoderPipeline:
        """Return the hooks, for one reader."""
        return EncoderPipeline(self.encoder, packing=self.is_packs, batch_size=self.batch_size)

    def sources(self, datasets: Mapping[str, Any]) -> FramedSources:
        """Return the datasets of the mix under the hooks, in the order of the run, for one reader."""
        return FramedSources(datasets, self.pipeline(), seed=self.seed, errors=self.errors)

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
