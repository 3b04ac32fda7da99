"""``continue_final_message``: the text ends where the final message ends, so that a model goes on with it."""

from __future__ import annotations

from typing import Any

from headrace.errors import InputError
from headrace.samples.templates.plain import REASONING

_MARK = "HEADRACE_CUTS_THE_TEXT_HERE "
"""Put after the final message and looked for in the text; the space at its end tells whether the template trims."""


def mark_final(messages: list[dict[str, Any]], field: str, template: str) -> str:
    """Mark the end of ``field`` in the last message, in place; returns the text that goes on.

    Raises :class:`InputError` where the message has no such text, or the template does not read that field.
    """
    final = messages[-1]
    content = final.get(field)
    if content is None:
        raise InputError(f"the final message has no {field!r} to continue; it has {', '.join(map(repr, final))}")
    fields = [field]
    if field in REASONING:
        fields = [name for name in REASONING if final.get(name) == content]
    if not any(name in template for name in fields):
        raise InputError(f"the template reads no {field!r}, so that a message cannot be continued there")
    if isinstance(content, list | tuple):
        for part in reversed(content):
            if isinstance(part, dict) and "text" in part:
                text = part["text"]
                part["text"] = _marked(text, field)
                return str(text)
        raise InputError("the parts of the final message hold no text to continue")
    for name in fields:
        final[name] = _marked(content, name)
    return str(content)


def cut_at_mark(text: str, final: str) -> str:
    """The text up to the mark. Raises :class:`InputError` where the template has left out or changed the message."""
    mark = _MARK.strip()
    if final.strip() not in text or mark not in text:
        raise InputError(
            "the final message does not stand in the rendered text as it is, and cannot be continued: the template "
            f"leaves out or changes parts of {final.strip()!r:.80}"
        )
    place = text.rindex(mark)
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()


def _marked(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{field!r} of the final message is a {type(text).__name__}; text is needed to continue it")
    return text + _MARK
