"""Mixes two stores: by weights in tokens, by nested weights, and by repeats."""

from __future__ import annotations

import corpus
import numpy as np

import headrace

folder = corpus.make()
small = headrace.WindowDataset(headrace.open(folder / "small"), seq_len=64)
large = headrace.WindowDataset(headrace.open(folder / "large"), seq_len=64)

# Weights are shares of the tokens. The blend is endless: a source that has ended starts its next epoch.
code = headrace.Blend({"small": small, "large": large}, weights={"small": 1, "large": 3}, unit="tokens")
# A blend can be a source of another blend. The path of a source then has several names: "code/small".
mix = headrace.Blend({"code": code, "again": small}, weights={"code": 0.9, "again": 0.1})
run = headrace.Run(mix, global_batch_size=32, samples=3200)
print(run.describe())

# The source of each sample is computed; nothing is read here.
found = run.lookup(np.arange(1600))
for number, path in enumerate(run.paths):
    print(f"{path}: {np.count_nonzero(found.sources == number)} of the first 1,600 samples")

# Repeats: exactly two and a half passes through one source and one pass through the other; then the blend ends.
exact = headrace.Blend({"small": small, "large": large}, repeats={"small": 2.5, "large": 1})
run = headrace.Run(exact, global_batch_size=32)
print(f"\n{run.describe()}")
counts = np.bincount(run.lookup(np.arange(run.length)).sources).tolist()
print(f"counts over the whole run: {counts}, the datasets hold {[len(small), len(large)]}")
