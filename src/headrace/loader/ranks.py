"""The data-parallel rank of a process, and the check that all processes of the job run the same run."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
import torch.distributed as dist

from headrace.config import check_fields
from headrace.environment import number_in
from headrace.errors import ConfigError, StateError
from headrace.plan import Share
from headrace.plan.recipe import canonical

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_NUMBER = struct.Struct("<q")


def is_alone() -> bool:
    """Whether there is no process group, or only this process is in it."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1


def all_gathered(data: bytes) -> list[bytes]:
    """Return the bytes of every process, in rank order, by one all-gather.

    All processes have to call it, with equally many bytes.
    """
    if is_alone():
        return [data]
    on_gpu = "nccl" in dist.get_backend()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [one.cpu().numpy().tobytes() for one in every]


def largest(number: int) -> int:
    """Return the largest of the numbers of all processes, by one all-gather of 8 bytes."""
    found: list[int] = [_NUMBER.unpack(one)[0] for one in all_gathered(_NUMBER.pack(number))]
    return max(found)


def all_gathered_texts(text: bytes) -> list[bytes]:
    """Return the texts of all processes, of any lengths, padded with spaces to the longest, by two all-gathers."""
    return all_gathered(text.ljust(largest(len(text))))


class Ranks(msgspec.Struct, frozen=True):
    """The *data-parallel* rank of this process, and the number of such ranks.

    Processes of one tensor-, pipeline- or context-parallel group share a data-parallel rank, and get the same bytes.

    Attributes:
        rank: from 0 to ``world_size - 1``.
        world_size: the number of data-parallel ranks.
        per_node: the number of these ranks on each node, of which rank 0 and the next ones are on the first; used by
            `headrace.Cache` and `headrace.Dealing`. None goes by LOCAL_WORLD_SIZE and WORLD_SIZE, as torchrun sets
            them.
        agree: whether all processes of the job compare their runs, and what else decides which rank takes what and
            when it ends, each time a loader is iterated. That is a collective call; pass False for a loader that only
            some of the processes iterate.

    Raises:
        ConfigError: ``rank`` is not below ``world_size``, or negative.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=8)
        >>> for rank in range(2):
        ...     loader = headrace.Loader(run, micro_batch_size=2, ranks=headrace.loader.Ranks(rank, 2))
        ...     print(rank, [batch["sample_positions"].tolist() for batch in loader])
        0 [[0, 1], [4, 5]]
        1 [[2, 3], [6, 7]]
    """

    rank: int = 0
    world_size: int = 1
    agree: bool = True
    per_node: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError unless 0 <= rank < world_size, and ``per_node`` divides ``world_size``."""
        check_fields(self)
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size}: ranks run from 0 to world_size - 1")
        if self.per_node is not None and (self.per_node < 1 or self.world_size % self.per_node):
            raise ConfigError(f"per_node is {self.per_node}; it must divide the number of ranks, {self.world_size}")

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, *dims: str) -> Ranks:
        """Return the rank along one or several dimensions of a ``DeviceMesh``, of which the first varies slowest.

        Without ``dims`` the mesh must have a dimension named ``"dp"``, or only one dimension.

        Raises:
            ConfigError: the mesh has no such dimension, or it has several and none was chosen.
        """
        names = mesh.mesh_dim_names or ()
        if not dims:
            if "dp" in names:
                dims = ("dp",)
            elif mesh.ndim == 1:
                return cls(mesh.get_local_rank(), mesh.size())
            else:
                raise ConfigError(
                    f"the mesh has the dimensions {names}: name the data-parallel ones, as in from_mesh(mesh, 'dp')"
                )
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
        """Return the rank of this process within a data-parallel process group."""
        return cls(dist.get_rank(group), dist.get_world_size(group))

    @classmethod
    def detect(cls, *, model_parallel_size: int = 1) -> Ranks:
        """Return the rank that ``torchrun`` set in RANK and WORLD_SIZE, or that of the default process group.

        If there is neither, the process is the only rank. These numbers count processes, so they are data-parallel
        ranks only without model parallelism.

        Raises:
            ConfigError: ``model_parallel_size`` is above 1; only one of the variables is set, or one is no number; or
                they contradict the process group.
        """
        if model_parallel_size > 1:
            raise ConfigError(
                f"with model_parallel_size={model_parallel_size} the rank of a process is not its data-parallel rank: "
                "pass ranks=Ranks.from_mesh(mesh, 'dp'), Ranks.from_group(group) or Ranks(rank, world_size)"
            )
        rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if (rank is None) != (world_size is None):
            raise ConfigError(
                f"only one of RANK and WORLD_SIZE is set: RANK={rank}, WORLD_SIZE={world_size}; set both or none"
            )
        is_group = dist.is_available() and dist.is_initialized()
        from_group = cls(dist.get_rank(), dist.get_world_size()) if is_group else None
        if rank is None or world_size is None:
            return from_group or cls()
        from_variables = cls(number_in("RANK", rank), number_in("WORLD_SIZE", world_size))
        if from_group not in (None, from_variables):
            raise ConfigError(
                f"RANK={rank} and WORLD_SIZE={world_size} contradict the process group, which has {from_group}: "
                "pass ranks=Ranks(rank, world_size)"
            )
        return from_variables


def gathered(ranks: Ranks, text: bytes, what: str) -> list[bytes]:
    """Return the texts of all processes.

    Raises:
        StateError: there are several ranks and no process group over which to gather ``what``, with what to do instead.
    """
    if ranks.world_size > 1 and is_alone():
        raise StateError(f"there are {ranks.world_size} ranks and no process group over which to gather {what}")
    return all_gathered_texts(text)


_AGREED = struct.Struct("<24sQ")

ASSIGNED: Final = "assignment of the step"
"""The name of a hash that follows from other values. It differs alone where a cost function does."""


def agree(share: Share, agreed: Callable[[], Mapping[str, Any]]) -> None:
    """Check that all processes feed parts of the same steps, and that their ranks fit together.

    This takes one all-gather of 32 bytes, 24 of which are of a hash of all values. Only if hashes differ, the values
    follow, so that the error can name those that do. With a single process nothing is sent, and ``agreed`` not called.

    Args:
        share: the rank of this process.
        agreed: returns all that has to be the same in every process: name -> value, safe for JSON.

    Raises:
        StateError: the processes differ in a value, or one data-parallel rank has more processes than another.
    """
    if is_alone():
        return
    values = agreed()
    packed = _AGREED.pack(sha256(canonical(values)).digest()[:24], share.rank)
    hashes, ranks = zip(*map(_AGREED.unpack, all_gathered(packed)), strict=True)
    if len(set(hashes)) > 1:
        raise disagreement(values)
    num_processes = Counter(ranks)
    if len(num_processes) != share.world_size or len(set(num_processes.values())) != 1:
        raise StateError(
            f"the processes have the data-parallel ranks {sorted(ranks)} of {share.world_size}: each rank must "
            "have equally many processes, those of its model-parallel group. Give each process its own rank."
        )


_MOST_RECIPE_BYTES: Final = 1 << 16
_MOST_LINES: Final = 8


def told(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON; of a large recipe only hashes, since that of each process comes to all of them."""
    text = canonical(values)
    if len(text) <= _MOST_RECIPE_BYTES:
        return text
    hashed = {
        part: {name: sha256(canonical(one)).hexdigest()[:32] for name, one in fields.items()}
        for part, fields in values["recipe"].items()
    }
    return canonical({**values, "recipe": hashed})


def disagreement(values: Mapping[str, Any]) -> StateError:
    """Return the error that names each field in which processes differ, with its values.

    Every process of the job has to call it with its own values; it takes two all-gathers.
    """
    lines = list(_differences([msgspec.json.decode(one) for one in all_gathered_texts(told(values))]))
    lines = [one for one in lines if not one.startswith(ASSIGNED)] or lines
    more = [f"and {len(lines) - _MOST_LINES:,} more"] if len(lines) > _MOST_LINES else []
    listed = "\n  ".join(lines[:_MOST_LINES] + more)
    return StateError(
        f"the processes disagree on what is fed, so that samples would come twice or never:\n  {listed}\n"
        "The numbers in brackets are processes, as in torch.distributed. Every process must build the same run over"
        " the same files, pass its loader the same options, and load the same state. If the file of the run was"
        " edited while the job was starting, start the job again."
    )


def _differences(values: Sequence[Any], name: str = "") -> Iterator[str]:
    """Yield a line for each field that differs between processes: its name, and each value with its processes."""
    if all(isinstance(one, dict) for one in values):
        for key in dict.fromkeys(key for one in values for key in one):
            yield from _differences([one.get(key, "not set") for one in values], f"{name}.{key}" if name else key)
        return
    found: dict[bytes, list[int]] = {}
    for process, value in enumerate(values):
        found.setdefault(canonical(value), []).append(process)
    if len(found) > 1:
        yield f"{name}: " + "; ".join(f"{_cut(text.decode(), 80)} in {_cut(str(at), 40)}" for text, at in found.items())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
