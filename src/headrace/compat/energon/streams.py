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
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
from torch.utils.data import IterableDataset

from headrace.compat.energon import wrappers
from headrace.compat.energon.dataset import EnergonDataset
from headrace.compat.energon.loader import EnergonLoader
from headrace.compat.energon.workers import WorkerConfig, warn_unused
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
            warn_unused(
                cls.__name__.replace("Stream", "Dataset"),
                {name: value for name, value in options.items() if name in _UNUSED},
            )
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
"""Arguments of Energon's that a wrapper over samples does not have; those that say something are named in a warning."""


def results_of(function: Callable[[Any], Any], sample: Any) -> Iterator[Any]:
    """The results of a function that returns one, or yields any number, or skips."""
    try:
        made = function(sample)
        yield from made if inspect.isgenerator(made) else [made]
    except SkipSample:
        return


def key_of(sample: Any) -> Any:
    """Return the restore key of a sample. Raises StateError if it has none."""
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
        options: other arguments of Energon's; those that say something are named in a warning.
    """

    _savable_fields = ("_open",)
    of_samples = MapDataset

    def __init__(
        self, dataset: Any, map_fn: Callable[[Any], Any], *, stateless_map_fn: bool = False, **options: Any
    ) -> None:
        super().__init__(dataset, worker_config=options.get("worker_config"))
        warn_unused("MapDataset", options)
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
            self._open = (key_of(sample), number)
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
        return next(results_of(self.map_fn, super().restore_sample(restore_key)))


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
        warn_unused("IterMapDataset", options)
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
