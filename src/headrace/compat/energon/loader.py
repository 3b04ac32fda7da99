"""Loaders with the methods of Energon's loader: the batches of this rank, and the state of a run.

`StreamLoader` feeds Headrace's order, `OwnOrderLoader` Energon's own, and `FramedLoader` units that task encoders make
during the run.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import monotonic
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from headrace.compat.energon.dataset import EnergonDataset
from headrace.compat.energon.own_order import OwnOrder
from headrace.compat.energon.workers import WorkerConfig, check_worker_config
from headrace.datasets import FramedRun
from headrace.datasets.mix import cache_of
from headrace.datasets.states import read_identity
from headrace.encoders import FaultLog
from headrace.errors import ConfigError, StateError
from headrace.loader import Loader, Reading
from headrace.loader.faults import FaultCounter, original_errors, report_path, shared_out
from headrace.loader.feeds import SpanWork
from headrace.loader.spans import Batch, BatchSpan, SpanRows, divide
from headrace.loader.task_reader import TaskReader
from headrace.plan import BatchSchedule, Cursor, Order, RunRecipe

_log = logging.getLogger("headrace")


class EnergonLoader(ABC):
    """Iterates over this rank's batches, and continues where the last iteration stopped.

    `get_savable_loader` makes it. An iteration is ``virtual_epoch_length`` batches long, or one pass, or endless.
    Batches are what the task encoder made. With ``as_columns`` they are dicts, as those of `headrace.Loader`; with
    ``tail="pad"`` these also have ``sample_mask``, (batch,) bool, which is False for samples that were delivered before
    and only fill up the last batch.

    The state can be saved and restored at any time and on any rank. It is the same on all ranks, unless the dataset is
    framed.
    """

    _loader: Loader | TaskReader[BatchSpan, SpanRows]

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins another iterator where this one is.
        return {**self.__dict__, "_inner": None}

    def __init__(self, dataset: EnergonDataset, *, as_columns: bool) -> None:
        self.dataset = dataset
        self._given = dataset.columns_of if as_columns else dataset.batch_of
        self._iteration = 0
        self._inner: Iterator[Any] | None = None
        self.watch: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        """What watches that a batch does not take too long, if batches are read in this process."""

    @property
    def worker_config(self) -> WorkerConfig:
        """The configuration of the dataset."""
        return self.dataset.worker_config

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` can make samples again: all hooks are marked ``@stateless``."""
        return self.dataset.can_restore_sample()

    def __len__(self) -> int:
        """The batches of this rank in an iteration; see `EnergonDataset.__len__`."""
        return len(self.dataset)

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of samples delivered to all ranks; in Energon's own order, of batches delivered to this rank."""

    @abstractmethod
    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        """Continue at a position. Within a step, ``drawn_to`` must say how the slots of the step were drawn."""

    def _drawn_to(self) -> tuple[int, ...]:
        """The ``drawn_to`` of a `Cursor`."""
        return ()

    @abstractmethod
    def _next_epoch(self) -> Iterator[Batch]:
        """The batches of one iteration."""

    @property
    @abstractmethod
    def faults(self) -> FaultLog:
        """The samples of the delivered batches that could not be made, and the one that ended the run, if any."""

    def close(self) -> None:
        """End worker processes; the next iteration starts new ones."""
        self._inner = None
        self._loader.close()

    def _border(self, unit: int) -> int | None:
        """Where the iteration ends whose first batch is at the position; ``unit``: what a batch counts there."""
        length = self.dataset.virtual_epoch_length * unit
        return (self.position // length + 1) * length if length else None

    @property
    @abstractmethod
    def _identity(self) -> tuple[RunRecipe, BatchSchedule]:
        """The recipe and schedule that a state is compared with."""

    def __iter__(self) -> Iterator[Any]:
        if self.dataset.restarts:
            self._restore(0)
        self._iteration += 1
        batches = self._batches(self._iteration)
        return islice(batches if self.watch is None else self.watch(batches), self.dataset.most_batches)

    def _batches(self, iteration: int) -> Iterator[Any]:
        epoch: Iterator[Batch] | None = None
        is_empty = True
        while True:
            if iteration != self._iteration:
                raise StateError(
                    "this iterator is outdated: the loader was iterated again, or restored another state; use a new"
                    " iterator"
                )
            epoch = epoch or self._next_epoch()
            batch = next(epoch, None)
            if batch is not None:
                is_empty = False
                yield self._given(batch)
            elif not self.dataset.repeats:
                return
            elif is_empty:
                raise ConfigError(f"RepeatDataset: {self.dataset!r} has no batches for this rank to repeat")
            else:
                epoch, is_empty = None, True

    def state_dict(self) -> dict[str, Any]:
        """The state: under 1 KB, JSON-safe, and the same on every rank.

        It resumes with the batch after the last one delivered.
        """
        recipe, schedule = self._identity
        position = self.position
        step = schedule.step_of(position)
        return Cursor(recipe=recipe.hashes(), step=step, position=position, drawn_to=self._drawn_to()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, whatever ranks, workers and batches it was saved with.

        Raises:
            StateError: it is not a state, it is damaged, or it belongs to another run; the message names the parts that
                differ. The loader is unchanged then.
        """
        cursor = Cursor.from_dict(state)
        recipe, schedule = self._identity
        try:
            cursor = cursor.verified(recipe, schedule, None, saved=None)
        except StateError as error:
            if self.dataset.own_order is not None and cursor.recipe.get("order") != recipe.hashes()["order"]:
                topology = self.dataset.own_order.order.topology
                raise StateError(
                    f"{error}\nEnergon's own order is bound to ranks and workers, here {topology.world_size:,} ranks "
                    f"of {topology.num_workers:,} workers; resume with the numbers that the state was saved with."
                ) from None
            raise
        self._restore(cursor.position, cursor.drawn_to)
        self._iteration += 1

    def save_state_rank(self) -> dict[str, Any]:
        """Return `state_dict`."""
        return self.state_dict()

    def restore_state_rank(self, state: Mapping[str, Any] | None) -> None:
        """Call `load_state_dict`; None starts at the beginning."""
        if state is not None:
            self.load_state_dict(state)
            return
        self._restore(0)
        self._iteration += 1

    def save_state_global(self, global_dst_rank: int) -> dict[str, Any] | None:
        """The state of all ranks on one process of the job, None on the others. Every process must call it.

        Only a framed source needs communication, since otherwise all ranks have the same state.

        Raises:
            StateError: as `headrace.Loader.gather_state_dict`.
        """
        state = self._state_of_all()
        here = dist.get_rank() if dist.is_available() and dist.is_initialized() else global_dst_rank
        return state if here == global_dst_rank else None

    def _state_of_all(self) -> dict[str, Any]:
        return self.state_dict()

    def restore_state_global(self, state: Mapping[str, Any] | None, *, src_rank: int | None = None) -> None:
        """Restore a state on all ranks.

        Every rank passes the state, or process ``src_rank`` of the job sends it to the others. In the latter case there
        are two broadcasts over the data-parallel group, one of 8 bytes and one of the state, and all processes of the
        group must call this method.
        """
        if src_rank is not None and dist.is_available() and dist.is_initialized():
            state = _broadcast(state, src_rank, self.dataset.worker_config.data_parallel_group)
        self.restore_state_rank(state)

    def restore_sample(self, key: Any) -> Any:
        """Make a sample or batch again, bit for bit, from its ``__restore_key__``.

        Needs only the data and the key, no state. Fields that the loader adds to a batch, such as ``sample_positions``,
        are left out. If there are several datasets that are not framed, more than one of them may have the same key.
        Then pass the position of the sample, or a list of positions.

        Raises:
            ConfigError: the data have no such key, or several datasets have it; the data have changed; or a hook is not
                ``@stateless``.
        """
        return self.dataset.restored(key, self._given)

    def config(self) -> dict[str, Any]:
        """The recipe that a state must agree with; see `EnergonDataset.config`."""
        return self.dataset.config()

    def __repr__(self) -> str:
        ranks = self.dataset.worker_config.ranks
        return (
            f"<{type(self).__name__}: rank {ranks.rank} of {ranks.world_size}, at {self.position:,}, {self.dataset!r}>"
        )


class StreamLoader(EnergonLoader):
    """The loader of Headrace's order, whose positions do not depend on ranks."""

    _loader: Loader

    def __init__(
        self, dataset: EnergonDataset, reading: Reading, fault_report: str | None, *, as_columns: bool = False
    ) -> None:
        super().__init__(dataset, as_columns=as_columns)
        self._reading = reading
        self._fault_report = fault_report
        self._faults = FaultLog()
        self._loader = self._at(0, ())
        self._begun = 0

    def _at(self, position: int, drawn_to: tuple[int, ...]) -> Loader:
        loader = Loader(
            self.dataset.run(position),
            micro_batch_size=self.dataset.batch_size,
            ranks=self.dataset.worker_config.ranks,
            reading=self._reading,
            fault_report=self._fault_report,
            # Without a global batch of the user, what came before is one step, which these ranks need not divide.
            position=position if self.dataset.global_batch_size is None else 0,
        )
        return _gone_on(loader, position, drawn_to)

    def _drawn_to(self) -> tuple[int, ...]:
        """See `EnergonLoader`. A finished pass leaves the rest of its last step to the next pass."""
        if self.dataset.stream.draw is None:
            return ()
        if self._is_through():
            return self.dataset.ends_at(self.position)
        return tuple(self._loader.state_dict().get("drawn_to", ()))

    @property
    def position(self) -> int:
        """The number of samples delivered to all ranks together.

        After a pass it is the number of its samples, even if some were added as padding or dropped.
        """
        end = self.dataset.pass_end(self._begun)
        return end if end is not None and self._is_through() else self._loader.position

    @property
    def faults(self) -> FaultLog:
        """See `EnergonLoader.faults`."""
        found = FaultLog()
        found.merge(self._faults)
        found.merge(self._loader.faults)
        return found

    def _is_through(self) -> bool:
        length = self._loader.run.length
        return length is not None and self._loader.position >= length

    @property
    def _identity(self) -> tuple[RunRecipe, BatchSchedule]:
        return self.dataset.stream.recipe, self.dataset.stream.schedule

    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        end = self.dataset.pass_end(position)
        if end is not None and position >= end:  # a finished validation begins again
            position = 0
        if position == self._begun:
            _gone_on(self._loader, position, drawn_to)
        else:
            loader = self._at(position, drawn_to)
            self._loader.close()
            self._faults = self.faults
            self._loader, self._begun = loader, position
        self._inner = None

    def _next_epoch(self) -> Iterator[Batch]:
        if self._is_through():
            self._restore(self.position, self._drawn_to())
        if self._inner is None:
            self._inner = iter(self._loader)
        border = self._border(self.dataset.together)
        end = self.dataset.pass_end(self._begun)
        for batch in self._inner:
            if self.dataset.tail == "pad" and end is not None:
                batch["sample_mask"] = batch["sample_positions"] < end
            yield batch
            if border is not None and self._loader.position >= border:
                return
        self._inner = None


def _gone_on(loader: Loader, position: int, drawn_to: tuple[int, ...]) -> Loader:
    """Move the loader to a position and return it; raises StateError if that is not possible."""
    run = loader.run
    recipe, step = run.recipe.hashes(), run.schedule.step_of(position)
    loader.load_state_dict(Cursor(recipe=recipe, step=step, position=position, drawn_to=drawn_to).to_dict())
    return loader


def _broadcast(state: Mapping[str, Any] | None, src_rank: int, group: Any) -> dict[str, Any] | None:
    """Send the state of one process to all of a group: the length of its JSON, then the JSON."""
    on_gpu = "nccl" in dist.get_backend(group)
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    text = msgspec.json.encode(state)
    length = torch.tensor([len(text)], dtype=torch.int64, device=device)
    dist.broadcast(length, src=src_rank, group=group)
    carried = torch.frombuffer(bytearray(text.ljust(int(length))[: int(length)]), dtype=torch.uint8).to(device)
    dist.broadcast(carried, src=src_rank, group=group)
    found: dict[str, Any] | None = msgspec.json.decode(bytes(carried.cpu().tolist()))
    return found


class OwnOrderLoader(EnergonLoader):
    """The loader of Energon's own order."""

    _loader: TaskReader[BatchSpan, SpanRows]

    def __init__(
        self,
        dataset: EnergonDataset,
        own: OwnOrder,
        reading: Reading,
        fault_report: str | None,
        *,
        as_columns: bool = False,
    ) -> None:
        super().__init__(dataset, as_columns=as_columns)
        cache = cache_of(own.run.datasets, Order(kind="shards"))
        self._own = own
        self._loader = TaskReader(SpanWork(own.run, dataset.worker_config.ranks), reading, cache)
        self._delivered = 0
        self._through = False
        ranks = dataset.worker_config.ranks
        self._counting = FaultCounter(report_path(fault_report, ranks.rank, ranks.world_size))

    @property
    def position(self) -> int:
        """The number of batches delivered to this rank."""
        return self._delivered

    @property
    def faults(self) -> FaultLog:
        """See `EnergonLoader.faults`; here a step is a batch of this rank."""
        return self._counting.faults

    @property
    def _identity(self) -> tuple[RunRecipe, BatchSchedule]:
        return self._own.recipe, BatchSchedule.of(1)

    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        self._inner, self._through, self._delivered = None, False, position

    def _next_epoch(self) -> Iterator[Batch]:
        if self._through:
            self._restore(0)
        if self._inner is None:
            read_identity(self._own.run)
            spans = self._own.spans(self.dataset.worker_config.rank, self._delivered)
            self._inner = _read(self._own, self._loader, spans)
        begin, end = self._delivered, self._border(1)
        for batch, faults in self._inner:
            self._counting.add(len(batch["sample_positions"]), faults, self._delivered)
            self._delivered += 1
            yield batch
            if self._delivered == end:
                return
        self._inner, self._through = None, True
        if begin and self._delivered == begin:  # the iteration began after the last batch of a pass
            yield from self._next_epoch()


def _read(
    own: OwnOrder, reader: TaskReader[BatchSpan, SpanRows], spans: Iterator[BatchSpan]
) -> Iterator[tuple[Batch, FaultLog | None]]:
    # A function, not a method: the loader holds this generator, and a reference back would keep worker processes alive
    # until cycles are collected.
    for span, rows in original_errors(reader.filled(spans)):
        yield from zip(divide(rows, span, own.run.constants), shared_out(rows.faults, span), strict=True)


class FramedLoader(EnergonLoader):
    """The loader of a framed source. Each rank has its own state, which holds the lanes that the rank serves.

    ``position`` counts units: outputs, packs, or batches of one group. At the end of a pass it is 0 again.
    """

    _loader: Loader

    def __init__(
        self,
        dataset: EnergonDataset,
        run: FramedRun,
        reading: Reading,
        fault_report: str | None,
        journal: str | None,
        *,
        as_columns: bool = False,
    ) -> None:
        super().__init__(dataset, as_columns=as_columns)
        self._run = run
        self._loader = Loader(
            run,
            micro_batch_size=dataset.batch_size,
            ranks=dataset.worker_config.ranks,
            reading=reading,
            fault_report=fault_report,
            journal=journal,
        )
        self._limit = None if dataset.limit is None else dataset.limit * dataset.together

    @property
    def position(self) -> int:
        """The number of units delivered to all ranks together."""
        return self._loader.position

    @property
    def faults(self) -> FaultLog:
        """See `EnergonLoader.faults`."""
        return self._loader.faults

    @property
    def _identity(self) -> tuple[RunRecipe, BatchSchedule]:
        return self._run.recipe, self._run.schedule

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank: the lanes that it serves, some dozens of bytes each. JSON-safe.

        It resumes the same rank with the batch after the last one delivered. To resume with another number of ranks,
        use `save_state_global`, or merge the states of all ranks with `headrace.loader.merge_state_dicts`.
        """
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of all ranks, or from this rank's own state if the number of ranks is the same.

        Raises:
            StateError: it is not a state, it is damaged, or it belongs to another run or to other lanes. The loader is
                unchanged then.
        """
        cursor = Cursor.from_dict(state)
        try:
            self._loader.load_state_dict(state)
        except StateError as error:
            if hint := self._about_lanes(cursor):
                raise StateError(f"{error}\n{hint}") from None
            raise
        self._inner = None
        self._iteration += 1

    def _about_lanes(self, cursor: Cursor) -> str | None:
        if not cursor.lanes or cursor.recipe.get("batch") == self._run.recipe.hashes()["batch"]:
            return None
        saved, here = cursor.lanes[0].num_lanes, self._run.lanes.num_lanes
        if saved == here:
            return None
        return (
            f"The state was saved with {saved:,} lanes, and this run has {here:,}: without num_lanes= or "
            f"global_batch_size=, their number is batch_size times ranks. Give num_lanes={saved}, which batch_size "
            "times ranks must divide, or the global_batch_size that the state was saved with."
        )

    def _state_of_all(self) -> dict[str, Any]:
        return self._loader.gather_state_dict()

    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        self._inner = None
        self._loader.start_at(position, allow_repeats=True)

    def _next_epoch(self) -> Iterator[Batch]:
        if self._limit is not None and self._loader.position >= self._limit:
            self._restore(0)
        if self._inner is None:
            self._inner = iter(self._loader)
        end = self._border(self.dataset.together) or self._limit
        for batch in self._inner:
            yield batch
            if end is not None and self._loader.position >= end:
                return
        self._restore(0)


def watched(batches: Iterator[Any], timeout_seconds: float) -> Iterator[Any]:
    """Yield the same batches; if one takes longer than ``timeout_seconds``, log the stacks of all threads once."""
    # One thread, which sleeps until a batch may be late: to start one for each batch takes longer than small batches.
    begun: list[float] = []
    over = threading.Event()
    threading.Thread(target=_watch, args=(begun, over, timeout_seconds), name="headrace-watch", daemon=True).start()
    try:
        begun.append(monotonic())
        for batch in batches:
            begun.clear()
            yield batch
            begun.append(monotonic())
    finally:
        over.set()


def _watch(begun: list[float], over: threading.Event, timeout_seconds: float) -> None:
    """Log the stacks once for each batch that takes too long. ``begun`` says since when one is awaited."""
    told: list[float] = []
    left = timeout_seconds
    while not over.wait(left):
        since = begun[:]
        left = since[0] + timeout_seconds - monotonic() if since and since != told else timeout_seconds
        if left <= 0:
            stacks = "".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
            _log.warning("a batch takes more than %s s; all threads are at:\n%s", timeout_seconds, stacks)
            told, left = since, timeout_seconds


def loader_of(
    dataset: EnergonDataset,
    reading: Reading,
    fault_report: str | None = None,
    journal: str | None = None,
    *,
    as_columns: bool = False,
) -> EnergonLoader:
    """Make the loader of a dataset.

    Raises:
        ConfigError: a journal of a dataset that is not framed, or a ``worker_config`` that was changed.
    """
    check_worker_config(dataset.worker_config, dataset.given_config)
    if journal is not None and dataset.framed is None:
        raise ConfigError(
            "a journal records the frames of a framed source, but here every sample has one output; leave journal out"
        )
    if dataset.own_order is not None:
        return OwnOrderLoader(dataset, dataset.own_order, reading, fault_report, as_columns=as_columns)
    if dataset.framed is not None:
        return FramedLoader(dataset, dataset.framed, reading, fault_report, journal, as_columns=as_columns)
    return StreamLoader(dataset, reading, fault_report, as_columns=as_columns)
