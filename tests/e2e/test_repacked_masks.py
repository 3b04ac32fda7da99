"""Conversations of a recipe, packed anew in each epoch: documents whole, with their own masks and positions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

import faults
import headrace
import recipe_runs as runs

EPOCHS = 4
SIZE = 200


def test_masks_go_with_their_documents_in_every_epoch(tmp_path: Path) -> None:
    runs.make_model(tmp_path / "model")
    records = [{"messages": runs.talk(number, 1 + (number % 9 == 0))} for number in range(10, 100)]
    runs.write_lines(tmp_path / "data" / "a.jsonl", records)
    with faults.small_run():
        runs.prepare(runs.SFT + f"length: {{max_tokens: {SIZE}}}\n", tmp_path, tmp_path / "out")
    store = headrace.open(tmp_path / "out")
    documents = [store.document(number, ["tokens", "loss_mask"]) for number in range(len(store))]
    number_of = {document["tokens"].tobytes(): number for number, document in enumerate(documents)}
    assert len(number_of) == len(documents) > 40
    lengths = [len(document["tokens"]) for document in documents]
    assert max(Counter(lengths).values()) > 2  # of equal lengths there are some to be exchanged

    dataset = headrace.PackedSequenceDataset(
        store, headrace.Packing(seq_len=SIZE, repack=True), loss_mask_key="loss_mask"
    )
    run = headrace.Run(dataset, global_batch_size=3, order=headrace.Order(kind="full", seed=3), epochs=EPOCHS)
    rows = [
        row
        for batch in headrace.Loader(run, micro_batch_size=1)
        for row in zip(
            batch["input_ids"].numpy(),
            batch["labels"].numpy(),
            batch["position_ids"].numpy(),
            batch["sample_positions"].tolist(),
            strict=True,
        )
    ]
    assert len(rows) == EPOCHS * len(dataset)
    seen: dict[int, list[int]] = {epoch: [] for epoch in range(EPOCHS)}
    meetings: dict[int, set[frozenset[int]]] = {epoch: set() for epoch in range(EPOCHS)}
    for ids, labels, positions, place in rows:
        epoch = place // len(dataset)
        begins = [*np.flatnonzero(positions == 0).tolist(), SIZE]
        together = []
        for begin, end in pairwise(begins):
            number = number_of.get(ids[begin:end].astype(documents[0]["tokens"].dtype).tobytes())
            if number is None:  # pads, at the end
                assert end == SIZE
                assert (labels[begin:] == -100).all()
                continue
            tokens, mask = documents[number]["tokens"], documents[number]["loss_mask"]
            assert positions[begin:end].tolist() == list(range(len(tokens)))
            # A label is the next token of the same document, where that is trained; the last one has none.
            wanted = [int(token) if one else -100 for token, one in zip(tokens[1:], mask[1:], strict=True)]
            assert labels[begin:end].tolist() == [*wanted, -100]
            together.append(number)
        seen[epoch] += together
        meetings[epoch].add(frozenset(together))
    for epoch in range(EPOCHS):
        assert sorted(seen[epoch]) == list(range(len(documents)))
    assert all(meetings[epoch] != meetings[epoch + 1] for epoch in range(EPOCHS - 1))
    trained = sum(int(document["loss_mask"][1:].sum()) for document in documents)
    assert sum(int((labels != -100).sum()) for _, labels, *_ in rows) == EPOCHS * trained
