"""``headrace prepare PATH`` in place: index tars, a JSONL file, a metadataset or a folder of media for Energon."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.command import print_json, print_report
from headrace.cli.prepare_shards import parse_field_map, parse_shares
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, listing, plural

if TYPE_CHECKING:
    from headrace.preparing.energon import EnergonOptions, EnergonProgress, EnergonReport, MediaFilter
    from headrace.preparing.energon.scanning import Peek

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--split-parts",
        metavar="NAME:REGEX",
        multiple=True,
        help="In place: assign the shards whose names match REGEX to the part NAME of the split.",
    ),
    click.option("--exclude", metavar="REGEX", help="In place: leave out shards in whose names REGEX is found."),
    click.option(
        "--shuffle-tars", is_flag=True, help="In place: shuffle the shards before --split-ratio assigns them."
    ),
    click.option("--tar-index-only", is_flag=True, help="In place: write only .tar.idx and .info.json."),
    click.option(
        "--media-metadata-by-extension",
        is_flag=True,
        help="In place: gather metadata (size, length) of the parts whose extension is one of media.",
    ),
    click.option(
        "--media-metadata-by-header",
        is_flag=True,
        help="In place: gather metadata of the parts whose first bytes are those of media.",
    ),
    click.option(
        "--media-metadata-by-glob",
        metavar="PAT,..",
        help="In place: gather metadata of the parts whose names match a pattern, as *.jpg,*.mp4.",
    ),
    click.option("--media-only", is_flag=True, help="In place: only gather metadata, for a folder of plain files."),
    click.option("--part-filter", metavar="PART,..", help="In place: the parts of crude samples that are read."),
    click.option(
        "--dataset-yaml-name", metavar="NAME", help="In place: name of the dataset file (default: dataset.yaml)."
    ),
    click.option("--skip-dataset-yaml", is_flag=True, help="In place: do not write a dataset file."),
    click.option("--non-interactive", is_flag=True, help="In place: ask no questions, even on a terminal."),
    click.option("--no-progress", is_flag=True, hidden=True),
)
NAMES = frozenset(
    (
        *("split_parts", "exclude", "shuffle_tars", "tar_index_only", "media_metadata_by_extension", "media_only"),
        *("media_metadata_by_header", "media_metadata_by_glob", "part_filter", "dataset_yaml_name"),
        *("skip_dataset_yaml", "non_interactive", "no_progress"),
    )
)
"""Options that only datasets prepared in place have."""

_SHARED = frozenset(
    (
        *("split_ratio", "sample_type", "field_map", "duplicates"),
        *("on_error", "max_errors", "workers", "overwrite", "restart"),
    )
)
_TERSE = {"fields": "field", "function": "filter", "parts": "part"}
_SHOWN = 5


def tar_options(command: F) -> F:
    """Add the options of datasets that are prepared in place."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_tar_options(named: Collection[str]) -> None:
    """Raise ConfigError if an option for datasets in place is given for another form of ``prepare``."""
    for name in sorted(NAMES & set(named)):
        raise ConfigError(
            f"{_spelled(name)} is for a folder of .tar shards, which is prepared in place: leave out --output,"
            " --tokenizer and --recipe"
        )


def is_in_place(inputs: Sequence[str], named: Collection[str]) -> bool:
    """Whether the inputs are prepared in place, if neither output nor tokeniser nor recipe is given."""
    if NAMES & set(named):
        return True
    if len(inputs) != 1:
        return False
    path = Path(inputs[0])
    if path.is_file():
        return path.suffix in (".jsonl", ".yaml")
    return path.is_dir() and ((path / ".nv-meta").is_dir() or _has_tar(path))


def _has_tar(folder: Path) -> bool:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")) for name in files):
            return True
    return False


def run(
    inputs: Sequence[str],
    given: dict[str, Any],
    named: Collection[str],
    *,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prepare the dataset at a path, and print the report.

    Raises:
        HeadraceError: any that `prepare_energon` raises; or an option is for another form of ``prepare``.
    """
    for name in sorted(set(named) - NAMES - _SHARED):
        raise ConfigError(f"{_spelled(name)} does not apply to a dataset that is prepared in place")
    if dry_run:
        raise ConfigError("--dry-run does not apply to a dataset that is prepared in place: leave it out")
    if len(inputs) != 1:
        raise ConfigError(f"only one folder or file at a time is prepared in place; found {len(inputs)}")
    from headrace.preparing.energon import prepare_energon

    path = inputs[0]
    options = _options(given, named)
    if _may_ask(given, quiet=quiet, as_json=as_json):
        options = ask(Path(path), options)
    with ProgressBar(quiet=quiet or given["no_progress"]) as bar:

        def notice(message: str) -> None:
            if not quiet:
                bar.note(f"note: {message}")

        report = prepare_energon(path, options=options, on_progress=partial(_show_progress, bar), on_notice=notice)
        elapsed_s = bar.elapsed_s
    if as_json:
        print_json(result(report, elapsed_s))
    elif not quiet:
        print_report(summary(report, elapsed_s))


def _may_ask(given: dict[str, Any], *, quiet: bool, as_json: bool) -> bool:
    return not (given["non_interactive"] or quiet or as_json) and sys.stdin.isatty() and sys.stdout.isatty()


def _show_progress(bar: ProgressBar, progress: EnergonProgress) -> None:
    done, total = progress.done, progress.total
    text = f"{count(done)} of {count(total)}  {count(progress.samples)} samples"
    if progress.total_bytes:
        done, total = progress.done_bytes, progress.total_bytes
    bar.update("indexing", done, total, text=text, speeds={"samples": progress.samples})


def result(report: EnergonReport, elapsed_s: float) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(report)
    found["split"] = {part: {"shards": shards, "samples": samples} for part, (shards, samples) in report.split.items()}
    return {**found, "seconds": round(elapsed_s, 3)}


def summary(report: EnergonReport, elapsed_s: float) -> list[str]:
    """Return the report at the end of a run."""
    if report.kind == "jsonl":
        return [f"{report.path}: {plural(report.samples, 'record')}, indexed in {duration(elapsed_s)}"]
    if report.kind == "metadataset":
        return [f"{report.path}: {plural(len(report.written), 'join')}, {plural(report.samples, 'joined sample')}"]
    if report.kind == "media":
        return [f"{report.path}: metadata of {count(report.media or 0)} media in {plural(report.samples, 'file')}"]
    lines = [f"{report.path}: {plural(report.samples, 'sample')} in {plural(report.shards, 'shard')}"]
    rows = [
        ("shards", f"{count(report.read)} read, {count(report.unchanged)} unchanged, {count(report.removed)} removed")
    ]
    rows += [
        (part, f"{plural(shards, 'shard')}, {plural(samples, 'sample')}")
        for part, (shards, samples) in report.split.items()
    ]
    more = ", ..." if len(report.parts) > 2 * _SHOWN else ""
    rows.append(("parts", ", ".join(report.parts[: 2 * _SHOWN]) + more))
    if report.media is not None:
        rows.append(("media", f"metadata of {count(report.media)}"))
    rows.append(("written", ", ".join(report.written) if report.written else "nothing, all files are unchanged"))
    rows.append(("time", duration(elapsed_s)))
    lines += listing(rows)
    lines += _left_out(report)
    return lines


def _left_out(report: EnergonReport) -> list[str]:
    lines = []
    if report.faults:
        lines.append(f"malformed: {plural(len(report.faults), 'shard')}; the samples from the fault on are missing")
        for name, faults in list(report.faults.items())[:_SHOWN]:
            lines.append(f"  {name}: sample {faults[0].sample}, byte {faults[0].byte:,}: {faults[0].message}")
    if report.duplicates:
        lines.append(f"duplicate keys: {plural(len(report.duplicates), 'sample')}")
        for found in report.duplicates[:_SHOWN]:
            lines.append(f"  {found.key!r}: {found.shard}, first in {found.first_shard}")
    return lines


def _options(given: dict[str, Any], named: Collection[str]) -> EnergonOptions:
    from headrace.cli.prepare import number_or_share
    from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice
    from headrace.preparing.options import ErrorOptions

    if "max_errors" in named and given["on_error"] != "skip":
        raise ConfigError("--max-errors needs --on-error skip: otherwise the first malformed shard ends the run")
    defaults = EnergonOptions()
    return EnergonOptions(
        split=SplitChoice(
            ratio=parse_shares(given["split_ratio"]) if given["split_ratio"] is not None else (),
            parts=tuple(_split_part(text) for text in given["split_parts"]),
            shuffle=given["shuffle_tars"],
        ),
        dataset=DatasetChoice(
            name=given["dataset_yaml_name"] or defaults.dataset.name,
            skip=given["skip_dataset_yaml"],
            sample_type=given["sample_type"],
            field_map=parse_field_map(given["field_map"]) if given["field_map"] is not None else {},
            part_filter=tuple(given["part_filter"].split(",")) if given["part_filter"] else (),
        ),
        exclude=given["exclude"],
        media=_media(given),
        media_only=given["media_only"],
        index_only=given["tar_index_only"],
        errors=ErrorOptions(
            on_error=given["on_error"],
            max_errors=number_or_share(given["max_errors"])
            if given["max_errors"] is not None
            else defaults.errors.max_errors,
        ),
        duplicates=given["duplicates"] or defaults.duplicates,
        workers=given["workers"],
        overwrite=given["overwrite"],
        restart=given["restart"],
    )


def _split_part(text: str) -> tuple[str, str]:
    name, colon, pattern = text.partition(":")
    if not colon:
        raise ConfigError(f"--split-parts {text!r}: write NAME:REGEX, as 'train:shards/train-.*'")
    return name, pattern


def _media(given: dict[str, Any]) -> MediaFilter | None:
    from headrace.preparing.energon import MediaFilter

    glob = given["media_metadata_by_glob"]
    wanted = [
        MediaFilter(strategy="GLOB", patterns=tuple(pattern.strip() for pattern in glob.split(","))) if glob else None,
        MediaFilter(strategy="EXTENSION") if given["media_metadata_by_extension"] else None,
        MediaFilter(strategy="HEADER") if given["media_metadata_by_header"] else None,
    ]
    found = [media for media in wanted if media is not None]
    if len(found) > 1:
        raise ConfigError(
            "--media-metadata-by-extension, -by-header and -by-glob exclude each other: use only one of them"
        )
    return found[0] if found else None


def _spelled(name: str) -> str:
    return f"--{_TERSE.get(name, name).replace('_', '-')}"


_CRUDE = "CrudeWebdataset"
_MAX_PARTS = 10


def ask(path: Path, options: EnergonOptions) -> EnergonOptions:
    """Ask for the split and the sample type where they are missing, and return the completed options.

    Raises:
        HeadraceError: the folder cannot be read, or it holds no tars.
    """
    import msgspec

    from headrace.preparing.energon.options import check_options
    from headrace.preparing.energon.scanning import find_shards, peek
    from headrace.stores.energon.splits import find_splits

    if not path.is_dir() or options.index_only or options.media_only:
        return options
    check_options(options)
    asks_split = not options.split.ratio and not options.split.parts and find_splits(path) is None
    choice = options.dataset
    asks_type = choice.sample_type is None and not choice.skip and not (path / ".nv-meta" / choice.name).exists()
    if not asks_split and not asks_type:
        return options
    tars = find_shards(path, options.exclude, refuse_compressed=True, on_notice=click.echo)
    names = [tar.name for tar in tars]
    click.echo(f"{path}: {plural(len(names), 'tar')}, from {names[0]} to {names[-1]}; --exclude REGEX leaves some out")
    if asks_split:
        ratio = _ask_ratio()
        options = msgspec.structs.replace(options, split=msgspec.structs.replace(options.split, ratio=ratio))
    if asks_type:
        found = peek(path, names)
        if found is not None:
            _show(found)
        name, field_map = _ask_type(found)
        dataset = msgspec.structs.replace(choice, skip=name is None, sample_type=name, field_map=field_map)
        options = msgspec.structs.replace(options, dataset=dataset)
    return options


def _ask_ratio() -> tuple[float, ...]:
    while True:
        text = click.prompt("Shares of train, val and test, as 8,1,1 (--split-ratio)", type=str)
        try:
            ratio = parse_shares(text)
        except ConfigError as error:
            click.echo(str(error))
            continue
        if len(ratio) == 3 and all(share >= 0 for share in ratio) and sum(ratio) > 0:
            return ratio
        click.echo("Write three numbers, each 0 or more and not all of them 0.")


def _show(found: Peek) -> None:
    for key, parts, content in found.samples:
        click.echo(f"{found.shard}: sample {key!r} has {', '.join(parts)}")
        if content is not None:
            click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    more = " and more" if len(found.parts) > _MAX_PARTS else ""
    click.echo(f"Parts of this shard: {', '.join(found.parts[:_MAX_PARTS])}{more}")


def _ask_type(found: Peek | None) -> tuple[str | None, dict[str, str]]:
    """Ask for the sample type and the field map; the type is None if no ``dataset.yaml`` is wanted."""
    from headrace.samples.media.registry import SAMPLE_TYPES

    if not click.confirm("Write a dataset.yaml, which names the sample type? (--skip-dataset-yaml)", default=True):
        return None, {}
    names = [_CRUDE, *SAMPLE_TYPES]
    for number, name in enumerate(names):
        click.echo(f"{number:3}. {name}" + (" (parts as they are, for a cooker)" if name == _CRUDE else ""))
    chosen = click.prompt(
        "Number of the sample type (--sample-type)", type=click.IntRange(0, len(names) - 1), default=0
    )
    name = names[chosen]
    return name, {} if name == _CRUDE else _ask_fields(name, found)


def _ask_fields(name: str, found: Peek | None) -> dict[str, str]:
    from headrace.samples.media.field_map import parse_field, sources_of
    from headrace.samples.media.registry import SAMPLE_TYPES

    click.echo(
        "For each field write the part that it comes from: jpg, json[caption][0], or jpg,png for either (--field-map)"
    )
    field_map: dict[str, str] = {}
    for field in dataclasses.fields(SAMPLE_TYPES[name]):
        if field.name.startswith("__"):
            continue
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        while True:
            note = "" if is_needed else ", empty for none"
            text = click.prompt(
                f"{field.name} ({field.type}{note})", default=None if is_needed else "", show_default=False
            )
            if not text:
                break
            try:
                parts = sources_of({field.name: parse_field(text, field.name)})[field.name]
            except ConfigError as error:
                click.echo(str(error))
                continue
            missing = [part for part in parts if found is not None and part not in found.parts]
            if not missing or click.confirm(f"{', '.join(missing)}: no such part in this shard; use it anyway?"):
                field_map[field.name] = text
                break
    return field_map
