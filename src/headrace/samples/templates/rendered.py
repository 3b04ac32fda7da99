"""What a template made of a conversation."""

from __future__ import annotations

import msgspec


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The whole text of a conversation.

    ``generation_spans``: ``[begin, end)`` in characters of ``text``, one for each ``{% generation %}`` block that was
    rendered, in order; ``has_generation``: the template has such blocks at all.

    ``message_begins``: where each message begins in ``text``, of templates that are known to write one after another,
    whatever follows (`one_by_one`): what stands before message ``i`` is what the messages before it alone become, less
    what closes a text. 0 for a first message that the template writes apart. Empty for all other templates.
    """

    text: str
    generation_spans: tuple[tuple[int, int], ...] = ()
    has_generation: bool = False
    message_begins: tuple[int, ...] = ()
