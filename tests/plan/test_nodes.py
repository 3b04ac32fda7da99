"""Every kind of inner node against one that goes step by step, both ways, for drawn trees of all of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import (
    BatchSchedule,
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
    apportion,
    counts_until,
    exact_weights,
    leaf_counts,
    linear_ramp,
    node_recipe,
    quantised,
)
from headrace.plan.arithmetic import scaled
from headrace.plan.blend import QUANTUM
from headrace.plan.chaptered.changes import PlanEditor
from headrace.plan.nodes import declared, has_schedules
from plan.changes_model import ENDLESS, Model, plan_of, random_changes, random_leaf, random_order, random_tree

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


@settings(max_examples=cases(16, 80), deadline=None)
@given(trees(), st.sampled_from(["full", "none", "shards"]))
def test_trees_as_step_by_step(root: Node, kind: str) -> None:
    check_both_ways(root, kind)


@settings(max_examples=cases(12, 60), deadline=None)
@given(schedules(), st.sampled_from(["full", "shards"]))
def test_schedules_as_step_by_step(root: Node, kind: str) -> None:
    check_both_ways(root, kind)


@settings(max_examples=cases(12, 100), deadline=None)
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


@settings(max_examples=cases(20, 200), deadline=None)
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


@settings(max_examples=cases(15, 150), deadline=None)
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


@settings(max_examples=cases(12, 60), deadline=None)
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


# Blends keep to their shares at every prefix, and to exact counts at their end.


@settings(max_examples=cases(30, 300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**61)), min_size=1), st.integers(1, 2**61))
def test_scaled_is_exact(pairs: list[tuple[int, int]], total: int) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.int64)
    shares = np.array([share % (total + 1) for _, share in pairs], dtype=np.int64)
    quotient, remainder = scaled(values, shares, np.full_like(values, total))
    expected = [divmod(v * s, total) for v, s in zip(values.tolist(), shares.tolist(), strict=True)]
    assert list(zip(quotient.tolist(), remainder.tolist(), strict=True)) == expected


@pytest.mark.parametrize("bits", [1, 30, 31, 32, 40, 41, 60, 61])
def test_scaled_at_the_borders_of_its_digits(bits: int) -> None:
    for total in {(1 << bits) - 1, 1 << bits, (1 << bits) + (bits < 61)}:
        values = np.array([0, 1, total - 1, total, total + 1, 2**62 - 1], dtype=np.int64)
        for share in {0, 1, total // 2, total - 1, total}:
            quotient, _ = scaled(values, np.full_like(values, share), np.full_like(values, total))
            assert quotient.tolist() == [value * share // total for value in values.tolist()]


def deviation(shares: list[int], positions: np.ndarray) -> float:
    """The largest |count - share| of any source at any prefix of consecutive positions, which begin anywhere."""
    tree = BlendTree(shares)
    sources, ranks = tree.split(positions)
    total = sum(shares)
    worst = Fraction(0)
    for source, share in enumerate(shares):
        mine = sources == source
        if not mine.any():
            # Its count does not move; it strays most at the ends, and there by less than a source with a rank would.
            continue
        counts = ranks[mine]
        assert np.array_equal(np.diff(counts), np.ones(counts.size - 1)), "ranks of a source are consecutive"
        at = positions[mine].tolist()
        for edge in {0, len(at) // 2, len(at) - 1}:
            worst = max(worst, abs(counts.tolist()[edge] - Fraction(at[edge] * share, total)))
        # Between two items of a source the deviation is largest right before and right after an item.
        before = counts - positions[mine].astype(np.float64) * (share / total)
        if int(positions[-1]) < 2**31:
            worst = max(
                worst, Fraction(float(np.abs(before).max())), Fraction(float(np.abs(before + 1 - share / total).max()))
            )
    return float(worst)


@settings(max_examples=cases(12, 60), deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=200))
def test_within_two_samples_of_the_weights_at_every_prefix(weights: list[float]) -> None:
    assert deviation(quantised(weights), np.arange(20_000, dtype=np.int64)) < 2


@pytest.mark.sampled(20)
@pytest.mark.parametrize("num_sources", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("kind", ["equal", "zipf", "two sizes", "random"])
@pytest.mark.parametrize("begin", [0, 2**32 - 500, 2**41])
def test_many_sources_also_above_2_to_32(num_sources: int, kind: str, begin: int) -> None:
    weights = {
        "equal": [1.0] * num_sources,
        "zipf": [1 / (i + 1) for i in range(num_sources)],
        "two sizes": [1000.0] + [1.0] * (num_sources - 1),
        "random": np.random.default_rng(num_sources).random(num_sources).tolist(),
    }[kind]
    assert deviation(quantised(weights), begin + np.arange(30_000, dtype=np.int64)) < 2


@settings(max_examples=cases(12, 100), deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any))
def test_exact_at_the_end_and_periodic(counts: list[int]) -> None:
    total = sum(counts)
    sources, ranks = BlendTree(counts).split(np.arange(3 * total, dtype=np.int64))
    for source, count in enumerate(counts):
        assert np.array_equal(ranks[sources == source], np.arange(3 * count))
        assert np.count_nonzero(sources[:total] == source) == count
    assert np.array_equal(sources[:total], sources[total : 2 * total])


@pytest.mark.parametrize("total", [2**32 + 1, 2**41, 2**41 + 7, 2**60])
@pytest.mark.parametrize("num_sources", [2, 7, 1000])
def test_exact_at_a_huge_end(total: int, num_sources: int) -> None:
    shares = apportion(total, exact_weights([1.0 + (i % 13) for i in range(num_sources)]))
    assert sum(shares) == total
    sources, ranks = BlendTree(shares).split(np.arange(total - 40_000, total, dtype=np.int64))
    for source in np.unique(sources).tolist():
        assert int(ranks[sources == source][-1]) == shares[source] - 1
    again, first = BlendTree(shares).split(np.arange(total, total + 40_000, dtype=np.int64))
    for source in np.unique(again).tolist():
        assert int(first[again == source][0]) == shares[source]


def test_worked_example() -> None:
    sources, ranks = BlendTree([2, 1]).split(np.arange(6, dtype=np.int64))
    assert sources.tolist() == [0, 1, 0, 0, 1, 0]
    assert ranks.tolist() == [0, 0, 1, 2, 1, 3]


@settings(max_examples=cases(12, 100), deadline=None)
@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=50))
def test_quantised_weights_sum_to_the_quantum(weights: list[float]) -> None:
    shares = quantised(weights)
    assert sum(shares) == QUANTUM
    assert min(shares) >= 1
    exact = exact_weights(weights)
    assert all(abs(share - weight * QUANTUM) <= len(weights) for share, weight in zip(shares, exact, strict=True))


def test_counts_until_a_source_is_exhausted() -> None:
    assert counts_until("first_exhausted", [0.5, 0.5], [10, 100]) == [10, 10]
    assert counts_until("all_exhausted", [0.5, 0.5], [10, 100]) == [100, 100]
    assert counts_until("first_exhausted", [0.7, 0.3], [10, 100]) == [10, 4]
    assert counts_until("all_exhausted", [0.7, 0.3], [10, 100]) == [233, 100]


@settings(max_examples=cases(12, 100), deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**12)), min_size=1, max_size=20))
def test_no_source_beyond_once_or_none_below(sources: list[tuple[float, int]]) -> None:
    weights, lengths = [list(column) for column in zip(*sources, strict=True)]
    first = counts_until("first_exhausted", weights, lengths)
    every = counts_until("all_exhausted", weights, lengths)
    pairs = list(zip(first, every, lengths, strict=True))
    assert all(low <= length <= high for low, high, length in pairs)
    assert any(low == length for low, _, length in pairs)
    assert any(high == length for _, high, length in pairs)


# Changes of a plan against a slow model, which moves sample by sample and keeps explicit lists.


KINDS = ["tree", "tree", "order", "left_out", "skip", "defer", "batch", "fresh", "remove", "add"]


@pytest.mark.parametrize("seed", range(cases(60, 5000)))
def test_random_changes(seed: int) -> None:
    rng = random.Random(seed)
    names = {name: random_leaf(rng, name) for name in ["a", "b", "c", "d"][: rng.randrange(2, 5)]}
    order = random_order(rng)
    root = random_tree(rng, names)
    schedule = BatchSchedule.of(rng.choice([1, 4, 5, 8]))
    editor, model = PlanEditor(root, order, schedule, ENDLESS), Model(root, order)
    step, wanted = random_changes(rng, editor, model, names, KINDS, rng.randrange(1, 9))
    for _ in range(12):
        wanted += [model.take() for _ in range(editor.schedule.size(step))]
        step += 1
    plan = editor.plan()
    positions = np.arange(len(wanted), dtype=np.int64)
    found = plan.lookup(positions)
    sources = [plan.source_of[series] for series in found.sources.tolist()]
    got = list(zip(sources, zip(found.epochs.tolist(), found.indices.tolist(), strict=True), strict=True))
    assert got == wanted
    assert editor.schedule.begin(step) == len(wanted)
    # Each sample is found where it comes, and nowhere else.
    for series, index in {*zip(found.sources.tolist(), found.indices.tolist(), strict=True)}:
        times = plan.find(series, index, begin=0, end=len(wanted))
        rows = np.flatnonzero((found.sources == series) & (found.indices == index))
        assert times.positions.tolist() == rows.tolist()
        assert times.epochs.tolist() == found.epochs[rows].tolist()
        assert plan.keys(series, found.epochs[rows]).tolist() == found.keys[rows].tolist()
