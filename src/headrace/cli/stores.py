"""``headrace info`` and ``headrace check``: what a store or a metadataset holds, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace import inspect
from headrace.cli.command import (
    FAULTY,
    Command,
    config_options,
    dialect_options,
    given_options,
    json_option,
    packing_of,
    part_options,
    print_found,
    print_json,
    print_report,
)
from headrace.cli.job import ExecutorOptions, JobCommand, hand_over
from headrace.cli.progress import ProgressBar

if TYPE_CHECKING:
    from headrace.inspect.decode_job import CheckReport, Told
    from headrace.inspect.questions import AnyVerdict


@click.command(cls=Command, urls=("path",), name="info", short_help="Say what a store holds.")
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
def info(path: str, as_json: bool, **options: Any) -> None:
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
    print_found(found, found.lines(), as_json=as_json)


_OF_PACKS = ("seq_len", "strategy", "over_long", "window_documents", "segment_multiple", "max_documents", "repack")


@click.command(cls=JobCommand, urls=("path", "tokenizer"), name="check", short_help="Check that a store is whole.")
@click.argument("path", metavar="PATH")
@click.option(
    "--tokenizer",
    metavar="PATH",
    help="Tokeniser whose vocabulary the ids are checked against (default: that of the manifest).",
)
@click.option("--pack", "seq_len", metavar="N", type=int, help="Also make packs of N tokens and check them.")
@click.option(
    "--pack-strategy", "strategy", metavar="NAME", help="With --pack: strategy of the packs (default: best_fit)."
)
@click.option(
    "--pack-over-long",
    "over_long",
    metavar="NAME",
    help="With --pack: policy for documents longer than N (default: an error).",
)
@click.option(
    "--pack-window", "window_documents", metavar="N", type=int, help="With --pack: pack every N documents separately."
)
@click.option(
    "--pack-multiple", "segment_multiple", metavar="N", type=int, help="With --pack: pad segments to a multiple of N."
)
@click.option(
    "--pack-documents", "max_documents", metavar="N", type=int, help="With --pack: at most N documents in a pack."
)
@click.option(
    "--pack-repack", "repack", is_flag=True, default=None, help="With --pack: check the plan of a run that re-packs."
)
@click.option(
    "--key", metavar="NAME", help="With --pack: the key to pack, if the store has several (default: the first)."
)
@click.option("--plan-folder", metavar="DIR", help="With --pack: folder of kept plans (default: the cache folder).")
@dialect_options
@click.option("--decode", is_flag=True, help="Decode every picture, video, sound and text of the samples.")
@click.option(
    "--quarantine",
    is_flag=True,
    help="With --decode: leave samples that cannot be decoded out of the dataset from now on.",
)
@click.option(
    "--workers",
    "--parallel",
    "workers",
    metavar="N",
    type=int,
    help="With --decode: number of processes (default: one per usable core).",
)
@part_options
@click.option("--quiet", "-q", is_flag=True, help="Show only faults, no progress or summary.")
@json_option
@click.pass_context
def check(ctx: click.Context, /, path: str, quiet: bool, as_json: bool, executor: ExecutorOptions, **_: Any) -> None:
    """Read the whole store at PATH and report faults: hashes, sizes, structure, ids outside the vocabulary.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. All keys are read. With --pack, a store
    without faults is also packed as a run would do it: each pack is validated, and every token of every document must
    be accounted for. Exit code 0: no faults; 1: faults, each printed with its place; 4: there is no store.

    For tar shards, Energon datasets and other samples with named parts, the command checks every header against
    indices, counts and index.sqlite, and looks for duplicate keys and faults of split files; with --decode it decodes
    every part. For a metadataset (.yaml) it checks the file, its joins, and each of its datasets once.
    """
    options = given_options(ctx, "path", "quiet", "as_json", "executor")
    kind = inspect.kind_of(path)
    if kind != "kept":
        inspect.check_fit(path, kind, options, inspect.CHECK_FITS)
        if "quarantine" in options:
            inspect.check_quarantine(path, kind, decodes="decode" in options)
        packs = {name: options.pop(name) for name in _OF_PACKS if name in options}
        options["packing"] = packing_of(packs, "the options of packs need the length of a pack: add --pack N")
    quarantine = options.pop("quarantine", False)
    if not executor.is_local:
        from headrace.inspect.decode_job import plan_check

        workers = options.pop("workers", None)
        plan_check(path, options, quarantine=quarantine)
        hand_over(executor, path, workers=workers, quiet=quiet, as_json=as_json)
        return
    with ProgressBar(quiet=quiet) as bar:
        verdict = inspect.check(path, **options, on_progress=bar.update)
    left_out = ""
    if quarantine and isinstance(verdict, inspect.SampleVerdict):
        left_out = inspect.leave_out_bad(path, verdict, inspect.SampleCheck.of(options).dataset)
    _tell(verdict, left_out, quiet=quiet, as_json=as_json)


def show(bar: ProgressBar, progress: Told) -> None:
    """Show how far a check is."""
    bar.update(progress.phase, progress.done, progress.total, text=progress.text, speeds=progress.speeds)


def tell(report: CheckReport, output: str, elapsed_s: float, *, quiet: bool, as_json: bool) -> None:
    """Print the report at the end of a job, and end with the exit code of a check."""
    _tell(report.verdict, report.left_out, quiet=quiet, as_json=as_json)


def _tell(verdict: AnyVerdict, left_out: str, *, quiet: bool, as_json: bool) -> None:
    lines = [*verdict.lines(), *([left_out] if left_out else [])]
    if as_json:
        print_json(verdict)
    else:
        for line in verdict.fault_lines():
            click.echo(line)
        if not quiet and lines:
            print_report(lines)
    if not verdict.ok:
        click.get_current_context().exit(FAULTY)
