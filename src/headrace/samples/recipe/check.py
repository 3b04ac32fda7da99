"""Refuse recipes whose values contradict each other."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from headrace.config import below, check_choice, nearest
from headrace.errors import ConfigError, InputError
from headrace.samples.layouts import LAYOUTS, make_layout
from headrace.samples.recipe.keys import DTYPES, store_keys
from headrace.samples.recipe.recipe import AUTO, EACH, MAKES, Recipe, Section
from headrace.samples.templates.messages import plain

_NEEDED = {"dpo": ("chosen", "rejected"), "grpo": ("prompts", "responses", "rewards"), "prompt": ("prompts",)}
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_recipe(recipe: Recipe) -> None:
    """Raise a `ConfigError` if values of the recipe contradict each other; the message says where and what to do."""
    for number, source in enumerate(recipe.inputs):
        where = f"inputs[{number}]"
        if not source.paths or (isinstance(source.paths, tuple) and not all(source.paths)):
            raise ConfigError(f"{where}.paths is empty: name a file, a folder or a glob")
        if source.layout != AUTO:
            if recipe.by_sections:
                raise ConfigError(f"{where}.layout and sections or sources both describe the records: choose one")
            if source.layout != EACH:
                _check_layout(recipe, source.layout, where)
    _check_numbers(recipe)
    _check_sections(recipe)
    _check_sources(recipe)
    _check_output(recipe)
    _check_type(recipe)


def _check_layout(recipe: Recipe, name: str, where: str) -> None:
    try:
        layout = make_layout(name)
    except ConfigError as error:
        raise ConfigError(f"{where}.layout: {error}") from None
    if layout.makes not in MAKES[recipe.type]:
        usable = [other for other, kind in LAYOUTS.items() if kind.makes in MAKES[recipe.type]]
        better = [kind for kind, makes in MAKES.items() if layout.makes in makes]
        raise ConfigError(
            f"{where}.layout is {layout.name}, from which type {recipe.type} cannot be made; allowed are "
            f"{', '.join(usable)} (or use type: {better[0]})"
        )


def _check_numbers(recipe: Recipe) -> None:
    limits = {
        "length.max_tokens": (recipe.length.max_tokens, 1),
        "length.first_tokens": (recipe.length.first_tokens, 1),
        "output.shard_tokens": (recipe.output.shard_tokens, 1),
        "errors.max_errors": (recipe.errors.max_errors, 0),
        "filters.max_records": (recipe.filters.max_records, 1),
    }
    for name in ("min_chars", "max_chars", "min_tokens", "max_tokens"):
        limits[f"filters.{name}"] = (getattr(recipe.filters, name), 0)
    for path, (value, least) in limits.items():
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{path} is {value}: it must be at least {least}")
    for unit in ("chars", "tokens"):
        low, high = getattr(recipe.filters, f"min_{unit}"), getattr(recipe.filters, f"max_{unit}")
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"filters.min_{unit} is {low}, above filters.max_{unit}, which is {high}: no record would be kept"
            )
    if isinstance(recipe.errors.max_errors, float) and recipe.errors.max_errors >= 1:
        raise ConfigError(
            f"errors.max_errors is {recipe.errors.max_errors}: a share must be below 1, and a number of records must "
            "be an integer"
        )


def _check_sections(recipe: Recipe) -> None:
    if recipe.sections and recipe.sources:
        raise ConfigError("sections and sources both describe the records: choose one")
    if recipe.sections and recipe.type not in ("seq", "sft"):
        raise ConfigError(f"sections make one key, but type {recipe.type} has several: use sources")
    if (recipe.role_actions or recipe.default_action) and not recipe.by_sections:
        raise ConfigError("role_actions and default_action are for sections; with a layout, use mask.roles")
    for number, section in enumerate(recipe.sections):
        if section.action == "value":
            raise ConfigError(f"sections[{number}].action is value: numbers need a key of their own, use sources")
        _check_section(section, f"sections[{number}]")


def _check_sources(recipe: Recipe) -> None:
    if recipe.type == "keys" and not recipe.sources:
        raise ConfigError("type is keys, but there are no sources that name the keys: add sources")
    for key, source in recipe.sources.items():
        for number, section in enumerate(source.sections):
            _check_section(section, f"sources.{key}.sections[{number}]")
        if source.is_value and len(source.sections) > 1:
            raise ConfigError(
                f"sources.{key} has a section of action value and {len(source.sections) - 1} others: numbers must be "
                "the only section of a source"
            )
        if source.is_value and (source.list_field or source.mask_key is not None):
            raise ConfigError(
                f"sources.{key} holds numbers: it has no mask, and list_field is for text; remove mask_key and "
                "list_field"
            )
        if source.list_field and len(source.sections) != 1:
            raise ConfigError(
                f"sources.{key} is a list_field and has {len(source.sections)} sections: one is allowed, and its field "
                "holds the list"
            )
    if not recipe.sources:
        return
    for key in _NEEDED.get(recipe.type, ()):
        if key not in recipe.sources:
            raise ConfigError(f"type is {recipe.type}, but sources has no {key!r}{nearest(key, recipe.sources)}")
    if recipe.type in ("seq", "sft"):
        raise ConfigError(f"type is {recipe.type}, which has one key: use sections, or type: keys")


def _check_section(section: Section, path: str) -> None:
    if not section.field:
        raise ConfigError(f"{path}.field is empty: name the field of the record")
    if section.action == "$role" and not section.template:
        raise ConfigError(f"{path}.action is $role, but only messages have roles: set template: true")
    if section.template and section.action == "value":
        raise ConfigError(f"{path} says both that the field holds numbers and that it holds messages: choose one")


def _check_output(recipe: Recipe) -> None:
    keys = store_keys(recipe)
    names = [key.name for key in keys]
    known = {recipe.output.names.get(name, name): name for name in names}
    for old in recipe.output.names:
        if old not in names:
            raise ConfigError(f"output.names has {old!r}{nearest(old, names)}; the keys are {', '.join(names)}")
    if len(known) < len(names) or not all(map(_KEY.fullmatch, known)):
        raise ConfigError(f"output.names renames the keys to {', '.join(known)}: each needs a plain name of its own")
    for key, dtype in recipe.output.dtypes.items():
        if key not in known and key not in names:
            raise ConfigError(f"output.dtypes has {key!r}{nearest(key, known)}; the keys are {', '.join(known)}")
        check_choice(f"output.dtypes.{key}", dtype, DTYPES)
        kind = next(entry.kind for entry in keys if key in (entry.name, entry.stored))
        allowed = {"reward": "f", "value": "biuf", "mask": "biu", "label": "biu"}.get(kind, "iu")
        if np.dtype(dtype).kind not in allowed:
            why = "which would round the rewards: choose float32" if kind == "reward" else _INTEGERS
            raise ConfigError(f"output.dtypes.{key} is {dtype}, {why}")


_INTEGERS = "but the values are integers: choose an integer dtype"


def _check_type(recipe: Recipe) -> None:
    labelled = [source.layout == "kto" for source in recipe.inputs]
    if any(labelled) and not all(labelled):
        raise ConfigError(
            "some inputs are of the layout kto, which stores a label, and others are not: prepare two separate stores"
        )
    is_by_turns = recipe.length.truncate in ("keep_first_turns", "keep_last_turns")
    if is_by_turns and (recipe.by_sections or recipe.type not in ("seq", "sft", "dpo")):
        raise ConfigError(
            f"length.truncate is {recipe.length.truncate}, which is for conversations of types seq, sft and dpo; "
            "allowed are error, drop, keep_start, keep_end"
        )
    if recipe.length.truncate == "keep_first_turns" and recipe.type == "dpo":
        raise ConfigError("length.truncate is keep_first_turns, which would remove the answers: use keep_last_turns")
    if recipe.output.position_ids != "none" and recipe.type not in ("seq", "sft"):
        raise ConfigError(f"output.position_ids is {recipe.output.position_ids}: only types seq and sft have them")
    if recipe.packing is not None and recipe.type not in ("seq", "sft"):
        raise ConfigError(f"packing is for types seq and sft, but type {recipe.type} is read record by record")


def check_size(value: Any) -> None:
    """Refuse a value that is nested too deeply, refers to itself, or grows without end by YAML aliases.

    Raises:
        ConfigError: If it does; the message gives the path of the key.
    """
    if not isinstance(value, dict):
        return
    for key, entry in value.items():
        for name, part in entry.items() if isinstance(entry, dict) else (("", entry),):
            try:
                plain(part)
            except InputError as error:
                raise ConfigError(f"{below(str(key), name) if name else key}: {error}") from None
