"""``headrace prepare``: make a store of text or records; tar shards and datasets in place have files of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from headrace.cli.command import Command, json_option, print_json, print_report
from headrace.cli.prepare_recipe import lines
from headrace.cli.prepare_shards import refuse_shard_options, shard_options
from headrace.cli.prepare_tars import is_in_place, refuse_tar_options, tar_options
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, short, size
from headrace.preparing.forking import be_one_thread

if TYPE_CHECKING:
    from headrace.preparing import Estimate, TextOptions, TextProgress
    from headrace.stores import Manifest

_MAX_FILES = 4
_MAX_ERRORS = 5

_PHASES = {
    "tokenizer": "loading the tokeniser",
    "probe": "probing the tokeniser",
    "prove": "proving the first documents",
    "encode": "encoding",
    "sort": "sorting",
    "finish": "finishing",
}


def _show(bar: ProgressBar, progress: TextProgress) -> None:
    phase, done, total = _PHASES[progress.phase], progress.input_bytes, progress.total_bytes
    if not total or progress.phase in ("probe", "prove"):
        bar.update(phase, done, total)
        return
    speeds = {"B": done} | ({"tokens": progress.tokens} if progress.phase == "encode" else {})
    bar.update(phase, done, total, text=f"{count(progress.documents)} documents", speeds=speeds)


def result(manifest: Manifest, output: str, elapsed_s: float) -> dict[str, object]:
    """Return what ``--json`` prints."""
    ledger, tokenizer, backend = manifest.ledger, manifest.tokenizer, manifest.backend
    return {
        "output": output,
        "files": [file.name for shard in manifest.outputs for file in shard.files],
        "format": manifest.outputs[0].format,
        "keys": list(manifest.keys),
        "shards": len(manifest.outputs),
        "dtype": next(iter(manifest.outputs[0].keys.values())).dtype,
        "documents": ledger.documents.kept,
        "documents_read": ledger.documents.read,
        "documents_dropped": ledger.documents.dropped,
        "tokens": ledger.tokens.kept,
        "tokens_dropped": ledger.tokens.dropped,
        "errors": len(manifest.errors),
        "vocab_size": tokenizer.vocab_size if tokenizer else None,
        "eod": tokenizer.eod if tokenizer else None,
        "bos": tokenizer.bos if tokenizer else None,
        "backend": backend.name if backend else None,
        "inputs": len(manifest.inputs),
        "input_bytes": sum(file.size for file in manifest.inputs),
        "seconds": round(elapsed_s, 3),
        **_samples(manifest),
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


def summary(manifest: Manifest, output: str, elapsed_s: float, *, is_whole: bool) -> list[str]:
    """Return the report at the end of a run; it has no speeds if an earlier run did a part of the work."""
    ledger, tokenizer, backend = manifest.ledger, manifest.tokenizer, manifest.backend
    input_bytes = sum(file.size for file in manifest.inputs)
    per_s = 1 / max(elapsed_s, 1e-9)
    dtype = next(iter(manifest.outputs[0].keys.values())).dtype
    pairs = [
        ("documents", count(ledger.documents.kept) + _dropped(ledger.documents.dropped)),
        *_tokens(manifest, dtype),
        ("input", f"{plural(len(manifest.inputs), 'file')}, {size(input_bytes)}"),
    ]
    if tokenizer is not None:
        eod = "" if tokenizer.eod is None else f", end of document {tokenizer.eod}"
        bos = "" if tokenizer.bos is None else f", begin {tokenizer.bos}"
        pairs.append(("tokeniser", f"{tokenizer.source}, vocabulary {count(tokenizer.vocab_size)}{bos}{eod}"))
    if backend is not None:
        proved = sum(backend.proved.values())
        how = f"{backend.name} {backend.version}" + (f", {count(proved)} texts proved" if proved else "")
        pairs.append(("backend", how))
        if backend.routed:
            pairs.append(("", f"{plural(backend.routed, 'text')} encoded by tokenizers: {backend.routes}"))
        if backend.from_task_by:
            pairs.append(("", f"tokenizers encoded the rest, from {backend.from_task_by}"))
    if ledger.documents.with_special_tokens:
        policy = manifest.options["tokens"]["special_tokens_in_text"]
        number = plural(ledger.documents.with_special_tokens, "text")
        pairs.append(("special", f"{number} with the name of a special token: {policy}"))
    files = [f"{file.name} {size(file.size)}" for shard in manifest.outputs for file in shard.files]
    more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
    pairs.append(("files", ", ".join(files[:_MAX_FILES]) + more))
    speeds = f"{size(input_bytes * per_s)}/s, {short(ledger.tokens.kept * per_s)}tokens/s"
    pairs.append(
        ("time", f"{duration(elapsed_s)}, {speeds}" if is_whole else f"{duration(elapsed_s)} since the run continued")
    )
    shown = [f"{output}: complete", *listing(pairs)]
    if manifest.errors:
        shown.append(f"  {plural(len(manifest.errors), 'bad record')} skipped, all listed in headrace.json:")
        shown += [
            f"    {error.file}, {error.unit} {error.line:,}: {error.message}" for error in manifest.errors[:_MAX_ERRORS]
        ]
    return shown


def _tokens(manifest: Manifest, dtype: str) -> list[tuple[str, str]]:
    if manifest.ledger.samples is None:
        return [("tokens", f"{count(manifest.ledger.tokens.kept)} ({dtype})")]
    dtypes = {key: info.dtype for shard in manifest.outputs for key, info in shard.keys.items()}
    return lines(manifest.ledger.samples, dtypes)


def estimate_lines(estimate: Estimate) -> list[str]:
    """Return the report of ``--dry-run``."""
    share = estimate.sampled_bytes / max(estimate.input_bytes, 1)
    documents = plural(estimate.sampled_documents, "document")
    sample = f"{size(estimate.sampled_bytes)} ({share:.2%}), {documents}, scaled up"
    about = "" if estimate.is_exact else "about "
    pairs = [
        ("input", f"{plural(estimate.inputs, 'file')}, {size(estimate.input_bytes)}"),
        ("sample", "all of it" if estimate.is_exact else sample),
        ("documents", f"{about}{count(estimate.documents)}"),
        ("tokens", f"{about}{count(estimate.tokens)} ({estimate.dtype})"),
        ("output", f"about {size(estimate.output_bytes)}"),
        ("backend", estimate.backend + (f", since {estimate.fallback}" if estimate.fallback else "")),
    ]
    if estimate.dropped:
        pairs.append(("filters", f"of the sample{_dropped(estimate.dropped)}"))
    if estimate.bad_records:
        pairs.append(("errors", f"{plural(estimate.bad_records, 'bad record')} in the sample: {estimate.first_error}"))
    return ["dry run: nothing was written", *listing(pairs)]


def _dropped(reasons: dict[str, int]) -> str:
    return f" ({', '.join(f'{name} {count(number)}' for name, number in reasons.items())} dropped)" if reasons else ""


FORMS = (
    "prepare has four forms. Three need --output DIR: text (files, folders or globs, with --tokenizer PATH), a recipe "
    "(--recipe FILE) and media in tar shards (--format tar). The fourth prepares a folder of .tar shards, a .jsonl or "
    "the .yaml of a metadataset in place, with none of these options."
)
CONTINUED = ("continuing", "the run was complete", "the output is complete")
"""Beginnings of the notices which say that an earlier run did a part of the work."""


class _OneThread(Command):
    """A command whose process keeps to one thread, so that workers can be forked from it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Keep libraries that are loaded later from starting threads, then run the command."""
        be_one_thread()
        return super().invoke(ctx)


@click.command(cls=_OneThread, name="prepare", short_help="Make a store of text, records or media.")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", "-o", metavar="DIR", help="Folder for the result; it must be new or empty.")
@click.option("--recipe", metavar="FILE", help="Make samples as a recipe (YAML or JSON) says; see docs/recipes.md.")
@click.option("--tokenizer", metavar="PATH", help="A tokenizer.json, or a folder that holds one.")
@click.option(
    "--field",
    "--text-field",
    "fields",
    metavar="NAME",
    multiple=True,
    help="Field of each record that holds the text (default: 'text'); several fields give one output each.",
)
@click.option("--join", metavar="TEXT", help="Join the texts of several fields with TEXT between them.")
@click.option("--id-field", metavar="NAME", help="Field with the id of each record, which `headrace where` then shows.")
@click.option(
    "--sample-by",
    type=click.Choice(["document", "paragraph", "line"]),
    default="document",
    help="What a document of a .txt file is (default: the whole file).",
)
@click.option(
    "--max-record-bytes",
    metavar="N",
    type=int,
    help="Maximum size of a record; a longer one is bad (default: 64 MiB, tars 256 MiB).",
)
@click.option("--append-eod", is_flag=True, help="Append the end-of-document token to each document that has tokens.")
@click.option(
    "--eod", metavar="TOKEN|ID", help="End-of-document token (default: the only usual one in the vocabulary)."
)
@click.option("--prepend-bos", is_flag=True, help="Prepend the begin token to each document that has tokens.")
@click.option("--bos", metavar="TOKEN|ID", help="Begin token (default: the only usual one in the vocabulary).")
@click.option(
    "--special-tokens-in-text",
    type=click.Choice(["literal", "encode", "error"]),
    default="literal",
    help="What '<|endoftext|>' inside a text becomes: ordinary text (default: literal), the token, or an error.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "tokenizers", "gigatoken", "fastokens", "tiktoken"]),
    default="auto",
    help="Library that encodes (default: the fastest one that is installed and proved equal to tokenizers).",
)
@click.option(
    "--format",
    type=click.Choice(["indexed", "keyed", "hdf5", "jsonl", "tar"]),
    default="indexed",
    help=".bin and .idx (default: indexed), or .bin and meta.json; also .h5 or .jsonl for recipes, .tar for media.",
)
@click.option("--shard-tokens", metavar="N", type=int, help="Maximum number of tokens per shard (default: 2^30).")
@click.option("--single", is_flag=True, help="Write one shard of any size.")
@click.option("--shuffle", metavar="SEED", type=int, help="Shuffle all documents (default: keep their order).")
@click.option("--min-chars", metavar="N", type=int, help="Drop documents with fewer characters.")
@click.option("--max-chars", metavar="N", type=int, help="Drop documents with more characters.")
@click.option("--min-tokens", metavar="N", type=int, help="Drop documents with fewer tokens.")
@click.option("--max-tokens", metavar="N", type=int, help="Drop documents with more tokens.")
@click.option(
    "--filter", "function", metavar="MODULE:FUNCTION", help="Drop records for which this function returns false."
)
@click.option(
    "--now", metavar="TIME", help="With --recipe: the time that its template sees (default: when the run began)."
)
@click.option("--deduplicate", is_flag=True, help="Keep only the first of several documents with the same text.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="A bad record ends the run (default: stop), or is left out and listed.",
)
@click.option(
    "--max-errors",
    metavar="N|SHARE",
    help="Maximum number or share of bad records to skip, as 50 or 0.1% (default: 100).",
)
@click.option(
    "--workers",
    "--num-workers",
    metavar="N",
    type=int,
    help="Number of worker processes (default: one per usable core).",
)
@click.option(
    "--overwrite",
    "--force-overwrite",
    is_flag=True,
    help="Replace the output of an earlier run once the new one is complete.",
)
@click.option("--restart", is_flag=True, help="Discard an unfinished run in DIR (default: continue it).")
@click.option(
    "--dry-run", is_flag=True, help="Estimate documents, tokens and bytes from a sample of the input; write nothing."
)
@shard_options
@tar_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress, notes or summary.")
@json_option
def command(
    inputs: tuple[str, ...], output: str | None, recipe: str | None, tokenizer: str | None, dry_run: bool, quiet: bool,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Tokenise text into shards in DIR that Megatron can read, or make samples of records as a recipe says.

    Without --tokenizer and --recipe, --format tar writes media into tar shards, and a folder of tars becomes an Energon
    dataset in place.

    INPUT is a file, a folder (searched at any depth), a glob, a brace pattern, or - for standard input. Files are
    .jsonl (also .gz and .zst), .parquet, .arrow and .txt. A recipe names its own inputs, unless INPUT is given. The
    result does not depend on the number of workers, and appears whole or not at all. If a run ends early for any
    reason, the same command continues it.

    Options marked "Tars" are for --format tar, those marked "In place" for a dataset that is prepared in place.
    --duplicates, --split-ratio, --sample-type and --field-map are for both.
    """
    named = _named(given)
    if output is None and recipe is None and tokenizer is None and is_in_place(inputs, named):
        from headrace.cli import prepare_tars

        prepare_tars.run(inputs, given, named, dry_run=dry_run, quiet=quiet, as_json=as_json)
        return
    refuse_tar_options(named)
    if given["format"] == "tar":
        if recipe is not None or tokenizer is not None:
            raise ConfigError("--format tar is for media: leave out --recipe and --tokenizer")
        from headrace.cli import prepare_shards

        prepare_shards.run(inputs, output, given, named, dry_run=dry_run, quiet=quiet, as_json=as_json)
        return
    refuse_shard_options(named)
    work = _text_work(inputs, tokenizer, given) if recipe is None else _recipe_work(recipe, inputs, tokenizer, given)
    if dry_run:
        estimate = work.estimate()
        if as_json:
            print_json(estimate)
        else:
            print_report(estimate_lines(estimate))
        return
    if output is None:
        raise ConfigError("--output DIR is missing: name the folder for the result")
    is_whole = True
    with ProgressBar(quiet=quiet) as bar:

        def notice(message: str) -> None:
            nonlocal is_whole
            is_whole = is_whole and not message.startswith(CONTINUED)
            if not quiet:
                bar.note(f"note: {message}")

        manifest = work.prepare(output, partial(_show, bar), notice)
        elapsed_s = bar.elapsed_s
    if as_json:
        print_json(result(manifest, output, elapsed_s))
    elif not quiet:
        print_report(summary(manifest, output, elapsed_s, is_whole=is_whole))


class _Work(NamedTuple):
    """A run of text or of a recipe, as two functions: one estimates it, one does it."""

    estimate: Callable[[], Estimate]
    prepare: Callable[[str, Callable[[TextProgress], None], Callable[[str], None]], Manifest]


def _text_work(inputs: tuple[str, ...], tokenizer: str | None, given: dict[str, Any]) -> _Work:
    if tokenizer is None:
        raise ConfigError(_missing_tokenizer(inputs))
    if not inputs:
        raise ConfigError("no INPUT is given: name at least one file, folder or glob")
    options = _options(given)
    from headrace.preparing import estimate_text, prepare_text

    return _Work(
        lambda: estimate_text(inputs, tokenizer=tokenizer, options=options),
        lambda output, show, notice: prepare_text(
            inputs, output, tokenizer=tokenizer, options=options, on_progress=show, on_notice=notice
        ),
    )


def _named(given: dict[str, Any]) -> set[str]:
    """The options that the user gave on the command line."""
    context = click.get_current_context()
    return {name for name in given if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}


def _recipe_work(path: str, inputs: tuple[str, ...], tokenizer: str | None, given: dict[str, Any]) -> _Work:
    from headrace.cli import prepare_recipe as words
    from headrace.preparing import estimate_recipe, prepare_recipe

    named = _named(given)
    if "max_errors" in named:
        given["max_errors"] = number_or_share(given["max_errors"])
    _check_shards(given)
    recipe = words.load(path, given, named, tokenizer)
    options = words.options(given, named)
    return _Work(
        lambda: estimate_recipe(recipe, inputs=inputs, tokenizer=tokenizer, options=options),
        lambda output, show, notice: prepare_recipe(
            recipe, output, inputs=inputs, tokenizer=tokenizer, options=options, on_progress=show, on_notice=notice
        ),
    )


def _check_shards(given: dict[str, Any]) -> None:
    if given["single"] and given["shard_tokens"] is not None:
        raise ConfigError("--single writes one shard and --shard-tokens cuts it into several: use only one of them")


def _options(given: dict[str, Any]) -> TextOptions:
    from headrace.preparing import (
        ErrorOptions,
        FilterSpec,
        OutputOptions,
        RecordOptions,
        TextOptions,
        TokenOptions,
    )

    _check_shards(given)
    if given["now"] is not None:
        raise ConfigError(
            "--now sets the time that a chat template prints, and texts have no template: use it with --recipe"
        )
    defaults = TextOptions()
    shard_tokens = defaults.output.shard_tokens if given["shard_tokens"] is None else given["shard_tokens"]
    if given["max_errors"] is not None and given["on_error"] != "skip":
        raise ConfigError("--max-errors needs --on-error skip: otherwise the first bad record ends the run")
    return TextOptions(
        records=RecordOptions(
            fields=given["fields"] or defaults.records.fields,
            join=given["join"],
            id_field=given["id_field"],
            sample_by=given["sample_by"],
            max_record_bytes=defaults.records.max_record_bytes
            if given["max_record_bytes"] is None
            else given["max_record_bytes"],
        ),
        tokens=TokenOptions(
            append_eod=given["append_eod"],
            eod=_token(given["eod"]),
            prepend_bos=given["prepend_bos"],
            bos=_token(given["bos"]),
            special_tokens_in_text=given["special_tokens_in_text"],
            backend=given["backend"],
        ),
        filters=FilterSpec(
            min_chars=given["min_chars"],
            max_chars=given["max_chars"],
            min_tokens=given["min_tokens"],
            max_tokens=given["max_tokens"],
            function=given["function"],
        ),
        deduplicate=given["deduplicate"],
        output=OutputOptions(
            format=given["format"],
            shard_tokens=None if given["single"] else shard_tokens,
            shuffle=given["shuffle"],
        ),
        errors=ErrorOptions(
            on_error=given["on_error"],
            max_errors=defaults.errors.max_errors
            if given["max_errors"] is None
            else number_or_share(given["max_errors"]),
        ),
        workers=given["workers"],
        overwrite=given["overwrite"],
        restart=given["restart"],
    )


def _token(given: str | None) -> str | int | None:
    return int(given) if given is not None and given.isascii() and given.isdigit() else given


def number_or_share(given: str) -> int | float:
    """Parse ``100``, ``0.001`` or ``0.1%``; raises ConfigError."""
    try:
        if given.isascii() and given.isdigit():
            return int(given)
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ConfigError(f"--max-errors {given}: write a number such as 100, or a share such as 0.001 or 0.1%")
    return share


def _missing_tokenizer(inputs: tuple[str, ...]) -> str:
    for given in inputs:
        if given.endswith(".tar") or any(Path(given).glob("*.tar")):
            return f"{given!r} holds .tar shards. {FORMS}"
    return f"--tokenizer is missing. {FORMS}"
