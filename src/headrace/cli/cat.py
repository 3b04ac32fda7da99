"""``headrace cat``: one sample of a store, or the bytes of one part."""

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


@click.command(cls=Command, name="cat", short_help="Write out a sample, or a part of it.")
@click.argument("path", metavar="DATASET")
@click.argument("name", metavar="KEY[.PART]")
@part_options
@click.option("--output", "-o", metavar="FILE", help="Write the bytes there, and not to standard output.")
@click.option("--force", is_flag=True, help="Replace FILE; write bytes that are no text to a terminal.")
@json_option
def command(
    path: str, name: str, split_part: str | None, split_config: str | None, dataset_config: str | None,
    output: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the bytes of a part, as they lie in the dataset: cats/0017.jpg. Of a KEY alone all parts are described.

    DATASET is what headrace ls takes. With --json parts come as JSON: text and values decoded, of all others sizes and
    facts.
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
            raise ConfigError(f"--output {output}: is for the bytes of one part: write KEY.PART, without --json")
        _describe(store, number, part, as_json=as_json)


def locate(store: SampleStore, name: str) -> tuple[int, str | None]:
    """The sample and the part of ``KEY.PART``, or the sample of ``KEY`` alone.

    Raises:
        ConfigError: there is none; names the parts that the sample has.
    """
    from headrace.stores.tar.names import sample_part

    split = sample_part(name)
    # A store may have keys with dots, so that the whole name comes first where it is no name of a member.
    for key, part in ((name, None),) if split is None else ((name, None), split):
        try:
            number = store.find(key)
        except KeyError:
            continue
        if part is not None:
            there = list(_parts(store, number))
            if part not in there:
                raise ConfigError(f"{store.path}: sample {key!r} has no part {part!r}; it has {', '.join(there)}")
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
            raise OutputError(f"{output}: exists already; give another name, or --force to replace it")
        atomic_write(output, data)
        return
    stream: BinaryIO = sys.stdout.buffer
    if stream.isatty() and not force and not _is_text(data):
        raise ConfigError(
            f"{name}: {size(len(data))} that are no text, and the output is a terminal; write > FILE, --output FILE, or"
            " --force"
        )
    stream.write(data)
    stream.flush()


def _is_text(data: bytes) -> bool:
    """Whether a terminal shows it as it is, and does nothing else."""
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
