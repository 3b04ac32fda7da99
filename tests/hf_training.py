"""A tiny model in a trainer of Hugging Face over a run: one process of a job, as `test_hf_trainer` starts it.

Each process writes, for every micro-batch that it trains on, the step and the rows, and for every step the loss.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import headrace
from headrace.stores import KeyedWriter

VOCABULARY = 64
PROMPTS, GENERATIONS = 12, 4
"""Prompts of a generation, which lasts for two steps: 24 rows, two for each prompt."""

STEP, STEPS, LAST = 12, 7, 5
"""Samples of a step, steps, and samples of the last one."""

DTYPES = {
    "text": {"tokens": "uint16"},
    "chat": {"tokens": "uint16", "loss_mask": "uint8"},
    "prompts": {"prompts": "uint16", "columns": "uint8"},
    "pairs": {"chosen": "uint16", "chosen_mask": "uint8", "rejected": "uint16", "rejected_mask": "uint8"},
    "answers": {"tokens": "uint16", "loss_mask": "uint8", "label": "uint8"},
    "questions": {"prompts": "uint16", "columns": "uint8"},
}


def make_stores(folder: Path) -> None:
    draw = np.random.default_rng(5)
    for name, dtypes in DTYPES.items():
        with KeyedWriter(folder / name, dtypes=dtypes) as writer:
            for number in range(120):
                sizes = {side: int(draw.integers(4, 16)) for side in ("tokens", "prompts", "chosen", "rejected")}
                document = {}
                for key in dtypes:
                    size = sizes.get(key.removesuffix("_mask").replace("loss", "tokens"), 0)
                    ids = draw.integers(2, VOCABULARY, size)
                    document[key] = (np.arange(size) >= size // 2) if key.endswith("mask") else ids
                if "columns" in dtypes:
                    columns = {"number": number} | ({"prompt": question(number)} if name == "questions" else {})
                    document["columns"] = np.frombuffer(json.dumps(columns).encode(), np.uint8)
                if "label" in dtypes:
                    document["label"] = draw.integers(0, 2, 1)
                values = {key: value.astype(dtypes[key]) for key, value in document.items()}
                writer.add_documents(values, {key: np.array([len(value)]) for key, value in values.items()})
            writer.finish()


def question(number: int) -> list[dict[str, str]]:
    """The messages of a prompt."""
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": f"What is {number}?"}]


def dataset_of(kind: str, folder: Path) -> headrace.datasets.Dataset:
    if kind in ("records", "answers"):
        return headrace.SFTDataset(headrace.open(folder / {"records": "chat"}.get(kind, kind)), labels="same")
    if kind == "pairs":
        return headrace.PreferenceDataset(headrace.open(folder / "pairs"), layout="stacked")
    if kind in ("prompts", "questions"):
        return headrace.PromptDataset(headrace.open(folder / kind))
    if kind == "packs":
        packing = headrace.Packing(seq_len=24)
        return headrace.PackedSequenceDataset(headrace.open(folder / "text"), packing, labels="same")
    return headrace.WindowDataset(headrace.open(folder / "text"), seq_len=8, labels="same")


def run_of(kind: str, folder: Path) -> headrace.Run:
    """Seven steps, the last of which is short, but for pairs and answers, over which a loss is a mean."""
    if kind == "blend":
        sources = {"words": dataset_of("windows", folder), "more": dataset_of("windows", folder)}
        data: Any = headrace.Blend(sources, weights={"words": 2, "more": 1})
    else:
        data = dataset_of(kind, folder)
    order = headrace.Order(seed=3)
    if kind in ("prompts", "questions"):
        return headrace.Run(data, global_batch_size=PROMPTS, order=order, samples=PROMPTS * GENERATIONS)
    last = STEP if kind in ("pairs", "answers") else LAST
    return headrace.Run(data, global_batch_size=STEP, order=order, samples=STEP * (STEPS - 1) + last)


def eval_runs_of(kind: str, folder: Path) -> dict[str, headrace.Run]:
    """Evaluation on all conversations, whose last batches are uneven; on pairs and answers without a rest."""
    if kind in ("prompts", "questions"):
        return {}
    if kind in ("pairs", "answers"):
        return {"chats": headrace.Run.validation(dataset_of(kind, folder), global_batch_size=6)}
    return {"chats": headrace.Run.validation(dataset_of("records", folder), global_batch_size=7)}


def model_of(name: str = "Trainer") -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    # Large weights: or the losses of all steps would be much the same.
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, initializer_range=0.5, **ids, **sizes)
    if name == "RewardTrainer":
        config.num_labels = 1
        return transformers.LlamaForSequenceClassification(config)
    return transformers.LlamaForCausalLM(config)


def tokenizer_of() -> Any:
    import tokenizers
    import transformers

    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, VOCABULARY)}}, "<pad>")
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def lengths(prompts: list[str], completions: list[str], number: list[int], **others: Any) -> list[float]:
    """A reward; it gets the texts of the prompts and the columns of their records."""
    assert all(isinstance(prompt, str) for prompt in prompts)
    assert len(number) == len(completions)
    return [float(len(completion) % 7) for completion in completions]


def politeness(prompts: Any, completions: Any, number: list[int], **others: Any) -> list[float]:
    """A conversational reward, as TRL calls those that get messages."""
    assert prompts == list(map(question, number))
    assert all([message["role"] for message in completion] == ["assistant"] for completion in completions)
    return [float(len(completion[0]["content"]) % 7) for completion in completions]


def trainer_of(
    name: str, kind: str, folder: Path, out: Path, *, rank: int = 0, life: int = 0, kill_at: int = -1, **sizes: Any
) -> Any:
    """A trainer that says what it trains on. It ends itself with SIGKILL before a micro-step, if asked to."""
    module = import_module("transformers" if name == "Trainer" else "trl")
    base = getattr(module, name)
    arguments_of = getattr(module, "TrainingArguments" if name == "Trainer" else name.replace("Trainer", "Config"))
    from headrace.integrations.transformers import FromHeadrace

    said = out / f"life-{life}-{rank}.jsonl"

    class Trainer(FromHeadrace, base):  # type: ignore[misc,valid-type]
        micro_steps = 0

        def say(self, **values: Any) -> None:
            with said.open("a") as file:
                file.write(json.dumps({"step": self.state.global_step, **values}) + "\n")

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.micro_steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.micro_steps += 1
            if name == "GRPOTrainer":
                return super().training_step(model, inputs, *args, **kwargs)
            rows = [
                row[: int(inputs["attention_mask"][number].sum())] if "attention_mask" in inputs else row
                for number, row in enumerate(inputs["input_ids"])
                if "labels" not in inputs or bool((inputs["labels"][number] != -100).any())
            ]
            labels = [[int(label)] for label in inputs.get("label", [])] or [[]] * len(rows)
            self.say(rows=[[*label, *row.tolist()] for label, row in zip(labels, rows, strict=True)])
            return super().training_step(model, inputs, *args, **kwargs)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.say(rows=[[row["number"], *row["prompt"].ids] for row in inputs])
            return super()._generate_and_score_completions(inputs)

        def log(self, logs: Any, *args: Any, **kwargs: Any) -> None:
            if rank == 0 and (loss := logs.get("loss", logs.get("eval_chats_loss"))) is not None:
                self.say(**{"loss" if "loss" in logs else "eval_loss": loss})
            super().log(logs, *args, **kwargs)

    more: dict[str, Any] = {} if name == "Trainer" else {"processing_class": tokenizer_of()}
    if name in ("DPOTrainer", "KTOTrainer"):
        more["ref_model"] = model_of(name)
    if name == "GRPOTrainer":
        more["reward_funcs"] = [lengths if kind == "prompts" else politeness]
        sizes |= {"num_generations": 2, "max_completion_length": 4, "beta": 0.0}
        sizes["steps_per_generation"] = 2 * sizes["gradient_accumulation_steps"]
    arguments = arguments_of(
        output_dir=str(out), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, logging_steps=1,
        learning_rate=1e-2, dataloader_pin_memory=False, per_device_eval_batch_size=3, **sizes,
    )  # fmt: skip
    more |= {"run": run_of(kind, folder), "eval_runs": eval_runs_of(kind, folder)}
    return Trainer(model=model_of(name), args=arguments, **more)


def main() -> None:
    import torch

    asked = json.loads(sys.argv[1])
    os.environ.update(asked.pop("environment"))
    torch.set_num_threads(1)
    resume, paths = asked.pop("resume"), {name: Path(asked.pop(name)) for name in ("folder", "out")}
    trainer = trainer_of(**paths, **asked)
    trainer.train(resume_from_checkpoint=resume)
    if asked["name"] == "GRPOTrainer":
        trainer.say(account=msgspec.to_builtins(trainer.prompts.account()))
    if trainer.eval_dataset:
        trainer.evaluate()
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down


if __name__ == "__main__":
    main()
