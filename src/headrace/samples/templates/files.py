"""The few files that templates come from, read with errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import InputError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, or an empty one where there is no such file.

    Raises :class:`InputError` where it cannot be read, or is no object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: it is no JSON object: {error}") from error


def read_text(path: Path) -> str:
    """The text in ``path``, UTF-8, every line ended by ``\\n``. Raises :class:`InputError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8; templates are UTF-8 text") from error
