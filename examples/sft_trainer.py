"""Trains on conversations with Hugging Face's `Trainer`, which handles order, ranks and resume; the dataset has labels.

Needs the packages transformers and accelerate.
"""

from __future__ import annotations

from typing import Any

import chats
import transformers
from torch import Tensor

import headrace
from headrace.loader import collate_fn
from headrace.preparing import PrepareOptions
from headrace.samples.recipe import parse_recipe

folder = chats.make()
recipe = parse_recipe(f"""
type: sft
inputs: {folder}/chat.jsonl
tokenizer: {folder}
template: chatml
""")
headrace.prepare([], folder / "store", recipe=recipe, options=PrepareOptions(workers=1), on_notice=print)

# labels="same", since models of Hugging Face shift the labels themselves.
collation = headrace.datasets.Collation(max_length=128, over_long="truncate_right", multiple_of=8)
dataset = headrace.SFTDataset(headrace.open(folder / "store"), collation, labels="same")
collate = collate_fn(dataset)


def batch_of(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Make a batch of the fields that the model accepts."""
    batch = collate(samples)
    return {name: batch[name] for name in ("input_ids", "labels", "attention_mask")}


sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=chats.VOCABULARY, **sizes))
arguments = transformers.TrainingArguments(
    output_dir=str(folder / "checkpoints"),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_train_epochs=4,
    learning_rate=1e-2,
    logging_steps=4,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    dataloader_pin_memory=False,
)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=batch_of)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(f"loss at first {losses[0]:.3f}, at last {losses[-1]:.3f}")
