"""The batch of a task encoder as a loader takes it: name -> array or list."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.datasets.media.collating import STACKED
from headrace.encoders.mapping import fields_of
from headrace.errors import ConfigError


def columns_of(batch: Any, encoder: str) -> dict[str, Any]:
    """The fields of a dict, a dataclass or a named tuple; arrays of which tensors cannot be made become lists.

    Raises:
        ConfigError: it is none of them.
    """
    try:
        found = fields_of(batch)
    except ConfigError as error:
        raise ConfigError(
            f"the batch that {encoder} gave is not one for a loader, which hands out fields: {error}"
        ) from None
    return {name: _column(value) for name, value in found.items()}


def _column(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.char not in STACKED:
        return list(value)
    # Tensors have the byte order of the machine.
    return value.astype(value.dtype.newbyteorder("="), copy=False)
