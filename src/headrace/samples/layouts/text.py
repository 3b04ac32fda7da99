"""``text``: a document of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.samples.conversation import Text
from headrace.samples.layouts.layout import Layout


class TextLayout(Layout):
    """``{"text": "..."}``."""

    name = "text"
    says = "text: a document of plain text"
    makes = Text
    required = ("text",)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether it is a string."""
        return self.is_text(record, "text")

    def convert(self, record: Mapping[str, Any]) -> Text:
        """See `Layout.convert`."""
        return Text(text=self.fields.text(record, "text"))
