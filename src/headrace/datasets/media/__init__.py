"""Datasets of multi-modal samples: a store of named parts, read, decoded and cooked batch by batch. No torch.

SampleStore --read, only the parts needed--> SampleMapper --> sample, or crude --Cooker--> sample
several, by a join index -----------------> one sample each --joiner--> sample
FileStore: other files by name, for cookers; NoCachePool hands them out when they are used
named: datasets under the names of Energon's classes, each with its order and an iterable face
samples --collate--> name -> array or list, for Run and Loader
"""

from __future__ import annotations

from headrace.datasets.media.cache import CachePool, Lazy, NoCachePool
from headrace.datasets.media.collating import collated
from headrace.datasets.media.dataset import MediaDataset
from headrace.datasets.media.face import SampleDataset
from headrace.datasets.media.file_stores import (
    DecodeFileStore,
    FileStore,
    JsonlFileStore,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    file_store,
)
from headrace.datasets.media.joined import JoinedMediaDataset
from headrace.datasets.media.named import (
    BaseCoreDataset,
    BaseWebdataset,
    CaptioningWebdataset,
    CrudeWebdataset,
    DefaultDecoderWebdataset,
    DefaultGenericWebdataset,
    ImageWebdataset,
    OCRWebdataset,
    VQAWebdataset,
)

__all__ = [
    "BaseCoreDataset",
    "BaseWebdataset",
    "CachePool",
    "CaptioningWebdataset",
    "CrudeWebdataset",
    "DecodeFileStore",
    "DefaultDecoderWebdataset",
    "DefaultGenericWebdataset",
    "FileStore",
    "ImageWebdataset",
    "JoinedMediaDataset",
    "JsonlFileStore",
    "Lazy",
    "MediaDataset",
    "NoCachePool",
    "OCRWebdataset",
    "PrimaryFileStore",
    "SampleDataset",
    "SystemFileStore",
    "VQAWebdataset",
    "WebdatasetFileStore",
    "collated",
    "file_store",
]
