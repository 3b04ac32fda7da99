"""``headrace info``: what a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.cli.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from headrace.cli.description import Description, KeyDescription

MAX_INPUTS = 10


@click.command(cls=Command, name="info", short_help="Say what a store holds.")
@click.argument("path", metavar="PATH")
@json_option
def command(path: str, as_json: bool) -> None:
    """Say what the store at PATH holds: format, documents, tokens, lengths, tokeniser, inputs.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. Reads the lengths of all documents, not
    their tokens.
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
    keys = description.keys
    has_one = len(keys) == 1
    kind = keys[0].dtype if has_one else f"{len(keys)} keys"
    empty = _empty(keys[0].empty_documents) if has_one else ""
    pairs = [
        ("format", f"{description.format}, {kind}, {plural(description.shards, 'shard')}"),
        ("documents", count(description.documents) + empty),
        ("tokens", count(description.tokens)),
        ("on disk", size(description.bytes)),
    ]
    if has_one:
        pairs += _per_document(keys[0])
    lines = [description.path, *listing(pairs + _made_by(description))]
    for key in keys:
        if not has_one:
            pairs = [
                ("documents", count(key.documents) + _empty(key.empty_documents)),
                ("tokens", count(key.tokens)),
                *_per_document(key),
            ]
            lines += ["", f"key {key.name!r} ({key.dtype})", *listing(pairs)]
        lines += _lengths(key)
    if description.inputs is not None:
        lines += ["", f"inputs ({len(description.inputs):,})"]
        lines += [f"  {size(file.size):>8}  {file.path}" for file in description.inputs[:MAX_INPUTS]]
        if len(description.inputs) > MAX_INPUTS:
            lines.append(f"  and {len(description.inputs) - MAX_INPUTS:,} more (--json lists all)")
    return lines


def _per_document(key: KeyDescription) -> list[tuple[str, str]]:
    lengths = key.tokens_per_document
    if lengths is None:
        return []
    middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
    return [("per document", f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens")]


def _made_by(description: Description) -> list[tuple[str, str]]:
    """What the manifest knows of the making."""
    pairs = []
    tokenizer, backend, order = description.tokenizer, description.backend, description.order
    if tokenizer is not None:
        eod = "none appended" if tokenizer.eod is None else str(tokenizer.eod)
        bos = "" if tokenizer.bos is None else f", begin of document {tokenizer.bos}"
        vocabulary = f"vocabulary {count(tokenizer.vocab_size)}, end of document {eod}{bos}"
        pairs.append(("tokeniser", f"{tokenizer.source}, {vocabulary}, xxh3 {tokenizer.xxh3_128}"))
    if backend is not None:
        proved = ", ".join(f"{count(number)} {what.replace('_', ' ')}" for what, number in backend.proved.items())
        until = f", then tokenizers: {backend.from_task_by}" if backend.from_task_by else ""
        proof = f", proved on {proved}" if proved else ""
        pairs.append(("encoded by", f"{backend.name} {backend.version}{proof}{until}"))
    if order is not None:
        seed = getattr(order, "seed", None)
        pairs.append(("order", "that of the inputs" if seed is None else f"shuffled with seed {seed}"))
    if description.errors:
        pairs.append(("skipped", f"{plural(description.errors, 'record')} (headrace.json lists them)"))
    return pairs


def _lengths(key: KeyDescription) -> list[str]:
    if not key.histogram:
        return []
    rows = [("tokens", "documents", "share", "of tokens")]
    for bar in key.histogram:
        span = count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}"
        document_share = bar.documents / key.documents
        token_share = bar.tokens / max(key.tokens, 1)
        rows.append((span, count(bar.documents), f"{document_share:.1%}", f"{token_share:.1%}"))
    return ["", "lengths", *table(rows)]


def _empty(number: int) -> str:
    return f", {count(number)} of them empty" if number else ""
