from headrace.samples.masking.options import (
    MaskOptions as MaskOptions,
    TextEncoder as TextEncoder,
)
from headrace.samples.masking.pieces import WORDS as WORDS, Region as Region, Why as Why
from headrace.samples.masking.results import (
    Dropped as Dropped,
    DroppedError as DroppedError,
    EncodedText as EncodedText,
    Evidence as Evidence,
    Refused as Refused,
    TokenEvidence as TokenEvidence,
)
from headrace.samples.masking.token_spans import SpanEncoder as SpanEncoder
