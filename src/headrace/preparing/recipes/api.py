"""`prepare_recipe` writes a store from records of any layout; `plan_recipe` plans, `estimate_recipe` estimates that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from headrace.errors import ConfigError
from headrace.io import Storage, check_readable, check_storage
from headrace.preparing.backends import ProvedEncoder
from headrace.preparing.estimate import Estimate, estimate_plan
from headrace.preparing.filters import FilterSpec
from headrace.preparing.options import (
    BackendName,
    DocumentRunOptions,
    ErrorOptions,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    check_documents,
)
from headrace.preparing.output_folder import STDIN_NAME, OutputPlace, output_at
from headrace.preparing.recipes.inputs import all_paths, read_recipe, reads_stdin, with_inputs
from headrace.preparing.recipes.resolving import deciding, resolve
from headrace.preparing.run import STDIN_IS_HERE, do_run, plan_run
from headrace.preparing.run_plan import OnProgress, RunPlan
from headrace.preparing.sources import spool_stdin
from headrace.samples.recipe import Recipe
from headrace.stores import Manifest


class RecipeOptions(DocumentRunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_recipe`: what the recipe leaves open because it does not define the samples.

    This is the only place that owns these defaults.

    Example:
        >>> from pathlib import Path
        >>> lines = ["type: seq", "inputs: data/*.jsonl", "tokenizer: tokenizer.json"]
        >>> _ = Path("seq.yaml").write_text("\\n".join(lines))
        >>> options = headrace.preparing.RecipeOptions(deduplicate=True)
        >>> manifest = headrace.preparing.prepare_recipe("seq.yaml", "seq", options=options)
        >>> manifest.options["deduplicate"]
        True
    """

    id_field: str | None = None
    """The field that names a record; the ids are then stored beside the documents."""

    max_record_bytes: int = 64 << 20
    """A longer line, or text, is a bad record."""

    function: str | None = None
    """``module:function`` that decides which records are kept, see `FilterSpec`."""

    backend: BackendName = "auto"
    """See `TokenOptions`."""


def prepare_recipe(
    recipe: Recipe | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    storage: Storage | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
    stdin: BinaryIO | None = None,
) -> Manifest:
    """Make the samples of a recipe, and store them in a folder with a ``headrace.json``.

    The guarantees are those of `prepare_text`: the bytes depend on inputs, recipe, tokeniser, template and options
    alone, all files appear together, and the same call continues a run that was interrupted or killed.

    Args:
        recipe: a recipe, or the path or URL of its file, see `read_recipe`; a configuration of AstrAI is accepted too.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL.
        inputs: files to read in place of those that the recipe names.
        tokenizer: the tokeniser, if the recipe names none; also a URL.
        options: see `RecipeOptions`.
        storage: how the stores of URLs, wherever they stand, are reached; None goes by the environment.
        on_progress: called a few times a second.
        on_notice: called with what a user should know, such as the layout of the records, or that a run is continued.
        stdin: the stream that ``-`` reads; by default standard input.

    Returns:
        The manifest, as it was written.

    Raises:
        ConfigError: the recipe, or something that it names, is not valid.
        InputError: a record or file is bad; the message names file and line.
        OutputError: the folder is in use or holds something else, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: a package that is needed is not installed.

    Example:
        >>> from pathlib import Path
        >>> lines = ["type: seq", "inputs: data/*.jsonl", "tokenizer: tokenizer.json"]
        >>> _ = Path("recipe.yaml").write_text("\\n".join(lines))
        >>> manifest = headrace.preparing.prepare_recipe("recipe.yaml", "sequences")
        >>> manifest.ledger.documents.kept == len(headrace.open("sequences"))
        True
    """
    check_readable(recipe, tokenizer, inputs, output)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    given = recipe
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions(), storage)
    check_storage(storage, all_paths(recipe), output, given, tokenizer)
    overwrite, restart = run_options.overwrite, run_options.restart
    folder = output_at(output, overwrite=overwrite, restart=restart, storage=storage)
    with folder:
        plan, encoder = _resolved_recipe(recipe, folder, tokenizer, run_options, show, notice, stdin, storage)
        planned = plan_run(folder, plan, deciding(plan), notice)
    if isinstance(planned, Manifest):
        return planned
    return do_run(folder, planned, storage, encoder, on_progress=show, on_notice=notice)


def plan_recipe(
    recipe: Recipe | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest | None:
    """Plan a run of `prepare_recipe` in its output folder, for processes on any hosts, see `plan_text`.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_recipe`.
    """
    check_readable(recipe, output, tokenizer, inputs)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions())
    if reads_stdin(recipe):
        raise ConfigError(STDIN_IS_HERE)
    with output_at(output, overwrite=run_options.overwrite, restart=run_options.restart) as folder:
        plan, _ = _resolved_recipe(recipe, folder, tokenizer, run_options, show, notice, None)
        planned = plan_run(folder, plan, deciding(plan), notice)
    return planned if isinstance(planned, Manifest) else None


def _resolved_recipe(
    recipe: Recipe,
    folder: OutputPlace,
    tokenizer: str | os.PathLike[str] | None,
    options: TextOptions,
    show: OnProgress,
    notice: Callable[[str], None],
    stdin: BinaryIO | None,
    storage: Storage | None = None,
) -> tuple[RunPlan, ProvedEncoder | None]:
    stdin_path = None
    if reads_stdin(recipe):
        stdin_path = folder.work / STDIN_NAME
        spool_stdin(stdin or sys.stdin.buffer, stdin_path)
    return resolve(
        recipe,
        options,
        tokenizer=tokenizer,
        stdin=stdin_path,
        earlier=folder.earlier,
        storage=storage,
        on_progress=show,
        on_notice=notice,
    )


def estimate_recipe(
    recipe: Recipe | str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    storage: Storage | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Estimate:
    """Estimate from a sample what a run of `prepare_recipe` would make, see `estimate_text`.

    Raises:
        ConfigError: as `prepare_recipe`; standard input is among the inputs.
        InputError: a file cannot be read, or there are no records. Bad records are counted.
        MissingExtraError: as `prepare_recipe`.
    """
    check_readable(recipe, tokenizer, inputs)
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions(), storage)
    if reads_stdin(recipe):
        raise ConfigError("input '-': standard input cannot be sampled; a dry run needs files")
    plan, _ = resolve(
        recipe,
        run_options,
        tokenizer=tokenizer,
        stdin=None,
        earlier={},
        storage=storage,
        on_progress=lambda progress: None,
        on_notice=on_notice or (lambda message: None),
    )
    return estimate_plan(plan)


def _resolved(
    recipe: Recipe | str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    options: RecipeOptions,
    storage: Storage | None = None,
) -> tuple[Recipe, TextOptions]:
    """The recipe with its inputs, and the options of the run as `TextOptions`."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, storage)
    recipe = with_inputs(recipe, inputs)
    output = recipe.output
    run_options = TextOptions(
        records=RecordOptions(fields=(), id_field=options.id_field, max_record_bytes=options.max_record_bytes),
        tokens=TokenOptions(special_tokens_in_text="encode", backend=options.backend),
        filters=FilterSpec(function=options.function),
        deduplicate=options.deduplicate,
        output=OutputOptions(format=output.format, shard_tokens=output.shard_tokens),
        errors=ErrorOptions(on_error=recipe.errors.on_error, max_errors=recipe.errors.max_errors),
        workers=options.workers,
        task_bytes=options.task_bytes,
        overwrite=options.overwrite,
        restart=options.restart,
    )
    check_documents(run_options)
    return recipe, run_options
