"""``headrace merge``: several stores -> one."""

from __future__ import annotations

import functools
from typing import Any

import click

from headrace.cli.command import Command
from headrace.cli.copying import copy_options, format_option, run_copy
from headrace.errors import ConfigError


@click.command(cls=Command, name="merge", short_help="Join stores into one.")
@click.argument("sources", metavar="SRC...", nargs=-1)
@click.option("--output", "-o", metavar="DIR", help="Folder for the result; new or empty.")
@click.option(
    "--sort-by",
    type=click.Choice(["given", "name", "natural"]),
    default="given",
    help="Order of the sources: as given (the default); by name, as Megatron's tool; or with numbers as numbers.",
)
@format_option(required=False)
@click.option(
    "--allow-different-tokenizers", is_flag=True, help="Join stores of different tokenisers; the result names none."
)
@copy_options
def command(
    sources: tuple[str, ...],
    output: str | None,
    sort_by: str,
    format_name: str | None,
    allow_different_tokenizers: bool,
    **given: Any,
) -> None:
    """Join the documents of all stores SRC, one store after another, into shards in DIR.

    SRC is what headrace info reads. A folder of .bin/.idx without a headrace.json stands for all its pairs, part-9
    before part-10. By default one shard is written, of pairs byte for byte that of Megatron's merge_datasets.py. The
    result appears whole or not at all, and is read back and compared.
    """
    from headrace.copying import merge

    if not sources:
        raise ConfigError("no SRC: name at least one store")
    if output is None:
        raise ConfigError("--output DIR is missing: the folder for the result")
    tool = functools.partial(merge, sources, output, sort_by=sort_by)  # type: ignore[arg-type]
    run_copy(tool, given, format=format_name, allow_different_tokenizers=allow_different_tokenizers)
