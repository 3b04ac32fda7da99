"""``headrace convert``: a store in another format, with another dtype, or in other shards."""

from __future__ import annotations

import functools
from typing import Any

import click

from headrace.cli.command import Command
from headrace.cli.copying import copy_options, format_option, run_copy


@click.command(cls=Command, name="convert", short_help="Write a store in another format.")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@format_option(required=True)
@copy_options
def command(source: str, destination: str, format_name: str, **given: Any) -> None:
    """Write the documents of the store SRC into the folder DST, in another format, with another dtype, or cut anew.

    SRC is what headrace info reads, of any dialect. By default its shards and dtypes are kept. What the format cannot
    hold is an error that says what to do, or a note. The result appears whole or not at all, and is read back and
    compared.
    """
    from headrace.copying import convert

    tool = functools.partial(convert, source, destination, format=format_name)  # type: ignore[arg-type]
    run_copy(tool, given)
