"""Filters, generators, groups and packs over facts: units as the plain way has them, in every epoch and topology."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import packs_plainly
from counts import cases
from headrace import Blend, ConfigError, Loader, MeasuredDataset, Order, Packing, Run
from headrace.datasets import measure
from headrace.encoders import SkipSample, stateless
from headrace.errors import StaleCacheError, StateError
from headrace.loader import Reading
from headrace.plan.keys import derive
from headrace.plan.measured import Grouping
from headrace.tracing import Sources, history_of, read_run_file, save_run, trace_step
from measured_made import Drawing, Drawn, Filter, Grouped, Packed, opened, plain_outputs

COUNT, BROKEN = 150, (3, 77, 120)
WHEN_ASKED = Reading(num_threads=0)
PACKING = Packing(seq_len=32)
Row = tuple[int, int, int, int]


def made(root: Path, folder: Path, encoder: Drawing, **options: Any) -> MeasuredDataset:
    dataset = opened(root, encoder)
    return MeasuredDataset(dataset, encoder, measure(dataset, encoder, folder=folder), **options)


def members(unit: Any) -> list[tuple[int, int]]:
    """(number, output) of all that is in a unit, of whatever form."""
    if isinstance(unit, list):
        return [(one["number"], one["output"]) for one in unit]
    return list(unit["members"]) if "members" in unit else [(unit["number"], unit["output"])]


def plain_batches(rows: list[Row], remainder: str) -> list[list[tuple[int, int]]]:
    """A reader with a bucket for each group; at the end what is left, by which came first."""
    buckets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    of_group: dict[int, list[tuple[int, int]]] = defaultdict(list)
    places = {row[:2]: place for place, row in enumerate(rows)}
    found = []
    for number, output, _, group in rows:
        buckets[group].append((number, output))
        of_group[group].append((number, output))
        if len(buckets[group]) == 2 + group % 2:
            found.append(buckets.pop(group))
    if remainder == "drop":
        return found
    left = sorted(buckets.items(), key=lambda item: places[item[1][0]])
    fill = {group: itertools.cycle(of_group[group]) for group, _ in left}
    return found + [
        rest + ([next(fill[group]) for _ in range(2 + group % 2 - len(rest))] if remainder == "fill" else [])
        for group, rest in left
    ]


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Drawing, dict[str, Any], list[list[tuple[int, int]]]]:
    """An encoder, a form, and the units that they make of the flawed numbers."""
    kind = draw(st.sampled_from([Filter, Drawn, Grouped, Packed]))
    encoder = kind(draw(st.integers(0, 3)), most=draw(st.sampled_from([1, 3])), failing=draw(st.sampled_from([0, 0.1])))
    exclude = draw(st.lists(st.integers(0, COUNT - 1), max_size=4, unique=True))
    rows = [row for row in plain_outputs(encoder, COUNT, BROKEN) if row[0] not in exclude]
    if kind is Grouped:
        remainder = draw(st.sampled_from(["short", "drop", "fill"]))
        return encoder, {"exclude": exclude, "form": remainder}, plain_batches(rows, remainder)
    if kind is Packed:
        packs = packs_plainly.packs([row[2] for row in rows], PACKING)
        units = [[rows[piece.document][:2] for piece in pack] for pack in packs]
        return encoder, {"exclude": exclude, "form": PACKING}, units
    return encoder, {"exclude": exclude}, [[row[:2]] for row in rows]


@settings(deadline=None, max_examples=cases(5, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=drawn())
def test_units_are_those_of_the_plain_way(case: Any, flawed_numbers: Path, facts_folder: Path) -> None:
    encoder, options, wanted = case
    if isinstance(options.get("form"), str):
        options["form"] = Grouping(remainder=options["form"])
    dataset = made(flawed_numbers, facts_folder, encoder, **options)
    assert len(dataset) == len(wanted)
    made_units = dataset.samples(np.arange(len(dataset)))
    assert [members(unit) for unit in made_units] == wanted
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    for number, unit in enumerate(made_units):
        keys = [one["__restore_key__"][:3] for one in (unit if isinstance(unit, list) else [unit])]
        assert keys == [("Measured", number, member) for member in range(len(keys))]
        first = unit[0] if isinstance(unit, list) else unit
        assert again.restore_sample(first["__restore_key__"]) == first
    run = Run(dataset, global_batch_size=7, order=Order(seed=1), epochs=2)
    located = run.locate(np.arange(2 * len(dataset)))
    units = [members(unit) for unit in run.samples(located)]
    for epoch in (units[: len(wanted)], units[len(wanted) :]):
        assert Counter(map(tuple, epoch)) == Counter(map(tuple, wanted))
    assert units[: len(wanted)] != units[len(wanted) :]


@pytest.mark.parametrize("kind", [Grouped, Packed])
def test_others_meet_in_each_epoch(kind: type[Drawing], flawed_numbers: Path, facts_folder: Path) -> None:
    encoder = kind(7)
    facts = measure(opened(flawed_numbers, encoder), encoder, folder=facts_folder)
    form = Grouping(regroup=True) if kind is Grouped else Packing(seq_len=32, repack=True)
    dataset = MeasuredDataset(opened(flawed_numbers, encoder), encoder, facts, form=form)
    run = Run(dataset, global_batch_size=8, epochs=2)
    units = [members(unit) for unit in run.samples(run.locate(np.arange(2 * len(dataset))))]
    epochs = units[: len(dataset)], units[len(dataset) :]
    rows = plain_outputs(encoder, COUNT, BROKEN)
    groups = {row[:2]: row[3] for row in rows}
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == [row[:2] for row in rows]
        assert kind is Packed or all(len({groups[one] for one in unit}) == 1 for unit in epoch)
    some = np.arange(5)
    keyed = dataset.locate(some, np.repeat(np.array([derive(1, 2)], dtype=np.uint64), 5))
    apart = [members(unit) for addresses in (some, keyed) for unit in dataset.samples(addresses)]
    assert [members(unit) for unit in dataset.samples(np.concatenate([some, keyed]))] == apart
    assert not {frozenset(unit) for unit in epochs[0]} >= {frozenset(unit) for unit in epochs[1]}


def test_filled_batches_have_samples_of_their_own(flawed_numbers: Path, facts_folder: Path) -> None:
    encoder = Grouped(1)
    facts = measure(opened(flawed_numbers, encoder), encoder, folder=facts_folder)
    for form in (Grouping(remainder="fill"), Grouping(size=1000, remainder="fill")):
        dataset = MeasuredDataset(opened(flawed_numbers, encoder), encoder, facts, form=form)
        units = dataset.samples(np.arange(len(dataset)))
        assert dataset.measured.groups is not None
        assert dataset.measured.groups.num_added
        for number, unit in enumerate(units):
            assert len({id(one) for one in unit}) == len(unit)
            assert [one["__restore_key__"][1:3] for one in unit] == [(number, place) for place in range(len(unit))]


def test_hooks_draw_anew_in_every_epoch(flawed_numbers: Path, facts_folder: Path) -> None:
    dataset = made(flawed_numbers, facts_folder, Drawn(2), seed=3)
    keys = np.array([derive(1, epoch) for epoch in range(2)], dtype=np.uint64)
    units = np.arange(40)

    def drawn(dataset: MeasuredDataset, addresses: Any) -> list[int]:
        return [unit["noise"] for unit in dataset.samples(addresses)]

    noise = [drawn(dataset, dataset.locate(units, np.repeat(keys[epoch], 40))) for epoch in (0, 1, 0)]
    assert noise[0] == noise[2] != noise[1]
    assert drawn(made(flawed_numbers, facts_folder, Drawn(2), seed=4), units) != drawn(dataset, units)
    mixed = np.concatenate([units[:3], dataset.locate(units[:3], np.repeat(keys[1], 3))])
    assert drawn(dataset, mixed)[3:] == noise[1][:3]


def test_blends_and_orders_by_shard(flawed_numbers: Path, facts_folder: Path) -> None:
    one, two = made(flawed_numbers, facts_folder, Drawn(1)), made(flawed_numbers, facts_folder, Drawn(1), exclude=[5])
    blend = Blend({"one": one, "two": two}, weights={"one": 3, "two": 1}, unit="samples")
    run = Run(blend, global_batch_size=8, order=Order(kind="shards", seed=1))
    batch = run.step(3)
    assert len(batch["number"]) == 8
    assert one.shard_bounds[-1] == len(one)
    bounds = one.shard_bounds.tolist()
    numbers = [unit["number"] for unit in one.samples(np.arange(len(one)))]
    assert [number // 40 for number in numbers] == np.repeat(np.arange(4), np.diff(bounds)).tolist()
    grouped = made(flawed_numbers, facts_folder, Grouped(1))
    assert grouped.shard_bounds.tolist() == [0, len(grouped)]


def test_traces(flawed_numbers: Path, facts_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    encoder = Packed(4)
    dataset = made(flawed_numbers, tmp_path / "facts", encoder, form=PACKING, exclude=[9])
    run = Run(dataset, global_batch_size=4, order=Order(seed=2))
    wanted = [[f"s/{number:04d}" for number, _ in members(unit)] for unit in run.samples(run.locate(run.positions(5)))]
    assert [[origin.key for origin in traced.origins] for traced in trace_step(run, 5)] == wanted
    key = wanted[2][0]
    units = [place for place, unit in enumerate(dataset.samples(np.arange(len(dataset)))) if key in unit["__key__"]]
    assert dataset.find_keys(key) == units
    assert dataset.find_keys(key)[0] == units[0]
    times = history_of(run).sample(".", key=key, until_step=40)
    assert {(one.step, one.index) for one in times.shown} >= {(5, traced.index) for traced in trace_step(run, 5)[2:3]}
    assert all(key in [origin.key for origin in one.origins] for one in times.shown)
    save_run(run, tmp_path / "run.json")
    sources = Sources(read_run_file(tmp_path / "run.json"))
    saved = sources.history()
    assert saved.step(5) == history_of(run).step(5)
    assert saved.sample(".", key=key, until_step=40) == times
    assert not sources.notes
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "elsewhere"))
    without = Sources(read_run_file(tmp_path / "run.json"))
    assert [one.origins for one in without.history().step(5)] == [()] * 4
    assert "no facts" in without.notes[0]
    with pytest.raises(ConfigError, match="'x'"):
        dataset.find_keys("x")
    with pytest.raises(ConfigError, match="unit"):
        dataset.find_keys("s/0003")
    with pytest.raises(ConfigError, match="output"):
        dataset.find_keys("s/0009")
    repacked = made(flawed_numbers, tmp_path / "facts", encoder, form=Packing(seq_len=32, repack=True))
    with pytest.raises(ConfigError, match="differs"):
        repacked.find_keys(key)


class Changed(Packed):
    """Claims to be as it was."""

    change = ""

    def facts(self, number: int) -> list[tuple[int, int]]:
        found = super().facts(number)
        if type(self).change == "count":
            return [*found, (1, 1)]
        return [(length + 1, group) for length, group in found] if type(self).change == "length" else found


class Regrouped(Grouped):
    change = ""

    def facts(self, number: int) -> list[tuple[int, int]]:
        return [(length, group + (type(self).change == "group")) for length, group in super().facts(number)]


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        (Changed, "count", r"[234].*sample.[0-9]+.*[123].*measured"),
        (Changed, "length", r"length.[0-9]+.*sample.[0-9]+.*`version`"),
        (Regrouped, "group", r"\('group', [0-9]\)"),
    ],
)
def test_other_facts_than_measured_are_an_error(
    kind: Any, change: str, named: str, flawed_numbers: Path, facts_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(flawed_numbers, facts_folder, kind(3), form=PACKING if kind is Changed else None)
    before = dataset[0]
    monkeypatch.setattr(kind, "change", change)
    with pytest.raises(StateError, match=named):
        dataset[0]
    monkeypatch.setattr(kind, "change", "")
    assert members(dataset[0]) == members(before)


def test_facts_of_something_else_are_refused(flawed_numbers: Path, facts_folder: Path) -> None:
    encoder = Drawn(1)
    facts = measure(opened(flawed_numbers, encoder), encoder, folder=facts_folder)
    dataset = opened(flawed_numbers, encoder)
    assert len(MeasuredDataset(dataset, encoder, facts.path)) == facts.summary.outputs
    with pytest.raises(StaleCacheError, match=r"'draw'.*1.*`headrace"):
        MeasuredDataset(dataset, Drawn(2), facts)
    later = Drawn(1)
    later.version = "2"
    with pytest.raises(StaleCacheError, match=r"'1'.*'2'"):
        MeasuredDataset(dataset, later, facts)
    part = opened(flawed_numbers, encoder).cooked_by([])
    with pytest.raises(StaleCacheError, match="dataset"):
        MeasuredDataset(part, type("Bare", (Drawn,), {"cookers": ()})(1), facts)


def skips(*_: Any) -> Any:
    raise SkipSample


def twice(self: Any, samples: list[Any]) -> Iterator[Any]:
    yield Packed.pack_selected_samples(self, samples)
    yield Packed.pack_selected_samples(self, samples)


def encoder_with(base: type[Drawing], hook: str, function: Any) -> Drawing:
    own: type[Drawing] = type("Own", (base,), {hook: stateless(function)})
    return own(1)


def test_forms_that_do_not_go(flawed_numbers: Path, facts_folder: Path) -> None:
    def refused(encoder: Drawing, named: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=named):
            made(flawed_numbers, facts_folder, encoder, **options)

    refused(Packed(1), "length")
    refused(Packed(1), "length", form=Grouping(size=2))
    refused(Packed(1), "whole", form=Packing(seq_len=8, over_long="split"))
    refused(Packed(1), "whole", form=Packing(seq_len=8, strategy="wrapped"))
    refused(Packed(1), "longer", form=Packing(seq_len=8))
    refused(Drawn(1), "pack_selected_samples", form=PACKING)
    refused(Drawn(1), "measure", form=Grouping(size=2))
    refused(Drawn(1), r"Grouping.*Packing", form=3)
    refused(Drawn(1), r"150.*0", exclude=[150])
    refused(Drawn(1), r"none.*150", exclude=range(150))
    refused(Drawn(1), "list", exclude=np.ones(150, dtype=bool))
    refused(Drawn(1), "list", exclude=[1.5])
    refused(encoder_with(Packed, "batch_group_criterion", lambda self, sample: (1, 2)), "groups", form=PACKING)
    short = made(flawed_numbers, facts_folder, Packed(1), form=Packing(seq_len=8, over_long="drop"))
    assert max(unit["length"] for unit in short.samples(np.arange(len(short)))) <= 8


def test_what_hooks_may_not_do(flawed_numbers: Path, facts_folder: Path) -> None:
    for function, named in ((skips, "already"), (twice, r"returned.*2")):
        packing = encoder_with(Packed, "pack_selected_samples", function)
        with pytest.raises(ConfigError, match=named):
            made(flawed_numbers, facts_folder, packing, form=PACKING)[0]
    with pytest.raises(ConfigError, match="measured"):
        Run(made(flawed_numbers, facts_folder, encoder_with(Drawn, "batch", skips)), global_batch_size=2).step(0)
    grouped = made(flawed_numbers, facts_folder, Grouped(1))
    run = Run(grouped, global_batch_size=2)
    with pytest.raises(ConfigError, match="micro_batch_size=1"):
        Loader(run, micro_batch_size=2)
    with pytest.raises(ConfigError, match="micro_batch_size=1"):
        run.step(0)
    for key in (("Encoded", 3), ("Measured", 1 << 62, 0), ("Measured", 0, 9), 7):
        with pytest.raises(ConfigError, match=r"restore|makes"):
            grouped.restore_sample(key)
    assert grouped.collate([])["__key__"] == []


class Emptied(Packed):
    """The shorter half is of no length."""

    @stateless
    def sample_length(self, sample: Any) -> int:
        return max(0, sample["length"] - 8)


def test_outputs_without_length_are_counted(flawed_numbers: Path, facts_folder: Path) -> None:
    packs = made(flawed_numbers, facts_folder, Emptied(3), form=PACKING)
    rows = [row[:2] for row in plain_outputs(Emptied(3), COUNT, BROKEN) if row[2] > 8]
    assert sorted(itertools.chain(*(members(packs[number]) for number in range(len(packs))))) == rows
    empty = packs.facts.summary.outputs - len(rows)
    assert empty > 50
    assert packs.describe().endswith(f"; {empty} outputs of length 0 are in none")


def test_what_is_said_of_it(flawed_numbers: Path, facts_folder: Path) -> None:
    grouped = made(flawed_numbers, facts_folder, Grouped(3))
    assert f"{grouped.facts.summary.outputs} outputs of 150 samples" in repr(grouped)
    assert "4 groups" in grouped.describe()
    assert "best_fit packs of 32, 9" in made(flawed_numbers, facts_folder, Packed(3), form=PACKING).describe()
    assert grouped.recipe["facts"] == {"name": grouped.facts.name, "xxh3_128": grouped.facts.summary.xxh3_128}
    forms = [Packing(seq_len=32), Packing(seq_len=64), Packing(seq_len=32, strategy="greedy")]
    prints = {made(flawed_numbers, facts_folder, Packed(3), form=form).fingerprint for form in forms}
    assert len(prints | {made(flawed_numbers, facts_folder, Packed(3), form=PACKING, exclude=[7]).fingerprint}) == 4
