"""Trains in Hugging Face's `Trainer` over a dataset of its own, stops, and resumes with micro-batches of another size.

One line differs from a script without Headrace. Needs the packages transformers, accelerate and datasets.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers

import datasets
import headrace

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-example-"))
SAVING: Any = {"logging_steps": 1, "save_steps": 4, "report_to": "none"}
SAMPLES, stop_at = 120, 8
trained: list[int] = []


class Trainer(transformers.Trainer):
    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == stop_at:
            raise KeyboardInterrupt
        trained.extend(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *args, **kwargs)


def trainer_of(**sizes: Any) -> Trainer:
    rows = [[number, *[(number * step) % 7 for step in range(1, 16)]] for number in range(SAMPLES)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
    transformers.set_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=SAMPLES, **shape))
    arguments = transformers.TrainingArguments(
        output_dir=str(FOLDER / "checkpoints"),
        num_train_epochs=2,
        learning_rate=2e-2,
        dataloader_pin_memory=False,
        **SAVING,
        **sizes,
    )
    return Trainer(model=model, args=arguments, train_dataset=dataset)


first = headrace.exact(trainer_of(per_device_train_batch_size=4, gradient_accumulation_steps=4))
with suppress(KeyboardInterrupt):
    first.train()
stop_at = -1
trainer = headrace.exact(trainer_of(per_device_train_batch_size=8, gradient_accumulation_steps=2))
trainer.train(resume_from_checkpoint=True)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(f"{len(losses)} steps, the last 8 after the stop")
print(f"each of the {SAMPLES} samples came twice in 2 epochs: {set(Counter(trained).values()) == {2}}")
print(f"loss at first {losses[0]:.3f}, at last {losses[-1]:.3f}")
