"""Writes data and the index caches that megatron-core's own builder makes of them.

    python tests/golden/make_megatron_cache.py tests/golden/megatron_cache

Needs the extra ``interop``. The paths in the caches are relative to that folder.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES = {"data/web": [20, 50, 60, 30, 100, 5, 0, 40, 17, 3, 24, 90], "data/code": [31, 8, 64, 2, 77, 12]}
SHARED = {"random_seed": 1234, "sequence_length": 16}
SINGLE = {"blend": (["data/web"], None), "split": "60,30,10", "drop_last_partial_validation_sequence": False}
"""25 samples of training: two epochs, the last one apart; a partial sample is kept in the validation."""
BLEND = {"blend": (["data/web", "data/code"], [0.7, 0.3]), "split": "1, 0, 0"}
NO_WEIGHTS = {"blend_per_split": [(["data/web", "data/code"], None), None, None], "split": None}


class Tokenizer:
    """As much of a tokenizer as a GPTDataset asks for; the identifiers are not ASCII on purpose."""

    vocab_size = 60000
    eod = 59999
    pad = 59998
    unique_identifiers: dict[str, Any] = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}  # noqa: RUF012


def write(indexed: Any, prefix: str, sizes: list[int]) -> None:
    """Documents of one sequence of these sizes; token i of the stream is i."""
    Path(prefix).parent.mkdir(exist_ok=True)
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    token = 0
    for size in sizes:
        builder.add_item(torch.from_numpy((token + np.arange(size)).astype(np.int32)))
        builder.end_document()
        token += size
    builder.finalize(f"{prefix}.idx")


def make(folder: Path) -> None:
    """Write everything into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    meeting = tempfile.mkdtemp()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = ("gpt_dataset", "indexed_dataset", "blended_megatron_dataset_builder")
            gpt, indexed, builder = (importlib.import_module(f"megatron.core.datasets.{name}") for name in names)
            for prefix, sizes in SIZES.items():
                write(indexed, prefix, sizes)
            torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}/one", rank=0, world_size=1)
            for wanted, options in (([25, 4, None], SINGLE), ([40, 1, 1], BLEND), ([None] * 3, NO_WEIGHTS)):
                config = gpt.GPTDatasetConfig(
                    path_to_cache="cache",
                    tokenizer=Tokenizer(),
                    reset_position_ids=False,
                    reset_attention_mask=False,
                    eod_mask_loss=False,
                    create_attention_mask=False,
                    **SHARED,
                    **options,
                )
                builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, wanted, lambda: True, config).build()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.chdir(before)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
