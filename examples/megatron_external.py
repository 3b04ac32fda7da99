"""Megatron-LM's ``--dataloader-type external`` over a run: stopped within a step, and resumed at the consumed samples.

In ``pretrain_gpt.py`` only `provider` is needed. Here, without a GPU, its arguments and its steps are made by hand.
"""

from __future__ import annotations

import os
from argparse import Namespace
from copy import deepcopy
from typing import Any

import corpus
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.nn.functional import cross_entropy

import headrace
from headrace.integrations.megatron import batch_schedule, dataloaders

MICRO, GLOBAL, STEPS = 2, 8, 12
folder = corpus.make()


def provider(args: Namespace) -> Any:
    """Is called by Megatron in every process: set ``is_distributed`` of this function to True."""
    dataset = headrace.WindowDataset(headrace.open(folder / "small"), seq_len=args.seq_length)
    return dataloaders(args, train=headrace.Run(dataset, global_batch_size=batch_schedule(args)))


def train(checkpoint: dict[str, Any], stop_at: int = -1) -> dict[str, Any]:
    """Train from a checkpoint on; return the last one, of every fourth step. Stop before a micro-step, if asked to."""
    model = deepcopy(checkpoint["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    args = Namespace(dataloader_type="external", global_batch_size=GLOBAL, micro_batch_size=MICRO, seq_length=64)
    vars(args).update(train_samples=STEPS * GLOBAL, consumed_train_samples=checkpoint["consumed"])
    loader, _, _ = provider(args)
    for micro_step in range(checkpoint["consumed"] // MICRO, STEPS * GLOBAL // MICRO):
        if micro_step == stop_at:
            return checkpoint
        batch, consumed = next(loader), (micro_step + 1) * MICRO
        losses = cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten(), reduction="none")
        (losses * batch["loss_mask"].flatten()).mean().backward()
        if consumed % GLOBAL == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {consumed // GLOBAL}, loss {losses.mean().item():.3f}, position {loader.loader.position}")
            if consumed % (4 * GLOBAL) == 0:
                checkpoint = {"model": deepcopy(model), "consumed": consumed}
    return checkpoint


dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
first = {"model": torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000)), "consumed": 0}
train(train(first, stop_at=26))
os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
