"""``headrace split``: a store -> several, by Megatron's shares or in equal parts."""

from __future__ import annotations

import functools
from typing import Any

import click

from headrace.cli.command import Command
from headrace.cli.copying import copy_options, format_option, run_copy
from headrace.errors import ConfigError


@click.command(cls=Command, name="split", short_help="Cut a store into several.")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--split", "shares", metavar="SHARES", help="Of training, validation and test, as Megatron's: 969,30,1.")
@click.option("--parts", metavar="N", type=int, help="Or N parts of equal tokens, as near as documents allow.")
@click.option(
    "--era",
    type=click.Choice(["core", "legacy"]),
    default="core",
    help="How Megatron rounds borders: core (the default), or legacy (DeepSpeed, NeoX, before Megatron-Core).",
)
@click.option("--names", metavar="A,B,C", help="Names of the folders; train,valid,test or part_00000, ...")
@format_option(required=False)
@copy_options
def command(
    source: str,
    destination: str,
    shares: str | None,
    parts: int | None,
    era: str,
    names: str | None,
    format_name: str | None,
    **given: Any,
) -> None:
    """Cut the store SRC into stores in folders below DST, each with its own headrace.json. No document is cut.

    With --split 969,30,1 they are DST/train, DST/valid and DST/test, by Megatron's borders, counted in documents; with
    --parts N they have equal numbers of tokens. All appear together or not at all, and are read back and compared.
    """
    from headrace.copying import split

    if (shares is None) == (parts is None):
        raise ConfigError("say either --split SHARES, as 969,30,1, or --parts N")
    tool = functools.partial(
        split,
        source,
        destination,
        into=shares if parts is None else parts,  # type: ignore[arg-type]
        era=era,  # type: ignore[arg-type]
        names=None if names is None else names.split(","),
    )
    run_copy(tool, given, format=format_name)
