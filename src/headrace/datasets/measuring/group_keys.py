"""Keys of groups as they are kept: JSON, one text for each key."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from headrace.errors import ConfigError


def key_text(key: Any) -> str:
    """The key as JSON, tuples as arrays; numbers of NumPy become plain ones.

    Raises:
        ConfigError: it holds something else than strings, numbers, booleans, None, and tuples of them.
    """
    return msgspec.json.encode(_plain(key, key)).decode()


def key_of(text: str) -> Any:
    """The key of a text that `key_text` gave."""
    return _tuples(msgspec.json.decode(text))


def _plain(value: Any, key: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [_plain(one, key) for one in value]
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    raise ConfigError(
        f"batch_group_criterion gave the key {key!r:.80}, in which {value!r:.40} is of type {type(value).__name__}."
        " Measured keys are stored as JSON: give strings, numbers of at most 64 bits, booleans, None, or tuples of them"
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
