"""Shows what the model saw at step 340, and where it came from. The run computes it without a replay."""

from __future__ import annotations

import corpus
from tokenizers import Tokenizer

import headrace

STEP = 340

folder = corpus.make()
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
data = {
    name: headrace.WindowDataset(headrace.open(folder / name), seq_len=32, document_ids=True)
    for name in ("small", "large")
}
blend = headrace.Blend(data, weights={"small": 1, "large": 1})
run = headrace.Run(blend, global_batch_size=8, order=headrace.Order(seed=3))

found = run.lookup(run.positions(STEP))
batch = run.step(STEP)
print(f"step {STEP} is the positions {run.positions(STEP)[0]} to {run.positions(STEP)[-1]}")
for row, (source, epoch, index) in enumerate(zip(found.sources, found.epochs, found.indices, strict=True)):
    documents = sorted(set(batch["document_ids"][row].tolist()))
    text = " ".join(tokenizer.decode(batch["input_ids"][row].tolist()).split())
    print(f"{run.paths[source]:>6}, epoch {epoch}, sample {index:>5}, documents {documents}: {text[:40]!r}")
