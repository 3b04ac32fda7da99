from headrace.samples.masking.masker import Masker as Masker
from headrace.samples.masking.options import (
    MaskOptions as MaskOptions,
    Template as Template,
    TextEncoder as TextEncoder,
)
from headrace.samples.masking.pieces import WORDS as WORDS, Region as Region, Why as Why
from headrace.samples.masking.results import (
    Dropped as Dropped,
    DroppedError as DroppedError,
    Evidence as Evidence,
    Masked as Masked,
    MaskedBatch as MaskedBatch,
    Refused as Refused,
    TokenEvidence as TokenEvidence,
)
from headrace.samples.masking.token_spans import SpanEncoder as SpanEncoder
from headrace.samples.masking.truncation import Truncation as Truncation, truncate as truncate
