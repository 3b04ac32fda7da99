"""One record -> one sample: layouts, chat templates, loss masks, recipes. No files but a tokeniser's own, no torch.

    record (a dict from JSON Lines, Parquet, Arrow)
      -> layouts        which layout it is          -> Conversation | Preference | Prompt | Group | Text
      -> templates      Conversation                -> Rendered: the whole text, once, in a sandbox
      -> masking        Rendered and a tokeniser    -> ids, loss mask, the evidence for each token
      -> recipe         what is asked for           -> a maker: records -> arrays a key, or why a record was dropped

    raw parts of a multi-modal dataset -> headrace.samples.media: decoders, field maps, cookers -> a sample

    from headrace.samples.templates import ChatTemplate
    ChatTemplate.load("chatml").render([{"role": "user", "content": "Hi"}]).text

May import: errors, plan.
"""

from __future__ import annotations

from headrace.samples.conversation import Completion, Conversation, Group, Message, Preference, Prompt, Text, TrainSpan

__all__ = [
    "Completion",
    "Conversation",
    "Group",
    "Message",
    "Preference",
    "Prompt",
    "Text",
    "TrainSpan",
]
