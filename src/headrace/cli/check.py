"""``headrace check``: whether a store is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, json_option, print_json
from headrace.cli.figures import count, duration, plural, size
from headrace.cli.progress import ProgressLine

if TYPE_CHECKING:
    from headrace.cli.checking import Verdict

FAULTY = 1


@click.command(cls=Command, name="check", short_help="Check that a store is whole.")
@click.argument("path", metavar="PATH")
@click.option("--tokenizer", metavar="PATH", help="Check ids against its vocabulary, not the manifest's.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor summary, only faults.")
@json_option
@click.pass_context
def command(ctx: click.Context, path: str, tokenizer: str | None, quiet: bool, as_json: bool) -> None:
    """Read the whole store at PATH and say what is wrong: hashes, sizes, structure, ids out of the vocabulary.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. All keys are read. Exit code 0: whole; 1:
    faults, each printed with its place; 4: no store is there.
    """
    from headrace.cli.checking import check_store

    with ProgressLine(quiet=quiet) as line:

        def show(number: int, num_shards: int, shard: str, num_bytes: int) -> None:
            if line.is_terminal or line.is_due:
                line.show(f"checking shard {number + 1:,} of {num_shards:,}: {shard} ({size(num_bytes)})")

        verdict = check_store(path, tokenizer=tokenizer, on_shard=show)
        elapsed_s = line.elapsed_s
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(verdict), "seconds": round(elapsed_s, 3)})
    else:
        for text in report(verdict, elapsed_s, quiet=quiet):
            click.echo(text)
    if not verdict.ok:
        ctx.exit(FAULTY)


def report(verdict: Verdict, elapsed_s: float, *, quiet: bool) -> list[str]:
    """The verdict for people."""
    lines = [str(problem) for problem in verdict.problems]
    if quiet:
        return lines
    if not verdict.ok:
        return [*lines, f"{verdict.path}: {plural(len(verdict.problems), 'fault')}"]
    what = "read and hashed" if verdict.hashed else "read (no headrace.json vouches for the bytes: structure only)"
    ids = f", ids below {count(verdict.vocab_size)}" if verdict.vocab_size is not None else ""
    numbers = f"{plural(verdict.documents, 'document')}, {plural(verdict.tokens, 'token')}{ids}"
    read = f"{plural(verdict.files, 'file')}, {size(verdict.bytes)} {what}"
    return [f"{verdict.path}: whole: {read}, {numbers}, {duration(elapsed_s)}"]
