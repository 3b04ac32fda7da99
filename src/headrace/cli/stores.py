"""``headrace info`` and ``headrace check``: what a store or a metadataset holds, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from headrace import inspect
from headrace.cli.command import Found, command
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over
from headrace.cli.progress import ProgressBar

if TYPE_CHECKING:
    from headrace.inspect.decode_job import CheckReport, Told
    from headrace.inspect.questions import AnyVerdict


@command("info", "Say what a store holds.", urls=("path",))
def info(path: Annotated[str, "PATH"], **given: Annotated[Any, inspect.describe]) -> Found:
    """Say what the store at PATH holds: format, documents, tokens, lengths, tokeniser, inputs.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. The command reads the lengths of all
    documents, but not their tokens. With --pack it shows instead what each packing strategy would make of the
    documents: packs, fill, documents per pack, and how much is cut and lost.

    For tar shards, Energon datasets and other samples with named parts it shows samples, shards, parts, splits and
    types. For a metadataset (.yaml) it shows the tree of each split with weights, shares and samples, and with --steps
    also epochs.
    """
    with ProgressBar(quiet=False) as bar:
        found = inspect.describe(path, **given, on_progress=bar.update)
    return Found(found, found.lines())


@command("check", "Check that a store is whole.", urls=("path", "tokenizer"))
def check(
    path: Annotated[str, "PATH"],
    *,
    quarantine: bool = False,
    executor: ExecutorOptions = LOCAL,
    quiet: bool = False,
    **given: Annotated[Any, inspect.CheckOptions],
) -> Found:
    """Read the whole store at PATH and report faults: hashes, sizes, structure, ids outside the vocabulary.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. All keys are read. With --pack, a store
    without faults is also packed as a run would do it: each pack is validated, and every token of every document must
    be accounted for. Exit code 0: no faults; 1: faults, each printed with its place; 4: there is no store.

    For tar shards, Energon datasets and other samples with named parts, the command checks every header against
    indices, counts and index.sqlite, and looks for duplicate keys and faults of split files; with --decode it decodes
    every part. For a metadataset (.yaml) it checks the file, its joins, and each of its datasets once.

    Args:
        quarantine: with --decode, leave samples that cannot be decoded out of the dataset from now on.
        quiet: show only faults, no progress or summary.
    """
    kind = inspect.kind_of(path)
    if kind != "kept":
        inspect.check_fit(path, kind, {**given, **({"quarantine": True} if quarantine else {})}, inspect.CHECK_FITS)
        if quarantine:
            inspect.check_quarantine(path, kind, decodes="decode" in given)
    if not executor.is_local:
        from headrace.inspect.decode_job import plan_check

        workers = given.pop("workers", None)
        plan_check(path, given, quarantine=quarantine)
        return hand_over(executor, path, workers=workers, quiet=quiet)
    with ProgressBar(quiet=quiet) as bar:
        verdict = inspect.check(path, **given, on_progress=bar.update)
    left_out = ""
    if quarantine and isinstance(verdict, inspect.SampleVerdict):
        left_out = inspect.leave_out_bad(path, verdict, inspect.SampleCheck.of(given).dataset)
    return _told(verdict, left_out)


def show(bar: ProgressBar, progress: Told) -> None:
    """Show how far a check is."""
    bar.update(progress.phase, progress.done, progress.total, text=progress.text, speeds=progress.speeds)


def tell(report: CheckReport, output: str, elapsed_s: float, *, quiet: bool) -> Found:
    """Return the report of a job."""
    return _told(report.verdict, report.left_out)


def _told(verdict: AnyVerdict, left_out: str) -> Found:
    lines = [*verdict.lines(), *([left_out] if left_out else [])]
    return Found(verdict, lines, always=verdict.fault_lines(), is_faulty=not verdict.ok)
