from headrace.samples.media.batch import Batch as Batch, generic_batch as generic_batch, pad_stack as pad_stack
from headrace.samples.media.decoding import SampleDecoder as SampleDecoder
from headrace.samples.media.decoding.av_decoder import (
    AVData as AVData,
    AVDecoder as AVDecoder,
    get_clips_uniform as get_clips_uniform,
    get_single_frames_uniform as get_single_frames_uniform,
)
from headrace.samples.media.mapper import (
    SampleMapper as SampleMapper,
    parse_field_map as parse_field_map,
    parts_of as parts_of,
    sources_of as sources_of,
)
from headrace.samples.media.registry import (
    SAMPLE_TYPES as SAMPLE_TYPES,
    Cooker as Cooker,
    basic_sample_keys as basic_sample_keys,
    choose_cooker as choose_cooker,
    cooker as cooker,
    load_function as load_function,
    resolve_sample_type as resolve_sample_type,
)
from headrace.samples.media.sample import (
    AVMetadata as AVMetadata,
    CrudeSample as CrudeSample,
    ImageMetadata as ImageMetadata,
    MediaFacts as MediaFacts,
    Sample as Sample,
    SourceInfo as SourceInfo,
    add_sources as add_sources,
    media_facts as media_facts,
    sample_type as sample_type,
)
from headrace.samples.media.types import (
    CaptioningSample as CaptioningSample,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    TextSample as TextSample,
    VidQASample as VidQASample,
    VQAOCRSample as VQAOCRSample,
    VQASample as VQASample,
)
