"""Trains a model on rewards: it answers each prompt many times, and a function judges the answers by the columns.

Every prompt has one fate: its group is trained on, or left out since all of its rewards are equal.
"""

from __future__ import annotations

from typing import Any

import chats
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

import headrace
from headrace.preparing import PrepareOptions
from headrace.samples.recipe import parse_recipe

PROMPTS, GROUP = 11, 32

folder = chats.make()
length = "{max_tokens: 64, truncate: drop}"
source = f"type: prompt, inputs: {folder}/prompts.jsonl, tokenizer: {folder}"
recipe = parse_recipe(f"{{{source}, template: chatml, length: {length}}}")
headrace.prepare([], folder / "store", recipe=recipe, options=PrepareOptions(workers=1), on_notice=print)
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
prompts = headrace.Prompts(run, group_size=GROUP)
while taken := prompts.take(PROMPTS):
    batch = prompts.collate(taken)  # each prompt GROUP times
    # Prompts are padded on the left, so the last token is the end of the prompt. Here a response is one token.
    logits = model(batch["input_ids"])[:, -1]
    ids = torch.multinomial(logits.softmax(-1), 1)
    responses = tokenizer.decode_batch(ids.tolist())
    rewards = torch.tensor(list(map(reward, responses, batch["columns"]))).view(PROMPTS, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    loss = (cross_entropy(logits, ids.flatten(), reduction="none") * advantages.flatten()).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for prompt, group in zip(taken, rewards, strict=True):
        is_same = group.min() == group.max()
        prompts.filter(prompt.position, "all rewards equal") if is_same else prompts.finish(prompt.position)
    means.append(rewards.mean().item())
print(f"{batch['columns'][-1]} is answered {responses[-3:]}")
print(f"mean reward of the first five steps {sum(means[:5]) / 5:.3f}, of the last five {sum(means[-5:]) / 5:.3f}")
print(prompts.account().describe())  # prompts.state_dict() belongs into each checkpoint
