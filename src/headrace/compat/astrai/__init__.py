"""AstrAI's datasets, sampler and storage under its own names, for programs that were written against it.

    DatasetFactory.load("sft", path, window_size)    a `BaseDataset` of one of four training types
    StreamWindows                                    AstrAI's windows as a `headrace.Dataset`
    DatasetFactory.load(..., tokenizer_path=)        texts, tokenised in memory by `TokenizeTransform`
    dpo_collate_fn, grpo_collate_fn                  batches of records
    ResumableDistributedSampler                      the order of indices of each rank; RDSampler is its newer name
    detect_format(path) -> "h5" | "bin" | "jsonl"
    StoreFactory.create("bin") -> MmapStore -> load(path) -> fetch(begin, end, keys), fetch_record(i, keys)
    save_h5, load_h5, save_bin, load_bin             write and read whole files of tensors

Each key is read by a store of `headrace.stores`. New programs use `headrace.open` instead. Results are torch tensors,
as AstrAI's are; torch is imported when the first one is made.
"""

from headrace.compat.astrai.collating import dpo_collate_fn, grpo_collate_fn
from headrace.compat.astrai.factory import (
    BaseDataset,
    DatasetFactory,
    DPODataset,
    GRPODataset,
    SeqDataset,
    SFTWindows,
    StreamWindows,
    load_dataset,
)
from headrace.compat.astrai.sampler import ResumableDistributedSampler
from headrace.compat.astrai.stores import (
    H5Store,
    JsonlStore,
    MmapStore,
    Store,
    StoreFactory,
    detect_format,
    load_bin,
    load_h5,
    save_bin,
    save_h5,
)
from headrace.compat.astrai.transform import PreferenceProcessor, TokenizeTransform

# Two of AstrAI's names are those of our own classes elsewhere, and the sampler has been renamed.
SEQDataset = SeqDataset
SFTDataset = SFTWindows
RDSampler = ResumableDistributedSampler

__all__ = [
    "BaseDataset",
    "DPODataset",
    "DatasetFactory",
    "GRPODataset",
    "H5Store",
    "JsonlStore",
    "MmapStore",
    "PreferenceProcessor",
    "RDSampler",
    "ResumableDistributedSampler",
    "SEQDataset",
    "SFTDataset",
    "Store",
    "StoreFactory",
    "StreamWindows",
    "TokenizeTransform",
    "detect_format",
    "dpo_collate_fn",
    "grpo_collate_fn",
    "load_bin",
    "load_dataset",
    "load_h5",
    "save_bin",
    "save_h5",
]
