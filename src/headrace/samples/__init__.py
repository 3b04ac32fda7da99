"""Turn one record into one sample: layouts, chat templates, loss masks, recipes and media.

    record (a dict from JSON Lines, Parquet or Arrow)
      -> layouts        recognise its layout        -> Conversation | Preference | Prompt | Group | Text
      -> templates      render a Conversation       -> Rendered: the whole text, in a sandbox
      -> masking        Rendered and a tokeniser    -> ids, loss mask, the evidence for each token
      -> recipe         describe the whole task     -> a maker: records -> arrays by key, or the reason for a drop

    raw parts of a multi-modal dataset -> headrace.samples.media: decoders, field maps, cookers -> a sample

    from headrace.samples.templates import ChatTemplate
    ChatTemplate.load("chatml").render([{"role": "user", "content": "Hi"}]).text

The room reads no files except those of a tokeniser and does not need torch. May import: errors, plan, io.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
