"""What `get_train_dataset` and `get_val_dataset` return: data, their order, and which rank of how many reads them.

Which rank of how many this is, and how many worker processes it reads with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.compat.energon.own_order import OwnOrder
from headrace.datasets import Dataset, FramedRun, Run
from headrace.datasets.mix import Mix, length_of
from headrace.errors import ConfigError
from headrace.loader.ranks import Ranks
from headrace.loader.restoring import restored
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonTopology

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data-parallel rank of this process and its workers, by the names of Energon's class.

    Attributes:
        rank: the *data-parallel* rank; processes that need the same data have the same.
        world_size: data-parallel ranks.
        num_workers: worker processes of this rank that read and decode; 0: this process, when a batch is asked for.
        data_parallel_group: over which a state is handed from one rank to the others.
        seed_offset: the seed of the run: another one is another order.
        agree: compare, when a loader begins to iterate, what all processes of the job run. All of them have to iterate
            it then, those of all pipeline stages too; see `headrace.loader.Ranks`. A pass over a framed source has as
            many batches on all ranks only with it.
    """

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: Any = None
    seed_offset: int = 0
    agree: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a rank that is not one of ``world_size``, or workers below 0."""
        Ranks(self.rank, self.world_size)
        if self.num_workers < 0:
            raise ConfigError(f"num_workers is at least 0, found {self.num_workers}")

    @classmethod
    def default_worker_config(
        cls, num_workers: int = 4, data_parallel_group: ProcessGroup | None = None, *, seed_offset: int = 0
    ) -> WorkerConfig:
        """From the process group, from ``torchrun``'s variables, or one rank where there is neither."""
        ranks = Ranks.detect() if data_parallel_group is None else Ranks.from_group(data_parallel_group)
        return cls(ranks.rank, ranks.world_size, num_workers, data_parallel_group, seed_offset)

    @property
    def ranks(self) -> Ranks:
        """For a `headrace.Loader`."""
        return Ranks(self.rank, self.world_size, self.agree)


Tail = Literal["spread", "pad", "drop"]

FOR_EVER = 1 << 61
"""Samples of a run without end over a mix that has one: more than any run will come to."""


class EnergonDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Which samples come in which order, to be handed to `get_loader`.

    Attributes:
        stream: the samples, one after another. Its recipe is what a state must agree with: with steps of one sample it
            names no ranks and no batches.
        worker_config: rank and workers.
        batch_size: samples a batch on this rank.
        training: whether passes go on; of validation each iteration is the first pass again.
        pass_samples: of one pass; None where there is no end.
        tail: what becomes of a last batch that not all ranks can fill.
        virtual_epoch_length: batches of this rank in an iteration; 0: as many as there are.
        limit: the same in validation of units, where their number is not known before.
        global_batch_size: of a step, where the user gave it.
        own_order: Energon's, in the place of the stream's.
        framed: units made of the stream, where a task encoder does not give one output for each sample. Then a batch is
            of units.
    """

    stream: Run
    worker_config: WorkerConfig
    batch_size: int
    training: bool
    pass_samples: int | None = None
    tail: Tail = "spread"
    virtual_epoch_length: int = 0
    global_batch_size: BatchSchedule | None = None
    own_order: OwnOrder | None = None
    framed: FramedRun | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range and an unknown tail."""
        if self.batch_size < 1 or self.virtual_epoch_length < 0:
            raise ConfigError(
                f"batch_size is at least 1 and virtual_epoch_length at least 0, found {self.batch_size} and "
                f"{self.virtual_epoch_length}"
            )
        if self.tail not in ("spread", "pad", "drop"):
            raise ConfigError(f"tail is {self.tail!r}; allowed are 'spread', 'pad', 'drop'")
        if self.tail == "drop" and self.pass_samples is not None and self.pass_samples < self.together:
            raise ConfigError(
                f"{self.pass_samples:,} samples are less than a batch of {self.batch_size:,} for each of "
                f"{self.worker_config.world_size:,} ranks, and the last is dropped: choose tail='spread' or 'pad'"
            )

    @property
    def together(self) -> int:
        """Samples that all ranks take at a time."""
        return self.batch_size * self.worker_config.world_size

    def pass_end(self, position: int) -> int | None:
        """Where the pass ends that a position is in; None where there is no end."""
        if self.pass_samples is None:
            return None
        return self.pass_samples * (position // self.pass_samples + 1 if self.training else 1)

    def run(self, position: int) -> Run:
        """From a position on to the end of its pass, in steps of one batch of every rank, or as the user gave them.

        What came before is one step, whatever ranks it was assigned to: so it is no matter how many there were.
        """
        end = self.pass_end(position)
        if end is not None and self.tail != "spread":
            left = end - position
            end = position + self.together * (
                left // self.together if self.tail == "drop" else -(-left // self.together)
            )
        if end is None and isinstance(self.stream.data, Mix) and self.stream.data.num_samples is not None:
            end = FOR_EVER
        schedule = self.global_batch_size
        if schedule is None:
            schedule = BatchSchedule.of([(0, position), (1, self.together)] if position else self.together)
        return _PassRun(self, position, global_batch_size=schedule, samples=end)

    def ends_at(self, position: int) -> tuple[int, ...]:
        """Of a position before which all samples were given: itself, if it is within a step of the stream."""
        schedule = self.stream.schedule
        return () if schedule.begin(schedule.step_of(position)) == position else (position,)

    def describe(self) -> str:
        """The mix as a tree, order and batches."""
        if self.framed is not None:
            return self.framed.describe(world_size=self.worker_config.world_size, micro_batch_size=self.batch_size)
        return self.run(0).describe()

    def config(self) -> dict[str, Any]:
        """What decides which samples come when, JSON-safe: the recipe that a state is held against."""
        recipe = (self.own_order or self.framed or self.stream).recipe
        found: dict[str, Any] = msgspec.to_builtins(recipe)
        return found

    def restore_sample(self, key: Any) -> Any:
        """See `EnergonLoader.restore_sample`."""
        return restored(self.framed or self.stream, key, by_position=self.own_order is None)

    def __len__(self) -> int:
        """Samples of one pass of all ranks; TypeError where there is none."""
        samples = self.pass_samples if self.pass_samples is not None else length_of(self.stream.data)
        if samples is None:
            raise TypeError("an endless blend has no length")
        return samples

    def __repr__(self) -> str:
        kind = "training" if self.training else "validation"
        units = "" if self.framed is None else f" {self.framed.data.describe()},"
        return f"<EnergonDataset: {kind}, batches of {self.batch_size:,},{units} {self.stream.data!r}>"


class _PassRun(Run):
    """A pass from a position on, in whose last step slots are drawn up to its end, whatever these ranks leave out."""

    def __init__(
        self, dataset: EnergonDataset, position: int, *, global_batch_size: BatchSchedule | int, samples: int | None
    ) -> None:
        stream = dataset.stream
        super().__init__(stream.data, global_batch_size=global_batch_size, order=stream.order, samples=samples)
        self._drawn_end = dataset.pass_end(position) if dataset.tail == "drop" else self.length

    @property
    def drawn_end(self) -> int | None:
        """Up to which position slots are drawn."""
        return self._drawn_end


def in_own_order(
    data: Dataset | Mix,
    worker_config: WorkerConfig,
    *,
    training: bool,
    batch_size: int,
    virtual_epoch_length: int = 0,
    **own: Any,
) -> EnergonDataset:
    """Data in Energon's own order; ``own`` are arguments of `OwnOrder`."""
    stream = Run(data, global_batch_size=1, order=Order(kind="none"))
    topology = EnergonTopology(
        world_size=worker_config.world_size,
        num_workers=worker_config.num_workers,
        seed_offset=worker_config.seed_offset,
    )
    return EnergonDataset(
        stream=stream,
        worker_config=worker_config,
        batch_size=batch_size,
        training=training,
        virtual_epoch_length=virtual_epoch_length,
        own_order=OwnOrder(stream, topology=topology, batch_size=batch_size, **own),
    )
