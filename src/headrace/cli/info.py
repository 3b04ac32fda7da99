"""``headrace info``: what a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.cli.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from headrace.cli.description import Description

MAX_INPUTS = 10


@click.command(cls=Command, name="info", short_help="Say what a store holds.")
@click.argument("path", metavar="PATH")
@json_option
def command(path: str, as_json: bool) -> None:
    """Say what the store at PATH holds: format, documents, tokens, lengths, tokeniser, inputs.

    PATH is a folder, or a prefix with or without .bin or .idx. Reads the lengths of all documents, not their tokens.
    """
    from headrace.cli.description import describe

    description = describe(path)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(description))
    else:
        click.echo("\n".join(report(description)))


def report(description: Description) -> list[str]:
    """The description for people."""
    lengths = description.tokens_per_document
    pairs = [
        ("format", f"{description.format}, {description.dtype}, {plural(description.shards, 'shard')}"),
        ("documents", count(description.documents) + _empty(description.empty_documents)),
        ("tokens", count(description.tokens)),
        ("on disk", size(description.bytes)),
    ]
    if lengths is not None:
        middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
        pairs.append(("per document", f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens"))
    tokenizer = description.tokenizer
    if tokenizer is not None:
        eod = "none appended" if tokenizer.eod is None else str(tokenizer.eod)
        vocabulary = f"vocabulary {count(tokenizer.vocab_size)}, end of document {eod}"
        pairs.append(("tokeniser", f"{tokenizer.source}, {vocabulary}, xxh3 {tokenizer.xxh3_128}"))
    lines = [description.path, *listing(pairs)]
    if description.histogram:
        rows = [("tokens", "documents", "share", "of tokens")]
        for bar in description.histogram:
            span = count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}"
            document_share = bar.documents / description.documents
            token_share = bar.tokens / max(description.tokens, 1)
            rows.append((span, count(bar.documents), f"{document_share:.1%}", f"{token_share:.1%}"))
        lines += ["", "lengths", *table(rows)]
    if description.inputs is not None:
        lines += ["", f"inputs ({len(description.inputs):,})"]
        lines += [f"  {size(file.size):>8}  {file.path}" for file in description.inputs[:MAX_INPUTS]]
        if len(description.inputs) > MAX_INPUTS:
            lines.append(f"  and {len(description.inputs) - MAX_INPUTS:,} more (--json lists all)")
    return lines


def _empty(number: int) -> str:
    return f", {count(number)} of them empty" if number else ""
