"""Trains a tiny attention model on packs: SDPA with a block-causal mask, and the correct loss of each step."""

from __future__ import annotations

import json

import corpus
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import headrace
from headrace.loader.attention import block_causal_mask
from headrace.preparing import PrepareOptions, RecordOptions

STEPS, SIZE, WIDTH, HEADS = 20, 256, 32, 2


class Model(nn.Module):
    """One layer of attention over embedded tokens and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, WIDTH), nn.Embedding(SIZE, WIDTH)
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, input_ids: Tensor, position_ids: Tensor, mask: Tensor) -> Tensor:
        """(B, S, vocabulary) logits; the mask is (B, S, S), the same for every head."""
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        q, k, v = self.qkv(hidden).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        return self.head(hidden + self.out(attended.transpose(1, 2).flatten(2)))


folder = corpus.make()
records = map(json.loads, (folder / "text" / "small" / "part-0.jsonl").read_text().splitlines())
(folder / "text.txt").write_text("\n\n".join(record["text"] for record in records))
options = PrepareOptions(records=RecordOptions(sample_by="paragraph"), workers=1)
headrace.prepare(folder / "text.txt", folder / "short", tokenizer=folder / "tokenizer.json", options=options)

packing = headrace.Packing(seq_len=SIZE, over_long="split")
dataset = headrace.PackedSequenceDataset(headrace.open(folder / "short"), packing)
run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=STEPS * 8)
loader = headrace.Loader(run, micro_batch_size=4, debug=True)  # debug: every batch is checked
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = [0.0]
for batch in loader:
    mask = block_causal_mask(batch["position_ids"], batch["document_ids"])
    logits = model(batch["input_ids"], batch["position_ids"], mask).flatten(0, 1)
    # The sum over this micro-batch, divided by the labels of the whole step: the same for any micro-batches and ranks.
    loss = cross_entropy(logits, batch["labels"].flatten(), reduction="sum") / batch["step_supervised_tokens"]
    loss.backward()
    losses[-1] += loss.item()
    if loader.step == len(losses):  # the step is complete
        optimizer.step()
        optimizer.zero_grad()
        losses.append(0.0)
print(dataset.describe(), f"loss at first {losses[0]:.3f}, at last {losses[-2]:.3f}", sep="\n")
