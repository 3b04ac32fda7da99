"""``headrace prepare --format tar``: its options and its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.command import print_json, print_report
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural, size

if TYPE_CHECKING:
    from headrace.preparing.shards import ShardEstimate, ShardOptions, ShardProgress
    from headrace.stores import Manifest

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--part",
        "parts",
        metavar="NAME=FROM",
        multiple=True,
        help="Tars: a part of each sample, from path:COLUMN, column:COLUMN, bytes:COLUMN or row.",
    ),
    click.option(
        "--key-field", metavar="NAME", help="Tars: the column with the keys of the samples (default: number them)."
    ),
    click.option(
        "--key-dots",
        type=click.Choice(["error", "replace", "part"]),
        help="Tars: a dot in a key is an error (default: error), becomes _, or begins the name of the part.",
    ),
    click.option(
        "--root", metavar="DIR", help="Tars: the folder of the files that a table names (default: that of the table)."
    ),
    click.option("--captions", metavar="FILE", help="Tars: a table that describes the files of a folder."),
    click.option("--verify", is_flag=True, help="Tars: check the headers of images, JSON and text."),
    click.option(
        "--duplicates",
        "--on-duplicate",
        "duplicates",
        type=click.Choice(["error", "drop", "keep"]),
        help="Tars: what happens to a sample whose key came before (default: error).",
    ),
    click.option(
        "--samples-per-shard", metavar="N", type=int, help="Tars: maximum samples per shard (default: 10,000)."
    ),
    click.option("--shard-size", metavar="BYTES", help="Tars: maximum size of a shard, as 500MB (default: 1 GiB)."),
    click.option(
        "--split-ratio", metavar="A,B,C", help="Tars: shares of train, val and test (default: all samples are train)."
    ),
    click.option("--sample-type", metavar="NAME", help="Tars: sample type for dataset.yaml, as CaptioningSample."),
    click.option(
        "--field-map",
        metavar="JSON",
        help='Tars: fields of the sample type, as \'{"image": "jpg", "caption": "txt"}\'.',
    ),
)
NAMES = frozenset(
    (
        *("parts", "key_field", "key_dots", "root", "captions", "verify", "duplicates", "samples_per_shard"),
        *("shard_size", "split_ratio", "sample_type", "field_map"),
    )
)
"""Options for ``--format tar``; datasets in place share some of them."""

_SHARED = frozenset(
    (
        *("format", "shuffle", "on_error", "max_errors", "max_record_bytes", "workers", "overwrite", "restart"),
        *("single",),
    )
)
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_MAX_ERRORS_SHOWN = 5


def shard_options(command: F) -> F:
    """Add the options of ``--format tar``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_shard_options(named: Collection[str]) -> None:
    """Raise ConfigError if an option for tar shards is given without ``--format tar``."""
    for name in sorted(NAMES & set(named)):
        option = "--part" if name == "parts" else f"--{name.replace('_', '-')}"
        raise ConfigError(f"{option} is for media in tar shards: use it with --format tar")


def run(
    inputs: Sequence[str],
    output: str | None,
    given: dict[str, Any],
    named: Collection[str],
    *,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prepare shards, or estimate the result, and print the report.

    Raises:
        HeadraceError: any that `prepare_shards` raises; or an option is for texts.
    """
    for name in sorted(set(named) - NAMES - _SHARED):
        option = {"fields": "field", "function": "filter"}.get(name, name).replace("_", "-")
        raise ConfigError(f"--{option} is for texts: leave it out with --format tar")
    options = _options(given, named)
    from headrace.preparing.shards import estimate_shards, prepare_shards

    bar = ProgressBar(quiet=quiet)

    def notice(message: str) -> None:
        if not quiet:
            bar.note(f"note: {message}")

    if dry_run:
        estimate = estimate_shards(inputs, options=options, on_notice=notice)
        if as_json:
            print_json(estimate)
        else:
            print_report(estimate_lines(estimate))
        return
    if output is None:
        raise ConfigError("--output DIR is missing: name the folder for the result")
    with bar:
        manifest = prepare_shards(inputs, output, options=options, on_progress=partial(_show, bar), on_notice=notice)
        elapsed_s = bar.elapsed_s
    if as_json:
        print_json(result(manifest, output, elapsed_s))
    elif not quiet:
        print_report(summary(manifest, output, elapsed_s))


def _show(bar: ProgressBar, progress: ShardProgress) -> None:
    phase = "reading" if progress.phase == "survey" else "writing"
    text = f"{count(progress.samples)} samples  {size(progress.done_bytes)}"
    bar.update(phase, progress.done_bytes, progress.total_bytes, text=text, speeds={"B": progress.done_bytes})


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
    dropped = ", ".join(f"{name} {count(number)}" for name, number in documents.dropped.items())
    tars = sum(shard.files[0].size for shard in manifest.outputs)
    pairs = [
        ("samples", count(documents.kept) + (f" ({dropped} dropped)" if dropped else "")),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in _part_bytes(manifest).items())),
        ("shards", f"{count(len(manifest.outputs))}, {size(tars)}"),
    ]
    splits = _splits(manifest)
    if sum(number > 0 for number in splits.values()) > 1:
        pairs.append(("split", ", ".join(f"{name} {count(number)}" for name, number in splits.items() if number)))
    pairs.append(("time", f"{duration(elapsed_s)}, {size(tars / max(elapsed_s, 1e-9))}/s"))
    shown = [f"{output}: complete", *listing(pairs)]
    if manifest.errors:
        shown.append(f"  {plural(len(manifest.errors), 'bad sample')} skipped, all listed in headrace.json:")
        shown += [
            f"    {error.file}, {error.unit} {error.line:,}: {error.message}"
            for error in manifest.errors[:_MAX_ERRORS_SHOWN]
        ]
    return shown


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
        pairs.append(("errors", f"{plural(estimate.bad, 'bad sample')}: {estimate.first_error}"))
    return ["dry run: nothing was written", *listing(pairs)]


def parse_size(text: str) -> int:
    """Parse a size such as ``1000000``, ``500MB`` or ``1GiB`` into bytes.

    Raises:
        ConfigError: the text is not a size of at least 1 byte.
    """
    digits = text.rstrip("BGKMIbgkmi ")
    unit = _UNITS.get(text[len(digits) :].strip().lower())
    try:
        found = round(float(digits) * unit) if unit is not None else 0
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise ConfigError(f"--shard-size {text}: write a number of bytes, or a size such as 500MB or 1GiB")
    return found


def _options(given: dict[str, Any], named: Collection[str]) -> ShardOptions:
    from headrace.cli.prepare import number_or_share
    from headrace.preparing import ErrorOptions
    from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource

    if given["duplicates"] == "keep":
        raise ConfigError("--duplicates keep is for tars that are prepared in place; new shards hold each key once")
    source = {
        name: given[name]
        for name in ("key_field", "key_dots", "root", "captions", "verify", "duplicates", "max_record_bytes")
        if name in named
    }
    output = {name: given[name] for name in ("samples_per_shard", "shuffle", "sample_type") if name in named}
    if given["single"]:
        if {"samples_per_shard", "shard_size"} & set(named):
            raise ConfigError(
                "--single writes one shard, --samples-per-shard and --shard-size cut it into several: use one"
            )
        output |= {"samples_per_shard": None, "shard_bytes": None}
    if given["shard_size"] is not None:
        output["shard_bytes"] = parse_size(given["shard_size"])
    if given["split_ratio"] is not None:
        output["split_ratio"] = parse_shares(given["split_ratio"])
    if given["field_map"] is not None:
        output["field_map"] = parse_field_map(given["field_map"])
    if given["max_errors"] is not None and given["on_error"] != "skip":
        raise ConfigError("--max-errors needs --on-error skip: otherwise the first bad sample ends the run")
    max_errors = {} if given["max_errors"] is None else {"max_errors": number_or_share(given["max_errors"])}
    return ShardOptions(
        source=ShardSource(parts=tuple(map(PartSpec.parse, given["parts"])), **source),
        output=ShardOutput(**output),
        errors=ErrorOptions(on_error=given["on_error"], **max_errors),
        workers=given["workers"],
        overwrite=given["overwrite"],
        restart=given["restart"],
    )


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse shares such as ``8,1,1`` or ``0.5,0.2,0.3``; raises ConfigError."""
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise ConfigError(f"--split-ratio {text}: write the shares of train, val and test, as 8,1,1") from None


def parse_field_map(text: str) -> dict[str, str]:
    """Parse a JSON object that says where each field of a sample type is found; raises ConfigError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--field-map {text}: this is not JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(
            f'--field-map {text}: write an object whose values are strings, as {{"image": "jpg", "caption": "txt"}}'
        )
    return found


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
