"""Small names of Energon's that public code imports."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any, Final, Self

import numpy as np
import torch

from headrace.plan.energon import seed_from_args
from headrace.samples.media.sample import pinned

MAIN_FOLDER_NAME: Final = ".nv-meta"
INFO_JSON_FILENAME: Final = ".info.json"
INDEX_SQLITE_FILENAME: Final = "index.sqlite"

FlexState = dict
"""The state of a dataset is a dict."""

SavableDataLoaderState = dict
"""The state of a loader is a dict that JSON can hold."""


class PinMemoryMixin:
    """Gives a batch the method ``pin_memory``, which torch's ``DataLoader`` calls."""

    def pin_memory(self) -> Self:
        """Return the same batch with all tensors in page-locked memory."""
        return pinned(self)


class MediaFilterStrategy(StrEnum):
    """How media are chosen: by extension, by their first bytes, or by patterns of names."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


class SystemRng:
    """The global generators of ``random``, NumPy and torch together."""

    @staticmethod
    def seed(seed: int) -> None:
        """Seed all three."""
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 -- the global generator is what is meant
        random.seed(seed)

    @staticmethod
    def save_state() -> tuple[Any, Any, Any]:
        """The states of all three."""
        return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    @staticmethod
    def restore_state(state: tuple[Any, Any, Any]) -> None:
        """Take over states of `save_state`."""
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])

    @staticmethod
    def get_seed_from_args(*args: Any) -> int:
        """A seed that follows from values; see `headrace.plan.energon.seed_from_args`."""
        return seed_from_args(*args)
