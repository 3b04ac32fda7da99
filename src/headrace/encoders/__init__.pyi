from headrace.encoders.faults import (
    ErrorPolicy as ErrorPolicy,
    Fault as Fault,
    FaultLog as FaultLog,
    FaultReport as FaultReport,
    is_of_sample as is_of_sample,
    read_fault_report as read_fault_report,
)
from headrace.encoders.pipeline import (
    EncoderPipeline as EncoderPipeline,
    HookFailure as HookFailure,
    Selection as Selection,
)
from headrace.encoders.task_encoder import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    DefaultTaskEncoder as DefaultTaskEncoder,
    Hook as Hook,
    TaskEncoder as TaskEncoder,
    bound_cookers as bound_cookers,
    checked_encoder as checked_encoder,
    get_failure_tolerance as get_failure_tolerance,
    get_stateless as get_stateless,
    hook_of as hook_of,
    stateless as stateless,
)
from headrace.errors import SkipSample as SkipSample
from headrace.plan.keys import CallKey as CallKey
from headrace.samples.media import (
    Batch as Batch,
    CaptioningSample as CaptioningSample,
    Cooker as Cooker,
    CrudeSample as CrudeSample,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    Sample as Sample,
    SampleDecoder as SampleDecoder,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    SourceInfo as SourceInfo,
    TextSample as TextSample,
    VidQASample as VidQASample,
    VQASample as VQASample,
    basic_sample_keys as basic_sample_keys,
    cooker as cooker,
    generic_batch as generic_batch,
    pad_stack,
    sample_type,
)
from headrace.samples.media.batch import batch_list as batch_list, batch_stack as batch_stack

batch_pad_stack = pad_stack
edataclass = sample_type
