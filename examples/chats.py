"""Tiny data and a tiny model for the fine-tuning examples: ``chat``, ``pairs`` and ``prompts``.

Chats and pairs of answers are about functions of Python's library; prompts are sums with the right answer.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from importlib import import_module
from pathlib import Path

from corpus import train_tokenizer
from torch import Tensor, nn

MODULES = ("base64", "bisect", "calendar", "inspect", "json", "shutil", "textwrap")
VOCABULARY = 1002


def make() -> Path:
    """Make a new folder with the data and ``tokenizer.json``."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    answers = {}
    for module in MODULES:
        for name, function in sorted(vars(import_module(module)).items()):
            if inspect.isfunction(function) and function.__doc__ and name[0] != "_":
                answers[f"What does {module}.{name} do?"] = function.__doc__.strip().partition("\n")[0]
    sums = {f"{a} + {b} = ": str(a + b) for a in range(10) for b in range(10 - a)}
    data = {
        "chat": [{"messages": [says("user", ask), says("assistant", tell)]} for ask, tell in answers.items()],
        "pairs": [{"prompt": ask, "chosen": tell, "rejected": "I do not know."} for ask, tell in answers.items()],
        "prompts": [{"prompt": [says("user", a)], "data_source": "sums", "ground_truth": t} for a, t in sums.items()],
    }
    for name, records in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer = train_tokenizer([*answers, *answers.values()])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class Model(nn.Sequential):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(VOCABULARY, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, VOCABULARY))

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, L) ids -> (B, L, VOCABULARY) logits, each computed from the tokens up to it."""
        return self[2](self[1](self[0](input_ids))[0])


if __name__ == "__main__":
    print(make())
