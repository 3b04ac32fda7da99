"""TRL's tests of packing and of its collators, by our plans of packs and our batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace
from headrace.datasets.records import Collation
from headrace.loader import collate_fn
from headrace.loader.attention import flatten
from headrace.plan.packing import Packing, plan_packs
from headrace.stores import KeyedWriter
from suites.suite import Suite, variant

SUITE = Suite(
    name="trl",
    tests=(
        "tests/test_data_utils.py::TestPackDatasetWrapped",
        "tests/test_data_utils.py::TestPackDatasetBfd",
        "tests/test_sft_trainer.py::TestDataCollatorForLanguageModeling",
        "tests/test_dpo_trainer.py::TestDataCollatorForPreference",
    ),
    variants=("names",),
    options=("--noconftest",),
)

IGNORED = -100


def pytest_configure() -> None:
    """Put our functions in place of TRL's."""
    import trl.data_utils
    import trl.trainer.dpo_trainer
    import trl.trainer.sft_trainer

    if variant() != "itself":
        trl.data_utils.pack_dataset = pack_dataset
        trl.trainer.sft_trainer.DataCollatorForLanguageModeling = LanguageModeling
        trl.trainer.dpo_trainer.DataCollatorForPreference = Preference


def pack_dataset(dataset: Any, seq_length: int, strategy: str = "bfd", map_kwargs: Any = None) -> Any:
    """``trl.pack_dataset``: the plan of packs is ours, the columns are moved as it says."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        columns = next(iter(dataset.with_format(None))).keys()
    else:
        columns = dataset.column_names
    packed = partial(_packed, seq_length=seq_length, strategy=strategy)
    formatting = getattr(dataset, "_formatting", None) or getattr(dataset, "format", None)
    made = dataset.with_format(None).map(packed, batched=True, remove_columns=list(columns), **(map_kwargs or {}))
    if hasattr(dataset, "_formatting"):
        made._formatting = formatting
        return made
    names = list(made.column_names)
    return made.with_format(formatting["type"], columns=names, **formatting["format_kwargs"])


def _packed(batch: Mapping[str, list[Any]], seq_length: int, strategy: str) -> dict[str, list[Any]]:
    first = next(iter(batch.values()))
    if strategy == "wrapped":
        whole = {key: [one for row in rows for one in row] for key, rows in batch.items()}
        num_tokens = len(next(iter(whole.values())))
        return {
            key: [row[begin : begin + seq_length] for begin in range(0, num_tokens, seq_length)]
            for key, row in whole.items()
        }
    packing = Packing(
        seq_len=seq_length,
        strategy="best_fit" if strategy == "bfd" else "best_fit_split",
        over_long="truncate_right" if strategy == "bfd" else "split",
    )
    plan = plan_packs(np.array([len(row) for row in first], np.int64), packing)
    items = plan.items(np.arange(len(plan)))
    pieces = list(zip(items.documents.tolist(), items.begins.tolist(), items.lengths.tolist(), strict=True))
    packs = [pieces[begin:end] for begin, end in zip(items.offsets[:-1], items.offsets[1:], strict=True)]
    made: dict[str, list[Any]] = {
        key: [[one for number, begin, n in pack for one in rows[number][begin : begin + n]] for pack in packs]
        for key, rows in batch.items()
    }
    return {**made, "seq_lengths": [[length for *_, length in pack] for pack in packs]}


def stored(keys: Mapping[str, Sequence[Sequence[int]]]) -> Any:
    """An open store with these documents."""
    folder = Path(tempfile.mkdtemp()) / "store"
    folder.mkdir()
    dtypes = {key: "uint8" if key.endswith("mask") else "int32" for key in keys}
    with KeyedWriter(folder, dtypes=dtypes, offsets=list(keys)) as writer:
        writer.add_documents(
            {key: np.concatenate([np.array(row, dtypes[key]) for row in rows]) for key, rows in keys.items()},
            {key: np.array([len(row) for row in rows], np.int64) for key, rows in keys.items()},
        )
        writer.finish()
    return headrace.open(folder)


class LanguageModeling:
    """TRL's ``DataCollatorForLanguageModeling``: batches of `SFTDataset` with labels as TRL's, or flat ones."""

    def __init__(
        self, pad_token_id: int, padding_free: bool = False, pad_to_multiple_of: int | None = None, **_: Any
    ) -> None:
        self.pad, self.padding_free, self.multiple = pad_token_id, padding_free, pad_to_multiple_of

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch."""
        rows = [
            (example["input_ids"], [int(label != IGNORED) for label in example.get("labels", example["input_ids"])])
            for example in examples
        ]
        if self.padding_free:
            return self._flat(examples)
        collation = Collation(padding_idx=self.pad, multiple_of=self.multiple or 1)
        dataset = headrace.SFTDataset(
            stored({"tokens": [ids for ids, _ in rows], "loss_mask": [mask for _, mask in rows]}),
            collation,
            labels="same",
        )
        batch = collate_fn(dataset)([dataset[number] for number in range(len(examples))])
        return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}

    def _flat(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        features = []
        for example in examples:
            begin = 0
            for length in example.get("seq_lengths", [len(example["input_ids"])]):
                place = slice(begin, begin + length)
                ids = example["input_ids"][place]
                features.append({"input_ids": ids, "labels": example.get("labels", example["input_ids"])[place]})
                begin += length
        flat = {name: torch.as_tensor(value) for name, value in flatten(features).items()}
        # Ours has no pads, which flash attention does not need. Who wants a multiple adds them.
        num_pads = -flat["input_ids"].shape[1] % (self.multiple or 1)
        fill = {"input_ids": self.pad, "labels": IGNORED, "position_ids": 0}
        return {name: torch.nn.functional.pad(value, (0, num_pads), value=fill[name]) for name, value in flat.items()}

    @staticmethod
    def get_position_ids_from_packed_seq_lengths(batch_seq_lengths: list[list[int]]) -> list[Any]:
        """Positions of packed rows."""
        features = [[{"input_ids": [0] * n, "labels": [0] * n} for n in row] for row in batch_seq_lengths]
        return [torch.as_tensor(flatten(row)["position_ids"])[0] for row in features]


class Preference:
    """TRL's ``DataCollatorForPreference``: batches of `PreferenceDataset` with ``layout="stacked"``."""

    def __init__(self, pad_token_id: int, pad_to_multiple_of: int | None = None, **_: Any) -> None:
        self.collation = Collation(padding_idx=pad_token_id, multiple_of=pad_to_multiple_of or 1)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch."""
        keys: dict[str, list[list[int]]] = {}
        for side in ("chosen", "rejected"):
            pairs = [(example["prompt_ids"], example[f"{side}_ids"]) for example in examples]
            keys[side] = [[*prompt, *answer] for prompt, answer in pairs]
            keys[f"{side}_mask"] = [[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs]
        dataset = headrace.PreferenceDataset(stored(keys), self.collation, layout="stacked")
        collated: Callable[[Any], Any] = collate_fn(dataset)
        batch = collated([dataset[number] for number in range(len(examples))])
        # Other columns of a record are the caller's.
        others = {
            name: torch.tensor([example[name] for example in examples]) for name in examples[0] if "logps" in name
        }
        return {**{name: batch[name] for name in ("input_ids", "attention_mask", "completion_mask")}, **others}
