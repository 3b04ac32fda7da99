"""The questions of ``headrace prepare PATH`` on a terminal; an option answers each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.figures import plural
from headrace.cli.prepare_shards import parse_shares
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.prepare.energon import EnergonOptions
    from headrace.prepare.energon.scanning import Peek

_CRUDE = "CrudeWebdataset"
_MAX_PARTS = 10


def ask(path: Path, options: EnergonOptions) -> EnergonOptions:
    """The options, with what was missing of them asked for.

    Raises:
        HeadraceError: the folder cannot be read, or holds no tars.
    """
    import msgspec

    from headrace.prepare.energon.options import check_options
    from headrace.prepare.energon.scanning import find_shards, peek
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
        click.echo("Three numbers are needed, 0 or more, not all 0.")


def _show(found: Peek) -> None:
    for key, parts, content in found.samples:
        click.echo(f"{found.shard}: sample {key!r} has {', '.join(parts)}")
        if content is not None:
            click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    more = " and more" if len(found.parts) > _MAX_PARTS else ""
    click.echo(f"Parts of this shard: {', '.join(found.parts[:_MAX_PARTS])}{more}")


def _ask_type(found: Peek | None) -> tuple[str | None, dict[str, str]]:
    """Sample type, None for no ``dataset.yaml``, and field map."""
    from headrace.samples.media.registry import SAMPLE_TYPES

    if not click.confirm("Write a dataset.yaml, which says what samples are? (--skip-dataset-yaml)", default=True):
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
        "For each field, the part that it comes from: jpg, or json[caption][0], or jpg,png for either (--field-map)"
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
            if not missing or click.confirm(f"{', '.join(missing)}: no such part in this shard; is it right?"):
                field_map[field.name] = text
                break
    return field_map
