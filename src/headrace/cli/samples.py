"""``headrace ls``, ``cat`` and ``quarantine``: the samples of a dataset, one of them, and those that are left out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

import headrace
from headrace import inspect
from headrace.cli.command import Command, json_option, part_options, print_found, print_json, write_file
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError
from headrace.inspect.figures import count, plural, safe_text, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.encoders import Fault
    from headrace.inspect.sample_description import Listed
    from headrace.stores import SampleStore
    from headrace.stores.quarantine import BadSample


@click.command(cls=Command, urls=("path",), name="ls", short_help="List the samples of tar shards, and of other media.")
@click.argument("path", metavar="DATASET")
@click.argument("pattern", metavar="[PATTERN]", required=False)
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="List shard, number in the shard, and the parts with their sizes too."
)
@part_options
@json_option
@click.pass_context
def ls(
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
            _print_listing(ctx, path, found)
            return
        for one in found:
            click.echo(safe_text(long_line(one) if is_long else one.key))


def long_line(one: Listed) -> str:
    """Return the line of ``--long``: key, shard, number in the shard, and parts."""
    parts = ", ".join(f"{name or '(no name)'} {size(number)}" for name, number in (one.parts or {}).items())
    return f"{one.key}  {one.shard}, {count(one.index)}  {parts}"


def _print_listing(ctx: click.Context, path: str, found: Iterator[Listed]) -> None:
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


MAX_CHARS = 1 << 20


@click.command(cls=Command, urls=("path",), name="cat", short_help="Describe a sample, or write a part of it.")
@click.argument("path", metavar="DATASET")
@click.argument("name", metavar="KEY[.PART]")
@part_options
@click.option("--output", "-o", metavar="FILE", help="Write the bytes to FILE instead of standard output.")
@click.option(
    "--force", is_flag=True, help="Replace FILE if it exists; write bytes to a terminal even if they are not text."
)
@json_option
def cat(
    path: str, name: str, split_part: str | None, split_config: str | None, dataset_config: str | None,
    output: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the bytes of the part KEY.PART, such as cats/0017.jpg, unchanged; for a KEY, describe all its parts.

    DATASET is any dataset that headrace ls reads. With --json parts are printed as JSON: text and values decoded,
    other parts as sizes and facts.
    """
    options = inspect.SampleOptions(split_part=split_part, split_config=split_config, dataset_config=dataset_config)
    with inspect.need_samples(path, options) as store:
        number, part = inspect.find_part(store, name)
        if part is not None and not as_json:
            _write(inspect.read_part(store, number, part), name, output, force=force)
            return
        if output is not None:
            raise ConfigError(f"--output {output} is for the bytes of one part: write KEY.PART, and leave out --json")
        sample = inspect.look_at_sample(store, number, part, max_chars=MAX_CHARS)
    print_found(sample.shown, inspect.lines([sample.section()]), as_json=as_json)


def _write(data: bytes, name: str, output: str | None, *, force: bool) -> None:
    if output is not None:
        if Path(output).exists() and not force:
            raise OutputError(f"{output}: the file exists; give another name, or --force to replace it")
        write_file(output, data)
        return
    stream: BinaryIO = sys.stdout.buffer
    if stream.isatty() and not force and not _is_text(data):
        raise ConfigError(
            f"{name}: these {size(len(data))} are not text, and the output is a terminal; use > FILE, --output FILE or"
            " --force"
        )
    stream.write(data)
    stream.flush()


def _is_text(data: bytes) -> bool:
    """Whether the bytes are printable text, without control characters that a terminal would obey."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\t" for character in text)


SKIPPED = "SkipSample"


@click.command(cls=Command, urls=("path",), name="quarantine", short_help="Leave bad samples out of a dataset.")
@click.argument("path", metavar="DATASET")
@click.option(
    "--from",
    "reports",
    metavar="FILE",
    multiple=True,
    help="Leave out the samples that a report of faults names; repeatable.",
)
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Leave out the sample with this key; repeatable.")
@click.option("--reason", metavar="TEXT", default="", help="Reason to record for the samples of --key.")
@click.option("--remove", is_flag=True, help="Put these samples back.")
@click.option("--list", "lists", is_flag=True, help="Print the samples that are left out.")
@click.option(
    "--split-config",
    metavar="NAME",
    help="Split file in .nv-meta of an Energon dataset (default: split.yaml).",
)
@json_option
def quarantine(
    path: str, reports: tuple[str, ...], keys: tuple[str, ...], reason: str, remove: bool, lists: bool,
    split_config: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Put samples on the list of those that are left out of DATASET; the other samples are then numbered anew.

    For an Energon dataset the list is "exclude" in the split file, which Energon follows too. For tar shards and .jsonl
    it is the file headrace.quarantine.json beside them. A run that began before such a change cannot be continued,
    because the order of its samples has changed.

    A report is a file that a loader (fault_report) or `headrace measure --faults` wrote. The samples of DATASET that it
    names are put on the list, except those that a hook skipped.
    """
    from headrace.stores import quarantine as kept_list

    if remove and not (reports or keys):
        raise ConfigError("--remove puts samples back: name them with --key or --from")
    with inspect.need_samples(path, inspect.SampleOptions(split_config=split_config)) as store:
        listed = kept_list.bad_samples(store)
        wanted = [*_of_keys(store, keys, reason, listed if remove else None), *_of_reports(path, reports, store)]
        change = kept_list.remove_bad_samples if remove else kept_list.add_bad_samples
        changed = change(store, wanted) if wanted else 0
        listed = kept_list.bad_samples(store) if wanted else listed
    if as_json:
        samples = [{"shard": one.shard, "key": one.key, "reason": one.reason} for one in listed]
        print_json({"path": path, "changed": changed, "left_out": len(listed), "samples": samples})
        return
    if lists:
        for one in listed:
            click.echo(safe_text(f"{one.shard}  {one.key}" + (f"  {one.reason}" if one.reason else "")))
    if wanted:
        click.echo(f"{path}: {plural(changed, 'sample')} {'put back' if remove else 'added'}")
    click.echo(f"{path}: {plural(len(listed), 'sample')} left out")


def _of_keys(
    store: SampleStore, keys: Iterable[str], reason: str, listed: list[BadSample] | None
) -> Iterator[BadSample]:
    """Find the samples with some keys: in the store, or in ``listed`` if that is given."""
    from headrace.stores.quarantine import bad_sample

    for key in keys:
        if listed is not None:
            found = [one for one in listed if one.key == key]
            if not found:
                raise ConfigError(f"{store.path}: no sample with the key {key!r} is left out")
            yield from found
            continue
        try:
            yield bad_sample(store, store.find(key), reason)
        except KeyError:
            raise ConfigError(f"{store.path}: has no sample with the key {key!r}, or it is left out already") from None


def _of_reports(path: str, reports: tuple[str, ...], store: SampleStore) -> Iterator[BadSample]:
    """The samples of this dataset that the reports name, each once, except those that a hook skipped."""
    from headrace.stores.quarantine import BadSample

    if not reports:
        return
    faults = headrace.encoders.read_fault_report(reports)
    own = [fault for fault in faults if _is_of(fault, path)]
    if faults and not own:
        sources = sorted({fault.source for fault in faults})
        raise InputError(f"{', '.join(reports)}: no fault is in {path}; they are in {', '.join(sources[:5])}")
    shards = set(store.shards)
    found: dict[tuple[str, str], BadSample] = {}
    for fault in own:
        if fault.kind == SKIPPED:
            continue
        if fault.shard not in shards or fault.key is None:
            raise InputError(
                f"{', '.join(reports)}: sample {fault.index:,} of {path}: shard {fault.shard!r} and key {fault.key!r}"
                " do not identify it; name it with --key"
            )
        reason = f"{fault.kind} in {fault.hook}: {fault.reason}"
        found.setdefault((fault.shard, fault.key), BadSample(shard=fault.shard, key=fault.key, reason=reason))
    yield from found.values()


def _is_of(fault: Fault, path: str) -> bool:
    if "://" in path:
        return fault.source.rstrip("/") == path.rstrip("/")
    return os.path.realpath(fault.source) == os.path.realpath(path)
