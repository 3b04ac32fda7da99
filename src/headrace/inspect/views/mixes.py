"""A mix with other weights: the share that each source would get, and how often it would be repeated."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.config import unknown_name
from headrace.datasets.metadataset import JoinedSource, load_dataset, sources
from headrace.errors import ConfigError
from headrace.inspect.answers import Answer
from headrace.inspect.metadataset import MetadatasetDescription, NodeNumbers


class TriedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a mix, as it stands in the file and as it would be.

    Attributes:
        path: the names on the way to it; empty for the root.
        depth: how many nodes are above it.
        node: the node in the file.
        weight: the weight that it would have among the children of its parent; None where there is none to change.
        share: its share of the samples of the mix.
        samples: the samples of the budget that come from it.
        tokens: their tokens, where the tokens of an epoch are known.
        epochs: how often the budget goes through a source; None for nodes that mix others.
    """

    path: str
    depth: int
    node: NodeNumbers
    weight: float | None
    share: float
    samples: int
    tokens: int | None
    epochs: float | None


class TriedMix(Answer, frozen=True, kw_only=True):
    """One split of a metadataset with a budget and, where they were given, other weights."""

    path: str
    split: str
    budget_samples: int
    changed: dict[str, float]
    nodes: tuple[TriedNode, ...]
    """Depth first, the root first."""


def tried_mix(
    found: MetadatasetDescription,
    split: str,
    *,
    budget_samples: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> TriedMix:
    """Return what a budget of samples takes from each source of a mix, with the weights of the file or with others.

    It is arithmetic on shares: in a run the counts deviate by less than 2 samples a source.

    Args:
        found: what `headrace.inspect.describe` says of the metadataset.
        split: the name of a split.
        budget_samples: the number of samples that are taken; by default those of one pass, or as many as all sources
            have together.
        weights: path of a node -> its weight, in place of that in the file.

    Raises:
        ConfigError: there is no such split, or no node with a weight at a path; or a number is below 0.

    Example:
        >>> from headrace import inspect
        >>> web, code = (
        ...     inspect.metadataset.NodeNumbers(name=name, kind="source", number=1, share=0.5, samples=100)
        ...     for name in ("web", "code")
        ... )
        >>> root = inspect.metadataset.NodeNumbers(
        ...     name="train", kind="blend", number=None, share=1.0, samples=None, children=(web, code)
        ... )
        >>> mix = inspect.MetadatasetDescription(
        ...     path="mix.yaml", splits={"train": root}, steps=None, global_batch_size=None
        ... )
        >>> tried = inspect.views.tried_mix(mix, "train", budget_samples=400, weights={"web": 3})
        >>> [(one.path, one.samples, one.epochs) for one in tried.nodes[1:]]
        [('web', 300, 3.0), ('code', 100, 1.0)]
    """
    if split not in found.splits:
        raise unknown_name(found.path, "split", split, found.splits)
    root = found.splits[split]
    given = dict(weights or {})
    if any(not 0 <= weight < float("inf") for weight in given.values()):
        raise ConfigError(f"weights are numbers of at least 0, found {given}")
    if budget_samples is None:
        budget_samples = root.samples if root.samples is not None else _held(root)
    if budget_samples < 0:
        raise ConfigError(f"a budget is at least 0 samples, found {budget_samples:,}")
    left = dict(given)
    nodes = tuple(_tried(root, "", 0, None, 1.0, budget_samples, left))
    if left:
        raise ConfigError(f"{found.path}: nothing with a weight is at {', '.join(map(repr, left))}")
    return TriedMix(path=found.path, split=split, budget_samples=budget_samples, changed=given, nodes=nodes)


def _held(node: NodeNumbers) -> int:
    return sum(map(_held, node.children)) if node.children else node.samples or 0


def _tried(
    node: NodeNumbers, path: str, depth: int, weight: float | None, share: float, budget: int, given: dict[str, float]
) -> list[TriedNode]:
    samples = round(share * budget)
    epochs = tokens = None
    if not node.children:
        epochs = samples / node.samples if node.samples else None
        tokens = None if node.tokens is None or not node.samples else round(node.tokens / node.samples * samples)
    found = [
        TriedNode(
            path=path, depth=depth, node=node, weight=weight, share=share, samples=samples, tokens=tokens, epochs=epochs
        )
    ]
    weights: list[float | None] = []
    parts: list[float] = []
    for child in node.children:
        place = f"{path}/{child.name}" if path else child.name
        base = child.share / node.share if node.share else 0.0
        if child.number is None:
            weights.append(None)
            parts.append(base)
            continue
        # In a blend with repeats a child's part goes with its samples, too; the change of its number scales it.
        weight = given.pop(place, child.number)
        weights.append(weight)
        parts.append(base * weight / child.number if child.number else weight)
    total = sum(parts)
    if node.children and not total:
        raise ConfigError(f"the weights below {path or 'the root'!r} are all 0: one of them must be above 0")
    for child, child_weight, part in zip(node.children, weights, parts, strict=True):
        place = f"{path}/{child.name}" if path else child.name
        found += _tried(child, place, depth + 1, child_weight, share * part / total, budget, given)
    tokens_below = [one.tokens for one in found[1:] if not one.node.children]
    if node.children and tokens_below and None not in tokens_below:
        found[0] = msgspec.structs.replace(found[0], tokens=sum(one or 0 for one in tokens_below))
    return found


def mix_paths(path: str) -> list[str]:
    """Return the paths of all datasets that a metadataset names, without opening them.

    Raises:
        HeadraceError: the file, or one that it names, cannot be read, or says something impossible.
    """
    metadataset = load_dataset(path)
    found: dict[str, None] = {}
    for split in metadataset.splits:
        for source in sources(metadataset.tree(split)):
            named = source.columns if isinstance(source, JoinedSource) else (source,)
            found |= dict.fromkeys(one.path for one in named)
    return list(found)
