"""Names of files that are no text, made writable."""

from __future__ import annotations

from typing import Any


def writable(value: Any) -> Any:
    """Plain data with bytes of names that are no UTF-8 (and half characters of JSON) written as ``\\udcff``."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return [writable(item) for item in value] if isinstance(value, list | tuple) else value
