"""`DataLoader`: torch's by its signature, over any map-style dataset, exactly resumable on any number of ranks.

    dataset --> MapStyleDataset --> Run over one epoch --> Loader --> batches as collate_fn makes them

The order is that of a `Run`: sample i of epoch e stands at position e x len(dataset) + i. Each epoch is fed by a run
that begins and ends with it, so that a state is the epoch and the number of its samples that were given.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_convert,
    get_worker_info,
)

from headrace.config import check_choice, optional_whole, whole
from headrace.datasets import Run
from headrace.datasets.map_style import BATCH, MapStyleDataset, Seeded
from headrace.datasets.mix import Mix
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError, StateError
from headrace.loader.epochs import EpochLoader
from headrace.loader.loader import Loader
from headrace.loader.ranks import Ranks
from headrace.loader.reading import Reading
from headrace.plan import BatchSchedule, Order, Share
from headrace.plan.bucketing import Bucketing
from headrace.plan.slots import num_micro_batches

_log = logging.getLogger("headrace")

_VERSION: Final = 1
_NO_TIMEOUT_S: Final = 1e9


DrawnOrder = Literal["full", "torch"]


class EpochsAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the samples of a `DataLoader`, over all ranks and all lives of the training.

    Attributes:
        epochs: the number of epochs that were begun.
        given: the number of samples that were given, each counted once.
        repeated: how many samples came to two ranks, since fewer were left for the last batches of an epoch than there
            are ranks.
        left: how many samples did not come, since their epoch was left before its end.
        dropped: how many samples did not come because of ``drop_last``.
    """

    epochs: int = 0
    given: int = 0
    repeated: int = 0
    left: int = 0
    dropped: int = 0


class _Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a `DataLoader` is: in which epoch, and after how many of its samples.

    Steps of the present size begin at sample ``begin`` of the epoch, with the number ``first_step``. ``is_over`` says
    whether the iteration over the epoch was ended.
    """

    epoch: int = 0
    position: int = 0
    is_over: bool = False
    begin: int = 0
    first_step: int = 0


class _Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a `DataLoader`."""

    version: int
    dataset: dict[str, Any]
    order: dict[str, Any]
    global_batch_size: int
    place: _Place
    account: EpochsAccount


class DataLoader(EpochLoader):
    """Torch's ``DataLoader`` by its signature, which resumes exactly: on other ranks, workers and batch sizes, too.

        from headrace import DataLoader

    **Epochs.** Each iteration is one epoch, and the next one another permutation. The first iteration after
    ``load_state_dict`` is the rest of the epoch of the state; any other begins the next epoch, also after one that was
    left early, whose rest is counted as left. Every sample comes once an epoch, for any number of ranks.

    **Ranks.** Each process makes a loader over the whole dataset and gets its own batches. All ranks have equally many.
    If fewer samples are left for the last batches of an epoch than there are ranks, some come to two ranks, which
    ``account()`` counts and a warning tells once; with ``drop_last`` a step that is not full is left out.

    **Resuming.** ``state_dict()`` after any batch, under 1 KB and the same on all ranks, continues with the next one,
    whatever workers have read ahead. On another number of ranks the order goes on, with batches of ``batch_size`` times
    ranks samples; with ``global_batch_size`` a step keeps its samples, in ``accumulation_steps`` batches of each rank.

    **Random numbers** of Python, NumPy and torch are seeded for each batch, see ``seeded`` of `MapStyleDataset`. Those
    of the training loop are left as they are.

    Args:
        dataset: any map-style dataset, see `headrace.MapStyleDataset`.
        batch_size: samples in a batch of this rank; None hands out single samples, through ``collate_fn`` if given.
        shuffle: whether each epoch is a permutation.
        sampler: one of torch's that says no more than an order: ``SequentialSampler``, ``RandomSampler`` without
            replacement, ``SubsetRandomSampler``. A ``DistributedSampler`` gives rank, number of replicas, shuffling,
            seed and ``drop_last``, and is not used otherwise.
        batch_sampler: torch's ``BatchSampler`` of one of these.
        num_workers: worker processes, in which ``get_worker_info()`` works. With 0 samples are made when a batch is
            asked for; up to 64 at once, of several small batches.
        collate_fn: makes a batch of a list of samples; by default torch's ``default_collate``.
        pin_memory: whether batches are pinned, if torch can pin here.
        drop_last: leave out a last step of an epoch that is not full.
        timeout: seconds that a batch of workers may take; 0 is no limit.
        worker_init_fn: called with the number of a worker when it starts. It may set globals of its worker.
        multiprocessing_context: how workers start, a name or a context.
        generator: its ``initial_seed()`` is the seed of the order.
        prefetch_factor: hand-overs that each worker keeps ready.
        persistent_workers: whether workers stay for the next epoch.
        pin_memory_device: without effect, as in torch, which pins for the accelerator that is there.
        in_order: True; batches come in the order of the plan.
        seed: the seed of the order, if there is no ``generator``.
        order: ``"full"``, or ``"torch"``: each epoch is the permutation that torch's ``DistributedSampler`` and
            accelerate draw from the seed plus the number of the epoch, see `headrace.Order`.
        global_batch_size: samples of a step over all ranks; by default ``batch_size`` times ranks.
        ranks: the data-parallel rank; by default that of a ``DistributedSampler``, else ``Ranks.detect()``.
        lengths: (len(dataset),) integers, the length of each sample: samples of similar length share a step.
        seeded, errors, version: see `MapStyleDataset`.

    Raises:
        ConfigError: an argument is not allowed, or a sampler says more than can be computed; the message names a line
            that works.

    Example:
        >>> from headrace import DataLoader
        >>> loader = DataLoader(list(range(5)), batch_size=2, shuffle=True)
        >>> for epoch in range(2):
        ...     print(len(loader), sorted(number for batch in loader for number in batch.tolist()))
        3 [0, 1, 2, 3, 4]
        3 [0, 1, 2, 3, 4]
    """

    __class_getitem__ = classmethod(GenericAlias)  # type: ignore[var-annotated]  # annotations name what torch's yields

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        order: DrawnOrder = "full",
        global_batch_size: int | None = None,
        ranks: Ranks | None = None,
        lengths: ArrayLike | None = None,
        seeded: Seeded = "batch",
        errors: ErrorPolicy | None = None,
        version: str | int | None = None,
    ) -> None:
        if isinstance(dataset, Mix):
            raise ConfigError(
                f"dataset is {dataset!r:.80}, whose sources have epochs of their own: pass headrace.Run(blend, ...) to"
                " headrace.Loader"
            )
        if not in_order:
            raise ConfigError(
                "in_order=False hands batches out as they come, so that no state could say which: leave it out"
            )
        asked = _Asked(shuffle=bool(shuffle), drop_last=drop_last, generator=generator, batch_size=batch_size)
        asked = asked.of_samplers(sampler, batch_sampler, shuffle)
        self.dataset = dataset
        self.batch_size = optional_whole(asked.batch_size, "batch_size", 1)
        self.drop_last = asked.drop_last
        self.num_workers = whole(num_workers, "num_workers", 0)
        self.collate_fn = collate_fn
        self.generator = generator
        self.ranks = asked.ranks or ranks or _detected()
        if ranks is not None and (ranks.rank, ranks.world_size) != (self.ranks.rank, self.ranks.world_size):
            raise ConfigError(f"ranks is {ranks}, and the DistributedSampler has {self.ranks}: pass one of them")
        one = collate_fn or default_convert
        self._data = MapStyleDataset(
            dataset,
            collate_fn=partial(_alone, one) if self.batch_size is None else collate_fn,
            lengths=lengths,
            indices=asked.indices,
            version=version,
            seeded=seeded,
            errors=errors,
        )
        check_choice("order", order, get_args(DrawnOrder))
        if order == "torch" and (lengths is not None or asked.generator is not None):
            raise ConfigError(
                "order='torch' is the order of torch's sampler for a seed plus the number of the epoch: leave lengths="
                " out, and pass seed= in place of a generator, which goes on from epoch to epoch"
            )
        self._order = Order(kind=order if asked.shuffle else "none", seed=asked.seed(seed))
        self._micro_batch = 1 if self.batch_size is None else self.batch_size
        together = self._micro_batch * self.ranks.world_size
        step = optional_whole(global_batch_size, "global_batch_size", 1)
        self.global_batch_size = together if step is None else step
        if self.global_batch_size % together:
            raise ConfigError(
                f"global_batch_size is {self.global_batch_size}, and {self.ranks.world_size} ranks times batches of"
                f" {self._micro_batch} are {together} samples, which do not divide it: pass another batch_size"
            )
        self._bucketing = None
        if lengths is not None:
            self._bucketing = Bucketing(window_steps=max(1, min(Bucketing().window_steps, len(self._data))))
        self._reading = _reading(
            self.num_workers,
            pin_memory=pin_memory,
            timeout=timeout,
            init=partial(_init_worker, worker_init_fn, dataset),
            context=multiprocessing_context,
            prefetch=prefetch_factor,
            persistent=persistent_workers,
        )
        self._share = Share(self.ranks.rank, self.ranks.world_size, self._micro_batch)
        self._loader: Loader | None = None
        self._place = _Place()
        self._account = EpochsAccount()
        self._is_loaded = self._resumes = self._has_told = False
        self._iteration = 0

    @property
    def sampler(self) -> Any:
        """This loader, since trainers call ``set_epoch`` of what they find by this name."""
        return self

    @property
    def accumulation_steps(self) -> int:
        """Batches of this rank in a step; the last step of an epoch may have fewer."""
        return self.global_batch_size // (self._micro_batch * self.ranks.world_size)

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to, if this one is not left."""
        return self._place.epoch + self._place.is_over

    @property
    def position(self) -> int:
        """The number of samples of ``epoch`` that all ranks together were given."""
        return 0 if self._place.is_over else self._place.position

    @property
    def step(self) -> int:
        """The number of steps that were finished, in all epochs."""
        place = self._place
        given = place.position - place.begin
        is_last = place.position == self._end(place.begin)
        return place.first_step + (given + is_last * (self.global_batch_size - 1)) // self.global_batch_size

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch: rounded up, or with ``drop_last`` down, as torch's.

        With a ``global_batch_size``, ``drop_last`` rounds down to whole steps.
        """
        return num_micro_batches(BatchSchedule.of(self.global_batch_size), self._end(0), self._share)

    def num_left(self) -> int:
        """Return the number of batches of this rank that are left of the epoch."""
        begin, end = self._place.position, self._end(self._place.begin)
        return num_micro_batches(self._schedule(), self._first + end, self._share, self._first + begin)

    @property
    def _order_recipe(self) -> dict[str, Any]:
        # Without shuffling, too, the seed decides what samples draw.
        return {"kind": self._order.kind, "seed": self._order.seed}

    @property
    def _first(self) -> int:
        """The position in the run where the epoch begins."""
        return self._place.epoch * len(self._data)

    def _end(self, begin: int) -> int:
        """Return how many samples of an epoch come if steps of the present size begin at its sample ``begin``."""
        samples, size = len(self._data), self.global_batch_size
        return begin + (samples - begin) // size * size if self.drop_last else samples

    def _schedule(self) -> BatchSchedule:
        """Return steps of the present size from where they begin in the epoch; those before hold what came before."""
        first = self._place.first_step
        if self._bucketing is not None and self._first:
            first = self._bucketing.window_steps  # windows begin with the epoch
        return _steps_from(first, self._first + self._place.begin, self.global_batch_size)

    def _rest(self) -> Iterator[Any]:
        # An iterator that nothing is taken from, as trainers make one to look, changes nothing.
        if not self._resumes:
            self._go_to(self._place.epoch + (self._place.position > 0 or self._place.is_over))
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        # Begun with the first batch, since Lightning says the epoch when it has its iterator.
        self._iteration += 1
        iteration = self._iteration
        place, end = self._place, self._end(self._place.begin)
        if place.position >= end:
            if place.position:
                _log.warning(
                    "the state was taken after the last batch of epoch %s: this iteration, the rest of it, is empty,"
                    " and the next one is epoch %s",
                    *(place.epoch, place.epoch + 1),
                )
            self._ends()
            return
        run = Run(
            self._data,
            global_batch_size=self._schedule(),
            order=self._order,
            samples=self._first + end,
            bucketing=self._bucketing,
        )
        if not self._reading.persistent_workers:
            self.close()  # those of an epoch that was left: as torch's, new workers see what was changed in the dataset
        loader = self._loader
        if loader is None:
            loader = self._loader = Loader(
                run, micro_batch_size=self._micro_batch, ranks=self.ranks, reading=self._reading, uneven="fill"
            )
        loader.turn_to(run, self._first + place.position)
        # A batch that was handed over is not kept.
        yield from map(partial(self._handed_over, loader, iteration), loader)
        self._check_newest(iteration)
        self._ends()

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise StateError(
                "this iterator is outdated: the loader was iterated anew, loaded a state or was told another epoch; use"
                " the newest one"
            )

    def _go_to(self, epoch: int) -> None:
        """Go to the beginning of an epoch, and count what is left of the one before."""
        place = self._place
        if place.position and not place.is_over:
            end = self._end(place.begin)
            self._count(left=end - place.position, dropped=len(self._data) - end)
        num_steps = -(-(place.position - place.begin) // self.global_batch_size)
        self._place = _Place(epoch=epoch, first_step=place.first_step + num_steps)
        self._iteration += 1

    def _handed_over(self, loader: Loader, iteration: int, batch: dict[str, Any]) -> Any:
        self._check_newest(iteration)
        place = self._place
        position = loader.position - self._first
        given = position - place.position
        self._place = msgspec.structs.replace(place, position=position)
        repeated = max(0, self.ranks.world_size - given)
        self._is_loaded = self._resumes = False
        self._count(epochs=not place.position, given=given, repeated=repeated)
        if repeated and not self._has_told:
            self._has_told = True
            _log.warning(
                "%s samples are left for the last batches of %s ranks in an epoch: %s come twice; account() counts"
                " them, drop_last=True leaves a step that is not full out",
                *(given, self.ranks.world_size, repeated),
            )
        return batch[BATCH]

    def _ends(self) -> None:
        place, self._is_loaded, self._resumes = self._place, False, False
        if not place.is_over:
            self._place = msgspec.structs.replace(place, is_over=True)
            self._count(epochs=not place.position, dropped=len(self._data) - place.position)
        if self._loader is not None and not self._reading.persistent_workers:
            self._loader.close()

    def _count(self, **counts: int) -> None:
        added = {name: getattr(self._account, name) + count for name, count in counts.items()}
        self._account = msgspec.structs.replace(self._account, **added)

    def account(self) -> EpochsAccount:
        """Return what became of the samples so far, over all ranks, and over the lives before a state was loaded."""
        return self._account

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, as for a ``DistributedSampler``; otherwise epochs are counted.

        Raises:
            StateError: a state of another epoch was loaded.
        """
        epoch, place = whole(epoch, "epoch"), self._place
        if self._is_loaded and epoch == place.epoch:
            self._resumes = True  # its rest, which may be empty
            return
        if self._is_loaded and (epoch != place.epoch + 1 or place.position < self._end(place.begin)):
            raise StateError(
                f"the loop begins epoch {epoch}, and the state that was loaded is in epoch {self.epoch}: begin with"
                " loader.epoch"
            )
        self._is_loaded = self._resumes = False
        self._go_to(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was handed out, under 1 KB, safe for JSON, equal on all ranks."""
        saved = _Saved(
            version=_VERSION,
            dataset=self._data.recipe,
            order=self._order_recipe,
            global_batch_size=self.global_batch_size,
            place=self._place,
            account=self._account,
        )
        found: dict[str, Any] = msgspec.to_builtins(saved)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on after the last batch that was handed out when a state was taken. A refused state changes nothing.

        Raises:
            StateError: the state is damaged, or that of another dataset, another order or another kind of loader.
            ConfigError: samples are brought together by ``lengths``, and a step has another size than it had.
        """
        try:
            saved = msgspec.convert(dict(state_dict), _Saved)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise StateError(f"this is no state of a headrace.DataLoader: {error}") from error
        self._check(saved)
        place, size = saved.place, self.global_batch_size
        if size != saved.global_batch_size:
            num_steps = -(-(place.position - place.begin) // saved.global_batch_size)
            place = msgspec.structs.replace(place, begin=place.position, first_step=place.first_step + num_steps)
            _log.warning(
                "the state was saved with steps of %s samples, and goes on at sample %s of epoch %s with steps of %s;"
                " the order of the samples stays. Pass global_batch_size=%s to keep the steps",
                *(saved.global_batch_size, place.position, place.epoch, size, saved.global_batch_size),
            )
        self._place, self._account = place, saved.account
        self._iteration += 1
        self._is_loaded = saved.account.epochs > 0
        self._resumes = self._is_loaded and not place.is_over

    def start_at(self, position: int) -> None:
        """Go on after so many samples without a state, as when another loader fed them. It must have fed none itself.

        Samples are counted over all ranks: those of whole epochs, ``len(dataset)`` each, and then of one epoch, where a
        step begins.

        Raises:
            ConfigError: no step begins at the position, or samples were fed.
        """
        epoch, within = divmod(whole(position, "position", 0), max(1, len(self._data)))
        size = self.global_batch_size
        if within % size or within >= max(1, self._end(0)) or self._account.epochs:
            raise ConfigError(
                f"position {position} is sample {within} of epoch {epoch}, and this loader has fed"
                f" {self._account.given}: begin a new one where a step of {size} samples begins, or pass another"
                " global_batch_size="
            )
        steps = -(-self._end(0) // size) * epoch
        self._place = _Place(epoch=epoch, position=within, first_step=steps)
        self._count(epochs=epoch + (within > 0))
        self._is_loaded = self._resumes = True

    def restart_step(self) -> None:
        """Go back to the beginning of a step that a loaded state is within.

        A checkpoint that was made between the micro-batches of a step does not hold their gradients.
        """
        place = self._place
        cut = (place.position - place.begin) % self.global_batch_size
        if cut and place.position < self._end(place.begin):
            self._place = msgspec.structs.replace(place, position=place.position - cut)
            self._count(given=-cut)

    def _check(self, saved: _Saved) -> None:
        if saved.version != _VERSION:
            raise StateError(f"the state has version {saved.version}, and this Headrace reads version {_VERSION}")
        for what, before, now in (
            ("dataset", saved.dataset, msgspec.to_builtins(self._data.recipe)),
            ("order", saved.order, self._order_recipe),
        ):
            differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            if differing:
                pairs = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differing)
                advice = ""
                if differing == ["fingerprint"]:
                    advice = (
                        ". If these are the same data, prepared once more, pass version= in both lives: it then stands"
                        " in place of the fingerprint"
                    )
                raise StateError(f"the state belongs to another {what}: {pairs}{advice}")
        place = saved.place
        if not 0 <= place.begin <= place.position <= len(self._data) or place.epoch < 0 or place.first_step < 0:
            raise StateError(f"the state is damaged: {place}")
        if self._bucketing is not None and saved.global_batch_size != self.global_batch_size and not place.is_over:
            raise ConfigError(
                f"samples of similar length were brought together in steps of {saved.global_batch_size}, and a step"
                f" now has {self.global_batch_size}: pass global_batch_size={saved.global_batch_size}, or resume from"
                " the end of an epoch"
            )

    def close(self) -> None:
        """End the worker processes; the next iteration starts new ones."""
        if self._loader is not None:
            self._loader.close()

    def __repr__(self) -> str:
        rank, world_size = self.ranks.rank, self.ranks.world_size
        return (
            f"<DataLoader: rank {rank} of {world_size}, epoch {self.epoch}, sample {self.position:,}, {self._data!r}>"
        )


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the arguments of torch's say of the order and the ranks."""

    batch_size: int | None
    shuffle: bool
    drop_last: bool
    generator: Any = None
    sampler_seed: int | None = None
    ranks: Ranks | None = None
    indices: Any = None

    def of_samplers(self, sampler: Any, batch_sampler: Any, shuffle: bool | None) -> _Asked:
        """Return this with what samplers say. Raises ConfigError for one that says more than an order."""
        asked = self
        if batch_sampler is not None:
            if sampler is not None or shuffle or self.drop_last or self.batch_size != 1:
                raise ConfigError("batch_sampler goes without batch_size, shuffle, sampler and drop_last, as in torch")
            if type(batch_sampler) is not BatchSampler:
                raise ConfigError(_refused("batch_sampler", batch_sampler))
            sampler = batch_sampler.sampler
            asked = msgspec.structs.replace(
                asked, batch_size=batch_sampler.batch_size, drop_last=batch_sampler.drop_last
            )
        elif sampler is not None and shuffle:
            raise ConfigError("sampler and shuffle are both given, and each says the order: leave one out")
        return asked if sampler is None else asked._of_sampler(sampler)

    def _of_sampler(self, sampler: Any) -> _Asked:
        replace = msgspec.structs.replace
        if type(sampler) is SequentialSampler:
            return replace(self, shuffle=False)
        if type(sampler) is RandomSampler and not sampler.replacement:
            if sampler.num_samples != len(sampler.data_source):
                raise ConfigError("a RandomSampler with num_samples takes a part of an epoch: leave num_samples out")
            return replace(self, shuffle=True, generator=sampler.generator or self.generator)
        if type(sampler) is SubsetRandomSampler:
            indices = np.asarray(sampler.indices)
            return replace(self, shuffle=True, generator=sampler.generator or self.generator, indices=indices)
        if type(sampler) is DistributedSampler:
            _log.warning(
                "a DistributedSampler is replaced: its rank, number of replicas, shuffling, seed and drop_last are"
                " used; epochs are counted, and set_epoch of the loader is accepted"
            )
            return replace(
                self,
                shuffle=sampler.shuffle,
                sampler_seed=sampler.seed,
                drop_last=self.drop_last or sampler.drop_last,
                ranks=Ranks(sampler.rank, sampler.num_replicas),
            )
        raise ConfigError(_refused("sampler", sampler))

    def seed(self, seed: int) -> int:
        """Return the seed of the order; ``seed`` is the argument."""
        found = self.generator.initial_seed() if self.generator is not None else self.sampler_seed
        if found is None:
            return whole(seed, "seed")
        if seed and seed != found:
            raise ConfigError(
                f"seed is {seed}, and the generator or the sampler has the seed {found}: pass one of them"
            )
        return int(found)


def _refused(name: str, sampler: Any) -> str:
    return (
        f"{name} is {sampler!r:.80}, whose order is known only when it is iterated, so that no state could name a place"
        " in it: pass shuffle=True, a Subset(dataset, indices), lengths= for batches of similar length, or make a"
        " headrace.Blend with weights"
    )


def _alone(function: Callable[[Any], Any], samples: list[Any]) -> Any:
    return function(samples[0])


def _init_worker(function: Callable[[int], Any] | None, dataset: Any) -> Any:
    info = get_worker_info()
    if info is None:
        return None
    # Torch's workers serve a pool, and what asks for their dataset wants that of the user.
    object.__setattr__(info, "dataset", dataset)
    return function and partial(function, info.id)


def _reading(num_workers: int, *, init: Any, timeout: float, context: Any, **options: Any) -> Reading:
    """Return how samples are read, as the arguments of torch's say."""
    pin = bool(options["pin_memory"]) and torch.accelerator.is_available()
    if not num_workers:
        for name, value in (("prefetch_factor", options["prefetch"]), ("multiprocessing_context", context)):
            if value is not None:
                raise ConfigError(f"{name} is for workers: pass num_workers=2, say, or leave it out")
        if options["persistent"] or timeout:
            raise ConfigError(
                "persistent_workers and timeout are for workers: pass num_workers=2, say, or leave them out"
            )
        return Reading(num_threads=0, pin_memory=pin)
    method: Any = context if context is None or isinstance(context, str) else context.get_start_method()
    return Reading(
        num_workers=num_workers,
        prefetch=options["prefetch"],
        pin_memory=pin,
        start_method=method,
        worker_init=init,
        persistent_workers=bool(options["persistent"]),
        timeout_s=timeout or _NO_TIMEOUT_S,
    )


def _detected() -> Ranks:
    """Return the rank of this process. Raises ConfigError within a device mesh of several dimensions."""
    mesh_resources = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    stack = getattr(mesh_resources, "mesh_stack", ())
    return Ranks.from_mesh(stack[-1]) if stack and stack[-1].ndim > 1 else Ranks.detect()


def _steps_from(first_step: int, position: int, size: int) -> BatchSchedule:
    """Return a schedule whose step ``first_step`` begins at a position. What the steps before it hold is not told."""
    if not position:
        return BatchSchedule.of(size)
    first_step = max(1, min(first_step, position))
    pieces = [(0, 1), (first_step - 1, position - first_step + 1), (first_step, size)]
    return BatchSchedule.of(pieces if first_step > 1 else pieces[1:])
