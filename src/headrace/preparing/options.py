"""The options of preparing text and records, their defaults, and the checks that refuse invalid ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.config import Positive, check_fields
from headrace.errors import ConfigError, StoreError
from headrace.io import safe_relative
from headrace.preparing.backends.reference import SpecialPolicy
from headrace.preparing.filters import FilterSpec, check_filters
from headrace.preparing.sources.source_file import SampleBy
from headrace.preparing.sources.streams import BLOCK_BYTES

BackendName = Literal["auto", "tokenizers", "fastokens"]


class RecordOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of each record becomes a document.

    Example:
        >>> records = headrace.preparing.RecordOptions(fields=("title", "text"), join=": ")
        >>> headrace.preparing.PrepareOptions(records=records).records.join
        ': '
    """

    fields: tuple[str, ...] = ("text",)
    """The fields that hold text. Each of several fields is written under its own key, unless they are joined."""

    join: str | None = None
    """Join the fields into one text, with this string between them; None keeps them apart."""

    id_field: str | None = None
    """The field that names a record; the ids are then stored beside the documents."""

    sample_by: SampleBy = "document"
    """What a document of a ``.txt`` file is: the whole file, each paragraph, or each line."""

    max_record_bytes: int = 64 << 20
    """A longer line, or text, is a bad record. A worker uses up to six times as much memory for the longest record."""


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text becomes tokens.

    Example:
        >>> tokens = headrace.preparing.TokenOptions(append_eod=True, eod="</s>")
        >>> headrace.preparing.PrepareOptions(tokens=tokens).tokens.append_eod
        True
    """

    append_eod: bool = False
    """Append the end-of-document token to every document that has tokens, as Megatron's ``preprocess_data.py`` does."""

    eod: str | int | None = None
    """The end-of-document token or its id; None uses the only token of the vocabulary with a usual name."""

    bos: str | int = "never"
    """The begin-of-sequence token of every document that has tokens and does not begin with it. ``never`` adds none,
    as Megatron; ``auto`` what the tokeniser itself begins a text with, by its post-processor or ``add_bos_token``;
    ``always`` that, or else the only token of the vocabulary with a usual name; a token or an id adds this one."""

    special_tokens_in_text: SpecialPolicy = "literal"
    """What becomes of the text of a special token inside a document: ``literal`` makes it ordinary text, ``encode``
    the token, ``error`` a bad record."""

    backend: BackendName = "auto"
    """The library that encodes; ``auto`` is ``fastokens`` if it is installed and proved equal to ``tokenizers``."""


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written.

    Example:
        >>> output = headrace.preparing.OutputOptions(shard_tokens=1_000_000)
        >>> headrace.preparing.PrepareOptions(output=output).output.format
        'indexed'
    """

    format: Literal["indexed", "keyed", "hdf5", "jsonl"] = "indexed"
    """``indexed`` is Megatron's ``.bin`` and ``.idx``, ``keyed`` is ``.bin`` and ``meta.json``. ``hdf5`` and ``jsonl``
    (JSON lines) are for recipes alone."""

    shard_tokens: Positive | None = 1 << 30
    """A shard ends before the document that would bring it above this many tokens, all keys together; None writes one
    shard. A longer document is a shard of its own."""


class ErrorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run does about a record that it cannot use.

    Example:
        >>> errors = headrace.preparing.ErrorOptions(on_error="skip", max_errors=0.001)
        >>> headrace.preparing.PrepareOptions(errors=errors).errors.on_error
        'skip'
    """

    on_error: Literal["stop", "skip"] = "stop"
    """``stop`` ends the run at the first bad record, ``skip`` leaves bad records out and lists them."""

    max_errors: int | float = 100
    """The run fails if ``skip`` leaves out more records than this: a number as an int, a share of all records as a
    float below 1.0."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run works, whatever it prepares. These options change no byte of the output; no manifest keeps them."""

    workers: Positive | None = None
    """Number of worker processes; None uses the number of cores that this process may run on."""

    overwrite: bool = False
    """Replace what an earlier run wrote to the same folder, once the new output is complete."""

    restart: bool = False
    """Discard what an unfinished run left in the folder, and start over."""


class PrepareOptions(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare` for text and recipes; the only place that owns their defaults.

    The groups (``records`` to ``errors``) and ``deduplicate`` decide the bytes of the output, and the manifest keeps
    them. The other options change no byte, so the manifest does not keep them. What a recipe decides itself cannot be
    given with one, as ``records.fields``; see `headrace.preparing.recipes.with_options`.

    Example:
        >>> output = headrace.preparing.OutputOptions(format="keyed")
        >>> options = headrace.preparing.PrepareOptions(output=output, deduplicate=True, workers=1)
        >>> manifest = headrace.prepare("data/*.jsonl", "texts", tokenizer="tokenizer.json", options=options)
        >>> manifest.outputs[0].format
        'keyed'
    """

    deduplicate: bool = False
    """Keep only the first of several documents with the same text, or in a recipe with the same stored values of all
    keys. Tasks find the duplicates, each among the hashes of a range, which takes about 120 MB of memory."""

    task_bytes: Positive | None = None
    """Bytes of input in a task; None chooses a 2048th of the whole input, from 1 to 256 MiB."""

    records: RecordOptions = RecordOptions()
    tokens: TokenOptions = TokenOptions()
    filters: FilterSpec = FilterSpec()
    output: OutputOptions = OutputOptions()
    errors: ErrorOptions = ErrorOptions()


def check_text_options(options: PrepareOptions) -> None:
    """Refuse options for text that contradict each other or are out of range.

    Raises:
        ConfigError: an option is not valid; the message says what was found and what is allowed.
    """
    _check_records(options)
    tokens, output = options.tokens, options.output
    if output.format in ("hdf5", "jsonl"):
        raise ConfigError(f"format is {output.format}: text is indexed or keyed; only recipes can write hdf5 and jsonl")
    if tokens.eod is not None and not tokens.append_eod:
        raise ConfigError(f"eod is {tokens.eod!r}, but nothing is appended: give --append-eod as well, or drop --eod")
    check_options(options)


def check_options(options: PrepareOptions) -> None:
    """Check the options that text and recipes share, as `check_text_options` does.

    Raises:
        ConfigError: an option is not valid; the message says what was found and what is allowed.
    """
    check_filters(options.filters)
    check_run(options, options.errors)
    check_fields(options.output)
    check_record_bytes(options.records.max_record_bytes)


def check_run(options: RunOptions, errors: ErrorOptions, *, what: str = "records") -> None:
    """Raise ConfigError unless the options that all runs have are in range; ``what`` names what may be bad."""
    check_fields(options)
    if not 0 <= errors.max_errors < (1 if isinstance(errors.max_errors, float) else math.inf):  # refuses NaN, too
        raise ConfigError(
            f"max_errors is {errors.max_errors}: allowed are a number of {what}, or a share below 1 such as 0.001"
        )


def check_record_bytes(max_record_bytes: int) -> None:
    """Raise ConfigError if the longest record would be shorter than a block."""
    if max_record_bytes < BLOCK_BYTES:
        raise ConfigError(f"max_record_bytes is {max_record_bytes:,}: it must be at least {BLOCK_BYTES:,}")


SPLIT_NAMES = ("train", "val", "test")


def check_shares(ratio: Sequence[float]) -> None:
    """Raise ConfigError unless these are shares of train, val and test; no shares are right, too."""
    if ratio and (len(ratio) > len(SPLIT_NAMES) or not all(0 <= share < 1e15 for share in ratio) or not sum(ratio)):
        raise ConfigError(f"the split ratio is {ratio}: give the shares of train, val and test, as 8,1,1")


def _check_records(options: PrepareOptions) -> None:
    records = options.records
    if not records.fields or not all(records.fields):
        raise ConfigError("a field has no name: name the field of each record that holds the text")
    if len(set(records.fields)) < len(records.fields):
        raise ConfigError(f"a field is named twice: {', '.join(records.fields)}")
    if records.join is not None and len(records.fields) < 2:
        raise ConfigError("--join needs several fields: give --field twice or more")
    if len(output_keys(options)) > 1:
        for field in records.fields:
            try:
                is_plain = "/" not in safe_relative(field)
            except StoreError:
                is_plain = False
            if not is_plain:
                raise ConfigError(
                    f"field {field!r} cannot name an output file; --join makes one text out of several fields"
                )


def output_keys(options: PrepareOptions) -> tuple[str, ...]:
    """The keys that are written. A single key has the name that the programs which read the format expect."""
    records = options.records
    if len(records.fields) > 1 and records.join is None:
        return records.fields
    return ("sequence",) if options.output.format == "keyed" else ("text",)
