"""A run in words: the tree of its sources with their shares, its order, and how well the samples are mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix, named_datasets, node_of
from headrace.plan import (
    BatchSchedule,
    Branch,
    ConcatNode,
    Declared,
    Inner,
    Leaf,
    LimitNode,
    RepeatNode,
    Schedule,
    order_quality,
)
from headrace.plan.chaptered.chapters import ChapteredPlan


def sources_outline(data: Dataset | Mix, plan: ChapteredPlan) -> list[str]:
    """Return lines: the tree of the sources with their shares, then the order; of an edited run the last ones."""
    return [*_tree(node_of("", data), named_datasets(data), "", ""), f"order: {plan.order.describe()}"]


def _tree(node: Declared, by_path: dict[str, Dataset], first: str, rest: str) -> Iterator[str]:
    name = node.path.rpartition("/")[2] or "run"
    if isinstance(node, Leaf):
        dataset = by_path[node.path]
        length = "endless" if dataset.traits.is_endless else f"{node.num_samples:,} samples an epoch"
        yield f"{first}{name}: {length}, {dataset.describe()}"
        return
    length = "endless" if node.num_samples is None else f"{node.num_samples:,} samples a pass"
    yield f"{first}{name}: {_KINDS[type(node)]}, {length}"
    for i, (child, part) in enumerate(zip(node.children, _parts(node), strict=True)):
        last = i + 1 == len(node.children)
        if isinstance(node, Schedule) and 0 < i < len(node.children) - 1 and len(node.children) > _SHOWN:
            # A ramp may have a thousand mixes.
            if i == 1:
                yield f"{rest}├─ {len(node.children) - 2:,} mixes between the first and the last"
            continue
        yield from _tree(child, by_path, rest + ("└─ " if last else "├─ ") + part, rest + ("   " if last else "│  "))


_SHOWN = 4
"""Most mixes of a schedule that are all shown; of more, only the first and the last are."""

_KINDS: dict[type, str] = {
    Branch: "blend",
    ConcatNode: "one after another",
    LimitNode: "the first samples of every pass",
    RepeatNode: "repeated",
    Schedule: "one mix after another",
}


def _parts(node: Inner | Schedule) -> list[str]:
    """Return what stands before each child: its share, or where it begins."""
    if isinstance(node, Branch):
        return [f"{100 * share / sum(node.shares):.3f} % " for share in node.shares]
    if isinstance(node, Schedule):
        return [f"from sample {begin:,}: " for begin in node.begins]
    return [""] * len(node.children)


def mixing_outline(plan: ChapteredPlan, schedule: BatchSchedule) -> str:
    """Return how well the order for shards mixes the largest source: a tenth of a second, no data is read."""
    leaf = max(plan.leaves, key=lambda leaf: leaf.num_samples)
    batch_samples = max(2, schedule.pieces[0][1])
    found = order_quality(plan.order, leaf.num_samples, leaf.shards, batch_samples=batch_samples, path=leaf.path)
    of = f" of {leaf.path}, the largest source" if leaf.path else ""
    return (
        f"mixing{of}: {found.same_shard_pairs:.2f} times the pairs of one shard in a batch that a uniform order of as "
        f"many shards ({found.open_shards:,}) has, median displacement {found.displacement:.0%} of a uniform order's, "
        f"{found.mean_run_samples:,.1f} neighbours read together"
    )


def deviation_outline(root: Declared, datasets: Sequence[Dataset]) -> Iterator[str]:
    """Yield how far the samples of a source may stray from its share."""
    if isinstance(root, Branch):
        tokens = ""
        if all(dataset.traits.has_tokens for dataset in datasets):
            tokens = f" ({2 * max(dataset.num_tokens_per_sample for dataset in datasets):,.0f} tokens)"
        yield f"expected deviation: below 2 samples{tokens} of each of {len(datasets)} sources at every prefix"
