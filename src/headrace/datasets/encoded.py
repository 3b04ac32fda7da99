"""Samples of media through a task encoder that gives exactly one output for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from headrace.datasets.encoded_columns import columns_of
from headrace.datasets.encoded_keys import address_of, marked, restore_key_of
from headrace.datasets.media import JoinedMediaDataset, MediaDataset, SampleDataset
from headrace.datasets.trace_origins import Origins, media_origins
from headrace.encoders import (
    EncoderPipeline,
    ErrorPolicy,
    Fault,
    FaultLog,
    Hook,
    HookFailure,
    Place,
    TaskEncoder,
    bound_cookers,
    hook_of,
    is_of_sample,
)
from headrace.encoders.hooks import BoundCooker, function_hook
from headrace.encoders.pipeline import READING, Output
from headrace.errors import ConfigError, HeadraceError, SampleError, SkipSample
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import source_key
from headrace.plan.substitution import substitute_index
from headrace.samples.media.sample import BASE_FIELDS

Media = MediaDataset | JoinedMediaDataset


class EncodedDataset(SampleDataset):
    """Sample i is sample i of a dataset, cooked and encoded by a task encoder; batches are made by its hooks.

    An address is the number of the sample together with bits of the epoch's key, so that a hook draws other random
    numbers in every epoch, the same on any rank, worker or resume. It is what ``current_sample_index`` shows, and the
    restore key of an output holds it: `restore_sample` needs nothing else. ``batch`` and ``encode_batch`` are run for
    each micro-batch, whose place is that of its first sample.

    Args:
        dataset: of media; crude samples without a cooker are cooked by those of the encoder.
        encoder: the task encoder. No generator, packing nor grouping: the number of outputs has to be known.
        seed: of the random numbers in hooks, beside that of the order.
        errors: what is done about samples that cannot be made.

    Raises:
        ConfigError: not a dataset of media; what `EncoderPipeline` refuses; an encoder that gives another number of
            outputs than one; ``cook_crude_sample`` for samples that have a cooker.
    """

    def __init__(
        self,
        dataset: Media,
        encoder: TaskEncoder[Any, Any, Any, Any],
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
    ) -> None:
        if not isinstance(dataset, MediaDataset | JoinedMediaDataset):
            raise ConfigError(f"dataset is {dataset!r:.80}; expected a MediaDataset or a JoinedMediaDataset")
        if errors is not None and not isinstance(errors, ErrorPolicy):
            raise ConfigError(f"errors is {errors!r:.80}; expected an ErrorPolicy")
        self.pipeline = EncoderPipeline(encoder)
        if self.pipeline.not_fixed:
            raise ConfigError(
                f"{type(encoder).__name__}: {', '.join(self.pipeline.not_fixed)}, so that a sample gives another number"
                " of outputs than one, and their places are not known beforehand. EncodedDataset is a fixed source:"
                " take a measured one, where the counts are stored once, or a framed one, where they show while running"
            )
        self.dataset = self._cooked(dataset, encoder)
        self.store = dataset.store
        self.encoder = encoder
        self.seed = seed
        self.errors = ErrorPolicy() if errors is None else errors
        self.faults = FaultLog()
        self._bits = max(1, (len(dataset) - 1).bit_length())
        self._cook = self._cook_hook()
        self._key, self._substitution = (source_key(seed, "", purpose) for purpose in ("encoder", "substitution"))

    @classmethod
    def open(
        cls,
        path: Any,
        encoder: TaskEncoder[Any, Any, Any, Any],
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        **options: Any,
    ) -> EncodedDataset:
        """What lies at a path, decoded by the decoder of a task encoder, cooked by its cookers, encoded by its hooks.

        Args:
            path: see `MediaDataset.open`.
            encoder, seed, errors: see the class.
            options: those of `MediaDataset.open`, ``aux`` among them.

        Raises:
            StoreError, ConfigError: as `MediaDataset.open` and the class.
        """
        if not isinstance(encoder, TaskEncoder):
            raise ConfigError(f"task encoder is {encoder!r:.80}; expected a TaskEncoder, as DefaultTaskEncoder()")
        given = {"decoder": encoder.decoder, "cookers": bound_cookers(encoder), **options}
        return cls(MediaDataset.open(path, **given), encoder, seed=seed, errors=errors)

    @staticmethod
    def _cooked(dataset: Media, encoder: TaskEncoder[Any, Any, Any, Any]) -> Media:
        if not isinstance(dataset, MediaDataset) or not dataset.mapper.is_crude:
            return dataset
        cookers = bound_cookers(encoder)
        if dataset.cooker is None:
            return dataset.cooked_by(cookers) if cookers else dataset
        own = hook_of(encoder, "cook_crude_sample").is_overridden
        if own and not isinstance(dataset.cooker.cook, BoundCooker):
            raise ConfigError(
                f"{type(encoder).__name__} overrides cook_crude_sample, and {dataset!r} has a cooker already, which"
                " does not go through it; give a dataset without cookers, or EncodedDataset.open(path, encoder)"
            )
        return dataset

    def _cook_hook(self) -> Hook | None:
        """The user's code that makes samples, before any hook does: cookers, and what joins; as one."""
        if isinstance(self.dataset, JoinedMediaDataset):
            parts = self.dataset.parts
            functions = [] if isinstance(self.dataset.joiner, type) else [self.dataset.joiner]
        else:
            parts, functions = (self.dataset,), []
        functions += [part.cooker.cook for part in parts if part.cooker is not None]
        if not functions:
            return None
        hooks = [function_hook("cook_crude_sample", function) for function in functions]
        said = [hook.failure_tolerance for hook in hooks if hook.failure_tolerance is not None]
        return msgspec.structs.replace(
            hooks[0],
            stateless=all(hook.stateless for hook in hooks),
            may_draw=any(hook.may_draw for hook in hooks),
            seeds=tuple(sorted({name for hook in hooks for name in hook.seeds})),
            failure_tolerance=min(said, default=None),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that all samples have: what hooks make of them shows when they are read."""
        return BASE_FIELDS

    @property
    def collated_by(self) -> dict[str, Any]:
        """The encoder: a batch is made by the hooks of one."""
        return {"kind": "encoded samples", **self.pipeline.recipe}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the number of each sample in the low bits, those of the epoch's key above, never negative."""
        if keys is None:
            return indices
        shift = np.uint64(self._bits)
        return indices | ((np.asarray(keys, dtype=np.uint64) >> np.uint64(self._bits + 1)) << shift).astype(np.int64)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples, without what belongs to the epoch."""
        return addresses & np.int64((1 << self._bits) - 1)

    def makers(self, addresses: IntArray) -> list[Callable[[], Any]]:
        """See `SampleDataset.makers`; each cooks and encodes."""
        self.pipeline.check_thread(*([] if self._cook is None else [self._cook]))
        addresses = np.asarray(addresses, dtype=np.int64)
        indices = self.indices(addresses)
        try:
            makers = self.dataset.makers(indices)
        except SampleError:
            # One of them cannot be read, and only one by one shows which.
            makers = [partial(self._made_alone, index) for index in indices.tolist()]
        return [partial(self._encoded, address, make) for address, make in zip(addresses.tolist(), makers, strict=True)]

    def samples(self, addresses: IntArray) -> list[Any]:
        """See `SampleDataset.samples`; what a hook raises goes through, with a note that names hook and sample."""
        with self.pipeline:
            return super().samples(addresses)

    def _made_alone(self, index: int) -> Any:
        return self.dataset.makers(np.array([index], dtype=np.int64))[0]()

    def _encoded(self, address: int, make: Callable[[], Any]) -> Any:
        """The output of an address, or that of the first substitute that can be made."""
        place = Place(self._key, address)
        index, attempt = address & ((1 << self._bits) - 1), 0
        failed: dict[str, int] = {}
        while True:
            try:
                outputs = self.pipeline.encode(make, place, self._cook)
            except HookFailure as failure:
                self._count(failure, address, index, attempt, failed)
            else:
                return self._output(outputs, address, index)
            attempt += 1
            index = substitute_index(self._substitution, address, attempt, len(self))
            make = partial(self._made_alone, index)

    def _output(self, outputs: list[Output], address: int, index: int) -> Any:
        if len(outputs) != 1:
            raise ConfigError(
                f"{type(self.encoder).__name__} gave {len(outputs)} outputs for sample {index:,} of {self.store.path};"
                " EncodedDataset is a fixed source and takes exactly one: return it, or take a measured or a framed one"
            )
        return marked(outputs[0].sample, address, type(self.encoder).__name__)

    def _count(self, failure: HookFailure, address: int, index: int, attempt: int, failed: dict[str, int]) -> None:
        """Count a failure; return if another sample is to be tried, else raise."""
        error, hook = failure.error, failure.hook
        if hook is self._cook and isinstance(error, SampleError):
            hook = READING  # what cannot be decoded is no fault of the cooker
        of_sample = is_of_sample(error, stateless=hook.stateless)
        shard, key = self._where(index, error) if of_sample else (None, None)
        where = f"in {hook.name} of {type(self.encoder).__name__}: sample {index:,} of {self.store.path}"
        if hook.name not in ("read", "cook_crude_sample") and not isinstance(error, SampleError):
            error.add_note(where)
        if not of_sample:
            raise error from error.__cause__
        self.faults.add(
            Fault(
                source=self.store.path,
                index=index,
                shard=shard,
                key=key,
                position=address,
                attempt=attempt,
                hook=hook.name,
                kind=type(error).__name__,
                reason=str(error),
            )
        )
        if self.errors.on_error == "raise":
            if isinstance(error, SkipSample):
                raise ConfigError(
                    f"SkipSample {where}, key {key!r}: a fixed source cannot leave a sample out, as the places of all"
                    " others are settled. Take another sample for it, errors=ErrorPolicy(on_error='substitute'), or a"
                    " measured or framed source"
                ) from error
            raise error from error.__cause__
        failed[hook.name] = failed.get(hook.name, 0) + 1
        if failed[hook.name] >= self.errors.bound(hook.failure_tolerance):
            counts = ", ".join(f"{count} in {name}" for name, count in failed.items())
            raise SampleError(
                None,
                f"no sample could be made in its place: {sum(failed.values())} failed in a row ({counts}), the last one"
                f" by {type(error).__name__}: {error}; look at the data, or allow more, ErrorPolicy(tolerance=...)",
                shard=shard,
                key=key,
            ) from error

    def _where(self, index: int, error: Exception) -> tuple[str | None, str | None]:
        if isinstance(error, SampleError) and error.key is not None:
            return error.shard, error.key
        try:
            origin = media_origins(self.store, np.array([index], dtype=np.int64))[0][0]
        except HeadraceError:  # the fault that is told is the one that was met first
            return None, None
        return origin.shard, origin.key

    def restore_sample(self, restore_key: Any) -> Any:
        """The output of a restore key again, bit for bit; of the list of keys of a batch, the batch.

        Raises:
            ConfigError: not a key of this dataset, or its samples are not those that it was made of.
        """
        if isinstance(restore_key, list):
            return self.collate([self.restore_sample(key) for key in restore_key])
        unstateful = [
            hook for hook in (*self.pipeline.used, *([self._cook] if self._cook else [])) if not hook.stateless
        ]
        if unstateful:
            raise ConfigError(
                f"{type(self.encoder).__name__}.{unstateful[0].name} is not marked @stateless: it may depend on what"
                " ran before, so that no sample can be made again; mark it"
            )
        address = address_of(restore_key)
        if address is None or address < 0 or address & ((1 << self._bits) - 1) >= len(self):
            raise ConfigError(f"{restore_key!r:.80} is not a restore key of {self!r}")
        sample = self.samples(np.array([address], dtype=np.int64))[0]
        found = restore_key_of(sample)
        if found != restore_key:
            raise ConfigError(f"{restore_key!r} now gives the sample {found!r}: the data or the policy has changed")
        return sample

    def collate(self, samples: Sequence[Any]) -> Any:
        """Samples as one batch, by ``batch`` and ``encode_batch``, in columns."""
        if not samples:
            return {name: [] for name in self.columns}
        self.pipeline.check_thread()
        first = samples[0]
        key = restore_key_of(first)
        address = address_of(key)
        if address is None:
            raise ConfigError(f"{first!r:.80} has no restore key of EncodedDataset; collate what `samples` gives")
        place = Place(self._key, address)
        try:
            batches = self.pipeline.batch(samples, place)
        except HookFailure as failure:
            error = failure.error
            where = f"in {failure.hook.name} of {type(self.encoder).__name__}: the batch that begins with {key!r}"
            if isinstance(error, SkipSample):
                raise ConfigError(
                    f"SkipSample {where}: a fixed source cannot leave a batch out; leave samples out by substitutes, or"
                    " take a framed source"
                ) from error
            error.add_note(where)
            raise error from error.__cause__
        if len(batches) != 1:
            raise ConfigError(
                f"{type(self.encoder).__name__}.encode_batch gave {len(batches)} batches; EncodedDataset is a fixed"
                " source and takes exactly one: return it, or take a framed source"
            )
        return columns_of(batches[0], type(self.encoder).__name__)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Those of the samples that were meant; a substitute shows in the restore key, and in ``faults``."""
        return self.dataset.origins(self.indices(addresses))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples: the encoder is told from others by name and version."""
        return {
            "kind": "encoded",
            "version": 1,
            "dataset": self.dataset.recipe,
            **self.pipeline.recipe,
            "seed": self.seed,
            "on_error": self.errors.on_error,
        }

    def describe(self) -> str:
        """One line."""
        return f"{self.dataset.describe()}, encoded by {type(self.encoder).__name__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.dataset, self.encoder, self.seed, self.errors)


def _again(dataset: Media, encoder: TaskEncoder[Any, Any, Any, Any], seed: int, errors: ErrorPolicy) -> EncodedDataset:
    return EncodedDataset(dataset, encoder, seed=seed, errors=errors)
