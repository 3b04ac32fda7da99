"""``headrace where``: say which line of which input a document comes from."""

from __future__ import annotations

import click

from headrace import inspect
from headrace.cli.command import Command, json_option, print_json


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
    has_keys = inspect.find_shards(path) is not None
    asked = documents if has_keys else [_number(given) for given in documents]
    found = inspect.where(path, asked, read_all=show)
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(found.lines(whole_texts=show)))


def _number(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise click.UsageError(f"{given!r} is not the number of a document, which is counted from 0") from None
