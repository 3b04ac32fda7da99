"""Datasets of multi-modal samples: a store of named parts, read, decoded and cooked batch by batch. No torch.

SampleStore --read, only the parts needed--> SampleMapper --> sample, or crude --Cooker--> sample
several, by a join index -----------------> one sample each --joiner--> sample
FileStore: other files by name, for cookers; CachePool hands them out, NoCachePool reads them when they are used
samples --collate--> name -> array or list, for Run and Loader
"""

from __future__ import annotations

from headrace.datasets.media.dataset import MediaDataset
from headrace.datasets.media.face import SampleDataset, collated
from headrace.datasets.media.file_stores import (
    CachePool,
    DecodeFileStore,
    FileStore,
    JsonlFileStore,
    Lazy,
    NoCachePool,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    file_store,
)
from headrace.datasets.media.joined import JoinedMediaDataset

__all__ = [
    "CachePool",
    "DecodeFileStore",
    "FileStore",
    "JoinedMediaDataset",
    "JsonlFileStore",
    "Lazy",
    "MediaDataset",
    "NoCachePool",
    "PrimaryFileStore",
    "SampleDataset",
    "SystemFileStore",
    "WebdatasetFileStore",
    "collated",
    "file_store",
]
