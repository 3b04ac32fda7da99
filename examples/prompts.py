"""Dispatches prompts to slow rollouts, is stopped with some of them in hand, and goes on without losing one."""

from __future__ import annotations

import json
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import chats

import headrace
from headrace.loader import DispatchedPrompt
from headrace.preparing import PrepareOptions
from headrace.samples.recipe import parse_recipe

GROUP, IN_FLIGHT = 4, 6

folder = chats.make()
recipe = parse_recipe(f"{{type: prompt, inputs: {folder}/prompts.jsonl, tokenizer: {folder}, template: chatml}}")
headrace.prepare([], folder / "store", recipe=recipe, options=PrepareOptions(workers=1))
dataset = headrace.PromptDataset(headrace.open(folder / "store"))
run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=80)


def roll_out(prompt: DispatchedPrompt) -> tuple[DispatchedPrompt, list[float]]:
    """Answer a prompt GROUP times. Some take much longer than others, and some rewards are all equal."""
    time.sleep(0.02 if prompt.position % 7 == 0 else 0.001)
    return prompt, [float(response % 3 < prompt.position % 3) for response in range(GROUP)]


def train(prompts: headrace.Prompts, stop_after: int) -> None:
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        pending = {pool.submit(roll_out, prompt) for prompt in prompts.take(IN_FLIGHT)}
        while pending and prompts.account().num_settled < stop_after:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for prompt, rewards in (future.result() for future in done):
                if len(set(rewards)) == 1:
                    prompts.filter(prompt.position, "all rewards equal")
                else:
                    prompts.finish(prompt.position)  # after optimizer.step()
            pending |= {pool.submit(roll_out, prompt) for prompt in prompts.take(len(done))}


prompts = headrace.Prompts(run, group_size=GROUP)
train(prompts, stop_after=30)
state = json.dumps(prompts.state_dict())  # into the checkpoint, beside the model
print(f"stopped with {len(prompts.outstanding)} prompts in hand, a state of {len(state)} bytes")

resumed = headrace.Prompts(run, group_size=GROUP)
resumed.load_state_dict(json.loads(state))
train(resumed, stop_after=80)
print(resumed.account().describe())
assert resumed.account().num_settled == 80
