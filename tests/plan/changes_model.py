"""A slow model of a changed plan, which moves sample by sample and keeps explicit lists; and random changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.plan import BatchSchedule, Branch, Declared, Leaf, Node, Order, Plan, Shards, leaves
from headrace.plan.chaptered.changes import Length, PlanChange, PlanEditor
from headrace.plan.chaptered.chapters import ChapteredPlan
from headrace.plan.keys import source_key
from headrace.plan.nodes import has_schedules

ENDLESS = Length(None, None, False)


def plan_of(root: Declared, order: Order) -> ChapteredPlan:
    """The plan of a tree that was not changed, as a run makes it."""
    return PlanEditor(root, order, BatchSchedule.of(1), ENDLESS).plan() if has_schedules(root) else Plan(root, order)


class ModelSource:
    """A source with the rest of its epoch as a list."""

    def __init__(self, leaf: Leaf, key_path: str, order: Order) -> None:
        self.leaf, self.key_path, self.order = leaf, key_path, order
        self.next_order = order
        self.epoch = 0
        self.left_out: set[int] = set()
        self.rest = self._epoch(0)
        self.taken: set[int] = set()
        self.late: list[tuple[int, int]] = []

    @property
    def is_begun(self) -> bool:
        return bool(self.taken)

    def _epoch(self, epoch: int) -> list[tuple[int, int]]:
        key = self.order.epoch_keys(source_key(self.order.seed, self.key_path, "order"), np.array([epoch]))
        n = self.leaf.num_samples
        indices = self.order.indices(np.arange(n), np.repeat(key, n), n, self.leaf.shards)
        return [(epoch, i) for i in (indices + self.leaf.first_sample).tolist() if i not in self.left_out]

    def refill(self) -> None:
        if not self.late and not self.rest:
            self.epoch += 1
            self.order = self.next_order
            self.rest = self._epoch(self.epoch)
            self.taken = set()

    def take(self) -> tuple[int, int]:
        self.refill()
        if self.late:
            return self.late.pop(0)
        self.taken.add(self.rest[0][1])
        return self.rest.pop(0)

    def reorder(self, order: Order) -> None:
        self.next_order = order
        if not self.is_begun:
            self.order = order
            self.rest = self._epoch(self.epoch)

    def put_off(self, items: list[tuple[int, int]]) -> None:
        self.refill()
        # What is next belongs to the epoch under way, unless it is itself late.
        epoch = (self.late or self.rest)[0][0]
        own = [item for item in items if item[0] == epoch]
        early = [item for item in items if item[0] != epoch]
        if self.late and self.late[0][0] == epoch != self.epoch:
            last = max(i for i, item in enumerate(self.late) if item[0] == epoch) + 1
            self.late[last:last] = own
        else:
            self.rest += own
        self.late[:0] = early

    def leave_out(self, samples: set[int]) -> None:
        self.left_out |= samples
        self.rest = [item for item in self.rest if item[1] not in samples]
        self.late = [item for item in self.late if item[1] not in samples]

    def begin_anew(self, leaf: Leaf, order: Order) -> None:
        self.leaf, self.order, self.next_order, self.left_out, self.late = leaf, order, order, set(), []
        self.epoch += self.is_begun or not (self.rest or self.late)
        self.rest = self._epoch(self.epoch)
        self.taken = set()


class ModelNode:
    def __init__(self, node: Node, children: list[Any], sources: dict[str, int]) -> None:
        self.node, self.children, self.rank = node, children, 0
        self.signature = signature(node, sources)

    def take(self, model: Model) -> tuple[int, tuple[int, int]]:
        if isinstance(self.node, Leaf):
            source = self.children[0]
            return source, model.sources[source].take()
        child = int(self.node.split(np.array([self.rank]))[0][0])
        self.rank += 1
        return self.children[child].take(model)


def signature(node: Node, sources: dict[str, int]) -> Any:
    if isinstance(node, Leaf):
        return sources[node.path]
    shape = (type(node), node.num_samples, getattr(node, "shares", None), getattr(node, "block_samples", None))
    return (*shape, tuple(signature(child, sources) for child in node.children))


class Model:
    def __init__(self, root: Node, order: Order) -> None:
        self.order = order
        self.sources: list[ModelSource] = []
        self.begun: set[int] = set()
        self.root = self.tree(root, {leaf.path: self.add(leaf) for leaf in leaves(root)}, {})

    def add(self, leaf: Leaf) -> int:
        self.sources.append(ModelSource(leaf, leaf.path, self.order))
        return len(self.sources) - 1

    def tree(self, node: Node, sources: dict[str, int], old: dict[Any, ModelNode]) -> ModelNode:
        if isinstance(node, Leaf):
            return ModelNode(node, [sources[node.path]], sources)
        found = old.get(signature(node, sources))
        if found is not None:
            return found
        return ModelNode(node, [self.tree(child, sources, old) for child in node.children], sources)

    def nodes(self, node: ModelNode | None = None) -> Iterator[ModelNode]:
        node = node or self.root
        if not isinstance(node.node, Leaf):
            yield node
            for child in node.children:
                yield from self.nodes(child)

    def change_tree(self, root: Node, sources: dict[str, int], fresh: set[int]) -> None:
        def holds(node: ModelNode) -> bool:
            return any(
                child.children[0] in fresh if isinstance(child.node, Leaf) else holds(child) for child in node.children
            )

        old = {node.signature: node for node in self.nodes() if not holds(node)}
        self.root = self.tree(root, sources, old)

    def take(self) -> tuple[int, tuple[int, int]]:
        source, item = self.root.take(self)
        self.begun.add(source)
        return source, item

    def skip(self, count: int, *, defer: bool) -> None:
        passed: dict[int, list[tuple[int, int]]] = {}
        for _ in range(count):
            source, item = self.take()
            passed.setdefault(source, []).append(item)
        if defer:
            for source, items in passed.items():
                self.sources[source].put_off(items)


def random_leaf(rng: random.Random, path: str) -> Leaf:
    num_samples = rng.choice([1, 2, 3, 5, 7, 8, 9, 16, 31, 33])
    shards = None
    if rng.random() < 0.3:
        shards = Shards([0, *sorted(rng.sample(range(1, num_samples), min(2, num_samples - 1))), num_samples])
    return Leaf(path, num_samples, shards, rng.choice([0, 0, 5]))


def random_order(rng: random.Random) -> Order:
    kind = rng.choice(["full", "full", "blocks", "shards", "torch", "none"])
    return Order(
        kind=kind,
        seed=rng.randrange(3),
        block_samples=3,
        window_blocks=2,
        max_samples_per_sequence=3,
        parallel_shard_iters=2,
    )


def at(leaf: Leaf, path: str) -> Leaf:
    return Leaf(path, leaf.num_samples, leaf.shards, leaf.first_sample)


def random_tree(rng: random.Random, names: dict[str, Leaf], path: str = "") -> Node:
    """A tree of endless blends over all the names."""
    chosen = list(names)
    rng.shuffle(chosen)
    if len(chosen) == 1 and (not path or rng.random() < 0.8):
        return at(names[chosen[0]], path)
    groups: list[tuple[str, dict[str, Leaf]]] = []
    while chosen:
        size = rng.choice([1, 1, 2, 3])
        part, chosen = chosen[:size], chosen[size:]
        name = part[0] if len(part) == 1 else "of_" + "_".join(sorted(part))
        groups.append((name, {one: names[one] for one in part}))
    if len(groups) == 1:
        groups = [(name, {name: names[name]}) for name in groups[0][1]]
    children = tuple(random_tree(rng, part, f"{path}/{name}" if path else name) for name, part in groups)
    shares = tuple(rng.choice([1, 1, 2, 3, 5]) for _ in groups)
    return Branch(path, children, shares, None, rng.choice([1, 1, 1, 4]))


def random_changes(
    rng: random.Random, editor: PlanEditor, model: Model, names: dict[str, Leaf], kinds: list[str], num_changes: int
) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
    """Change both in the same ways after some steps each; return the last step, and what was taken before it."""
    root = model.root.node
    numbers = {leaf.path.rpartition("/")[2]: number for number, leaf in enumerate(leaves(root))}
    step = 0
    taken: list[tuple[int, tuple[int, int]]] = []
    for _ in range(num_changes):
        for _ in range(rng.choice([0, 0, 1, 2, 5, 11])):
            taken += [model.take() for _ in range(editor.schedule.size(step))]
            step += 1
        what = rng.choice(kinds)
        if what == "add":
            name = f"n{len(numbers)}"
            names[name] = random_leaf(rng, name)
            root = random_tree(rng, names)
            sources = {}
            for leaf in leaves(root):
                last = leaf.path.rpartition("/")[2]
                if last not in numbers and last == name:
                    numbers[name] = editor.add(leaf)
                    assert model.add(leaf) == numbers[name]
                sources[leaf.path] = numbers[last]
            change = PlanChange(step=step, root=root, sources=sources)
            model.change_tree(root, sources, set())
        elif what in ("tree", "remove", "fresh"):
            if what == "remove" and len(names) > 2:
                names = dict(rng.sample(sorted(names.items()), len(names) - 1))
            fresh = {}
            if what == "fresh":
                name = rng.choice(sorted(names))
                names[name] = random_leaf(rng, name)
                fresh[numbers[name]] = names[name]
            root = random_tree(rng, names)
            sources = {leaf.path: numbers[leaf.path.rpartition("/")[2]] for leaf in leaves(root)}
            change = PlanChange(step=step, root=root, sources=sources, fresh=fresh)
            for number, leaf in fresh.items():
                model.sources[number].begin_anew(leaf, model.order)
            model.change_tree(root, sources, set(fresh))
        elif what == "order":
            model.order = random_order(rng)
            change = PlanChange(step=step, order=model.order)
            for source in model.sources:
                source.reorder(model.order)
        elif what == "left_out":
            name = rng.choice(sorted(names))
            leaf, source = names[name], model.sources[numbers[name]]
            samples = set(rng.sample(range(leaf.num_samples), rng.randrange(0, leaf.num_samples)))
            samples = {sample + leaf.first_sample for sample in samples}
            if len(samples | source.left_out) >= leaf.num_samples:
                continue
            source.leave_out(samples)
            change = PlanChange(step=step, left_out={numbers[name]: np.array(sorted(samples), dtype=np.int64)})
        elif what in ("skip", "defer"):
            count = rng.choice([1, 2, 3, 9])
            change = PlanChange(step=step, skip_steps=count, defer=what == "defer")
            begin = editor.schedule.begin
            model.skip(begin(step + count) - begin(step), defer=what == "defer")
        else:
            change = PlanChange(step=step, pieces=((0, rng.choice([1, 3, 6])), (2, rng.choice([2, 7]))))
        editor.apply(change)
    return step, taken
