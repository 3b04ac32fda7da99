"""`resolve` makes the plan of a run from a recipe: it finds files, layouts, tokeniser, template, keys and library."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.io import AnyPath, Storage, as_read_back, path_at, reader_of
from headrace.preparing.backends import REFERENCE
from headrace.preparing.backends.tokenizer import TextTokenizer, load_tokenizer
from headrace.preparing.columns import DOMAIN, Column, Kind
from headrace.preparing.first_documents import NUM_DOCUMENTS, Unproved
from headrace.preparing.messages import RecipeSetup
from headrace.preparing.options import PrepareOptions
from headrace.preparing.recipes.first_records import choose_library, make_first
from headrace.preparing.recipes.inputs import find_recipe_inputs
from headrace.preparing.record_encoder import end_notices, find_end_names
from headrace.preparing.run_plan import OnProgress, RecipePart, RunPlan, show_compared
from headrace.preparing.sources import choose_task_bytes
from headrace.samples.layouts import NUM_RECORDS
from headrace.samples.recipe import Recipe, StoreKey, TemplateSpec
from headrace.samples.templates import ChatTemplate, TemplateSetup
from headrace.stores.hdf5.store import load_h5py
from headrace.stores.indexed.layout import dtype_code
from headrace.stores.json.store import check_jsonl_dtype
from headrace.stores.keyed.layout import check_key, key_dtype


def resolve(
    recipe: Recipe,
    options: PrepareOptions,
    *,
    tokenizer: str | os.PathLike[str] | None,
    storage: Storage | None,
    stdin: Callable[[], Path | None],
    earlier: Mapping[str, Any],
    on_progress: OnProgress,
    on_notice: Callable[[str], None],
) -> Unproved:
    """Make the plan of a run.

    Args:
        recipe: a recipe that has inputs.
        options: the options of the run, see `recipe_options`.
        tokenizer: the tokeniser, if the recipe names none.
        storage: how the stores of URLs are reached.
        stdin: copies standard input to a file, if that is an input.
        earlier: the description of an unfinished run in the same folder; its time is used for a template that asks for
            the time.
        on_progress: called with the phases before the first record is stored.
        on_notice: called with the layouts that were recognised, and other notices for the user.

    Returns:
        The plan, and the texts of the first records.

    Raises:
        ConfigError: something that the recipe names does not exist, or its parts do not fit together.
        InputError: a file cannot be read.
        MissingExtraError: a package is not installed.
    """
    show_compared(on_progress, "tokenizer")(0, 0)
    loaded, folder = find_tokenizer(recipe, tokenizer, storage)
    recipe, template = find_template(recipe, folder, earlier, storage)
    choice = choose_library(loaded, options, show_compared(on_progress, "probe"))
    inputs = find_recipe_inputs(
        recipe,
        RunPlan.record_spec(options),
        stdin=stdin(),
        storage=storage,
        keep_faulty=options.errors.on_error == "skip",
        num_records=NUM_RECORDS if choice.name == REFERENCE else NUM_DOCUMENTS,
        max_record_bytes=options.records.max_record_bytes,
        on_notice=on_notice,
    )
    names = find_end_names(loaded, folder, template)
    making = RecipeSetup(
        recipe=msgspec.json.encode(inputs.recipe),
        sources=inputs.sources,
        template=None if template is None else msgspec.json.encode(template),
        special_tokens=names.tokens,
        before_text=loaded.before_text,
        generation_ends=names.generation_ends,
    )
    made = make_first(making, inputs, loaded, choice, on_notice)
    begin = "".join(map(loaded.token_text, loaded.before_text)) if recipe.ends.bos == "auto" else ""
    for notice in end_notices(names, made.counts, sum(map(len, inputs.first_records)), begin):
        on_notice(notice)
    plan = RunPlan(
        files=inputs.files,
        options=options,
        tokenizer=loaded,
        eod=None,
        bos=None,
        choice=choice,
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in inputs.files)),
        recipe=RecipePart(
            columns=_columns(inputs.recipe, made.keys, made.dtypes),
            making=making,
            described=as_read_back({"recipe": inputs.recipe, "template": template}),
            max_records=inputs.recipe.filters.max_records,
        ),
    )
    _check_layout(plan)
    return Unproved(plan, made.texts, made.encoder)


def find_tokenizer(
    recipe: Recipe, given: str | os.PathLike[str] | None, storage: Storage | None = None
) -> tuple[TextTokenizer, AnyPath]:
    """The tokeniser of a recipe, or ``given`` if the recipe names none, and its folder; both may be at a URL.

    Raises:
        ConfigError: there is no tokeniser, or there are two different ones.
    """
    if given is not None and recipe.tokenizer is not None and os.fspath(given) != recipe.tokenizer:
        raise ConfigError(
            f"the recipe says tokenizer: {recipe.tokenizer}, but {os.fspath(given)!r} was given as well: give only one"
        )
    name = given if given is not None else recipe.tokenizer
    if name is None:
        raise ConfigError("no tokeniser: write `tokenizer: FOLDER` in the recipe, or give --tokenizer PATH")
    loaded = load_tokenizer(name, storage)
    place = path_at(name, reader_of(storage))
    if place.is_dir():
        return loaded, place
    # By the slash at its end a folder of a web server is known.
    return loaded, place.parent if isinstance(place, Path) else place.at(f"{place.parent}/")


def find_template(
    recipe: Recipe, folder: AnyPath, earlier: Mapping[str, Any], storage: Storage | None = None
) -> tuple[Recipe, TemplateSetup | None]:
    """The template, if there is one, and the recipe with the time that the template sees, if it asks for the time."""
    spec = recipe.template or TemplateSpec()
    try:
        if spec.path is None:
            template = ChatTemplate.load(folder, name=spec.name)
        else:
            place = path_at(spec.path, reader_of(storage))
            template = ChatTemplate.load(
                spec.path if isinstance(place, Path) else place,
                name=spec.name,
                tokenizer=None if place.is_dir() else folder,
            )
    except ConfigError:
        if recipe.template is not None and (spec.path is not None or spec.name is not None):
            raise
        return recipe, None  # a record that needs a template will be refused
    setup = template.setup
    if not setup.asks_for_time:
        return recipe, msgspec.structs.replace(setup, now=None)
    now = spec.now
    if now is None:
        before = (((earlier.get("recipe") or {}).get("template")) or {}).get("now")
        now = datetime.now().replace(microsecond=0) if before is None else datetime.fromisoformat(before)
    recipe = msgspec.structs.replace(recipe, template=msgspec.structs.replace(spec, now=now))
    return recipe, msgspec.structs.replace(setup, now=now)


def _columns(recipe: Recipe, keys: tuple[StoreKey, ...], dtypes: Mapping[str, np.dtype[Any]]) -> tuple[Column, ...]:
    names = {key.name: key.stored for key in keys}
    columns = []
    for key in keys:
        kind: Kind = "ids" if key.kind == "ids" else "mask" if key.kind == "mask" else "value"
        if key.kind == "positions" and recipe.output.position_ids == "continuous":
            kind = "positions"
        parallel_to = "" if key.parallel_to is None else names[key.parallel_to]
        columns.append(Column(key.stored, dtypes[key.name].name, kind, parallel_to))
    return (*columns, *([DOMAIN] if recipe.output.domain_key is not None else []))


def _check_layout(plan: RunPlan) -> None:
    """Refuse before the run what the layout cannot hold.

    Raises:
        ConfigError: the layout cannot store a key because of its dtype or its name.
        MissingExtraError: h5py is not installed.
    """
    layout = plan.options.output.format
    for column in plan.columns:
        if column.kind == "domain":
            continue
        try:
            if layout == "indexed":
                dtype_code(column.dtype, ids=column.kind == "ids")
            else:
                check_key(column.key)
                dtype = key_dtype(column.dtype)
                if layout == "jsonl":
                    check_jsonl_dtype(dtype)
        except ConfigError as error:
            raise ConfigError(f"key {column.key!r} cannot be stored as {layout}: {error}") from None
    if layout == "hdf5":
        load_h5py("output.format hdf5")
