"""``messages`` and ``conversations``: a conversation, each message an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.layouts.layout import Layout


class MessagesLayout(Layout):
    """``{"messages": [{"role": "user", "content": "..."}, ...]}``, as OpenAI, TRL and others write it."""

    name = "messages"
    says = "messages: a conversation of messages with role and content"
    makes = Conversation
    required = ("messages",)
    optional = ("system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether it is a list of messages."""
        return self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """See `Layout.convert`."""
        [field] = self.required
        conversation = self.messages(record, field)
        if not conversation.messages:
            raise InputError(f"field {self.fields.name(field)!r} is an empty list: a conversation has messages")
        return self.complete(record, conversation)


class ConversationsLayout(MessagesLayout):
    """``{"conversations": [{"from": "human", "value": "..."}, ...]}``, as ShareGPT; role and content too."""

    name = "conversations"
    says = "conversations: a conversation of messages with from and value (ShareGPT), or role and content"
    required = ("conversations",)
