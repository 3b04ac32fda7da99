"""Groups: uneven numbers of responses of uneven lengths in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import records_made
from counts import cases
from headrace import ConfigError, GroupDataset, InputError
from headrace.datasets import Collation

RECORDS = records_made.groups(2, 40)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("grpo")
    return {layout: records_made.store(folder / layout, RECORDS, layout) for layout in ("combined", "keyed")}


def split(record: records_made.Record, key: str) -> list[list[int]]:
    """The responses or masks of a record one by one."""
    found, begin = [], 0
    for length in record["response_lengths"]:
        found.append(record[key][begin : begin + length])
        begin += length
    return found


@settings(max_examples=cases(20, 500), deadline=None)
@given(
    st.sampled_from(["combined", "keyed"]),
    st.lists(st.integers(0, len(RECORDS) - 1), max_size=5),
    st.integers(1, 5),
    st.sampled_from([None, 6]),
)
def test_batches_by_plain_loops(
    stores: dict[str, Any], layout: str, chosen: list[int], multiple: int, limit: int | None
) -> None:
    options = {} if limit is None else {"max_length": limit, "over_long": "truncate_left"}
    collation = Collation(multiple_of=multiple, padding_idx=3, **options)  # type: ignore[arg-type]
    dataset = GroupDataset(stores[layout], collation, max_response_length=limit)
    batch = dataset.read(np.array(chosen, dtype=np.int64))
    records = [RECORDS[i] for i in chosen]
    prompts = [record["prompts"][-(limit or 99) :] for record in records]
    responses = [[some[: limit or 99] for some in split(record, "responses")] for record in records]
    masks = [[some[: limit or 99] for some in split(record, "masks")] for record in records]
    size = max(map(len, responses), default=0)
    width = -(-max(map(len, prompts), default=0) // multiple) * multiple
    longest = -(-max((len(one) for some in responses for one in some), default=0) // multiple) * multiple
    assert batch["prompts"].tolist() == [[3] * (width - len(row)) + row for row in prompts]
    assert batch["prompt_mask"].tolist() == [[False] * (width - len(row)) + [True] * len(row) for row in prompts]
    assert batch["responses"].shape == (len(chosen), size, longest)
    for row, (some, marks) in enumerate(zip(responses, masks, strict=True)):
        for number in range(size):
            ids = some[number] if number < len(some) else []
            mine = marks[number] if number < len(some) else []
            pads = longest - len(ids)
            assert batch["responses"][row, number].tolist() == ids + [3] * pads
            assert batch["response_mask"][row, number].tolist() == [True] * len(ids) + [False] * pads
            assert batch["masks"][row, number].tolist() == [bool(mark) for mark in mine] + [False] * pads
    rewards = [np.array(record["rewards"], np.float32).tolist() for record in records]
    assert batch["rewards"].dtype == np.float32
    assert batch["rewards"].tolist() == [some + [0.0] * (size - len(some)) for some in rewards]
    assert batch["group_mask"].tolist() == [[True] * len(some) + [False] * (size - len(some)) for some in rewards]
    counts = dataset.count(np.array(chosen, dtype=np.int64))
    assert counts.supervised_tokens.tolist() == [sum(map(sum, some)) for some in masks]
    assert counts.documents.tolist() == list(map(len, responses))
    assert batch["num_supervised_tokens"] == counts.supervised_tokens.sum()
    assert counts.tokens.tolist() == [
        len(prompt) + sum(map(len, some)) for prompt, some in zip(prompts, responses, strict=True)
    ]
    assert dataset.sample_lengths(np.array(chosen, dtype=np.int64)).tolist() == [
        len(prompt) + max(map(len, some)) for prompt, some in zip(prompts, responses, strict=True)
    ]


def test_fixed_shapes(stores: dict[str, Any]) -> None:
    collation = Collation(max_length=24, pad_to="max_length", multiple_of=8, over_long="truncate_left")
    batch = GroupDataset(stores["combined"], collation, max_response_length=32).read(np.array([0, 1]))
    assert batch["prompts"].shape == (2, 24)
    assert batch["responses"].shape[2] == 32
    with pytest.raises(ConfigError, match="needs max_response_length"):
        GroupDataset(stores["combined"], collation)
    with pytest.raises(ConfigError, match="max_response_length 30 is not a multiple of 8"):
        GroupDataset(stores["combined"], collation, max_response_length=30)
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        GroupDataset(stores["combined"], max_response_length=0)


def test_items(stores: dict[str, Any]) -> None:
    sample = GroupDataset(stores["keyed"])[4]
    assert [one.tolist() for one in sample["responses"]] == split(RECORDS[4], "responses")
    assert {one.dtype for one in sample["masks"]} == {np.dtype(np.bool_)}
    assert sample["prompts"].dtype == np.int64
    assert sample["rewards"].dtype == np.float32
    with pytest.raises(ConfigError, match="expected an open store"):
        GroupDataset(3)  # type: ignore[arg-type]


def test_groups_whose_numbers_do_not_fit(tmp_path: Path) -> None:
    good = RECORDS[0]
    lengths = good["response_lengths"]
    for name, change, message in (
        ("rewards", {"rewards": [*good["rewards"], 1.0]}, f"{len(lengths) + 1} rewards, {len(lengths)} responses"),
        ("lengths", {"response_lengths": [*lengths[:-1], lengths[-1] + 1]}, "tokens of responses"),
        ("masks", {"masks": good["masks"][:-1]}, "values of 'masks'"),
    ):
        store = records_made.store(tmp_path / name, [{**good, **change}])
        with pytest.raises(InputError, match=message):
            GroupDataset(store)[0]
    over_long = GroupDataset(records_made.store(tmp_path / "long", RECORDS), max_response_length=1)
    with pytest.raises(InputError, match=r"a response has .* tokens, max_response_length is 1"):
        over_long.read(np.arange(len(RECORDS)))


def test_astrais_groups_of_one_are_read_and_others_refused(tmp_path: Path) -> None:
    keys = ("prompts", "responses", "masks", "rewards")
    one = {"prompts": [1], "responses": [2, 3], "masks": [1, 1], "rewards": [0.5]}
    two = {key: RECORDS[next(i for i, r in enumerate(RECORDS) if len(r["rewards"]) == 2)][key] for key in keys}
    dataset = GroupDataset(records_made.store(tmp_path / "old", [one, two], "keyed"))
    assert [ids.tolist() for ids in dataset[0]["responses"]] == [[2, 3]]
    with pytest.raises(InputError, match="record 1 has 2 rewards, and there is no key 'response_lengths'"):
        dataset[1]
