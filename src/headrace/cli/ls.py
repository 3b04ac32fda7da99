"""``headrace ls``: list the samples of a dataset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from headrace import inspect
from headrace.cli.command import Command, json_option, part_options
from headrace.errors import HeadraceError
from headrace.inspect.figures import count, safe_text, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.inspect.sample_description import Listed


@click.command(cls=Command, name="ls", short_help="List the samples of tar shards, and of other media.")
@click.argument("path", metavar="DATASET")
@click.argument("pattern", metavar="[PATTERN]", required=False)
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="List shard, number in the shard, and the parts with their sizes too."
)
@part_options
@json_option
@click.pass_context
def command(
    ctx: click.Context, path: str, pattern: str | None, is_long: bool,
    split_part: str | None, split_config: str | None, dataset_config: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List the keys of the samples in DATASET, or those that match PATTERN, as cats/*, *17 or ?-[0-9].

    DATASET is a tar, a folder or a pattern of tars, an Energon dataset, a folder of files with media metadata, or a
    .jsonl. In PATTERN, * matches slashes too. Lines are printed as samples are found, and only headers are read.
    """
    options = inspect.SampleOptions(split_part=split_part, split_config=split_config, dataset_config=dataset_config)
    with inspect.need_samples(path, options) as store:
        found = inspect.listed(store, pattern, with_parts=is_long or as_json)
        if as_json:
            _print_json(ctx, path, found)
            return
        for one in found:
            click.echo(safe_text(long_line(one) if is_long else one.key))


def long_line(one: Listed) -> str:
    """Return the line of ``--long``: key, shard, number in the shard, and parts."""
    parts = ", ".join(f"{name or '(no name)'} {size(number)}" for name, number in (one.parts or {}).items())
    return f"{one.key}  {one.shard}, {count(one.index)}  {parts}"


def _print_json(ctx: click.Context, path: str, found: Iterator[Listed]) -> None:
    """Write one JSON object while samples are found; an error that ends this is written into the object.

    The output is ASCII, since the names of files need not be valid Unicode.
    """
    import msgspec

    click.echo(f'{{"path": {json.dumps(path)}, "samples": [', nl=False)
    comma, ending, error = "", "", None
    try:
        for one in found:
            click.echo(f"{comma}\n  {json.dumps(msgspec.to_builtins(one))}", nl=False)
            comma = ","
    except HeadraceError as failed:
        error = failed
        facts = {"kind": type(failed).__name__, "message": str(failed), "exit_code": failed.exit_code}
        ending = f', "error": {json.dumps(facts)}'
    click.echo(f"\n]{ending}}}")
    if error is not None:
        click.echo(f"error: {error}", err=True)
        ctx.exit(error.exit_code)
