"""The names of other systems: their classes, orders and files, for programs that were written against them.

    megatron     GPTDataset, GPTBlend, IndexedDataset, caches, cyclic sampling    Megatron's samples in Megatron's order
    torchtune    PackedDataset                                                    torchtune's class and results
    astrai       DatasetFactory, ResumableDistributedSampler, stores              AstrAI's training types and storage
    energon      get_train_dataset, get_savable_loader, the wrappers, ...         Energon's loader interface

Each module keeps the spelling of the system that it is named after, and documents where it differs. Native code never
imports this room. This room may import every other one except ``cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.compat import astrai as astrai
    from headrace.compat import energon as energon
    from headrace.compat import megatron as megatron
    from headrace.compat import torchtune as torchtune

_HOMES: dict[str, str] = {}

__all__: list[str] = []

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES, ("astrai", "energon", "megatron", "torchtune"))
