"""JSON documents that people may read: their bytes, indented, and values as they are after writing and reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.io import atomic_write, check_local


def json_bytes(value: Any, *, indent: int = 2, order: Literal["sorted"] | None = None) -> bytes:
    """Return a value as an indented JSON document with a line break at its end; ``order`` sorts the keys."""
    return msgspec.json.format(msgspec.json.encode(value, order=order), indent=indent) + b"\n"


def as_read_back(value: Any) -> Any:
    """Return a value as it is after writing it as JSON and reading it again: dicts, lists, texts, numbers and None."""
    return msgspec.json.decode(msgspec.json.encode(value))


def write_json_file(path: str | os.PathLike[str], value: Any, *, indent: int = 2) -> None:
    """Write a value as an indented JSON document.

    Raises:
        OutputError: the system reports an error; an older file of this name is unchanged.
    """
    check_local(path)
    atomic_write(Path(path), json_bytes(value, indent=indent))
