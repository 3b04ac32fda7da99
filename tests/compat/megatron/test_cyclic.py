"""Datasets around others, and what goes wrong in Megatron's and does not here, by the numbers of tests/interop."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    StateError,
    WindowDataset,
    open as open_store,
)
from headrace.compat.megatron import CyclicDataset, GPTBlend, GPTDataset, GPTMasks, IndexedDataset
from headrace.datasets import Dataset, FilledDataset, count_step
from headrace.loader import Ranks, Reading
from headrace.plan.megatron import GPTOrder, GPTSampling, order_samples
from plan.megatron import plainly

NONE = Order(kind="none")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 tokens, each another id: a sample of 5 tokens tells its number in the stream."""
    place = tmp_path_factory.mktemp("cyclic") / "x"
    corpora.write(place, np.split(np.arange(200, dtype=np.uint16), [3, 60, 61, 130]))
    return place


@pytest.fixture(scope="module")
def dataset(prefix: Path) -> GPTDataset:
    return GPTDataset(prefix, sequence_length=5, num_samples=39)


def loaders(run: Run, world_size: int, micro: int, threads: int = 1) -> list[Loader]:
    reading = Reading(num_threads=threads, pin_memory=False)
    return [
        Loader(run, micro_batch_size=micro, ranks=Ranks(rank, world_size), reading=reading)
        for rank in range(world_size)
    ]


@settings(max_examples=cases(10, 400), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 30), st.booleans())
def test_each_rank_is_fed_megatrons_micro_batches(
    dataset: GPTDataset, micro: int, ranks: int, steps: int, skipped: int, sharded: bool
) -> None:
    """From any ``consumed_samples`` on, over several epochs and with several micro-steps a step."""
    together = micro * ranks
    cyclic = CyclicDataset(dataset, micro_batch_size=micro, data_parallel_size=ranks, data_sharding=sharded)
    run = Run(cyclic, global_batch_size=steps * together, order=NONE)
    consumed = skipped * together
    active = len(dataset) - len(dataset) % together
    for rank, loader in enumerate(loaders(run, ranks, micro)):
        loader.start_at(consumed, allow_repeats=True)
        expected: list[list[int]] = []
        at = consumed
        while len(expected) < 25:
            left = (active - at % active) // together
            expected += plainly.cyclic_batches(len(dataset), at, rank, ranks, micro, sharded=sharded)[:left]
            at += left * together
        for samples, batch in zip(expected, loader, strict=False):
            wanted = dataset.read(np.array(samples))
            assert batch["tokens"].tolist() == wanted["tokens"].tolist()
            assert batch["labels"].tolist() == wanted["labels"].tolist()
        assert loader.position == consumed + len(expected) * together


@pytest.mark.parametrize("sharded", [True, False])
def test_other_ranks_get_the_same_steps_and_resume_anywhere(dataset: GPTDataset, sharded: bool) -> None:
    """Megatron's sampler refuses most of these changes in the middle of an epoch, and else goes on in another order."""
    cyclic = CyclicDataset(dataset, micro_batch_size=3, data_parallel_size=2, data_sharding=sharded)
    run = Run(cyclic, global_batch_size=12, order=NONE, samples=120)
    expected = {step: sorted(row[0] for row in run.step(step)["tokens"].tolist()) for step in range(10)}
    seen: dict[int, list[int]] = {step: [] for step in expected}
    state = None
    for world_size, micro, threads, micro_steps in ((2, 3, 1, 3), (5, 2, 0, 1), (1, 4, 2, 4), (3, 1, 1, 99)):
        crew = loaders(run, world_size, micro, threads)
        for loader in crew:
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, micro_steps):
                for position, tokens in zip(batch["sample_positions"].tolist(), batch["tokens"].tolist(), strict=True):
                    seen[run.schedule.step_of(position)].append(tokens[0])
        state = crew[0].state_dict()
        assert all(loader.state_dict() == state for loader in crew)
    assert {step: sorted(rows) for step, rows in seen.items()} == expected


def test_a_longer_run_keeps_its_beginning(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    short, longer = (Run(cyclic, global_batch_size=4, order=NONE, samples=samples) for samples in (40, 400))
    loader = Loader(short, micro_batch_size=2)
    begun = [row for batch in loader for row in batch["tokens"].tolist()]
    assert pickle.loads(pickle.dumps(cyclic))[50]["tokens"].tolist() == cyclic[50]["tokens"].tolist()
    assert cyclic.describe().startswith("Megatron's cyclic order for 2 ranks, each with its own part")
    further = Loader(longer, micro_batch_size=2)
    further.load_state_dict(loader.state_dict())
    rest = [row for batch in further for row in batch["tokens"].tolist()]
    assert begun + rest == [row for batch in Loader(longer, micro_batch_size=2) for row in batch["tokens"].tolist()]


@pytest.mark.parametrize("kind", ["blend", "windows", "packs"])
def test_over_any_dataset(prefix: Path, dataset: GPTDataset, kind: str) -> None:
    store = open_store(prefix)
    inner: Dataset = {
        "blend": lambda: GPTBlend([dataset, GPTDataset(prefix, sequence_length=5, seed=1)]),
        "windows": lambda: WindowDataset(store, seq_len=5),
        "packs": lambda: PackedSequenceDataset(store, Packing(seq_len=20, over_long="split"), padding_idx=0),
    }[kind]()
    cyclic = CyclicDataset(inner, micro_batch_size=2, data_parallel_size=1)
    assert cyclic.traits.is_packed == inner.traits.is_packed
    assert cyclic.num_tokens_per_sample == inner.num_tokens_per_sample
    run = Run(cyclic, global_batch_size=2, order=NONE, samples=2 * len(inner))
    positions = np.arange(2 * len(inner))
    samples = cyclic.order.locate(positions)
    expected = inner.read(inner.locate(samples))
    found = list(iter(Loader(run, micro_batch_size=2)))
    for name in (*inner.fields, *inner.constants):
        assert np.array_equal(np.concatenate([batch[name].numpy() for batch in found]), expected[name]), name
    if cyclic.traits.is_packed:
        counted = inner.count(inner.locate(samples[:2]))
        assert count_step(run, 0) == {name: int(column.sum()) for name, column in counted._asdict().items()}


def test_recipe_tells_every_option_apart(prefix: Path, dataset: GPTDataset) -> None:
    def make(inner: Dataset, **changes: Any) -> CyclicDataset:
        return CyclicDataset(inner, **{"micro_batch_size": 2, "data_parallel_size": 2, **changes})

    changes = [{}, {"micro_batch_size": 1}, {"data_parallel_size": 1}, {"data_sharding": False}]
    every = [make(dataset, **change) for change in changes]
    every.append(make(GPTDataset(prefix, sequence_length=5, num_samples=39, seed=5)))
    assert len({one.fingerprint for one in every}) == len(every)
    first, second = (Run(one, global_batch_size=4, order=NONE) for one in every[:2])
    state = Loader(first, micro_batch_size=1, position=4).state_dict()
    with pytest.raises(StateError, match=r"micro_batch_size.*1.*2"):
        Loader(second, micro_batch_size=1).load_state_dict(state, recipe=first.recipe)


def test_what_is_refused(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    mix = {"a": cyclic, "b": dataset}
    for make, named in (
        (lambda: Run(cyclic, global_batch_size=4), r"CyclicDataset.*'full'"),
        (lambda: Run(cyclic, global_batch_size=4, order=NONE, epochs=1), "instead"),
        (lambda: Run(Blend(mix, weights={"a": 1, "b": 1}), global_batch_size=4), "order"),
        (lambda: CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=20), r"20.*2"),
        (lambda: CyclicDataset(dataset, micro_batch_size=2.5, data_parallel_size=2), r"2\.5"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=named):
            make()


STEP = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpus:
    return corpora.make(tmp_path_factory.mktemp("filled"), 0, 60)


@pytest.fixture
def masked(corpus: corpora.Corpus) -> GPTDataset:
    found = GPTDataset(corpus.store.path, sequence_length=30, masks=GPTMasks(eod=3, eod_mask_loss=True))
    assert len(found) % STEP not in (0, 1)
    return found


def test_all_samples_and_then_copies_without_loss(masked: GPTDataset) -> None:
    filled = FilledDataset(masked, multiple_of=STEP)
    assert len(filled) % STEP == 0 < len(filled) - len(masked) < STEP
    assert len(FilledDataset(masked, multiple_of=len(masked))) == len(masked), "where it fits nothing is added"
    assert (filled.fields, filled.constants.keys()) == (masked.fields, masked.constants.keys())
    assert filled.num_tokens_per_sample * len(filled) == pytest.approx(30 * len(masked))
    for i in range(len(filled)):
        expected = masked[i] if i < len(masked) else {**masked[0], "loss_mask": np.zeros(30)}
        assert {name: v.tolist() for name, v in filled[i].items()} == {n: v.tolist() for n, v in expected.items()}
    assert f"{len(filled) - len(masked)} without loss" in filled.describe()
    assert filled.fingerprint != masked.fingerprint
    assert filled.fingerprint != FilledDataset(masked, multiple_of=5).fingerprint
    rows = np.array([len(filled) - 1, 3, len(filled) - 2, 0])
    out = {name: np.zeros((9, *shape), dtype) for name, (shape, dtype) in filled.fields.items()}
    filled.read_into(filled.locate(rows), out, np.array([8, 2, 5, 1]))
    assert [bool(mask.any()) for mask in out["loss_mask"]] == [False, True, True, *[False] * 6]
    assert out["tokens"][[8, 2, 5, 1]].tolist() == [masked[i]["tokens"].tolist() for i in (0, 3, 0, 0)]


def test_a_blend_is_filled_up_too(masked: GPTDataset) -> None:
    blend = GPTBlend([masked, masked])
    filled = FilledDataset(blend, multiple_of=7)
    last = filled[len(filled) - 1]
    assert (int(last["dataset_id"]), float(last["loss_mask"].sum())) == (int(blend[0]["dataset_id"]), 0.0)


def test_what_cannot_be_filled_up(corpus: corpora.Corpus, masked: GPTDataset) -> None:
    packed = PackedSequenceDataset(corpus.store, Packing(seq_len=64, strategy="best_fit"))
    cyclic = CyclicDataset(masked, micro_batch_size=2, data_parallel_size=2)
    for data, multiple_of, named in (
        (WindowDataset(corpus.store, seq_len=8), 4, r"loss_mask.*WindowDataset.*input_ids"),
        (packed, 4, "PackedSequenceDataset"),
        (cyclic, 4, "CyclicDataset"),
        (masked, 0, "0"),
    ):
        with pytest.raises(ConfigError, match=named):
            FilledDataset(data, multiple_of=multiple_of)


def part_kept_whole(prefix: Path, size: int, **options: Any) -> GPTDataset:
    """The validation part of a corpus that is all of it, the rest shorter than a sample too."""
    return GPTDataset(
        prefix,
        sequence_length=size,
        split="0,1,0",
        split_part="valid",
        drop_last_partial_validation_sequence=False,
        masks=GPTMasks(pad=-1),
        **options,
    )


def test_b1_the_number_of_samples_is_exact(tmp_path: Path) -> None:
    """2^24 + 2 tokens: float32 loses the last of them, and with it a sample; by option it is lost here too."""
    tokens = np.full((1 << 24) + 2, 7, dtype=np.uint8)
    tokens[-1] = 9
    corpora.write(tmp_path / "x", [tokens], np.uint8)
    exact, theirs = (part_kept_whole(tmp_path / "x", 8192, float32_ceil=flag) for flag in (False, True))
    assert (len(exact), len(theirs)) == (2049, 2048)
    assert [len(dataset.sample_index) - 1 for dataset in (exact, theirs)] == [2049, 2048]
    assert len({exact.fingerprint, theirs.fingerprint}) == 2
    last = exact[int(np.flatnonzero(exact.shuffle_index == 2048)[0])]
    assert last["labels"][:2].tolist() == [9, 0]
    assert last["loss_mask"].sum() == 1
    # Other parts drop their rest: one set of options does for all of them.
    train = GPTDataset(
        tmp_path / "x", sequence_length=8192, drop_last_partial_validation_sequence=False, float32_ceil=True
    )
    assert len(train) == 2048
    with pytest.raises(ConfigError, match="drop_last_partial=False"):
        GPTDataset(tmp_path / "x", sequence_length=8192, split="0,1,0", split_part="valid", float32_ceil=True)


def test_b2_a_last_sequence_without_tokens_ends_a_partial_sample(tmp_path: Path) -> None:
    """Megatron's offset is -1 then, which fails."""
    corpora.write(tmp_path / "x", [np.array([1, 2, 3, 4]), np.array([], dtype=int), np.array([5, 6, 7])])
    ended = [
        dataset
        for dataset in (part_kept_whole(tmp_path / "x", 4, seed=seed) for seed in range(12))
        if dataset.document_index[-1] == 1
    ]
    assert ended
    for dataset in ended:
        assert len(dataset) == 2
        trained = sorted(
            label for item in (dataset[0], dataset[1]) for label in item["labels"][item["loss_mask"] == 1].tolist()
        )
        first = dataset.store.document(int(dataset.document_index[0]))[0]
        assert trained == sorted({*range(1, 8)} - {int(first)})


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_b3_ids_are_read_in_the_width_that_the_index_says(tmp_path: Path, dtype: type) -> None:
    """A vocabulary of 65,500 to 65,536 is written in 4 bytes, and Megatron's fast path reads it in 2."""
    tokens = [10, 20, 30, 65_535, 40]
    corpora.write(tmp_path / "x", [np.array(tokens)], dtype)
    dataset = GPTDataset(tmp_path / "x", sequence_length=4)
    assert dataset[0]["tokens"].tolist() == tokens[:4]
    assert dataset[0]["labels"].tolist() == tokens[1:]
    assert IndexedDataset(tmp_path / "x").dtype == dtype


def test_b8_sequences_are_counted_in_64_bits() -> None:
    sampling = GPTSampling(sequence_length=4, num_samples=None, seed=0)
    last = GPTOrder(np.array([5, 5], np.int32), sampling, first_sequence=2**31 - 2)
    assert sorted(set(last.locate(np.arange(2)).sequences.tolist())) == [2**31 - 2, 2**31 - 1]
    for dialect in ("core", "aleph_alpha"):
        many = GPTSampling(sequence_length=4, num_samples=None, seed=0, dialect=dialect)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"2\^31.*2,147,483,648"):
            order_samples(np.broadcast_to(np.int8(1), 1 << 31), many)


@pytest.mark.parametrize("last_epoch", ["auto", "together", "separate"])
def test_b10_one_generator_draws_all_epochs(tmp_path: Path, last_epoch: Any) -> None:
    """The documentation of Megatron speaks of a seed for each epoch; its code has one, drawn from in this order."""
    corpora.write(tmp_path / "x", [np.arange(size) for size in (20, 50, 60, 30, 100, 5)])
    dataset = GPTDataset(tmp_path / "x", sequence_length=30, num_samples=12, seed=7, last_epoch=last_epoch)
    rng = np.random.RandomState(7)
    apart = last_epoch != "together"
    documents = [np.arange(6), np.arange(6)] if apart else [np.tile(np.arange(6), 2)]
    samples = [np.arange(8), np.arange(8, 17)] if apart else [np.arange(17)]
    for numbers in (*documents, *samples):
        rng.shuffle(numbers)
    assert dataset.document_index.tolist() == np.concatenate(documents).tolist()
    assert dataset.shuffle_index.tolist() == np.concatenate(samples).tolist()
    assert dataset.order.num_epochs == 2
