"""One line of JSON Lines -> the text of one document."""

from __future__ import annotations

import json
from typing import Any

import msgspec

EXCERPT_BYTES = 60


class BadRecordError(Exception):
    """A line that holds no document; the message says what was found and what to do."""


class RecordReader:
    """Reads the text field of a line; every other field is checked to be JSON and skipped.

    The typed decoder builds no object for the fields it skips (about 1.2 GB/s). What it refuses goes to Python's own
    ``json``, for the better message and because that accepts the ``NaN`` and ``Infinity`` which it also writes.
    """

    def __init__(self, text_field: str) -> None:
        self.text_field = text_field
        record = msgspec.defstruct("Record", [("text", str)], rename={"text": text_field})
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(record)

    def read(self, line: bytes) -> str:
        """The text of the line.

        Raises:
            BadRecordError: not UTF-8, not JSON, no object, or the field is missing or no string.
        """
        try:
            text: str = self._decoder.decode(line).text
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._read_slowly(line)
        return text

    def _read_slowly(self, line: bytes) -> str:
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BadRecordError(bad_utf8(line, error)) from None
        except RecursionError:
            raise BadRecordError(f"JSON nested too deeply; found {excerpt(line)}") from None
        except ValueError as error:
            raise BadRecordError(f"malformed JSON: {error}; found {excerpt(line)}") from None
        if not isinstance(value, dict):
            raise BadRecordError(f"not a JSON object but {_kind(value)}; found {excerpt(line)}")
        if self.text_field not in value:
            names = ", ".join(repr(name) for name in list(value)[:8]) or "none"
            raise BadRecordError(f"no field {self.text_field!r}; its fields are: {names} (choose with --text-field)")
        text = value[self.text_field]
        if not isinstance(text, str):
            raise BadRecordError(f"field {self.text_field!r} is not a string but {_kind(text)}; found {excerpt(line)}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = ord(text[error.start])
            raise BadRecordError(
                f"field {self.text_field!r} is not Unicode text: unpaired surrogate \\u{surrogate:04x} "
                f"at character {error.start:,}"
            ) from None
        return text


def bad_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    """What to say of a line that is not UTF-8."""
    hint = ""
    if line.startswith(b"\x1f\x8b"):
        hint = " (it looks compressed with gzip: decompress it first)"
    elif line.startswith(b"\x28\xb5\x2f\xfd"):
        hint = " (it looks compressed with zstd: decompress it first)"
    elif line.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = " (it looks like UTF-16: convert it to UTF-8)"
    found = line[error.start : error.start + 1].hex()
    near = excerpt(line[max(error.start - 20, 0) :])
    return f"not UTF-8: byte 0x{found} at byte {error.start:,} of the line{hint}; found near it {near}"


def excerpt(line: bytes) -> str:
    """The beginning of a line, short and printable."""
    shown = line[:EXCERPT_BYTES].decode("utf-8", "replace").strip()
    return repr(shown) + ("..." if len(line) > EXCERPT_BYTES else "")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
