"""``headrace quarantine``: leave samples that are known to be bad out of a dataset, or put them back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

import headrace
from headrace import inspect
from headrace.cli.command import Command, json_option, print_json
from headrace.errors import ConfigError, InputError
from headrace.inspect.figures import plural, safe_text

if TYPE_CHECKING:
    from headrace.encoders import Fault
    from headrace.stores import SampleStore
    from headrace.stores.quarantine import BadSample

SKIPPED = "SkipSample"


@click.command(cls=Command, name="quarantine", short_help="Leave bad samples out of a dataset.")
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
def command(
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
    from headrace.stores.quarantine import add_bad_samples, bad_samples, remove_bad_samples

    if remove and not (reports or keys):
        raise ConfigError("--remove puts samples back: name them with --key or --from")
    with inspect.need_samples(path, inspect.SampleOptions(split_config=split_config)) as store:
        listed = bad_samples(store)
        wanted = [*_of_keys(store, keys, reason, listed if remove else None), *_of_reports(path, reports, store)]
        change = remove_bad_samples if remove else add_bad_samples
        changed = change(store, wanted) if wanted else 0
        listed = bad_samples(store) if wanted else listed
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
    return os.path.realpath(fault.source) == os.path.realpath(path)
