"""``headrace info``, ``check``, ``ls``, ``cat`` and ``quarantine``: what stores hold, and the samples of a dataset."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import click

import headrace
from headrace import inspect
from headrace.cli.command import Found, command, write_file
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError
from headrace.inspect.figures import count, plural, safe_text, size

if TYPE_CHECKING:
    from headrace.inspect.questions import AnyVerdict
    from headrace.inspect.sample_checks import CheckReport
    from headrace.inspect.sample_description import Listed
    from headrace.stores.quarantine import BadSample


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
    return Found(found, found.shown())


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
        from headrace.inspect.sample_checks import plan_check

        workers = given.pop("workers", None)
        plan_check(path, given, quarantine=quarantine)
        return hand_over(executor, path, workers=workers, quiet=quiet)
    with ProgressBar(quiet=quiet) as bar:
        verdict = inspect.check(path, **given, on_progress=bar.update)
    left_out = ""
    if quarantine and isinstance(verdict, inspect.SampleVerdict):
        left_out = inspect.leave_out_bad(path, verdict, inspect.SampleCheck.of(given).dataset)
    return _told(verdict, left_out)


def tell(report: CheckReport, output: str, elapsed_s: float) -> Found:
    """Return the report of a job."""
    return _told(report.verdict, report.left_out)


def _told(verdict: AnyVerdict, left_out: str) -> Found:
    lines = [*verdict.shown(), *([left_out] if left_out else [])]
    return Found(verdict, lines, always=verdict.fault_lines(), is_faulty=not verdict.ok)


@command("ls", "List the samples of tar shards, and of other media.", urls=("path",))
def ls(
    path: Annotated[str, "DATASET"],
    pattern: Annotated[str | None, "[PATTERN]"] = None,
    *,
    long: bool = False,
    options: inspect.SampleOptions,
    as_json: bool = False,
) -> None:
    """List the keys of the samples in DATASET, or those that match PATTERN, as cats/*, *17 or ?-[0-9].

    DATASET is a tar, a folder or a pattern of tars, an Energon dataset, a folder of files with media metadata, or a
    .jsonl. In PATTERN, * matches slashes too. Lines are printed as samples are found, and only headers are read.

    Args:
        long: list shard, number in the shard, and the parts with their sizes too.
    """
    with inspect.need_samples(path, options) as store:
        found = inspect.listed(store, pattern, with_parts=long or as_json)
        if as_json:
            _print_listing(path, found)
            return
        for one in found:
            click.echo(safe_text(long_line(one) if long else one.key))


def long_line(one: Listed) -> str:
    """Return the line of ``--long``: key, shard, number in the shard, and parts."""
    parts = ", ".join(f"{name or '(no name)'} {size(number)}" for name, number in (one.parts or {}).items())
    return f"{one.key}  {one.shard}, {count(one.index)}  {parts}"


def _print_listing(path: str, found: Iterator[Listed]) -> None:
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
        click.get_current_context().exit(error.exit_code)


MAX_CHARS = 1 << 20


@command("cat", "Describe a sample, or write a part of it.", urls=("path",))
def cat(
    path: Annotated[str, "DATASET"],
    name: Annotated[str, "KEY[.PART]"],
    *,
    output: Annotated[str | None, "FILE"] = None,
    overwrite: bool = False,
    options: inspect.SampleOptions,
    as_json: bool = False,
) -> Found | None:
    """Write the bytes of the part KEY.PART, such as cats/0017.jpg, unchanged; for a KEY, describe all its parts.

    DATASET is any dataset that headrace ls reads. With --json parts are printed as JSON: text and values decoded,
    other parts as sizes and facts.

    Args:
        output: write the bytes to FILE instead of standard output.
        overwrite: replace FILE if it exists.
    """
    with inspect.need_samples(path, options) as store:
        number, part = inspect.find_part(store, name)
        if part is not None and not as_json:
            _write(inspect.read_part(store, number, part), name, output, overwrite=overwrite)
            return None
        if output is not None:
            raise ConfigError(f"--output {output} is for the bytes of one part: write KEY.PART, and leave out --json")
        sample = inspect.look_at_sample(store, number, part, max_chars=MAX_CHARS)
    return Found(sample.shown, [sample.section()])


def _write(data: bytes, name: str, output: str | None, *, overwrite: bool) -> None:
    if output is not None:
        if Path(output).exists() and not overwrite:
            raise OutputError(f"{output}: the file exists; give another name, or --overwrite to replace it")
        write_file(output, data)
        return
    stream: BinaryIO = sys.stdout.buffer
    if stream.isatty() and not _is_text(data):
        raise ConfigError(
            f"{name}: these {size(len(data))} are not text, and the output is a terminal; use > FILE or --output FILE"
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


@command("quarantine", "Leave bad samples out of a dataset.", urls=("path",))
def quarantine(
    path: Annotated[str, "DATASET"],
    *,
    reports: Annotated[tuple[str, ...], "FILE"] = (),
    keys: Annotated[tuple[str, ...], "KEY"] = (),
    reason: Annotated[str, "TEXT"] = "",
    remove: bool = False,
    split_config: str | None = None,
) -> Found:
    """Put samples on the list of those that are left out of DATASET; the other samples are then numbered anew.

    For an Energon dataset the list is "exclude" in the split file, which Energon follows too. For tar shards and .jsonl
    it is the file headrace.quarantine.json beside them. A run that began before such a change cannot be continued,
    because the order of its samples has changed. Without --faults and --key the list is printed.

    A report is a file that a loader (fault_report) or `headrace measure --faults` wrote. The samples of DATASET that it
    names are put on the list, except those that a hook skipped.

    Args:
        reports: leave out the samples that a report of faults names; repeatable.
        keys: leave out the sample with this key; repeatable.
        reason: reason to record for the samples of --key.
        remove: put these samples back.
    """
    from headrace.stores import quarantine as kept_list

    if remove and not (reports or keys):
        raise ConfigError("--remove puts samples back: name them with --key or --faults")
    with inspect.need_samples(path, inspect.SampleOptions(split_config=split_config)) as store:
        listed = kept_list.bad_samples(store)
        wanted = [*_of_keys(store, keys, reason, listed if remove else None), *_of_reports(path, reports, store)]
        change = kept_list.remove_bad_samples if remove else kept_list.add_bad_samples
        changed = change(store, wanted) if wanted else 0
        listed = kept_list.bad_samples(store) if wanted else listed
    samples = [{"shard": one.shard, "key": one.key, "reason": one.reason} for one in listed]
    if wanted:
        report = [f"{path}: {plural(changed, 'sample')} {'put back' if remove else 'added'}"]
    else:
        report = [safe_text(f"{one.shard}  {one.key}" + (f"  {one.reason}" if one.reason else "")) for one in listed]
    found = {"path": path, "changed": changed, "left_out": len(listed), "samples": samples}
    return Found(found, [*report, f"{path}: {plural(len(listed), 'sample')} left out"])


def _of_keys(
    store: headrace.stores.SampleStore, keys: Iterable[str], reason: str, listed: list[BadSample] | None
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


def _of_reports(path: str, reports: tuple[str, ...], store: headrace.stores.SampleStore) -> Iterator[BadSample]:
    """The samples of this dataset that the reports name, each once, except those that a hook skipped."""
    from headrace.io.finding import real_name
    from headrace.stores.quarantine import BadSample

    if not reports:
        return
    faults, name = headrace.encoders.read_fault_report(reports), real_name(path)
    own = [fault for fault in faults if real_name(fault.source) == name]
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
