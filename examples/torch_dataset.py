"""Uses a store as a plain torch dataset, for a trainer that has its own loader.

`WindowDataset` is map-style: it has a length, its items are dicts of NumPy arrays, and a loader can read whole batches
at once. The trainer then handles order, ranks and resume, which `headrace.Loader` would do otherwise.
"""

from __future__ import annotations

import corpus
import torch
from torch.utils.data import DataLoader

import headrace

folder = corpus.make()
store = headrace.open(folder / "small")
dataset = headrace.WindowDataset(store, seq_len=64, stride=32, document_ids=True, position_ids="restart")
print(repr(dataset))

generator = torch.Generator().manual_seed(0)
loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True, generator=generator)
num_tokens = 0
for batch in loader:
    assert batch["input_ids"].shape == batch["document_ids"].shape == (16, 64)
    num_tokens += batch["labels"].numel()
print(f"{len(loader)} batches, {num_tokens:,} tokens")

# Single items and documents can be read, too.
item = dataset[0]
assert item["input_ids"].tolist() == store.document(0)[:64].tolist()
print({name: (values.shape, str(values.dtype)) for name, values in item.items()})
