"""Megatron's datasets under Megatron's names: the same samples in the same order, without its index files.

    prefix.bin, .idx --> GPTDataset --> GPTBlend --> Run(..., order=Order(kind="none")), or CyclicDataset around it
                         GPTFIMDataset: fill in the middle; MockGPTDataset: data without files
    export_cache(dataset) --> the index files that Megatron looks for
    IndexedDataset, IndexedDatasetBuilder: read and write a pair of files sequence by sequence

The order itself is arithmetic, and lives in `headrace.plan.megatron`. This room does not import torch.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
