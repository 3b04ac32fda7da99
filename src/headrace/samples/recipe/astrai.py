"""Translate a configuration of AstrAI's preprocessing to a `Recipe`.

The names and defaults are those of AstrAI 1.3.13. ``docs/recipes.md`` lists where the result differs from AstrAI's own,
and why.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.config import convert
from headrace.errors import ConfigError
from headrace.plan.packing.options import Packing
from headrace.samples.masking.options import MaskOptions
from headrace.samples.recipe.check import check_recipe
from headrace.samples.recipe.recipe import (
    Action,
    EndSpec,
    LengthSpec,
    OutputSpec,
    Recipe,
    RecordFilters,
    Section,
    Source,
    TrainType,
    mask_key,
)

FORMATS: dict[str, Literal["keyed", "hdf5", "jsonl"]] = {"bin": "keyed", "h5": "hdf5", "jsonl": "jsonl"}


class _Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sections: tuple[Section, ...] | None = None
    sources: dict[str, Source] | None = None


class _Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_seq_len: int = 2048
    min_chars: int = 50
    max_chars: int = 2_000_000
    max_items: int | None = None
    batch_size: int = 256
    packing_strategy: Literal["simple", "bfd", "bfd_split"] = "simple"
    max_packed_len: int = 8192
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"


class _Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    domain_key: str | None = None
    storage_format: Literal["bin", "h5", "jsonl"] = "bin"
    max_tokens_per_shard: int = 100_000_000
    dtype: dict[str, str] = {}
    position_ids_mode: Literal["none", "doc_reset", "continuous"] = "doc_reset"


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    input: _Input = _Input()
    mask: dict[str, Action] = {}
    mask_default: Action = "mask"
    preprocessing: _Preprocessing = _Preprocessing()
    output: _Output = _Output()
    tokenizer_path: str | None = None


def is_astrai(value: dict[Any, Any]) -> bool:
    """Return whether an object is a configuration of AstrAI, which lists its fields under ``input`` and has no type."""
    return isinstance(value.get("input"), dict) and "type" not in value and "inputs" not in value


def read_astrai(value: dict[Any, Any]) -> Recipe:
    """Return the recipe of a configuration.

    Raises:
        ConfigError: If a key or word is unknown, or a value is not possible.
    """
    config = convert(value, _Config)
    limits = config.preprocessing
    for name in ("max_seq_len", "max_packed_len", "batch_size"):
        if getattr(limits, name) < 1:
            raise ConfigError(f"preprocessing.{name} is {getattr(limits, name)}: it must be at least 1")
    sources = {key: source for key, source in (config.input.sources or {}).items() if source.sections}
    sections = () if sources else config.input.sections or ()
    if not sources and not sections:
        raise ConfigError("input has neither sections nor sources: add one that names the fields to read")
    is_text = not sources and all(section.action == "train" and not section.template for section in sections)
    names = {} if sources else {"tokens": "sequence"}
    recipe = Recipe(
        type=_type(sources, is_text=is_text),
        tokenizer=config.tokenizer_path,
        mask=MaskOptions(on_no_supervised="drop", on_all_supervised="allow"),
        sections=sections,
        sources=sources,
        role_actions=config.mask,
        default_action=config.mask_default,
        ends=EndSpec(append_eos=False, prepend_bos=None),
        length=_length(limits),
        filters=RecordFilters(
            min_chars=limits.min_chars or None if is_text else None,
            max_chars=limits.max_chars if is_text else None,
            max_records=limits.max_items or None,
        ),
        packing=None if sources else _packing(limits),
        output=OutputSpec(
            format=FORMATS[config.output.storage_format],
            dtypes=_dtypes(config, sources, is_text=is_text),
            names=names,
            shard_tokens=config.output.max_tokens_per_shard,
            domain_key=config.output.domain_key,
            num_supervised=False,  # AstrAI's readers use the length of the shortest key for all keys
            position_ids="none" if sources else config.output.position_ids_mode,
        ),
    )
    check_recipe(recipe)
    return recipe


def _type(sources: dict[str, Source], *, is_text: bool) -> TrainType:
    """Return the training type, which AstrAI does not name but its keys show."""
    if {"chosen", "rejected"} <= sources.keys():
        return "dpo"
    if {"prompts", "responses", "rewards"} <= sources.keys():
        return "grpo"
    if sources:
        return "keys"
    return "seq" if is_text else "sft"


def _length(limits: _Preprocessing) -> LengthSpec:
    """Return the limits: the beginning up to ``max_seq_len``, then, unless documents are split, ``max_packed_len``."""
    first, second = limits.max_seq_len, limits.max_packed_len
    if limits.packing_strategy == "bfd_split" or second >= first:
        return LengthSpec(max_tokens=first, truncate="keep_start")
    if limits.truncation_mode == "keep_start":
        return LengthSpec(max_tokens=second, truncate="keep_start")
    return LengthSpec(first_tokens=first, max_tokens=second, truncate="keep_end")


def _packing(limits: _Preprocessing) -> Packing | None:
    if limits.packing_strategy == "simple":
        return None
    is_split = limits.packing_strategy == "bfd_split"
    return Packing(seq_len=limits.max_packed_len, strategy="best_fit_split" if is_split else "best_fit")


def _dtypes(config: _Config, sources: dict[str, Source], *, is_text: bool) -> dict[str, str]:
    """Return int32 for ids, as AstrAI uses, and the configured dtypes of all keys that are stored."""
    keys = ["sequence"] if not sources else [key for key, source in sources.items() if not source.is_value]
    dtypes = dict.fromkeys(keys, "int32")
    masks = [mask_key(key, source) for key, source in sources.items() if not source.is_value]
    known = {*keys, *masks, *sources, "sequence", "loss_mask", "position_ids"}
    for key, dtype in config.output.dtype.items():
        is_stored = key in known and not (is_text and key == "loss_mask")
        is_stored = is_stored and not (key == "position_ids" and config.output.position_ids_mode == "none")
        if is_stored or key not in known:
            dtypes[key] = dtype
    return dtypes
