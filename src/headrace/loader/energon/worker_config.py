"""Which rank of how many this is, and how many worker processes it reads with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import ConfigError
from headrace.loader.ranks import Ranks

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
            it then, those of all pipeline stages too; see `headrace.Ranks`. A pass over a framed source has as many
            batches on all ranks only with it.
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
