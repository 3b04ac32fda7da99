"""Multi-modal samples: types, field maps, decoders and cookers. Codecs are imported when they are first used.

    raw parts {"jpg": b"...", "txt": b"..."}
      -> mapper         a field map says which part, and what within it, becomes which field
      -> decoding       SampleDecoder decodes bytes to an image, text, an AVDecoder or arrays
                        SampleMapper does both                        -> Sample, or CrudeSample
      -> cooking        the user's function cooks crude samples       -> Sample
      -> batch          Batch.from_samples pads and stacks samples    -> Batch

The room knows no files and no stores. May import: headrace.errors.
"""

from __future__ import annotations

from headrace.samples.media.batch import Batch, generic_batch, pad_stack
from headrace.samples.media.cooking import Cooker, basic_sample_keys, choose_cooker, cooker
from headrace.samples.media.decoding import SampleDecoder
from headrace.samples.media.decoding.av_decoder import (
    AVData,
    AVDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)
from headrace.samples.media.mapper import SampleMapper, parse_field_map, parts_of, sources_of
from headrace.samples.media.metadata import AVMetadata, ImageMetadata, MediaFacts, media_facts
from headrace.samples.media.registry import SAMPLE_TYPES, load_function, resolve_sample_type
from headrace.samples.media.sample import CrudeSample, Sample, SourceInfo, add_sources, sample_type
from headrace.samples.media.types import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)

__all__ = [
    "SAMPLE_TYPES",
    "AVData",
    "AVDecoder",
    "AVMetadata",
    "Batch",
    "CaptioningSample",
    "Cooker",
    "CrudeSample",
    "ImageClassificationSample",
    "ImageMetadata",
    "ImageSample",
    "InterleavedSample",
    "MediaFacts",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SampleDecoder",
    "SampleMapper",
    "SimilarityInterleavedSample",
    "SourceInfo",
    "TextSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "add_sources",
    "basic_sample_keys",
    "choose_cooker",
    "cooker",
    "generic_batch",
    "get_clips_uniform",
    "get_single_frames_uniform",
    "load_function",
    "media_facts",
    "pad_stack",
    "parse_field_map",
    "parts_of",
    "resolve_sample_type",
    "sample_type",
    "sources_of",
]
