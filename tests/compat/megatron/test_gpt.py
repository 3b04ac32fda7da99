"""Samples of `GPTDataset` against plain lists; megatron-core's own are in tests/interop."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
from counts import cases
from headrace import ConfigError, Loader, Order, Run, StateError
from headrace.compat.megatron.gpt import GPTDataset, GPTMasks, document_borders
from headrace.loader import Ranks, Reading
from headrace.plan.megatron import ReorderWarning

EOD = 1
SIZES = [7, 0, 12, 1, 30, 3, 0, 9, 16, 2]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences of the ids 0 to 5, so that the end of a document and the pad occur often."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("gpt") / "corpus"
    corpora.write(place, [rng.integers(0, 6, size).astype(np.uint16) for size in SIZES])
    return place


def sequences(dataset: GPTDataset) -> list[list[int]]:
    return [dataset.store.document(int(number)).tolist() for number in dataset.document_index]


def plain(dataset: GPTDataset, i: int) -> tuple[list[int], list[int]]:
    """The S or S + 1 tokens of sample i, and the lengths of the sequences' parts in it."""
    width = dataset.sequence_length + dataset.sampling.add_extra_token
    begin = int(dataset.shuffle_index[i]) * dataset.sequence_length
    numbered = [(token, number) for number, some in enumerate(sequences(dataset)) for token in some]
    part = numbered[begin : begin + width]
    return [token for token, _ in part], [len(list(some)) for _, some in itertools.groupby(n for _, n in part)]


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    extra = draw(st.booleans())
    flags = {name: draw(st.booleans()) for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask")}
    masks = GPTMasks(
        eod=EOD,
        pad=draw(st.sampled_from([-1, 4])),
        create_attention_mask=flags["reset_attention_mask"] or draw(st.booleans()),
        **flags,
    )
    if draw(st.integers(0, 3)) == 0:
        masks = GPTMasks(inter_document_masking=True)
    return {
        "sequence_length": draw(st.integers(1, 20)),
        "num_samples": draw(st.sampled_from([None, 3, 17, 40])),
        "seed": draw(st.integers(0, 9)),
        "add_extra_token_to_sequence": extra,
        "masks": masks,
    }


@settings(max_examples=cases(24, 1000), deadline=None)
@given(options(), st.booleans())
def test_samples_are_slices_of_the_shuffled_sequences(prefix: Path, some: dict[str, Any], valid: bool) -> None:
    split = {"split": "0,1,0", "split_part": "valid", "drop_last_partial_validation_sequence": False} if valid else {}
    dataset = GPTDataset(prefix, **some, **split)
    masks, size = dataset.masks, dataset.sequence_length
    assert len(dataset) >= (some["num_samples"] or 1)
    for i in {
        0,
        len(dataset) // 2,
        len(dataset) - 1,
        *map(int, np.flatnonzero(dataset.shuffle_index == len(dataset) - 1)),
    }:
        text, parts = plain(dataset, i)
        width = size + dataset.sampling.add_extra_token
        assert len(text) == width or (valid and dataset.shuffle_index[i] == len(dataset) - 1)
        text += [masks.pad] * (width - len(text))
        tokens = text[:size]
        labels = [*text[1:], masks.pad][:size]
        begins = [0] * size
        for column in range(1, size):
            begins[column] = column if text[column - 1] == EOD else begins[column - 1]
        item = dataset[i]
        loss = [
            0.0 if label == masks.pad or (masks.eod_mask_loss and token == EOD) else 1.0
            for token, label in zip(tokens, labels, strict=True)
        ]
        assert item["loss_mask"].tolist() == loss
        assert item["tokens"].tolist() == [0 if token == masks.pad else token for token in tokens]
        assert item["labels"].tolist() == [0 if label == masks.pad else label for label in labels]
        if masks.inter_document_masking:
            borders = [0, *[border for border in itertools.accumulate(parts) if border < size]]
            borders = borders if len(parts) > 1 else [0]
            borders = [border for border in dict.fromkeys(borders) if border < sum(parts)]
            assert item["cu_seqlens"].tolist() == borders + [size] * (size + 1 - len(borders))
            ends = [*borders[1:], size]
            assert item["position_ids"].tolist() == [
                column - begin for begin, end in zip(borders, ends, strict=True) for column in range(begin, end)
            ]
            assert item["max_seqlen"] == max(end - begin for begin, end in zip(borders, ends, strict=True))
            continue
        expected = [column - begins[column] if masks.reset_position_ids else column for column in range(size)]
        assert item["position_ids"].tolist() == expected
        assert ("attention_mask" in item) == masks.create_attention_mask
        if masks.create_attention_mask:
            first = begins if masks.reset_attention_mask else [0] * size
            hidden = [[not first[row] <= column <= row for column in range(size)] for row in range(size)]
            assert item["attention_mask"].tolist() == [hidden]


def test_each_part_has_its_own_sequences_and_only_validation_keeps_its_rest(tmp_path: Path) -> None:
    """Every token of the corpus is another one, so that a sample tells where it is from."""
    sizes = [9, 4, 11, 8, 8, 13]
    corpora.write(tmp_path / "x", np.split(np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)[:-1]))
    for number, part in enumerate(("train", "valid", "test")):
        dataset = GPTDataset(
            tmp_path / "x",
            sequence_length=4,
            split="1,1,1",
            split_part=part,  # type: ignore[arg-type]
            drop_last_partial_validation_sequence=False,
            masks=GPTMasks(pad=-1),
        )
        mine = range(2 * number, 2 * number + 2)
        assert sorted(dataset.document_index.tolist()) == list(mine)
        begins = np.cumsum([0, *sizes])
        tokens = range(int(begins[mine.start]), int(begins[mine.stop]))
        assert len(dataset) == (-(-(len(tokens) - 1) // 4) if part == "valid" else (len(tokens) - 1) // 4)
        together = dataset.read(np.arange(len(dataset)))
        for i in range(len(dataset)):
            item = dataset[i]
            assert all(together[name][i].tolist() == values.tolist() for name, values in item.items())
            assert set(item["labels"][item["loss_mask"] == 1].tolist()) <= set(tokens)
        assert (together["loss_mask"] == 0).any() == (part == "valid")


def test_borders_skip_what_has_no_token() -> None:
    """Empty parts make no border, at the begin, in the middle and at the end; what is past S is cut."""
    borders, positions = document_borders(np.array([0, 5, 6]), np.array([0, 2, 0, 3, 1, 6]), 5)
    assert borders.tolist() == [[0, 2, 5, 5, 5, 5], [0, 5, 5, 5, 5, 5]]
    assert positions.tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_a_run_feeds_them_in_megatrons_order_and_resumes(prefix: Path) -> None:
    dataset = GPTDataset(prefix, sequence_length=6, num_samples=25)
    run = Run(dataset, global_batch_size=4, order=Order(kind="none"), samples=24)
    expected = [dataset[i]["tokens"].tolist() for i in range(24)]
    seen: dict[int, list[int]] = {}
    state = None
    for world_size, micro, steps in ((1, 2, 3), (3, 1, 2), (2, 2, 9)):
        loaders = [
            Loader(run, micro_batch_size=micro, ranks=Ranks(rank, world_size), reading=Reading(num_threads=1))
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
    assert [seen[i] for i in range(24)] == expected


def test_recipe_tells_every_option_apart(prefix: Path) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"num_samples": 20}, {"split": "2,1,1"}, {"add_extra_token_to_sequence": False},
        {"masks": GPTMasks(pad=4)}, {"masks": GPTMasks(eod=1, eod_mask_loss=True)}, {"dialect": "neox"},
        {"sequence_length": 5}, {"split": "1,1,0", "split_part": "valid"},
    ]  # fmt: skip
    prints = {GPTDataset(prefix, **{"sequence_length": 6, **change}).fingerprint for change in changes}
    assert len(prints) == len(changes)
    assert GPTDataset(prefix, sequence_length=6).fingerprint in prints


def test_a_longer_run_goes_on_only_in_the_same_order(prefix: Path) -> None:
    """Within an epoch border a state goes on; across it Megatron's order is another one, and the state is refused."""

    def run(num_samples: int) -> Run:
        dataset = GPTDataset(prefix, sequence_length=6, num_samples=num_samples)
        return Run(dataset, global_batch_size=2, order=Order(kind="none"), samples=num_samples)

    short = GPTDataset(prefix, sequence_length=6, num_samples=20)
    same = short.order.epochs.same_order
    assert 20 in same
    loader = Loader(run(20), micro_batch_size=2)
    first = [row for batch in itertools.islice(loader, 4) for row in batch["tokens"].tolist()]
    longer = Loader(run(same[-1]), micro_batch_size=2)
    longer.load_state_dict(loader.state_dict())
    rest = [row for batch in longer for row in batch["tokens"].tolist()]
    whole = [row for batch in Loader(run(same[-1]), micro_batch_size=2) for row in batch["tokens"].tolist()]
    assert first + rest == whole
    beyond = Loader(run(same[-1] + 1), micro_batch_size=2)
    with pytest.raises(StateError, match="separate_last_epoch: false here, true in the saved recipe"):
        beyond.load_state_dict(loader.state_dict(), recipe=loader.run.recipe)
    with pytest.warns(ReorderWarning):
        beyond.run.datasets[0].order.warn_if_extended_from(20)  # type: ignore[attr-defined]


def test_pickled_it_is_the_same(prefix: Path) -> None:
    dataset = GPTDataset(prefix, sequence_length=6, num_samples=20)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert again[7]["tokens"].tolist() == dataset[7]["tokens"].tolist()


def test_aleph_alpha_has_no_index_arrays(prefix: Path) -> None:
    dataset = GPTDataset(prefix, sequence_length=4, num_samples=8, dialect="aleph_alpha")
    assert dataset[0]["tokens"].shape == (4,)
    with pytest.raises(ConfigError, match="'aleph_alpha' has no shuffle_index"):
        _ = dataset.shuffle_index


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split_part": "dev"}, "split_part is 'dev'; allowed are 'train', 'valid', 'test'"),
        ({"split_part": "test"}, "gives nothing to 'test'"),
        ({"split": "9999,1", "split_part": "valid"}, "not enough for a sample of 6 tokens"),
        ({"sequence_length": 80}, "with 80 tokens: not enough for a sample of 80 tokens"),
        ({"sequence_length": 0}, "sequence_length is 0"),
    ],
)
def test_what_cannot_be_fed_is_refused(prefix: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GPTDataset(prefix, **{"sequence_length": 6, **wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"eod_mask_loss": True}, "need the id of eod"),
        ({"eod": 1, "reset_attention_mask": True}, "create_attention_mask=True"),
        ({"eod": 1, "inter_document_masking": True, "reset_position_ids": True}, "its own borders and positions"),
    ],
)
def test_masks_that_do_not_go_together(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GPTMasks(**wrong)


def test_one_line(prefix: Path) -> None:
    dataset = GPTDataset(prefix, sequence_length=6, num_samples=20)
    assert dataset.describe() == (
        "core order of Megatron, seed 1234: train of 1,0,0, samples of 6 tokens from 2 epochs"
    )
    assert "\n" not in repr(dataset)


class Tokens:
    """A tokenizer of Megatron's kind."""

    def __init__(self, **ids: object) -> None:
        self.__dict__.update(ids)


class RaisingPad(Tokens):
    @property
    def pad(self) -> int:
        raise NotImplementedError("this tokenizer has no pad")


@pytest.mark.parametrize(
    ("tokenizer", "pad"),
    [
        (Tokens(eod=3, pad=7), 7),
        (Tokens(eod=3), -1),
        (Tokens(eod=3, pad=None), -1),
        (Tokens(eod=3, pad=3), -1),
        (Tokens(eod=3, pad=7, eos=7), -1),
        (RaisingPad(eod=3), -1),
        (Tokens(eod=3, pad=7, special_tokens_dict={"pad_token": 7, "sep_token": 7}), -1),
        (Tokens(eod=3, pad=3, special_tokens_dict={"pad_token": 3, "sep_token": 7}), 3),
        (Tokens(eod=3, pad=3, special_tokens_dict={}), -1),
    ],
)
def test_the_pad_of_a_tokenizer(tokenizer: object, pad: int) -> None:
    """Facts of megatron-core 0.16.1; tests/interop compares the samples live."""
    assert GPTMasks.of(tokenizer) == GPTMasks(eod=3, pad=pad)
    own = getattr(tokenizer, "pad", None) if not isinstance(tokenizer, RaisingPad) else None
    ambiguous = GPTMasks.of(tokenizer, allow_ambiguous_pad_tokens=True, eod_mask_loss=True)
    assert ambiguous == GPTMasks(eod=3, pad=-1 if own is None else own, eod_mask_loss=True)


def test_a_tokenizer_without_an_end_of_document() -> None:
    assert GPTMasks.of(Tokens(pad=7)) == GPTMasks(pad=7)
    with pytest.raises(ConfigError, match="need the id of eod"):
        GPTMasks.of(Tokens(pad=7), eod_mask_loss=True)
    with pytest.raises(ConfigError, match=r"pad is None.*GPTMasks.of\(tokenizer\)"):
        GPTMasks(pad=None)  # type: ignore[arg-type]
