"""``headrace check``: whether a store is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.check_samples import check, check_options, refuse_check_options
from headrace.cli.command import Command, dialect_options, is_given, json_option, print_json
from headrace.cli.figures import count, duration, plural, problem_lines, size
from headrace.cli.progress import ProgressLine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.checking import Verdict
    from headrace.cli.pack_checking import PackVerdict
    from headrace.plan.packing import Packing
    from headrace.stores import Dialect, Documents

FAULTY = 1


@click.command(cls=Command, name="check", short_help="Check that a store is whole.")
@click.argument("path", metavar="PATH")
@click.option("--tokenizer", metavar="PATH", help="Check ids against its vocabulary, not the manifest's.")
@click.option("--pack", "max_seq_len", metavar="N", type=int, help="Then make packs of N tokens, and check them.")
@click.option("--pack-strategy", "strategy", metavar="NAME", help="Strategy of the packs; best_fit.")
@click.option("--pack-over-long", "over_long", metavar="NAME", help="What a document longer than N becomes; an error.")
@click.option("--pack-window", "window_documents", metavar="N", type=int, help="Pack every N documents by themselves.")
@click.option("--pack-multiple", "segment_multiple", metavar="N", type=int, help="Pad segments to a multiple of N.")
@click.option("--pack-repack", "repack", is_flag=True, default=None, help="Check the plan of a run that re-packs.")
@click.option("--key", metavar="NAME", help="The key to pack, of a store with several.")
@click.option("--plan-folder", metavar="DIR", help="Where plans of packs are kept; the cache folder.")
@dialect_options
@check_options
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor summary, only faults.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: str,
    tokenizer: str | None,
    key: str | None,
    plan_folder: str | None,
    dialect: Dialect | None,
    documents: Documents,
    quiet: bool,
    as_json: bool,
    decode: bool,
    quarantine: bool,
    workers: int | None,
    split_part: str | None,
    split_config: str | None,
    dataset_config: str | None,
    **packing: Any,
) -> None:
    """Read the whole store at PATH and say what is wrong: hashes, sizes, structure, ids out of the vocabulary.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. All keys are read. With --pack a whole
    store is packed too, as a run would do it: each pack is validated, and every token of every document accounted
    for. Exit code 0: whole; 1: faults, each printed with its place; 4: no store is there.

    Of tar shards, datasets of Energon's and other samples with named parts: every header against indices, counts and
    index.sqlite, keys that are there twice, split files; with --decode every part. Of a metadataset, a .yaml: what it
    says, its joins, and every dataset below once.
    """
    from headrace.cli.measured_facts import check_kept

    is_whole = check_kept(path, quiet=quiet, as_json=as_json)
    if is_whole is not None:
        if not is_whole:
            ctx.exit(FAULTY)
        return
    named = [name for name in ctx.params if is_given(ctx, name)]
    media = {"decode": decode, "workers": workers, "split_part": split_part, "split_config": split_config}
    media |= {"dataset_config": dataset_config, "quarantine": quarantine}
    is_whole = check(path, media, named, quiet=quiet, as_json=as_json)
    if is_whole is not None:
        if not is_whole:
            ctx.exit(FAULTY)
        return
    refuse_check_options(path, named)
    from headrace.cli.checking import check_store
    from headrace.stores import IndexedOptions

    wanted = _packing(packing, key=key, plan_folder=plan_folder)
    options = IndexedOptions(dialect=dialect, documents=documents)
    packs: PackVerdict | None = None
    with ProgressLine(quiet=quiet) as line:

        def show(number: int, num_shards: int, shard: str, num_bytes: int) -> None:
            if line.is_terminal or line.is_due:
                line.show(f"checking shard {number + 1:,} of {num_shards:,}: {shard} ({size(num_bytes)})")

        def show_packs(done: int, num_packs: int) -> None:
            if line.is_due:
                line.show(f"checking packs: {done / num_packs:6.1%}  {count(done)} of {count(num_packs)}")

        verdict = check_store(path, tokenizer=tokenizer, on_shard=show, options=options)
        problems = verdict.problems
        if wanted is not None and verdict.ok:
            from headrace.cli.pack_checking import check_packs

            folder = None if plan_folder is None else Path(plan_folder)
            packs, faults = check_packs(path, wanted, key=key, plan_folder=folder, on_packs=show_packs, options=options)
            problems = tuple(faults)
        elapsed_s = line.elapsed_s
    if as_json:
        import msgspec

        found = msgspec.to_builtins(verdict) | {"ok": not problems, "problems": msgspec.to_builtins(problems)}
        if wanted is not None:
            found["packs"] = msgspec.to_builtins(packs)
        print_json({**found, "seconds": round(elapsed_s, 3)})
    else:
        for shown in problem_lines(problems):
            click.echo(shown)
        if not quiet:
            click.echo("\n".join(summary(verdict, packs, len(problems), elapsed_s)))
            if wanted is not None and not verdict.ok:
                click.echo(f"{path}: its packs were not checked: first it has to be whole")
    if problems:
        ctx.exit(FAULTY)


def _packing(given: dict[str, Any], *, key: str | None, plan_folder: str | None) -> Packing | None:
    """How to pack, with the defaults of `Packing` where nothing is said; None: not at all."""
    said = {name: value for name, value in given.items() if value is not None}
    if "max_seq_len" not in said:
        if said or key is not None or plan_folder is not None:
            raise ConfigError("options of packs need the length of a pack: say --pack N too")
        return None
    from headrace.plan.packing import Packing

    return Packing(**said)


def summary(verdict: Verdict, packs: PackVerdict | None, num_problems: int, elapsed_s: float) -> list[str]:
    """The end of the verdict for people."""
    if num_problems:
        return [f"{verdict.path}: {plural(num_problems, 'fault')}"]
    what = "read and hashed" if verdict.hashed else "read (no headrace.json vouches for the bytes: structure only)"
    ids = f", ids below {count(verdict.vocab_size)}" if verdict.vocab_size is not None else ""
    numbers = f"{plural(verdict.documents, 'document')}, {plural(verdict.tokens, 'token')}{ids}"
    read = f"{plural(verdict.files, 'file')}, {size(verdict.bytes)} {what}"
    lines = [f"{verdict.path}: whole: {read}, {numbers}, {duration(elapsed_s)}"]
    if packs is not None and packs.ledger is not None:
        ledger, packing = packs.ledger, packs.packing
        where = "" if packs.kept_plan is None else f", by the plan in {packs.kept_plan}"
        lines.append(
            f"{verdict.path}: {plural(packs.packs, 'pack')} of {plural(packing.max_seq_len, 'token')} right "
            f"({packing.strategy}): fill {ledger.fill:.3%}, {count(ledger.split_documents)} split, "
            f"{ledger.lost_share:.2%} of the tokens lost{where}"
        )
    return lines
