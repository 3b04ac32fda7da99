"""The datasets of a framed source, each under the task encoder: samples become outputs, and keys become them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.datasets import watched
from headrace.datasets.encoded.batches import raised
from headrace.datasets.encoded.framed_keys import OutputKey, PackKey, output_key, pack_key
from headrace.datasets.encoded.keys import keyed, restore_key_of
from headrace.datasets.encoded.samples import Media, SampleEncoder
from headrace.encoders import EncoderPipeline, ErrorPolicy, FaultLog, HookFailure, at_positions
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, SkipSample
from headrace.plan import IntArray

_TOGETHER = 64
"""Samples whose bytes are read at once."""


class Made(NamedTuple):
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

    def outputs(self, sources: IntArray, addresses: IntArray) -> tuple[list[list[Made]], list[FaultLog | None]]:
        """Those of each sample, and what failed while it was made.

        Raises:
            SampleError, ConfigError: see `SampleEncoder.makers`; and what hooks raise.
        """
        made: list[list[Made]] = [[]] * len(addresses)
        faults: list[FaultLog | None] = [None] * len(addresses)
        with self.pipeline:
            for begin in range(0, len(addresses), _TOGETHER):
                for source, part in _by_source(sources[begin : begin + _TOGETHER]):
                    rows = part + begin
                    encoder = self.encoders[source]
                    log = encoder.faults = FaultLog()
                    for row, make in zip(rows.tolist(), encoder.makers(addresses[rows]), strict=True):
                        [outputs] = watched.made(addresses[row : row + 1], [make], row)
                        made[row] = [Made(number, source, one) for number, one in enumerate(outputs)]
                        if log.total:
                            faults[row] = log
                            log = encoder.faults = FaultLog()
        return made, faults

    def again(self, keys: Sequence[OutputKey]) -> list[Made]:
        """The outputs of some keys.

        Raises:
            ConfigError: there is no such dataset, sample or output, or it is no longer what it was.
        """
        wanted: dict[tuple[str, int], list[Made]] = {}
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

    def key(self, one: Made) -> tuple[Any, ...]:
        """The restore key of an output, as long as it is not marked."""
        return output_key(self.paths[one.source], one.output)

    def marked(self, one: Made) -> Any:
        """The sample of an output, with its restore key."""
        return keyed(one.output.sample, self.key(one), self._kind)

    def packs(self, items: Sequence[Made], positions: Sequence[int] = ()) -> tuple[list[Output], FaultLog]:
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
