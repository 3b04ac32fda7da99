"""`NumpyLoader`: the batches of a run as dicts of NumPy arrays, without torch: for JAX, and all else with arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from headrace.config import whole
from headrace.datasets import Located, Run, check_supervised
from headrace.datasets.accounts import StepTotals
from headrace.datasets.dataset import repeated
from headrace.datasets.mix import cache_of
from headrace.datasets.states import check_blocks, check_group_batches, identity, read_identity, resumed_draw, verified
from headrace.errors import ConfigError, StateError
from headrace.io.readers import reading_for
from headrace.plan import Cursor, Share, micro_batches
from headrace.plan.segments import IGNORED_LABEL, cu_seqlens
from headrace.plan.slots import num_micro_batches

__all__ = ["NumpyLoader"]

_AHEAD = 2
"""Batches that are read ahead."""

_PLANNED = 8192
"""Samples of a rank that are planned at a time."""

NumpyBatch = dict[str, Any]
"""Name -> array; counts are Python ints, and records may hold any values."""


class NumpyLoader:
    """Yields the micro-batches of a run that one process trains on as NumPy arrays. It needs no torch.

    Batches, their order and the saved state are those of a `Loader`, with arrays for its tensors: a state of one loads
    into the other, at any number of ranks. One thread reads two batches ahead.

    Each array is the loop's own, except ``position_ids`` that do not restart at documents: these are one row, shown
    many times, and cannot be written to.

    Unlike a `Loader`, this one does not compare the processes of a job with each other, since it knows none. Give each
    the same run, and the same state after a restart.

    Args:
        run: windows, packs or records, and their order. Media and framed runs need a `Loader`.
        micro_batch_size: samples in a batch of this process.
        rank: the data-parallel rank of this process, such as ``jax.process_index()``.
        world_size: the number of these ranks, such as ``jax.process_count()``.

    Raises:
        ConfigError: an argument is not allowed, or does not suit the run.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=24)
        >>> loader = headrace.NumpyLoader(run, micro_batch_size=4, rank=1, world_size=2)
        >>> for batch in loader:
        ...     if loader.step == 2:
        ...         state = loader.get_state()
        ...         break
        >>> batch["input_ids"].shape, batch["sample_positions"].tolist(), state["position"]
        ((4, 128), [12, 13, 14, 15], 16)
    """

    def __init__(self, run: Run, *, micro_batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        if not isinstance(run, Run):
            raise ConfigError(f"run is {run!r:.80}; expected a Run. The units of a FramedRun need headrace.Loader")
        if not run.traits.has_tokens:
            raise ConfigError(
                "this run has media, which are decoded into tensors, or a map-style dataset, whose code may draw random"
                " numbers and so cannot run in a thread: use headrace.Loader"
            )
        rank, world_size = whole(rank, "rank"), whole(world_size, "world_size")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} of {world_size}: ranks run from 0 to world_size - 1")
        micro_batch_size = whole(micro_batch_size, "micro_batch_size", least=1)
        self.run = run
        cache_of(run.datasets, run.order)
        self._share = Share(rank, world_size, micro_batch_size)
        check_group_batches(run.traits.is_group_batches, self._share)
        check_blocks(run, self._share, 0)
        self._draw = run.draw
        self._position = 0
        self._iteration = 0
        self._ended = False

    @property
    def position(self) -> int:
        """The number of samples that all ranks together have been given so far."""
        return self._position

    @property
    def step(self) -> int:
        """The global step that the next sample belongs to."""
        return self.run.schedule.step_of(self._position)

    def __iter__(self) -> Iterator[NumpyBatch]:
        """Yield the batches from the current position on.

        Raises:
            StateError: the run has ended; or, from an older iterator, a new one was made or a state was loaded.
        """
        if self._ended:
            raise StateError(
                f"this loader has reached the end of its run, at position {self._position:,}, and was iterated again:"
                " nothing is left. For more epochs make the run longer with epochs= or samples=, and iterate the loader"
                " once; a longer run accepts the state of a shorter one. For validation make a new loader"
            )
        self._iteration += 1
        return self._batches(self._iteration)

    def _batches(self, iteration: int) -> Iterator[NumpyBatch]:
        begin = self._position
        read_identity(self.run)
        planned = self._planned(begin)
        totals = StepTotals(self.run) if self.run.traits.is_counted else None
        if totals is not None:
            check_supervised(self.run, begin)
        with ThreadPoolExecutor(1, "headrace-read") as thread:
            ahead: deque[tuple[Future[NumpyBatch], int]] = deque()
            try:
                while True:
                    for one in islice(planned, _AHEAD + 1 - len(ahead)):
                        ahead.append((thread.submit(self._read, one, totals), one.after))
                    if not ahead:
                        break
                    future, after = ahead.popleft()
                    batch = future.result()
                    if iteration != self._iteration:
                        raise StateError(
                            "this iterator is outdated: the loader was iterated anew or loaded another state; use the"
                            " newest one"
                        )
                    self._position = after
                    yield batch
            finally:
                thread.shutdown(cancel_futures=True)
        # An iteration that began at the end, from a state saved there, is rightly empty.
        self._ended = self._position > begin

    def _planned(self, position: int) -> Iterator[_Planned]:
        run, draw, share = self.run, self._draw, self._share
        # The first plan is small, so that the first batch comes at once.
        wanted = _PLANNED // 16
        while True:
            plan = micro_batches(
                run.schedule, share, position=position, end=run.length, at_least=wanted * share.world_size
            )
            if not len(plan):
                return
            slots = plan.slots()
            located = run.locate(slots if draw is None else draw.positions(slots))
            row = 0
            for size, step, after in zip(plan.sizes.tolist(), plan.steps.tolist(), plan.afters.tolist(), strict=True):
                yield _Planned(located.rows(row, row + size), step, after)
                row += size
            position, wanted = int(plan.afters[-1]), _PLANNED

    def _read(self, planned: _Planned, totals: StepTotals | None) -> NumpyBatch:
        """Read a planned micro-batch, in its turn and in one thread, and count what its loss is divided by."""
        run, located, share = self.run, planned.located, self._share
        where = f"step {planned.step:,} on rank {share.rank} of {share.world_size}"
        with reading_for(partial("{} samples of {}".format, len(located.positions), where)):
            batch: NumpyBatch = dict(run.read(located))
        batch["sample_positions"] = located.positions.copy()
        batch |= repeated(run.constants, len(located.positions))
        if totals is None:
            return batch
        if "num_supervised_tokens" not in batch:
            # Windows have no mask of their own; their labels say it.
            has_label = batch["loss_mask"] if "loss_mask" in batch else batch["labels"] != IGNORED_LABEL
            batch["num_supervised_tokens"] = int(np.count_nonzero(has_label))
        batch["step_supervised_tokens"] = totals.of(planned.step)
        if run.traits.is_packed:
            batch["cu_seqlens"] = bounds = cu_seqlens(batch["position_ids"])
            batch["max_seqlen"] = int(np.diff(bounds).max(initial=0))
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last batch that was yielded: that of a `Loader`, the same on all ranks."""
        position = self._position
        ends: dict[str, Any] = {}
        if self._draw is not None:
            ends["drawn_to"] = self._draw.saved_ends(position)
        return Cursor(**identity(self.run, position), step=self.step, position=position, **ends).to_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, of this class or of a `Loader`. If it is refused, the loader stays as it was.

        Raises:
            StateError: the state is none, is damaged, or belongs to a run that fed other samples before its position.
        """
        cursor = verified(self.run, Cursor.from_dict(state), None)
        if cursor.balanced_step is not None:
            is_dealt = any(part.per_node for part in cursor.balanced_step.taken)
            how = "dealt to nodes, and this loader does not deal" if is_dealt else ""
            raise StateError(
                f"the saved state was taken within step {cursor.step:,}, which was "
                f"{how or 'balanced, and this loader has no balance'}: resume from a state between two steps"
            )
        self._draw = resumed_draw(self.run, self._share, cursor)
        self._position = cursor.position
        self._ended = False
        self._iteration += 1

    def __len__(self) -> int:
        """Return the number of micro-batches of this rank in the whole run.

        Raises:
            TypeError: the run is endless.
        """
        if self.run.length is None:
            raise TypeError("this run is endless: it has no len()")
        return num_micro_batches(self.run.schedule, self.run.length, self._share)

    def __repr__(self) -> str:
        return f"<NumpyLoader: rank {self._share.rank} of {self._share.world_size}, step {self.step:,}, {self.run!r}>"


class _Planned(NamedTuple):
    """A micro-batch that is not read yet, its step, and the position of the run after it."""

    located: Located
    step: int
    after: int
