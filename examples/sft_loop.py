"""Trains a model on conversations in a plain loop: recipe, store, batches, and the correct loss of each step."""

from __future__ import annotations

import chats
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

import headrace
from headrace.preparing import PrepareOptions
from headrace.samples.recipe import parse_recipe

folder = chats.make()
recipe = parse_recipe(f"""
type: sft
inputs: {folder}/chat.jsonl
tokenizer: {folder}
template: chatml
mask: {{turns: all, end_of_turn: train}}
length: {{max_tokens: 128, truncate: keep_last_turns}}
""")
headrace.prepare([], folder / "store", recipe=recipe, options=PrepareOptions(workers=1), on_notice=print)

dataset = headrace.SFTDataset(headrace.open(folder / "store"))
sample, tokenizer = dataset[0], Tokenizer.from_file(str(folder / "tokenizer.json"))
trained = tokenizer.decode(sample["labels"][sample["loss_mask"]], skip_special_tokens=False)
print(f"trained of the first conversation: {trained!r}")

run = headrace.Run(dataset, global_batch_size=16, order=headrace.Order(seed=1), epochs=4, drop_last=True)
loader = headrace.Loader(run, micro_batch_size=4)
torch.manual_seed(0)
model = chats.Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = [0.0]
for batch in loader:
    logits = model(batch["input_ids"]).flatten(0, 1)
    # The sum over this micro-batch, divided by the labels of the whole step: the same for any micro-batches and ranks.
    loss = cross_entropy(logits, batch["labels"].flatten(), reduction="sum") / batch["step_supervised_tokens"]
    loss.backward()
    losses[-1] += loss.item()
    if loader.step == len(losses):  # the step is complete
        optimizer.step()
        optimizer.zero_grad()
        losses.append(0.0)
print(f"loss at first {losses[0]:.3f}, at last {losses[-2]:.3f}")
