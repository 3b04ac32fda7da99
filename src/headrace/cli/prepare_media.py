"""``headrace prepare media``: its options and reports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from headrace import inspect, preparing
from headrace.cli import prepare_shared as shared
from headrace.cli.command import Found, command
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over, show_tasks
from headrace.cli.progress import ProgressBar
from headrace.inspect.figures import count, duration, plural, size

if TYPE_CHECKING:
    from headrace.preparing.shards import ShardEstimate
    from headrace.stores import Manifest


@command("media", "Write media into tar shards.", urls=("inputs", "output", "root", "captions"), kind=shared.Subcommand)
def media(
    inputs: Annotated[tuple[str, ...], "INPUT..."] = (),
    *,
    output: str | None = None,
    options: preparing.ShardOptions,
    executor: ExecutorOptions = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
) -> Found:
    """Write media into tar shards in DIR, which Energon and webdataset read; see docs/shards.md.

    INPUT is a folder of media, or a table that names or holds them: .csv, .tsv, .jsonl, .parquet or .arrow. All of them
    may be at URLs. The result does not depend on the number of workers, and appears whole or not at all. If a run ends
    early for any reason, the same command continues it.

    Args:
        dry_run: estimate what would be written from a sample of the input; write nothing.
    """
    from headrace.preparing.shards import estimate_shards, plan_shards, prepare_shards

    shared.check_errors(options.errors, "bad sample")
    bar = ProgressBar(quiet=quiet)
    if dry_run:
        shared.tell_output(output, options)
        return estimated(estimate_shards(inputs, options=options, on_notice=bar.notice))
    folder = shared.output_folder(output)
    if not executor.is_local:
        plan_shards(inputs, folder, options=options, on_notice=bar.notice)
        return hand_over(executor, folder, workers=options.workers, quiet=quiet)
    with bar:
        show = partial(show_tasks, bar)
        manifest = prepare_shards(inputs, folder, options=options, on_progress=show, on_notice=bar.notice)
        elapsed_s = bar.elapsed_s
    return tell(manifest, folder, elapsed_s)


def tell(manifest: Manifest, output: str, elapsed_s: float) -> Found:
    """Return the report at the end of a run or job."""
    documents, contents = manifest.ledger.documents, manifest.ledger.contents
    value = {
        "output": output,
        "format": "tar",
        "files": [file.name for shard in manifest.outputs for file in shard.files],
        "shards": len(manifest.outputs),
        "samples": documents.kept,
        "samples_read": documents.read,
        "samples_dropped": documents.dropped,
        "bytes": contents.kept if contents else 0,
        "bytes_dropped": contents.dropped if contents else {},
        "parts": _part_bytes(manifest),
        "splits": _splits(manifest),
        "errors": len(manifest.errors),
        "inputs": len(manifest.inputs),
        "seconds": round(elapsed_s, 3),
    }
    return Found(value, summary(manifest, output, elapsed_s))


def summary(manifest: Manifest, output: str, elapsed_s: float) -> list[inspect.Block]:
    """Return the report at the end of a run."""
    documents = manifest.ledger.documents
    tars = sum(shard.files[0].size for shard in manifest.outputs)
    pairs = [
        ("samples", count(documents.kept) + shared.dropped(documents.dropped)),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in _part_bytes(manifest).items())),
        ("shards", f"{count(len(manifest.outputs))}, {size(tars)}"),
    ]
    splits = _splits(manifest)
    if sum(number > 0 for number in splits.values()) > 1:
        pairs.append(("split", ", ".join(f"{name} {count(number)}" for name, number in splits.items() if number)))
    pairs.append(("time", f"{duration(elapsed_s)}, {size(tars / max(elapsed_s, 1e-9))}/s"))
    return [f"{output}: complete", inspect.Pairs(pairs), *shared.skipped(manifest.errors, "bad sample")]


def estimated(estimate: ShardEstimate) -> Found:
    """Return the report of ``--dry-run``."""
    about = "" if estimate.is_exact else "about "
    pairs = [
        ("input", f"{plural(estimate.inputs, 'input')}, {size(estimate.input_bytes)}"),
        ("sample", "all of it" if estimate.is_exact else f"{plural(estimate.sampled, 'sample')}, scaled up"),
        ("samples", f"{about}{count(estimate.samples)}"),
        ("shards", f"about {count(estimate.shards)}, {size(estimate.output_bytes)}"),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in estimate.parts.items()) or "none"),
    ]
    return shared.estimated(estimate, pairs, plural(estimate.bad, "bad sample") if estimate.bad else "")


def _part_bytes(manifest: Manifest) -> dict[str, int]:
    sums: dict[str, int] = {}
    for shard in manifest.outputs:
        for name, info in shard.keys.items():
            sums[name] = sums.get(name, 0) + info.tokens
    return dict(sorted(sums.items()))


def _splits(manifest: Manifest) -> dict[str, int]:
    """Number of samples in each part of the split."""
    return {
        name: sum(shard.documents for shard in manifest.outputs[begin:end])
        for name, (begin, end) in manifest.options["splits"].items()
    }
