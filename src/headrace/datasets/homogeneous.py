"""How many consecutive samples of a mix come from one source, where a mix promises it."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Branch, Concat, Inner, Leaf, Limit, Node, Schedule, Share


def homogeneous_samples(root: Node) -> int | None:
    """The largest B such that positions k B to k B + B - 1 are of one source for every k; None where none was asked.

    It is asked where a blend chooses its source for blocks. Around it may stand what keeps its blocks together:

        blocks of 16 in a blend by blocks of 32     16
        blocks of 16, then others from sample 24    8
        blocks of 16 in a blend sample by sample    1
    """
    if not _asked(root):
        return None
    # 0 stands for any number, as gcd has it: of a single source all samples are its own.
    return _together(root) or None


def _asked(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return (isinstance(node, Branch) and node.block_samples > 1) or any(map(_asked, node.children))


def _together(node: Node) -> int:
    if isinstance(node, Leaf):
        return 0
    return gcd(*_borders(node), *map(_together, node.children))


def _borders(node: Inner) -> list[int]:
    """Numbers of which all places are multiples where another child, or another part of one, begins."""
    if isinstance(node, Branch):
        return [node.block_samples]
    if isinstance(node, Concat):
        return [int(length) for length in node.lengths] if len(node.children) > 1 else []
    if isinstance(node, Schedule):
        return [int(begin) for begin in node.begins]
    if isinstance(node, Limit):
        # Of a single source a pass may begin anywhere.
        return [node.num_samples, node.child.num_samples or 0] if _together(node.child) else []
    return []  # a repeat begins where its child does


def check_micro_batches(
    block_samples: int,
    schedule: BatchSchedule,
    length: int | None,
    share: Share,
    position: int = 0,
    places: Sequence[int] = (),
) -> None:
    """Refuse micro-batches of which one would hold samples of two blocks.

    Args:
        block_samples: of the run.
        schedule: of the run.
        length: of the run.
        share: ranks and micro-batch.
        position: where the run goes on.
        places: where else blocks are cut, so that no micro-batch may lie across.

    Raises:
        ConfigError: the micro-batch does not divide the blocks, or is not whole everywhere.
    """
    micro_batch = share.micro_batch_size
    if block_samples % micro_batch:
        allowed = ", ".join(f"{size:,}" for size in range(1, block_samples + 1) if block_samples % size == 0)
        raise ConfigError(
            f"{block_samples:,} consecutive samples are of one source, and micro-batches of {micro_batch:,} would lie "
            f"in two such blocks; allowed are {allowed}"
        )
    if cut := [place for place in (position, *places) if place % micro_batch]:
        raise ConfigError(
            f"the run goes on at sample {position:,}, in a step that is cut at {cut[0]:,}, which is no multiple of "
            f"micro-batches of {micro_batch:,}, so that one would lie in two blocks of {block_samples:,} samples: go "
            "on with a micro-batch that divides it, or from a state between two steps"
        )
    together = share.world_size * micro_batch
    ends = [*(schedule.begin(first) for first, _ in schedule.pieces[1:]), None]
    sizes = {size for (_, size), end in zip(schedule.pieces, ends, strict=True) if end is None or end > position}
    _, begin, size, _ = schedule.locate(position)
    if position > begin:
        sizes.add(begin + size - position)
    if length is not None:
        sizes.add(length - schedule.begin(schedule.step_of(length)))
    if any(size % together for size in sizes):
        raise ConfigError(
            f"steps, or what is left of one, of {sorted(sizes - {0})} samples from sample {position:,} on are no "
            f"multiples of {share.world_size} ranks times micro-batches of {micro_batch:,} = {together:,}, and uneven "
            "ones may be of two sources: change one of them, or leave out a short last step with drop_last=True"
        )
