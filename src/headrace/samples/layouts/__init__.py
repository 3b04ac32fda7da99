"""Layouts convert a record, however it is written, to one of the samples of `headrace.samples.conversation`.

    {"conversations": [{"from": "human", "value": "Hi"}, ...]}
      -> recognise     finds the layout that all of the first records fit, and says why
      -> make_layout   makes a layout by its name, with the user's names of fields and roles
      -> convert       returns a Conversation, Completion, Preference, Prompt, Group or Text, or raises an InputError

`known` holds all layouts, and `LAYOUTS` lists them.
"""

from __future__ import annotations

from headrace.samples.layouts.fields import without_nulls
from headrace.samples.layouts.known import LAYOUTS, make_layout
from headrace.samples.layouts.layout import Layout, Sample, assistant, cut, join, user, with_messages
from headrace.samples.layouts.recognise import NUM_RECORDS, EachLayout, Recognised, recognise
from headrace.samples.layouts.turns import ALIASES, LayoutOptions

__all__ = [
    "ALIASES",
    "LAYOUTS",
    "NUM_RECORDS",
    "EachLayout",
    "Layout",
    "LayoutOptions",
    "Recognised",
    "Sample",
    "assistant",
    "cut",
    "join",
    "make_layout",
    "recognise",
    "user",
    "with_messages",
    "without_nulls",
]
