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

from headrace._lazy import homes, lazily

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

_HOMES = homes(
    {
        "headrace.encoders.faults": "ErrorPolicy Fault FaultLog FaultReport is_of_sample read_fault_report",
        "headrace.encoders.pipeline": "EncoderPipeline HookFailure Selection",
        "headrace.encoders.task_encoder": "AugmentTaskEncoder bound_cookers checked_encoder DefaultTaskEncoder "
        "get_failure_tolerance get_stateless Hook hook_of stateless TaskEncoder",
        "headrace.errors": "SkipSample",
        "headrace.plan.keys": "CallKey",
        "headrace.samples.media": "basic_sample_keys Batch CaptioningSample Cooker cooker CrudeSample generic_batch "
        "ImageClassificationSample ImageSample InterleavedSample MultiChoiceVQASample OCRSample Sample "
        "SampleDecoder SimilarityInterleavedSample SourceInfo TextSample VidQASample VQASample",
        "headrace.samples.media.batch": "batch_list batch_stack",
    }
) | {
    "batch_pad_stack": "headrace.samples.media:pad_stack",
    "edataclass": "headrace.samples.media:sample_type",
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
