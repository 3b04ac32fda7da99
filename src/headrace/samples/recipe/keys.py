"""The keys that a recipe stores, what they hold, and the dtype of each."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.samples.recipe.recipe import Recipe, lengths_key, mask_key

KeyKind = Literal["ids", "mask", "positions", "lengths", "reward", "value", "bytes", "count", "label"]

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
"""The dtypes that a key may be stored in."""

_DEFAULTS: dict[KeyKind, str] = {
    "mask": "uint8",
    "positions": "int32",
    "lengths": "int32",
    "reward": "float32",
    "value": "float32",
    "bytes": "uint8",
    "count": "int32",
    "label": "uint8",
}


class StoreKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the store."""

    name: str
    """Our name of the key."""

    stored: str
    """The key's name in the store, after ``output.names``."""

    kind: KeyKind
    parallel_to: str | None = None
    """The key of ids for each of whose values this key holds one."""

    dtype: str | None
    """None: chosen by the size of the vocabulary."""

    def resolve(self, vocab_size: int) -> np.dtype[np.generic]:
        """Return the dtype for ids below ``vocab_size``; without a requested dtype, the one that Megatron would choose.

        Raises:
            ConfigError: If the requested dtype cannot hold the ids.
        """
        if self.dtype is None:
            return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)
        dtype = np.dtype(self.dtype)
        if self.kind == "ids" and vocab_size - 1 > np.iinfo(dtype).max:
            raise ConfigError(
                f"output.dtypes.{self.stored} is {dtype}, which holds ids up to {np.iinfo(dtype).max:,}, but the "
                f"tokeniser has ids up to {vocab_size - 1:,}: choose a wider dtype, or remove the entry"
            )
        return dtype


def store_keys(recipe: Recipe) -> tuple[StoreKey, ...]:
    """Return the keys of a recipe's store, the main one first."""
    return tuple(_key(recipe, *entry) for entry in _listed(recipe))


def _listed(recipe: Recipe) -> list[tuple[str, KeyKind, str | None]]:
    if recipe.sources:
        return _of_sources(recipe)
    keys: dict[str, list[tuple[str, KeyKind, str | None]]] = {
        "seq": [("tokens", "ids", None)],
        "sft": [("tokens", "ids", None), ("loss_mask", "mask", "tokens")],
        "dpo": [
            ("chosen", "ids", None),
            ("chosen_mask", "mask", "chosen"),
            ("rejected", "ids", None),
            ("rejected_mask", "mask", "rejected"),
        ],
        "grpo": [
            ("prompts", "ids", None),
            ("responses", "ids", None),
            ("masks", "mask", "responses"),
            ("response_lengths", "lengths", None),
            ("rewards", "reward", None),
        ],
        "prompt": [("prompts", "ids", None), ("columns", "bytes", None)],
        "keys": [],
    }
    listed = keys[recipe.type]
    if recipe.type == "sft" and recipe.output.num_supervised:
        listed.append(("num_supervised", "count", None))
    if recipe.output.position_ids != "none":
        listed.append(("position_ids", "positions", "tokens"))
    if any(source.layout == "kto" for source in recipe.inputs):
        listed.append(("label", "label", None))
    return listed


def _of_sources(recipe: Recipe) -> list[tuple[str, KeyKind, str | None]]:
    listed: list[tuple[str, KeyKind, str | None]] = []
    for key, source in recipe.sources.items():
        if source.is_value:
            listed.append((key, "reward" if key == "rewards" else "value", None))
        elif source.sections:
            listed += [(key, "ids", None), (mask_key(key, source), "mask", key)]
            if source.list_field:
                listed.append((lengths_key(key), "lengths", None))
    return sorted(listed, key=lambda entry: entry[1] in ("reward", "value"))  # the main key holds ids


def _key(recipe: Recipe, name: str, kind: KeyKind, parallel_to: str | None) -> StoreKey:
    stored = recipe.output.names.get(name, name)
    dtype = recipe.output.dtypes.get(stored, recipe.output.dtypes.get(name)) or _DEFAULTS.get(kind)
    return StoreKey(name=name, stored=stored, kind=kind, parallel_to=parallel_to, dtype=dtype)
