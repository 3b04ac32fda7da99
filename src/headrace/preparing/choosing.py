"""`headrace.prepare`: calls the function that writes a store of text, of records or of media."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.io import Storage
from headrace.preparing.api import prepare_text
from headrace.preparing.options import TextOptions
from headrace.preparing.recipes import RecipeOptions, prepare_recipe
from headrace.preparing.shards import ShardOptions, prepare_shards
from headrace.samples.recipe import Recipe
from headrace.stores import Manifest


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    recipe: Recipe | str | os.PathLike[str] | None = None,
    options: TextOptions | RecipeOptions | ShardOptions | None = None,
    storage: Storage | None = None,
    on_progress: Callable[[Any], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest:
    """Prepare a store in a folder: tokens of text, samples of records, or media in tar shards.

    ===================== ==================================== ==========================================
    what is given         what is written                      the function that does it
    ===================== ==================================== ==========================================
    ``tokenizer``         tokens of text                       `headrace.preparing.prepare_text`
    ``recipe``            samples of records, as a recipe says `headrace.preparing.prepare_recipe`
    ``ShardOptions``      tar shards of media                  `headrace.preparing.prepare_shards`
    ===================== ==================================== ==========================================

    The bytes written depend on inputs and options alone, never on the number of workers. All files appear together at
    the end, or none does. If a run was interrupted or killed, the same call continues it.

    Args:
        inputs: a file, folder or glob, or several of them. With a recipe they replace the inputs that the recipe names;
            an empty list keeps those.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, as
            ``s3://bucket/stores/web``.
        tokenizer: a ``tokenizer.json``, or a folder that holds one. With a recipe it is needed only if the recipe names
            none.
        recipe: a recipe, or the path of its file.
        options: `TextOptions` for text, `RecipeOptions` for a recipe, `ShardOptions` for media.
        storage: how the stores of URLs, of inputs and output, are reached; None goes by the environment.
        on_progress: called a few times a second with a `headrace.engine.job.TaskProgress`.
        on_notice: called with what a user should know.

    Returns:
        The manifest, as it was written.

    Raises:
        ConfigError: the arguments do not fit together, or one of them is not valid.
        InputError: a record or file is bad; the message names file and line.
        OutputError: the folder is in use or holds something else, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: a package that is needed is not installed.

    Example:
        >>> manifest = headrace.prepare("data/*.jsonl", "prepared", tokenizer="tokenizer.json")
        >>> manifest.ledger.documents.kept == len(headrace.open("prepared"))
        True
    """
    places = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if recipe is not None:
        if options is not None and not isinstance(options, RecipeOptions):
            raise _misfit("a recipe", "RecipeOptions", options)
        return prepare_recipe(
            recipe, output, inputs=places, tokenizer=tokenizer, options=options, storage=storage,
            on_progress=on_progress, on_notice=on_notice,
        )  # fmt: skip
    if tokenizer is not None:
        if options is not None and not isinstance(options, TextOptions):
            raise _misfit("text, which tokenizer= asks for,", "TextOptions", options)
        return prepare_text(
            places, output, tokenizer=tokenizer, options=options, storage=storage, on_progress=on_progress,
            on_notice=on_notice,
        )  # fmt: skip
    if not isinstance(options, ShardOptions):
        found = "" if options is None else f", and options are {type(options).__name__}"
        raise ConfigError(
            f"neither tokenizer nor recipe is given{found}: give tokenizer= for text, recipe= for records, or "
            "options=ShardOptions() for media. A folder of tars becomes an Energon dataset by "
            "headrace.preparing.prepare_energon"
        )
    return prepare_shards(
        places, output, options=options, storage=storage, on_progress=on_progress, on_notice=on_notice
    )


def _misfit(what: str, wanted: str, options: object) -> ConfigError:
    return ConfigError(
        f"options are {type(options).__name__}, but {what} takes {wanted}. TextOptions go with tokenizer=, "
        "RecipeOptions with recipe=, and ShardOptions with neither"
    )
