"""``headrace prepare media``: its options and reports."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
from click import Option

from headrace.cli import prepare_options as common
from headrace.cli.command import print_found
from headrace.cli.job import ExecutorOptions, hand_over, show_tasks
from headrace.cli.prepare_text import show_estimate
from headrace.cli.progress import ProgressBar, notes
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, size

if TYPE_CHECKING:
    from headrace.preparing.shards import ShardEstimate, ShardOptions
    from headrace.stores import Manifest

_SAMPLES = (
    Option(
        ["--part", "parts"],
        metavar="NAME=FROM",
        multiple=True,
        help="A part of each sample, from path:COLUMN, column:COLUMN, bytes:COLUMN or row.",
    ),
    Option(["--key-field"], metavar="NAME", help="The column with the keys of the samples (default: number them)."),
    Option(
        ["--key-dots"],
        type=click.Choice(["error", "replace", "part"]),
        help="A dot in a key is an error (default: error), becomes _, or begins the name of the part.",
    ),
    Option(["--root"], metavar="DIR", help="The folder of the files that a table names (default: that of the table)."),
    Option(["--captions"], metavar="FILE", help="A table that describes the files of a folder."),
    Option(["--verify"], is_flag=True, help="Check the headers of images, JSON and text."),
    Option(
        ["--duplicates", "--on-duplicate", "duplicates"],
        type=click.Choice(["error", "drop"]),
        help="What happens to a sample whose key came before (default: error).",
    ),
    Option(
        ["--max-record-bytes"],
        metavar="N",
        type=int,
        help="Maximum size of a record; a longer one is bad (default: 256 MiB).",
    ),
)
_SHARDS = (
    common.OUTPUT,
    Option(["--samples-per-shard"], metavar="N", type=int, help="Maximum samples per shard (default: 10,000)."),
    Option(["--shard-size"], metavar="BYTES", help="Size of a shard, as 500MB (default: 1 GiB)."),
    common.SINGLE,
    Option(["--shuffle"], metavar="SEED", type=int, help="Shuffle all samples (default: keep their order)."),
)


@click.command(
    cls=common.Subcommand,
    urls=("inputs", "output", "root", "captions"),
    name="media",
    short_help="Write media into tar shards.",
    what="media in tar shards",
    groups={
        "Samples": _SAMPLES,
        "Output": _SHARDS,
        "Dataset": (common.SPLIT_RATIO, common.SAMPLE_TYPE, common.FIELD_MAP),
        "Errors": (common.ON_ERROR, common.MAX_ERRORS),
        "Run": (common.WORKERS, common.OVERWRITE, common.RESTART, common.DRY_RUN, common.QUIET),
    },
)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
def command(
    inputs: tuple[str, ...], output: str | None, executor: ExecutorOptions, dry_run: bool, quiet: bool, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Write media into tar shards in DIR, which Energon and webdataset read; see docs/shards.md.

    INPUT is a folder of media, or a table that names or holds them: .csv, .tsv, .jsonl, .parquet or .arrow. All of them
    may be at URLs. The result does not depend on the number of workers, and appears whole or not at all. If a run ends
    early for any reason, the same command continues it.
    """
    from headrace.preparing.shards import estimate_shards, plan_shards, prepare_shards

    options = _options(given)
    bar = ProgressBar(quiet=quiet)
    note = notes(bar, quiet=quiet)
    if dry_run:
        show_estimate(
            lambda: estimate_shards(inputs, options=options, on_notice=note), estimate_lines, output,
            overwrite=options.overwrite, restart=options.restart, as_json=as_json,
        )  # fmt: skip
        return
    folder = common.output_folder(output)
    if not executor.is_local:
        plan_shards(inputs, folder, options=options, on_notice=note)
        hand_over(executor, folder, workers=options.workers, quiet=quiet, as_json=as_json)
        return
    with bar:
        manifest = prepare_shards(inputs, folder, options=options, on_progress=partial(show_tasks, bar), on_notice=note)
        elapsed_s = bar.elapsed_s
    tell(manifest, folder, elapsed_s, quiet=quiet, as_json=as_json)


def tell(manifest: Manifest, output: str, elapsed_s: float, *, quiet: bool, as_json: bool) -> None:
    """Print the report at the end of a run or job."""
    print_found(result(manifest, output, elapsed_s), summary(manifest, output, elapsed_s), as_json=as_json, quiet=quiet)


def result(manifest: Manifest, output: str, elapsed_s: float) -> dict[str, object]:
    """Return what ``--json`` prints."""
    documents, contents = manifest.ledger.documents, manifest.ledger.contents
    return {
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


def summary(manifest: Manifest, output: str, elapsed_s: float) -> list[str]:
    """Return the report at the end of a run."""
    documents = manifest.ledger.documents
    tars = sum(shard.files[0].size for shard in manifest.outputs)
    pairs = [
        ("samples", count(documents.kept) + common.dropped(documents.dropped)),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in _part_bytes(manifest).items())),
        ("shards", f"{count(len(manifest.outputs))}, {size(tars)}"),
    ]
    splits = _splits(manifest)
    if sum(number > 0 for number in splits.values()) > 1:
        pairs.append(("split", ", ".join(f"{name} {count(number)}" for name, number in splits.items() if number)))
    pairs.append(("time", f"{duration(elapsed_s)}, {size(tars / max(elapsed_s, 1e-9))}/s"))
    return [f"{output}: complete", *listing(pairs), *common.skipped(manifest.errors, "bad sample")]


def estimate_lines(estimate: ShardEstimate) -> list[str]:
    """Return the report of ``--dry-run``."""
    about = "" if estimate.is_exact else "about "
    pairs = [
        ("input", f"{plural(estimate.inputs, 'input')}, {size(estimate.input_bytes)}"),
        ("sample", "all of it" if estimate.is_exact else f"{plural(estimate.sampled, 'sample')}, scaled up"),
        ("samples", f"{about}{count(estimate.samples)}"),
        ("shards", f"about {count(estimate.shards)}, {size(estimate.output_bytes)}"),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in estimate.parts.items()) or "none"),
    ]
    if estimate.bad:
        first = "" if estimate.first_error in estimate.stops else f": {estimate.first_error}"
        pairs.append(("errors", f"{plural(estimate.bad, 'bad sample')}{first}"))
    if estimate.stops:
        pairs.append(("stops", estimate.stops))
    return ["dry run: nothing was written", *listing(pairs)]


def _options(given: dict[str, Any]) -> ShardOptions:
    from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource

    source = common.chosen(
        given, "key_field", "key_dots", "root", "captions", "verify", "duplicates", "max_record_bytes"
    )
    output = common.chosen(given, "samples_per_shard", "shuffle", "sample_type")
    if given["single"]:
        if given["samples_per_shard"] is not None or given["shard_size"] is not None:
            raise ConfigError(
                "--single writes one shard, --samples-per-shard and --shard-size cut it into several: use one"
            )
        output |= {"samples_per_shard": None, "shard_bytes": None}
    if given["shard_size"] is not None:
        output["shard_bytes"] = resolve_name("headrace.io.sizes:parse_size")(given["shard_size"], "--shard-size")
    if given["split_ratio"] is not None:
        output["split_ratio"] = common.parse_shares(given["split_ratio"])
    if given["field_map"] is not None:
        output["field_map"] = common.parse_field_map(given["field_map"])
    return ShardOptions(
        source=ShardSource(parts=tuple(map(PartSpec.parse, given["parts"])), **source),
        output=ShardOutput(**output),
        errors=common.error_options(given, "bad sample"),
        **common.chosen(given, "workers", "overwrite", "restart"),
    )


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
