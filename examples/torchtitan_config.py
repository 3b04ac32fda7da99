"""torchtitan trains on a run of Headrace, and resumes at any data-parallel degree.

    torchrun --nproc-per-node 8 -m torchtitan.train --module my_models --config llama3_on_headrace

where ``my_models/config_registry.py`` holds ``llama3_on_headrace``. Here the loader is built as the trainer builds it,
for two ranks, since the trainer itself needs an accelerator.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import corpus

import headrace
from headrace.integrations.torchtitan import HeadraceDataLoader

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-titan-"))
SEQ_LEN, GLOBAL_BATCH = 128, 8


def make_run() -> headrace.Run:
    """Each process makes the run itself."""
    dataset = headrace.WindowDataset(headrace.open(FOLDER / "small"), seq_len=SEQ_LEN, position_ids="restart")
    return headrace.Run(dataset, global_batch_size=GLOBAL_BATCH, order=headrace.Order(seed=1), samples=60)


def llama3_on_headrace() -> Any:
    """torchtitan's configuration of a small Llama, with the data of the run."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dataloader = HeadraceDataLoader.Config(run=make_run)
    config.training.seq_len, config.training.global_batch_size = SEQ_LEN, GLOBAL_BATCH
    config.training.local_batch_size = 2
    return config


if __name__ == "__main__":
    corpus.make(FOLDER)
    config = llama3_on_headrace()
    for rank in range(2):
        loader = config.dataloader.build(
            dp_world_size=2, dp_rank=rank, tokenizer=None, seq_len=SEQ_LEN, local_batch_size=2
        )
        batches = list(loader)
        trained = sum(int((labels != -100).any(1).sum()) for _, labels in batches)
        print(f"rank {rank} of 2: {len(batches)} batches of 2, {trained} samples")
