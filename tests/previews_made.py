"""A model's folder, stores of each kind, and recipes beside their inputs, for tests of `preview` and `render`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from recipes_made import NO, TEMPLATE, TOKENS, USER, YES, make, tokenizer_json
from token_shards import write_keyed

HARD = 'Grüße 😀\tok </div><script>alert(1)</script> "&amp;" \x1b[31mred\u202eabc'
"""What a user may write: several bytes a character, HTML, sequences of terminals, text that turns its direction."""

TALK = [{"role": "user", "content": HARD}, {"role": "assistant", "content": "Ja, 敏捷的 😀!\nNa klar"}]

RECORDS: dict[str, list[dict[str, Any]]] = {
    "seq": [{"text": "Hello\nworld"}, {"text": HARD}],
    "sft": [{"messages": TALK}, {"messages": [USER, YES, USER, NO]}, {"messages": [USER, YES]}],
    "dpo": [{"chosen": [USER, YES], "rejected": [USER, NO]}],
    "grpo": [{"prompt": [USER], "responses": [[YES], [NO]], "rewards": [1.0, -0.5]}],
    "prompt": [{"prompt": [USER], "data_source": "made", "reward_model": {"ground_truth": "\x1b[2J"}}],
}


def model(folder: Path) -> Path:
    """A tokeniser with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, **TOKENS}))
    return folder


def fallback() -> Tokenizer:
    """In the manner of SentencePiece: spaces are part of words, and what is in no word is bytes."""
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁b"]
    made = Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(tokens)},
            [("▁", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["</s>"])
    return made


def store(folder: Path, kind: str, records: list[dict[str, Any]] | None = None, recipe: str = "") -> Path:
    """What a recipe of this type makes of records, in one folder of the keyed format."""
    made = make(f"type: {kind}\ninputs: a\n{recipe}", RECORDS[kind] if records is None else records)
    keys = {
        key: (values.dtype.name, np.split(values, np.cumsum(lengths)[:-1]))
        for key, (values, lengths) in made.arrays.items()
    }
    write_keyed(folder, **keys)
    return folder


def recipe(folder: Path, kind: str, more: str = "", records: list[dict[str, Any]] | None = None) -> Path:
    """A recipe whose paths are absolute, and its input."""
    lines = [json.dumps(record, ensure_ascii=False) for record in (RECORDS[kind] if records is None else records)]
    (folder / "input.jsonl").write_text("\n".join(lines) + "\n")
    head = {"type": kind, "inputs": str(folder / "input.jsonl"), "tokenizer": str(model(folder / "model"))}
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in head.items()) + more)
    return folder / "recipe.yaml"
