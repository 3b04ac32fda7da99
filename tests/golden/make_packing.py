"""Writes the golden files of packing with torchtune's, TRL's and Transformers' own code.

    python tests/golden/make_packing.py tests/golden/packing

Needs the extra ``interop``. The README beside says what is in each file.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from interop.oracles import torchtune

Case = dict[str, Any]

# Lengths and the options of PackedDataset: the properties of torchtune's own tests, and where its results surprise.
TORCHTUNE: list[tuple[list[int], dict[str, Any]]] = [
    ([3, 2, 2, 2], {"max_seq_len": 6}),
    ([3, 2, 2, 8], {"max_seq_len": 6, "split_across_pack": True}),
    ([7, 7, 7], {"max_seq_len": 10, "split_across_pack": True}),
    ([5] * 10, {"max_seq_len": 13}),
    ([5] * 10, {"max_seq_len": 13, "split_across_pack": True, "max_packs": 3}),
    ([14, 27, 40], {"max_seq_len": 13, "split_across_pack": True, "padding_idx": 8}),
    ([0, 6, 0, 0, 3, 3, 0, 1, 0], {"max_seq_len": 6}),
    ([0, 6, 0, 0, 3, 3, 0, 13, 0], {"max_seq_len": 6, "split_across_pack": True}),
    ([0, 0], {"max_seq_len": 4}),
    ([], {"max_seq_len": 4}),
    ([4, 4, 4], {"max_seq_len": 4, "max_packs": 2}),
    ([4, 4, 9], {"max_seq_len": 4, "max_packs": 1}),
    ([3, 3], {"max_seq_len": 4, "max_packs": 0}),
    ([1, 1, 1], {"max_seq_len": 1}),
    ([4, 7, 1], {"max_seq_len": 6}),
]
# Lengths, seq_length, strategy, and how many documents TRL packs together.
TRL: list[tuple[list[int], int, str, int]] = [
    ([5, 2, 3, 1], 4, "bfd", 1000),
    ([5, 2, 3, 1], 4, "bfd_split", 1000),
    ([3, 0, 2, 2, 4, 1, 1, 6], 6, "bfd", 1000),
    ([13, 3, 0, 6, 12, 5], 6, "bfd_split", 1000),
    ([5, 1, 4, 2, 3, 3, 2, 4, 1, 5, 6, 6], 6, "bfd", 4),
    ([7, 1, 9, 2, 3, 3, 2, 8, 1, 5, 6, 16], 6, "bfd_split", 5),
]
FLATTENING: list[tuple[list[Case], dict[str, Any]]] = [
    ([{"input_ids": [10, 11, 12]}, {"input_ids": [20, 21]}], {}),
    (
        [{"input_ids": [1, 2, 3], "labels": [1, -100, 3]}, {"input_ids": [4], "labels": [4]}],
        {"return_flash_attn_kwargs": True, "return_seq_idx": True},
    ),
    ([{"input_ids": [7, 8]}, {"input_ids": [9, 5, 6]}], {"separator_id": -7, "position_ids_start": 2}),
    ([{"input_ids": [7, 8]}], {"return_position_ids": False, "return_flash_attn_kwargs": True}),
]


def samples(lengths: list[int]) -> list[Case]:
    """Tokens count up from 1; every third label is masked."""
    made, token = [], 1
    for length in lengths:
        tokens = list(range(token, token + length))
        made.append({"tokens": tokens, "labels": [-100 if token % 3 == 0 else token for token in tokens]})
        token += length
    return made


def torchtune_case(lengths: list[int], options: dict[str, Any]) -> Case:
    peer = torchtune()
    case: Case = {"samples": samples(lengths), "options": options}
    try:
        packed = peer.PackedDataset(case["samples"], **options)
    except ValueError as error:
        return {**case, "error": str(error)}
    packs = [{name: values.tolist() for name, values in pack.items()} for pack in packed.packs]
    masks = [peer.create_block_causal_mask([pack["seq_lens"]])[0].int().tolist() for pack in packed.packs]
    return {**case, "packs": packs, "masks": masks}


def trl_plan(lengths: list[int], seq_length: int, strategy: str, batch_size: int) -> list[list[list[int]]]:
    """For each pack its pieces in order: document, first token of it, and length."""
    from trl.data_utils import pack_dataset

    import datasets

    datasets.disable_progress_bars()
    # A token says where it comes from: 1,000,000 times its document, and its place there.
    ids = [np.arange(length) + 1_000_000 * document for document, length in enumerate(lengths)]
    dataset = datasets.Dataset.from_dict({"input_ids": ids})
    packed = pack_dataset(dataset, seq_length, strategy, {"batch_size": batch_size, "keep_in_memory": True})
    plan = []
    for row in packed:
        pieces, column = [], 0
        for length in row["seq_lengths"]:
            document, begin = divmod(row["input_ids"][column], 1_000_000)
            assert row["input_ids"][column : column + length] == list(
                range(row["input_ids"][column], row["input_ids"][column] + length)
            )
            pieces.append([document, begin, length])
            column += length
        plan.append(pieces)
    return plan


def flattened(features: list[Case], options: dict[str, Any]) -> dict[str, Any]:
    from transformers import DataCollatorWithFlattening

    batch = DataCollatorWithFlattening(**options)(features)
    return {
        name: value if isinstance(value, int) else {"dtype": str(value.dtype), "values": value.tolist()}
        for name, value in batch.items()
    }


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _save(folder / "torchtune.json", [torchtune_case(*case) for case in TORCHTUNE])
        keys = ("lengths", "seq_length", "strategy", "batch_size")
        _save(folder / "trl.json", [{**dict(zip(keys, case, strict=True)), "packs": trl_plan(*case)} for case in TRL])
        cases = [{"features": case[0], "options": case[1], "batch": flattened(*case)} for case in FLATTENING]
        _save(folder / "flattening.json", cases)


def _save(path: Path, cases: list[Case]) -> None:
    dump: Callable[[Case], str] = json.dumps
    path.write_text("[\n" + ",\n".join(map(dump, cases)) + "\n]\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
