"""Energon's wrappers over batches and samples that come one after another, and the base class of a user's own.

    get_train_dataset(...) --> DatasetStream --> MapStream, BlendStream, LimitStream, ... --> StreamsLoader

A wrapper runs in the process that trains; the datasets at the leaves read in their own workers. The state of a tree is
the state of each leaf's loader and a few numbers a node. Nodes that hold samples save their restore keys.

A wrapper around a dataset of Headrace (`MediaDataset`, a mix, `Framed`) is that of `headrace.compat.energon.wrappers`,
whose order does not depend on ranks.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
from torch.utils.data import IterableDataset

from headrace.compat.energon import wrappers
from headrace.compat.energon.dataset import EnergonDataset
from headrace.compat.energon.loader import EnergonLoader
from headrace.compat.energon.workers import WorkerConfig
from headrace.datasets import Concat, Dataset, Framed, Limit, MapDataset, Repeat
from headrace.datasets.mix import Mix
from headrace.encoders import get_stateless
from headrace.errors import ConfigError, SkipSample, StateError

T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("headrace")

MakeLoader = Callable[[EnergonDataset], EnergonLoader]


class SavableDataset(IterableDataset[T_co], Generic[T_co]):
    """Samples or batches one after another, with a state: the base class of wrappers and of a user's own datasets.

    A class of the user's overrides ``__iter__`` and ``len_worker``, and names the attributes that make up its state in
    ``_savable_fields``. An iteration goes on where the attributes say.

    Args:
        worker_config: rank and workers.
    """

    _savable_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config

    def __iter__(self) -> Iterator[T_co]:
        raise ConfigError(f"{type(self).__name__} must override __iter__")

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The samples of one worker; here all are counted for worker 0, since wrappers run in one process."""
        raise TypeError(f"{type(self).__name__} has no length: override len_worker")

    def len_rank(self) -> int:
        """The samples of this rank."""
        return sum(self.len_worker(worker) for worker in range(max(1, self.worker_config.num_workers)))

    def __len__(self) -> int:
        return self.len_rank()

    def worker_has_samples(self) -> bool:
        """Whether there are samples at all."""
        return True

    def inner(self) -> tuple[SavableDataset[Any], ...]:
        """The datasets that this one reads."""
        return ()

    def save_state(self) -> dict[str, Any]:
        """The state: the attributes that ``_savable_fields`` names, and the states of the inner datasets."""
        state: dict[str, Any] = {"__class__": type(self).__name__}
        for name in self._savable_fields:
            value = getattr(self, name)
            state[name] = value.save_state() if isinstance(value, SavableDataset) else deepcopy(value)
        if own := self.inner():
            state["__inner__"] = [one.save_state() for one in own]
        return state

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            StateError: it is of another class, or of other inner datasets.
        """
        own = self.inner()
        saved = state.get("__inner__", [])
        if state.get("__class__") != type(self).__name__ or len(saved) != len(own):
            raise StateError(
                f"the state is of {state.get('__class__')!r} over {len(saved)} datasets, and this is"
                f" {type(self).__name__} over {len(own)}: wrap the same datasets in the same way"
            )
        for name in self._savable_fields:
            value = getattr(self, name)
            if isinstance(value, SavableDataset):
                value.restore_state(state[name])
            else:
                setattr(self, name, deepcopy(state[name]))
        for one, part in zip(own, saved, strict=True):
            one.restore_state(part)

    def reset_state_own(self) -> None:
        """Begin again, but for the inner datasets."""

    def reset_state_deep(self) -> None:
        """Begin again."""
        self.reset_state_own()
        for one in self.inner():
            one.reset_state_deep()

    def config(self) -> dict[str, Any]:
        """What the dataset is, for comparison."""
        return {"type": type(self).__qualname__}

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` can make samples again."""
        return False

    def assert_can_restore(self) -> None:
        """Raise ConfigError if samples cannot be made again."""
        if not self.can_restore_sample():
            raise ConfigError(f"{type(self).__name__} cannot make samples again: mark its functions @stateless")

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a sample again from its restore key. Raises ConfigError if that is not possible."""
        raise ConfigError(f"{type(self).__name__} cannot make samples again")

    def use(self, make: MakeLoader) -> None:
        """Make the loaders of the leaves with a function, before the first iteration."""
        for one in self.inner():
            one.use(make)

    def close(self) -> None:
        """End the workers of the leaves."""
        for one in self.inner():
            one.close()


class DatasetStream(SavableDataset[Any]):
    """The batches of a dataset that `get_train_dataset` or `get_val_dataset` made."""

    def __init__(self, dataset: EnergonDataset) -> None:
        super().__init__(dataset.worker_config)
        self.dataset = dataset
        self._make: MakeLoader | None = None
        self._loader: EnergonLoader | None = None

    @property
    def loader(self) -> EnergonLoader:
        """The loader, made when it is first needed; without `use`, it reads in this process."""
        if self._loader is None:
            self._loader = self.dataset.loader() if self._make is None else self._make(self.dataset)
        return self._loader

    def use(self, make: MakeLoader) -> None:
        """See `SavableDataset.use`."""
        if self._loader is None:
            self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The batches of this rank, all counted for worker 0."""
        return 0 if worker_idx else len(self.dataset)

    def worker_has_samples(self) -> bool:
        """Whether this rank has batches."""
        return len(self.dataset) > 0

    def save_state(self) -> dict[str, Any]:
        """The state of the loader."""
        return {"__class__": type(self).__name__, "loader": self.loader.state_dict()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `SavableDataset.restore_state`."""
        if state.get("__class__") != type(self).__name__:
            raise StateError(
                f"the state is of {state.get('__class__')!r}, and this is a dataset that is read from disk"
            )
        self.loader.load_state_dict(state["loader"])

    def reset_state_own(self) -> None:
        """Begin again."""
        if self._loader is not None:
            self._loader.restore_state_rank(None)

    def config(self) -> dict[str, Any]:
        """The recipe of the dataset."""
        return self.dataset.config()

    def can_restore_sample(self) -> bool:
        """See `SavableDataset.can_restore_sample`."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        """See `SavableDataset.restore_sample`."""
        return self.dataset.restore_sample(restore_key)

    def close(self) -> None:
        """See `SavableDataset.close`."""
        if self._loader is not None:
            self._loader.close()


SavableDataset.register(EnergonDataset)

_OF_SAMPLES = (Dataset, Mix, Framed)


def stream_of(dataset: Any) -> SavableDataset[Any]:
    """Return a dataset as one that wrappers read. Raises ConfigError for anything that is not a dataset."""
    if isinstance(dataset, EnergonDataset):
        return DatasetStream(dataset)
    if isinstance(dataset, SavableDataset):
        return dataset
    if callable(getattr(dataset, "build", None)):
        return stream_of(dataset.build())
    raise ConfigError(
        f"dataset is {dataset!r:.80}; expected what get_train_dataset returns, a wrapper, or a SavableDataset"
    )


class Wrapper(SavableDataset[Any]):
    """The base of wrappers. ``worker_config`` may be left out: it is that of the first dataset."""

    of_samples: ClassVar[Callable[..., Any] | None] = None
    """What makes the wrapper over datasets of Headrace."""

    def __new__(cls, *given: Any, **options: Any) -> Any:
        """Return the wrapper over samples, if the datasets are those of Headrace."""
        first = given[0] if given else options.get("dataset")
        if cls.of_samples is not None and isinstance(first, (*_OF_SAMPLES, Mapping)):
            return cls.of_samples(*given, **{name: value for name, value in options.items() if name not in _UNUSED})
        return super().__new__(cls)

    def __init__(self, *datasets: Any, worker_config: WorkerConfig | None = None) -> None:
        if not datasets:
            raise ConfigError(f"{type(self).__name__} needs a dataset")
        self.datasets = tuple(map(stream_of, datasets))
        super().__init__(self.datasets[0].worker_config if worker_config is None else worker_config)

    @property
    def dataset(self) -> SavableDataset[Any]:
        """The only inner dataset."""
        return self.datasets[0]

    def inner(self) -> tuple[SavableDataset[Any], ...]:
        """See `SavableDataset.inner`."""
        return self.datasets

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """As many as the inner datasets have."""
        return sum(one.len_worker(worker_idx) for one in self.datasets)

    def worker_has_samples(self) -> bool:
        """Whether an inner dataset has samples."""
        return any(one.worker_has_samples() for one in self.datasets)

    def config(self) -> dict[str, Any]:
        """The kind of the wrapper, and the inner datasets."""
        return {**super().config(), "datasets": [one.config() for one in self.datasets]}

    def can_restore_sample(self) -> bool:
        """Whether all inner datasets can."""
        return all(one.can_restore_sample() for one in self.datasets)

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a sample again; of several inner datasets, by the first one that knows the key."""
        self.assert_can_restore()
        for one in self.datasets[:-1]:
            try:
                return one.restore_sample(restore_key)
            except ConfigError:
                continue
        return self.datasets[-1].restore_sample(restore_key)


_UNUSED: Final = (
    "worker_config",
    "stateless_map_fn",
    "map_fn_config",
    "failure_tolerance",
    "batcher_stateless",
    "batcher_config",
    "filter_fn_config",
    "iter_map_fn_config",
    "stateless_iter_fn",
    "len_map_fn",
    "reset_after_epoch",
    "restart",
)
"""Arguments of Energon's that a wrapper over samples does not need: functions are marked ``@stateless``."""


def _results(function: Callable[[Any], Any], sample: Any) -> Iterator[Any]:
    """The results of a function that returns one, or yields any number, or skips."""
    try:
        made = function(sample)
        yield from made if inspect.isgenerator(made) else [made]
    except SkipSample:
        return


def _key(sample: Any) -> Any:
    found = sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)
    if found is None:
        raise StateError(f"a {type(sample).__name__} without __restore_key__ is held, so that there is no state of it")
    return list(found) if isinstance(found, list) else found


class MapStream(Wrapper):
    """Each sample under a function, which returns one, yields any number, or raises `SkipSample`.

    Args:
        dataset: the samples.
        map_fn: the function; mark it ``@stateless`` if its result depends on the sample alone.
        stateless_map_fn: the same as the mark.
        options: other arguments of Energon's.
    """

    _savable_fields = ("_open",)
    of_samples = MapDataset

    def __init__(
        self, dataset: Any, map_fn: Callable[[Any], Any], *, stateless_map_fn: bool = False, **options: Any
    ) -> None:
        super().__init__(dataset, worker_config=options.get("worker_config"))
        self.map_fn = map_fn
        self._is_stateless = stateless_map_fn or get_stateless(map_fn)
        self._open: tuple[Any, int] | None = None
        self._current: Any = None

    def reset_state_own(self) -> None:
        """Begin again."""
        self._open = self._current = None

    def save_state(self) -> dict[str, Any]:
        """The state; within the results of one sample, the sample's restore key and how many were given."""
        if self._current is not None:
            sample, number = self._current
            self._open = (_key(sample), number)
        return super().save_state()

    def __iter__(self) -> Iterator[Any]:
        if self._open is not None:
            key, number = self._open
            self._open = None
            yield from self._from(self.dataset.restore_sample(key), number)
        for sample in self.dataset:
            yield from self._from(sample, 0)

    def _from(self, sample: Any, first: int) -> Iterator[Any]:
        try:
            made = self.map_fn(sample)
            if not inspect.isgenerator(made):
                yield made
                return
            for number, one in enumerate(made):
                if number >= first:
                    self._current = (sample, number + 1)
                    yield one
        except SkipSample:
            pass
        self._current = None

    def can_restore_sample(self) -> bool:
        """Whether the function is stateless, and the inner dataset can."""
        return self._is_stateless and super().can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        """Make the sample again; of a function that yields several, the first."""
        return next(_results(self.map_fn, super().restore_sample(restore_key)))


class FilterStream(Wrapper):
    """The samples for which ``filter_fn`` returns True."""

    of_samples = wrappers.FilterDataset

    def __init__(
        self,
        dataset: Any,
        filter_fn: Callable[[Any], bool],
        *,
        filter_fn_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.filter_fn = filter_fn

    def __iter__(self) -> Iterator[Any]:
        return (sample for sample in self.dataset if self.filter_fn(sample))


class IterMapStream(Wrapper):
    """The samples that ``iter_map_fn`` makes of the iterator of all samples; what it holds is lost on resume."""

    of_samples = wrappers.IterMapDataset

    def __init__(
        self,
        dataset: Any,
        iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]],
        *,
        len_map_fn: Callable[[int], int] = lambda length: length,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn = iter_map_fn
        self.len_map_fn = len_map_fn

    def len_worker(self, worker_idx: int | None = None) -> int:
        """What ``len_map_fn`` says."""
        return self.len_map_fn(super().len_worker(worker_idx))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iter_map_fn(iter(self.dataset)))

    def can_restore_sample(self) -> bool:
        """No: the function may combine samples."""
        return False


class LimitStream(Wrapper):
    """``length`` samples in an iteration; the next one goes on, or begins again with ``reset_after_epoch``."""

    _savable_fields = ("current_offset",)
    of_samples = Limit

    def __init__(
        self,
        dataset: Any,
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length
        self.reset_after_epoch = reset_after_epoch
        self.current_offset = 0

    def reset_state_own(self) -> None:
        """Begin again."""
        self.current_offset = 0

    def len_worker(self, worker_idx: int | None = None) -> int:
        """At most ``length``."""
        return min(self.length, super().len_worker(worker_idx))

    def __iter__(self) -> Iterator[Any]:
        if self.current_offset < self.length:
            for sample in self.dataset:
                self.current_offset += 1
                yield sample
                if self.current_offset >= self.length:
                    break
        self.current_offset = 0
        if self.reset_after_epoch:
            self.dataset.reset_state_deep()


class EpochizeStream(Wrapper):
    """``length`` samples in an iteration; the next one goes on, and the inner dataset begins again when it ends."""

    _savable_fields = ("_offset",)

    def __init__(self, dataset: Any, length: int, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length
        self._offset = 0
        self._samples: Iterator[Any] | None = None

    def reset_state_own(self) -> None:
        """Begin again."""
        self._offset, self._samples = 0, None

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See `SavableDataset.restore_state`."""
        super().restore_state(state)
        self._samples = None

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The length of an iteration."""
        return 0 if worker_idx else self.length

    def __iter__(self) -> Iterator[Any]:
        while self._offset < self.length:
            if self._samples is None:
                self._samples = iter(self.dataset)
            try:
                sample = next(self._samples)
            except StopIteration:
                self._samples = None
                if not self.dataset.worker_has_samples():
                    return
                continue
            self._offset += 1
            yield sample
        self._offset = 0


class RepeatStream(Wrapper):
    """The inner dataset again and again: endlessly, or ``repeats`` times, of which the last may be a part."""

    _savable_fields = ("_repetition", "_index")
    of_samples = Repeat

    def __init__(
        self,
        dataset: Any,
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.repeats = repeats
        self.restart = restart
        self._repetition = self._index = 0

    def reset_state_own(self) -> None:
        """Begin again."""
        self._repetition = self._index = 0

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The samples of all repetitions; of one, if they are endless."""
        once = super().len_worker(worker_idx)
        return once if self.repeats is None else math.floor(once * self.repeats)

    def __iter__(self) -> Iterator[Any]:
        if self.repeats is None and not self.dataset.worker_has_samples():
            raise ConfigError("RepeatDataset: the inner dataset is empty, and cannot be repeated endlessly")
        while self.repeats is None or self._repetition < self.repeats:
            last = self.repeats is not None and self._repetition == math.floor(self.repeats)
            stop = math.floor(self.dataset.len_rank() * (self.repeats % 1)) if last and self.repeats else None
            if stop is None or self._index < stop:
                for sample in self.dataset:
                    self._index += 1
                    yield sample
                    if stop is not None and self._index >= stop:
                        break
            self._repetition += 1
            self._index = 0
        self._repetition = 0 if self.restart else math.ceil(self.repeats)


class ConcatStream(Wrapper):
    """The inner datasets one after another."""

    _savable_fields = ("_number",)
    of_samples = Concat

    def __init__(self, *datasets: Any, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(*datasets, worker_config=worker_config)
        self._number = 0

    def reset_state_own(self) -> None:
        """Begin again."""
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        while self._number < len(self.datasets):
            yield from self.datasets[self._number]
            self._number += 1
        self._number = 0


class BlendStream(Wrapper):
    """Samples of several datasets, each drawn with the probability of its weight: ``BlendDataset((a, 2), (b, 8))``.

    A draw depends on the seed, the rank and the number of draws before it. A dataset that ends is drawn no more; when
    all have ended, so has the iteration.
    """

    _savable_fields = ("_draws", "exhausted")
    of_samples = wrappers.BlendDataset

    def __init__(self, *dataset_weights: tuple[Any, float], worker_config: WorkerConfig | None = None) -> None:
        for pair in dataset_weights:
            if not isinstance(pair, tuple) or len(pair) != 2 or not pair[1] > 0:
                raise ConfigError(f"BlendDataset: expected pairs (dataset, weight above 0), found {pair!r:.80}")
        super().__init__(*(dataset for dataset, _ in dataset_weights), worker_config=worker_config)
        self.weights = tuple(float(weight) for _, weight in dataset_weights)
        self.exhausted = [False] * len(self.datasets)
        self._draws = 0

    @property
    def dataset_weights(self) -> tuple[tuple[SavableDataset[Any], float], ...]:
        """The datasets with their weights."""
        return tuple(zip(self.datasets, self.weights, strict=True))

    def reset_state_own(self) -> None:
        """Begin again."""
        self.exhausted, self._draws = [False] * len(self.datasets), 0

    def __iter__(self) -> Iterator[Any]:
        streams = [iter(one) for one in self.datasets]
        while not all(self.exhausted):
            weights = [0.0 if ended else one for ended, one in zip(self.exhausted, self.weights, strict=True)]
            number = self._draw(np.array(weights))
            try:
                sample = next(streams[number])
            except StopIteration:
                self.exhausted[number] = True
                continue
            yield sample
        self.exhausted = [False] * len(self.datasets)

    def _draw(self, weights: Any) -> int:
        seed = (self.worker_config.seed_offset & (2**64 - 1), self.worker_config.rank, self._draws)
        self._draws += 1
        bounds = np.cumsum(weights)
        return int(np.searchsorted(bounds, np.random.default_rng(seed).random() * bounds[-1], side="right"))


class BatchStream(Wrapper):
    """Batches of ``batch_size`` samples, which ``batcher`` makes.

    Args:
        dataset: the samples.
        batch_size: the samples of a batch.
        batcher: a function of a list of samples.
        batcher_stateless: the same as marking it ``@stateless``.
        drop_last: leave out a last batch that is short.
        options: other arguments of Energon's.
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
                yield from _results(self.batcher, held)
                held = []
        if held and not self.drop_last:
            yield from _results(self.batcher, held)

    def can_restore_sample(self) -> bool:
        """Whether the batcher is stateless, and the inner dataset can."""
        return self._is_stateless and super().can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a batch again from the list of the keys of its samples."""
        self.assert_can_restore()
        return next(_results(self.batcher, [self.dataset.restore_sample(key) for key in restore_key]))


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
            self._keys = {name: [_key(sample) for sample in samples] for name, samples in self.held.items() if samples}
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
                yield from _results(self.batcher, held)
        for name in list(self.held):
            held = self.held.pop(name)
            if held and not self.drop_last:
                yield from _results(self.batcher, held)


class PackingStream(HoldingStream):
    """Packs: ``pre_packer`` selects among ``buffer_size`` samples, and ``final_packer`` makes a pack of each selection.

    As in Energon, samples that are not selected are dropped.

    Args:
        dataset: the samples.
        buffer_size: how many samples are selected among.
        pre_packer: a function of a list of samples that returns lists of them.
        final_packer: makes a pack of the samples of a list.
        sample_encoder: applied to each selected sample before.
        options: other arguments of Energon's.
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
                samples = [one for sample in samples for one in _results(self.sample_encoder, sample)]
            yield from _results(self.final_packer, samples)


class LogSampleStream(Wrapper):
    """The same samples: nothing is logged, since `headrace trace` computes what a step was fed."""

    def __init__(self, dataset: Any, mode: str = "train", worker_config: WorkerConfig | None = None, **_: Any) -> None:
        super().__init__(dataset, worker_config=worker_config)


class WatchdogStream(Wrapper):
    """The same samples; if one takes longer than ``timeout_seconds``, the stacks of all threads are logged once.

    This is for wrappers, which run in this process. A loader without worker processes watches its batches itself, and
    one with worker processes replaces a worker that hangs.

    Args:
        dataset: the samples.
        worker_config: that of the dataset.
        timeout_seconds: how long a sample may take; None for ever.
        initial_timeout_seconds, fail_on_timeout: Energon's; not used.
    """

    def __init__(
        self,
        dataset: Any,
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.timeout_seconds = timeout_seconds

    @classmethod
    def _watchdog_trigger(cls, timeout_seconds: float) -> None:
        stacks = "".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
        _log.warning("a sample takes more than %s s; all threads are at:\n%s", timeout_seconds, stacks)

    @classmethod
    def watched(cls, samples: Iterator[Any], timeout_seconds: float) -> Iterator[Any]:
        """The same samples, watched."""
        while True:
            # A thread for each sample takes some 50 us, and leaves none that the fork of a worker would have to avoid.
            timer = threading.Timer(timeout_seconds, cls._watchdog_trigger, (timeout_seconds,))
            timer.daemon = True
            timer.start()
            try:
                sample = next(samples)
            except StopIteration:
                return
            finally:
                timer.cancel()
            yield sample

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        return samples if self.timeout_seconds is None else self.watched(samples, self.timeout_seconds)


class GcStream(Wrapper):
    """The same samples: the garbage collector is left alone."""

    def __init__(self, dataset: Any, *, worker_config: WorkerConfig | None = None, **_: Any) -> None:
        super().__init__(dataset, worker_config=worker_config)


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


class StreamsLoader:
    """A loader over wrappers, with the methods of `EnergonLoader`. Its state holds that of each leaf.

    Args:
        dataset: the outermost wrapper.
        make: makes the loader of a leaf.
    """

    def __init__(self, dataset: SavableDataset[Any], make: MakeLoader) -> None:
        self.dataset = dataset
        dataset.use(make)

    @property
    def worker_config(self) -> WorkerConfig:
        """The configuration of the outermost wrapper."""
        return self.dataset.worker_config

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def save_state_rank(self) -> dict[str, Any]:
        """The state of this rank."""
        return self.dataset.save_state()

    def restore_state_rank(self, state: Mapping[str, Any] | None) -> None:
        """Take over a state of `save_state_rank`; None begins again."""
        if state is None:
            self.dataset.reset_state_deep()
        else:
            self.dataset.restore_state(state)

    state_dict = save_state_rank
    load_state_dict = restore_state_rank

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` can make samples again."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, key: Any) -> Any:
        """Make a sample or batch again from its restore key."""
        return self.dataset.restore_sample(key)

    def config(self) -> dict[str, Any]:
        """What the wrappers are."""
        return self.dataset.config()

    def close(self) -> None:
        """End the workers of the leaves."""
        self.dataset.close()
