"""Mixes other than blends: parts, limits, repeats, one after another, batch by batch, along a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
from counts import cases
from headrace import BatchSchedule, Blend, ConfigError, Loader, MapDataset, Order, Run, ScheduledBlend, WindowDataset
from headrace.compat.energon import BlendDataset, MixBatchDataset
from headrace.datasets import Concat, Dataset, FixedDataset, Limit, Mix, Repeat, Stage, Subset
from headrace.datasets.dataset import Fields, Sample
from headrace.loader import Ranks
from headrace.plan import Branch, IntArray, KeyArray, Leaf, Schedule, SubsetRange
from headrace.plan.chaptered.changes import plan_of
from headrace.plan.chaptered.chapters import parts_of
from headrace.plan.slots import homogeneous_samples


class Numbers(FixedDataset):
    """Sample i is the number i and nothing else."""

    def __init__(self, count: int) -> None:
        self.count_ = count

    def __len__(self) -> int:
        return self.count_

    @property
    def fields(self) -> Fields:
        return {"number": ((), np.dtype(np.int64))}

    @property
    def num_tokens_per_sample(self) -> float:
        return 1.0

    @property
    def recipe(self) -> dict[str, Any]:
        return {"kind": "numbers", "count": self.count_}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        return indices

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        out["number"][rows] = addresses

    def describe(self) -> str:
        return "numbers"


def taken(data: Dataset | Mix, length: int | None = None, order: Order | None = None) -> list[tuple[str, int]]:
    run = Run(data, global_batch_size=4, order=order)
    found = run.lookup(np.arange(run.length if length is None else length))
    return [(run.paths[s], i) for s, i in zip(found.sources.tolist(), found.indices.tolist(), strict=True)]


A, B, C = Numbers(10), Numbers(7), Numbers(30)


def test_one_after_another() -> None:
    mix = Concat({"a": A, "both": Blend({"b": B, "c": C}, repeats={"b": 1, "c": 0.5})})
    assert mix.num_samples == 32
    assert mix.num_tokens_per_sample == 1
    assert taken(mix, order=Order(kind="none"))[:10] == [("a", i) for i in range(10)]
    found = taken(mix, 64)
    assert [path == "a" for path, _ in found] == ([True] * 10 + [False] * 22) * 2
    assert Counter(path for path, _ in found) == {"a": 20, "both/b": 14, "both/c": 30}
    with pytest.raises(ConfigError, match=r"\['b'\] have no end, .* limit them with Limit"):
        Concat({"a": A, "b": Blend({"b": B}, weights={"b": 1})})


def test_a_part() -> None:
    part = Subset(C, ["10%", "50%"])
    assert (part.num_samples, part.num_tokens_per_sample) == (12, 1)
    assert sorted(taken(part, 12)) == [("", i) for i in range(3, 15)]
    assert Run(part, global_batch_size=4).length is None
    assert taken(part, 30) != taken(Subset(C, [3, 20]), 30)
    assert Subset(C, SubsetRange.of([25, "end"])).bounds == (25, 30)
    assert repr(part) == "<Subset of <Numbers: 30 samples, numbers>: 12 samples>"
    with pytest.raises(ConfigError, match="from 3 to 3 has no samples"):
        Subset(C, [3, 3])
    with pytest.raises(ConfigError, match="a subset needs a dataset, found <Blend"):
        Subset(Blend({"a": A}, weights={"a": 1}), [0, 1])  # type: ignore[arg-type]


def test_limits() -> None:
    limit = Limit(C, 5)
    assert (limit.num_samples, Run(limit, global_batch_size=4).length) == (5, 5)
    epochs = [sorted(taken(limit, 10)[at : at + 5]) for at in (0, 5)]
    assert epochs[0] != epochs[1]
    assert taken(limit, 10, Order(kind="none")) == [("", i) for i in range(5)] * 2
    endless = Limit(Blend({"a": A, "b": B}, weights={"a": 1, "b": 3}), 8)
    assert Counter(path for path, _ in taken(endless)) == {"a": 2, "b": 6}
    for wrong in (0, 31):
        with pytest.raises(ConfigError, match=f"the limit is {wrong} samples; allowed are 1 to 30"):
            Limit(C, wrong)
    with pytest.raises(ConfigError, match="the limit is 0 samples; at least 1 is allowed"):
        Limit(Blend({"a": A}, weights={"a": 1}), 0)
    with pytest.raises(ConfigError, match="expected a dataset, or a mix"):
        Limit("a", 1)  # type: ignore[arg-type]


def test_a_limit_leaves_the_order_alone() -> None:
    assert taken(Limit(C, 5), 5) == taken(C, 5)
    blend = {"a": A, "c": C}
    weights = {"a": 1, "c": 1}
    assert taken(Blend({**blend, "c": Limit(C, 30)}, weights=weights), 60) == taken(Blend(blend, weights=weights), 60)


@pytest.mark.parametrize(("repeats", "count"), [(1, 7), (2, 14), (2.5, 18), (Fraction(1, 3), 2), (0.1, 1)])
def test_repeats(repeats: float | Fraction, count: int) -> None:
    """17.5 is rounded up to 18; what is left of a pass comes in the next one."""
    mix = Repeat(B, repeats)
    assert mix.num_samples == Run(mix, global_batch_size=4).length == count
    times = Counter(taken(mix, count))
    assert set(times.values()) <= {int(repeats), int(repeats) + 1}
    assert Counter(taken(mix, 7 * count)).keys() == {("", i) for i in range(7)}
    with pytest.raises(ConfigError, match="passes through 7 samples make no sample"):
        Repeat(B, 0.01)
    with pytest.raises(ConfigError, match="it must be positive and finite"):
        Repeat(B, -1)
    with pytest.raises(ConfigError, match="has no end, so that its passes cannot be counted"):
        Repeat(Blend({"a": A}, weights={"a": 1}), 2)


def test_batches_of_one_source() -> None:
    mix = BlendDataset({"a": A, "b": B, "c": C}, weights={"a": 5, "b": 1, "c": 2}, block_samples=8)
    run = Run(mix, global_batch_size=16)
    assert run.block_samples == 8
    blocks = run.lookup(np.arange(64 * 8)).sources.reshape(-1, 8)
    assert (blocks == blocks[:, :1]).all()
    assert np.bincount(blocks[:, 0]).tolist() == [40, 8, 16]
    for number in range(1, 64):
        counts = np.bincount(blocks[:number, 0], minlength=3)
        assert np.abs(counts - number * np.array([5, 1, 2]) / 8).max() < 2
    assert Run(Blend({"a": A}, weights={"a": 1}), global_batch_size=4).block_samples is None
    assert isinstance(MixBatchDataset({"a": A}, weights={"a": 1}), Blend)


def test_ends_in_blocks() -> None:
    children = {"a": A, "c": C}
    whole = BlendDataset(children, repeats={"a": 1, "c": 2}, block_samples=5)
    assert (whole.num_samples, whole.shares) == (70, (2, 12))
    assert Counter(taken(whole)) == {("a", i): 1 for i in range(10)} | {("c", i): 2 for i in range(30)}
    with pytest.raises(ConfigError, match="'a' by its repeats has 10 samples, and whole blocks of 4 make 8 or 12"):
        BlendDataset(children, repeats={"a": 1, "c": 2}, block_samples=4).shares  # noqa: B018
    with pytest.raises(ConfigError, match="num_samples has 10 samples, and whole blocks of 4 make 8 or 12"):
        BlendDataset(children, weights={"a": 1, "c": 2}, end="samples", num_samples=10, block_samples=4).shares  # noqa: B018
    weights = {"a": 1, "c": 1}
    first = BlendDataset(children, weights=weights, end="first_exhausted", block_samples=4)
    assert (first.shares, first.num_samples) == ((2, 2), 16)
    last = BlendDataset(children, weights=weights, end="all_exhausted", block_samples=4)
    assert last.shares == (8, 8)
    with pytest.raises(ConfigError, match=r"\['a'\] have less than one block of 16 samples"):
        BlendDataset(children, weights=weights, end="first_exhausted", block_samples=16).shares  # noqa: B018
    with pytest.raises(ConfigError, match="block_samples is at least 1, found 0"):
        BlendDataset(children, weights=weights, block_samples=0)


def nested(block: int, wrap: Callable[[BlendDataset], Mix]) -> int | None:
    inner = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 1}, block_samples=block)
    return Run(wrap(inner), global_batch_size=4).block_samples


def test_blocks_within_other_mixes() -> None:
    around = {"x": 1, "c": 1}
    assert nested(16, lambda mix: BlendDataset({"x": mix, "c": C}, weights=around, block_samples=32)) == 16
    assert nested(16, lambda mix: BlendDataset({"x": mix, "c": C}, weights=around, block_samples=8)) == 8
    assert nested(16, lambda mix: Blend({"x": mix, "c": C}, weights=around)) == 1
    assert nested(16, lambda mix: Concat({"x": Limit(mix, 48), "c": Limit(C, 24)})) == 8
    assert nested(16, lambda mix: Limit(mix, 40)) == 8
    assert nested(16, lambda mix: Repeat(Limit(mix, 32), 2.5)) == 16
    stages = [Stage(until=24, weights={"x": 1}), Stage(weights={"x": 1})]
    assert nested(16, lambda mix: ScheduledBlend({"x": mix}, stages, block_samples=8)) == 8


def test_blocks_along_a_schedule_of_any_trees() -> None:
    blocks = Branch("", (Leaf("a", 10), Leaf("b", 7)), (1, 1), None, 16)
    leaf = Leaf("a", 10)
    for schedule, samples in ((((0, blocks), (24, blocks)), 8), (((0, leaf), (12, leaf)), None)):
        [part] = parts_of(plan_of(Schedule("", schedule), Order()))
        assert homogeneous_samples(part) == samples


def loader(run: Run, size: int, ranks: int = 1) -> Loader:
    return Loader(run, micro_batch_size=size, ranks=Ranks(rank=0, world_size=ranks))


def test_micro_batches_divide_the_blocks() -> None:
    pytest.importorskip("torch")
    mix = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 2}, block_samples=12)
    run = Run(mix, global_batch_size=24, samples=240)
    for size in (1, 2, 3, 4, 6, 12):
        sources = run.lookup(np.arange(240)).sources
        for batch in loader(run, size):
            assert len(set(sources[batch["sample_positions"].numpy()].tolist())) == 1
    for size in (5, 8, 24):
        with pytest.raises(ConfigError, match=f"micro-batches of {size} would lie .*allowed are 1, 2, 3, 4, 6, 12"):
            loader(run, size)
    with pytest.raises(
        ConfigError, match=r"have \[24\] samples, .* not multiples of 5 ranks times micro-batches of 4 = 20"
    ):
        loader(run, 4, ranks=5)
    short = Run(mix, global_batch_size=24, samples=50)
    with pytest.raises(ConfigError, match=r"have \[2, 24\] samples, .*drop_last=True"):
        loader(short, 4)
    assert len(list(loader(Run(mix, global_batch_size=24, samples=50, drop_last=True), 4))) == 12


def test_a_resume_keeps_micro_batches_whole() -> None:
    pytest.importorskip("torch")
    mix = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 2}, block_samples=12)
    run = Run(mix, global_batch_size=24)
    first = loader(run, 3)
    next(iter(first))
    state = first.state_dict()
    other = loader(run, 4)
    with pytest.raises(
        ConfigError,
        match=r"at sample 3, in a step that is cut at 3, which is not a multiple of the micro-batch size 4, "
        r".*blocks of 12",
    ):
        other.load_state_dict(state)
    assert other.position == 0
    with pytest.raises(ConfigError, match="at sample 2, in a step that is cut at 2"):
        other.start_at(2)
    with pytest.raises(
        ConfigError, match=r"sample 4 on.* have \[20, 24\] samples, which are not multiples of 2 ranks times"
    ):
        loader(run, 4, ranks=2).start_at(4)
    with pytest.raises(ConfigError, match=r"position 28 is within step 1, .*slots of a blend are drawn"):
        other.start_at(28)
    other.start_at(24)
    found = next(iter(other))["sample_positions"].tolist()
    assert found == list(range(found[0], found[0] + 4))
    assert 24 <= found[0] < 48


def test_weights_along_a_schedule() -> None:
    stages = [
        Stage(until=40, weights={"a": 1}),
        Stage(until=200, weights={"a": 1, "c": 3}),
        Stage(weights={"b": 1, "c": 1}),
    ]
    mix = ScheduledBlend({"a": A, "b": B, "c": C}, stages)
    assert mix.num_samples is None
    assert mix.num_tokens_per_sample == 1
    found = taken(mix, 400)
    assert Counter(path for path, _ in found[:40]) == {"a": 40}
    assert Counter(path for path, _ in found[40:200]) == {"a": 40, "c": 120}
    assert Counter(path for path, _ in found[200:]) == {"b": 100, "c": 100}
    for path, size in {"a": 10, "b": 7, "c": 30}.items():
        mine = [index for name, index in found if name == path]
        assert all(sorted(mine[at : at + size]) == list(range(size)) for at in range(0, len(mine) - size + 1, size))
    assert "one mix after another, endless\n├─ from sample 0" in Run(mix, global_batch_size=4).describe()


def test_ramps() -> None:
    stages = [
        Stage(until=1_000, weights={"a": 1}),
        Stage(until=11_000, weights={"c": 1}, ramp=True),
        Stage(weights={"c": 1}),
    ]
    run = Run(ScheduledBlend({"a": A, "c": C}, stages), global_batch_size=4)
    [stages_of_run] = parts_of(run.plan)
    assert len(stages_of_run) == 102
    sources = run.lookup(np.arange(12_000)).sources
    along = [np.mean(sources[1_000 + 1_000 * tenth :][:1_000]) for tenth in range(10)]
    assert np.abs(np.array(along) - np.linspace(0.05, 0.95, 10)).max() < 0.005
    assert not sources[:1_000].any()
    assert sources[11_000:].all()
    shown = run.describe().splitlines()
    assert any("100 mixes between the first and the last" in line for line in shown)
    assert len(shown) < 12


def test_a_ramp_goes_on_from_a_ramp() -> None:
    stages = [
        Stage(until=100, weights={"a": 1}),
        Stage(until=10_100, weights={"a": 1, "c": 1}, ramp=True),
        Stage(until=20_100, weights={"c": 1}, ramp=True),
        Stage(weights={"c": 1}),
    ]
    sources = Run(ScheduledBlend({"a": A, "c": C}, stages), global_batch_size=4).lookup(np.arange(20_100)).sources
    assert np.abs(sources[100:10_100].mean() - 0.25) < 0.01
    assert np.abs(sources[10_100:].mean() - 0.75) < 0.01


def test_sources_in_the_order_in_which_they_come() -> None:
    mix = ScheduledBlend({"a": A, "c": C}, [Stage(until=8, weights={"c": 1}), Stage(weights={"a": 1})])
    run = Run(mix, global_batch_size=4)
    assert run.paths == ("c", "a")
    assert run.datasets == (C, A)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "needs at least one stage"),
        ([{"weights": {"a": 1}}], r"a stage is \{'weights': .*; expected a headrace.datasets.Stage"),
        ([Stage(until=5, weights={"a": 1})], r"the last one has no end; found \[5\]"),
        (
            [Stage(weights={"a": 1}), Stage(weights={"a": 1})],
            r"rising samples, and the last one has no end; found \[None, None",
        ),
        ([Stage(until=0, weights={"a": 1}), Stage(weights={"a": 1})], "end at rising samples"),
        (
            [Stage(until=4, weights={"a": 1}), Stage(until=4, weights={"a": 1}), Stage(weights={"a": 1})],
            "end at rising samples",
        ),
        ([Stage(until=5, weights={"a": 1}, ramp=True), Stage(weights={"a": 1})], "first and the last .* constant"),
        ([Stage(until=5, weights={"a": 1}), Stage(weights={"a": 1}, ramp=True)], "first and the last .* constant"),
        ([Stage(weights={"x": 1})], r"has weights of \['x'\]; the sources are \['a', 'b'\]"),
        ([Stage(weights={"a": -1})], "finite and not below 0"),
        ([Stage(weights={"a": 0})], "finite and not below 0, and at least one above 0"),
        ([Stage(weights={"a": 1})], r"\['b'\] have no weight in any stage"),
    ],
)
def test_schedules_that_are_refused(stages: list[Stage], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduledBlend({"a": A, "b": B}, stages)


def test_what_a_schedule_cannot_weigh() -> None:
    ever = [Stage(weights={"x": 1})]
    endless = Blend({"a": A, "part": Subset(C, [0, 5])}, weights={"a": 1, "part": 1})
    assert Counter(path for path, _ in taken(ScheduledBlend({"x": endless}, ever), 10)) == {"x/a": 5, "x/part": 5}
    for wrong in (
        Limit(A, 5),
        Concat({"a": A}),
        Blend({"a": A}, repeats={"a": 1}),
        Blend({"y": Limit(A, 5)}, weights={"y": 1}),
    ):
        with pytest.raises(
            ConfigError, match="datasets and endless blends, since a pass of several datasets would be cut"
        ):
            ScheduledBlend({"x": wrong}, ever)
    with pytest.raises(ConfigError, match=r"every stage must be whole blocks; stages end at \[6, None\]"):
        ScheduledBlend({"x": A}, [Stage(until=6, weights={"x": 1}), *ever], block_samples=4)


def double(sample: Sample) -> Sample:
    return {"number": sample["number"] * 2}


def half(sample: Sample) -> dict[str, Any]:
    return {"half": sample["number"] / 2}


def test_samples_changed_one_by_one() -> None:
    doubled = MapDataset(A, double)
    assert len(doubled) == 10
    assert [int(doubled[i]["number"]) for i in (0, 3, -1)] == [0, 6, 18]
    run = Run(doubled, global_batch_size=5)
    plain = Run(A, global_batch_size=5)
    assert run.step(1)["number"].tolist() == (plain.step(1)["number"] * 2).tolist()
    assert run.recipe.differences(plain.recipe)
    assert doubled.describe() == f"numbers, through {__name__}.double"
    halved = MapDataset(A, half, fields={"half": ((), np.float32)})
    assert halved[3]["half"] == np.float32(1.5)
    for wrong, message in (
        (MapDataset(A, half), r"returned the fields \['half'\], expected \['number'\]: pass fields="),
        (
            MapDataset(A, half, fields={"half": ((2,), np.float32)}),
            r"returned 'half' of \(\) float64, expected \(2,\) float32",
        ),
        (MapDataset(A, half, fields={"half": ((), np.int64)}), r"returned 'half' of \(\) float64, expected \(\) int64"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong[3]
    with pytest.raises(ConfigError, match="expected a dataset and a function"):
        MapDataset(A, 3)  # type: ignore[arg-type]


def test_children_that_cannot_be_mixed(corpus: list[corpora.Corpus]) -> None:
    windows = WindowDataset(corpus[0].store, seq_len=5)
    with pytest.raises(ConfigError, match="must have the same fields"):
        Concat({"a": A, "w": windows})
    with pytest.raises(ConfigError, match="must not be empty or hold '/'"):
        Concat({"a/b": A})
    with pytest.raises(ConfigError, match="at least one dataset"):
        Concat({})
    with pytest.raises(ConfigError, match="source 'a' is 3; expected a dataset"):
        Concat({"a": 3})  # type: ignore[dict-item]


@st.composite
def mixes(draw: st.DrawFn, depth: int = 3, ends: bool = True) -> Dataset | Mix:
    """Any tree of mixes; with ``ends`` one that has a length."""
    if depth == 0 or draw(st.booleans()):
        source = Numbers(draw(st.integers(1, 40)))
        return source if draw(st.booleans()) else Subset(source, [0, draw(st.integers(1, len(source)))])
    kind = draw(
        st.sampled_from(["repeats", "concat", "limit", "repeat"] if ends else ["weights", "blocks", "schedule"])
    )
    names = "abcd"[: draw(st.integers(1, 4))]
    if kind in ("limit", "repeat"):
        below = draw(mixes(depth=depth - 1, ends=kind == "repeat" or draw(st.booleans())))
        if kind == "repeat":
            return Repeat(below, draw(st.sampled_from([1, 2, 2.5, 1.3])))
        length = below.num_samples if isinstance(below, Mix) else len(below)
        return Limit(below, draw(st.integers(1, 60 if length is None else length)))
    if kind == "schedule":
        children: dict[str, Dataset | Mix] = {name: Numbers(draw(st.integers(1, 40))) for name in names}
        whole = {name: draw(st.integers(1, 9)) for name in names}
        last = {name: float(draw(st.integers(1, 9))) for name in names}
        stages = [Stage(until=30, weights={names[0]: 1}), Stage(until=90, weights=whole, ramp=True)]
        return ScheduledBlend(children, [*stages, Stage(weights=last)])
    children = {name: draw(mixes(depth=depth - 1, ends=ends or draw(st.booleans()))) for name in names}
    if kind == "concat":
        return Concat(children)
    if kind == "repeats":
        return Blend(children, repeats={name: draw(st.sampled_from([1, 2, 0.6, 2.5])) for name in names})
    weights = {name: draw(st.floats(0.1, 10)) for name in names}
    if kind == "blocks":
        return BlendDataset(children, weights=weights, block_samples=4)
    return Blend(children, weights=weights)


@settings(max_examples=cases(20, 120), deadline=None)
@given(mixes(), st.integers(0, 5), st.integers(1, 300))
def test_any_tree_is_exact(data: Dataset | Mix, seed: int, length: int) -> None:
    """Each source gives all its samples in every epoch, in the counts that the plan says in closed form."""
    run = Run(data, global_batch_size=4, order=Order(seed=seed))
    found = run.lookup(np.arange(length))
    counts = dict(zip(run.paths, run.plan.counts(length), strict=True))
    for number, (leaf, dataset) in enumerate(zip(run.plan.leaves, run.datasets, strict=True)):
        mine = found.sources == number
        times = Counter(zip(found.epochs[mine].tolist(), found.indices[mine].tolist(), strict=True))
        assert not times or max(times.values()) == 1
        assert all(0 <= index < len(dataset) for _, index in times)
        assert len(times) <= counts.get(leaf.path, 0)
        if not any(isinstance(node, Limit) for node in _all(data)):
            assert len(times) == counts[leaf.path]
            whole = counts[leaf.path] // leaf.num_samples
            assert all(sum(epoch == e for e, _ in times) == leaf.num_samples for epoch in range(whole))


@settings(max_examples=cases(16, 80), deadline=None)
@given(mixes(ends=False), st.integers(1, 400))
def test_every_level_keeps_to_its_weights(data: Dataset | Mix, length: int) -> None:
    run = Run(data, global_batch_size=4)
    paths = [run.paths[s] for s in run.lookup(np.arange(length)).sources.tolist()]
    _prefixes(data, "", paths)


def _prefixes(data: Dataset | Mix, path: str, paths: list[str]) -> None:
    """Of each blend the counts of its children among what it gave, at every prefix."""
    if not isinstance(data, Mix):
        return
    if isinstance(data, Blend):
        names = list(data.children)
        of = np.array([next(i for i, n in enumerate(names) if _below(p, path, n)) for p in paths], dtype=np.int64)
        got = np.cumsum(of[:, None] == np.arange(len(names)), axis=0)
        due = np.arange(1, len(paths) + 1)[:, None] * np.array(data.shares) / sum(data.shares)
        assert not paths or np.abs(got - due).max() < 2 * data.block_samples
    if isinstance(data, Limit | ScheduledBlend):
        return  # what is left out of a pass, or begins anew with a stage, is no prefix of what is below
    for name, child in data.children.items():
        place = f"{path}/{name}" if path and name else path or name
        _prefixes(child, place, [p for p in paths if _below(p, path, name)])


def _below(path: str, parent: str, name: str) -> bool:
    place = f"{parent}/{name}" if parent and name else parent or name
    return not place or path == place or path.startswith(f"{place}/")


def _all(data: Dataset | Mix) -> list[Any]:
    return (
        [data, *(node for child in data.children.values() for node in _all(child))] if isinstance(data, Mix) else [data]
    )


def test_steps_of_other_sizes_keep_blocks() -> None:
    pytest.importorskip("torch")
    mix = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 2}, block_samples=8)
    ramp = BatchSchedule(((0, 8), (3, 16)))
    assert next(iter(loader(Run(mix, global_batch_size=ramp), 4)))["sample_positions"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"have \[12, 16\] samples"):
        loader(Run(mix, global_batch_size=[(0, 16), (3, 12)]), 8)
