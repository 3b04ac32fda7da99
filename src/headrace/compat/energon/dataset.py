"""``WorkerConfig``, and the `EnergonDataset` that `get_train_dataset` and `get_val_dataset` return."""

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
    """The data-parallel rank of this process and its workers, with the attributes of Energon's class.

    Attributes:
        rank: the *data-parallel* rank. Processes that need the same data have the same rank.
        world_size: the number of data-parallel ranks.
        num_workers: the number of worker processes of this rank that read and decode. With 0, this process reads when
            a batch is requested.
        data_parallel_group: the process group over which one rank hands a state to the others.
        seed_offset: the seed of the run. Another seed is another order.
        agree: compare what all processes of the job run when a loader begins to iterate. Then all of them must iterate
            the loader, including those of all pipeline stages; see `headrace.loader.Ranks`. Only with ``agree`` does a
            pass over a framed source have the same number of batches on all ranks.

    Example:
        >>> headrace.compat.energon.WorkerConfig(rank=0, world_size=1, num_workers=0).ranks.world_size
        1
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
        """Take ranks from the process group or from ``torchrun``'s variables; without either, there is one rank."""
        ranks = Ranks.detect() if data_parallel_group is None else Ranks.from_group(data_parallel_group)
        return cls(ranks.rank, ranks.world_size, num_workers, data_parallel_group, seed_offset)

    @property
    def ranks(self) -> Ranks:
        """The rank and the number of ranks, for a `headrace.Loader`."""
        return Ranks(self.rank, self.world_size, self.agree)


Tail = Literal["spread", "pad", "drop"]

FOR_EVER = 1 << 61
"""The number of samples of an endless run over a finite mix: more than any run will reach."""


class EnergonDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Samples and their order, to be passed to `get_loader`.

    `get_train_dataset` and `get_val_dataset` return it; it is not constructed directly.

    Attributes:
        stream: the samples, one after another. A state must agree with the recipe of the stream, whose steps are single
            samples, so that it does not depend on ranks and batches.
        worker_config: rank and workers.
        batch_size: samples of a batch on this rank.
        training: whether one pass follows another. In validation each iteration is the first pass again.
        pass_samples: samples of one pass; None if it has no end.
        tail: what happens to a last batch that not all ranks can fill.
        virtual_epoch_length: batches of this rank in an iteration; 0 means all.
        limit: batches of this rank in an iteration, for validation with units, whose number is not known in advance.
        global_batch_size: the global batch size, if the user gave one.
        own_order: Energon's own order, which replaces that of the stream.
        framed: the units made from the stream, if a task encoder does not make one output of each sample. Then batches
            consist of units.
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
        """Raise ConfigError for sizes out of range or an unknown tail."""
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
                f"{self.worker_config.world_size:,} ranks, and an incomplete last batch is dropped; choose "
                "tail='spread' or 'pad'"
            )

    @property
    def together(self) -> int:
        """The number of samples that all ranks take at a time."""
        return self.batch_size * self.worker_config.world_size

    def pass_end(self, position: int) -> int | None:
        """The end of the pass that a position is in; None if it has no end."""
        if self.pass_samples is None:
            return None
        return self.pass_samples * (position // self.pass_samples + 1 if self.training else 1)

    def run(self, position: int) -> Run:
        """The run from a position to the end of its pass.

        A step is one batch of every rank, or the global batch that the user gave. The samples before the position form
        a single step, so it does not matter how many ranks they were assigned to.
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
        """Where slots are drawn to at a position before which all samples were delivered.

        It is the position itself if it lies within a step of the stream, otherwise nothing; see `Cursor`.
        """
        schedule = self.stream.schedule
        return () if schedule.begin(schedule.step_of(position)) == position else (position,)

    def describe(self) -> str:
        """The mix as a tree, the order and the batches."""
        if self.framed is not None:
            return self.framed.describe(world_size=self.worker_config.world_size, micro_batch_size=self.batch_size)
        return self.run(0).describe()

    def config(self) -> dict[str, Any]:
        """The JSON-safe recipe that decides which samples come when; a state must agree with it."""
        recipe = (self.own_order or self.framed or self.stream).recipe
        found: dict[str, Any] = msgspec.to_builtins(recipe)
        return found

    def restore_sample(self, key: Any) -> Any:
        """Make a delivered sample or batch again; see `EnergonLoader.restore_sample`."""
        return restored(self.framed or self.stream, key, by_position=self.own_order is None)

    def __len__(self) -> int:
        """The samples of one pass over all ranks; raises TypeError for an endless blend."""
        samples = self.pass_samples if self.pass_samples is not None else length_of(self.stream.data)
        if samples is None:
            raise TypeError("an endless blend has no length")
        return samples

    def __repr__(self) -> str:
        kind = "training" if self.training else "validation"
        units = "" if self.framed is None else f" {self.framed.data.describe()},"
        return f"<EnergonDataset: {kind}, batches of {self.batch_size:,},{units} {self.stream.data!r}>"


class _PassRun(Run):
    """A pass from a position on. Slots of its last step are drawn up to its end, even if these ranks drop some."""

    def __init__(
        self, dataset: EnergonDataset, position: int, *, global_batch_size: BatchSchedule | int, samples: int | None
    ) -> None:
        stream = dataset.stream
        super().__init__(stream.data, global_batch_size=global_batch_size, order=stream.order, samples=samples)
        self._drawn_end = dataset.pass_end(position) if dataset.tail == "drop" else self.length

    @property
    def drawn_end(self) -> int | None:
        """The position up to which slots are drawn."""
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
    """Make an `EnergonDataset` in Energon's own order; ``own`` are arguments of `OwnOrder`."""
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
