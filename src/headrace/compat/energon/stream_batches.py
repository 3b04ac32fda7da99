"""Energon's wrappers that form batches, and those that hold samples for a while: shuffle buffers, groups, packs.

See `headrace.compat.energon.streams`, whose wrappers give a sample for each that they take. The state of one that holds
samples has their restore keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from headrace.compat.energon import wrappers
from headrace.compat.energon.streams import BlendStream, Wrapper, key_of, results_of
from headrace.compat.energon.workers import WorkerConfig, warn_unused
from headrace.encoders import get_stateless
from headrace.errors import ConfigError


class BatchStream(Wrapper):
    """Batches of ``batch_size`` samples, which ``batcher`` makes.

    Args:
        dataset: the samples.
        batch_size: the samples of a batch.
        batcher: a function of a list of samples.
        batcher_stateless: the same as marking it ``@stateless``.
        drop_last: leave out a last batch that is short.
        options: other arguments of Energon's; those that say something are named in a warning.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        warn_unused("BatchDataset", options)
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
        self.batch_size = batch_size
        self.batcher = batcher
        self.drop_last = drop_last
        self._is_stateless = batcher_stateless or get_stateless(batcher)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The batches of the samples."""
        samples = super().len_worker(worker_idx)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for sample in self.dataset:
            held.append(sample)
            if len(held) == self.batch_size:
                yield from results_of(self.batcher, held)
                held = []
        if held and not self.drop_last:
            yield from results_of(self.batcher, held)

    def can_restore_sample(self) -> bool:
        """Whether the batcher is stateless, and the inner dataset can."""
        return self._is_stateless and super().can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a batch again from the list of the keys of its samples."""
        self.assert_can_restore()
        return next(results_of(self.batcher, [self.dataset.restore_sample(key) for key in restore_key]))


class MixBatchStream(Wrapper):
    """Batches of samples of several datasets: a `BlendStream` in a `BatchStream`."""

    of_samples = wrappers.MixBatchDataset

    def __init__(
        self,
        *dataset_weights: tuple[Any, float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendStream(*dataset_weights, worker_config=worker_config)
        super().__init__(BatchStream(blend, batch_size, batch_mix_fn), worker_config=worker_config)


class HoldingStream(Wrapper):
    """The base of wrappers that hold samples. Their state has the restore keys, so that the samples can be made again.

    ``held`` is a dict, name -> list of samples, and ``source`` makes samples again.
    """

    _savable_fields: ClassVar[tuple[str, ...]] = ("_keys",)

    def __init__(self, dataset: Any, *, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self._keys: dict[str, list[Any]] = {}
        self.held: dict[str, list[Any]] = defaultdict(list)
        self._is_known = True

    def reset_state_own(self) -> None:
        """Begin again."""
        self._keys, self.held, self._is_known = {}, defaultdict(list), True

    def save_state(self) -> dict[str, Any]:
        """The state, with the keys of all samples that are held."""
        if self._is_known:
            self._keys = {
                name: [key_of(sample) for sample in samples] for name, samples in self.held.items() if samples
            }
        return super().save_state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `SavableDataset.restore_state`."""
        super().restore_state(state)
        self._is_known = False

    def begin(self) -> None:
        """Make the samples of the restored state again."""
        if not self._is_known:
            self.held = defaultdict(list)
            for name, keys in self._keys.items():
                self.held[name] = [self.dataset.restore_sample(key) for key in keys]
            self._is_known = True


class ShuffleBufferStream(HoldingStream):
    """Samples through a shuffle buffer of ``size``."""

    _savable_fields = ("_keys", "_draws")
    of_samples = wrappers.ShuffleBufferDataset

    def __init__(self, dataset: Any, size: int, *, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.size = size
        self._draws = 0

    def reset_state_own(self) -> None:
        """Begin again."""
        super().reset_state_own()
        self._draws = 0

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        held = self.held["samples"]
        for sample in self.dataset:
            held.append(sample)
            if len(held) >= self.size:
                yield self._next(held)
        while held:
            yield self._next(held)

    def _next(self, held: list[Any]) -> Any:
        seed = (self.worker_config.seed_offset & (2**64 - 1), self.worker_config.rank, self._draws, 1)
        self._draws += 1
        return held.pop(int(np.random.default_rng(seed).integers(len(held))))


class GroupBatchStream(HoldingStream):
    """Batches of samples of one group: ``sample_group_key`` returns the group and the size of its batches, or None."""

    _savable_fields = ("_keys", "_order")
    of_samples = wrappers.GroupBatchDataset

    def __init__(
        self,
        dataset: Any,
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        warn_unused("GroupBatchDataset", options)
        self.batch_size = fixed_batch_size
        self.sample_group_key = sample_group_key
        self.batcher = batcher
        self.drop_last = drop_last
        self._order: list[str] = []

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        for sample in self.dataset:
            key, size = self.sample_group_key(sample)
            size = self.batch_size if size is None else size
            if size is None:
                raise ConfigError(
                    f"GroupBatchDataset: neither fixed_batch_size nor the group {key!r} says the batch size"
                )
            held = self.held[repr(key)]
            held.append(sample)
            if len(held) >= size:
                del self.held[repr(key)]
                yield from results_of(self.batcher, held)
        for name in list(self.held):
            held = self.held.pop(name)
            if held and not self.drop_last:
                yield from results_of(self.batcher, held)


class PackingStream(HoldingStream):
    """Packs: ``pre_packer`` selects among ``buffer_size`` samples, and ``final_packer`` makes a pack of each selection.

    As in Energon, samples that are not selected are dropped.

    Args:
        dataset: the samples.
        buffer_size: how many samples are selected among.
        pre_packer: a function of a list of samples that returns lists of them.
        final_packer: makes a pack of the samples of a list.
        sample_encoder: applied to each selected sample before.
        options: other arguments of Energon's; those that say something are named in a warning.
    """

    of_samples = wrappers.PackingDataset

    def __init__(
        self,
        dataset: Any,
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        warn_unused("PackingDataset", options)
        self.buffer_size = buffer_size
        self.pre_packer = pre_packer
        self.final_packer = final_packer
        self.sample_encoder = sample_encoder

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        yield from self._pending()
        reading = self.held["reading"]
        for sample in self.dataset:
            reading.append(sample)
            if len(reading) >= self.buffer_size:
                yield from self._selected(reading)
        if reading:
            yield from self._selected(reading)

    def _selected(self, reading: list[Any]) -> Iterator[Any]:
        packs = [list(pack) for pack in self.pre_packer(list(reading)) if pack]
        reading.clear()
        for number, pack in enumerate(packs):
            self.held[f"pack {number:09d}"] = pack
        yield from self._pending()

    def _pending(self) -> Iterator[Any]:
        for name in sorted(name for name in self.held if name.startswith("pack ")):
            samples = self.held.pop(name)
            if self.sample_encoder is not None:
                samples = [one for sample in samples for one in results_of(self.sample_encoder, sample)]
            yield from results_of(self.final_packer, samples)


def concat_pad(batches: list[Any]) -> Any:
    """Concatenate tensors along the first axis; their other axes are padded with zeros to the largest size."""
    shape = [max(one.shape[axis] for one in batches) for axis in range(1, batches[0].ndim)]
    whole = batches[0].new_zeros((sum(one.shape[0] for one in batches), *shape))
    begin = 0
    for one in batches:
        whole[(slice(begin, begin + one.shape[0]), *(slice(0, size) for size in one.shape[1:]))] = one
        begin += one.shape[0]
    return whole


def generic_concat(batches: list[Any]) -> Any:
    """Concatenate batches of one type: tensors as `concat_pad`, structures field by field, all else in one list."""
    first = batches[0]
    if callable(getattr(first, "new_zeros", None)):
        return concat_pad(batches)
    if isinstance(first, Mapping):
        return {name: generic_concat([one[name] for one in batches]) for name in first}
    names = [*getattr(first, "__dataclass_fields__", ())] or [*getattr(first, "_fields", ())]
    if names:
        return type(first)(**{name: generic_concat([getattr(one, name) for one in batches]) for name in names})
    return batches


def homogeneous_concat_mix(batches: list[Any]) -> Any:
    """Concatenate batches, which must be of one type. Raises ConfigError if they are not."""
    if kinds := {type(one) for one in batches} - {type(batches[0])}:
        raise ConfigError(
            f"homogeneous_concat_mix: batches are of several types, {type(batches[0]).__name__} and"
            f" {', '.join(kind.__name__ for kind in kinds)}; leave batch_mix_fn out for a list of them"
        )
    return generic_concat(batches)
