"""Corners of framed sources: late skips, one object given twice, late faults, mixes; and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framed_encoders import Fitted, Grouped, Packed, Several, Sized, cook, numbers
from headrace import ConfigError, MediaDataset, Order, Packing
from headrace.compat.energon import FilterDataset, IterMapDataset
from headrace.datasets import Concat, Framed, FramedRun, Limit, MapDataset, Repeat, ScheduledBlend, Stage, Subset
from headrace.datasets.encoded import EncodedDataset
from headrace.datasets.encoded.samples import restore_key_of
from headrace.datasets.encoded.unit_reader import BoundedCache, size_of
from headrace.encoders import Cooker, DefaultTaskEncoder, ErrorPolicy, SkipSample, TaskEncoder, TextSample, stateless
from headrace.errors import StateError
from headrace.plan.framed import Selected, Singles
from headrace.plan.measured import Grouping

NUMPY: Any = np.random
SUBSTITUTE = ErrorPolicy(on_error="substitute")
IN_ORDER = Order(kind="none")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("corners") / "ds", 12)).cooked_by([Cooker(cook)])


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    root = numbers(tmp_path_factory.mktemp("flawed") / "ds", 12, broken=(1, 2, 4, 7, 8))
    return MediaDataset.open(root).cooked_by([Cooker(cook)])


def units(framed: Framed, count: int = 80, **options: Any) -> list[Any]:
    """All of one pass, in the order of the samples, each of which its key gives again."""
    run = FramedRun(framed, global_batch_size=1, **{"epochs": 1, "order": IN_ORDER, **options})
    found = [unit for unit in run.reader().samples(range(count)) if unit is not None]
    keys = [restore_key_of(unit) for unit in found]
    assert len(set(keys)) == len(keys)
    assert [run.restore_sample(key) for key in keys] == found
    return found


class Thrice(TaskEncoder[Any, Any, Any, Any]):
    """The very object that it was given, several times."""

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        yield from [sample] * 3


class ThricePacked(Thrice):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 4] for at in range(0, len(samples), 4)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        pack = {"n": [sample["n"] for sample in samples]}
        yield pack
        yield pack


def test_one_object_given_twice_is_two_samples(whole: MediaDataset) -> None:
    assert [unit["n"] for unit in units(Framed(whole, Thrice()))] == [n for n in range(12) for _ in range(3)]
    packs = units(Framed(whole, ThricePacked()))
    assert [pack["n"] for pack in packs[:3]] == [[0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 2, 2]]
    assert len(packs) == 18


class SkipsLate(TaskEncoder[Any, Any, Any, Any]):
    """Of odd numbers, one of two outputs is skipped: after the first, or when it is encoded to the end."""

    def __init__(self, where: str) -> None:
        self.where = where

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        yield {**sample, "k": 0}
        if self.where == "pre" and sample["n"] % 2:
            raise SkipSample
        yield {**sample, "k": 1}

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        if self.where == "post" and sample["n"] % 2 and not sample["k"]:
            raise SkipSample
        return sample


@pytest.mark.parametrize("where", ["pre", "post"])
def test_a_late_skip_leaves_out_that_output_alone(whole: MediaDataset, where: str) -> None:
    found = [(unit["n"], unit["k"]) for unit in units(Framed(whole, SkipsLate(where)))]
    left_out = {(n, int(where == "pre")) for n in range(1, 12, 2)}
    assert found == [one for one in ((n, k) for n in range(12) for k in range(2)) if one not in left_out]


@stateless
def two(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield {**sample, "k": 0}
        yield {**sample, "k": 1}


@stateless
def keeps(sample: Any) -> bool:
    if sample["n"] % 2 and not sample["k"]:
        raise SkipSample
    return bool(sample["n"] < 6)


@stateless
def ends(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        raise SkipSample


def test_a_skip_in_a_row_of_functions_is_of_one_of_them(whole: MediaDataset) -> None:
    kept = [(n, k) for n in range(6) for k in range(2) if not (n % 2 and not k)]
    row = FilterDataset(IterMapDataset(whole, two), keeps)
    assert [(unit["n"], unit["k"]) for unit in units(row)] == kept
    assert [(unit["n"], unit["k"]) for unit in units(IterMapDataset(row, ends))] == kept
    # A map in front, which gives one, and skips one.
    mapped = FilterDataset(IterMapDataset(MapDataset(whole, doubled), two), keeps)
    assert [(unit["n"], unit["k"]) for unit in units(mapped)] == [(n, k) for n in (0, 4) for k in range(2)]


@stateless
def doubled(sample: Any) -> Any:
    if sample["n"] == 1:
        raise SkipSample
    return {**sample, "n": 2 * sample["n"]}


class Substituted(TaskEncoder[Any, Any, Any, Any]):
    """Two outputs of each sample, of which the group hook leaves out the first, or both; its size is one of NumPy's."""

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        yield {**sample, "k": 0}
        yield {**sample, "k": 1}

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[int, Any]:
        if not sample["k"] or sample["n"] == 3:
            raise SkipSample
        return sample["n"] % 2, np.int64(3)


def test_faults_are_told_though_the_first_output_is_left_out(flawed: MediaDataset) -> None:
    framed = Framed(flawed, Substituted(), frame_positions=4, errors=SUBSTITUTE)
    run = FramedRun(framed, global_batch_size=2, samples=48)
    reader = run.reader()
    groups = [unit for unit in reader.samples(range(60)) if unit is not None]
    made = [one for unit in groups for one in unit]
    assert max(map(len, groups)) == 3
    samples = run.new_sources().outputs(*run.locate(np.arange(48))[1:])
    assert reader.faults.total == sum(len(sample.faults) for sample in samples) > 15
    assert {one["k"] for one in made} == {1}
    assert not reader._faults


class Forgets(TaskEncoder[Any, Any, Any, Any]):
    """Says that it is stateless, and makes two outputs of each sample only for the first few times."""

    calls = 0

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        type(self).calls += 1
        yield from [sample] * (2 if self.calls <= 12 else 1)


def test_hooks_that_make_something_else_again(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Forgets(), frame_positions=12, buffer_bytes=0), global_batch_size=1, samples=12)
    reader = run.reader()
    reader.samples([0])
    with pytest.raises(StateError, match=r"1.*position.*0"):
        reader.samples([1])


def test_mixes_of_every_kind_lose_nothing(whole: MediaDataset) -> None:
    part = Subset(whole, [3, 9])
    full = Order(kind="full", seed=1)
    mix = Concat({"a": Repeat(part, 2), "b": whole, "c": Limit(whole, 4)})
    made = units(Framed(mix, Thrice()), 120, order=full)
    found = Counter((unit["n"], restore_key_of(unit)[1]) for unit in made)
    whole_sources = {key: count for key, count in found.items() if key[1] != "c"}
    assert whole_sources == {(n, "a"): 6 for n in range(3, 9)} | {(n, "b"): 3 for n in range(12)}
    assert sorted(count for (_, path), count in found.items() if path == "c") == [3] * 4
    shift = ScheduledBlend({"a": whole, "b": whole}, [Stage(until=10, weights={"a": 1}), Stage(weights={"b": 1})])
    paths = [restore_key_of(unit)[1] for unit in units(Framed(shift, Thrice()), 66, epochs=None, samples=22)]
    assert paths == ["a"] * 30 + ["b"] * 36


@pytest.mark.parametrize("name", ["datasets.measure", "MeasuredDataset", "datasets.Framed"])
def test_each_name_can_be_the_first_that_is_imported(name: str) -> None:
    package, _, name = f"headrace.{name}".rpartition(".")
    code = f"from {package} import {name}"
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


class LateFaults(TaskEncoder[Any, Any, Any, Any]):
    """Packs of three neighbours, of which some show only then that they cannot be made, or are not wanted."""

    def __init__(self, bad: tuple[int, ...], skipped: tuple[int, ...] = ()) -> None:
        self.bad, self.skipped = bad, skipped

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        if sample["n"] in self.bad:
            raise ValueError("no such picture")
        if sample["n"] in self.skipped:
            raise SkipSample
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"n": [sample["n"] for sample in samples]}


def test_what_fails_after_the_selection_is_left_out_of_its_pack(whole: MediaDataset) -> None:
    framed = Framed(whole, LateFaults((0, 4), skipped=(1, 8)), frame_positions=12, errors=SUBSTITUTE)
    assert [unit["n"] for unit in units(framed)] == [[2], [3, 5], [6, 7], [9, 10, 11]]
    reader = FramedRun(framed, global_batch_size=1, epochs=1, order=IN_ORDER).reader()
    reader.samples([0])
    [fault] = reader.faults.faults
    assert (fault.index, fault.hook, fault.position) == (0, "postencode_sample", 0)
    reader.samples(range(1, 4))
    assert [fault.index for fault in reader.faults.faults] == [0, 4]


def test_a_pack_without_samples_is_an_error(whole: MediaDataset) -> None:
    """As is the first fault where no other policy is said, and one that is no sample's."""
    for encoder, errors, error in [
        (LateFaults((3, 4, 5)), SUBSTITUTE, ValueError),
        (LateFaults((4,)), None, ValueError),
        (LateFaults((), skipped=(3, 4, 5)), SUBSTITUTE, ConfigError),
    ]:
        framed = Framed(whole, encoder, frame_positions=12, errors=errors)
        reader = FramedRun(framed, global_batch_size=1, epochs=1, order=IN_ORDER).reader()
        assert reader.samples([0])[0]["n"] == [0, 1, 2]
        with pytest.raises(error, match=r"picture|place"):
            reader.samples([1])


@pytest.fixture(scope="module")
def crude(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("crude") / "ds", 12))


class TornBatches(Several):
    def encode_batch(self, batch: Any) -> Any:
        yield batch


class GroupedPacks(Packed):
    def batch_group_criterion(self, sample: Any) -> tuple[int, int]:
        return 1, 1


class Halved(TaskEncoder[Any, Any, Any, Any]):
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]

    def sample_length(self, sample: Any) -> int:
        return 1


def first_of(items: Any) -> list[list[int]]:
    return [[0]] if items.num_items else []


@pytest.mark.parametrize(
    ("encoder", "options", "named"),
    [
        (object(), {}, "<object"),
        (TornBatches(), {}, r"TornBatches\.encode_batch"),
        (GroupedPacks(), {}, "grouped"),
        (Halved(), {}, r"select_samples_to_pack.*length"),
        (Packed(), {"form": Packing(seq_len=9)}, r"Packed\.sample_length"),
        (Several(), {"form": Grouping()}, r"Several\.batch_group_criterion"),
        (Several(), {"form": Selected(first_of)}, r"select_samples_to_pack.*pack_selected_samples"),
        (Several(), {"form": "packs"}, r"'packs'.*Singles"),
        (Sized(), {"form": Grouping(size=2, remainder="drop")}, "drop"),
        (Fitted(), {"form": Packing(seq_len=9, over_long="drop")}, "segment_multiple"),
        (Several(), {"frame_positions": 0}, r"1.*0.*1"),
        (Several(), {"buffer_bytes": -1}, r"1.*0.*1"),
        (Several(), {"errors": "raise"}, "ErrorPolicy"),
    ],
)
def test_encoders_and_options(crude: MediaDataset, encoder: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Framed(crude, encoder, **options)


def test_other_data(crude: MediaDataset) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Framed("path", Several())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="MediaDataset"):
        Framed(EncodedDataset(crude, DefaultTaskEncoder()), Several())
    with pytest.raises(ConfigError, match="expected"):
        FramedRun(crude, global_batch_size=2)  # type: ignore[arg-type]
    for options, named in (({"steps": 0}, r"least.*1"), ({"num_lanes": 3}, r"num_lanes.*3")):
        with pytest.raises(ConfigError, match=named):
            FramedRun(Framed(crude, Several()), global_batch_size=4, **options)


class Plain(Several):
    """One output of each sample."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return sample

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        return batch


class PlainPacks(Plain):
    """All of a frame are a pack."""

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return [samples]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"n": [sample["n"] for sample in samples]}

    @stateless
    def sample_length(self, sample: Any) -> Any:
        return sample["n"]


def skips(*_: Any) -> Any:
    raise SkipSample


def fails(*_: Any) -> Any:
    raise ValueError("no luck")


def twice(*_: Any) -> Any:
    return (pack for pack in [{"n": 1}, {"n": 1}])


@pytest.mark.parametrize(
    ("base", "hook", "function", "error", "named"),
    [
        (Plain, "preencode_sample", lambda self, sample: sample["n"], ConfigError, r"int.*__restore_key__"),
        (Plain, "preencode_sample", skips, ConfigError, "most_empty_positions"),
        (Plain, "encode_batch", skips, ConfigError, r"SkipSample.*encode_batch.*Own"),
        (Plain, "encode_batch", fails, ValueError, "luck"),
        (Plain, "encode_batch", lambda self, batch: [batch], ConfigError, "fields"),
        (PlainPacks, "select_samples_to_pack", fails, ValueError, "luck"),
        (PlainPacks, "select_samples_to_pack", lambda self, samples: [[{}]], ConfigError, "given"),
        (PlainPacks, "select_samples_to_pack", skips, ConfigError, r"SkipSample.*select_samples_to_pack.*Own"),
        (PlainPacks, "pack_selected_samples", skips, ConfigError, r"already.*preencode_sample"),
        (PlainPacks, "pack_selected_samples", twice, ConfigError, r"2.*one"),
        (PlainPacks, "sample_length", lambda self, sample: "long", ConfigError, r"sample_length.*'long'"),
        (Plain, "batch_group_criterion", lambda self, sample: "key", ConfigError, r"\(key"),
        (Plain, "batch_group_criterion", lambda self, sample: ("key", 1 + sample["n"] % 2), ConfigError, "size"),
    ],
)
def test_what_hooks_give(
    crude: MediaDataset, base: Any, hook: str, function: Any, error: type[Exception], named: str
) -> None:
    encoder = type("Own", (base,), {hook: stateless(function)})()
    run = FramedRun(Framed(crude, encoder, frame_positions=4, most_empty_positions=20), global_batch_size=1)
    reader = run.reader()
    with pytest.raises(error, match=named) as caught:
        reader.collate(reader.samples(range(1 if run.is_group_batches else 3)))
    if error is ValueError:
        assert any("of Own: the " in note for note in caught.value.__notes__)


def test_groups_are_batches_already(crude: MediaDataset) -> None:
    run = FramedRun(Framed(crude, Grouped()), global_batch_size=1, samples=12)
    reader = run.reader()
    with pytest.raises(ConfigError, match="micro_batch_size=1"):
        reader.collate(reader.samples(range(2)))


def test_keys_of_others(crude: MediaDataset) -> None:
    run = FramedRun(Framed(crude, Packed()), global_batch_size=2, order=Order(kind="none"), samples=12)
    pack = next(unit for unit in run.reader().samples(range(4)) if unit is not None)
    key = pack["__restore_key__"]
    inner = key[2]
    for wrong, named in [
        (("Encoded", 3), "restore"),
        (("FramedPack", 0), "restore"),
        (("FramedPack", 0, key), "restore"),
        (("Framed", "x", *inner[2:]), "'x'"),
        (("Framed", "", 15, *inner[3:]), "15"),
        (("Framed", "", -1, *inner[3:]), "-1"),
        (("Framed", "", inner[2], 7, *inner[4:]), "changed"),
        ((*inner[:4], "other", 1), "changed"),
        (("FramedPack", 1, *key[2:]), r"pack.*1"),
    ]:
        with pytest.raises(ConfigError, match=named):
            run.restore_sample(wrong)


class Stateful(Several):
    def postencode_sample(self, sample: Any) -> Any:
        return sample


def test_hooks_that_are_not_stateless(crude: MediaDataset) -> None:
    """They are run once for each sample, whatever is kept, and nothing is made again."""
    run = FramedRun(Framed(crude, Stateful(), frame_positions=6, buffer_bytes=0), global_batch_size=2, samples=24)
    assert run.unrestorable == "Stateful.postencode_sample"
    reader = run.reader()
    first = reader.samples(range(4))
    reader.samples(range(4, 12))
    assert reader.figures.num_encoded_again == 0
    with pytest.raises(ConfigError, match="postencode_sample"):
        run.restore_sample(first[0]["__restore_key__"])
    again = run.reader()
    again.samples([0])
    with pytest.raises(ConfigError, match="twice"):
        again.samples([0])


def test_lengths_decide_packs_alone(crude: MediaDataset) -> None:
    """A hook for lengths changes no recipe, and needs no mark, where nothing is packed."""

    class Long(DefaultTaskEncoder[Any, Any, Any, Any]):
        def sample_length(self, sample: Any) -> int:
            return 1

    hooks = EncodedDataset(crude, Long()).outputs.pipeline.recipe["hooks"]
    assert hooks == ["batch", "encode_batch", "encode_sample"]
    assert Framed(crude, Long()).unrestorable is None
    assert Framed(crude, Halved(), form=Packing(seq_len=3)).unrestorable == "Halved.sample_length"


def test_what_runs_and_recipes_say(crude: MediaDataset) -> None:
    batches, given = [(0, 4), (2, 8)], {"samples": 24, "steps": 9}

    def of(encoder: Any, **options: Any) -> FramedRun:
        return FramedRun(Framed(crude, encoder, **options), global_batch_size=batches, **given)

    run = of(Packed())
    assert "4 lanes, Packed" in repr(run)
    text = run.describe(world_size=3, micro_batch_size=1)
    for words in ("12 samples an epoch", "select_samples_to_pack", "8 units from step 2; 4 lanes", "3 ranks: 4 lanes"):
        assert words in text
    assert "of 24 samples, at most 9 steps" in text
    assert "2.00 times" in text
    counted = run.first_frames(num_frames=2)
    assert (counted.num_frames, counted.num_items) == (1, 6), "lane 0 has one frame"
    assert f"1 frames: 6 items in {counted.num_units} units; 0 carried" in run.describe(num_frames=2)
    named = {
        "each output": of(Several()),
        "its own size": of(Grouped()),
        "of 3 samples": of(Sized(), form=Grouping(size=3)),
        "pack of 30": of(Fitted(), form=Packing(seq_len=30)),
        "first_of": of(Packed(), form=Selected(first_of)),
    }
    assert all(words in other.describe() for words, other in named.items())
    others = [of(Packed(), seed=1), of(Packed(), frame_positions=9), of(Packed(), form=Singles())]
    # With more samples, what the last frames flush is other units.
    longer = FramedRun(run.data, global_batch_size=batches, samples=36, steps=9)
    assert len({one.recipe.digest() for one in (run, longer, *others, *named.values())}) == 10
    assert FramedRun(run.data, global_batch_size=batches, samples=24, steps=10).recipe == run.recipe


def test_sizes_are_about_right() -> None:
    assert 1_000_000 < size_of({"a": np.zeros(1_000_000, dtype=np.uint8), "b": [1, "x"]}) < 1_001_000
    assert 32_000 <= size_of([list(range(1_000))]) < 33_000
    text = TextSample(__key__="k" * 9_000, __restore_key__=("a", 1), text="x" * 900)
    assert 900 < size_of(text) < 1_500, "keys are small, and not looked at"
    assert 900 < size_of({"__key__": "k" * 9_000, "text": "x" * 900}) < 1_500
    assert size_of(bytearray(900)) > 900
    assert size_of((3, np.zeros(100_000, dtype=np.uint8))) > 100_000
    assert size_of({"pair": [None, "x" * 9_000]}) > 9_000
    assert size_of(Image.new("RGB", (100, 10))) > 3_000
    held: BoundedCache[bytes] = BoundedCache(1_000)
    for key in range(5):
        held.put(key, bytes(300), bytes(300))
    held.put(4, bytes(300), bytes(300))
    held.trim()
    assert [key for key in range(5) if held.get(key) is not None] == [0, 1]
    assert (held.num_dropped, len(held), held.most_bytes) == (3, 2, 5 * 364)
    assert held.take(0) == bytes(300)
    assert held.take(0) is None
    assert held.num_bytes == 364


def test_cookers_are_those_of_the_encoder(crude: MediaDataset) -> None:
    cooked = crude.cooked_by([Cooker(cook)])
    one, other = (FramedRun(Framed(data, Several()), global_batch_size=2).units(0) for data in (crude, cooked))
    assert one == other
