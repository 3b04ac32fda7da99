"""What of a tree of sources goes into the recipe of a run."""

from __future__ import annotations

from headrace.plan.nodes import Branch, Leaf, Node, Schedule, leaves


def node_recipe(node: Node) -> dict[str, object]:
    """What decides anything of a tree, JSON-safe; what is new since the first version stands only where it is used.

    In a schedule each source is written once, and each tree of its segments, whose shares alone tell them apart:

        {"path": "", "kind": "schedule",
         "sources": [{"path": "web", "num_samples": 900}, {"path": "math", "num_samples": 70}],
         "trees": [{"path": "", "num_samples": None, "children": [0, 1]}],
         "segments": [{"begin": 0, "tree": 0, "shares": [3, 1]}, {"begin": 64, "tree": 0, "shares": [1, 1]}]}
    """
    return _recipe(node, None)


def _recipe(node: Node, numbers: dict[str, int] | None) -> dict[str, object]:
    """``numbers`` are those of the sources, path -> number, within a schedule that has written them."""
    recipe: dict[str, object] = {"path": node.path}
    if isinstance(node, Schedule):
        return recipe | {"kind": "schedule"} | _segments_recipe(node, numbers)
    recipe["num_samples"] = node.num_samples
    if isinstance(node, Leaf):
        if node.shards is not None:
            recipe["shards"] = node.shards.digest
        return recipe | ({"first_sample": node.first_sample} if node.first_sample else {})
    recipe["children"] = [_child_recipe(child, numbers) for child in node.children]
    if isinstance(node, Branch):
        recipe["shares"] = list(node.shares)
        return recipe | ({"block_samples": node.block_samples} if node.block_samples > 1 else {})
    return recipe | {"kind": type(node).__name__.lower()}


def _child_recipe(node: Node, numbers: dict[str, int] | None) -> dict[str, object] | int:
    return numbers[node.path] if numbers is not None and isinstance(node, Leaf) else _recipe(node, numbers)


def _segments_recipe(node: Schedule, numbers: dict[str, int] | None) -> dict[str, object]:
    written: dict[str, object] = {}
    if numbers is None:
        sources = list(leaves(node))
        numbers = {leaf.path: number for number, leaf in enumerate(sources)}
        written = {"sources": [_recipe(leaf, None) for leaf in sources]}
    trees: list[object] = []
    known: dict[str, int] = {}
    segments = []
    for begin, root in node.segments:
        tree = _child_recipe(root, numbers)
        segment: dict[str, object] = {"begin": begin}
        if isinstance(tree, dict) and "shares" in tree:
            segment["shares"] = tree.pop("shares")
        number = known.setdefault(str(tree), len(trees))
        if number == len(trees):
            trees.append(tree)
        segments.append(segment | {"tree": number})
    return written | {"trees": trees, "segments": segments}
