"""Trains a model on preference pairs: a recipe, batches in which pairs stay together, and the loss of DPO."""

from __future__ import annotations

import copy

import chats
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

import headrace
from headrace.preparing import PrepareOptions
from headrace.samples.recipe import parse_recipe

BETA = 0.1

folder = chats.make()
recipe = parse_recipe(f"""
type: dpo
inputs: {folder}/pairs.jsonl
tokenizer: {folder}
template: chatml
strings: chat  # prompt and answers are strings; they are rendered as turns
""")
headrace.prepare([], folder / "store", recipe=recipe, options=PrepareOptions(workers=1), on_notice=print)
dataset = headrace.PreferenceDataset(headrace.open(folder / "store"))
run = headrace.Run(dataset, global_batch_size=16, order=headrace.Order(seed=1), epochs=2, drop_last=True)


def log_probability(model: torch.nn.Module, batch: dict[str, Tensor], side: str) -> Tensor:
    """(B,) log probabilities of the answers only, since the labels of the prompt and of pads are -100."""
    logits = model(batch[f"{side}_input_ids"])
    return -cross_entropy(logits.transpose(1, 2), batch[f"{side}_labels"], reduction="none").sum(1)


torch.manual_seed(0)
policy = chats.Model()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
losses, margins = [], []
for batch in headrace.Loader(run, micro_batch_size=16):
    chosen, rejected = (
        log_probability(policy, batch, side) - log_probability(reference, batch, side)
        for side in ("chosen", "rejected")
    )
    loss = -logsigmoid(BETA * (chosen - rejected)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    margins.append((chosen - rejected).mean().item())
print(f"loss at first {losses[0]:.3f}, at last {losses[-1]:.3f}")
print(f"margin of the chosen answer at first {margins[0]:.1f}, at last {margins[-1]:.1f}")
