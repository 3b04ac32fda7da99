"""A tiny model in a trainer of Hugging Face over a run, or over a dataset of its own with `headrace.exact`.

It is one process of a job, as `test_hf_trainer` and `test_exact` start it.

Each process writes, for every micro-batch that it trains on, the step and the rows, and for every step the loss.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from importlib import import_module
from itertools import chain
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


OWN = {"Trainer": 47, "GRPOTrainer": 26}
"""Rows of datasets that are no runs: some end within a step, or with too few prompts for a generation. Else 48."""


def own_rows(name: str) -> list[dict[str, Any]]:
    """Rows as the trainer takes them, before it tokenises and packs them."""
    draw = random.Random(7)

    def words(least: int = 3, most: int = 12) -> str:
        return " ".join(f"w{draw.randrange(2, VOCABULARY)}" for _ in range(draw.randint(least, most)))

    def row(number: int) -> dict[str, Any]:
        if name in ("Trainer", "accelerate"):
            ids = [draw.randrange(2, VOCABULARY) for _ in range(8)]
            return {"input_ids": ids, "labels": ids}
        return {
            "SFTTrainer": {"text": words(7, 7)},
            "DPOTrainer": {"prompt": words() + " ", "chosen": words(), "rejected": words()},
            "RewardTrainer": {"chosen": words(), "rejected": words()},
            "KTOTrainer": {"prompt": words() + " ", "completion": words(), "label": number % 3 > 0},
            "GRPOTrainer": {"prompt": words(), "number": number},
        }[name]

    return [row(number) for number in range(OWN.get(name, 96 if name == "SFTTrainer" else 48))]


def own_arguments(name: str, kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """A trainer's arguments for a dataset of Hugging Face, or ``own list``; fills in what its configuration needs."""
    import datasets

    sizes["num_train_epochs"] = 2
    if name == "SFTTrainer":
        sizes |= {"packing": True, "max_length": 16, "packing_strategy": "wrapped"}
    if name == "KTOTrainer":
        sizes["train_sampling_strategy"] = "sequential"
    rows = own_rows(name)
    return {"train_dataset": rows if kind.endswith("list") else datasets.Dataset.from_list(rows)}


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
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
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

    is_own = kind.startswith("own")

    class Trainer(*([] if is_own else [FromHeadrace]), base):  # type: ignore[misc]
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
            self.say(rows=[[row["number"], *([] if is_own else row["prompt"].ids)] for row in inputs])
            return super()._generate_and_score_completions(inputs)

        def log(self, logs: Any, *args: Any, **kwargs: Any) -> None:
            if rank == 0 and (loss := logs.get("loss", logs.get("eval_chats_loss"))) is not None:
                self.say(**{"loss" if "loss" in logs else "eval_loss": loss})
            super().log(logs, *args, **kwargs)

    more: dict[str, Any] = {} if name == "Trainer" else {"processing_class": tokenizer_of()}
    if name in ("DPOTrainer", "KTOTrainer"):
        more["ref_model"] = model_of(name)
    if name == "GRPOTrainer":
        more["reward_funcs"] = [politeness if kind == "questions" else lengths]
        sizes |= {"num_generations": 2, "max_completion_length": 4, "beta": 0.0}
        sizes["steps_per_generation"] = 2 * sizes["gradient_accumulation_steps"]
    own = own_arguments(name, kind, sizes) if is_own else {}
    arguments = arguments_of(
        output_dir=str(out), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, logging_steps=1,
        learning_rate=1e-2, dataloader_pin_memory=False, per_device_eval_batch_size=3, **sizes,
    )  # fmt: skip
    if is_own:
        made = Trainer(model=model_of(name), args=arguments, **more, **own)
        return made if "plain" in kind else headrace.exact(made)
    more |= {"run": run_of(kind, folder), "eval_runs": eval_runs_of(kind, folder)}
    return Trainer(model=model_of(name), args=arguments, **more)


def loop(
    kind: str, out: Path, *, resume: bool, rank: int, life: int, kill_at: int, save_steps: int, **sizes: Any
) -> None:
    """A loop of accelerate over two epochs, which says and does what the trainers do; plainly as accelerate tells."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=sizes["gradient_accumulation_steps"])
    if not (is_plain := "plain" in kind):
        headrace.exact(accelerator)
    rows = [{name: torch.tensor(value) for name, value in row.items()} for row in own_rows("accelerate")]
    loader: Any = torch.utils.data.DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=sizes["per_device_train_batch_size"],
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
        num_workers=sizes.get("dataloader_num_workers", 0),
    )
    model = model_of()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-2), loader)
    micro_steps, step, losses = 0, 0, []
    if resume:
        complete = max(out.glob("state-*/complete"))
        accelerator.load_state(str(complete.parent))
        step = int(complete.read_text())
    epochs = [loader for _ in range(step // 4 if is_plain else loader.epoch, 2)]
    if is_plain and resume:
        epochs[0].set_epoch(step // 4)
        epochs[0] = accelerator.skip_first_batches(loader, step % 4 * sizes["gradient_accumulation_steps"])
    with (out / f"life-{life}-{rank}.jsonl").open("a") as said:
        for batch in chain.from_iterable(epochs):
            if micro_steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            micro_steps += 1
            print(json.dumps({"step": step, "rows": batch["input_ids"].tolist()}), file=said, flush=True)
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if not accelerator.sync_gradients:
                continue
            mean, losses = float(accelerator.gather(torch.stack(losses)).mean()), []
            step += 1
            assert is_plain or step == loader.step
            if rank == 0:
                print(json.dumps({"step": step, "loss": mean}), file=said, flush=True)
            if step % save_steps == 0:
                accelerator.save_state(str(out / f"state-{step:02}"))
                accelerator.wait_for_everyone()
                (out / f"state-{step:02}" / "complete").write_text(str(step))


def main() -> None:
    import torch

    asked = json.loads(sys.argv[1])
    os.environ.update(asked.pop("environment"))
    torch.set_num_threads(1)
    resume, paths = asked.pop("resume"), {name: Path(asked.pop(name)) for name in ("folder", "out")}
    if asked["name"] == "accelerate":
        del asked["name"]
        loop(asked.pop("kind"), paths["out"], resume=resume, **asked)
        os._exit(0)
    trainer = trainer_of(**paths, **asked)
    trainer.train(resume_from_checkpoint=resume)
    if asked["kind"] in ("prompts", "questions"):
        trainer.say(account=msgspec.to_builtins(trainer.prompts.account()))
    if trainer.eval_dataset:
        trainer.evaluate()
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down


if __name__ == "__main__":
    main()
