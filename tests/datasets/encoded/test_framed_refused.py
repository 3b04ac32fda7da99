"""What framed sources refuse, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framed_encoders import Fitted, Grouped, Packed, Several, Sized, Torn, cook, numbers
from headrace import ConfigError, MediaDataset, Order
from headrace.datasets import EncodedDataset, Framed, FramedRun
from headrace.datasets.encoded.unit_reader import BoundedCache, size_of
from headrace.encoders import (
    Cooker,
    DefaultTaskEncoder,
    ErrorPolicy,
    SkipSample,
    TaskEncoder,
    TextSample,
    stateless,
)
from headrace.errors import DecodeError, StateError
from headrace.plan.framed import BestFit, GroupBatches, LaneState, Selected, Singles


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("whole") / "ds", 12))


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
    ("encoder", "options", "wanted"),
    [
        (object(), {}, "task encoder is <object"),
        (TornBatches(), {}, "TornBatches.encode_batch is a generator"),
        (GroupedPacks(), {}, "packs cannot be grouped"),
        (Halved(), {}, "does not override select_samples_to_pack: set the length of a pack"),
        (Packed(), {"form": BestFit(9)}, "override Packed.sample_length"),
        (Several(), {"form": GroupBatches()}, "override Several.batch_group_criterion"),
        (Several(), {"form": Selected(first_of)}, "packing needs select_samples_to_pack and pack_selected_samples"),
        (Several(), {"form": "packs"}, "form is 'packs'; expected Singles"),
        (Several(), {"batch_size": 3}, "batch_size is for groups"),
        (Sized(), {"form": GroupBatches(2), "batch_size": 3}, "leave form out"),
        (Sized(), {"batch_size": 0}, "at least 1 item; found size=0"),
        (Several(), {"frame_positions": 0}, "must be at least 1, 0 and 1"),
        (Several(), {"buffer_bytes": -1}, "must be at least 1, 0 and 1"),
        (Several(), {"errors": "raise"}, "expected an ErrorPolicy"),
    ],
)
def test_encoders_and_options(whole: MediaDataset, encoder: Any, options: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        Framed(whole, encoder, **options)


def test_other_data(whole: MediaDataset) -> None:
    with pytest.raises(ConfigError, match="expected a dataset of media, or a mix"):
        Framed("path", Several())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a MediaDataset"):
        Framed(EncodedDataset(whole, DefaultTaskEncoder()), Several())
    with pytest.raises(ConfigError, match="expected Framed"):
        FramedRun(whole, global_batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1, or None"):
        FramedRun(Framed(whole, Several()), global_batch_size=2, steps=0)
    with pytest.raises(ConfigError, match="num_lanes is 3, and the global batches are"):
        FramedRun(Framed(whole, Several()), global_batch_size=4, num_lanes=3)


class Odd(Several):
    """Of what is named, one thing is wrong."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        if self.wrong == "nothing":
            raise SkipSample
        return sample["n"] if self.wrong == "plain" else sample

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        if self.wrong == "batch":
            raise SkipSample
        if self.wrong == "error":
            raise ValueError("no batch")
        return [batch] if self.wrong == "list" else batch


class OddPacks(Odd):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        if self.wrong == "select":
            raise ValueError("no selection")
        return [[{}]] if self.wrong == "foreign" else [samples]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        if self.wrong == "skip":
            raise SkipSample
        pack = {"n": [sample["n"] for sample in samples]}
        return iter_twice(pack) if self.wrong == "twice" else pack

    @stateless
    def sample_length(self, sample: Any) -> Any:
        return "long" if self.wrong == "length" else sample["n"]


class OddGroups(Odd):
    @stateless
    def batch_group_criterion(self, sample: Any) -> Any:
        return "key" if self.wrong == "criterion" else ("key", 1 + sample["n"] % 2)


def iter_twice(pack: Any) -> Any:
    yield pack
    yield pack


@pytest.mark.parametrize(
    ("make", "wrong", "error", "wanted"),
    [
        (Odd, "plain", ConfigError, "returned a int without __restore_key__"),
        (Odd, "batch", ConfigError, "SkipSample in encode_batch of Odd: the batch that begins with .*cannot leave a"),
        (Odd, "error", ValueError, "no batch"),
        (Odd, "list", ConfigError, "has no fields, which a loader needs"),
        (Odd, "nothing", ConfigError, "increase most_empty_positions"),
        (OddPacks, "select", ValueError, "no selection"),
        (OddPacks, "foreign", ConfigError, "one that it was not given"),
        (OddPacks, "skip", ConfigError, "has its place already; skip samples in preencode_sample"),
        (OddPacks, "twice", ConfigError, "returned 2 packs of .* samples, where one was planned"),
        (OddPacks, "length", ConfigError, "sample_length returned 'long'"),
        (OddGroups, "criterion", ConfigError, r"it must return \(key, batch size or None\)"),
        (OddGroups, "", ConfigError, "a group must have one size"),
    ],
)
def test_what_hooks_give(
    whole: MediaDataset, make: Callable[[str], Any], wrong: str, error: type[Exception], wanted: str
) -> None:
    framed = Framed(whole, make(wrong), frame_positions=4, most_empty_positions=20)
    run = FramedRun(framed, global_batch_size=1)
    reader = run.reader()
    with pytest.raises(error, match=wanted) as caught:
        reader.collate(reader.samples(range(1 if run.is_group_batches else 3)))
    if error is ValueError:
        assert any(f"of {make.__name__}: the " in note for note in caught.value.__notes__)


def test_groups_are_batches_already(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Grouped()), global_batch_size=1, samples=12)
    reader = run.reader()
    with pytest.raises(ConfigError, match="use micro_batch_size=1"):
        reader.collate(reader.samples(range(2)))


def test_units_that_are_behind(whole: MediaDataset) -> None:
    reader = FramedRun(Framed(whole, Several(), frame_positions=2), global_batch_size=1).reader()
    reader.samples([20])
    with pytest.raises(StateError, match="resume from a saved state"):
        reader.samples([0])


def test_keys_of_others(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Packed()), global_batch_size=2, order=Order(kind="none"), samples=12)
    pack = next(unit for unit in run.reader().samples(range(4)) if unit is not None)
    key = pack["__restore_key__"]
    inner = key[2]
    for wrong, wanted in [
        (("Encoded", 3), "not a restore key of a framed source"),
        (("FramedPack", 0), "not a restore key of a framed source"),
        (("FramedPack", 0, key), "not a restore key of a framed source"),
        (("Framed", "x", *inner[2:]), "is of the dataset 'x', which this run does not have"),
        (("Framed", "", 15, *inner[3:]), "has no sample at the address 15"),
        (("Framed", "", -1, *inner[3:]), "has no sample at the address -1"),
        (("Framed", "", inner[2], 7, *inner[4:]), "has changed"),
        ((*inner[:4], "other", 1), "has changed"),
        (("FramedPack", 1, *key[2:]), "is of pack 1, and .* now make 1 packs"),
    ]:
        with pytest.raises(ConfigError, match=wanted):
            run.restore_sample(wrong)


class Stateful(Several):
    def postencode_sample(self, sample: Any) -> Any:
        return sample


def test_hooks_that_are_not_stateless(whole: MediaDataset) -> None:
    """They are run once for each sample, whatever is kept, and nothing is made again."""
    run = FramedRun(Framed(whole, Stateful(), frame_positions=6, buffer_bytes=0), global_batch_size=2, samples=24)
    assert run.unrestorable == "Stateful.postencode_sample"
    reader = run.reader()
    first = reader.samples(range(4))
    reader.samples(range(4, 12))
    assert reader.figures.num_encoded_again == 0
    with pytest.raises(ConfigError, match="postencode_sample is not marked @stateless"):
        run.restore_sample(first[0]["__restore_key__"])
    again = run.reader()
    again.samples([0])
    with pytest.raises(ConfigError, match="a unit was asked for twice"):
        again.samples([0])


def test_lengths_decide_packs_alone(whole: MediaDataset) -> None:
    """A hook for lengths changes no recipe, and needs no mark, where nothing is packed."""

    class Long(DefaultTaskEncoder[Any, Any, Any, Any]):
        def sample_length(self, sample: Any) -> int:
            return 1

    assert EncodedDataset(whole, Long()).outputs.pipeline.recipe["hooks"] == [
        "batch",
        "encode_batch",
        "encode_sample",
    ]
    assert Framed(whole, Long()).unrestorable is None
    assert Framed(whole, Halved(), form=BestFit(3)).unrestorable == "Halved.sample_length"


def test_a_lane_without_a_state(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Several()), global_batch_size=2)
    with pytest.raises(StateError, match="there is no state of lane 1 among the 1"):
        run.reader([LaneState(0)]).samples(range(2))


def test_broken_samples_are_raised_by_default(tmp_path_factory: pytest.TempPathFactory) -> None:
    flawed = MediaDataset.open(numbers(tmp_path_factory.mktemp("flawed") / "ds", 12, broken=(4,)))
    run = FramedRun(Framed(flawed, Torn()), global_batch_size=1, order=Order(kind="none"), samples=12)
    with pytest.raises(DecodeError, match="0004"):
        run.units(0)
    substitute = Framed(flawed, Torn(), errors=ErrorPolicy(on_error="substitute"))
    assert FramedRun(substitute, global_batch_size=1, samples=12).units(0)


def test_what_runs_and_recipes_say(whole: MediaDataset) -> None:
    def of(encoder: Any, **options: Any) -> FramedRun:
        return FramedRun(Framed(whole, encoder, **options), global_batch_size=[(0, 4), (2, 8)], samples=24, steps=9)

    run = of(Packed())
    assert repr(run).startswith("<FramedRun: 1 sources, 4 lanes, Packed")
    text = run.describe(world_size=3, micro_batch_size=1)
    for line in (
        "12 samples an epoch",
        "units: Packed, 1,000 positions a frame: a unit is a pack, as select_samples_to_pack chooses",
        "global batch: 4 units from step 0, 8 units from step 2; 4 lanes",
        "length: of 24 samples, at most 9 steps",
        "3 ranks: 4 lanes, ",
    ):
        assert line in text
    assert "every sample is encoded 2.00 times" in text
    counted = run.first_frames(num_frames=2)
    assert counted.num_frames == 1, "lane 0 has one frame"
    assert counted.num_items == 6
    assert run.describe(num_frames=2).endswith(
        f"1 frames: 6 items in {counted.num_units} units; 0 carried on, at most 0"
    )
    named = {
        "each output is a unit": of(Several()),
        "a batch of one group, of its own size": of(Grouped()),
        "a batch of one group, of 3 samples": of(Sized(), batch_size=3),
        "a pack of 30, by best fit": of(Fitted(), form=BestFit(30)),
        "a pack, as test_framed_refused.first_of chooses": of(Packed(), form=Selected(first_of)),
    }
    hashes = {run.recipe.digest()}
    for wanted, other in named.items():
        assert wanted.removeprefix("a pack, as test_framed_refused.") in other.describe()
        hashes.add(other.recipe.digest())
    hashes.add(of(Packed(), seed=1).recipe.digest())
    hashes.add(of(Packed(), frame_positions=9).recipe.digest())
    hashes.add(of(Packed(), form=Singles()).recipe.digest())
    longer = FramedRun(run.data, global_batch_size=[(0, 4), (2, 8)], samples=36, steps=9)
    hashes.add(longer.recipe.digest())  # what the last frames flush is other units
    assert len(hashes) == 10
    steps = FramedRun(run.data, global_batch_size=[(0, 4), (2, 8)], samples=24, steps=10)
    assert steps.recipe == run.recipe


def test_sizes_are_about_right() -> None:
    assert 1_000_000 < size_of({"a": np.zeros(1_000_000, dtype=np.uint8), "b": [1, "x"]}) < 1_001_000
    assert 32_000 <= size_of([list(range(1_000))]) < 33_000
    text = TextSample(__key__="k" * 9_000, __restore_key__=("a", 1), text="x" * 900)
    assert 900 < size_of(text) < 1_500, "keys are small, and not looked at"
    assert 900 < size_of({"__key__": "k" * 9_000, "text": "x" * 900}) < 1_500
    assert size_of(bytearray(900)) > 900
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


def test_cookers_are_those_of_the_encoder(whole: MediaDataset) -> None:
    cooked = whole.cooked_by([Cooker(cook)])
    one, other = (FramedRun(Framed(data, Several()), global_batch_size=2).units(0) for data in (whole, cooked))
    assert one == other
