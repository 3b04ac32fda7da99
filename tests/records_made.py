"""Small stores of records for fine-tuning, preference and reinforcement data, and the plain lists that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.stores import CombinedStore, KeyedStore, Store
from token_shards import write_keyed

DTYPES = {
    "tokens": "uint16",
    "loss_mask": "uint8",
    "num_supervised": "int32",
    "label": "uint8",
    "chosen": "int32",
    "chosen_mask": "uint8",
    "rejected": "int32",
    "rejected_mask": "uint8",
    "prompts": "int32",
    "responses": "int32",
    "masks": "uint8",
    "response_lengths": "int32",
    "rewards": "float32",
    "columns": "uint8",
}

Record = dict[str, list[Any]]
"""One record: for each key its values."""


def write(folder: Path, records: list[Record]) -> Path:
    """One shard of the keyed format, every key with offsets of its own."""
    keys = {key: (DTYPES[key], [np.array(record[key], DTYPES[key]) for record in records]) for key in records[0]}
    write_keyed(folder, **keys)
    return folder


def combined(folder: Path, records: list[Record]) -> Store:
    """The same as a store with shards of its own for each key."""
    folder.mkdir(parents=True, exist_ok=True)
    stores = {}
    for key in records[0]:
        stores[key] = KeyedStore(write(folder / key, [{key: record[key]} for record in records]))
    return CombinedStore(stores, str(folder))


def store(folder: Path, records: list[Record], layout: str = "combined") -> Store:
    return combined(folder, records) if layout == "combined" else KeyedStore(write(folder, records))


def marked(rng: np.random.Generator, length: int) -> list[int]:
    """A mask in which something is trained on, if there is anything to train on."""
    marks = (rng.random(length) < 0.5).astype(int)
    marks[-1:] = 1
    return marks.tolist()  # type: ignore[no-any-return]


def sft(seed: int, count: int, *, longest: int = 40, counted: bool = True) -> list[Record]:
    """Conversations of 2 to ``longest`` tokens."""
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(2, longest + 1, count).tolist():
        record: Record = {"tokens": rng.integers(1, 60_000, length).tolist(), "loss_mask": marked(rng, length)}
        if counted:
            record["num_supervised"] = [sum(record["loss_mask"])]
        found.append(record)
    return found


def preferences(seed: int, count: int, *, longest: int = 30) -> list[Record]:
    """Pairs with a common prompt, whose mask is 0."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        prompt = rng.integers(1, 60_000, rng.integers(1, longest // 2)).tolist()
        record: Record = {}
        for answer in ("chosen", "rejected"):
            reply = rng.integers(1, 60_000, rng.integers(1, longest // 2)).tolist()
            record[answer] = prompt + reply
            record[f"{answer}_mask"] = [0] * len(prompt) + [1] * len(reply)
        found.append(record)
    return found


def groups(seed: int, count: int, *, longest: int = 20, sizes: tuple[int, ...] = (1, 2, 3, 4)) -> list[Record]:
    """Prompts with groups of responses, some of them empty."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(rng.choice(sizes))
        lengths = rng.integers(0, longest, size)
        lengths[0] += 1
        total = int(lengths.sum())
        found.append(
            {
                "prompts": rng.integers(1, 60_000, rng.integers(1, longest)).tolist(),
                "responses": rng.integers(1, 60_000, total).tolist(),
                "masks": [1, *marked(rng, total - 1)],
                "response_lengths": lengths.tolist(),
                "rewards": np.round(rng.normal(size=size), 3).astype(np.float32).tolist(),
            }
        )
    return found


def prompts(seed: int, count: int, *, longest: int = 20) -> list[Record]:
    """Prompts with columns as verl has them."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        columns = {"data_source": "made", "reward_model": {"ground_truth": str(number)}, "index": number}
        ids = rng.integers(1, 60_000, rng.integers(1, longest)).tolist()
        found.append({"prompts": ids, "columns": list(msgspec.json.encode(columns))})
    return found


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch as plain lists."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}
