"""Measured sources: outputs, groups and packs, each beside its plain counterpart."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import FULL, cases, python_steps
from headrace.errors import ConfigError
from headrace.plan.measured import Facts, Grouping, Groups, Measured, Outputs
from headrace.plan.packing import Packing

SIZES = [0, 1, 7, 15, 16, 17, 511, 512, 513, 65_535, 65_536, 65_537, 140_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0, 0.002, 0.5, 0.998, 1])
def test_samples_that_are_left_out_are_the_plain_set(size: int, share: float) -> None:
    members = np.random.default_rng(size).random(size) < share
    kept = np.flatnonzero(members)
    if not len(kept):
        with pytest.raises(ConfigError, match=r"none of the .* samples is good"):
            Facts(size, is_good=members)
        return
    facts = Facts(size, is_good=members)
    assert facts.num_items == len(kept)
    assert np.array_equal(facts.locate(np.arange(len(kept)))[0], kept)
    assert np.array_equal(facts.begins(np.arange(size + 1)), np.append(0, np.cumsum(members)))
    for sample in {0, size // 2, size - 1}:
        assert facts.items(sample).tolist() == ([int(members[:sample].sum())] if members[sample] else [])
    for ask, wrong in ((facts.locate, len(kept)), (facts.locate, -1)):
        with pytest.raises(ConfigError, match=r"numbered.*0"):
            ask(np.array([wrong]))


def test_a_hundred_million_samples() -> None:
    """Ten million in the quick run: what is kept beside the counts, and that queries do not grow with their number."""
    size = 10**8 if FULL else 10**7
    members = np.ones(size, dtype=bool)
    members[::10] = False
    tracemalloc.start()
    facts = Facts(size, is_good=members)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept <= 0.51 * size
    items = np.random.default_rng(0).integers(0, facts.num_items, 100_000)
    found, _ = facts.locate(items)
    assert python_steps(lambda: facts.locate(items)) < 1_000
    assert np.array_equal(found, items // 9 * 10 + items % 9 + 1)
    assert np.array_equal(facts.begins(found), items)


@settings(max_examples=cases(12, 2_000), deadline=None)
@given(st.lists(st.integers(0, 5) | st.just(200), max_size=60), st.booleans())
def test_outputs_are_the_plain_list(counts: list[int], many: bool) -> None:
    counts = [count * 100 for count in counts] if many else counts
    outputs = Outputs(np.array(counts, dtype=np.int64))
    plain = [(sample, k) for sample, count in enumerate(counts) for k in range(count)]
    samples, which = outputs.locate(np.arange(outputs.num_outputs))
    assert list(zip(samples.tolist(), which.tolist(), strict=True)) == plain
    begins = outputs.begins(np.arange(len(counts) + 1))
    assert begins.tolist() == np.append(0, np.cumsum(counts)).astype(int).tolist()


def buckets(groups: list[int], grouping: Grouping) -> list[list[int]]:
    """As a reader with a bucket for each group gives them."""
    held: dict[int, list[int]] = defaultdict(list)
    given: list[list[int]] = []
    everyone: dict[int, list[int]] = defaultdict(list)
    for item, group in enumerate(groups):
        held[group].append(item)
        everyone[group].append(item)
        if len(held[group]) == grouping.sizes.get(group, grouping.size):
            given.append(held.pop(group))
    if grouping.remainder == "drop":
        return given
    left = sorted(held.values())
    if grouping.remainder == "fill":
        for unit in left:
            group = groups[unit[0]]
            want = grouping.sizes.get(group, grouping.size)
            unit += [everyone[group][i % len(everyone[group])] for i in range(want - len(unit))]
    return given + left


GROUPINGS = st.builds(
    Grouping,
    size=st.integers(1, 6),
    sizes=st.dictionaries(st.integers(-2, 4), st.integers(1, 9), max_size=3),
    remainder=st.sampled_from(["short", "drop", "fill"]),
)


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(st.lists(st.integers(-2, 4), min_size=1, max_size=60), GROUPINGS)
def test_groups_are_the_readers_buckets(names: list[int], grouping: Grouping) -> None:
    wanted = buckets(names, grouping)
    if not wanted:
        with pytest.raises(ConfigError, match="unit"):
            Groups(np.array(names), grouping)
        return
    groups = Groups(np.array(names), grouping)
    offsets, items = groups.items(np.arange(groups.num_units))
    assert [unit.tolist() for unit in np.split(items, offsets[1:-1])] == wanted
    for item in range(len(names)):
        assert groups.units(item).tolist() == [u for u, unit in enumerate(wanted) if item in unit]
    assert len(items) == len(names) - groups.num_left_out + groups.num_added


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), GROUPINGS, st.integers(0, 2**64 - 1))
def test_others_meet_in_each_epoch(names: list[int], grouping: Grouping, key: int) -> None:
    regroup = Grouping(size=grouping.size, remainder=grouping.remainder, regroup=True)
    if not buckets(names, regroup):
        return
    groups = Groups(np.array(names), regroup)
    keys = np.full(groups.num_units, key, dtype=np.uint64)
    other = groups.items(np.arange(groups.num_units), keys + np.uint64(1))[1]
    offsets, items = groups.items(np.arange(groups.num_units), keys)
    units = np.split(items, offsets[1:-1])
    assert all(len({names[item] for item in unit}) == 1 for unit in units)
    if regroup.remainder == "short":
        assert sorted(items.tolist()) == list(range(len(names)))
    assert len(names) < 30 or items.tolist() != other.tolist()
    for item in range(len(names)):
        assert groups.units(item, keys[:1]).tolist() == [u for u, unit in enumerate(units) if item in unit]


@st.composite
def facts(draw: st.DrawFn) -> tuple[Facts, list[tuple[int, int, int, int]]]:
    """Facts and the plain (sample, output, length, group) of each item."""
    size = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    good = rng.random(size) < 0.8 if draw(st.booleans()) else None
    counts = rng.integers(0, 4, size) if draw(st.booleans()) else None
    rows = [(s, k) for s in range(size) for k in range(1 if counts is None else counts[s])]
    lengths, groups = rng.integers(1, 30, len(rows)), rng.integers(0, 3, len(rows))
    plain = [
        (*row, int(length), int(group))
        for row, length, group in zip(rows, lengths, groups, strict=True)
        if good is None or good[row[0]]
    ]
    if not plain:
        return draw(facts())
    return Facts(size, is_good=good, num_outputs=counts, lengths=lengths, groups=groups), plain


@settings(max_examples=cases(15, 3_000), deadline=None)
@given(facts(), st.sampled_from(["items", "groups", "packs", "split"]))
def test_every_unit_and_back(drawn: tuple[Facts, list[tuple[int, int, int, int]]], kind: str) -> None:
    known, plain = drawn
    forms = {
        "items": None,
        "groups": Grouping(size=3),
        "packs": Packing(seq_len=40),
        "split": Packing(seq_len=11, over_long="split", repack=True),
    }
    measured = Measured(known, form=forms[kind])
    units = np.arange(measured.num_units)
    keys = np.full(len(units), 5, dtype=np.uint64)
    members = measured.members(units, keys)
    held = [set(part.tolist()) for part in np.split(members.samples, members.offsets[1:-1])]
    for sample in range(known.num_samples):
        wanted = [unit for unit, samples in enumerate(held) if sample in samples]
        assert measured.units(sample, keys[:1]).tolist() == wanted
    rows = list(zip(members.samples.tolist(), members.outputs.tolist(), strict=True))
    if kind == "split":
        tokens: dict[tuple[int, int], int] = defaultdict(int)
        for row, length in zip(rows, members.lengths.tolist(), strict=True):
            tokens[row] += length
        assert tokens == {item[:2]: item[2] for item in plain}
    else:
        assert sorted(rows) == [item[:2] for item in plain]
    if kind == "items":
        assert rows == [item[:2] for item in plain]


ONES = np.ones(3, dtype=np.int64)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Outputs(np.ones(3)), "outputs"),
        (lambda: Outputs(np.array([1, -1])), "outputs"),
        (lambda: Outputs(np.ones((2, 2), dtype=np.int64)), "outputs"),
        (lambda: Outputs(ONES).locate(np.array([3])), "3.*outputs"),
        (lambda: Outputs(ONES).begins(np.array([4])), "numbered.*0"),
        (lambda: Grouping(size=0), "size"),
        (lambda: Grouping(size=2, sizes={3: 0}), "size"),
        (lambda: Grouping(size=2, remainder="keep"), "'keep'"),
        (lambda: Groups(0 * ONES, Grouping(size=2)).units(3), "3.*items"),
        (lambda: Groups(0 * ONES, Grouping(size=2)).items(np.array([2])), "2.*units"),
        (lambda: Measured(Facts(3, is_good=np.zeros(3, dtype=bool))), "3.*samples"),
        (lambda: Measured(Facts(3, is_good=np.ones(3))), "is_good.*float64"),
        (lambda: Measured(Facts(3, num_outputs=ONES[:2])), "num_outputs.*int64"),
        (lambda: Measured(Facts(3, lengths=ONES[:2])), "lengths.*int64"),
        (lambda: Measured(Facts(3), form=Grouping(size=2)), "groups"),
        (lambda: Measured(Facts(3), form=Packing(seq_len=4)), "lengths"),
        (lambda: Measured(Facts(3, lengths=0 * ONES), form=Packing(seq_len=4)), "pack"),
        (lambda: Measured(Facts(3)).members(np.array([3])), "3.*units"),
        (lambda: Measured(Facts(3)).units(3), "3.*samples"),
        (lambda: Facts(3).locate(np.array([-1])), "3.*items"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
