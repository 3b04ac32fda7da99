"""Shards are cut by documents alone, whatever the pieces and the interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import StoreError
from headrace.preparing import store_output
from headrace.preparing.columns import DOMAIN, Column
from headrace.preparing.store_output import OutputState, StoreOutput

KEYS = ("text", "title")


def open_output(folder: Path, layout: Any, shard_tokens: int | None, state: OutputState) -> StoreOutput:
    columns = [Column(key, "uint16") for key in KEYS]
    return StoreOutput(folder, layout=layout, columns=columns, shard_tokens=shard_tokens, state=state)


def add(output: StoreOutput, lengths: list[tuple[int, int]], first: int) -> None:
    """Append documents from number ``first`` on, whose values are their numbers."""
    rows = [
        (
            np.concatenate([np.full(pair[key], first + at, np.uint16) for at, pair in enumerate(lengths)] or [[]]),
            np.array([pair[key] for pair in lengths], np.int64),
        )
        for key in range(2)
    ]
    output.add(rows, np.arange(first, first + len(lengths)))


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
@example(lengths=[(3, 0), (2, 1), (3, 0)], shard_tokens=6, steps=[])  # two documents fill a shard exactly
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=25),
    shard_tokens=st.none() | st.integers(1, 40),
    steps=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["go on", "checkpoint", "die"])), max_size=12),
)
def test_shards(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    lengths: list[tuple[int, int]],
    shard_tokens: int | None,
    steps: list[tuple[int, str]],
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    output = open_output(folder, layout, shard_tokens, OutputState())
    first = 0
    for count, what in [*steps, (len(lengths), "go on")]:
        last = min(first + count, len(lengths))
        add(output, lengths[first:last], first)
        first = last
        if what != "go on":
            state = output.checkpoint()
        if what == "die":
            # What comes after the last checkpoint is made again.
            if first < len(lengths):
                add(output, lengths[first : first + 1], first)
            output.suspend()
            output = open_output(folder, layout, shard_tokens, state)
    [shards] = output.finish()
    wanted: list[list[int]] = [[]]
    for index, pair in enumerate(lengths):
        size = sum(sum(lengths[one]) for one in wanted[-1])
        if shard_tokens is not None and wanted[-1] and size + sum(pair) > shard_tokens:
            wanted.append([])
        wanted[-1].append(index)
    assert [written[0].num_documents for written in shards] == list(map(len, wanted))
    for written, documents in zip(shards, wanted, strict=True):
        for key in range(2):
            with headrace.open(written[key].prefix if layout == "indexed" else written[0].prefix) as store:
                name = "tokens" if layout == "indexed" else KEYS[key]
                found = [store.document(at, name).tolist() for at in range(len(store))]
            assert found == [[index] * lengths[index][key] for index in documents]


@pytest.mark.parametrize("layout", ["indexed", "keyed", "hdf5", "jsonl"])
def test_a_shard_of_a_layout_that_lists_its_documents_has_not_too_many(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_output, "MAX_DOCUMENTS", 4)
    output = open_output(tmp_path, layout, 1000, OutputState())
    add(output, [(1, 1)] * 3, 0)
    state = output.checkpoint()
    output.suspend()
    output = open_output(tmp_path, layout, 1000, state)
    add(output, [(1, 1)] * 7, 3)
    [shards] = output.finish()
    assert [written[0].num_documents for written in shards] == ([10] if layout == "indexed" else [4, 4, 2])


def test_ordinals_that_the_disk_lost_are_not_made_up(tmp_path: Path) -> None:
    columns = [Column("tokens", "uint16"), DOMAIN]
    output = StoreOutput(tmp_path, layout="indexed", columns=columns, shard_tokens=None, state=OutputState())
    ones = np.ones(4, np.int64)
    rows = [(np.arange(4, dtype=np.uint16), ones), (np.array([0, 1, 1, 0], np.int32), ones)]
    output.add(rows, np.arange(4))
    state = output.checkpoint()
    assert np.concatenate(list(output.ordinals())).tolist() == [0, 3, 1, 2]
    output.suspend()
    (tmp_path / "domain_0001" / "ordinals").write_bytes(bytes(8))
    with pytest.raises(StoreError, match=r"ordinals: has 8 bytes, 16 were written.*--restart"):
        StoreOutput(tmp_path, layout="indexed", columns=columns, shard_tokens=None, state=state)
