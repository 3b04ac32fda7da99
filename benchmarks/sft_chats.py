"""Conversations for the benchmark of chat data, and tokenisers trained on them, with a chat template in their folder.

The text is that of `corpus.py`: sources and documentation that are installed here. The number of messages and their
lengths, which decide the cost, follow given shapes.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCAB_SIZE = 32_000


@dataclasses.dataclass(frozen=True)
class Talk:
    """The shape of conversations. Lengths are in characters, log-uniform."""

    name: str
    most_exchanges: int
    asked: tuple[int, int]
    answered: tuple[int, int]


SHAPES = {
    talk.name: talk
    for talk in (
        # About a thousand tokens, like the conversations of UltraChat and ShareGPT.
        Talk("chat", 5, (40, 800), (200, 3200)),
        # One question and a paragraph, like those of Alpaca, with very little to encode.
        Talk("short", 1, (40, 300), (80, 1200)),
    )
}


def conversations(documents: list[str], talk: Talk, count: int) -> Iterator[list[dict[str, str]]]:
    """Make lists of messages. No text is used twice before all texts have been used once."""
    rng = random.Random(talk.name)
    text, at = "\n".join(documents), 0

    def said(lengths: tuple[int, int]) -> str:
        nonlocal at
        while True:
            length = int(lengths[0] * (lengths[1] / lengths[0]) ** rng.random())
            at = at if at + length <= len(text) else 0
            found, at = text[at : at + length].strip(), at + length
            if found:
                return found

    for _ in range(count):
        messages = [{"role": "system", "content": said((40, 400))}] if rng.random() < 0.3 else []
        for _ in range(rng.randint(1, talk.most_exchanges)):
            messages.append({"role": "user", "content": said(talk.asked)})
            messages.append({"role": "assistant", "content": said(talk.answered)})
        yield messages


def write_jsonl(path: Path, talks: Iterator[list[dict[str, str]]]) -> tuple[int, int]:
    """Write one record a line; return the number of messages, and of the bytes of their text."""
    messages = size = 0
    with path.open("w", encoding="utf-8") as file:
        for number, talk in enumerate(talks):
            file.write(json.dumps({"messages": talk, "id": str(number)}, ensure_ascii=False) + "\n")
            messages += len(talk)
            size += sum(len(message["content"].encode()) for message in talk)
    return messages, size


@dataclasses.dataclass(frozen=True)
class Model:
    """A tokeniser and its chat template."""

    name: str
    kind: str
    template: str
    """The name of a template of our suite that has generation blocks."""


MODELS = (
    Model("byte-level BPE, ChatML", "byte-level", "chatml-generation"),
    Model("byte-level BPE, Llama 3", "byte-level", "llama3-generation"),
    Model("Metaspace BPE, Zephyr", "metaspace", "zephyr-generation"),
    Model("Unigram, Zephyr", "unigram", "zephyr-generation"),
)


def make_tokenizer(folder: Path, model: Model, documents: list[str], megabytes: float = 8) -> Path:
    """Write a folder with ``tokenizer.json``, special tokens and the chat template, as Hugging Face reads it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    from headrace.samples.templates import ChatTemplate

    template = ChatTemplate.load(model.template)
    special = [*dict.fromkeys(template.special_tokens.values()), *_markers(template.setup.text)]
    common: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "show_progress": False}
    special = list(dict.fromkeys(special))
    trainer: Any
    if model.kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, **common)
    elif model.kind == "metaspace":
        # As in Llama 2: no pre-tokeniser; spaces become a character, and unknown characters become bytes.
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        special = ["<unk>", *special]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        trainer = trainers.BpeTrainer(special_tokens=[*special, *bytes_], limit_alphabet=2_000, **common)
    else:
        special = ["<unk>", *special]
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC()])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        trainer = trainers.UnigramTrainer(special_tokens=special, unk_token="<unk>", **common)
    step = max(1, round(sum(map(len, documents)) / (megabytes * 1e6)))
    tokenizer.train_from_iterator(documents[::step], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(tokenizer.to_str())
    # Bytes are pieces of the model, as in files of SentencePiece; they are not searched in the text.
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template.setup.text}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **template.special_tokens}))
    return folder


def _markers(template: str) -> list[str]:
    """The strings in the template that look like special tokens, such as ``<|im_start|>``."""
    import re

    return re.findall(r"<\|[a-z_]+\|>", template)
