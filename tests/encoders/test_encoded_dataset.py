"""A task encoder through run and loader: the same bytes however they are read, and samples that fail."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_ported import NumberEncoder, NumberSample, cook_number
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Run, StoreError
from headrace.datasets import EncodedDataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.encoders import (
    Cooker,
    DefaultTaskEncoder,
    ErrorPolicy,
    SkipSample,
    TaskEncoder,
    basic_sample_keys,
    cooker,
    stateless,
)
from headrace.errors import DecodeError, SampleError
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


def test_the_callers_generators_go_on_as_if_nothing_was_read(run: Run) -> None:
    def drawn() -> Any:
        return torch.rand(2).tolist(), NUMPY.randn(3).tolist(), random.random()

    for seed in (torch.manual_seed, NUMPY.seed, random.seed):
        seed(1)
    wanted = [drawn(), drawn()]
    for seed in (torch.manual_seed, NUMPY.seed, random.seed):
        seed(1)
    first = drawn()
    run.step(0)
    assert [first, drawn()] == wanted


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
        with pytest.raises(ConfigError, match="is not a restore key of"):
            again.restore_sample(key)
    with pytest.raises(ConfigError, match="the data or the policy has changed"):
        again.restore_sample((*keys[1], "more"))


def test_code_with_state_is_not_restored(crude: Path) -> None:
    class Counting(NumberEncoder):
        def encode_batch(self, batch: Any) -> Any:
            return batch

    dataset = EncodedDataset.open(crude, Counting())
    with pytest.raises(ConfigError, match=r"Counting.encode_batch is not marked @stateless"):
        dataset.restore_sample(("Encoded", 1, "Webdataset", 1))


def test_hooks_that_draw_are_refused_in_threads(run: Run, crude: Path) -> None:
    with pytest.raises(ConfigError, match=r"encode_sample is marked as drawing.*Reading\(num_workers=2\)"):
        batches(run, Reading(num_threads=1), 1)
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
    with pytest.raises(ConfigError, match="encoded samples"):
        Blend({"a": augmented, "b": EncodedDataset.open(crude, NumberEncoder())}, weights=halves)


def test_face(augmented: EncodedDataset, crude: Path) -> None:
    assert len(augmented) == 24
    assert "encoded by Augmenting" in repr(augmented)
    keys = np.array([2**64 - 1, 5, 0], np.uint64)
    addresses = augmented.locate(np.array([23, 0, 7]), keys)
    assert addresses.dtype == np.int64
    assert (addresses >= 0).all()
    assert augmented.indices(addresses).tolist() == [23, 0, 7]
    assert augmented.find_key("s/003") == 3
    assert augmented.origins(addresses)[2][0].key == "s/007"
    assert augmented.fingerprint == EncodedDataset.open(crude, Augmenting(), seed=7).fingerprint
    assert augmented.collate([])["__key__"] == []
    assert augmented[-1].__key__ == "s/023"

    class Newer(Augmenting):
        version = "2"

    assert EncodedDataset.open(crude, Newer(), seed=7).fingerprint != augmented.fingerprint


class Yielding(NumberEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:  # type: ignore[override]
        yield sample


class Hidden(NumberEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return (one for one in [sample, sample])


class Grouped(NumberEncoder):
    @stateless
    def batch_group_criterion(self, sample: Any) -> Any:
        return 1, 2


def test_encoders_that_are_not_fixed_are_refused(crude: Path) -> None:
    for kind, why in ((Yielding, "encode_sample is a generator"), (Grouped, "batch_group_criterion groups samples")):
        with pytest.raises(ConfigError, match=f"{why}.*a measured one.*a framed one"):
            EncodedDataset.open(crude, kind())
    with pytest.raises(ConfigError, match="returned 2 outputs for sample 1 of"):
        EncodedDataset.open(crude, Hidden())[1]


def test_wrong_arguments(crude: Path, crude_samples: MediaDataset) -> None:
    with pytest.raises(ConfigError, match="expected a MediaDataset"):
        EncodedDataset([1], NumberEncoder())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected an ErrorPolicy"):
        EncodedDataset(crude_samples, NumberEncoder(), errors="raise")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a TaskEncoder"):
        EncodedDataset.open(crude, None)  # type: ignore[arg-type]
    encoder = DefaultTaskEncoder()  # type: ignore[var-annotated]
    encoder.cookers = [Cooker(cook_number, {"kind": "other"})]
    with pytest.raises(ConfigError, match="no cooker matches"):
        EncodedDataset(crude_samples, encoder)


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
    with pytest.raises(ConfigError, match=r"overrides cook_crude_sample, and .* has a cooker already"):
        EncodedDataset(cooked, encoder)
    assert EncodedDataset(cooked, NumberEncoder())[2].length == 4


def test_crude_samples_without_cookers_are_encoded_as_they_are(crude_samples: MediaDataset) -> None:
    batch = Run.validation(EncodedDataset(crude_samples, TaskEncoder()), global_batch_size=2).step(0)
    assert batch["json"]["number"] == [0, 1]
    assert batch["npy"].shape == (2, 3)


def test_faults_are_raised_by_default(flawed: Path) -> None:
    dataset = EncodedDataset.open(flawed, NumberEncoder())
    with pytest.raises(DecodeError, match=r"000\.tar: key 's/003': part 'json'"):
        dataset[3]
    assert dataset.faults.summary()["counts"][0]["kind"] == "DecodeError"
    assert dataset[2].__key__ == "s/002"


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
    stood_in = [
        key
        for batch in wanted
        for key in batch["__restore_key__"]
        if key[-1] != int(dataset.indices(np.array([key[1]]))[0])
    ]
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
    with pytest.raises(ConfigError, match=r"SkipSample in encode_sample.*key 's/001'.*measured or framed"):
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
    error: Any = None

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.number == 5:
            raise self.error
        return sample


class Unmarked(Failing):
    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


@pytest.mark.parametrize(
    ("error", "kind", "is_made_good"),
    [
        (KeyError("x"), Failing, True),
        (KeyError("x"), Unmarked, False),
        (SampleError(None, "x"), Unmarked, True),
        (NameError("x"), Failing, False),
        (MemoryError(), Failing, False),
        (OSError("x"), Failing, False),
        (TimeoutError(), Failing, False),
        (StoreError("x"), Failing, False),
        (ConfigError("x"), Failing, False),
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
    with pytest.raises(ConfigError, match="SkipSample in encode_batch of NoBatch: the batch that begins with"):
        run.step(0)
    encoder.error = KeyError("x")
    with pytest.raises(KeyError) as found:
        run.step(0)
    assert "in encode_batch of NoBatch" in found.value.__notes__[0]


def test_a_source_without_a_whole_sample_ends(make_crude: Any, tmp_path: Path) -> None:
    root = make_crude(tmp_path / "bad", 6, range(6))
    policy = ErrorPolicy(on_error="substitute", tolerance=20)
    with pytest.raises(SampleError, match=r"20 failed in a row \(20 in read\), the last one with DecodeError"):
        EncodedDataset.open(root, NumberEncoder(), errors=policy)[0]


class NoKey(TaskEncoder[Any, Any, Any, Any]):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample["npy"]


class NoFields(TaskEncoder[Any, Any, Any, Any]):
    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return 3


def test_outputs_that_a_loader_cannot_take(crude_samples: MediaDataset) -> None:
    with pytest.raises(ConfigError, match="NoKey returned a ndarray without __restore_key__"):
        EncodedDataset(crude_samples, NoKey())[0]
    dataset = EncodedDataset(crude_samples, NoFields())
    with pytest.raises(ConfigError, match=r"the batch that NoFields returned has no fields, .* int has no fields"):
        dataset.collate([dataset[0]])
    with pytest.raises(ConfigError, match="has no restore key of EncodedDataset"):
        dataset.collate([{}])


class Unreachable(NumberEncoder):
    """Meets a time-out some times."""

    times = asked = 0

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.asked += 1
        if self.asked <= self.times:
            raise TimeoutError("the server is silent")
        return super().encode_sample(sample)


class UnreachableUnmarked(Unreachable):
    """May have changed before it failed."""

    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


def test_time_outs_are_tried_again_and_never_substituted(crude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("headrace.datasets.media.policed.sleep", waited.append)
    encoder = Unreachable()
    encoder.times = 3
    dataset = EncodedDataset.open(crude, encoder, errors=SUBSTITUTE)
    wanted = EncodedDataset.open(crude, NumberEncoder(), errors=SUBSTITUTE)
    assert (dataset[5].__key__, dataset.faults.total) == (wanted[5].__key__, 0)
    assert (waited, dataset.outputs.num_retries) == ([0.1, 0.2, 0.4], 3)
    encoder.asked, encoder.times = 0, 99
    run = Run(dataset, global_batch_size=4, order=Order(kind="none"))
    with pytest.raises(TimeoutError, match="silent") as found:
        run.step(1)
    assert found.value.__notes__[-2:] == ["it was tried 5 times", "at position 4 of the run, step 1"]
    assert (encoder.asked, dataset.faults.total) == (5, 0)
    unmarked = UnreachableUnmarked()
    unmarked.times = 1
    with pytest.raises(TimeoutError):
        EncodedDataset.open(crude, unmarked, errors=SUBSTITUTE)[5]
    with pytest.raises(ConfigError, match="attempts is 0"):
        ErrorPolicy(attempts=0)


class FindsNothing(NumberEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample if sample.number != 5 else next(iter([]))


class Forgets(NumberEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample if sample.number != 5 else None


def test_next_that_finds_nothing_is_a_fault_of_its_sample(crude: Path) -> None:
    dataset = EncodedDataset.open(crude, FindsNothing())
    with pytest.raises(RuntimeError, match=r"StopIteration: next\(\) found nothing") as found:
        list(dataset)
    assert found.value.__notes__ == [f"in encode_sample of FindsNothing: sample 5 of {crude}"]
    assert isinstance(found.value.__cause__, StopIteration)
    dataset = EncodedDataset.open(crude, FindsNothing(), errors=SUBSTITUTE)
    assert len(list(dataset)) == 24
    assert [(one.index, one.kind) for one in dataset.faults.faults] == [(5, "RuntimeError")]


def test_a_hook_that_returns_none_says_so(crude: Path) -> None:
    with pytest.raises(ConfigError, match=r"Forgets.encode_sample returned None; .*SkipSample") as found:
        list(EncodedDataset.open(crude, Forgets()))
    assert found.value.__notes__ == [f"in encode_sample of Forgets: sample 5 of {crude}"]
