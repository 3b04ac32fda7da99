"""What the writers of one file with several keys check: the keys they are made for, and those of each block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError, InputError
from headrace.stores.keyed_layout import check_key, key_dtype


def checked_keys(
    path: Path, dtypes: Mapping[str, DTypeLike], values: Collection[str]
) -> tuple[dict[str, np.dtype[Any]], frozenset[str]]:
    """The dtype of each key, and the keys that hold no ids of a vocabulary.

    Raises:
        ConfigError: no keys, a name that cannot be a key, a dtype that is not known, or values of no such key.
    """
    if not dtypes:
        raise ConfigError(f"{path}: dtypes names no key; a store has at least one")
    for key in dtypes:
        check_key(key)
    known = {key: key_dtype(dtype) for key, dtype in dtypes.items()}
    if unknown := frozenset(values) - known.keys():
        raise ConfigError(f"{path}: values names {sorted(unknown)}; the keys are {', '.join(known)}")
    return known, frozenset(values)


def check_given(path: Path, keys: Collection[str], **given: Mapping[str, object]) -> None:
    """Raise InputError unless each of the arguments, by its name, has exactly the keys of the writer."""
    for name, found in given.items():
        if found.keys() != set(keys):
            raise InputError(
                f"{path}: {name} were given for the keys {', '.join(map(repr, found))}, the writer has"
                f" {', '.join(map(repr, keys))}"
            )
