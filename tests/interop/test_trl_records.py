"""Batches of preference and fine-tuning records against the collators of TRL."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import records_made
from counts import cases
from headrace import PreferenceDataset, SFTDataset
from headrace.datasets import Collation
from headrace.loader import collate_fn

pytestmark = pytest.mark.interop

PAIRS = records_made.preferences(1, 60)
CONVERSATIONS = records_made.sft(2, 60)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("trl")
    return {
        "dpo": records_made.store(folder / "dpo", PAIRS),
        "sft": records_made.store(folder / "sft", CONVERSATIONS),
    }


def example(pair: records_made.Record) -> dict[str, list[int]]:
    """A pair as TRL's dataset has it: the prompt apart."""
    prompt = list(itertools.takewhile(lambda pair: not pair[1], zip(pair["chosen"], pair["chosen_mask"], strict=True)))
    ids = [token for token, _ in prompt]
    return {
        "prompt_ids": ids,
        "chosen_ids": pair["chosen"][len(ids) :],
        "rejected_ids": pair["rejected"][len(ids) :],
    }


@settings(max_examples=cases(24, 1_000), deadline=None)
@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=6),
    st.sampled_from([None, 1, 8]),
    st.sampled_from([None, ("keep_start", "truncate_right"), ("keep_end", "truncate_left")]),
)
def test_preferences_are_trls_tensors(
    datasets: dict[str, Any], chosen: list[int], multiple: int | None, cut: tuple[str, str] | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collators = pytest.importorskip("trl.trainer.dpo_trainer")
    limit = {} if cut is None else {"max_length": 12, "truncation_mode": cut[0]}
    theirs = collators.DataCollatorForPreference(pad_token_id=3, pad_to_multiple_of=multiple, **limit)
    wanted = theirs([example(PAIRS[i]) for i in chosen])
    ours: Any = {} if cut is None else {"max_length": 12, "over_long": cut[1]}
    collation = Collation(padding_idx=3, multiple_of=multiple or 1, **ours)
    dataset = PreferenceDataset(datasets["dpo"], collation, layout="stacked")
    batch = collate_fn(dataset)([dataset[i] for i in chosen])
    if cut == ("keep_end", "truncate_left"):
        # The first token that is kept may be of the answer; nothing is before it that could predict it.
        wanted["completion_mask"][:, 0] = 0
    for name in ("input_ids", "attention_mask", "completion_mask"):
        assert torch.equal(batch[name], wanted[name]), name
        assert batch[name].dtype == wanted[name].dtype


@settings(max_examples=cases(16, 400), deadline=None)
@given(st.lists(st.integers(0, 59), min_size=1, max_size=6), st.sampled_from([None, 8]))
def test_conversations_are_trls_tensors(datasets: dict[str, Any], chosen: list[int], multiple: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collators = pytest.importorskip("trl.trainer.sft_trainer")
    examples = []
    for record in (CONVERSATIONS[i] for i in chosen):
        pairs = zip(record["tokens"], record["loss_mask"], strict=True)
        labels = [token if mark else -100 for token, mark in pairs]
        # What nothing predicts has no label here; a model that shifts leaves it out.
        labels[0] = -100
        examples.append({"input_ids": record["tokens"], "labels": labels})
    wanted = collators.DataCollatorForLanguageModeling(pad_token_id=3, pad_to_multiple_of=multiple)(examples)
    dataset = SFTDataset(datasets["sft"], Collation(padding_idx=3, multiple_of=multiple or 1), labels="same")
    batch = collate_fn(dataset)([dataset[i] for i in chosen])
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], wanted[name]), name
        assert batch[name].dtype == wanted[name].dtype
