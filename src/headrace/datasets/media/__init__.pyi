from headrace.datasets.media.dataset import MediaDataset as MediaDataset
from headrace.datasets.media.face import SampleDataset as SampleDataset, collated as collated
from headrace.datasets.media.file_stores import (
    CachePool as CachePool,
    DecodeFileStore as DecodeFileStore,
    FileStore as FileStore,
    JsonlFileStore as JsonlFileStore,
    Lazy as Lazy,
    NoCachePool as NoCachePool,
    PrimaryFileStore as PrimaryFileStore,
    SystemFileStore as SystemFileStore,
    WebdatasetFileStore as WebdatasetFileStore,
    file_store as file_store,
)
from headrace.datasets.media.joined import JoinedMediaDataset as JoinedMediaDataset
