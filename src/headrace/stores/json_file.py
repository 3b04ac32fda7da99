"""Writes small JSON documents atomically, indented so that people can read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from headrace.io import atomic_write, check_local


def write_json_file(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as an indented JSON document.

    Raises:
        OutputError: the system reports an error; an older file of this name is unchanged.
    """
    check_local(path)
    atomic_write(Path(path), msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
