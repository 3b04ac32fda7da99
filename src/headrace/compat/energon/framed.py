"""The dataset and the loader of framed sources, whose units task encoders make during the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import index
from typing import Any

import torch.distributed as dist

from headrace.compat.energon.dataset import FOR_EVER, EnergonDataset, WorkerConfig
from headrace.compat.energon.loader import EnergonLoader
from headrace.datasets import Framed, FramedRun
from headrace.datasets.mix import Mix, length_of
from headrace.encoders import FaultLog
from headrace.errors import ConfigError, StateError
from headrace.loader.loader import Loader
from headrace.loader.reading import Reading
from headrace.loader.spans import Batch
from headrace.plan import BatchSchedule, Cursor, Order, RunRecipe
from headrace.plan.framed import lanes_in


def framed_dataset(
    data: Framed,
    worker_config: WorkerConfig,
    *,
    batch_size: int | None,
    training: bool,
    order: Order,
    repeat: bool = False,
    virtual_epoch_length: int = 0,
    limit: int | None = None,
    schedule: BatchSchedule | None = None,
    num_lanes: int | None = None,
) -> EnergonDataset:
    """Make the `EnergonDataset` of a framed source: endless with ``repeat``, otherwise one pass.

    Raises:
        ConfigError: ``batch_size`` is missing although units are not batches, the number of lanes does not fit, or one
            pass is asked for over endless data.
    """
    if data.is_group_batches:
        batch_size = 1
    if batch_size is None:
        raise ConfigError(
            "batch_size is None, and nothing else says how many samples a batch has: batch_group_criterion would, but "
            f"{type(data.encoder).__name__} does not use it; give a number, or batch_size=1 for single samples"
        )
    samples = length_of(data.data)
    if not repeat and samples is None:
        raise ConfigError(f"{data.data!r} has no end, but one pass of it is wanted; give it an end, or repeats")
    if repeat:
        samples = FOR_EVER if isinstance(data.data, Mix) and samples is not None else None
    together = batch_size * worker_config.world_size
    if schedule is None and num_lanes is not None and index(num_lanes) % together:
        raise ConfigError(
            f"num_lanes is {num_lanes:,}, and {worker_config.world_size:,} ranks take {batch_size:,} at a time each; "
            f"without global_batch_size, num_lanes must be a multiple of {together:,}, so that each slot of a batch "
            "belongs to one lane"
        )
    run = FramedRun(
        data,
        global_batch_size=schedule or num_lanes or together,
        num_lanes=num_lanes,
        order=order,
        samples=samples,
    )
    return EnergonDataset(
        stream=run.stream,
        framed=run,
        worker_config=worker_config,
        batch_size=batch_size,
        training=training,
        virtual_epoch_length=virtual_epoch_length,
        limit=limit,
        global_batch_size=schedule,
    )


class FramedLoader(EnergonLoader):
    """The loader of a framed source. Each rank has its own state, which holds the lanes that the rank serves.

    ``position`` counts units: outputs, packs, or batches of one group. At the end of a pass it is 0 again.
    """

    def __init__(
        self, dataset: EnergonDataset, run: FramedRun, reading: Reading, fault_report: str | None, journal: str | None
    ) -> None:
        super().__init__(dataset)
        self._run = run
        self._loader = Loader(
            run,
            micro_batch_size=dataset.batch_size,
            ranks=dataset.worker_config.ranks,
            reading=reading,
            fault_report=fault_report,
            journal=journal,
        )
        self._inner: Iterator[Batch] | None = None
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
        saved, here = lanes_in(cursor.lanes[0]).num_lanes, self._run.lanes.num_lanes
        if saved == here:
            return None
        return (
            f"The state was saved with {saved:,} lanes, and this run has {here:,}: without num_lanes= or "
            f"global_batch_size=, their number is batch_size times ranks. Give num_lanes={saved}, which batch_size "
            "times ranks must divide, or the global_batch_size that the state was saved with."
        )

    def save_state_global(self, global_dst_rank: int) -> dict[str, Any] | None:
        """The state of all ranks on one process of the job, None on the others. Every process must call it.

        Raises:
            StateError: as `headrace.Loader.gather_state_dict`.
        """
        state = self._loader.gather_state_dict()
        here = dist.get_rank() if dist.is_available() and dist.is_initialized() else global_dst_rank
        return state if here == global_dst_rank else None

    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        self._inner = None
        self._loader.start_at(position)

    def _next_epoch(self) -> Iterator[Batch]:
        if self._limit is not None and self._loader.position >= self._limit:
            self._restore(0)
        if self._inner is None:
            self._inner = iter(self._loader)
        end = self._limit
        if virtual := self.dataset.virtual_epoch_length * self.dataset.together:
            end = (self._loader.position // virtual + 1) * virtual
        for batch in self._inner:
            yield batch
            if end is not None and self._loader.position >= end:
                return
        self._restore(0)

    def close(self) -> None:
        """End worker processes; the next iteration starts new ones."""
        self._inner = None
        self._loader.close()

    def __len__(self) -> int:
        """The batches of an iteration on this rank; raises TypeError if that number is infinite or not known yet."""
        if self.dataset.virtual_epoch_length and self._run.lanes.num_positions in (None, FOR_EVER):
            return self.dataset.virtual_epoch_length
        raise TypeError(
            "the number of units that a task encoder makes is known only after the pass, so a pass has no length; "
            "count the batches, or give endless training a virtual_epoch_length"
        )
