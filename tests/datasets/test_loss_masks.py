"""The loss mask of a store decides all labels, unless it is told not to; steps without any label are found."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import corpora
import recipe_runs
import records_made
from counts import cases
from headrace import (
    ConfigError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    PromptDataset,
    Run,
    SFTDataset,
    WindowDataset,
    stores,
)
from headrace.cli import main
from headrace.compat.astrai import DatasetFactory
from headrace.compat.megatron import CyclicDataset, GPTDataset
from headrace.compat.torchtune import DocumentDataset
from headrace.datasets import (
    Blend,
    Collation,
    FilledDataset,
    MapDataset,
    accounts,
    check_supervised,
    count_step,
    loss_masks,
)
from headrace.errors import InputError
from headrace.integrations.numpy import NumpyLoader
from headrace.loader import flatten_packed
from headrace.plan import derive_array
from headrace.plan.packed_check import check_packed
from headrace.stores import Store
from token_shards import write_keyed

IN_ORDER = Order(kind="none")
PACKING = Packing(seq_len=32, strategy="best_fit_split")
MAKERS: tuple[Callable[..., Any], ...] = (
    partial(WindowDataset, seq_len=16),
    partial(PackedSequenceDataset, packing=PACKING),
)


def chats(
    folder: Path, count: int = 60, layout: str = "combined", seed: int = 3
) -> tuple[Store, np.ndarray, np.ndarray]:
    """A store of conversations, and the streams of its tokens and its mask."""
    records = records_made.sft(seed, count)
    if layout == "shards":
        for shard, some in enumerate((records[:20], records[20:])):
            records_made.write(folder / f"s{shard}", some)
        store: Store = stores.open(folder)
    else:
        store = records_made.store(folder, records, layout)
    tokens, marks = (np.concatenate([record[key] for record in records]) for key in ("tokens", "loss_mask"))
    return store, tokens, marks


@pytest.fixture(scope="module", params=["combined", "keyed", "shards"])
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return chats(tmp_path_factory.mktemp(request.param), layout=request.param)


@settings(max_examples=cases(10, 500), deadline=None)
@given(
    window=st.integers(1, 90), stride=st.integers(1, 120), phase=st.booleans(), same=st.booleans(),
    masked=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_windows(chat: Any, window: int, stride: int, phase: bool, same: bool, masked: bool, seed: int) -> None:
    store, tokens, marks = chat
    options: dict[str, Any] = {} if masked else {"loss_mask_key": None}
    dataset = WindowDataset(
        store, seq_len=window, stride=stride, phase=phase, labels="same" if same else "next", **options
    )
    indices = np.random.default_rng(seed).integers(0, len(dataset), 5)
    begins = dataset.locate(indices, derive_array(seed, np.zeros(5, dtype=np.int64)))
    batch = dataset.read(begins)
    expected = np.where(marks == 1, tokens, -100) if masked else tokens
    for row, begin in enumerate(begins.tolist()):
        assert batch["input_ids"][row].tolist() == tokens[begin : begin + window].tolist()
        labels = expected[begin + 1 : begin + window + 1].tolist()
        # A model of Hugging Face's takes its labels from the second one on.
        assert batch["labels"][row].tolist() == ([-100, *labels[:-1]] if same else labels)
    assert batch["labels"].dtype == np.int64
    counts = dataset.count(begins)
    assert counts.supervised_tokens.tolist() == (batch["labels"] != -100).sum(axis=1).tolist()
    assert counts.tokens.tolist() == [window] * 5
    assert dataset.traits.is_counted == masked


def test_all_that_makes_labels_honours_it_by_default(tmp_path: Path) -> None:
    store, _, marks = chats(tmp_path / "s")
    share = marks.mean()
    assert 0.4 < share < 0.6
    windows = WindowDataset(store, seq_len=64)
    packs = PackedSequenceDataset(store, PACKING)
    batches = [windows.read(np.arange(len(windows)) * 64), packs.read(np.arange(len(packs)))]
    for dataset, batch in zip((windows, packs), batches, strict=True):
        assert 0.8 * share < (batch["labels"] != -100).mean() < 1.2 * share
        assert dataset.recipe["loss_mask_key"] == "loss_mask"
        assert f"{share:.1%} of the tokens supervised by 'loss_mask'" in dataset.describe()
    documents = DocumentDataset(store)
    counts = store.stores["num_supervised"].fetch(0, 60).tolist()  # type: ignore[attr-defined]
    assert [(sample["labels"] != -100).sum() for sample in documents] == counts
    for make in (*MAKERS, DocumentDataset, SFTDataset):
        assert "supervised by 'loss_mask'" in make(store).describe()
        assert "'loss_mask' is not used" in make(store, loss_mask_key=None).describe()
    pairs = records_made.write(tmp_path / "pairs", records_made.preferences(1, 30))
    for key in ("chosen", "rejected"):
        store = stores.open(pairs, key=key)
        assert WindowDataset(store, seq_len=8).loss_mask_key == f"{key}_mask"
        assert PackedSequenceDataset(store, PACKING).loss_mask_key == f"{key}_mask"


def test_a_blend_of_masked_and_other_windows_counts_both(tmp_path: Path) -> None:
    store, _, _ = chats(tmp_path / "s")
    plain = corpora.make(tmp_path / "plain", 1, 60).store
    masked, other = WindowDataset(store, seq_len=16), WindowDataset(plain, seq_len=16)
    through = MapDataset(other, dict)
    run = Run(Blend({"a": masked, "b": through}, weights={"a": 1, "b": 1}), global_batch_size=6, samples=60)
    step = []
    for batch in Loader(run, micro_batch_size=2):
        assert batch["num_supervised_tokens"] == int((batch["labels"] != -100).sum())
        step.append(batch)
        if len(step) == 3:
            assert {b["step_supervised_tokens"] for b in step} == {sum(b["num_supervised_tokens"] for b in step)}
            step = []
    assert "num_supervised_tokens" not in next(iter(Loader(Run(other, global_batch_size=2), micro_batch_size=2)))
    cyclic = CyclicDataset(masked, micro_batch_size=2, data_parallel_size=1)
    batch = next(iter(Loader(Run(cyclic, global_batch_size=2, order=IN_ORDER, samples=4), micro_batch_size=2)))
    assert batch["num_supervised_tokens"] == int((batch["labels"] != -100).sum()) < 32
    with pytest.raises(ConfigError, match="loss_mask"):
        FilledDataset(masked, multiple_of=4)


def test_a_step_of_windows_without_a_label_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = np.repeat([1, 0, 1, 0], [20, 20, 30, 30]).astype(np.uint8)
    write_keyed(tmp_path / "s", tokens=("uint16", [np.arange(100)]), loss_mask=("uint8", [marks]))
    dataset = WindowDataset(stores.open(tmp_path / "s"), seq_len=10)
    run = Run(dataset, global_batch_size=1, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match=r"2.*supervised"):
        next(iter(Loader(run, micro_batch_size=1)))
    monkeypatch.setattr("headrace.datasets.accounts.CHECKED_MARKS", 30)
    check_supervised(run, 4)  # three windows from there on are looked at
    with pytest.raises(ConfigError, match=r"step.*7"):
        check_supervised(run, 5)


def test_a_mask_that_is_not_parallel_is_refused(tmp_path: Path) -> None:
    for shard, num_marks in enumerate((10, 7)):
        marks = np.ones(num_marks, np.uint8)
        write_keyed(tmp_path / f"s{shard}", tokens=("uint16", [np.arange(10) % 7]), loss_mask=("uint8", [marks]))
    store = stores.open(tmp_path)
    for make in MAKERS:
        with pytest.raises(ConfigError, match="loss_mask_key=None"):
            make(store)
    WindowDataset(store, seq_len=4, loss_mask_key=None)
    with pytest.raises(ConfigError, match="'nothing'"):
        WindowDataset(store, seq_len=4, loss_mask_key="nothing")


def test_peers_orders_say_that_they_do_not_use_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _, _ = chats(tmp_path / "s")
    dataset = GPTDataset(store, sequence_length=16)
    assert "GPTDataset does not use the loss mask 'loss_mask'" in caplog.text
    assert "the store's 'loss_mask' is not used" in dataset.describe()
    caplog.clear()
    keyed = records_made.write(tmp_path / "keyed", records_made.sft(1, 30, counted=False))
    DatasetFactory.load("seq", keyed, 16)
    assert "training type 'seq' does not use the loss mask 'loss_mask'" in caplog.text
    caplog.clear()
    DatasetFactory.load("sft", keyed, 16)
    assert not caplog.text


def test_a_share_that_nobody_counted_is_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _, marks = chats(tmp_path / "s", 400)
    monkeypatch.setattr(loss_masks, "LOOKED_AT_TOKENS", 6400)
    assert len(marks) > 6400
    shown = WindowDataset(store, seq_len=16).describe()
    assert "about 5" in shown
    assert "(6,400 looked at) supervised by 'loss_mask'" in shown


@settings(max_examples=cases(10, 500), deadline=None)
@given(
    size=st.integers(2, 40), strategy=st.sampled_from(["greedy", "best_fit", "best_fit_split", "wrapped"]),
    keep=st.booleans(), masked=st.booleans(), multiple=st.sampled_from([1, 2]),
)  # fmt: skip
def test_packs_with_labels_beside_their_tokens(
    chat: Any, size: int, strategy: Any, keep: bool, masked: bool, multiple: int
) -> None:
    """What a model that shifts learns is what ``"next"`` says, but for the tokens that lie in another pack."""
    store, _, _ = chat
    multiple = 1 if strategy == "wrapped" else multiple
    packing = Packing(seq_len=size * multiple, strategy=strategy, over_long="split", segment_multiple=multiple)
    options: dict[str, Any] = {"border_labels": "keep" if keep else "mask"}
    options |= {} if masked else {"loss_mask_key": None}
    following = PackedSequenceDataset(store, packing, **options)
    same = PackedSequenceDataset(store, packing, labels="same", **options)
    packs = np.arange(min(20, len(same)))
    batch, wanted = same.read(packs), following.read(packs)["labels"]
    items = following.items(packs)
    rows = np.repeat(np.arange(len(packs)), np.diff(items.offsets))
    segments = -(-items.lengths // multiple) * multiple
    ends = np.cumsum(segments) - np.repeat((np.cumsum(segments) - segments)[items.offsets[:-1]], np.diff(items.offsets))
    lasts = ends - segments + items.lengths - 1
    wanted[rows[items.continues], lasts[items.continues]] = -100
    assert batch["labels"][:, 1:].tolist() == wanted[:, :-1].tolist()
    assert (batch["labels"][:, 0] == -100).all()
    assert (batch["loss_mask"] == (batch["labels"] != -100)).all()
    assert same.count(packs).supervised_tokens.tolist() == batch["loss_mask"].sum(axis=1).tolist()
    for name in ("input_ids", "position_ids", "document_ids"):
        assert (batch[name] == following.read(packs)[name]).all()
    borders: Any = {"seq_idx": (np.cumsum(batch["position_ids"] == 0, axis=1) - 1).astype(np.int32)}
    assert check_packed({**batch, **borders}, is_unshifted=True) == []


def test_labels_beside_their_tokens_are_told_from_others(tmp_path: Path) -> None:
    store, _, _ = chats(tmp_path / "s")
    same, following = (PackedSequenceDataset(store, PACKING, labels=labels) for labels in ("same", "next"))
    assert same.recipe == {**following.recipe, "labels": "same"}
    with pytest.raises(ConfigError, match="labels='same'"):
        Blend({"a": same, "b": following}, weights={"a": 1, "b": 1})
    windows = [WindowDataset(store, seq_len=8, labels=labels) for labels in ("same", "next")]
    assert windows[0].recipe == {**windows[1].recipe, "labels": "same"}
    with pytest.raises(ConfigError, match="labels='same'"):
        Blend({"a": MapDataset(windows[0], dict), "b": windows[1]}, weights={"a": 1, "b": 1})
    for make in MAKERS:
        with pytest.raises(ConfigError, match=r"'both'.*'next'.*'same'"):
            make(store, labels="both")
    batch = next(iter(Loader(Run(same, global_batch_size=4), micro_batch_size=4, debug=True)))
    assert batch["num_supervised_tokens"] == int(batch["loss_mask"].sum())
    with pytest.raises(InputError, match="labels='same'"):
        flatten_packed(batch)
    flatten_packed(next(iter(Loader(Run(following, global_batch_size=4), micro_batch_size=4, debug=True))))


def test_a_store_opened_without_its_mask_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the manifest's count is what `describe` and `headrace info` say."""
    recipe_runs.make_model(tmp_path / "model")
    recipe_runs.write_lines(tmp_path / "data" / "a.jsonl", recipe_runs.conversations(20))
    recipe_runs.prepare(recipe_runs.SFT, tmp_path, tmp_path / "out")
    whole = stores.open(tmp_path / "out")
    marks = whole.fetch(0, whole.num_tokens, "loss_mask")
    share = f"{np.count_nonzero(marks) / len(marks):.1%} of the tokens"
    described = WindowDataset(whole, seq_len=16).describe()
    assert described.endswith(f"tokens, {share} supervised by 'loss_mask'")
    assert not caplog.text
    one = stores.open(tmp_path / "out", key="tokens")
    WindowDataset(one, seq_len=16)
    assert "was opened without its loss mask" in caplog.text
    caplog.clear()
    WindowDataset(one, seq_len=16, loss_mask_key=None)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    result = CliRunner().invoke(main, ["info", str(tmp_path / "out")])
    assert f"{share}, by 'loss_mask'" in result.output


def records(num_supervised: list[int]) -> list[records_made.Record]:
    """Ten tokens each, so many of them supervised."""
    return [
        {"tokens": list(range(1, 11)), "loss_mask": [0] * (10 - count) + [1] * count, "num_supervised": [count]}
        for count in num_supervised
    ]


def dataset(folder: Path, num_supervised: list[int], **collation: Any) -> SFTDataset:
    return SFTDataset(records_made.store(folder, records(num_supervised)), Collation(**collation))


def without_mask(folder: Path, lengths: list[int]) -> Store:
    """A document of a single token predicts nothing."""
    return records_made.store(folder, [{"tokens": [7] * length} for length in lengths])


def packed(store: Store, strategy: Any = "greedy", seq_len: int = 4) -> PackedSequenceDataset:
    return PackedSequenceDataset(store, Packing(seq_len=seq_len, strategy=strategy))


SINGLE_TOKENS = [1] * 8 + [2, 1, 1] + [1] * 20 + [4]
UNSUPERVISED: dict[str, tuple[Callable[[Path], Any], int, int, int]] = {
    "masks": (lambda folder: dataset(folder, [3, 1, 0, 0, 2, 1]), 2, 1, 3),
    "cut off": (lambda folder: dataset(folder, [9, 8, 2, 9], max_length=8, over_long="truncate_right"), 1, 2, 4),
    "records without a mask": (
        lambda folder: SFTDataset(without_mask(folder, [3, 1, 1, 2]), loss_mask_key=None),
        1,
        1,
        2,
    ),
    "packs": (lambda folder: packed(records_made.store(folder, records([3, 0, 0, 2])), seq_len=10), 1, 1, 2),
    "packs without a mask": (lambda folder: packed(without_mask(folder, SINGLE_TOKENS)), 2, 0, 3),
    "wrapped": (lambda folder: packed(without_mask(folder, SINGLE_TOKENS), "wrapped"), 2, 0, 9),
}
"""A dataset, the samples of a step, the first step without a label, and so many samples that each step has one."""


@pytest.mark.parametrize("case", UNSUPERVISED)
def test_the_step_is_named_before_anything_is_delivered(tmp_path: Path, case: str) -> None:
    make, size, step, enough = UNSUPERVISED[case]
    data = make(tmp_path / "s")
    run = Run(data, global_batch_size=size, order=IN_ORDER, epochs=1)
    loaders = [Loader(run, micro_batch_size=1), NumpyLoader(run, micro_batch_size=1)]
    for train in (lambda: check_supervised(run), *(partial(next, iter(loader)) for loader in loaders)):
        with pytest.raises(ConfigError, match=rf"step.*{step}.*supervised"):
            train()
    assert loaders[0].position == 0
    # Samples without a label do no harm where the step has others.
    check_supervised(Run(data, global_batch_size=enough, order=IN_ORDER, samples=enough))


def test_steps_that_are_over_are_not_looked_at(tmp_path: Path) -> None:
    run = Run(dataset(tmp_path / "s", [3, 1, 0, 0, 2, 1]), global_batch_size=2, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match=r"step.*1"):
        check_supervised(run, 3)
    check_supervised(run, 4)  # behind it all is well
    check_supervised(run, 6)  # at the end there is nothing to look at


def test_each_sample_is_looked_at_once_where_all_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = dataset(tmp_path / "s", [1] * 7)
    looked = []
    count = SFTDataset.count
    monkeypatch.setattr(SFTDataset, "count", lambda self, some: looked.append(len(some)) or count(self, some))
    run = Run(well, global_batch_size=2)  # without an end
    check_supervised(run)
    check_supervised(run, 5)
    assert looked == [7]


def test_an_endless_run_is_looked_at_as_far_as_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "CHECKED_SAMPLES", 8)
    far = dataset(tmp_path / "s", [1] * 30 + [0] * 3 + [1])
    run = Run(far, global_batch_size=1, order=IN_ORDER)
    check_supervised(run)
    with pytest.raises(ConfigError, match=r"step.*30"):
        check_supervised(run, 25)
    monkeypatch.setattr("headrace.datasets.accounts.COUNT_POSITIONS", 10)
    steps = []

    def train() -> None:
        loader = Loader(run, micro_batch_size=1)
        for _ in itertools.islice(loader, 40):
            steps.append(loader.step - 1)

    with pytest.raises(ConfigError, match=r"step.*30"):
        train()
    assert steps == list(range(len(steps)))
    assert 10 <= len(steps) <= 30, "ahead of its turn, and never skipped"


def test_the_source_is_named_in_a_blend(tmp_path: Path) -> None:
    sources = {"good": dataset(tmp_path / "a", [1, 1]), "bad": dataset(tmp_path / "b", [0, 0])}
    run = Run(Blend(sources, repeats={"good": 1, "bad": 1}), global_batch_size=1)
    with pytest.raises(ConfigError, match="'bad'"):
        check_supervised(run)


def test_packs_that_cannot_be_without_labels_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * (2 + number % 9)} for number in range(50)])
    looked = []
    count = PackedSequenceDataset.count
    monkeypatch.setattr(PackedSequenceDataset, "count", lambda self, some: looked.append(some) or count(self, some))

    def checks(**packing: Any) -> bool:
        looked.clear()
        check_supervised(Run(PackedSequenceDataset(store, Packing(**packing)), global_batch_size=1))
        return bool(looked)

    assert not checks(seq_len=10)
    assert not checks(seq_len=10, repack=True)
    assert not checks(seq_len=4, over_long="truncate_left")
    assert checks(seq_len=4, strategy="best_fit_split"), "a piece of one token is left of 5"
    assert not checks(seq_len=1 << 8, strategy="best_fit_split")
    assert checks(seq_len=10, strategy="wrapped")


def test_windows_that_never_have_a_label_are_refused(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * 9}])
    assert len(WindowDataset(store, seq_len=1)) == 8
    with pytest.raises(ConfigError, match="labels='same'"):
        WindowDataset(store, seq_len=1, labels="same")


def test_nothing_is_counted_where_nothing_is_masked(tmp_path: Path) -> None:
    prompts = PromptDataset(records_made.store(tmp_path / "s", records_made.prompts(1, 4)))
    run = Run(prompts, global_batch_size=2, epochs=1)
    check_supervised(run)
    assert not run.traits.is_counted
    assert "step_supervised_tokens" not in next(iter(Loader(run, micro_batch_size=2)))
    with pytest.raises(ConfigError, match="PromptDataset"):
        count_step(run, 0)
