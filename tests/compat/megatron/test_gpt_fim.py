"""`GPTFIMDataset`: the same for every rank, thread, worker and resume, and `GPTDataset`'s fields of the new tokens."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import fim_toy
from fim_toy import EOD, MIDDLE, PAD, PREFIX, SUFFIX
from headrace import ConfigError, Loader, Order, Run, StateError
from headrace.compat.megatron import FillInTheMiddle, GPTBlend, GPTDataset, GPTFIMDataset, GPTMasks
from headrace.loader import Ranks, Reading
from headrace.plan.keys import derive
from headrace.plan.megatron import KeyedDraws, fill_in_the_middle

FIM = FillInTheMiddle(tokens=fim_toy.tokens(), codec=fim_toy.CODEC, rate=0.8)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of the toy's words, each with an end; nearly half are empty, so that samples get shorter, too."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("fim") / "corpus"
    documents = [np.append(rng.integers(0, 7, size), EOD) for size in rng.integers(0, 30, 80) * (rng.random(80) > 0.4)]
    corpora.write(place, documents)
    return place


def samples(prefix: Path, **options: Any) -> GPTDataset:
    return GPTDataset(prefix, **{"sequence_length": 24, "num_samples": 60, **options})


def texts(dataset: GPTDataset | GPTFIMDataset, i: int) -> list[int]:
    """The S + 1 tokens of a sample."""
    item = dataset[i]
    return [*item["tokens"].tolist(), int(item["labels"][-1])]


def test_a_sample_is_that_of_the_dataset_rearranged(prefix: Path) -> None:
    plain = samples(prefix)
    dataset = GPTFIMDataset(plain, FIM)
    assert (len(dataset), dataset.fields, dataset.constants.keys()) == (
        len(plain),
        plain.fields,
        plain.constants.keys(),
    )
    assert dataset.num_tokens_per_sample == 24
    changed = 0
    for i in range(len(dataset)):
        before, after = texts(plain, i), texts(dataset, i)
        assert len(after) == 25
        changed += after != before
        draws = KeyedDraws(derive(dataset._key, i))
        assert after == fill_in_the_middle(np.array(before), FIM, draws).tolist()
        if PREFIX not in after:
            # Ends that are dropped leave room for pads; words stay in order.
            assert [t for t in after if t < EOD] == [t for t in before if t < EOD]
        assert dataset[i]["labels"][:-1].tolist() == after[1:24]
    assert 0.7 * len(dataset) < changed <= len(dataset)


def test_rate_zero_is_the_dataset(prefix: Path) -> None:
    masks = GPTMasks(eod=EOD, eod_mask_loss=True, reset_position_ids=True, create_attention_mask=True)
    plain = samples(prefix, masks=masks)
    dataset = GPTFIMDataset(plain, FillInTheMiddle(tokens=fim_toy.tokens(), rate=0.0))
    for i in range(len(plain)):
        assert {name: v.tolist() for name, v in dataset[i].items()} == {n: v.tolist() for n, v in plain[i].items()}


def test_masks_are_of_the_new_tokens(prefix: Path) -> None:
    masks = GPTMasks(eod=EOD, pad=PAD, eod_mask_loss=True, reset_position_ids=True)
    dataset = GPTFIMDataset(samples(prefix, masks=masks), FIM)
    bare = GPTFIMDataset(samples(prefix), FIM)
    pads = 0
    for i in range(len(dataset)):
        text, item = texts(bare, i), dataset[i]
        pads += text.count(PAD)
        expected = [float(label != PAD and token != EOD) for token, label in itertools.pairwise(text)]
        assert item["loss_mask"].tolist() == expected
        assert item["tokens"].tolist() == [0 if token == PAD else token for token in text[:-1]]
        positions = list(itertools.accumulate(text[:23], lambda at, token: 0 if token == EOD else at + 1, initial=0))
        assert item["position_ids"].tolist() == positions
    assert pads, "the case occurs"


def test_a_partial_sample_is_rearranged_and_then_filled_up(prefix: Path) -> None:
    """The pads of the dataset are behind the tokens, whatever became of these."""
    options = {"split": "0,1,0", "split_part": "valid", "num_samples": None, "sequence_length": 46}
    masks = GPTMasks(pad=31)
    plain = samples(prefix, drop_last_partial_validation_sequence=False, masks=masks, **options)
    dataset = GPTFIMDataset(plain, FIM)
    [partial] = np.flatnonzero(plain.shuffle_index == len(plain) - 1).tolist()
    count = int(plain.order.locate(np.array([partial])).num_tokens[0])
    assert 1 < count < 46
    assert dataset[partial]["loss_mask"].tolist() == plain[partial]["loss_mask"].tolist()
    assert set(dataset[partial]["tokens"][count:].tolist()) == {0}
    whole = dataset.read(np.arange(len(dataset)))
    assert whole["tokens"][partial].tolist() == dataset[partial]["tokens"].tolist()


def test_ranks_resume_threads_and_workers_change_nothing(prefix: Path) -> None:
    dataset = GPTFIMDataset(samples(prefix), FIM)
    run = Run(dataset, global_batch_size=6, order=Order(kind="none"), samples=48)
    expected = [dataset[i]["tokens"].tolist() for i in range(48)]
    seen: dict[int, list[int]] = {}
    state = None
    plans = [(1, 2, 3, Reading(num_threads=1)), (3, 1, 2, Reading(num_threads=3)), (2, 3, 9, Reading(num_threads=2))]
    for world_size, micro, steps, reading in plans:
        loaders = [
            Loader(run, micro_batch_size=micro, ranks=Ranks(rank, world_size), reading=reading)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, steps):
                for position, tokens in zip(batch["sample_positions"].tolist(), batch["tokens"].tolist(), strict=True):
                    assert position not in seen
                    seen[position] = tokens
        state = loaders[0].state_dict()
    assert [seen[i] for i in range(48)] == expected
    assert [run.step(3)["tokens"][row].tolist() for row in range(6)] == expected[18:24]


def test_pickled_it_is_the_same(prefix: Path) -> None:
    dataset = GPTFIMDataset(samples(prefix), FIM)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert texts(again, 11) == texts(dataset, 11)


def test_samples_do_not_draw_alike(prefix: Path) -> None:
    """Nor do seeds, parts and epochs: about half of the samples are chosen in each, and not the same half."""
    half = FillInTheMiddle(tokens=fim_toy.tokens(), rate=0.5)
    options = {"split": "1,1,0", "num_samples": 150}
    chosen = [
        [PREFIX in texts(GPTFIMDataset(samples(prefix, split_part=part, **options), fim), i) for i in range(150)]
        for fim, part in (
            (half, "train"),
            (FillInTheMiddle(tokens=fim_toy.tokens(), rate=0.5, seed=1), "train"),
            (half, "valid"),
        )
    ]
    for one, other in itertools.combinations(chosen, 2):
        assert 0.25 < np.mean(np.array(one) != other) < 0.75
    assert len({KeyedDraws(key).cuts(1 << 40) for key in range(100)}) == 100


def test_in_a_blend(prefix: Path) -> None:
    parts = [GPTFIMDataset(samples(prefix, seed=seed), FIM) for seed in (1, 2)]
    blend = GPTBlend(parts, weights=[1, 3], size=40)
    for i in range(40):
        source, number = int(blend.dataset_index[i]), int(blend.dataset_sample_index[i])
        assert blend[i]["tokens"].tolist() == parts[source][number]["tokens"].tolist()


def test_recipe_tells_every_option_apart(prefix: Path) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"rate": 0.1}, {"spm_rate": 0.1}, {"seed": 1}, {"codec": None}, {"no_prefix": "a"},
        {"tokens": fim_toy.tokens(split=True), "fragment_rate": 0.5},
        {"tokens": fim_toy.tokens(split=True), "fragment_rate": 0.6},
        {"codec": fim_toy.TextCodec(encode=fim_toy.encode, decode=fim_toy.decode, name="another")},
    ]  # fmt: skip
    plain = samples(prefix)
    base = {"tokens": fim_toy.tokens(), "codec": fim_toy.CODEC}
    made = [GPTFIMDataset(plain, FillInTheMiddle(**{**base, **change})) for change in changes]
    assert len({dataset.fingerprint for dataset in made}) == len(changes)
    assert plain.fingerprint not in {dataset.fingerprint for dataset in made}
    runs = [Run(data, global_batch_size=2, order=Order(kind="none")) for data in made[:2]]
    loaders = [Loader(run, micro_batch_size=2, position=2) for run in runs]
    with pytest.raises(StateError, match=r"rate: 0\.1 here, 0\.5 in the saved recipe"):
        loaders[1].load_state_dict(loaders[0].state_dict(), recipe=loaders[0].run.recipe)


def test_what_does_not_go_together(prefix: Path) -> None:
    with pytest.raises(ConfigError, match="inter_document_masking separates documents where they were"):
        GPTFIMDataset(samples(prefix, masks=GPTMasks(inter_document_masking=True)), FIM)
    with pytest.raises(ConfigError, match="expected a GPTDataset"):
        GPTFIMDataset(str(prefix), FIM)  # type: ignore[arg-type]


def test_one_line(prefix: Path) -> None:
    dataset = GPTFIMDataset(samples(prefix), FIM)
    assert dataset.describe().startswith("fill in the middle of 0.8 of documents, between characters: core order of ")
    assert "between tokens" in GPTFIMDataset(samples(prefix), FillInTheMiddle(tokens=fim_toy.tokens())).describe()
    assert "\n" not in repr(dataset)


def test_marks_stand_in_their_order(prefix: Path) -> None:
    """In every sample, as far as it was not cut: prefix, suffix, middle."""
    dataset = GPTFIMDataset(samples(prefix), FIM)
    seen = 0
    for i in range(len(dataset)):
        marks = [token for token in texts(dataset, i) if token in (PREFIX, SUFFIX, MIDDLE)]
        expected = itertools.islice(itertools.cycle((PREFIX, SUFFIX, MIDDLE)), len(marks))
        assert marks == list(expected)
        seen += len(marks)
    assert seen > 100
