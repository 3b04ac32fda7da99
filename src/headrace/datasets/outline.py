"""What a run is made of, in words: the text behind ``Run.describe``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.datasets.dataset import Dataset
from headrace.plan import BatchSchedule, Branch, Leaf, Node, Order, Plan


def outline(plan: Plan, datasets: Sequence[Dataset], schedule: BatchSchedule, length: int | None) -> str:
    """The tree of sources with their shares, then order, length and batches."""
    by_path = {leaf.path: dataset for leaf, dataset in zip(plan.leaves, datasets, strict=True)}
    lines = list(_tree(plan.root, by_path, "", ""))
    lines.append(f"order: {_order(plan.order)}")
    pieces = [f"{size:,} samples from step {step:,}" for step, size in schedule.pieces]
    lines.append(f"global batch: {', '.join(pieces)}")
    if length is None:
        lines.append("length: endless")
    else:
        lines.append(f"length: {length:,} samples, {schedule.step_of(length - 1) + 1:,} steps")
    lines.extend(_deviation(plan.root, datasets))
    return "\n".join(lines)


def _tree(node: Node, by_path: dict[str, Dataset], first: str, rest: str) -> Iterator[str]:
    name = node.path.rpartition("/")[2] or "run"
    if isinstance(node, Leaf):
        dataset = by_path[node.path]
        length = "endless" if dataset.is_endless else f"{node.num_samples:,} samples an epoch"
        yield f"{first}{name}: {length}, {dataset.describe()}"
        return
    length = "endless" if node.num_samples is None else f"{node.num_samples:,} samples a pass"
    yield f"{first}{name}: blend, {length}"
    total = sum(node.shares)
    for i, (child, share) in enumerate(zip(node.children, node.shares, strict=True)):
        last = i + 1 == len(node.children)
        percent = f"{100 * share / total:.3f} % "
        yield from _tree(child, by_path, rest + ("└─ " if last else "├─ ") + percent, rest + ("   " if last else "│  "))


def _order(order: Order) -> str:
    if order.kind == "none":
        return "as stored, the same in every epoch"
    if order.kind == "full":
        return f"every epoch a permutation of all samples, seed {order.seed}"
    return (
        f"blocks of {order.block_samples:,} samples permuted, then samples within windows of {order.window_blocks:,} "
        f"blocks, seed {order.seed}"
    )


def _deviation(root: Node, datasets: Sequence[Dataset]) -> Iterator[str]:
    """How far the tokens of each source may stray from its token share while its samples keep to theirs."""
    if isinstance(root, Branch):
        worst = max(dataset.deviation_tokens_per_sample for dataset in datasets)
        tokens = max(dataset.num_tokens_per_sample for dataset in datasets)
        yield (
            f"expected deviation: below 2 samples ({2 * tokens:,.0f} tokens) of each of {len(datasets)} sources at "
            f"every prefix, and {worst:,.0f} tokens times the square root of its samples for their uneven lengths"
        )
