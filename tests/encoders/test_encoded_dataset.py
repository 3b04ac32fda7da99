"""A task encoder through run and loader: the same bytes however they are read, and samples that fail."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_ported import NumberEncoder, NumberSample, cook_number
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Run
from headrace.datasets import EncodedDataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.encoders import Cooker, DefaultTaskEncoder, ErrorPolicy, TaskEncoder, basic_sample_keys, cooker, stateless
from headrace.errors import SampleError, SkipSample
from headrace.loader import Reading
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import JoinColumn, write_join

NUMPY: Any = np.random
WHEN_ASKED = Reading(num_threads=0)
SUBSTITUTE = ErrorPolicy(on_error="substitute")


class Augmenting(NumberEncoder):
    """Draws from every generator, in every hook and in the cooker."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        sample = super().encode_sample(sample)
        sample.values = sample.values + torch.rand(1) + NUMPY.rand() + random.random()
        return sample

    @stateless(restore_seeds=("torch",))
    def encode_batch(self, batch: Any) -> Any:
        batch = super().encode_batch(batch)
        batch.values = batch.values + torch.rand(1)
        return batch


def batches(run: Run, reading: Reading, steps: int = 12, **options: Any) -> list[dict[str, Any]]:
    loader = Loader(run, micro_batch_size=2, reading=reading, **options)
    found = iter(loader)
    try:
        return [next(found) for _ in range(steps)]
    finally:
        loader.close()


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.fixture
def augmented(crude: Path) -> EncodedDataset:
    return EncodedDataset.open(crude, Augmenting(), seed=7)


@pytest.fixture
def run(augmented: EncodedDataset) -> Run:
    return Run(augmented, global_batch_size=4, order=Order(kind="full", seed=1))


def test_workers_change_no_byte(run: Run) -> None:
    """Nor does what ran in this process before: Energon caches the seed of whoever came first."""
    torch.manual_seed(3)
    NUMPY.seed(3)
    wanted = batches(run, WHEN_ASKED)
    for workers in (1, 2):
        found = batches(run, Reading(num_workers=workers))
        assert all(same(one, other) for one, other in zip(found, wanted, strict=True))
    torch.manual_seed(4)
    again = batches(run, WHEN_ASKED)
    assert all(same(one, other) for one, other in zip(again, wanted, strict=True))


def test_epochs_samples_and_seeds_draw_on_their_own(run: Run, crude: Path) -> None:
    noise: dict[int, list[float]] = {}
    for step in range(12):  # two epochs
        batch = run.step(step)
        for label, row in zip(batch["label"].tolist(), batch["values"], strict=True):
            noise.setdefault(label, []).append(float(row[0]) - 2 * label)
    assert all(len(found) == 2 for found in noise.values())
    found = [round(one, 4) for pair in noise.values() for one in pair]
    assert len(set(found)) > 40
    other = Run(EncodedDataset.open(crude, Augmenting(), seed=8), global_batch_size=4, order=run.order)
    assert not torch.equal(other.step(0)["values"], run.step(0)["values"])
    assert torch.equal(other.step(0)["label"], run.step(0)["label"])
    assert other.recipe.dataset != run.recipe.dataset


def test_restore_sample(augmented: EncodedDataset, run: Run) -> None:
    batch = batches(run, Reading(num_workers=2), 9)[-1]
    keys = batch["__restore_key__"]
    again = pickle.loads(pickle.dumps(augmented))
    restored = again.restore_sample(keys)
    assert torch.equal(restored["values"], batch["values"])
    assert restored["__restore_key__"] == keys
    one = again.restore_sample(keys[1])
    assert one.__key__ == batch["__key__"][1]
    assert one.__restore_key__ == keys[1]
    for key in (("Encoded",), ("Webdataset", 1), ("Encoded", -1), ("Encoded", 31), ("Encoded", "1"), 3):
        with pytest.raises(ConfigError, match="restore"):
            again.restore_sample(key)
    with pytest.raises(ConfigError, match="changed"):
        again.restore_sample((*keys[1], "more"))


def test_hooks_that_draw_are_refused_in_threads(run: Run, crude: Path) -> None:
    with pytest.raises(ConfigError, match=r"encode_sample.*Reading\(num_workers=2"):
        batches(run, Reading(num_threads=1), 1)
    cooking = NumberEncoder()
    cooking.cookers = [Cooker(lambda crude: cook_number(crude))]
    for encoder in (Unmarked(), cooking):
        with pytest.raises(ConfigError, match="@stateless"):
            batches(Run(EncodedDataset.open(crude, encoder), global_batch_size=4), Reading(num_threads=1), 1)
    plain = Run(EncodedDataset.open(crude, NumberEncoder()), global_batch_size=4)
    found = [batches(plain, reading) for reading in (WHEN_ASKED, Reading(num_threads=2))]
    assert all(same(one, other) for one, other in zip(*found, strict=True))


def test_ported_encoder_encodes(crude: Path) -> None:
    batch = Run.validation(EncodedDataset.open(crude, NumberEncoder()), global_batch_size=3).step(1)
    assert batch["__key__"] == ["s/003", "s/004", "s/005"]
    assert batch["label"].tolist() == [3, 4, 5]
    assert batch["values"].tolist() == [[6, 8, 10, 12, 14], [8, 10, 0, 0, 0], [10, 12, 14, 0, 0]]
    assert batch["mask"].sum(1).tolist() == [5, 2, 3]


def test_blends(crude: Path, augmented: EncodedDataset) -> None:
    other = EncodedDataset.open(crude, Augmenting(), seed=7)
    halves = {"a": 0.5, "b": 0.5}
    run = Run(Blend({"a": augmented, "b": other}, weights=halves), global_batch_size=4, order=Order(kind="full"))
    read = [run.step(step) for step in range(12)]
    keys = [key for batch in read for key in batch["__key__"]]
    assert sorted(keys) == sorted([f"s/{number:03d}" for number in range(24)] * 2)
    # The same samples twice, and yet nothing is drawn twice: the keys of an epoch are those of the source.
    assert len({key for batch in read for key in batch["__restore_key__"]}) == 48
    with pytest.raises(ConfigError, match="samples"):
        Blend({"a": augmented, "b": EncodedDataset.open(crude, NumberEncoder())}, weights=halves)


def test_face(augmented: EncodedDataset, crude: Path) -> None:
    assert len(augmented) == 24
    assert "encoded by Augmenting" in repr(augmented)
    keys = np.array([2**64 - 1, 5, 0], np.uint64)
    addresses = augmented.locate(np.array([23, 0, 7]), keys)
    assert addresses.dtype == np.int64
    assert (addresses >= 0).all()
    assert augmented.indices(addresses).tolist() == [23, 0, 7]
    assert augmented.find_keys("s/003")[0] == 3
    assert augmented.origins(addresses)[2][0].key == "s/007"
    assert augmented.fingerprint == EncodedDataset.open(crude, Augmenting(), seed=7).fingerprint
    assert augmented.collate([])["__key__"] == []
    assert augmented[-1].__key__ == "s/023"

    class Newer(Augmenting):
        version = "2"

    assert EncodedDataset.open(crude, Newer(), seed=7).fingerprint != augmented.fingerprint


def encoder_with(hook: str, function: Callable[..., Any], base: Any = NumberEncoder) -> Any:
    """An encoder that has a function without a state for one of its hooks; its class is called Own."""
    return type("Own", (base,), {hook: stateless(function)})()


def test_encoders_that_are_not_fixed_are_refused(crude: Path) -> None:
    yielding = encoder_with("encode_sample", lambda self, sample: (yield sample))
    grouping = encoder_with("batch_group_criterion", lambda self, sample: (1, 2))
    for encoder, hook in ((yielding, "encode_sample"), (grouping, "batch_group_criterion")):
        with pytest.raises(ConfigError, match=hook):
            EncodedDataset.open(crude, encoder)
    hidden = encoder_with("encode_sample", lambda self, sample: (one for one in [sample, sample]))
    with pytest.raises(ConfigError, match=r"returned.*2.*1"):
        EncodedDataset.open(crude, hidden)[1]


def test_wrong_arguments(crude: Path, crude_samples: MediaDataset) -> None:
    encoder = DefaultTaskEncoder()  # type: ignore[var-annotated]
    encoder.cookers = [Cooker(cook_number, {"kind": "other"})]
    for data, hooks, options, named in (
        ([1], NumberEncoder(), {}, "MediaDataset"),
        (crude_samples, NumberEncoder(), {"errors": "raise"}, "ErrorPolicy"),
        (crude_samples, encoder, {}, "matches"),
    ):
        with pytest.raises(ConfigError, match=named):
            EncodedDataset(data, hooks, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="TaskEncoder"):
        EncodedDataset.open(crude, None)  # type: ignore[arg-type]


class OwnCook(NumberEncoder):
    @stateless
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Any) -> Any:
        sample["json"]["text"] += f" of {sorted(aux)}"
        return super().cook_crude_sample(sample, cooker, aux)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


@stateless
@cooker(need_primary=True, need_cache=True)
def cook_more(sample: Any, *, primary: Any, cache: Any) -> NumberSample:
    text = f"{sample['json']['text']}, beside {primary.get('.npy')[0]}, {type(cache).__name__}"
    return NumberSample(**basic_sample_keys(sample), values=sample["npy"], text=text, number=0)


def test_own_cooking(crude: Path, crude_samples: MediaDataset) -> None:
    encoder = OwnCook()
    assert EncodedDataset(crude_samples, encoder)[2].text == "text 2 of []"
    encoder.cookers = [Cooker(cook_more)]
    for dataset in (EncodedDataset(crude_samples, encoder), EncodedDataset.open(crude, encoder)):
        again = pickle.loads(pickle.dumps(dataset))
        assert again[2].text == dataset[2].text == "text 2 of ['cache', 'primary'], beside 2.0, NoCachePool"
        assert again.recipe == dataset.recipe
    cooked = MediaDataset.open(crude, cookers=[Cooker(cook_number)])
    with pytest.raises(ConfigError, match="cook_crude_sample"):
        EncodedDataset(cooked, encoder)
    assert EncodedDataset(cooked, NumberEncoder())[2].length == 4


def test_substitutes_are_the_same_for_all(flawed: Path) -> None:
    dataset = EncodedDataset.open(flawed, Augmenting(), errors=SUBSTITUTE)
    run = Run(dataset, global_batch_size=4, order=Order(kind="full", seed=1))
    wanted = batches(run, WHEN_ASKED, 24)
    found = batches(run, Reading(num_workers=2), 24)
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True))
    keys = [key for batch in wanted for key in batch["__key__"]]
    assert len(keys) == 48
    assert not {"s/003", "s/004", "s/017"} & set(keys)
    whole = [f"s/{number:03d}" for number in range(24) if number not in (3, 4, 17)]
    assert all(keys.count(key) >= 2 for key in whole)  # nothing else moves
    met = [fault for fault in dataset.faults.faults if fault.attempt == 0]
    assert {fault.index for fault in met} == {3, 4, 17}  # of samples that were read ahead, too
    assert {fault.key for fault in met} == {"s/003", "s/004", "s/017"}
    assert {fault.shard.rsplit("/", 1)[-1] for fault in met if fault.shard} == {"000.tar", "012.tar"}
    restored = [key for batch in wanted for key in batch["__restore_key__"]]
    stood_in = [key for key in restored if key[-1] != int(dataset.indices(np.array([key[1]]))[0])]
    assert len(stood_in) == 6
    assert dataset.restore_sample(stood_in[0]).__restore_key__ == stood_in[0]


def test_samples_that_cannot_even_be_read(crude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = EncodedDataset.open(crude, NumberEncoder(), errors=SUBSTITUTE)
    makers = type(dataset.dataset).makers
    asked: list[list[int]] = []

    def reading(self: Any, indices: Any, watch: Any = None) -> Any:
        asked.append(indices.tolist())
        if 5 in indices:
            raise SampleError(None, "malformed", shard="a", key="s/005")
        return makers(self, indices)

    monkeypatch.setattr(type(dataset.dataset), "makers", reading)
    found = [one.__key__ for one in dataset.samples(np.array([4, 5, 6]))]
    assert [found[0], found[2]] == ["s/004", "s/006"]
    assert found[1] != "s/005"
    assert asked[:3] == [[4, 5, 6], [4], [5]]
    assert [(fault.index, fault.hook, fault.shard) for fault in dataset.faults.faults] == [(5, "read", "000.tar")]


@stateless
def joined(numbers: Any, others: Any) -> Any:
    others.number += 100 * numbers.number
    return others


def test_joins(crude: Path, tmp_path: Path) -> None:
    stores = [EnergonStore(crude, split_part="train") for _ in range(2)]
    columns = [JoinColumn(store=store) for store in stores]
    write_join(tmp_path / "join", columns)
    parts = [MediaDataset.of(store, cookers=[Cooker(cook_number)]) for store in stores]
    dataset = JoinedMediaDataset(JoinedStore(columns, tmp_path / "join"), joined, columns=parts)
    encoded = pickle.loads(pickle.dumps(EncodedDataset(dataset, NumberEncoder())))
    found = encoded[3]
    assert found.label == 303
    assert found.__restore_key__[:2] == ("Encoded", 3)
    assert torch.equal(encoded.restore_sample(found.__restore_key__).values, found.values)


class Skipping(NumberEncoder):
    @stateless(failure_tolerance=3)
    def encode_sample(self, sample: Any) -> Any:
        if sample.number % 2:
            raise SkipSample
        return sample

    @stateless
    def batch(self, samples: Any) -> Any:
        return DefaultTaskEncoder.batch(self, samples)

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        return batch


def test_skipped_samples(crude: Path) -> None:
    with pytest.raises(ConfigError, match=r"SkipSample.*encode_sample.*'s/001'"):
        EncodedDataset.open(crude, Skipping())[1]
    dataset = EncodedDataset.open(crude, Skipping(), errors=SUBSTITUTE)
    assert dataset[2].number == 2
    errors = []
    for number in range(1, 24, 2):
        try:
            assert dataset[number].number % 2 == 0
        except SampleError as error:
            errors.append(str(error))
    assert 0 < len(errors) < 8  # one in four
    assert all("3 in encode_sample" in error for error in errors)


class Failing(Skipping):
    """Meets an error at sample 5, some times."""

    error: Any = None
    times, asked = 1 << 60, 0

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.asked += sample.number == 5
        if sample.number == 5 and self.asked <= self.times:
            raise self.error
        return sample


class Unmarked(Failing):
    """May have changed before it failed."""

    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


@pytest.mark.parametrize(
    ("error", "kind", "is_made_good"),
    [
        (KeyError("x"), Failing, True),
        (KeyError("x"), Unmarked, False),
        (SampleError(None, "x"), Unmarked, True),
        (TimeoutError(), Failing, False),
    ],
)
def test_which_errors_of_hooks_are_made_good(
    crude: Path, error: Exception, kind: type[Failing], is_made_good: bool
) -> None:
    encoder = kind()
    encoder.error = error
    once = ErrorPolicy(on_error="substitute", attempts=1)
    dataset = EncodedDataset.open(crude, encoder, errors=once)
    if is_made_good:
        assert dataset[5].number != 5
        assert dataset.faults.total >= 1
        return
    with pytest.raises(type(error)) as found:
        dataset[5]
    assert "in encode_sample of" in found.value.__notes__[0]
    assert dataset.faults.total == 0


def test_batches_that_fail(crude: Path) -> None:
    class NoBatch(Skipping):
        error: Any = SkipSample()

        @stateless
        def encode_batch(self, batch: Any) -> Any:
            raise self.error

    encoder = NoBatch()
    run = Run(EncodedDataset.open(crude, encoder, errors=SUBSTITUTE), global_batch_size=1)
    with pytest.raises(ConfigError, match=r"SkipSample.*encode_batch.*NoBatch"):
        run.step(0)
    encoder.error = KeyError("x")
    with pytest.raises(KeyError) as found:
        run.step(0)
    assert "in encode_batch of NoBatch" in found.value.__notes__[0]


class NoFields(TaskEncoder[Any, Any, Any, Any]):
    """Whose batches may not be made again."""

    def encode_batch(self, batch: Any) -> Any:
        return batch

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return 3


def test_outputs_that_a_loader_cannot_take(crude_samples: MediaDataset) -> None:
    keyless = encoder_with("encode_sample", lambda self, sample: sample["npy"], TaskEncoder)
    with pytest.raises(ConfigError, match=r"Own.*__restore_key__"):
        EncodedDataset(crude_samples, keyless)[0]
    dataset = EncodedDataset(crude_samples, NoFields())
    with pytest.raises(ConfigError, match="NoFields"):
        dataset.collate([dataset[0]])
    with pytest.raises(ConfigError, match=r"NoFields.encode_batch"):
        dataset.restore_sample(dataset[0]["__restore_key__"])
    batch = Run.validation(EncodedDataset(crude_samples, TaskEncoder()), global_batch_size=2).step(0)
    assert (batch["json"]["number"], batch["npy"].shape) == ([0, 1], (2, 3))
    with pytest.raises(ConfigError, match="EncodedDataset"):
        dataset.collate([{}])


def test_time_outs_are_tried_again_and_never_substituted(crude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("headrace.datasets.media.face.sleep", waited.append)
    encoder = Failing()
    encoder.error, encoder.times = TimeoutError("the server is silent"), 3
    dataset = EncodedDataset.open(crude, encoder, errors=SUBSTITUTE)
    wanted = EncodedDataset.open(crude, NumberEncoder(), errors=SUBSTITUTE)
    assert (dataset[5].__key__, dataset.faults.total) == (wanted[5].__key__, 0)
    assert (waited, dataset.outputs.num_retries) == ([0.1, 0.2, 0.4], 3)
    encoder.asked, encoder.times = 0, 99
    run = Run(dataset, global_batch_size=4, order=Order(kind="none"))
    with pytest.raises(TimeoutError, match="silent") as found:
        run.step(1)
    assert found.value.__notes__[-2:] == ["it was tried 5 times", "at position 5 of the run, step 1"]
    assert (encoder.asked, dataset.faults.total) == (5, 0)
    unmarked = Unmarked()
    unmarked.error, unmarked.times = encoder.error, 1
    with pytest.raises(TimeoutError):
        EncodedDataset.open(crude, unmarked, errors=SUBSTITUTE)[5]
    with pytest.raises(ConfigError, match=r"attempts.*0"):
        ErrorPolicy(attempts=0)


def test_a_hook_that_returns_none_and_next_that_finds_nothing(crude: Path) -> None:
    forgets = encoder_with("encode_sample", lambda self, sample: sample if sample.number != 5 else None)
    with pytest.raises(ConfigError, match=r"Own.encode_sample.*SkipSample") as found:
        list(EncodedDataset.open(crude, forgets))
    assert found.value.__notes__ == [f"in encode_sample of Own: sample 5 of {crude}"]
    finds_nothing = encoder_with("encode_sample", lambda self, sample: sample if sample.number != 5 else next(iter([])))
    dataset = EncodedDataset.open(crude, finds_nothing)
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(dataset)
    assert caught.value.__notes__ == found.value.__notes__
    assert isinstance(caught.value.__cause__, StopIteration)
    dataset = EncodedDataset.open(crude, finds_nothing, errors=SUBSTITUTE)
    assert len(list(dataset)) == 24
    assert [(one.index, one.kind) for one in dataset.faults.faults] == [(5, "RuntimeError")]
