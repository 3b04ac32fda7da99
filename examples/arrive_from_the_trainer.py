"""Trains with transformers' `Trainer` alone, goes on in the middle with Headrace, and leaves again, sample for sample.

Needs the packages transformers, accelerate and datasets.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import transformers

import datasets
import headrace

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-example-"))
SAMPLES = 100
trained: list[int] = []


class Trainer(transformers.Trainer):
    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        trained.extend(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *args, **kwargs)


def trainer_of(checkpoints: str, until: int, batch: int = 4, accumulation: int = 2) -> Trainer:
    rows = [[number, *[(number * step) % 7 for step in range(1, 8)]] for number in range(SAMPLES)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=SAMPLES, **shape))
    arguments = transformers.TrainingArguments(
        output_dir=str(FOLDER / checkpoints),
        data_seed=7,
        max_steps=until,
        save_steps=until,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        dataloader_pin_memory=False,
        report_to="none",
    )
    return Trainer(model=model, args=arguments, train_dataset=dataset)


trainer_of("alone", 30).train()
alone = trained.copy()
trained.clear()

trainer_of("both", 10).train()  # as it is: its checkpoint has no state of the data
other = trainer_of("both", 20, batch=2, accumulation=4)  # as on half of the processes
headrace.exact(other, order="torch").train(resume_from_checkpoint=True)
print(f"steps 11 to 20, with Headrace, are those of the Trainer alone: {trained[80:] == alone[80 : len(trained)]}")
trainer_of("both", 30).train(resume_from_checkpoint=True)  # as it is again
print(f"steps 21 to 30, without it again, too: {trained == alone}")
