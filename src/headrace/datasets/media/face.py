"""`SampleDataset`, the base class of datasets of multi-modal samples, and how their samples become one batch.

`PolicedSamples`: samples of a dataset of media, made as an `ErrorPolicy` says: what cannot be made is replaced.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from time import sleep
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Fields, RaggedDataset, Sample, SampleWatch, Traits
from headrace.datasets.origins import Origins, media_origins
from headrace.encoders import ErrorPolicy, Fault, FaultLog, Hook, HookFailure, is_of_sample
from headrace.encoders.pipeline import READING
from headrace.encoders.task_encoder import function_hook
from headrace.errors import ConfigError, HeadraceError, SampleError, SkipSample, raised
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import source_key, substitute_index
from headrace.samples.media import pad_stack
from headrace.samples.media.batch import Allocate, Room, key_of, rows_of
from headrace.samples.media.sample import pinned
from headrace.stores import RetryPolicy, SampleStore, may_pass
from headrace.stores.arguments import sample_numbers

__all__ = ["Allocate", "Room", "SampleDataset", "collated", "pinned", "without_rows"]

_STACKED = frozenset("?bBhHiIlLqQefdFD")
"""Codes of the dtypes that tensors can have."""


def for_tensor(values: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array in the byte order of the machine, as tensors have it; None if tensors cannot have its dtype."""
    if values.dtype.char not in _STACKED:
        return None
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def collated(samples: Sequence[Any], allocate: Allocate | None = None) -> dict[str, Any]:
    """Return samples, or dicts, as a dict of columns; row i of each column comes from sample i.

    If every sample has an array of numbers or a tensor in a field, the column is one array or tensor of shape (n,
    largest size of each axis ...), padded with zeros; every other column is a list of n values. `Batch.from_samples`
    does this for a batch type of your own. Arrays and tensors are stacked in memory of ``allocate``, if it is given.

    Raises:
        ConfigError: the samples have different fields, or the arrays of a field differ in rank or dtype.
    """
    rows = rows_of(samples)
    return {name: _column(name, [row[name] for row in rows], rows, allocate) for name in (rows[0] if rows else ())}


def without_rows(batch: Mapping[str, Any], num_rows: int = 1) -> dict[str, Any]:
    """Return a batch of ``num_rows`` samples without its rows: arrays (num_rows, ...) become (0, ...), lists empty.

    Arrays with another first axis, and other values, stay as they are.
    """

    def cut(value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == num_rows:
            return []
        shape: tuple[int, ...] = getattr(value, "shape", ())
        return value[:0] if len(shape) and shape[0] == num_rows else value

    return {name: cut(value) for name, value in batch.items()}


def _column(name: str, values: list[Any], rows: Sequence[Mapping[str, Any]], allocate: Allocate | None) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        arrays = list(map(for_tensor, values))
        if any(array is None for array in arrays):
            return values
        values = arrays
    # Tensors are recognised by a method, since torch may not be installed.
    elif not all(callable(getattr(value, "new_zeros", None)) for value in values):
        return values
    try:
        return pad_stack(values, allocate)
    except ConfigError as error:
        raise ConfigError(f"field {name!r} of samples {key_of(rows[0])} to {key_of(rows[-1])}: {error}") from None


class SampleDataset(RaggedDataset):
    """Sample i is sample i of a store, made when it is read; samples are collated for each micro-batch.

    Samples count as samples, whatever they hold: they have no number of tokens to blend or to sort by.
    """

    store: SampleStore
    errors: ErrorPolicy | None = None
    """What happens when samples cannot be made; None raises."""

    def __len__(self) -> int:
        return len(self.store)

    @property
    def fields(self) -> Fields:
        """Empty: what a sample holds, and its size, is known only when it is read."""
        return {}

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: the borders of the shards of the store."""
        return self.store.shard_bounds

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(is_ragged=True, has_tokens=False, holds_interpreter=True)

    @property
    def num_tokens_per_sample(self) -> float:
        """Raises ConfigError, since media samples have no number of tokens; so does a blend by tokens."""
        raise ConfigError(
            f"{type(self).__name__}: media samples have no number of tokens; blend them by unit='samples'"
        )

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Raise ConfigError: media samples have no lengths in tokens."""
        raise ConfigError(f"{type(self).__name__}: media samples have no lengths in tokens; leave bucketing out")

    @property
    def collated_by(self) -> dict[str, Any]:
        """The same for all media datasets: `collated` makes their batches and checks that fields agree."""
        return {"kind": "media samples"}

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The code of the user that makes samples before any hook runs: cookers and joiners."""
        return ()

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the fields of the samples, as far as they are known before one is read."""

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return the samples at some addresses: all are read together, then decoded and cooked one by one.

        Raises:
            SampleError: a sample cannot be made (`DecodeError`, `FieldAccessError`); names file, key, part and byte.
            InputError: a sample is malformed on disk.
            StoreError: a file is missing, changed or cut short.
        """
        watch = watch or SampleWatch()
        return watch.make(addresses, self.makers(addresses, watch))

    @abstractmethod
    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read the samples at some addresses together; each returned function decodes and cooks one sample.

        Raises:
            InputError, StoreError: as in `samples`; the functions raise SampleError.
        """

    @cached_property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; functions are recorded by their names."""

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return samples as one batch, see `collated`; without samples each column is an empty list."""
        return collated(samples) if samples else {name: [] for name in self.columns}  # type: ignore[misc]

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of samples."""
        return indices

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of the samples at some addresses; undoes ``locate``."""
        return addresses

    @abstractmethod
    def address_of(self, restore_key: Any) -> int | None:
        """Return the address of the sample with a restore key; None for a key that no sample of the dataset has."""

    def restore_sample(self, restore_key: Any) -> Any:
        """Make the sample of a restore key again. Raises ConfigError for a key of another dataset."""
        address = self.address_of(restore_key)
        if address is None:
            raise ConfigError(f"{restore_key!r:.80} is not a restore key of {self!r}")
        return self.samples(np.array([address], dtype=np.int64))[0]

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return key and shard of each sample; the store may have to read the head of a sample to find its key."""
        return media_origins(self.store, addresses)

    def find_keys(self, key: str) -> list[int]:
        """Return the samples with a key: one for each time that its shard is listed."""
        store = self.store
        try:
            first = store.find(key)
        except KeyError:
            raise ConfigError(f"{store.path}: has no sample with the key {key!r}") from None
        begins = store.shard_bounds
        shard = int(np.searchsorted(begins, first, side="right")) - 1
        within = first - int(begins[shard])
        twins = [i for i, name in enumerate(store.shards) if name == store.shards[shard]]
        numbers = [int(begins[i]) + within for i in twins if within < begins[i + 1] - begins[i]]
        return [number for number in numbers if store.key(number) == key]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``; negative ones count from the end."""
        return self.samples(sample_numbers(indices, len(self), self.store.path))

    def close(self) -> None:
        """Close the files. Samples that were returned stay valid."""
        self.store.close()


_log = logging.getLogger("headrace")


class PolicedSamples:
    """Makes samples of a dataset, or their substitutes. It has no state but the faults that it counts.

    An address is the number of a sample.

    Args:
        dataset: a dataset of media.
        errors: what happens when samples cannot be made; None raises.
        seed: decides, with the path, which samples are substitutes.
        path: path of the dataset in a mix.

    Raises:
        ConfigError: not a policy.
    """

    left_out_by = "use a measured or framed source"
    """For messages: by what samples can be left out."""

    def __init__(self, dataset: SampleDataset, errors: ErrorPolicy | None, *, seed: int = 0, path: str = "") -> None:
        if errors is not None and not isinstance(errors, ErrorPolicy):
            raise ConfigError(f"errors is {errors!r:.80}; expected an ErrorPolicy")
        self.dataset = dataset
        self.errors = ErrorPolicy() if errors is None else errors
        self.faults = FaultLog()
        self.num_retries = 0
        self._retries = RetryPolicy(attempts=self.errors.attempts)
        self.cook = _cook_hook(dataset.functions)
        self._substitution = source_key(seed, path, "substitution")

    @property
    def _used(self) -> Sequence[Hook]:
        """The code of the user that makes a sample."""
        return () if self.cook is None else (self.cook,)

    @property
    def unrestorable(self) -> str | None:
        """The first of the user's functions that is not marked ``@stateless``, so that nothing can be made again."""
        return next((hook.name for hook in self._used if not hook.stateless), None)

    @property
    def dataset_name(self) -> str:
        """For messages: where the samples are."""
        return self.dataset.store.path

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples."""
        return addresses

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read samples together; each returned function makes one, or its substitute.

        The functions add faults to the ``watch``. They raise SampleError if too many samples failed; ConfigError for
        `SkipSample` if no sample may be left out; and whatever a hook raises, with a note that names hook and sample.
        """
        watch = watch or SampleWatch()
        addresses = np.asarray(addresses, dtype=np.int64)
        indices = self.indices(addresses)
        try:
            makers = self.dataset.makers(indices, watch)
        except SampleError:
            # One sample cannot be read; reading them one by one shows which.
            makers = [partial(self._made_alone, index) for index in indices.tolist()]
        rows = zip(addresses.tolist(), indices.tolist(), makers, strict=True)
        return [partial(self._made, address, index, make, watch) for address, index, make in rows]

    def _made_alone(self, index: int) -> Any:
        return self.dataset.makers(np.array([index], dtype=np.int64))[0]()

    def _attempt(self, address: int, make: Callable[[], Any], watch: SampleWatch) -> Any:
        """Return what is made for an address. Raises HookFailure."""
        try:
            return make()
        except Exception as error:
            raise HookFailure(self.cook or READING, raised(error)) from error

    def _made(self, address: int, index: int, make: Callable[[], Any], watch: SampleWatch) -> Any:
        """Return what is made for an address, or of the first substitute that can be made."""
        met: list[Fault] = []
        delays: Iterator[float] | None = None
        while True:
            try:
                return self._attempt(address, make, watch)
            except HookFailure as failure:
                if may_pass(failure.error) and self.unrestorable is None:
                    delays = self._retries.delays() if delays is None else delays
                    if (delay := next(delays, None)) is not None:
                        self._again(failure, index, delay)
                        continue
                self._count(failure, address, index, met, watch)
            index = substitute_index(self._substitution, address, len(met), len(self.dataset))
            make = partial(self._made_alone, index)

    def _again(self, failure: HookFailure, index: int, delay: float) -> None:
        """Wait before a passing fault is tried again."""
        self.num_retries += 1
        error = f"{type(failure.error).__name__}: {failure.error}"
        _log.warning("%s: %s; trying again in %.3g s", self._words(failure.hook.name, index), error, delay)
        sleep(delay)

    def fault_of(self, failure: HookFailure, address: int, index: int, watch: SampleWatch, attempt: int = 0) -> Fault:
        """Return the fault of a sample that failed in a hook, and add it to the ``watch``.

        Raises:
            Exception: what the hook raised, if the sample is not to blame.
        """
        error, hook = failure.error, self._blamed(failure)
        if hook.name not in ("read", "cook_crude_sample") and not isinstance(error, SampleError):
            error.add_note(self._words(hook.name, index))
        if not is_of_sample(error, stateless=hook.stateless):
            if may_pass(error) and self.unrestorable is None:
                error.add_note(f"it was tried {self._retries.attempts} times")
            raise error from error.__cause__
        shard, key = self._where(index, error)
        fault = Fault(
            source=self.dataset_name,
            index=index,
            shard=shard,
            key=key,
            address=address,
            attempt=attempt,
            hook=hook.name,
            kind=type(error).__name__,
            reason=str(error),
        )
        return watch.add(fault)

    def _count(self, failure: HookFailure, address: int, index: int, met: list[Fault], watch: SampleWatch) -> None:
        """Add a failure to those ``met`` at an address, and return if another sample is to be tried; else raise."""
        error = failure.error
        fault = self.fault_of(failure, address, index, watch, len(met))
        met.append(fault)
        self.faults.add(fault)
        failed = Counter(one.hook for one in met)
        bound = self.errors.bound(self._blamed(failure).failure_tolerance)
        if self.errors.on_error == "substitute" and failed[fault.hook] < bound:
            if self.errors.on_fault is not None:
                self.errors.on_fault(error, fault)
            return
        watch.fatal = tuple(met)
        if self.errors.on_error == "substitute":
            counts = ", ".join(f"{count} in {name}" for name, count in failed.items())
            raise SampleError(
                None,
                f"no sample could be made in its place: {len(met)} failed in a row ({counts}), the last one with"
                f" {type(error).__name__}: {error}; check the data, or allow more with ErrorPolicy(tolerance=...)",
                shard=fault.shard,
                key=fault.key,
            ) from error
        if isinstance(error, SkipSample):
            raise ConfigError(
                f"SkipSample {self._words(fault.hook, index)}, key {fault.key!r}: a fixed source cannot leave a sample"
                " out, since the places of all others are fixed. Replace it by another sample,"
                f" errors=ErrorPolicy(on_error='substitute'), or {self.left_out_by}"
            ) from error
        raise error from error.__cause__

    def _blamed(self, failure: HookFailure) -> Hook:
        """Return the hook that failed; a part that cannot be decoded is not a fault of the cooker."""
        return READING if failure.hook is self.cook and isinstance(failure.error, SampleError) else failure.hook

    def _words(self, hook: str, index: int) -> str:
        return f"in {hook}: sample {index:,} of {self.dataset_name}"

    def _where(self, index: int, error: Exception) -> tuple[str | None, str | None]:
        """Return shard and key of a sample: from the store or, if its head cannot be read, from the error."""
        try:
            origin = media_origins(self.dataset.store, np.array([index], dtype=np.int64))[0][0]
        except HeadraceError:  # the first fault is the one to report
            return (error.shard, error.key) if isinstance(error, SampleError) else (None, None)
        return origin.shard, origin.key


def _cook_hook(functions: Sequence[Callable[..., Any]]) -> Hook | None:
    """Return the user's code that makes samples before any hook runs, cookers and joiners, as one hook."""
    if not functions:
        return None
    hooks = [function_hook("cook_crude_sample", function) for function in functions]
    tolerances = [hook.failure_tolerance for hook in hooks if hook.failure_tolerance is not None]
    return msgspec.structs.replace(
        hooks[0],
        stateless=all(hook.stateless for hook in hooks),
        may_draw=any(hook.may_draw for hook in hooks),
        seeds=tuple(sorted({name for hook in hooks for name in hook.seeds})),
        failure_tolerance=min(tolerances, default=None),
    )
