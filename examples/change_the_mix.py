"""Changes a run while it goes on: from step 40 on it has other weights and is longer, and then it skips some steps.

Each source goes on where it is: its samples still come exactly once in each epoch. States that were saved before an
edit load into the edited run. The account says what was fed.
"""

from __future__ import annotations

import corpus

import headrace

folder = corpus.make()
data = {name: headrace.WindowDataset(headrace.open(folder / name), seq_len=32) for name in ("small", "large")}
blend = headrace.Blend(data, weights={"small": 1, "large": 3})
run = headrace.Run(blend, global_batch_size=8, order=headrace.Order(seed=3), samples=60 * 8)

loader = headrace.Loader(run, micro_batch_size=8)
for _ in zip(range(30), loader, strict=False):
    pass  # a training step
state = loader.state_dict()

run = run.edit(40, weights={"small": 3, "large": 1}, samples=100 * 8, reason="the decay mix")
run = run.skip(range(50, 55), then="defer", reason="the loss went up")
loader = headrace.Loader(run, micro_batch_size=8)
loader.load_state_dict(state)
steps = sum(1 for _ in loader)
print(f"went on at step 30 with {steps} more steps")

account = run.account()
for chapter in account.chapters:
    mix = ", ".join(f"{source} {chapter.share(source):.1%}" for source in chapter.planned)
    print(f"from step {chapter.step}: {chapter.samples} samples, {mix} ({chapter.reason or 'as it was begun'})")
for source in account.sources:
    seen = ", ".join(f"{number} {times} times" for times, number in source.seen.items())
    print(f"{source.source}: of {source.num_samples} samples, {seen}; {source.total('deferred')} deferred")
