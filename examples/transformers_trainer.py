"""Trains in Hugging Face's `Trainer` over a run, stops, and resumes with micro-batches of another size.

Two lines differ from a script without Headrace: the base class, and ``run=`` in place of a dataset. Needs the packages
transformers and accelerate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import corpus
import transformers

import headrace
from headrace.integrations.transformers import FromHeadrace

STEPS = 30


class Trainer(FromHeadrace, transformers.Trainer):
    pass


def trainer_of(folder: Path, **sizes: Any) -> Trainer:
    store = headrace.open(folder / "small")
    dataset = headrace.WindowDataset(store, seq_len=64, labels="same")  # the model shifts labels itself
    run = headrace.Run(dataset, global_batch_size=16, order=headrace.Order(seed=1), samples=STEPS * 16)
    held_out = headrace.WindowDataset(headrace.open(folder / "large"), seq_len=64, labels="same")
    validation = headrace.Run(held_out, global_batch_size=64, order=headrace.Order(kind="none"), samples=200)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=1000, **shape))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=10,
        report_to="none",
        dataloader_pin_memory=False,
        **sizes,
    )
    return Trainer(model=model, args=arguments, run=run, eval_runs={"large": validation})


folder = corpus.make()
first = trainer_of(folder, per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=20)
first.train()
trainer = trainer_of(folder, per_device_train_batch_size=8, gradient_accumulation_steps=2)
trainer.train(resume_from_checkpoint=True)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(f"{len(losses)} steps, the last {STEPS - 20} after the stop")
print(f"loss at first {losses[0]:.3f}, at last {losses[-1]:.3f}")
print(f"loss of the other files {trainer.evaluate()['eval_large_loss']:.3f}")
