"""``headrace cat``: describe one sample of a dataset, or write the bytes of one part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from headrace import inspect
from headrace.cli.command import Command, json_option, part_options, print_json, print_report, write_file
from headrace.errors import ConfigError, OutputError
from headrace.inspect.figures import size

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
    options = inspect.SampleOptions(split_part=split_part, split_config=split_config, dataset_config=dataset_config)
    with inspect.need_samples(path, options) as store:
        number, part = inspect.find_part(store, name)
        if part is not None and not as_json:
            _write(inspect.read_part(store, number, part), name, output, force=force)
            return
        if output is not None:
            raise ConfigError(f"--output {output} is for the bytes of one part: write KEY.PART, and leave out --json")
        sample = inspect.look_at_sample(store, number, part, max_chars=MAX_CHARS)
    if as_json:
        print_json(sample.shown)
    else:
        print_report([inspect.parts_heading(sample.shown), *inspect.parts_lines(sample, None)])


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
