"""Which data-parallel rank this process is, and what ranks tell each other: that all of them run the same run.

What all processes of the job tell each other: bytes, and as many of each.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.distributed as dist

from headrace.datasets import Run
from headrace.errors import ConfigError, StateError
from headrace.plan import Share

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from headrace.datasets.encoded.framed_run import FramedRun

_NUMBER = struct.Struct("<q")


def is_alone() -> bool:
    """Whether there is no process group, or nobody else in it."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1


def all_gathered(data: bytes) -> list[bytes]:
    """The bytes of every process, in their order: one all-gather. All give equally many, and all have to call it."""
    if is_alone():
        return [data]
    on_gpu = "nccl" in dist.get_backend()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [one.cpu().numpy().tobytes() for one in every]


def largest(number: int) -> int:
    """The largest of the numbers of all processes: one all-gather of 8 bytes."""
    found: list[int] = [_NUMBER.unpack(one)[0] for one in all_gathered(_NUMBER.pack(number))]
    return max(found)


def all_gathered_texts(text: bytes) -> list[bytes]:
    """The same of texts of different lengths, which come filled up with spaces: two all-gathers."""
    return all_gathered(text.ljust(largest(len(text))))


class Ranks(msgspec.Struct, frozen=True):
    """The *data-parallel* rank of this process, of how many.

    Processes of one tensor-, pipeline- or context-parallel group share a data-parallel rank, and get the same bytes.
    Each time a loader is iterated, all processes of the job compare what they run, which is a collective call;
    ``agree=False`` leaves it out, for a loader that only some of the processes iterate.
    """

    rank: int = 0
    world_size: int = 1
    agree: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError unless 0 <= rank < world_size."""
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size}: ranks run from 0 to world_size - 1")

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, *dims: str) -> Ranks:
        """The rank along one or several dimensions of a ``DeviceMesh``, the first the slowest.

        Without ``dims`` the mesh must have one dimension, or one named ``"dp"``.
        """
        names = mesh.mesh_dim_names or ()
        if not dims:
            if "dp" in names:
                dims = ("dp",)
            elif mesh.ndim == 1:
                return cls(mesh.get_local_rank(), mesh.size())
            else:
                raise ConfigError(f"the mesh has the dimensions {names}: say which are data-parallel")
        if missing := [dim for dim in dims if dim not in names]:
            raise ConfigError(f"the mesh has no dimension {missing}; it has {names}")
        rank, world_size = 0, 1
        for dim in dims:
            size = mesh.size(names.index(dim))
            rank = rank * size + mesh.get_local_rank(dim)
            world_size *= size
        return cls(rank, world_size)

    @classmethod
    def from_group(cls, group: ProcessGroup) -> Ranks:
        """The rank within the data-parallel process group."""
        return cls(dist.get_rank(group), dist.get_world_size(group))

    @classmethod
    def detect(cls, *, model_parallel_size: int = 1) -> Ranks:
        """From ``torchrun``'s RANK and WORLD_SIZE, or the default process group; one rank when there is neither.

        They count processes, so they are the data-parallel rank only without model parallelism: with
        ``model_parallel_size`` above 1 this is an error, and a mesh, a group or numbers must be given.
        """
        if model_parallel_size > 1:
            raise ConfigError(
                f"with model_parallel_size={model_parallel_size} the process's rank is not its data-parallel rank: "
                "pass ranks=Ranks.from_mesh(mesh, 'dp'), Ranks.from_group(group) or Ranks(rank, world_size)"
            )
        rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if (rank is None) != (world_size is None):
            raise ConfigError(f"only one of RANK and WORLD_SIZE is set: RANK={rank}, WORLD_SIZE={world_size}")
        from_group = cls(dist.get_rank(), dist.get_world_size()) if _distributed() else None
        if rank is None or world_size is None:
            return from_group or cls()
        from_variables = cls(int(rank), int(world_size))
        if from_group not in (None, from_variables):
            raise ConfigError(
                f"RANK={rank} and WORLD_SIZE={world_size} say another rank than the process group, {from_group}: "
                "pass ranks=Ranks(rank, world_size)"
            )
        return from_variables


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


_AGREED = struct.Struct("<24sQQQ8sQ")


def agree(run: Run | FramedRun, position: int, share: Share, assignment: Callable[[int], bytes] | None = None) -> None:
    """One all-gather of 64 bytes over all processes, when there are several: the same run, and ranks that fit together.

    24 of them are of the hash of the recipe, and 8 are what ``dealing`` gives for the position, a hash of how what is
    left of the step is assigned.

    Raises:
        StateError: the processes differ in recipe, position, world size, micro-batch or balance, or a data-parallel
            rank is held by more processes than another.
    """
    if is_alone():
        return
    recipe = run.recipe.digest()[:24]
    digest = bytes(8) if assignment is None else assignment(position)
    packed = _AGREED.pack(recipe, position, share.world_size, share.micro_batch_size, digest, share.rank)
    columns = list(zip(*map(_AGREED.unpack, all_gathered(packed)), strict=True))
    # What balance comes to depends on the others, so it is looked at last.
    for what, values in zip(("recipe", "position", "world size", "micro-batch size", "balance"), columns, strict=False):
        if differing := [process for process, value in enumerate(values) if value != values[0]]:
            raise StateError(
                f"the processes disagree on the {what} of the run: {differing} differ from process 0. Every process "
                "must build the same run over the same files, and load the same state."
            )
    held = Counter(columns[5])
    if len(held) != share.world_size or len(set(held.values())) != 1:
        raise StateError(
            f"the processes hold the data-parallel ranks {sorted(columns[5])} of {share.world_size}: each rank must be "
            "held by equally many, the processes of its model-parallel group. Give each process its own rank."
        )
