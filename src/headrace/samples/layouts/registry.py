"""All layouts, by name."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.samples.layouts.alpaca import AlpacaLayout
from headrace.samples.layouts.chat import ConversationsLayout, MessagesLayout
from headrace.samples.layouts.completion import CompletionLayout, KtoLayout, ResponseLayout
from headrace.samples.layouts.fields import nearest
from headrace.samples.layouts.group import GroupLayout
from headrace.samples.layouts.layout import Layout, LayoutOptions
from headrace.samples.layouts.preference import PreferenceLayout
from headrace.samples.layouts.prompt import PromptLayout
from headrace.samples.layouts.ranked import (
    ArgillaLayout,
    IntelLayout,
    RankedAlpacaLayout,
    RankedLayout,
    RankedMessagesLayout,
)
from headrace.samples.layouts.text import TextLayout

_ALL: tuple[type[Layout], ...] = (
    MessagesLayout,
    ConversationsLayout,
    TextLayout,
    CompletionLayout,
    ResponseLayout,
    AlpacaLayout,
    KtoLayout,
    PreferenceLayout,
    IntelLayout,
    ArgillaLayout,
    RankedAlpacaLayout,
    RankedLayout,
    RankedMessagesLayout,
    PromptLayout,
    GroupLayout,
)

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in _ALL}
"""Every layout by its name."""


SAID = {
    "sharegpt": "conversations",
    "openai": "messages",
    "chat": "messages",
    "chatml": "messages",
    "chat_template": "messages",
    "dpo": "preference",
    "grpo": "group",
    "pretraining": "text",
}
"""What other tools call some of them."""


def make_layout(name: str, options: LayoutOptions | None = None) -> Layout:
    """The layout of this name, or of one that another tool has for it.

    Raises:
        ConfigError: there is none.
    """
    said = SAID.get(name.lower(), name)
    if said not in LAYOUTS:
        near = nearest(name.lower(), [*LAYOUTS, *SAID])
        raise ConfigError(f"layout {name!r} is unknown{near}; allowed are {', '.join(LAYOUTS)}, auto and each")
    return LAYOUTS[said](options)
