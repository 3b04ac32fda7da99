"""What the caller may choose about preparing text, and the defaults, in one place."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.io import safe_relative
from headrace.prepare.backends.backend import SpecialPolicy
from headrace.prepare.filters import FilterSpec, check_filters
from headrace.prepare.sources.block import SampleBy
from headrace.prepare.sources.lines import BLOCK_BYTES

BackendName = Literal["auto", "tokenizers", "gigatoken", "fastokens", "tiktoken"]


class RecordOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of each record becomes a document."""

    fields: tuple[str, ...] = ("text",)
    """The fields that hold text. Several give an output key each, unless they are joined."""

    join: str | None = None
    """Join the fields with this string between them into one text; None keeps them apart."""

    id_field: str | None = None
    """The field that names a record; the ids are then stored beside the documents."""

    sample_by: SampleBy = "document"
    """What of a ``.txt`` file is a document: all of it, each paragraph, or each line."""

    max_record_bytes: int = 64 << 20
    """A longer line, or text, is a bad record. A worker takes up to six times as much memory for the longest."""


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text becomes tokens."""

    append_eod: bool = False
    """Append the end-of-document token to every document that has tokens, as Megatron's ``preprocess_data.py``."""

    eod: str | int | None = None
    """The end-of-document token or its id; None takes the only usual one that the tokeniser has."""

    prepend_bos: bool = False
    """Begin every document that has tokens with the begin-of-sequence token."""

    bos: str | int | None = None
    """That token or its id; None takes the only usual one that the tokeniser has."""

    special_tokens_in_text: SpecialPolicy = "literal"
    """What the text of a special token inside a document becomes: ordinary text, the token, or a bad record."""

    backend: BackendName = "auto"
    """The library that encodes; ``auto`` takes the fastest that is installed and proved equal to ``tokenizers``."""


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written, and in which order."""

    format: Literal["indexed", "keyed", "hdf5", "jsonl"] = "indexed"
    """Megatron's ``.bin`` and ``.idx``, or ``.bin`` and ``meta.json``; HDF5 and JSON lines are for recipes alone."""

    shard_tokens: int | None = 1 << 30
    """A shard ends before the document that would take it over this many tokens, all keys together; None writes one
    shard. A longer document is a shard of its own."""

    shuffle: int | None = None
    """Seed of a uniform shuffle of all documents; None keeps the order of the input."""


class ErrorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a record that cannot be used does to the run."""

    on_error: Literal["stop", "skip"] = "stop"

    max_errors: int | float = 100
    """With ``skip``: the run fails above this many bad records, or, below 1.0 and a float, above this share of all."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_text`; the only place that owns their defaults.

    The groups decide the bytes of the output. What follows them changes no byte, so the manifest does not keep it.
    """

    records: RecordOptions = RecordOptions()
    tokens: TokenOptions = TokenOptions()
    filters: FilterSpec = FilterSpec()
    deduplicate: bool = False
    """Keep only the first of documents with the same text; takes memory by the document, see `duplicates`."""

    output: OutputOptions = OutputOptions()
    errors: ErrorOptions = ErrorOptions()

    workers: int | None = None
    """Number of worker processes; None takes the number of usable cores."""

    task_bytes: int | None = None
    """Bytes of input a task; None takes 0.5 to 16 MiB, by the size of the whole input."""

    overwrite: bool = False
    """Replace what an earlier run wrote to the same folder, once the new output is complete."""

    restart: bool = False
    """Discard what an unfinished run left in the folder, and begin anew."""


def check_options(options: TextOptions) -> None:
    """Refuse options that contradict each other or cannot be.

    Raises:
        ConfigError: with what was found and what is allowed.
    """
    _check_records(options)
    tokens, output = options.tokens, options.output
    if output.format in ("hdf5", "jsonl"):
        name = output.format
        raise ConfigError(f"format is {name}: text is stored as indexed or keyed; {name} is for recipes")
    if tokens.eod is not None and not tokens.append_eod:
        raise ConfigError(f"eod is {tokens.eod!r}, but nothing is appended: say --append-eod as well, or drop --eod")
    if tokens.bos is not None and not tokens.prepend_bos:
        raise ConfigError(f"bos is {tokens.bos!r}, but nothing is prepended: say --prepend-bos as well, or drop --bos")
    check_run(options)


def check_run(options: TextOptions) -> None:
    """What `check_options` says of the options that have nothing to do with texts.

    Raises:
        ConfigError: with what was found and what is allowed.
    """
    check_filters(options.filters)
    output, errors = options.output, options.errors
    if options.records.max_record_bytes < BLOCK_BYTES:
        raise ConfigError(
            f"max_record_bytes is {options.records.max_record_bytes:,}: at least {BLOCK_BYTES:,} are needed; max_chars "
            "drops shorter documents"
        )
    if output.shard_tokens is not None and output.shard_tokens < 1:
        raise ConfigError(f"shard_tokens is {output.shard_tokens}: at least 1 is needed, or --single for one shard")
    if output.shuffle is not None and not 0 <= output.shuffle < 1 << 63:
        raise ConfigError(f"the seed of --shuffle is {output.shuffle}: allowed are 0 to 2^63 - 1")
    if not 0 <= errors.max_errors < math.inf:  # not a number, too
        raise ConfigError(f"max_errors is {errors.max_errors}: it is a number of records, or a share such as 0.001")
    if isinstance(errors.max_errors, float) and errors.max_errors >= 1:
        raise ConfigError(f"max_errors is {errors.max_errors}: a share is below 1; for a number write an integer")
    for name in ("workers", "task_bytes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}: at least 1 is needed")


def _check_records(options: TextOptions) -> None:
    records = options.records
    if not records.fields or not all(records.fields):
        raise ConfigError("a field without a name: name the field of each record that holds the text")
    if len(set(records.fields)) < len(records.fields):
        raise ConfigError(f"a field is named twice: {', '.join(records.fields)}")
    if records.join is not None and len(records.fields) < 2:
        raise ConfigError("--join needs several fields: say --field twice or more")
    if len(output_keys(options)) > 1:
        for field in records.fields:
            try:
                is_plain = "/" not in safe_relative(field)
            except StoreError:
                is_plain = False
            if not is_plain:
                raise ConfigError(
                    f"field {field!r} cannot name an output file; --join makes one text of several fields"
                )


def output_keys(options: TextOptions) -> tuple[str, ...]:
    """The names of the token streams that are written; one alone is called as the programs that read it expect."""
    records = options.records
    if len(records.fields) > 1 and records.join is None:
        return records.fields
    return ("sequence",) if options.output.format == "keyed" else ("text",)
