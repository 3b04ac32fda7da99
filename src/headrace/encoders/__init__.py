"""Task encoders: the user's hooks that cook, encode, pack, group and batch samples, and the code that calls them.

sample --[cook]--> [encode | preencode] --> 0..n outputs        EncoderPipeline.encode
outputs --select_samples_to_pack--> [postencode] --> pack       EncoderPipeline.select, pack
outputs or packs --batch_group_criterion--> key, size           EncoderPipeline.group
outputs or packs --batch--> [encode_batch] --> batches          EncoderPipeline.batch

    stateless         what a hook promises: that it can be called again, and which random numbers it draws
    SavedGenerators   the global random generators, seeded for a call and restored afterwards
    ErrorPolicy       which faults of a sample are raised, and which are resolved by another sample

The names that users of Energon import with their task encoders are here too: samples, batches, cookers. A pipeline
knows neither stores nor order; the datasets call it with a key and a position. Nothing here imports torch.

May import: samples, plan, io, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.encoders.faults import (
        ErrorPolicy,
        Fault,
        FaultLog,
        FaultReport,
        is_of_sample,
        read_fault_report,
    )
    from headrace.encoders.pipeline import EncoderPipeline, HookFailure, Selection
    from headrace.encoders.task_encoder import (
        AugmentTaskEncoder,
        DefaultTaskEncoder,
        Hook,
        TaskEncoder,
        bound_cookers,
        checked_encoder,
        get_failure_tolerance,
        get_stateless,
        hook_of,
        stateless,
    )
    from headrace.errors import SkipSample
    from headrace.plan.keys import CallKey
    from headrace.samples.media import (
        Batch,
        CaptioningSample,
        Cooker,
        CrudeSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        Sample,
        SampleDecoder,
        SimilarityInterleavedSample,
        SourceInfo,
        TextSample,
        VidQASample,
        VQASample,
        basic_sample_keys,
        cooker,
        generic_batch,
    )
    from headrace.samples.media import pad_stack as batch_pad_stack
    from headrace.samples.media import sample_type as edataclass
    from headrace.samples.media.batch import batch_list, batch_stack

_HOMES = {
    "AugmentTaskEncoder": "headrace.encoders.task_encoder",
    "Batch": "headrace.samples.media",
    "CallKey": "headrace.plan.keys",
    "CaptioningSample": "headrace.samples.media",
    "Cooker": "headrace.samples.media",
    "CrudeSample": "headrace.samples.media",
    "DefaultTaskEncoder": "headrace.encoders.task_encoder",
    "EncoderPipeline": "headrace.encoders.pipeline",
    "ErrorPolicy": "headrace.encoders.faults",
    "Fault": "headrace.encoders.faults",
    "FaultLog": "headrace.encoders.faults",
    "FaultReport": "headrace.encoders.faults",
    "Hook": "headrace.encoders.task_encoder",
    "HookFailure": "headrace.encoders.pipeline",
    "ImageClassificationSample": "headrace.samples.media",
    "ImageSample": "headrace.samples.media",
    "InterleavedSample": "headrace.samples.media",
    "MultiChoiceVQASample": "headrace.samples.media",
    "OCRSample": "headrace.samples.media",
    "Sample": "headrace.samples.media",
    "SampleDecoder": "headrace.samples.media",
    "Selection": "headrace.encoders.pipeline",
    "SimilarityInterleavedSample": "headrace.samples.media",
    "SkipSample": "headrace.errors",
    "SourceInfo": "headrace.samples.media",
    "TaskEncoder": "headrace.encoders.task_encoder",
    "TextSample": "headrace.samples.media",
    "VQASample": "headrace.samples.media",
    "VidQASample": "headrace.samples.media",
    "basic_sample_keys": "headrace.samples.media",
    "batch_list": "headrace.samples.media.batch",
    "batch_pad_stack": "headrace.samples.media:pad_stack",
    "batch_stack": "headrace.samples.media.batch",
    "bound_cookers": "headrace.encoders.task_encoder",
    "checked_encoder": "headrace.encoders.task_encoder",
    "cooker": "headrace.samples.media",
    "edataclass": "headrace.samples.media:sample_type",
    "generic_batch": "headrace.samples.media",
    "get_failure_tolerance": "headrace.encoders.task_encoder",
    "get_stateless": "headrace.encoders.task_encoder",
    "hook_of": "headrace.encoders.task_encoder",
    "is_of_sample": "headrace.encoders.faults",
    "read_fault_report": "headrace.encoders.faults",
    "stateless": "headrace.encoders.task_encoder",
}

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "CallKey",
    "CaptioningSample",
    "Cooker",
    "CrudeSample",
    "DefaultTaskEncoder",
    "EncoderPipeline",
    "ErrorPolicy",
    "Fault",
    "FaultLog",
    "FaultReport",
    "Hook",
    "HookFailure",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SampleDecoder",
    "Selection",
    "SimilarityInterleavedSample",
    "SkipSample",
    "SourceInfo",
    "TaskEncoder",
    "TextSample",
    "VQASample",
    "VidQASample",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "bound_cookers",
    "checked_encoder",
    "cooker",
    "edataclass",
    "generic_batch",
    "get_failure_tolerance",
    "get_stateless",
    "hook_of",
    "is_of_sample",
    "read_fault_report",
    "stateless",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
