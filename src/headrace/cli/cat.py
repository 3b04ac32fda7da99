"""``headrace cat``: describe one sample of a dataset, or write the bytes of one part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from headrace.cli.command import Command, json_option, part_options, print_json, print_report
from headrace.errors import ConfigError, OutputError
from headrace.inspect.figures import size

if TYPE_CHECKING:
    from headrace.stores.sample_store import SampleStore

MAX_CHARS = 1 << 20


@click.command(cls=Command, name="cat", short_help="Describe a sample, or write a part of it.")
@click.argument("path", metavar="DATASET")
@click.argument("name", metavar="KEY[.PART]")
@part_options
@click.option("--output", "-o", metavar="FILE", help="Write the bytes to FILE instead of standard output.")
@click.option(
    "--force", is_flag=True, help="Replace FILE if it exists; write bytes to a terminal even if they are not text."
)
@json_option
def command(
    path: str, name: str, split_part: str | None, split_config: str | None, dataset_config: str | None,
    output: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the bytes of the part KEY.PART, such as cats/0017.jpg, unchanged; for a KEY, describe all its parts.

    DATASET is any dataset that headrace ls reads. With --json parts are printed as JSON: text and values decoded,
    other parts as sizes and facts.
    """
    from headrace.inspect.samples import SampleOptions, need_samples

    options = SampleOptions(split_part=split_part, split_config=split_config, dataset_config=dataset_config)
    with need_samples(path, options) as store:
        number, part = locate(store, name)
        if part is not None and not as_json:
            data = _bytes(store, number, part)
            _write(data, name, output, force=force)
            return
        if output is not None:
            raise ConfigError(f"--output {output} is for the bytes of one part: write KEY.PART, and leave out --json")
        _describe(store, number, part, as_json=as_json)


def locate(store: SampleStore, name: str) -> tuple[int, str | None]:
    """Find the sample and the part that ``KEY.PART`` names, or the sample that ``KEY`` names.

    Raises:
        ConfigError: there is no such sample, or it has no such part; the message names the parts that it has.
    """
    from headrace.stores.tar.names import sample_part

    split = sample_part(name)
    # Keys may contain dots, so the whole name is looked up first.
    for key, part in ((name, None),) if split is None else ((name, None), split):
        try:
            number = store.find(key)
        except KeyError:
            continue
        if part is not None:
            parts = list(_parts(store, number))
            if part not in parts:
                raise ConfigError(f"{store.path}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}")
        return number, part
    key = name if split is None else split[0]
    raise ConfigError(f"{store.path}: has no sample {key!r}; headrace ls lists the keys")


def _parts(store: SampleStore, number: int) -> dict[str, int]:
    from headrace.inspect.sample_description import part_sizes

    return part_sizes(store, number)


def _bytes(store: SampleStore, number: int, part: str) -> bytes:
    import numpy as np

    return store.read(np.array([number]), (part,))[0].parts[part]


def _write(data: bytes, name: str, output: str | None, *, force: bool) -> None:
    if output is not None:
        from headrace.io import atomic_write

        if Path(output).exists() and not force:
            raise OutputError(f"{output}: the file exists; give another name, or --force to replace it")
        atomic_write(output, data)
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


def _describe(store: SampleStore, number: int, part: str | None, *, as_json: bool) -> None:
    import numpy as np

    from headrace.inspect.sample_lines import sample_heading, sample_lines
    from headrace.inspect.sample_preview import field_map_of
    from headrace.inspect.samples import PartViewer, look_at

    raw = store.read(np.array([number]), None if part is None else (part,))[0]
    fields = field_map_of(store) if part is None else None
    sample = look_at(raw, number, fields, PartViewer(max_chars=MAX_CHARS, pictures=False))
    if as_json:
        print_json(sample.shown)
    else:
        print_report([sample_heading(sample.shown), *sample_lines(sample, None)])
