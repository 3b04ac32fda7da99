"""The tokens that a tokeniser itself puts around a text, such as BOS. Imports nothing else of this room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer


def tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids that the post-processor adds before and after a text; None if it does anything else."""
    if tokenizer.post_processor is None:
        return [], []  # nothing is encoded: a vocabulary of a few words refuses all others
    text = "a"
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    full = tokenizer.encode(text, add_special_tokens=True).ids
    places = [at for at in range(len(full) - len(plain) + 1) if full[at : at + len(plain)] == plain]
    return (full[: places[0]], full[places[0] + len(plain) :]) if len(places) == 1 else None


def tokens_before(tokenizer: Tokenizer, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids with which a tokeniser begins a text, mostly BOS alone; GLM has two.

    They are those of the post-processor. ``config`` is the content of ``tokenizer_config.json``: ``add_bos_token``
    false means none, and true means ``bos_token`` if the post-processor adds nothing, as in Hugging Face.
    """
    adds = config.get("add_bos_token")
    if adds is False:
        return ()
    before, _ = tokens_around(tokenizer) or ([], [])
    bos = config.get("bos_token")
    bos = bos.get("content") if isinstance(bos, Mapping) else bos
    if adds is True and not before and isinstance(bos, str):
        number = tokenizer.token_to_id(bos)
        before = [] if number is None else [number]
    return tuple(before)
