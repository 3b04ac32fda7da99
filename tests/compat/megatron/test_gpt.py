"""Samples of `GPTDataset`, with fill-in-the-middle and of mock data, against plain lists; see tests/interop too."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import fim_toy
from counts import cases
from headrace import ConfigError, Loader, Order, Run, StateError
from headrace.compat.megatron import FillInTheMiddle, GPTDataset, GPTFIMDataset, GPTMasks, MockGPTDataset, MockStore
from headrace.compat.megatron.gpt import document_borders
from headrace.plan.keys import derive
from headrace.plan.megatron import KeyedDraws, ReorderWarning, fill_in_the_middle

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


@settings(max_examples=cases(12, 1000), deadline=None)
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
    with pytest.raises(StateError, match="separate_last_epoch"):
        beyond.load_state_dict(loader.state_dict(), recipe=loader.run.recipe)
    with pytest.warns(ReorderWarning):
        beyond.run.datasets[0].order.warn_if_extended_from(20)  # type: ignore[attr-defined]


def test_aleph_alpha_has_no_index_arrays(prefix: Path) -> None:
    dataset = GPTDataset(prefix, sequence_length=4, num_samples=8, dialect="aleph_alpha")
    assert dataset[0]["tokens"].shape == (4,)
    with pytest.raises(ConfigError, match=r"'aleph_alpha'.*shuffle_index"):
        _ = dataset.shuffle_index


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"split_part": "dev"}, "'dev'.*'valid'"),
        ({"split_part": "test"}, "'test'"),
        ({"split": "9999,1", "split_part": "valid"}, "6"),
        ({"sequence_length": 80}, "80.*80"),
        ({"sequence_length": 0}, "sequence_length.*0"),
    ],
)
def test_what_cannot_be_fed_is_refused(prefix: Path, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GPTDataset(prefix, **{"sequence_length": 6, **wrong})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"eod_mask_loss": True}, "eod"),
        ({"eod": 1, "reset_attention_mask": True}, "create_attention_mask=True"),
        ({"eod": 1, "inter_document_masking": True, "reset_position_ids": True}, "borders"),
        ({"pad": None}, r"GPTMasks.of\(tokenizer"),
    ],
)
def test_masks_that_do_not_go_together(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GPTMasks(**wrong)


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
    with pytest.raises(ConfigError, match="need"):
        GPTMasks.of(Tokens(pad=7), eod_mask_loss=True)


FIM = FillInTheMiddle(tokens=fim_toy.tokens(), codec=fim_toy.CODEC, rate=0.8)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of the toy's words, each with an end; nearly half are empty, so that samples get shorter, too."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("fim") / "corpus"
    documents = [
        np.append(rng.integers(0, 7, size), fim_toy.EOD) for size in rng.integers(0, 30, 80) * (rng.random(80) > 0.4)
    ]
    corpora.write(place, documents)
    return place


def samples(words: Path, **options: Any) -> GPTDataset:
    return GPTDataset(words, **{"sequence_length": 24, "num_samples": 60, **options})


def texts_of(dataset: GPTDataset | GPTFIMDataset, i: int) -> list[int]:
    """The S + 1 tokens of a sample."""
    item = dataset[i]
    return [*item["tokens"].tolist(), int(item["labels"][-1])]


def test_a_sample_is_that_of_the_dataset_rearranged(words: Path) -> None:
    plain = samples(words)
    dataset = GPTFIMDataset(plain, FIM)
    assert (len(dataset), dataset.fields) == (len(plain), plain.fields)
    assert dataset.constants.keys() == plain.constants.keys()
    assert dataset.num_tokens_per_sample == 24
    changed = 0
    for i in range(len(dataset)):
        before, after = texts_of(plain, i), texts_of(dataset, i)
        assert len(after) == 25
        changed += after != before
        draws = KeyedDraws(derive(dataset._key, i))
        assert after == fill_in_the_middle(np.array(before), FIM, draws).tolist()
        if fim_toy.PREFIX not in after:
            # Ends that are dropped leave room for pads; words stay in order.
            assert [t for t in after if t < fim_toy.EOD] == [t for t in before if t < fim_toy.EOD]
        assert dataset[i]["labels"][:-1].tolist() == after[1:24]
    assert 0.7 * len(dataset) < changed <= len(dataset)
    other = GPTFIMDataset(plain, FillInTheMiddle(tokens=fim_toy.tokens(), codec=fim_toy.CODEC, rate=0.8, seed=1))
    assert [texts_of(other, i) for i in range(9)] != [texts_of(dataset, i) for i in range(9)]
    halves = samples(words, split="1,1,0", split_part="valid")
    assert len({dataset._key, other._key, GPTFIMDataset(halves, FIM)._key}) == 3
    some = np.array([7, 3, 40])
    assert dataset.read(some)["tokens"].tolist() == [dataset[i]["tokens"].tolist() for i in some.tolist()]


def test_masks_are_of_the_new_tokens(words: Path) -> None:
    masks = GPTMasks(eod=fim_toy.EOD, pad=fim_toy.PAD, eod_mask_loss=True, reset_position_ids=True)
    dataset = GPTFIMDataset(samples(words, masks=masks), FIM)
    bare = GPTFIMDataset(samples(words), FIM)
    pads = 0
    for i in range(len(dataset)):
        text, item = texts_of(bare, i), dataset[i]
        pads += text.count(fim_toy.PAD)
        expected = [float(label != fim_toy.PAD and token != fim_toy.EOD) for token, label in itertools.pairwise(text)]
        assert item["loss_mask"].tolist() == expected
        assert item["tokens"].tolist() == [0 if token == fim_toy.PAD else token for token in text[:-1]]
        positions = list(
            itertools.accumulate(text[:23], lambda at, token: 0 if token == fim_toy.EOD else at + 1, initial=0)
        )
        assert item["position_ids"].tolist() == positions
    assert pads, "the case occurs"


def test_a_partial_sample_is_rearranged_and_then_filled_up(words: Path) -> None:
    """The pads of the dataset are behind the tokens, whatever became of these."""
    options = {"split": "0,1,0", "split_part": "valid", "num_samples": None, "sequence_length": 46}
    masks = GPTMasks(pad=31)
    plain = samples(words, drop_last_partial_validation_sequence=False, masks=masks, **options)
    dataset = GPTFIMDataset(plain, FIM)
    [partial] = np.flatnonzero(plain.shuffle_index == len(plain) - 1).tolist()
    count = int(plain.order.locate(np.array([partial])).num_tokens[0])
    assert 1 < count < 46
    assert dataset[partial]["loss_mask"].tolist() == plain[partial]["loss_mask"].tolist()
    assert set(dataset[partial]["tokens"][count:].tolist()) == {0}
    whole = dataset.read(np.arange(len(dataset)))
    assert whole["tokens"][partial].tolist() == dataset[partial]["tokens"].tolist()


def test_the_recipe_of_fill_in_the_middle(words: Path) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"rate": 0.1}, {"spm_rate": 0.1}, {"seed": 1}, {"codec": None}, {"no_prefix": "a"},
        {"tokens": fim_toy.tokens(split=True), "fragment_rate": 0.5},
        {"tokens": fim_toy.tokens(split=True), "fragment_rate": 0.6},
        {"codec": fim_toy.TextCodec(encode=fim_toy.encode, decode=fim_toy.decode, name="another")},
    ]  # fmt: skip
    plain = samples(words)
    base = {"tokens": fim_toy.tokens(), "codec": fim_toy.CODEC}
    made = [GPTFIMDataset(plain, FillInTheMiddle(**{**base, **change})) for change in changes]
    assert len({dataset.fingerprint for dataset in made}) == len(changes)
    assert plain.fingerprint not in {dataset.fingerprint for dataset in made}
    assert "between characters" in made[0].describe()
    assert "between tokens" in made[4].describe()
    runs = [Run(data, global_batch_size=2, order=Order(kind="none")) for data in made[:2]]
    loaders = [Loader(run, micro_batch_size=2, position=2) for run in runs]
    with pytest.raises(StateError, match=r"0\.1.*0\.5"):
        loaders[1].load_state_dict(loaders[0].state_dict(), recipe=loaders[0].run.recipe)


def test_what_does_not_go_together(words: Path) -> None:
    with pytest.raises(ConfigError, match="inter_document_masking"):
        GPTFIMDataset(samples(words, masks=GPTMasks(inter_document_masking=True)), FIM)
    with pytest.raises(ConfigError, match="GPTDataset"):
        GPTFIMDataset(str(words), FIM)  # type: ignore[arg-type]


def by_the_rule(store: MockStore, vocab_size: int, eod: int) -> list[list[int]]:
    """The documents by their rule."""
    return [[*((number + 1) % vocab_size for number in range(length - 1)), eod] for length in store.lengths.tolist()]


@settings(max_examples=cases(12, 600), deadline=None)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 12), st.integers(2, 9), st.data())
def test_every_way_to_read(vocab_size: int, eod: int, num_documents: int, max_length: int, data: st.DataObject) -> None:
    store = MockStore(vocab_size=vocab_size, eod=eod, num_documents=num_documents, max_length=max_length)
    documents = by_the_rule(store, vocab_size, eod)
    stream = [token for document in documents for token in document]
    assert (store.num_documents, store.num_tokens, len(store)) == (num_documents, len(stream), num_documents)
    assert set(store.lengths.tolist()) <= set(range(1, max_length))
    assert [store.document(i).tolist() for i in range(-num_documents, num_documents)] == documents * 2
    begin = data.draw(st.integers(0, len(stream)))
    end = data.draw(st.integers(begin, len(stream)))
    found = store.fetch(begin, end)
    assert found.tolist() == stream[begin:end]
    assert found.dtype == store.dtypes["tokens"] == np.int32
    assert not found.flags.writeable
    length = end - begin
    begins = np.array(data.draw(st.lists(st.integers(0, len(stream) - length), max_size=4)), dtype=np.int64)
    assert store.gather(begins, length).tolist() == [stream[one : one + length] for one in begins.tolist()]
    pieces = store.pieces(begins, np.full(len(begins), length))
    assert [piece.tolist() for piece in pieces] == [stream[one : one + length] for one in begins.tolist()]
    everywhere = np.arange(len(stream))
    assert store.find_documents(everywhere).tolist() == np.repeat(np.arange(num_documents), store.lengths).tolist()
    assert store.document_begins(np.arange(num_documents + 1)).tolist() == [0, *np.cumsum(store.lengths).tolist()]
    assert np.concatenate(list(store.length_chunks(3))).tolist() == store.lengths.tolist()
    vocab = data.draw(st.integers(1, 10))
    assert bool(list(store.check(vocab_size=vocab))) == (max(stream) >= vocab)
    top = max(stream)
    assert list(store.check(vocab_size=top + 1)) == list(store.check()) == []
    (problem,) = store.check(vocab_size=top) if top else [None]
    if problem is not None:
        first = next(number for number, document in enumerate(documents) if max(document) >= top)
        assert problem.place == f"document {first}"
        assert f"has id {top}, " in problem.message


def test_the_lengths_are_those_of_megatron() -> None:
    """The first ones, and their sum: a NumPy that draws otherwise is noticed."""
    store = MockStore(vocab_size=100, eod=0)
    assert store.num_documents == 100_000
    assert store.lengths[:5].tolist() == [3484, 2609, 2094, 1105, 1261]
    assert store.num_tokens == 204_637_097


def test_no_documents() -> None:
    store = MockStore(vocab_size=5, eod=0, num_documents=0)
    assert (store.num_tokens, store.lengths.tolist(), store.fetch(0, 0).tolist()) == (0, [], [])
    assert list(store.check(vocab_size=1)) == []


def test_fingerprint_and_pickling() -> None:
    options = {"vocab_size": 50, "eod": 1, "num_documents": 1000, "max_length": 40}
    store = MockStore(**options)
    others = [MockStore(**{**options, name: value + 1}) for name, value in options.items()]
    assert len({store.fingerprint, *(other.fingerprint for other in others)}) == 5
    data = pickle.dumps(store)
    assert len(data) < 500
    again = pickle.loads(data)
    assert again.fingerprint == store.fingerprint
    assert again.fetch(0, 500).tolist() == store.fetch(0, 500).tolist()
    with store:
        assert store.files == ()
    assert store.fetch(0, 5).tolist() == again.fetch(0, 5).tolist(), "closing it changes nothing"
    with pytest.raises(ConfigError, match="NumPy"):
        pickle.loads(data.replace(store.fingerprint.encode(), b"0" * 32))


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 0}, {"eod": -1}, {"eod": 1 << 31}, {"num_documents": -1}, {"max_length": 1}]
)
def test_wrong_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"max_length.*2.*0"):
        MockStore(**{"vocab_size": 5, "eod": 0, **wrong})
    with pytest.raises(ConfigError, match="vocab_size"):
        MockGPTDataset(sequence_length=8, vocab_size=0, eod=0)
    with pytest.raises(IndexError, match="range"):
        MockStore(vocab_size=5, eod=0, num_documents=1).fetch(0, 1 << 40)


def test_samples_are_pieces_of_the_documents() -> None:
    dataset = MockGPTDataset(vocab_size=1000, eod=7, sequence_length=512, num_samples=40, masks=GPTMasks(eod=7))
    assert dataset.split == "1,1,1"
    first = dataset[0]
    for token, label in zip(first["tokens"].tolist(), first["labels"].tolist(), strict=True):
        # The number after this one, the end of the document, or the first number after an end.
        assert label in ((token + 1) % 1000, 7) or (token == 7 and label in (1, 7))
    parts = [
        MockGPTDataset(vocab_size=9, eod=0, sequence_length=64, split_part=part) for part in ("train", "valid", "test")
    ]
    documents = [set(part.document_index.tolist()) for part in parts]
    assert [len(numbers) for numbers in documents] == [33_333, 33_334, 33_333]
    assert not documents[0] & documents[1] | documents[1] & documents[2]
    assert dataset.describe().startswith("mock data in core order of Megatron, seed 1234")
    assert pickle.loads(pickle.dumps(dataset))[3]["tokens"].tolist() == dataset[3]["tokens"].tolist()
