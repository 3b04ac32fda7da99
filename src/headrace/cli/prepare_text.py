"""``headrace prepare text``: its options, and the progress and reports of runs over text and recipes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

from headrace import inspect, preparing
from headrace.cli import prepare_shared as shared
from headrace.cli.command import Found, command, given_names
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over, show_tasks
from headrace.cli.progress import ProgressBar, notes
from headrace.errors import ConfigError
from headrace.inspect.figures import plural

if TYPE_CHECKING:
    from headrace.samples.recipe import Recipe
    from headrace.stores import Manifest


def tell(manifest: Manifest, output: str, elapsed_s: float, *, quiet: bool) -> Found:
    """Return the report at the end of a run or job."""
    ledger, more = manifest.ledger, [*inspect.made_by(manifest)]
    if ledger.documents.with_special_tokens:
        is_recipe = ledger.samples is not None
        policy = manifest.options["recipe" if is_recipe else "tokens"].get("special_tokens_in_text", "guard")
        number = plural(ledger.documents.with_special_tokens, "record" if is_recipe else "text")
        more.append(("special", f"{number} with the name of a special token: {policy}"))
    return shared.made(result(manifest, output, elapsed_s), *more, bad=manifest.errors, noun="bad record")


def result(manifest: Manifest, output: str, elapsed_s: float) -> dict[str, object]:
    """Return what ``--json`` prints."""
    ledger, tokenizer, backend = manifest.ledger, manifest.tokenizer, manifest.backend
    return {
        "output": output,
        "format": manifest.outputs[0].format,
        "keys": list(manifest.keys),
        "shards": len(manifest.outputs),
        "dtype": next(iter(manifest.outputs[0].keys.values())).dtype,
        "documents": ledger.documents.kept,
        "documents_read": ledger.documents.read,
        "documents_dropped": ledger.documents.dropped,
        "tokens": ledger.tokens.kept,
        "tokens_dropped": ledger.tokens.dropped,
        "missing_bos": ledger.missing_bos,
        "errors": len(manifest.errors),
        "vocab_size": tokenizer.vocab_size if tokenizer else None,
        "eod": tokenizer.eod if tokenizer else None,
        "bos": tokenizer.bos if tokenizer else None,
        "backend": backend.name if backend else None,
        "inputs": len(manifest.inputs),
        "input_bytes": sum(file.size for file in manifest.inputs),
        **_samples(manifest),
        "files": [file.name for shard in manifest.outputs for file in shard.files],
        "seconds": round(elapsed_s, 3),
    }


def _samples(manifest: Manifest) -> dict[str, object]:
    """The fields that the run of a recipe adds to ``--json``."""
    samples = manifest.ledger.samples
    if samples is None:
        return {}
    return {
        "records": samples.records,
        "supervised": samples.supervised,
        "tokens_by_key": {key: tokens.kept for key, tokens in samples.keys.items()},
        "tokens_truncated": manifest.ledger.tokens.truncated,
        "notes": samples.notes,
        "layouts": [source.get("layout") for source in manifest.options["recipe"]["inputs"]],
        "domains": sorted({shard.prefix.rpartition("/")[0] for shard in manifest.outputs} - {""}),
    }


FORMS = (
    "prepare has three forms. Two need --output DIR: headrace prepare text (files, folders or globs, with --tokenizer "
    "PATH or --recipe FILE) and media (tar shards of media, or --format tar). The third, headrace prepare energon, "
    "prepares a folder of .tar shards, a .jsonl or the .yaml of a metadataset in place, with none of these options."
)


@command(
    "text",
    "Make tokens of text, or samples of records with a recipe.",
    urls=("inputs", "output", "tokenizer", "recipe"),
    kind=shared.Subcommand,
)
def text(
    inputs: Annotated[tuple[str, ...], "INPUT..."] = (),
    *,
    output: str | None = None,
    tokenizer: Annotated[str | None, "PATH"] = None,
    recipe: Annotated[str | None, "FILE"] = None,
    now: Annotated[str | None, "TIME"] = None,
    options: preparing.PrepareOptions,
    executor: ExecutorOptions = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
) -> Found:
    """Tokenise text into shards in DIR that Megatron can read, or make samples of records as a recipe says.

    INPUT is a file, a folder (searched at any depth), a glob, a brace pattern, or - for standard input. Files are
    .jsonl (also .gz and .zst), .parquet, .arrow and .txt. All of these may be URLs.

    Text needs --tokenizer. With --recipe FILE, records become samples for fine-tuning, preferences and rollouts; see
    docs/recipes.md. A recipe names its inputs, unless INPUT is given, and may name the tokeniser; paths in a recipe at
    a URL begin at its folder. The options for text alone are refused then; all others go with a recipe, too.

    The result does not depend on the number of workers, and appears whole or not at all. If a run ends early for any
    reason, the same command continues it.

    Args:
        recipe: make samples of records, as this file in YAML or JSON says.
        dry_run: estimate what would be written from a sample of the input; write nothing.
    """
    found = None
    if recipe is not None:
        found = _of_recipe(recipe, now, options)
    elif now is not None:
        raise ConfigError("--now is the time that the template of a recipe sees: give --recipe FILE as well")
    elif tokenizer is None:
        raise ConfigError(_missing_tokenizer(inputs))
    elif not inputs:
        raise ConfigError("no INPUT is given: name at least one file, folder or glob")
    else:
        shared.check_errors(options.errors, "bad record")
    if dry_run:
        shared.tell_output(output, options)
        return shared.estimated(preparing.estimate(inputs, tokenizer=tokenizer, recipe=found, options=options))
    folder = shared.output_folder(output)
    do = preparing.prepare if executor.is_local else preparing.plan
    with ProgressBar(quiet=quiet) as bar:
        manifest = do(
            inputs,
            folder,
            tokenizer=tokenizer,
            recipe=found,
            options=options,
            on_progress=partial(show_tasks, bar),
            on_notice=notes(bar, quiet=quiet),
        )
        elapsed_s = bar.elapsed_s
    if manifest is None:
        return hand_over(executor, folder, workers=options.workers, quiet=quiet)
    return tell(manifest, folder, elapsed_s, quiet=quiet)


def _of_recipe(path: str, now: str | None, options: preparing.PrepareOptions) -> Recipe:
    """Read a recipe, and apply the options of the command line to it.

    Raises:
        ConfigError: the recipe is not valid, or an option contradicts it.
    """
    from headrace.preparing.recipes import with_options
    from headrace.samples.recipe import with_now

    recipe = with_options(preparing.read_recipe(path), options, given_names())
    shared.check_errors(options.errors, "bad record", recipe.errors.on_error)
    return recipe if now is None else with_now(recipe, now, path)


def _missing_tokenizer(inputs: tuple[str, ...]) -> str:
    for given in inputs:
        if told := resolve_name("headrace.stores.foreign_ranges:foreign_format")(given):
            return f"{given!r}: {told}"
        if given.endswith(".tar") or any(Path(given).glob("*.tar")):
            return f"{given!r} holds .tar shards. {FORMS}"
    return f"--tokenizer is missing. {FORMS}"
