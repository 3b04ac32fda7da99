"""The names of other systems: their classes, orders and files, for programs that were written against them.

    megatron     GPTDataset, GPTBlend, IndexedDataset, caches, cyclic sampling    Megatron's samples in Megatron's order
    torchtune    PackedDataset                                                    torchtune's class and results
    astrai       DatasetFactory, ResumableDistributedSampler, stores              AstrAI's training types and storage
    energon      get_train_dataset, get_savable_loader, the wrappers, ...         Energon's loader interface

Each module keeps the spelling of the system that it is named after, and documents where it differs. Native code never
imports this room. This room may import every other one except ``cli``.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
