"""``headrace prepare``: raw data -> a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.cli.figures import count, duration, listing, plural, short, size
from headrace.cli.progress import ProgressLine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.prepare import TextProgress
    from headrace.stores import Manifest

FORMS = (
    "prepare has three forms: text (.jsonl files, folders or globs, with --tokenizer PATH), a recipe (--recipe FILE), "
    "and a folder of .tar shards, which is indexed in place. This version takes the first alone: add --tokenizer PATH."
)


@click.command(cls=Command, name="prepare", short_help="Tokenise text into a store.")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", "-o", metavar="DIR", required=True, help="Folder for the result; new or empty.")
@click.option("--tokenizer", metavar="PATH", help="A tokenizer.json, or a folder that holds one.")
@click.option("--text-field", metavar="NAME", help="Field of each record that holds the text; by default 'text'.")
@click.option("--append-eod", is_flag=True, help="End each document that has tokens with the end-of-document token.")
@click.option("--eod", metavar="TOKEN|ID", help="That token; by default the only usual one in the vocabulary.")
@click.option("--workers", metavar="N", type=int, help="Worker processes; by default one a usable core.")
@click.option("--overwrite", is_flag=True, help="Replace the output of an earlier run, once the new one is complete.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor summary.")
@json_option
def command(
    inputs: tuple[str, ...],
    output: str,
    tokenizer: str | None,
    text_field: str | None,
    append_eod: bool,
    eod: str | None,
    workers: int | None,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Tokenise JSON Lines into DIR/text_document.bin and .idx, as Megatron reads them.

    INPUT is a .jsonl file, a folder (searched for *.jsonl at any depth) or a glob. Documents keep the order of the
    input; the result does not depend on the number of workers, and appears whole or not at all.
    """
    if tokenizer is None:
        raise ConfigError(_missing_tokenizer(inputs))
    if not inputs:
        raise ConfigError("no INPUT: name at least one .jsonl file, folder or glob")
    from msgspec import structs

    from headrace.prepare import TextOptions, prepare_text

    options = TextOptions(
        append_eod=append_eod,
        eod=int(eod) if eod is not None and eod.isascii() and eod.isdigit() else eod,
        workers=workers,
        overwrite=overwrite,
    )
    if text_field is not None:
        options = structs.replace(options, text_field=text_field)
    with ProgressLine(quiet=quiet) as line:

        def show(progress: TextProgress) -> None:
            if line.is_due:
                line.show(progress_text(progress, line.elapsed_s))

        manifest = prepare_text(inputs, output, tokenizer=tokenizer, options=options, on_progress=show)
        elapsed_s = line.elapsed_s
    if as_json:
        print_json(result(manifest, output, elapsed_s))
    elif not quiet:
        click.echo("\n".join(summary(manifest, output, elapsed_s)))


def progress_text(progress: TextProgress, elapsed_s: float) -> str:
    """Share, documents, speeds and the time left, in one line."""
    share = progress.input_bytes / max(progress.total_bytes, 1)
    left = duration(elapsed_s / share - elapsed_s) if share > 0 else "?"
    per_s = 1 / max(elapsed_s, 1e-9)
    return (
        f"{share:6.1%}  {count(progress.documents)} documents  {size(progress.input_bytes * per_s)}/s  "
        f"{short(progress.tokens * per_s)}tokens/s  {left} left"
    )


def result(manifest: Manifest, output: str, elapsed_s: float) -> dict[str, object]:
    """What ``--json`` prints."""
    ledger = manifest.ledger
    return {
        "output": output,
        "files": [file.name for shard in manifest.outputs for file in shard.files],
        "dtype": manifest.outputs[0].dtype,
        "documents": ledger.documents.kept,
        "documents_read": ledger.documents.read,
        "tokens": ledger.tokens.kept,
        "vocab_size": manifest.tokenizer.vocab_size if manifest.tokenizer else None,
        "eod": manifest.tokenizer.eod if manifest.tokenizer else None,
        "inputs": len(manifest.inputs),
        "input_bytes": sum(file.size for file in manifest.inputs),
        "seconds": round(elapsed_s, 3),
    }


def summary(manifest: Manifest, output: str, elapsed_s: float) -> list[str]:
    """What a person reads at the end."""
    shard, tokens = manifest.outputs[0], manifest.ledger.tokens.kept
    input_bytes = sum(file.size for file in manifest.inputs)
    per_s = 1 / max(elapsed_s, 1e-9)
    pairs = [
        ("documents", count(manifest.ledger.documents.kept)),
        ("tokens", f"{count(tokens)} ({shard.dtype})"),
        ("input", f"{plural(len(manifest.inputs), 'file')}, {size(input_bytes)}"),
    ]
    if manifest.tokenizer is not None:
        eod = "" if manifest.tokenizer.eod is None else f", end of document {manifest.tokenizer.eod}"
        pairs.append(
            ("tokeniser", f"{manifest.tokenizer.source}, vocabulary {count(manifest.tokenizer.vocab_size)}{eod}")
        )
    pairs.append(("files", ", ".join(f"{file.name} {size(file.size)}" for file in shard.files)))
    speeds = f"{size(input_bytes * per_s)}/s, {short(tokens * per_s)}tokens/s"
    pairs.append(("time", f"{duration(elapsed_s)}, {speeds}"))
    return [f"{output}: complete", *listing(pairs)]


def _missing_tokenizer(inputs: tuple[str, ...]) -> str:
    for given in inputs:
        if given.endswith(".tar") or any(Path(given).glob("*.tar")):
            return f"{given!r} holds .tar shards. {FORMS}"
    return f"--tokenizer is missing. {FORMS}"
