"""``headrace info``: say what a store or a metadataset holds."""

from __future__ import annotations

from typing import Any

import click

from headrace import inspect
from headrace.cli.command import Command, config_options, dialect_options, json_option, print_json, print_report
from headrace.cli.progress import ProgressBar


@click.command(cls=Command, name="info", short_help="Say what a store holds.")
@click.argument("path", metavar="PATH")
@click.option(
    "--pack",
    "packs",
    metavar="N",
    type=int,
    multiple=True,
    help="Show what each strategy makes of packs of N tokens; repeatable.",
)
@click.option(
    "--key", metavar="NAME", help="With --pack: the key to pack, if the store has several (default: the first)."
)
@config_options
@click.option(
    "--steps", metavar="N", type=int, help="For metadatasets: show how often each source was seen after N steps."
)
@click.option("--global-batch-size", metavar="B", type=int, help="For metadatasets: number of samples per step.")
@dialect_options
@json_option
def command(path: str, as_json: bool, **options: Any) -> None:
    """Say what the store at PATH holds: format, documents, tokens, lengths, tokeniser, inputs.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. The command reads the lengths of all
    documents, but not their tokens. With --pack it shows instead what each packing strategy would make of the
    documents: packs, fill, documents per pack, and how much is cut and lost.

    For tar shards, Energon datasets and other samples with named parts it shows samples, shards, parts, splits and
    types. For a metadataset (.yaml) it shows the tree of each split with weights, shares and samples, and with --steps
    also epochs.
    """
    with ProgressBar(quiet=False) as bar:
        found = inspect.describe(path, **options, on_progress=bar.update)
    if as_json:
        print_json(found)
    else:
        print_report(found.lines())
