"""What ``torchrun`` says in the environment about this job. It needs no torch."""

from __future__ import annotations

import os

from headrace.errors import ConfigError


def number_in(variable: str, value: str) -> int:
    """Return the number in a variable of the environment; raises ConfigError if it is none."""
    try:
        return int(value)
    except ValueError:
        raise ConfigError(
            f"the environment variable {variable} is {value!r}; expected a whole number, as torchrun sets it: correct "
            "or unset RANK and WORLD_SIZE, or pass ranks=Ranks(rank, world_size)"
        ) from None


def ranks_on_each_node(world_size: int, per_node: int | None) -> int:
    """Return ``per_node``, or what follows from the variables of torchrun; without them all ranks are on one node.

    Raises:
        ConfigError: the variables do not give every node the same whole number of ranks.
    """
    if per_node is not None:
        return per_node
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE")
    if world_size == 1 or not all(name in os.environ for name in names):
        return world_size
    local, processes = (number_in(name, os.environ[name]) for name in names)
    # A rank has as many processes as model parallelism needs.
    found, rest = divmod(local * world_size, processes)
    if rest or not found or world_size % found:
        raise ConfigError(
            f"LOCAL_WORLD_SIZE={local} of WORLD_SIZE={processes} processes are not a whole number of the"
            f" {world_size} data-parallel ranks: pass ranks=Ranks(rank, world_size, per_node=...)"
        )
    return found
