"""All ranks of a job in one process: what each is given, micro-step by micro-step, and the state that one saves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace import Loader
from headrace.loader import Ranks, Reading

Batch = dict[str, Any]


class Job:
    """Loaders of a run, which begin at a state as a checkpoint brings it back; ``per_node`` ranks share a node."""

    def __init__(self, run: Any, world_size: int, micro_batch_size: int, state: Any = None, **options: Any) -> None:
        options = {"reading": Reading(num_threads=0), **options}
        per_node = options.pop("per_node", None)
        self.loaders = [
            Loader(run, micro_batch_size=micro_batch_size, ranks=Ranks(rank, world_size, per_node=per_node), **options)
            for rank in range(world_size)
        ]
        for loader in self.loaders if state is not None else []:
            loader.load_state_dict(json.loads(json.dumps(state)))

    def micro_steps(self, most: int = 1 << 30) -> Iterator[list[Batch]]:
        """Yield what the ranks are given together, at most so often."""
        streams = [iter(loader) for loader in self.loaders]
        try:
            for _ in range(most):
                batches = [next(stream, None) for stream in streams]
                if None in batches:
                    assert batches == [None] * len(batches), "all ranks end together"
                    return
                yield batches  # type: ignore[misc]
        finally:
            for stream in streams:
                stream.close()  # type: ignore[attr-defined]

    def positions(self, most: int = 1 << 30) -> list[list[list[int]]]:
        """For each micro-step the positions that each rank is given."""
        return [[batch["sample_positions"].tolist() for batch in batches] for batches in self.micro_steps(most)]

    def state(self) -> dict[str, Any]:
        """The state, which is small and the same on all ranks."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states), "one rank saves for all"
        assert len(json.dumps(states[0])) < 1024
        return states[0]

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def flat(found: list[list[list[int]]]) -> list[int]:
    """All positions."""
    return [position for micro_step in found for batch in micro_step for position in batch]
