"""A conversation -> ids and a loss mask that is proved: header out, end of turn in, every assistant's turn.

Conversation
  -> renders       the whole text, once; its beginnings; with a stand-in for a content
  -> turns         where each turn is: the template's own order, generation tags, or prefixes compared with the whole
  -> pieces        header, reasoning, content, end of turn, after: trained or not, and why
  -> marking       policies: unstable templates, missing ends                       -> texts with trained characters
  -> token_spans   text -> ids, whole, and the bytes of each token
  -> token_masks   trained characters and spans of tokens -> one byte a token, a batch at once
  -> masker        checks, truncation, counts                                       -> MaskedBatch

masker = Masker(ChatTemplate.load("chatml"), tokenizer_json)
[sample] = masker.mask(Conversation(messages=[...]))
sample.ids, sample.loss_mask
"""

from __future__ import annotations

from headrace.samples.masking.masker import Masker
from headrace.samples.masking.options import MaskOptions, Template, TextEncoder
from headrace.samples.masking.pieces import WORDS, Region, Why
from headrace.samples.masking.results import (
    Dropped,
    DroppedError,
    Evidence,
    Masked,
    MaskedBatch,
    Refused,
    TokenEvidence,
)
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.masking.truncation import Truncation, truncate

__all__ = [
    "WORDS",
    "Dropped",
    "DroppedError",
    "Evidence",
    "MaskOptions",
    "Masked",
    "MaskedBatch",
    "Masker",
    "Refused",
    "Region",
    "SpanEncoder",
    "Template",
    "TextEncoder",
    "TokenEvidence",
    "Truncation",
    "Why",
    "truncate",
]
