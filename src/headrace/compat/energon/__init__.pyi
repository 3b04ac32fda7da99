from headrace.compat.energon.caching import FileCacheLazy as FileCacheLazy, FileStoreCachePool as FileStoreCachePool
from headrace.compat.energon.dataset import EnergonDataset as EnergonDataset
from headrace.compat.energon.factories import (
    MAIN_FOLDER_NAME as MAIN_FOLDER_NAME,
    BaseWebdatasetFactory as BaseWebdatasetFactory,
    DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory,
    EPath as EPath,
    prepare_metadataset as prepare_metadataset,
)
from headrace.compat.energon.getting import (
    LimitDataset as LimitDataset,
    RepeatDataset as RepeatDataset,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_val_datasets as get_val_datasets,
)
from headrace.compat.energon.loader import EnergonLoader as EnergonLoader
from headrace.compat.energon.named import (
    BaseCoreDataset as BaseCoreDataset,
    BaseWebdataset as BaseWebdataset,
    CaptioningWebdataset as CaptioningWebdataset,
    CrudeWebdataset as CrudeWebdataset,
    DefaultDecoderWebdataset as DefaultDecoderWebdataset,
    DefaultGenericWebdataset as DefaultGenericWebdataset,
    ImageClassificationWebdataset as ImageClassificationWebdataset,
    ImageWebdataset as ImageWebdataset,
    InterleavedWebdataset as InterleavedWebdataset,
    MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset,
    OCRWebdataset as OCRWebdataset,
    SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset,
    TextWebdataset as TextWebdataset,
    VidQAWebdataset as VidQAWebdataset,
    VQAOCRWebdataset as VQAOCRWebdataset,
    VQAWebdataset as VQAWebdataset,
)
from headrace.compat.energon.workers import (
    WorkerConfig as WorkerConfig,
    log_exception as log_exception,
    reraise_exception as reraise_exception,
)
from headrace.compat.energon.wrappers import (
    BlendDataset as BlendDataset,
    CustomTransform as CustomTransform,
    FilterDataset as FilterDataset,
    GroupBatchDataset as GroupBatchDataset,
    IterMapDataset as IterMapDataset,
    MergeTransform as MergeTransform,
    MixBatchDataset as MixBatchDataset,
    PackingDataset as PackingDataset,
    ShuffleBufferDataset as ShuffleBufferDataset,
)
from headrace.datasets import Concat, MapDataset as MapDataset
from headrace.datasets.media import (
    CachePool as CachePool,
    DecodeFileStore as DecodeFileStore,
    FileStore as FileStore,
    Lazy as Lazy,
    NoCachePool as NoCachePool,
    PrimaryFileStore as PrimaryFileStore,
    SystemFileStore as SystemFileStore,
    WebdatasetFileStore as WebdatasetFileStore,
)
from headrace.datasets.metadataset import (
    Metadataset as Metadataset,
    load_dataset as load_dataset,
    traverse_metadataset as traverse_metadataset,
)
from headrace.encoders import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    Batch as Batch,
    CaptioningSample as CaptioningSample,
    Cooker as Cooker,
    CrudeSample as CrudeSample,
    DefaultTaskEncoder as DefaultTaskEncoder,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    Sample as Sample,
    SampleDecoder as SampleDecoder,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    SkipSample as SkipSample,
    SourceInfo as SourceInfo,
    TaskEncoder as TaskEncoder,
    TextSample as TextSample,
    VidQASample as VidQASample,
    VQASample as VQASample,
    basic_sample_keys as basic_sample_keys,
    batch_list as batch_list,
    batch_pad_stack as batch_pad_stack,
    batch_stack as batch_stack,
    cooker as cooker,
    edataclass as edataclass,
    generic_batch as generic_batch,
    get_failure_tolerance as get_failure_tolerance,
    get_stateless as get_stateless,
    stateless as stateless,
)
from headrace.samples.media import (
    AVData as AVData,
    AVDecoder as AVDecoder,
    AVMetadata as AVMetadata,
    ImageMetadata as ImageMetadata,
    VQAOCRSample as VQAOCRSample,
    get_clips_uniform as get_clips_uniform,
    get_single_frames_uniform as get_single_frames_uniform,
)

SavableDataLoader = EnergonLoader
ConcatDataset = Concat
MetadatasetV2 = Metadataset
FileStoreDecoder = SampleDecoder
VideoData = AVData
