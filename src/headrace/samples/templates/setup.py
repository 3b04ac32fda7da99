"""What a chat template is made of: enough to make it again in another process, or to name it in a manifest."""

from __future__ import annotations

from datetime import datetime

import msgspec
import xxhash

from headrace.samples.templates.sandbox import MAX_CHARS, MAX_STEPS


class TemplateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a template, what it sees besides the messages, and where it came from.

    ``text``             the Jinja source
    ``tool_use``         the source used instead where there are tools, as Hugging Face's template of that name
    ``special_tokens``   ``bos_token``, ``eos_token``, ... as the template sees them
    ``now``              the time that ``strftime_now`` gives, or None where neither source asks for it
    ``name``             of the template: ``default``, or as its folder or our suite calls it
    ``source``           the file, or ``suite:NAME``, or ``text``
    ``end_of_turn``      what ends an assistant's turn, where it is known: for templates of our suite
    """

    text: str
    tool_use: str | None = None
    special_tokens: dict[str, str] = {}
    now: datetime | None = None
    name: str = "default"
    source: str = "text"
    end_of_turn: str | None = None
    max_steps: int = MAX_STEPS
    max_chars: int = MAX_CHARS

    @property
    def asks_for_time(self) -> bool:
        """Whether the text depends on ``now``."""
        return "strftime_now" in self.text or "strftime_now" in (self.tool_use or "")

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides the rendered text: sources, special tokens, the time where it is asked for.

        Where the template came from is no part of it.
        """
        now = self.now.isoformat() if self.now is not None and self.asks_for_time else None
        decides = [self.text, self.tool_use, sorted(self.special_tokens.items()), now]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(decides))
