"""A tokeniser and a chat template for tests of recipes, and what a recipe makes of records with them, in words."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from headrace.samples.maker import MadeDocuments, SampleMaker
from headrace.samples.recipe import Recipe, parse_recipe, resolve_layout
from headrace.samples.templates import ChatTemplate

SPECIAL = ["<eos>", "<bos>", "<|start|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

USER = {"role": "user", "content": "Hi"}
YES, NO = {"role": "assistant", "content": "Yes"}, {"role": "assistant", "content": "No"}


@functools.cache
def tokenizer_json(*, around: str = "") -> bytes:
    """Byte-level BPE without merges but for the roles: one token a byte, and the special ones, ids 0 to 3.

    ``around`` is what the post-processor puts around a text, such as ``<bos> $A``.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words, merges = [], []
    for word in ("user", "assistant", "system"):
        for size in range(2, len(word) + 1):
            words.append(word[:size])
            merges.append((word[: size - 1], word[size - 1]))
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*SPECIAL, *alphabet, *words]))}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    if around:
        ids = [(token, SPECIAL.index(token)) for token in SPECIAL[:2]]
        tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
    return tokenizer.to_str().encode()


def template() -> ChatTemplate:
    return ChatTemplate.from_text(TEMPLATE, special_tokens=TOKENS)


def maker(recipe: str | Recipe, records: Sequence[Any] = (), *, around: str = "", chat: Any = None) -> SampleMaker:
    """The maker of a recipe, its layout found by the records."""
    if isinstance(recipe, str):
        recipe = parse_recipe(recipe)
    if records and not recipe.by_sections:
        recipe, _ = resolve_layout(recipe, records)
    return SampleMaker(recipe, tokenizer_json(around=around), template=chat or template())


def make(recipe: str | Recipe, records: Sequence[Any], **more: Any) -> MadeDocuments:
    return maker(recipe, records, **more).make(records)


def rows(made: MadeDocuments, key: str) -> list[list[Any]]:
    """The values of a key, document by document."""
    values, lengths = made.arrays[key]
    found, begin = [], 0
    for length in lengths.tolist():
        found.append(values[begin : begin + length].tolist())
        begin += length
    assert begin == len(values)
    return found


def texts(made: MadeDocuments, key: str) -> list[str]:
    """The text of a key of ids, document by document."""
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    return [tokenizer.decode(row, skip_special_tokens=False) for row in rows(made, key)]


def trained(made: MadeDocuments, ids: str = "tokens", mask: str = "loss_mask") -> list[str]:
    """The text of the trained tokens, document by document, runs parted by a bar."""
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    found = []
    for tokens, flags in zip(rows(made, ids), rows(made, mask), strict=True):
        assert len(tokens) == len(flags)
        runs: list[list[int]] = []
        for place, (token, flag) in enumerate(zip(tokens, flags, strict=True)):
            if flag:
                if place == 0 or not flags[place - 1]:
                    runs.append([])
                runs[-1].append(token)
        found.append("|".join(tokenizer.decode(run, skip_special_tokens=False) for run in runs))
    return found
