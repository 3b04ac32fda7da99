"""Trains a model on rewards: it answers each prompt many times, and a function judges the answers by the columns."""

from __future__ import annotations

from typing import Any

import chats
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

import headrace
from headrace.preparing import RecipeOptions
from headrace.samples.recipe import parse_recipe

PROMPTS, GROUP = 11, 32

folder = chats.make()
recipe = parse_recipe(f"""
type: prompt
inputs: {folder}/prompts.jsonl
tokenizer: {folder}
template: chatml
length: {{max_tokens: 64, truncate: drop}}
""")
headrace.prepare([], folder / "store", recipe=recipe, options=RecipeOptions(workers=1), on_notice=print)
dataset = headrace.PromptDataset(headrace.open(folder / "store"))
run = headrace.Run(dataset, global_batch_size=PROMPTS, order=headrace.Order(seed=1), epochs=6)


def reward(response: str, columns: dict[str, Any]) -> float:
    """1 for the right sum, and a little for any number."""
    return 1.0 if response == columns["ground_truth"] else 0.1 * response.isdecimal()


torch.manual_seed(0)
model = chats.Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
means = []
for batch in headrace.Loader(run, micro_batch_size=PROMPTS):
    # Prompts are padded on the left, so the last token is the end of the prompt. Here a response is one token.
    logits = model(batch["input_ids"])[:, -1].repeat_interleave(GROUP, 0)
    ids = torch.multinomial(logits.softmax(-1), 1)
    responses = tokenizer.decode_batch(ids.tolist())
    columns = [columns for columns in batch["columns"] for _ in range(GROUP)]
    rewards = torch.tensor(list(map(reward, responses, columns))).view(PROMPTS, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    loss = (cross_entropy(logits, ids.flatten(), reduction="none") * advantages.flatten()).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    means.append(rewards.mean().item())
print(f"{columns[-1]} is answered {responses[-3:]}")
print(f"mean reward of the first five steps {sum(means[:5]) / 5:.3f}, of the last five {sum(means[-5:]) / 5:.3f}")
