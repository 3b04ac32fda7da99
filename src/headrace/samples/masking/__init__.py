"""Encode conversations with loss masks that are proved for each record: without headers, with the ends of turns.

Conversation
  -> renders       renders the whole text once; its beginnings; and with a stand-in for a content
  -> turns         finds each turn: by the template's own order, generation tags, or prefixes compared with the whole
  -> unwritten     finds what the conversation says and the rendering does not show
  -> pieces        decides which messages are trained; divides turns into reasoning, content, end of turn and the rest
  -> marking       applies policies, and checks each turn for other text     -> texts with trained characters
  -> token_spans   encodes whole texts                                       -> ids, and the bytes of each token
  -> encoding      maps trained characters to tokens, a batch at once        -> one byte for each token, checked

`headrace.samples.maker` drives these for the records of a recipe.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
