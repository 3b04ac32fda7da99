"""Read recipes from YAML or JSON, or from a configuration of AstrAI, and refuse values that contradict each other.

If a recipe leaves the layout open, `resolve_layout` fills it in from the first records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import Any, Literal

import msgspec
import numpy as np
import yaml

from headrace.config import NotNegative, Positive, below, check_choice, convert, nearest, nearest_path
from headrace.errors import ConfigError, InputError
from headrace.io import path_at, read_small
from headrace.plan.packing.options import Packing
from headrace.samples.layouts import LAYOUTS, NUM_RECORDS, Recognised, make_layout, recognise, without_nulls
from headrace.samples.layouts.known import SAID
from headrace.samples.layouts.turns import AUTO, EACH
from headrace.samples.masking.options import MaskOptions
from headrace.samples.recipe.recipe import (
    DTYPES,
    MAKES,
    Action,
    EndSpec,
    LengthSpec,
    OutputSpec,
    Recipe,
    RecordFilters,
    Section,
    Source,
    TemplateSpec,
    TrainType,
    mask_key,
    store_keys,
)
from headrace.samples.templates.messages import plain


def load_recipe(path: str | PathLike[str]) -> Recipe:
    """Read the recipe in a ``.yaml``, ``.yml`` or ``.json`` file.

    A configuration of AstrAI is recognised by its key ``input``. Paths in the recipe stay as they are written.

    Raises:
        ConfigError: If the file cannot be read, a key or word is unknown, or values contradict each other. The message
            gives the path of the key, such as ``length.max_tokens``.
    """
    name = fspath(path)
    try:
        text = read_small(path_at(path)).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"recipe {name!r} does not exist{nearest_path(name)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {name!r} cannot be read: {error}") from error
    return parse_recipe(text, name=name)


def parse_recipe(text: str, *, name: str = "recipe") -> Recipe:
    """Read a recipe from the text of YAML or JSON; raises the errors of `load_recipe`, which begin with ``name``."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"{name} is neither YAML nor JSON{_comments(text)}: {' '.join(str(error).split())}"
        ) from error
    try:
        _check_size(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} holds no recipe: expected an object with 'type', 'inputs' and so on")
    try:
        return _read_astrai(value) if _is_astrai(value) else make_recipe(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _comments(text: str) -> str:
    """Name a line with a comment as JavaScript has them, such as those of AstrAI's documentation."""
    for number, line in enumerate(text.splitlines(), 1):
        if _COMMENT.search(line):
            return f"; line {number} has a comment, which JSON does not have (remove // and what follows)"
    return ""


def make_recipe(value: dict[str, Any]) -> Recipe:
    """Make a recipe from plain objects and lists.

    Short forms such as ``inputs: FILE`` and ``template: NAME`` are allowed.

    Raises:
        ConfigError: As `load_recipe`.
    """
    _check_size(value)
    value = dict(value)
    inputs = value.get("inputs", ())
    if isinstance(inputs, str | dict):
        inputs = [inputs]
    if isinstance(inputs, list | tuple):
        value["inputs"] = [_input(entry) for entry in inputs]
    if isinstance(value.get("template"), str):
        value["template"] = {"path": value["template"]}
    recipe = convert(value, Recipe)
    _check_recipe(recipe)
    return recipe


def _input(entry: Any) -> Any:
    """Return an input in its long form, with our own name of its layout."""
    if isinstance(entry, str):
        return {"paths": entry}
    layout = entry.get("layout") if isinstance(entry, dict) else None
    return {**entry, "layout": SAID.get(layout.lower(), layout)} if isinstance(layout, str) else entry


_COMMENT = re.compile(r'^\s*//|[,{}\[\]"]\s*//')


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # PyYAML is not typed
    """A YAML loader without Python's tags that refuses duplicate keys, of which YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; a duplicate key is an error."""
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key != "<<":
                raise yaml.YAMLError(
                    f"the key {key!r} occurs twice, the second time in line {key_node.start_mark.line + 1}"
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def resolve_layout(
    recipe: Recipe, records: Sequence[Mapping[str, Any]], *, source: int = 0
) -> tuple[Recipe, Recognised | None]:
    """Return the recipe with the layout of input number ``source`` filled in, and what was recognised.

    The second value is None if the recipe already names the layout.

    Raises:
        ConfigError: If no layout fits all of the first records, or several do.
    """
    spec = recipe.inputs[source]
    if recipe.by_sections or spec.layout != AUTO:
        return recipe, None
    first = records[:NUM_RECORDS]
    if spec.drop_nulls:
        first = [without_nulls(record) for record in first]
    try:
        found = recognise(first, spec, makes=MAKES[recipe.type])
    except ConfigError as error:
        raise ConfigError(f"inputs[{source}], for type {recipe.type}: {error}") from None
    inputs = list(recipe.inputs)
    inputs[source] = msgspec.structs.replace(spec, layout=found.layout)
    recipe = msgspec.structs.replace(recipe, inputs=tuple(inputs))
    _check_recipe(recipe)
    return recipe, found


def with_now(recipe: Recipe, now: str, path: str) -> Recipe:
    """Return the recipe with this time for its template, written in ISO 8601: ``2026-03-01``, ``2026-03-01T23:59``.

    Raises:
        ConfigError: If ``now`` is not a time, or the recipe in ``path`` names another one.
    """
    try:
        time = datetime.fromisoformat(now)
    except ValueError:
        raise ConfigError(f"--now {now}: write a time such as 2026-03-01 or 2026-03-01T23:59") from None
    spec = recipe.template or TemplateSpec()
    if spec.now not in (None, time):
        raise ConfigError(f"{path} sets template.now to {spec.now}, and --now is {time}: set it in one place only")
    return msgspec.structs.replace(recipe, template=msgspec.structs.replace(spec, now=time))


_NEEDED = {"dpo": ("chosen", "rejected"), "grpo": ("prompts", "responses", "rewards"), "prompt": ("prompts",)}
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _check_recipe(recipe: Recipe) -> None:
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
        _check_source(source, f"sources.{key}")
    if not recipe.sources:
        return
    for key in _NEEDED.get(recipe.type, ()):
        if key not in recipe.sources:
            raise ConfigError(f"type is {recipe.type}, but sources has no {key!r}{nearest(key, recipe.sources)}")
    if recipe.type in ("seq", "sft"):
        raise ConfigError(f"type is {recipe.type}, which has one key: use sections, or type: keys")


def _check_source(source: Source, path: str) -> None:
    num_sections = len(source.sections)
    if source.is_value and num_sections > 1:
        raise ConfigError(
            f"{path} has a section of action value and {num_sections - 1} others: numbers must be the only section of "
            "a source"
        )
    if source.is_value and (source.list_field or source.mask_key is not None):
        raise ConfigError(
            f"{path} holds numbers: it has no mask, and list_field is for text; remove mask_key and list_field"
        )
    if source.list_field and num_sections != 1:
        raise ConfigError(
            f"{path} is a list_field and has {num_sections} sections: one is allowed, and its field holds the list"
        )


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


def _check_size(value: Any) -> None:
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


# The names and defaults are those of AstrAI 1.3.13. `docs/recipes.md` lists where the result differs from AstrAI's own,
# and why.
_FORMATS: dict[str, Literal["keyed", "hdf5", "jsonl"]] = {"bin": "keyed", "h5": "hdf5", "jsonl": "jsonl"}


class _Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sections: tuple[Section, ...] | None = None
    sources: dict[str, Source] | None = None


class _Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_seq_len: Positive = 2048
    min_chars: NotNegative = 50
    max_chars: NotNegative = 2_000_000
    max_items: NotNegative | None = None
    batch_size: Positive = 256
    packing_strategy: Literal["simple", "bfd", "bfd_split"] = "simple"
    max_packed_len: Positive = 8192
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"


class _Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    domain_key: str | None = None
    storage_format: Literal["bin", "h5", "jsonl"] = "bin"
    max_tokens_per_shard: Positive = 100_000_000
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


def _is_astrai(value: dict[Any, Any]) -> bool:
    """Return whether an object is a configuration of AstrAI, which lists its fields under ``input`` and has no type."""
    return isinstance(value.get("input"), dict) and "type" not in value and "inputs" not in value


def _read_astrai(value: dict[Any, Any]) -> Recipe:
    """Return the recipe of a configuration.

    Raises:
        ConfigError: If a key or word is unknown, or a value is not possible.
    """
    config = convert(value, _Config)
    limits = config.preprocessing
    sections, sources = _fields(config.input)
    is_text = not sources and all(section.action == "train" and not section.template for section in sections)
    recipe = Recipe(
        type=_type(sources, is_text=is_text),
        tokenizer=config.tokenizer_path,
        mask=MaskOptions(on_no_supervised="drop", on_all_supervised="allow"),
        sections=sections,
        sources=sources,
        role_actions=config.mask,
        default_action=config.mask_default,
        ends=EndSpec(append_eos=False, bos="known"),
        length=_length(limits),
        filters=_filters(limits, is_text=is_text),
        packing=None if sources else _packing(limits),
        output=OutputSpec(
            format=_FORMATS[config.output.storage_format],
            dtypes=_dtypes(config, sources, is_text=is_text),
            names={} if sources else {"tokens": "sequence"},
            shard_tokens=config.output.max_tokens_per_shard,
            domain_key=config.output.domain_key,
            num_supervised=False,  # AstrAI's readers use the length of the shortest key for all keys
            position_ids="none" if sources else config.output.position_ids_mode,
        ),
    )
    _check_recipe(recipe)
    return recipe


def _fields(described: _Input) -> tuple[tuple[Section, ...], dict[str, Source]]:
    """Return the sections or the sources; only one of them is not empty."""
    sources = {key: source for key, source in (described.sources or {}).items() if source.sections}
    sections = () if sources else described.sections or ()
    if not sources and not sections:
        raise ConfigError(
            "input has neither sections nor sources: add one that names the fields to read, such as"
            ' {"sections": [{"field": "text", "action": "train"}]}; docs/migrate/astrai.md has one for each type'
        )
    return sections, sources


def _filters(limits: _Preprocessing, *, is_text: bool) -> RecordFilters:
    """Return the filters; the limits of characters are for plain text only."""
    max_records = limits.max_items or None
    if not is_text:
        return RecordFilters(max_records=max_records)
    return RecordFilters(min_chars=limits.min_chars or None, max_chars=limits.max_chars, max_records=max_records)


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
