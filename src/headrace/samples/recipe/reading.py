"""Read recipes from YAML or JSON, and fill in the layout from the first records if the recipe leaves it open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec
import yaml

from headrace.config import convert
from headrace.errors import ConfigError
from headrace.samples.layouts import NUM_RECORDS, Recognised, recognise, without_nulls
from headrace.samples.layouts.known import SAID
from headrace.samples.recipe.astrai import is_astrai, read_astrai
from headrace.samples.recipe.check import check_recipe, check_size
from headrace.samples.recipe.recipe import AUTO, MAKES, Recipe, TemplateSpec


def load_recipe(path: str | PathLike[str]) -> Recipe:
    """Read the recipe in a ``.yaml``, ``.yml`` or ``.json`` file.

    A configuration of AstrAI is recognised by its key ``input``. Paths in the recipe stay as they are written.

    Raises:
        ConfigError: If the file cannot be read, a key or word is unknown, or values contradict each other. The message
            gives the path of the key, such as ``length.max_tokens``.
    """
    name = fspath(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"recipe {name!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {name!r} cannot be read: {error}") from error
    return parse_recipe(text, name=name)


def parse_recipe(text: str, *, name: str = "recipe") -> Recipe:
    """Read a recipe from the text of YAML or JSON; raises the errors of `load_recipe`, which begin with ``name``."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    try:
        check_size(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} holds no recipe: expected an object with 'type', 'inputs' and so on")
    try:
        return read_astrai(value) if is_astrai(value) else make_recipe(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def make_recipe(value: dict[str, Any]) -> Recipe:
    """Make a recipe from plain objects and lists.

    Short forms such as ``inputs: FILE`` and ``template: NAME`` are allowed.

    Raises:
        ConfigError: As `load_recipe`.
    """
    check_size(value)
    value = dict(value)
    inputs = value.get("inputs", ())
    if isinstance(inputs, str | dict):
        inputs = [inputs]
    if isinstance(inputs, list | tuple):
        value["inputs"] = [_input(entry) for entry in inputs]
    if isinstance(value.get("template"), str):
        value["template"] = {"path": value["template"]}
    recipe = convert(value, Recipe)
    check_recipe(recipe)
    return recipe


def _input(entry: Any) -> Any:
    """Return an input in its long form, with our own name of its layout."""
    if isinstance(entry, str):
        return {"paths": entry}
    layout = entry.get("layout") if isinstance(entry, dict) else None
    return {**entry, "layout": SAID.get(layout.lower(), layout)} if isinstance(layout, str) else entry


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
        found = recognise(first, spec.options, makes=MAKES[recipe.type])
    except ConfigError as error:
        raise ConfigError(f"inputs[{source}], for type {recipe.type}: {error}") from None
    inputs = list(recipe.inputs)
    inputs[source] = msgspec.structs.replace(spec, layout=found.layout)
    recipe = msgspec.structs.replace(recipe, inputs=tuple(inputs))
    check_recipe(recipe)
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
