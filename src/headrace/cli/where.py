"""``headrace where``: say which line of which input a document comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.inspect.figures import count, listing, plural

if TYPE_CHECKING:
    from headrace.inspect.origins import DocumentOrigin

EXCERPT_CHARS = 80


@click.command(cls=Command, name="where", short_help="Say where documents come from.")
@click.argument("path", metavar="PATH")
@click.argument("documents", metavar="DOC...", nargs=-1, required=True)
@click.option("--show", is_flag=True, help="Show the whole text, however much of the input must be read for it.")
@json_option
def command(path: str, documents: tuple[str, ...], show: bool, as_json: bool) -> None:
    """Say which line or row of which input each document DOC of the store at PATH comes from.

    PATH is a folder that headrace prepare wrote, with documents counted from 0 over all its shards, or the prefix of
    one shard, with documents counted within it. If the input still exists, its text is shown. For stores that headrace
    merge, convert or split wrote, the origin is traced through the stores that they were copied from. For tar shards
    DOC is a sample: its key, or its number over all shards.
    """
    from headrace.inspect.origins import find_sample_origins, find_shards, sample_report

    if (shards := find_shards(path)) is not None:
        samples = find_sample_origins(path, shards, documents)
        if as_json:
            print_json({"path": path, "samples": samples})
            return
        click.echo("\n\n".join("\n".join(sample_report(sample, path)) for sample in samples))
        return
    from headrace.inspect.origins import find_origins

    origins = find_origins(path, [_number(given) for given in documents], read_all=show)
    if as_json:
        print_json({"path": path, "documents": origins})
        return
    for number, origin in enumerate(origins):
        if number:
            click.echo()
        for line in report(origin, path, show=show):
            click.echo(line)


def _number(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise click.UsageError(f"{given!r} is not the number of a document, which is counted from 0") from None


def report(origin: DocumentOrigin, path: str, *, show: bool) -> list[str]:
    """Return the lines that describe an origin."""
    from headrace.inspect.origins import place_in_input

    pairs = [("copied from", f"{step.path}, document {count(step.document)}") for step in origin.copied_from]
    pairs.append(("input", f"{origin.input}, {place_in_input(origin)}"))
    if origin.id is not None:
        pairs.append(("id", origin.id))
    for part in origin.shards:
        name = "shard" if len(origin.shards) == 1 else f"shard of {part.key}"
        pairs.append((name, f"{part.prefix}, document {count(part.document)}, {plural(part.tokens, 'token')}"))
    whole: list[str] = []
    if origin.texts is None:
        pairs.append(("text", origin.note))
    for field, text in (origin.texts or {}).items():
        name = "text" if len(origin.texts or {}) == 1 else f"text of {field}"
        if show:
            whole += ["", f"{name}:", text]
        else:
            shown = text[:EXCERPT_CHARS]
            pairs.append((name, repr(shown) + (f" ... {plural(len(text), 'character')}" if shown != text else "")))
    return [f"{path}: document {count(origin.document)}", *listing(pairs), *whole]
