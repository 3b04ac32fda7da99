"""Every kind of inner node against one that goes step by step, both ways, for drawn trees of all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import (
    BlendTree,
    Branch,
    ConcatNode,
    Leaf,
    LimitNode,
    Node,
    Order,
    Plan,
    RepeatNode,
    Schedule,
    Shards,
    exact_weights,
    leaf_counts,
    linear_ramp,
    node_recipe,
    quantised,
)
from headrace.plan.nodes import declared, has_schedules
from plan.changes_model import plan_of

SIZES = (1, 2, 3, 7, 40)


def leaf(draw: st.DrawFn, path: str) -> Leaf:
    size = draw(st.sampled_from(SIZES))
    if draw(st.booleans()):
        return Leaf(path, size)
    first = draw(st.integers(0, size - 1))
    shards = Shards([0, size // 2, size]) if draw(st.booleans()) else None
    return Leaf(path, size, shards).subset(first, size)


def ended(draw: st.DrawFn, path: str, depth: int) -> Node:
    """A node with a pass."""
    kind = draw(st.sampled_from(["leaf", "repeats", "concat", "limit", "repeat"])) if depth else "leaf"
    if kind == "leaf":
        return leaf(draw, path)
    if kind == "limit":
        child = draw(st.sampled_from([ended, endless]))(draw, path, depth - 1)
        return LimitNode(path, child, draw(st.integers(1, child.num_samples or 20)))
    if kind == "repeat":
        child = ended(draw, path, depth - 1)
        return RepeatNode(path, child, draw(st.integers(1, 3 * (child.num_samples or 1))))
    children = tuple(ended(draw, f"{path}/{i}", depth - 1) for i in range(draw(st.integers(1, 3))))
    if kind == "concat":
        return ConcatNode(path, children)
    block = draw(st.sampled_from([1, 1, 2, 5]))
    shares = tuple(draw(st.lists(st.integers(0, 9), min_size=len(children), max_size=len(children)).filter(any)))
    return Branch(path, children, shares, sum(shares) * block, block)


def endless(draw: st.DrawFn, path: str, depth: int) -> Node:
    children = tuple(
        draw(st.sampled_from([ended, ended, endless]) if depth > 1 else st.just(ended))(
            draw, f"{path}/{i}", max(0, depth - 1)
        )
        for i in range(draw(st.integers(1, 4)))
    )
    weights = draw(st.lists(st.floats(0.1, 10), min_size=len(children), max_size=len(children)))
    return Branch(path, children, tuple(quantised(weights)), None, draw(st.sampled_from([1, 1, 3])))


@st.composite
def schedules(draw: st.DrawFn) -> Node:
    """Some leaves, in trees of some of them each."""
    sources = [leaf(draw, f"s{i}") for i in range(4)]
    segments, begin = [], 0
    for number in range(draw(st.integers(1, 4))):
        some = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=4, unique_by=lambda one: one.path))
        weights = draw(st.lists(st.floats(0.1, 10), min_size=len(some), max_size=len(some)))
        tree: Node = Branch(f"{number}", tuple(some), tuple(quantised(weights)), None, draw(st.sampled_from([1, 4])))
        if draw(st.integers(0, 3)) == 0:
            tree = ConcatNode(f"{number}", tuple(some))
        if draw(st.integers(0, 3)) == 0:
            tree = LimitNode(f"{number}", tree, draw(st.integers(1, tree.num_samples or 9)))
        segments.append((begin, tree))
        begin += draw(st.integers(1, 60))
    root: Node = Schedule("", tuple(segments))
    return Branch("", (root, Leaf("other", 5)), (3, 1), None) if draw(st.booleans()) else root


@st.composite
def trees(draw: st.DrawFn) -> Node:
    return draw(st.sampled_from([ended, endless]))(draw, "root", 3)


def plainly(node: Node, counters: Counter[str]) -> Iterator[tuple[str, int]]:
    """(path, rank in the leaf) for ever, from counters and iterators that remember."""
    if isinstance(node, Leaf):
        while True:
            counters[node.path] += 1
            yield node.path, counters[node.path] - 1
    if isinstance(node, Schedule):
        ends = [begin for begin, _ in node.segments[1:]]
        for (begin, tree), end in zip(node.segments, [*ends, 1 << 40], strict=True):
            yield from islice(plainly(tree, counters), end - begin)
    streams = [plainly(child, counters) for child in node.children]
    if isinstance(node, Branch):
        position = 0
        while True:
            chosen = int(BlendTree(node.shares).split(np.array([position]))[0][0])
            yield from islice(streams[chosen], node.block_samples)
            position += 1
    while True:
        if isinstance(node, ConcatNode):
            for child, stream in zip(node.children, streams, strict=True):
                yield from islice(stream, child.num_samples)
        if isinstance(node, RepeatNode):
            yield from islice(streams[0], node.num_samples)
        if isinstance(node, LimitNode):
            yield from islice(streams[0], node.num_samples - 1)
            last = next(streams[0])
            # What a pass leaves out is passed over with its last sample.
            list(islice(streams[0], (node.child.num_samples or node.num_samples) - node.num_samples))
            yield last


def check_both_ways(root: Node, kind: str) -> None:
    number = 250
    plan = plan_of(root, Order(kind=kind, seed=5, max_samples_per_sequence=2, parallel_shard_iters=2))
    paths = [one.path for one in plan.leaves]
    found = plan.lookup(np.arange(number, dtype=np.int64))
    wanted = list(islice(plainly(root, Counter()), number))
    assert [paths[source] for source in found.sources.tolist()] == [path for path, _ in wanted]
    sizes = np.array([one.num_samples for one in plan.leaves])[found.sources]
    assert found.epochs.tolist() == (np.array([rank for _, rank in wanted]) // sizes).tolist()
    firsts = np.array([one.first_sample for one in plan.leaves])[found.sources]
    assert ((found.indices >= firsts) & (found.indices < firsts + sizes)).all()

    # Where each sample comes: exactly the positions at which it was found.
    for position in (0, 57, 249):
        source, index = int(found.sources[position]), int(found.indices[position])
        mine = np.flatnonzero((found.sources == source) & (found.indices == index))
        seen = plan.find(source, index, begin=0, end=number)
        assert np.array_equal(seen.positions, mine)
        assert np.array_equal(seen.epochs, found.epochs[mine])
        later = plan.find(source, index, begin=position, end=number)
        assert np.array_equal(later.positions, mine[mine >= position])


@settings(max_examples=cases(32, 80), deadline=None)
@given(trees(), st.sampled_from(["full", "none", "shards"]))
def test_trees_as_step_by_step(root: Node, kind: str) -> None:
    check_both_ways(root, kind)


@settings(max_examples=cases(24, 60), deadline=None)
@given(schedules(), st.sampled_from(["full", "shards"]))
def test_schedules_as_step_by_step(root: Node, kind: str) -> None:
    check_both_ways(root, kind)


@settings(max_examples=cases(20, 100), deadline=None)
@given(st.one_of(trees(), schedules()), st.integers(0, 400))
def test_how_far_each_source_has_come(root: Node, position: int) -> None:
    counters: Counter[str] = Counter()
    for _ in islice(plainly(root, counters), position):
        pass
    plan = plan_of(root, Order())
    if not has_schedules(root):
        assert {path: count for path, count in leaf_counts(root, position).items() if count} == +counters
    assert plan.counts(position) == [counters[one.path] for one in plan.leaves]


@pytest.mark.parametrize("kind", ["full", "shards"])
def test_schedules_below_others_begin_their_stages_where_they_come_to_them(kind: str) -> None:
    a, b = Leaf("x/a", 7), Leaf("x/b", 40, Shards([0, 9, 40]))
    mixes = [Branch("x", (a, b), tuple(quantised(weights)), None) for weights in ((1, 2), (3, 1))]
    stages = Schedule("x", ((0, mixes[0]), (10, mixes[1]), (31, b), (33, a), (60, mixes[0])))
    other = Schedule("y", ((0, Leaf("y/c", 5)), (20, Branch("y", (Leaf("y/c", 5), Leaf("y/d", 9)), (1, 1), None))))
    both = Branch("z", (declared(stages), declared(other), Leaf("z", 11)), (5, 4, 1), None, 3)
    check_both_ways(both, kind)
    # Of every pass of ten, the limit leaves out three, and with them some borders.
    ended = Branch("z", (declared(stages), declared(other)), (5, 5), 10)
    limit = LimitNode("z", ended, 7)
    check_both_ways(ConcatNode("", (limit, Leaf("w", 3))), kind)
    endless = Schedule("x", ((0, mixes[0]), (10, mixes[1]), (31, mixes[0])))
    check_both_ways(LimitNode("x", declared(endless), 9), kind)


@settings(max_examples=cases(16, 40), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)).filter(any), min_size=1, max_size=6),
    st.integers(1, 3_000),
    st.integers(1, 30),
)
def test_a_ramp_keeps_to_its_weights_in_every_segment(
    weights: list[tuple[float, float]], length: int, segments: int
) -> None:
    first, last = zip(*weights, strict=True)
    if not any(first) or not any(last):
        with pytest.raises(ConfigError, match="0"):
            linear_ramp(first, last, begin=0, end=length, num_segments=segments)
        return
    sources = tuple(Leaf(f"s{i}", 7 + i) for i in range(len(weights)))
    ramp = linear_ramp(first, last, begin=0, end=length, num_segments=segments)
    assert len(ramp) == min(segments, length) + 1
    root = Schedule("", tuple((begin, Branch(f"{begin}", sources, shares, None)) for begin, shares in ramp))
    found = plan_of(root, Order()).lookup(np.arange(length + 500, dtype=np.int64))
    borders = [begin for begin, _ in ramp] + [length + 500]
    for (begin, shares), end in zip(ramp, borders[1:], strict=True):
        prefix = np.arange(1, end - begin + 1)[:, None]
        counts = np.cumsum(found.sources[begin:end, None] == np.arange(len(sources)), axis=0)
        assert np.abs(counts - prefix * (np.array(shares) / sum(shares))).max(initial=0) < 2
    for source, one in enumerate(sources):
        epochs = found.epochs[found.sources == source]
        assert np.array_equal(epochs, np.arange(epochs.size) // one.num_samples), "epochs go on from one to the next"


def test_a_ramp_by_hand() -> None:
    half = 1 << 30
    ramp = linear_ramp((1, 0), (0, 1), begin=100, end=104, num_segments=2)
    assert ramp == (
        (100, (half + half // 2, half // 2)),
        (102, (half // 2, half + half // 2)),
        (104, (0, 2 * half)),
    )
    assert len(linear_ramp((1, 1), (1, 3), begin=0, end=10**9)) == 1_025
    for wrong in ({"end": 0}, {"end": 9, "num_segments": 1_025}, {"end": 9, "num_segments": 0}):
        with pytest.raises(ConfigError, match=r"1.*1,024"):
            linear_ramp((1,), (1,), begin=0, **wrong)
    with pytest.raises(ConfigError, match="ends"):
        linear_ramp((1,), (1, 2), begin=0, end=5)
    with pytest.raises(ConfigError, match=r"least.*0"):
        linear_ramp((1, -1), (1, 2), begin=0, end=5)


@settings(max_examples=cases(40, 200), deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(1, 2**50)), min_size=1, max_size=12).filter(any),
    st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=10),
)
def test_a_blend_is_undone_and_counted_at_any_size(shares: list[int], positions: list[int]) -> None:
    tree = BlendTree(shares)
    given_positions = np.array(positions, dtype=np.int64)
    sources, ranks = tree.split(given_positions)
    for position, source, rank in zip(positions, sources.tolist(), ranks.tolist(), strict=True):
        assert tree.join(source, np.array([rank])).tolist() == [position]
        counts = tree.counts(position)
        assert counts[source] == rank
        assert sum(counts) == position
        after = tree.counts(position + 1)
        assert after[source] == rank + 1


def test_trace_of_a_great_run_is_arithmetic() -> None:
    sizes = [10**10, 3 * 10**9, 77]
    weights = exact_weights([0.7, 0.2999, 0.0001])
    sources = tuple(Leaf(f"s{i}", size, Shards.whole(size)) for i, size in enumerate(sizes))
    plan = Plan(Branch("", sources, tuple(quantised(weights)), None), Order(kind="shards"))
    positions = np.array([0, 98_456_789_012, 10**11 - 1])
    found = plan.lookup(positions)
    for position, source, index in zip(positions.tolist(), found.sources.tolist(), found.indices.tolist(), strict=True):
        seen = plan.find(source, index, begin=0, end=10**11)
        assert position in seen.positions.tolist()
        again = plan.lookup(seen.positions)
        assert (again.sources == source).all()
        assert (again.indices == index).all()
        assert np.array_equal(again.epochs, seen.epochs)
        assert np.array_equal(seen.epochs, np.arange(seen.epochs.size)), "once in every epoch"
        assert seen.epochs.size - plan.counts(10**11)[source] // sizes[source] in (0, 1)


def test_the_same_source_in_two_places_has_two_orders() -> None:
    twice = ConcatNode("", (Leaf("first/web", 500), Leaf("second/web", 500)))
    found = Plan(twice, Order()).lookup(np.arange(1_000)).indices
    assert not np.array_equal(found[:500], found[500:])
    shared = Schedule("", ((0, Leaf("web", 500)), (250, Leaf("web", 500))))
    assert np.array_equal(
        plan_of(shared, Order()).lookup(np.arange(900)).indices,
        Plan(Leaf("web", 500), Order()).lookup(np.arange(900)).indices,
    )


def test_recipes_name_what_decides() -> None:
    old = Branch("", (Leaf("a", 3), Leaf("b", 4)), (1, 2), 3)
    a, b = old.children
    variants: list[Node] = [
        old,
        Branch("", (a, b), (1, 2), 6, 2),
        Branch("", (a, Leaf("b", 4, Shards([0, 1, 4]))), (1, 2), 3),
        Branch("", (a, Leaf("b", 4, Shards([0, 2, 4]))), (1, 2), 3),
        Branch("", (a, Leaf("b", 5).subset(1, 5)), (1, 2), 3),
        ConcatNode("", (a, b)),
        LimitNode("", old, 2),
        RepeatNode("", old, 2),
        Schedule("", ((0, a), (5, b))),
        Schedule("", ((0, a), (6, b))),
        Schedule("", ((0, b), (5, a))),
        Schedule("", ((0, a), (5, Leaf("b", 5)))),
        Schedule("", ((0, old), (5, b))),
        Schedule("", ((0, Branch("", (a, b), (2, 1), 3)), (5, b))),
        Schedule("", ((0, Branch("", (b, a), (1, 2), 3)), (5, b))),
        Schedule("", ((0, Branch("", (a, b), (1, 2), 6, 2)), (5, b))),
        Schedule("", ((0, LimitNode("", old, 2)), (5, b))),
    ]
    assert len({str(node_recipe(node)) for node in variants}) == len(variants)


def test_a_schedule_writes_its_sources_once() -> None:
    a, b, half = Leaf("a", 3), Leaf("b", 4), 1 << 30
    mix = Branch("", (a, b), (half, half), None)
    found = node_recipe(Schedule("", ((0, mix), (4, b), (9, Branch("", (a, b), (1, 3), None)))))
    assert [source["path"] for source in found["sources"]] == ["a", "b"]
    assert [one["tree"] for one in found["segments"]] == [0, 1, 0]
    sources = tuple(Leaf(f"web/source-{number}", 1_000) for number in range(50))
    weights = [[1 + (number * segment) % 7 for number in range(50)] for segment in range(200)]
    segments = [(64 * at, Branch("", sources, tuple(quantised(one)), None)) for at, one in enumerate(weights)]
    written = len(json.dumps(node_recipe(Schedule("", tuple(segments)))))
    assert written < 12 * 50 * 200 + 100 * (50 + 200), "the shares of the segments, and the sources once"


WEB, MIX = Leaf("web", 10), Branch("mix", (Leaf("a", 3),), (1 << 31,), None)
PART = Plan(Leaf("web", 10).subset(2, 5), Order())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Branch("", (WEB,), (1,), None, 0), "block_samples.*1"),
        (lambda: Branch("", (WEB,), (2,), 5, 2), "5.*samples.*2"),
        (lambda: ConcatNode("", (WEB, MIX)), r"\['mix'\]"),
        (lambda: ConcatNode("", ()), "concatenates.*0"),
        (lambda: LimitNode("", WEB, 0), "1.*10.*samples"),
        (lambda: LimitNode("", WEB, 11), "1.*10.*samples"),
        (lambda: LimitNode("", MIX, 0), "number"),
        (lambda: RepeatNode("", WEB, 0), "least"),
        (lambda: Schedule("", ()), "begin.*0"),
        (lambda: Schedule("", ((1, WEB),)), "begin.*0"),
        (lambda: Schedule("", ((0, WEB), (0, WEB))), "begin.*0"),
        (lambda: Schedule("", ((0, WEB), (5, Leaf("web", 11)))), "segments"),
        (lambda: Schedule("", ((0, WEB), (5, Schedule("", ((0, WEB), (5, WEB)))))), "schedule"),
        (lambda: PART.find(0, 1, begin=0, end=9), "samples.*2.*4"),
        (lambda: PART.find(0, 5, begin=0, end=9), "samples.*2.*4"),
        (lambda: PART.find(0, 2, begin=5, end=4), "positions.*0"),
        (lambda: Leaf("web", 0), "least"),
        (lambda: Leaf("a", 8, Shards([0, 7])), "8.*samples.*7"),
        (lambda: Leaf("a", 8).subset(3, 9), "beyond"),
        (lambda: Plan(Branch("", (Leaf("a", 1), Leaf("a", 1)), (1, 1), None), Order()), "path"),
        (lambda: PART.lookup(np.array([-1])), "positions.*0"),
        (lambda: PART.lookup(np.array([2**62])), "positions.*0"),
        (lambda: quantised([0.0, 1.0]), "positive"),
        (lambda: quantised([-1.0]), "positive"),
        (lambda: quantised([float("nan")]), "positive"),
        (lambda: quantised([float("inf"), 1.0]), "positive"),
        (lambda: BlendTree([]), "shares"),
        (lambda: BlendTree([0, 0]), "shares"),
        (lambda: BlendTree([-1, 2]), "shares"),
        (lambda: BlendTree([2**61, 1]), "shares"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


def plain_tree(draw: st.DrawFn, path: str = "", depth: int = 2) -> Node:
    if depth == 0 or draw(st.booleans()):
        return Leaf(path or "only", draw(st.sampled_from([1, 2, 7, 100, 65_536])))
    count = draw(st.integers(1, 4))
    children = tuple(plain_tree(draw, f"{path}/{i}", depth - 1) for i in range(count))
    if draw(st.booleans()):
        shares = tuple(draw(st.lists(st.integers(1, 50), min_size=count, max_size=count)))
        return Branch(path, children, shares, sum(shares))
    weights = draw(st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    return Branch(path, children, tuple(quantised(weights)), None)


plain_trees = st.composite(plain_tree)()
orders = st.builds(
    Order, kind=st.sampled_from(["full", "blocks", "none"]), seed=st.integers(-5, 2**80), block_samples=st.just(3)
)


@settings(max_examples=cases(30, 150), deadline=None)
@given(plain_trees, orders, st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20))
def test_bulk_equals_one_by_one(root: Node, order: Order, positions: list[int]) -> None:
    plan = Plan(root, order)
    together = plan.lookup(np.array(positions, dtype=np.int64))
    for i, position in enumerate(positions):
        one = plan.lookup(np.array([position], dtype=np.int64))
        for name in ("sources", "epochs", "indices", "keys"):
            assert getattr(one, name)[0] == getattr(together, name)[i]
    lengths = np.array([leaf.num_samples for leaf in plan.leaves])
    assert (together.indices >= 0).all()
    assert (together.indices < lengths[together.sources]).all()


@settings(max_examples=cases(24, 60), deadline=None)
@given(plain_trees, orders)
def test_every_epoch_of_every_source_is_whole(root: Node, order: Order) -> None:
    plan = Plan(root, order)
    found = plan.lookup(np.arange(3_000, dtype=np.int64))
    for source, leaf in enumerate(plan.leaves):
        mine = found.sources == source
        epochs, indices = found.epochs[mine], found.indices[mine]
        assert np.array_equal(epochs, np.arange(epochs.size) // leaf.num_samples)
        for number in range(epochs.size // leaf.num_samples):
            assert np.array_equal(np.sort(indices[epochs == number]), np.arange(leaf.num_samples))


def test_adding_a_source_reseeds_no_other() -> None:
    web, code = Leaf("web", 1000), Leaf("code", 1000)
    before = Plan(Branch("", (web,), (1,), None), Order(seed=3))
    after = Plan(Branch("", (code, web), (1, 1), None), Order(seed=3))
    old = before.lookup(np.arange(500, dtype=np.int64))
    new = after.lookup(np.arange(2_000, dtype=np.int64))
    assert np.array_equal(old.indices, new.indices[new.sources == 1][:500])
    assert not np.array_equal(old.indices, new.indices[new.sources == 0][:500]), "another path, another order"


@pytest.mark.parametrize("kind", ["full", "blocks"])
@pytest.mark.parametrize("num_samples", [1_000, 70_000])
def test_each_epoch_and_each_seed_has_its_own_order(kind: str, num_samples: int) -> None:
    first = np.arange(500, dtype=np.int64)
    orders = [
        Plan(Leaf(path, num_samples), Order(kind=kind, seed=seed)).lookup(first + epoch * num_samples).indices.tolist()
        for path, seed, epoch in (("", 0, 0), ("", 0, 1), ("", 0, 2), ("", 1, 0), ("a", 0, 0))
    ]
    assert len({tuple(order) for order in orders}) == 5
    together = Plan(Leaf("", num_samples), Order(kind=kind)).lookup(np.concatenate([first, first + num_samples]))
    assert together.indices.tolist() == orders[0] + orders[1], "two epochs in one look-up"


def test_no_positions() -> None:
    assert Plan(Leaf("", 10), Order()).lookup(np.empty(0, dtype=np.int64)).indices.size == 0
