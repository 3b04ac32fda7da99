"""torchtune's packs: its own results (tests/golden/README.md), a plain packer, and what is read when."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
from counts import cases
from headrace.compat import torchtune
from headrace.compat.torchtune import DocumentDataset, PackedDataset, PackedItem
from headrace.errors import ConfigError, InputError

torch = pytest.importorskip("torch")

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "packing" / "torchtune.json").read_text()
)
Made = list[dict[str, Any]]


class Watched:
    """Samples of these lengths that are made when asked for; remembers which."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.sizes = list(lengths)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.read.append(number)
        return {"tokens": [number] * self.sizes[number], "labels": [number] * self.sizes[number]}


class Known(Watched):
    """The same with its lengths at hand."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array(self.sizes, dtype=np.int32)


def samples(lengths: Sequence[int]) -> Made:
    made, token = [], 1
    for length in lengths:
        tokens = list(range(token, token + length))
        made.append({"tokens": tokens, "labels": [-100 if token % 3 == 0 else token for token in tokens]})
        token += length
    return made


def plainly(made: Made, size: int, split: bool, restart: bool) -> list[dict[str, list[int]]]:
    """Packs token by token, for samples that are not empty."""
    packs: list[list[tuple[int, int, int, int]]] = [[]]
    for number, sample in enumerate(made):
        if not split and len(packs[-1]) + len(sample["tokens"]) > size:
            packs.append([])
        begin = 0
        for place, (token, label) in enumerate(zip(sample["tokens"], sample["labels"], strict=True)):
            if len(packs[-1]) == size:
                packs.append([])
                begin = place
            packs[-1].append((number, token, label, place - begin if restart else place % size))
    out = []
    for pack in packs:
        numbers = [number for number, *_ in pack]
        pads = size - len(pack)
        last = pack[-1][3] if pack else 0
        out.append(
            {
                "tokens": [token for _, token, _, _ in pack] + [0] * pads,
                "labels": [label for _, _, label, _ in pack] + [-100] * pads,
                "input_pos": [at for *_, at in pack] + [min(last + 1 + pad, size - 1) for pad in range(pads)],
                "seq_lens": [numbers.count(number) for number in sorted(set(numbers))] + [pads] * (pads > 0),
            }
        )
    return out if made else []


def lists(item: PackedItem) -> dict[str, list[int]]:
    return {name: item[name].tolist() for name in item if name != "mask"}


@pytest.mark.parametrize("case", GOLDEN)
def test_torchtunes_own_results(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(ConfigError) as caught:
            PackedDataset(case["samples"], **case["options"])
        assert str(caught.value).startswith(case["error"])
        assert isinstance(caught.value, ValueError)
        return
    packed = PackedDataset(case["samples"], mask_pads="causal", **case["options"])
    assert [lists(item) for item in packed.packs] == case["packs"]
    assert [item["mask"].int().tolist() for item in packed.packs] == case["masks"]


@settings(max_examples=cases(15, 3_000), deadline=None)
@given(st.data(), st.integers(1, 12), st.booleans(), st.booleans())
def test_a_plain_packer(data: st.DataObject, size: int, split: bool, restart: bool) -> None:
    lengths = data.draw(st.lists(st.integers(1, 3 * size if split else size), max_size=12))
    made = samples(lengths)
    expected = plainly(made, size, split, restart)
    packed = PackedDataset(
        made, max_seq_len=size, split_across_pack=split, continued_positions="restart" if restart else "wrap"
    )
    assert [lists(item) for item in packed] == expected
    assert len(packed) == len(expected)


def test_the_documented_example_and_its_masks() -> None:
    packed = PackedDataset(samples([3, 2, 2, 2]), max_seq_len=6)
    first = packed[0]
    assert list(first) == ["tokens", "labels", "input_pos", "seq_lens", "mask"]
    assert {value.dtype for name, value in first.items() if name != "mask"} == {torch.int64}
    own = [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0]]
    assert first["mask"].dtype == torch.bool
    assert first["mask"].int().tolist() == [*own, [0, 0, 0, 0, 0, 1]]
    # Two pads: each for itself as documented, or the second one after the first as coded.
    assert packed[1]["mask"][-2:].int().tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]
    coded = PackedDataset(samples([3, 2, 2, 2]), max_seq_len=6, mask_pads="causal")
    assert coded[1]["mask"][-2:].int().tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert torch.equal(coded[1]["mask"][:4], packed[1]["mask"][:4])


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(st.integers(0, 3), st.integers(1, 200), st.booleans(), st.sampled_from([None, 0, 1, 5]))
def test_stores_are_packed_as_lists_are(
    corpus: list[corpora.Corpus], which: int, size: int, split: bool, max_packs: int | None
) -> None:
    store = corpus[which].store
    made = [{"tokens": store.document(i).tolist(), "labels": store.document(i).tolist()} for i in range(len(store))]
    size = max(size, 1 if split else int(store.lengths.max()))
    options = {"max_seq_len": size, "split_across_pack": split, "max_packs": max_packs}
    ours, theirs = PackedDataset(DocumentDataset(store), **options), PackedDataset(made, **options)
    assert len(ours) == len(theirs)
    assert list(map(lists, ours)) == list(map(lists, theirs))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", [partial(np.array, dtype=np.int32), partial(torch.tensor, dtype=torch.int64), list])
def test_arrays_and_tensors_are_samples_too(kind: Any, split: bool) -> None:
    made = samples([3, 0, 2, 6])
    of_kind = [{name: kind(values) for name, values in sample.items()} for sample in made]
    options = {"max_seq_len": 6, "split_across_pack": split}
    assert list(map(lists, PackedDataset(of_kind, **options))) == list(map(lists, PackedDataset(made, **options)))


def test_only_the_samples_of_an_item_are_read() -> None:
    ds = Known([3, 2, 2, 0, 2, 6])
    packed = PackedDataset(ds, max_seq_len=6)
    assert ds.read == []
    assert packed[1]["tokens"].tolist() == [2, 2, 4, 4, 0, 0]
    assert ds.read == [2, 3, 4]
    cut = PackedDataset(ds, max_seq_len=4, split_across_pack=True)
    ds.read.clear()
    assert cut[1]["tokens"].tolist() == [1, 2, 2, 4]
    assert ds.read == [1, 2, 3, 4]


def test_the_pass_for_lengths_ends_with_the_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    for at_once, num_read in ((1, 8), (3, 9)):
        monkeypatch.setattr(torchtune, "_AT_ONCE", at_once)
        for split in (False, True):
            ds = Watched([3] * 6 + [0] + [3] * 100)
            packed = PackedDataset(ds, max_seq_len=6, max_packs=3, split_across_pack=split)
            assert len(packed) == 3
            assert len(ds.read) == num_read
            assert lists(packed[2])["tokens"] == [4, 4, 4, 5, 5, 5]
            assert lists(packed[2])["seq_lens"] == [3, 3, 0], "the empty sample behind a full pack is in it"


def test_a_bulk_read_is_used() -> None:
    class Bulk(Watched):
        def __getitems__(self, numbers: list[int]) -> Made:
            assert isinstance(numbers, list)
            return [Watched.__getitem__(self, number) for number in numbers]

        def __getitem__(self, number: int) -> dict[str, Any]:
            raise AssertionError("one by one")

    assert PackedDataset(Bulk([2, 3]), max_seq_len=5)[0]["tokens"].tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("split", "bytes_a_sample"), [(False, 4), (True, 8)])
def test_what_is_kept(split: bool, bytes_a_sample: int) -> None:
    class Many:
        lengths = np.full(200_000, 9, dtype=np.uint16)

        def __len__(self) -> int:
            return 200_000

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"tokens": [1] * 9, "labels": [1] * 9}

    PackedDataset(samples([1]), max_seq_len=10, split_across_pack=split)  # imports are no plan
    tracemalloc.start()
    try:
        packed = PackedDataset(Many(), max_seq_len=10, split_across_pack=split)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(packed) == (180_000 if split else 200_000)
    assert kept <= bytes_a_sample * 200_000 + 20_000


def test_sequence_and_workers() -> None:
    packed = PackedDataset(samples([3] * 7), max_seq_len=6)
    assert lists(packed[-1]) == lists(packed[3])
    assert list(map(lists, packed[1:3])) == [lists(packed[1]), lists(packed[2])]
    assert list(map(lists, packed.__getitems__([2, 0]))) == [lists(packed[2]), lists(packed[0])]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=rf"{wrong}.*4"):
            packed[wrong]
    sent = pickle.loads(pickle.dumps(packed[3]))
    assert lists(sent) == lists(packed[3])
    assert torch.equal(sent["mask"], packed[3]["mask"])


def test_labels_of_another_number_are_named() -> None:
    made = [*samples([2, 2]), {"tokens": [1, 2], "labels": [1]}]
    packed = PackedDataset(made, max_seq_len=2)
    assert len(packed) == 3
    assert packed[1]["tokens"].tolist() == [3, 4]
    with pytest.raises(InputError, match=r"2.*1.*labels"):
        packed[2]


@pytest.mark.parametrize("tokens", [[0.5], [[1]], "ab", [[1], [2, 3]]])
def test_tokens_are_integers(tokens: Any) -> None:
    with pytest.raises(InputError, match=r"0.*tokens"):
        PackedDataset([{"tokens": tokens, "labels": tokens}], max_seq_len=4)[0]


def test_lengths_that_are_not_those_of_the_samples() -> None:
    ds = Known([3, 3])
    whole, cut = PackedDataset(ds, max_seq_len=6), PackedDataset(ds, max_seq_len=6, split_across_pack=True)
    ds.sizes = [3, 4]
    with pytest.raises(InputError, match=r"0.*1.*7"):
        whole[0]
    with pytest.raises(InputError, match=r"1.*4.*expected"):
        cut[0]
    for lengths in ([3.0, 3.0], [3], [3, -1]):
        ds_ = samples([3, 3])
        wrong = type("Wrong", (list,), {"lengths": lengths})(ds_)
        with pytest.raises(InputError, match=r"expected.*0.*2"):
            PackedDataset(wrong, max_seq_len=6)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"max_seq_len": 0}, "max_seq_len.*0"),
        ({"max_packs": -1}, "max_packs.*-1"),
        ({"mask_pads": "none"}, "'none'.*'identity'.*'causal'"),
        ({"continued_positions": "go"}, "'go'.*'wrap'.*'restart'"),
    ],
)
def test_bad_options_are_refused(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PackedDataset(samples([1]), **{"max_seq_len": 4, **bad})


@pytest.mark.parametrize(("lengths", "max_packs"), [([0, 9], 0), ([4, 4, 9], 1)])
def test_a_long_sample_behind_the_last_pack_is_not_looked_at(lengths: list[int], max_packs: int) -> None:
    assert len(PackedDataset(samples(lengths), max_seq_len=6, max_packs=max_packs)) == max_packs
    with pytest.raises(ConfigError, match=rf"9.*6.*{len(lengths) - 1}"):
        PackedDataset(samples(lengths), max_seq_len=6, max_packs=max_packs + 1)
    with pytest.raises(ConfigError, match=r"sample.*0"):
        PackedDataset(samples([9, *lengths]), max_seq_len=6, max_packs=max_packs)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setattr(torchtune, "_AT_ONCE", 2)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    PackedDataset(Watched([1] * 5), max_seq_len=4)
    said = capsys.readouterr().err
    assert ("packing: lengths" in said) == bool(said) == is_terminal


class Theirs:
    """The class that torchtune's ``ConcatDataset`` asks for."""


def test_torchtunes_concatenation_takes_it_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ConcatDataset`` decides by ``isinstance`` whether datasets are packed; torchtune itself is in tests/interop."""
    packed = PackedDataset(samples([3, 2, 4]), max_seq_len=5)
    assert not isinstance(packed, Theirs)
    monkeypatch.setitem(sys.modules, "torchtune.datasets._concat", SimpleNamespace(PackedDataset=Theirs))
    assert isinstance(packed, Theirs)
    assert isinstance(packed, PackedDataset)
    assert isinstance(packed, Sequence)
    for again in (pickle.loads(pickle.dumps(packed)), copy.copy(packed), copy.deepcopy(packed)):
        assert type(again) is PackedDataset
        assert [item["tokens"].tolist() for item in again] == [item["tokens"].tolist() for item in packed]
