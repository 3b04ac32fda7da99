"""What the caller may choose about preparing text, and the defaults, in one place."""

from __future__ import annotations

import msgspec

from headrace.errors import ConfigError


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_text`; the only place that owns their defaults.

    Neither ``workers`` nor ``task_bytes`` changes a byte of the output, so the manifest keeps neither.
    """

    text_field: str = "text"
    """The field of each record that holds the document's text."""

    append_eod: bool = False
    """Append the end-of-document token to every document that has tokens, as Megatron's ``preprocess_data.py``."""

    eod: str | int | None = None
    """The end-of-document token or its id; None takes the only usual one that the tokeniser has."""

    workers: int | None = None
    """Number of worker processes; None takes the number of usable cores."""

    task_bytes: int | None = None
    """Bytes of input a task; None takes 1 to 16 MiB, by the size of the whole input."""

    overwrite: bool = False
    """Replace what an earlier run wrote to the same folder, once the new output is complete."""


def check_options(options: TextOptions) -> None:
    """Refuse options that contradict each other or cannot be.

    Raises:
        ConfigError: with what was found and what is allowed.
    """
    if not options.text_field:
        raise ConfigError("text_field is empty: name the field of each record that holds the text")
    if options.eod is not None and not options.append_eod:
        raise ConfigError(f"eod is {options.eod!r}, but nothing is appended: say --append-eod as well, or drop --eod")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"workers is {options.workers}: at least 1 is needed")
    if options.task_bytes is not None and options.task_bytes < 1:
        raise ConfigError(f"task_bytes is {options.task_bytes}: at least 1 is needed")
