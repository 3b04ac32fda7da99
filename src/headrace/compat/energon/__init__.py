"""The names that programs import from ``megatron.energon``: change the import line, and a loader runs.

    get_train_dataset(path, ...)  --> EnergonDataset --get_savable_loader--> EnergonLoader --> batches of this rank
    get_val_dataset(path, ...)    --> (samples and order)                     save_state_rank(), restore_state_rank()

    passes       LimitDataset, RepeatDataset                 how many batches of a validation come
    wrappers     BlendDataset, PackingDataset, ...           framed sources and mixes of datasets of Headrace
    factories    DefaultDecoderWebdatasetFactory, ...        the base of a user's class that a dataset.yaml names
    named        CaptioningWebdataset, CrudeWebdataset, ...  the samples at a path, for a Run or a DataLoader

The order is that of `headrace.Run`, so a state is a position: under 1 KB, the same on every rank, and valid for any
number of ranks and workers. Only ``order="energon"`` is Energon's own order, which is bound to ranks and workers.
Batches are what the task encoder makes; ``as_columns`` makes them dicts, as those of `headrace.Loader`. A task encoder
that groups, packs, or makes zero or several outputs of a sample needs a framed run. Then a state holds the lanes that a
rank serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.compat.energon.caching import FileCacheLazy, FileStoreCachePool
    from headrace.compat.energon.dataset import EnergonDataset
    from headrace.compat.energon.factories import (
        MAIN_FOLDER_NAME,
        BaseWebdatasetFactory,
        DefaultDecoderWebdatasetFactory,
        EPath,
        prepare_metadataset,
    )
    from headrace.compat.energon.getting import (
        get_loader,
        get_savable_loader,
        get_train_dataset,
        get_val_dataset,
        get_val_datasets,
    )
    from headrace.compat.energon.loader import EnergonLoader
    from headrace.compat.energon.loader import EnergonLoader as SavableDataLoader
    from headrace.compat.energon.named import (
        BaseCoreDataset,
        BaseWebdataset,
        CaptioningWebdataset,
        CrudeWebdataset,
        DefaultDecoderWebdataset,
        DefaultGenericWebdataset,
        ImageClassificationWebdataset,
        ImageWebdataset,
        InterleavedWebdataset,
        MultiChoiceVQAWebdataset,
        OCRWebdataset,
        SimilarityInterleavedWebdataset,
        TextWebdataset,
        VidQAWebdataset,
        VQAOCRWebdataset,
        VQAWebdataset,
    )
    from headrace.compat.energon.passes import LimitDataset, RepeatDataset
    from headrace.compat.energon.transforms import CustomTransform, MergeTransform
    from headrace.compat.energon.workers import WorkerConfig, log_exception, reraise_exception
    from headrace.compat.energon.wrappers import (
        BlendDataset,
        FilterDataset,
        GroupBatchDataset,
        IterMapDataset,
        MixBatchDataset,
        PackingDataset,
        ShuffleBufferDataset,
    )
    from headrace.datasets import Concat as ConcatDataset
    from headrace.datasets import MapDataset
    from headrace.datasets.media import (
        CachePool,
        DecodeFileStore,
        FileStore,
        Lazy,
        NoCachePool,
        PrimaryFileStore,
        SystemFileStore,
        WebdatasetFileStore,
    )
    from headrace.datasets.metadataset import Metadataset, load_dataset, traverse_metadataset
    from headrace.datasets.metadataset import Metadataset as MetadatasetV2
    from headrace.encoders import (
        AugmentTaskEncoder,
        Batch,
        CaptioningSample,
        Cooker,
        CrudeSample,
        DefaultTaskEncoder,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        Sample,
        SampleDecoder,
        SimilarityInterleavedSample,
        SkipSample,
        SourceInfo,
        TaskEncoder,
        TextSample,
        VidQASample,
        VQASample,
        basic_sample_keys,
        batch_list,
        batch_pad_stack,
        batch_stack,
        cooker,
        edataclass,
        generic_batch,
        get_failure_tolerance,
        get_stateless,
        stateless,
    )
    from headrace.samples.media import (
        AVData,
        AVDecoder,
        AVMetadata,
        ImageMetadata,
        VQAOCRSample,
        get_clips_uniform,
        get_single_frames_uniform,
    )
    from headrace.samples.media import AVData as VideoData
    from headrace.samples.media import SampleDecoder as FileStoreDecoder

_HOMES = homes(
    {
        "headrace.compat.energon.caching": "FileCacheLazy FileStoreCachePool",
        "headrace.compat.energon.dataset": "EnergonDataset",
        "headrace.compat.energon.factories": "BaseWebdatasetFactory DefaultDecoderWebdatasetFactory EPath "
        "MAIN_FOLDER_NAME prepare_metadataset",
        "headrace.compat.energon.getting": "get_loader get_savable_loader get_train_dataset get_val_dataset "
        "get_val_datasets",
        "headrace.compat.energon.loader": "EnergonLoader",
        "headrace.compat.energon.named": "BaseCoreDataset BaseWebdataset CaptioningWebdataset CrudeWebdataset "
        "DefaultDecoderWebdataset DefaultGenericWebdataset ImageClassificationWebdataset ImageWebdataset "
        "InterleavedWebdataset MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset "
        "TextWebdataset VidQAWebdataset VQAOCRWebdataset VQAWebdataset",
        "headrace.compat.energon.passes": "LimitDataset RepeatDataset",
        "headrace.compat.energon.transforms": "CustomTransform MergeTransform",
        "headrace.compat.energon.workers": "log_exception reraise_exception WorkerConfig",
        "headrace.compat.energon.wrappers": "BlendDataset FilterDataset GroupBatchDataset IterMapDataset "
        "MixBatchDataset PackingDataset ShuffleBufferDataset",
        "headrace.datasets": "MapDataset",
        "headrace.datasets.media": "CachePool DecodeFileStore FileStore Lazy NoCachePool PrimaryFileStore "
        "SystemFileStore WebdatasetFileStore",
        "headrace.datasets.metadataset": "load_dataset Metadataset traverse_metadataset",
        "headrace.encoders": "AugmentTaskEncoder basic_sample_keys Batch batch_list batch_pad_stack batch_stack "
        "CaptioningSample Cooker cooker CrudeSample DefaultTaskEncoder edataclass generic_batch "
        "get_failure_tolerance get_stateless ImageClassificationSample ImageSample InterleavedSample "
        "MultiChoiceVQASample OCRSample Sample SampleDecoder SimilarityInterleavedSample SkipSample SourceInfo "
        "stateless TaskEncoder TextSample VidQASample VQASample",
        "headrace.samples.media": "AVData AVDecoder AVMetadata get_clips_uniform get_single_frames_uniform "
        "ImageMetadata VQAOCRSample",
    }
) | {
    "ConcatDataset": "headrace.datasets:Concat",
    "FileStoreDecoder": "headrace.samples.media:SampleDecoder",
    "MetadatasetV2": "headrace.datasets.metadataset:Metadataset",
    "SavableDataLoader": "headrace.compat.energon.loader:EnergonLoader",
    "VideoData": "headrace.samples.media:AVData",
}

__all__ = [
    "MAIN_FOLDER_NAME",
    "AVData",
    "AVDecoder",
    "AVMetadata",
    "AugmentTaskEncoder",
    "BaseCoreDataset",
    "BaseWebdataset",
    "BaseWebdatasetFactory",
    "Batch",
    "BlendDataset",
    "CachePool",
    "CaptioningSample",
    "CaptioningWebdataset",
    "ConcatDataset",
    "Cooker",
    "CrudeSample",
    "CrudeWebdataset",
    "CustomTransform",
    "DecodeFileStore",
    "DefaultDecoderWebdataset",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdataset",
    "DefaultTaskEncoder",
    "EPath",
    "EnergonDataset",
    "EnergonLoader",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "FilterDataset",
    "GroupBatchDataset",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageMetadata",
    "ImageSample",
    "ImageWebdataset",
    "InterleavedSample",
    "InterleavedWebdataset",
    "IterMapDataset",
    "Lazy",
    "LimitDataset",
    "MapDataset",
    "MergeTransform",
    "Metadataset",
    "MetadatasetV2",
    "MixBatchDataset",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "NoCachePool",
    "OCRSample",
    "OCRWebdataset",
    "PackingDataset",
    "PrimaryFileStore",
    "RepeatDataset",
    "Sample",
    "SampleDecoder",
    "SavableDataLoader",
    "ShuffleBufferDataset",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "SkipSample",
    "SourceInfo",
    "SystemFileStore",
    "TaskEncoder",
    "TextSample",
    "TextWebdataset",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "VideoData",
    "WebdatasetFileStore",
    "WorkerConfig",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "cooker",
    "edataclass",
    "generic_batch",
    "get_clips_uniform",
    "get_failure_tolerance",
    "get_loader",
    "get_savable_loader",
    "get_single_frames_uniform",
    "get_stateless",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "load_dataset",
    "log_exception",
    "prepare_metadataset",
    "reraise_exception",
    "stateless",
    "traverse_metadataset",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
