"""Mixes: blends, parts, limits, repeats, one after another, along a schedule; what is refused, other tokenisers too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import corpora
import headrace
from headrace import (
    BatchSchedule,
    Blend,
    ConfigError,
    Loader,
    MapDataset,
    Order,
    Run,
    ScheduledBlend,
    StateError,
    WindowDataset,
)
from headrace.compat.energon import BlendDataset, MixBatchDataset
from headrace.compat.megatron import GPTBlend, GPTDataset
from headrace.datasets import Concat, Dataset, FilledDataset, FixedDataset, Limit, Mix, Repeat, Stage, Subset
from headrace.datasets.dataset import Fields, Sample
from headrace.loader import Ranks
from headrace.plan import Branch, IntArray, KeyArray, Leaf, Schedule, SubsetRange
from headrace.plan.chaptered.chapters import parts_of
from headrace.plan.slots import homogeneous_samples
from headrace.stores import IndexedStore, TokenizerInfo, save_manifest
from plan.changes_model import plan_of
from token_shards import vouch_for


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
TWO = {"a": A, "c": C}
EVEN = {"a": 1, "c": 1}
ENDLESS = Blend({"a": A}, weights={"a": 1})
EVER = [Stage(weights={"x": 1})]


def test_one_after_another() -> None:
    mix = Concat({"a": A, "both": Blend({"b": B, "c": C}, repeats={"b": 1, "c": 0.5})})
    assert mix.num_samples == 32
    assert mix.num_tokens_per_sample == 1
    assert taken(mix, order=Order(kind="none"))[:10] == [("a", i) for i in range(10)]
    found = taken(mix, 64)
    assert [path == "a" for path, _ in found] == ([True] * 10 + [False] * 22) * 2
    assert Counter(path for path, _ in found) == {"a": 20, "both/b": 14, "both/c": 30}


def test_a_part() -> None:
    part = Subset(C, ["10%", "50%"])
    assert (part.num_samples, part.num_tokens_per_sample) == (12, 1)
    assert sorted(taken(part, 12)) == [("", i) for i in range(3, 15)]
    assert Run(part, global_batch_size=4).length is None
    assert taken(part, 30) != taken(Subset(C, [3, 20]), 30)
    assert Subset(C, SubsetRange.of([25, "end"])).bounds == (25, 30)


def test_a_state_of_another_part_is_refused() -> None:
    one, other = (Loader(Run(Subset(C, part), global_batch_size=4), micro_batch_size=4) for part in ([0, 15], [15, 30]))
    other.load_state_dict(one.state_dict())  # nothing was fed yet
    next(iter(one))
    with pytest.raises(StateError, match="order"):
        other.load_state_dict(one.state_dict())


def test_limits() -> None:
    limit = Limit(C, 5)
    assert (limit.num_samples, Run(limit, global_batch_size=4).length) == (5, 5)
    epochs = [sorted(taken(limit, 10)[at : at + 5]) for at in (0, 5)]
    assert epochs[0] != epochs[1]
    assert taken(limit, 10, Order(kind="none")) == [("", i) for i in range(5)] * 2
    endless = Limit(Blend({"a": A, "b": B}, weights={"a": 1, "b": 3}), 8)
    assert Counter(path for path, _ in taken(endless)) == {"a": 2, "b": 6}


def test_a_limit_leaves_the_order_alone() -> None:
    assert taken(Limit(C, 5), 5) == taken(C, 5)
    assert taken(Blend({"a": A, "c": Limit(C, 30)}, weights=EVEN), 60) == taken(Blend(TWO, weights=EVEN), 60)


@pytest.mark.parametrize(("repeats", "count"), [(1, 7), (2, 14), (2.5, 18), (Fraction(1, 3), 2), (0.1, 1)])
def test_repeats(repeats: float | Fraction, count: int) -> None:
    """17.5 is rounded up to 18; what is left of a pass comes in the next one."""
    mix = Repeat(B, repeats)
    assert mix.num_samples == Run(mix, global_batch_size=4).length == count
    times = Counter(taken(mix, count))
    assert set(times.values()) <= {int(repeats), int(repeats) + 1}
    assert Counter(taken(mix, 7 * count)).keys() == {("", i) for i in range(7)}


def test_ends_in_blocks() -> None:
    whole = BlendDataset(TWO, repeats={"a": 1, "c": 2}, block_samples=5)
    assert (whole.num_samples, whole.shares) == (70, (2, 12))
    assert Counter(taken(whole)) == {("a", i): 1 for i in range(10)} | {("c", i): 2 for i in range(30)}
    first = BlendDataset(TWO, weights=EVEN, end="first_exhausted", block_samples=4)
    assert (first.shares, first.num_samples) == ((2, 2), 16)
    last = BlendDataset(TWO, weights=EVEN, end="all_exhausted", block_samples=4)
    assert last.shares == (8, 8)
    assert isinstance(MixBatchDataset({"a": A}, weights={"a": 1}), Blend)


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
    mix = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 2}, block_samples=12)
    run = Run(mix, global_batch_size=24, samples=240)
    for size in (1, 2, 3, 4, 6, 12):
        sources = run.lookup(np.arange(240)).sources
        for batch in loader(run, size):
            assert len(set(sources[batch["sample_positions"].numpy()].tolist())) == 1
    for size in (5, 8, 24):
        with pytest.raises(ConfigError, match=rf"{size}.*1.*2"):
            loader(run, size)
    with pytest.raises(ConfigError, match=r"\[24\].*5.*4"):
        loader(run, 4, ranks=5)
    short = Run(mix, global_batch_size=24, samples=50)
    with pytest.raises(ConfigError, match=r"\[2.*24\].*drop_last=True"):
        loader(short, 4)
    assert len(list(loader(Run(mix, global_batch_size=24, samples=50, drop_last=True), 4))) == 12
    ramp = BatchSchedule(((0, 12), (3, 24)))
    assert next(iter(loader(Run(mix, global_batch_size=ramp), 4)))["sample_positions"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"\[18.*24\]"):
        loader(Run(mix, global_batch_size=[(0, 24), (3, 18)]), 12)


def test_a_resume_keeps_micro_batches_whole() -> None:
    mix = BlendDataset({"a": A, "b": B}, weights={"a": 1, "b": 2}, block_samples=12)
    run = Run(mix, global_batch_size=24)
    first = loader(run, 3)
    next(iter(first))
    state = first.state_dict()
    other = loader(run, 4)
    with pytest.raises(ConfigError, match=r"3.*multiple.*4"):
        other.load_state_dict(state)
    assert other.position == 0
    with pytest.raises(ConfigError, match=r"sample.*2.*2"):
        other.start_at(2)
    with pytest.raises(ConfigError, match=r"4.*\[20.*24\]"):
        loader(run, 4, ranks=2).start_at(4)
    with pytest.raises(ConfigError, match=r"position.*28.*1"):
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


def stage(until: int | None = None, *, ramp: bool = False) -> Stage:
    return Stage(until=until, weights={"a": 1}, ramp=ramp)


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([], "stage"),
        ([{"weights": {"a": 1}}], r"\{'weights'.*headrace.datasets.Stage"),
        ([stage(5)], r"\[5\]"),
        ([stage(), stage()], r"\[None, None"),
        ([stage(0), stage()], r"\[0"),
        ([stage(4), stage(4), stage()], r"\[4, 4"),
        ([stage(5, ramp=True), stage()], "constant"),
        ([stage(5), stage(ramp=True)], "constant"),
        ([Stage(weights={"x": 1})], r"\['x'\].*\['a', 'b'\]"),
        ([Stage(weights={"a": -1})], "-1"),
        ([Stage(weights={"a": 0})], "0"),
        ([stage()], r"\['b'\]"),
    ],
)
def test_schedules_that_are_refused(stages: list[Stage], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ScheduledBlend({"a": A, "b": B}, stages)


def test_what_a_schedule_cannot_weigh() -> None:
    endless = Blend({"a": A, "part": Subset(C, [0, 5])}, weights={"a": 1, "part": 1})
    assert Counter(path for path, _ in taken(ScheduledBlend({"x": endless}, EVER), 10)) == {"x/a": 5, "x/part": 5}
    for wrong in (
        Limit(A, 5),
        Concat({"a": A}),
        Blend({"a": A}, repeats={"a": 1}),
        Blend({"y": Limit(A, 5)}, weights={"y": 1}),
    ):
        with pytest.raises(ConfigError, match="datasets"):
            ScheduledBlend({"x": wrong}, EVER)


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
    assert halved((), np.float32)[3]["half"] == np.float32(1.5)


def halved(*shape_and_dtype: Any) -> MapDataset:
    return MapDataset(A, half, fields={"half": shape_and_dtype})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "endless child": (lambda: Concat({"a": A, "b": ENDLESS}), r"\['b'\]"),
    "other fields": (lambda: Concat({"a": A, "w": halved((), np.float32)}), "fields"),
    "slash": (lambda: Concat({"a/b": A}), "'/'"),
    "no name": (lambda: Concat({"": A}), "name"),
    "no children": (lambda: Concat({}), "dataset"),
    "number as child": (lambda: Concat({"a": 3}), r"'a'.*3"),  # type: ignore[dict-item]
    "empty subset": (lambda: Subset(C, [3, 3]), r"3.*samples"),
    "subset of a mix": (lambda: Subset(ENDLESS, [0, 1]), "dataset"),  # type: ignore[arg-type]
    "limit 0": (lambda: Limit(C, 0), r"0.*1.*30"),
    "limit 31": (lambda: Limit(C, 31), r"31.*1.*30"),
    "endless limit 0": (lambda: Limit(ENDLESS, 0), r"0.*1.*allowed"),
    "limit of a path": (lambda: Limit("a", 1), "expected"),  # type: ignore[arg-type]
    "too few repeats": (lambda: Repeat(B, 0.01), r"7.*samples"),
    "negative repeats": (lambda: Repeat(B, -1), "positive"),
    "endless repeats": (lambda: Repeat(ENDLESS, 2), "counted"),
    "uneven pass": (lambda: BlendDataset(TWO, repeats={"a": 1, "c": 2}, block_samples=4).shares, r"'a'.*10.*4"),
    "uneven samples": (
        lambda: BlendDataset(TWO, weights=EVEN, end="samples", num_samples=10, block_samples=4).shares,
        r"num_samples.*10.*4",
    ),
    "short source": (
        lambda: BlendDataset(TWO, weights=EVEN, end="first_exhausted", block_samples=16).shares,
        r"\['a'\].*16",
    ),
    "no block": (lambda: BlendDataset(TWO, weights=EVEN, block_samples=0), r"block_samples.*0.*1"),
    "uneven stage": (lambda: ScheduledBlend({"x": A}, [Stage(until=6, weights={"x": 1}), *EVER], block_samples=4), "6"),
    "fields not said": (lambda: MapDataset(A, half)[3], r"\['half'\].*\['number'\].*fields="),
    "wrong shape": (lambda: halved((2,), np.float32)[3], r"'half'.*\(\).*float64.*\(2,\).*float32"),
    "wrong dtype": (lambda: halved((), np.int64)[3], r"'half'.*\(\).*float64.*\(\).*int64"),
    "no function": (lambda: MapDataset(A, 3), "function"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, named = REFUSED[case]
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.fixture
def sources(corpus: list[corpora.Corpus]) -> dict[str, WindowDataset]:
    return {name: WindowDataset(one.store, seq_len=5) for name, one in zip("abc", corpus, strict=False)}


def counts(data: Blend, length: int) -> list[int]:
    run = Run(data, global_batch_size=4)
    return np.bincount(run.lookup(np.arange(length)).sources, minlength=len(run.datasets)).tolist()


def test_weights_in_tokens(corpus: list[corpora.Corpus]) -> None:
    """Equal shares of the tokens: a source whose samples are half as long gives twice as many."""
    long = WindowDataset(corpus[0].store, seq_len=10)

    class Half(WindowDataset):
        @property
        def num_tokens_per_sample(self) -> float:
            return 5.0

    mix = Blend(
        {"long": long, "half": Half(corpus[1].store, seq_len=10)}, weights={"long": 1, "half": 1}, unit="tokens"
    )
    assert counts(mix, 300) == [100, 200]
    assert mix.num_tokens_per_sample == pytest.approx((10 + 2 * 5) / 3)
    nested = Blend({"mix": mix, "long": long}, weights={"mix": 1, "long": 1}, unit="tokens")
    assert counts(nested, 500)[2] == 200


@pytest.mark.parametrize("number", [1, 7, 999, 12_345])
def test_ends_by_samples_exactly(sources: dict[str, WindowDataset], number: int) -> None:
    mix = Blend(sources, weights={"a": 0.5, "b": 0.3, "c": 0.2}, end="samples", num_samples=number)
    run = Run(mix, global_batch_size=8)
    assert run.length == mix.num_samples == number
    exact = counts(mix, number)
    assert exact == list(mix.shares)
    assert all(abs(have - number * share) < 1 for have, share in zip(exact, (0.5, 0.3, 0.2), strict=True))


def test_ends_when_sources_are_seen_whole(sources: dict[str, WindowDataset]) -> None:
    lengths = [len(source) for source in sources.values()]
    for end, each in (("first_exhausted", min(lengths)), ("all_exhausted", max(lengths))):
        mix = Blend(sources, weights=ALIKE, end=end)  # type: ignore[arg-type]
        run = Run(mix, global_batch_size=8)
        found = run.lookup(np.arange(run.length or 0))
        assert counts(mix, run.length or 0) == [each] * 3
        whole = [np.unique(found.indices[found.sources == i]).size for i in range(3)]
        assert whole == [min(each, length) for length in lengths]


def test_a_nested_blend_and_what_is_said_of_it(sources: dict[str, WindowDataset]) -> None:
    inner = Blend({"a": sources["a"], "b": sources["b"]}, weights={"a": 1, "b": 3})
    mix = Blend({"inner": inner, "c": sources["c"]}, weights={"inner": 3, "c": 1})
    run = Run(mix, global_batch_size=[(0, 8), (100, 16)], order=Order(seed=9), samples=1000)
    assert run.paths == ("inner/a", "inner/b", "c")
    assert counts(mix, 1600) == [300, 900, 400]
    text = run.describe()
    for words in ("75.000 % inner", "25.000 % c", "seed 9", "8 samples from step 0, 16 samples from step 100"):
        assert words in text
    assert "1,000 samples, 113 steps" in text


ALIKE = {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, r"weights.*repeats"),
        ({"weights": {"a": 1}, "repeats": {"a": 1}}, r"weights.*repeats"),
        ({"weights": {"a": 1, "b": 1}}, "name"),
        ({"weights": {**ALIKE, "a": 0}}, r"'a'.*0"),
        ({"repeats": {**ALIKE, "b": -1}}, r"'b'.*-1"),
        ({"weights": {**ALIKE, "a": float("nan")}}, "finite"),
        ({"weights": ALIKE, "unit": "bytes"}, r"unit.*'bytes'"),
        ({"weights": ALIKE, "end": "never"}, r"end.*'never'"),
        ({"weights": ALIKE, "end": "samples"}, "num_samples"),
        ({"weights": ALIKE, "num_samples": 4}, "num_samples"),
        ({"repeats": ALIKE, "end": "samples", "num_samples": 3}, "own"),
    ],
)
def test_contradictions_are_refused(sources: dict[str, WindowDataset], options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Blend(sources, **options)


def test_runs_that_are_refused(sources: dict[str, WindowDataset]) -> None:
    endless = Blend({"a": sources["a"]}, weights={"a": 1})
    within = Blend({"mix": endless}, weights={"mix": 1}, end="first_exhausted")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (within, {}, r"'first_exhausted'.*'mix'"),
        (endless, {"epochs": 2}, "epochs"),
        (sources["a"], {"order": "full"}, "'full'"),
        (sources["a"], {"epochs": 2, "samples": 3}, "samples"),
        (sources["a"], {"global_batch_size": 8, "samples": 3, "drop_last": True}, "samples"),
    ]
    for data, options, named in cases:
        with pytest.raises(ConfigError, match=named):
            Run(data, **{"global_batch_size": 1, **options})


ONE, OTHER = "1" * 32, "2" * 32


def store(folder: Path, fingerprint: str, vocab_size: int = 300) -> Path:
    """A store of 100 tokens; with a fingerprint its manifest names a tokeniser."""
    corpora.write(folder / "text_document", [np.arange(100)])
    if fingerprint:
        with IndexedStore(folder / "text_document") as shard:
            manifest = vouch_for(folder, [shard])
        info = TokenizerInfo(source=f"{fingerprint[:2]}/tokenizer.json", xxh3_128=fingerprint, vocab_size=vocab_size)
        save_manifest(folder, msgspec.structs.replace(manifest, tokenizer=info))
    return folder


def windows(folder: Path) -> WindowDataset:
    return WindowDataset(headrace.open(folder), seq_len=5)


def gpt(folder: Path) -> GPTDataset:
    return GPTDataset(folder / "text_document", sequence_length=5, num_samples=8)


def blend(first: Path, second: Path, **options: bool) -> Blend:
    return Blend({"web": windows(first), "code": windows(second)}, weights={"web": 1, "code": 1}, **options)


def test_two_tokenisers_are_refused_and_named(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", ONE, 300), store(tmp_path / "other", OTHER, 5000)
    named = rf"'web'.*{one}.*11/tokenizer.json.*300.*{ONE}.*'code'.*{other}.*22/tokenizer.json.*5,000.*{OTHER}"
    with pytest.raises(ConfigError, match=rf"{named}.*allow_different_tokenizers=True"):
        blend(one, other)
    allowed = blend(one, other, allow_different_tokenizers=True)
    # Who blends it once more says so for himself; the leaves are named by their place in the tree.
    with pytest.raises(ConfigError, match=r"'all/web'.*'all/code'"):
        Blend({"all": allowed}, weights={"all": 1})
    assert Blend({"all": allowed}, weights={"all": 1}, allow_different_tokenizers=True).num_samples is None
    # A shard that is opened by its prefix is one that the manifest beside it lists.
    with pytest.raises(ConfigError, match="tokenisers"):
        blend(one, other / "text_document")


def test_the_same_tokeniser_and_stores_that_say_none(tmp_path: Path) -> None:
    one, same = store(tmp_path / "one", ONE), store(tmp_path / "same", ONE)
    bare, other = store(tmp_path / "bare", ""), store(tmp_path / "other", OTHER)
    blend(one, same)
    blend(one, bare)
    blend(bare, other)
    with pytest.raises(ConfigError, match=rf"'a'.*{one}.*'c'"):
        Blend({"a": windows(one), "b": windows(bare), "c": windows(other)}, weights={"a": 1, "b": 1, "c": 1})
    # With the same hash and another size the tokens that were added differ.
    more = store(tmp_path / "more", ONE, 301)
    with pytest.raises(ConfigError, match=r"300.*301"):
        blend(one, more)
    first, second = (FilledDataset(gpt(place), multiple_of=2) for place in (one, other))
    with pytest.raises(ConfigError, match="tokenisers"):
        Blend({"a": first, "b": second}, weights={"a": 1, "b": 1})
    # A damaged manifest beside a pair is for `check` to find.
    (other / "headrace.json").write_text("{")
    blend(one, other / "text_document")


def test_megatrons_blend(tmp_path: Path) -> None:
    words = ["1", str(store(tmp_path / "one", ONE)), "1", str(store(tmp_path / "other", OTHER))]

    def build(prefix: str, num_samples: int | None) -> GPTDataset:
        return GPTDataset(f"{prefix}/text_document", sequence_length=5, num_samples=num_samples)

    with pytest.raises(ConfigError, match=r"'dataset.*0'.*1'"):
        GPTBlend.of(words, num_samples=8, build=build)
    for blend, wanted in ((words, 8), (words[1::2], None)):
        made = GPTBlend.of(blend, num_samples=wanted, build=build, allow_different_tokenizers=True)
        assert len(made) >= 8
