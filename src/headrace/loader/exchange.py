"""What all processes of the job tell each other: bytes, and as many of each."""

from __future__ import annotations

import struct

import torch
import torch.distributed as dist

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
