"""Chat templates: a conversation -> its whole text, as Hugging Face renders it, in a sandbox that ends.

    folder, file, suite -- load --> TemplateSetup (text, special tokens, time: all that decides, for another process)
                                      -> ChatTemplate, compiled once
                                         sandbox -- one_by_one: does it write one message after another?
                                         limited: in a process with bounds, where it is not of our suite
    Conversation -- plain --> dicts -- compiled --> Rendered (text, generation spans, where messages begin)

    template = ChatTemplate.load("path/of/a/tokeniser")       # or "chat_template.jinja", or "qwen3-generation"
    template.render(messages, tools=tools).text

``suite_names()`` lists the templates that come with Headrace; ``find(name)`` says what each wants and how it behaves.
The only files read are those of a tokeniser's folder, and the suite.
"""

from __future__ import annotations

from headrace.samples.templates.chat_template import ChatTemplate
from headrace.samples.templates.compiled import TemplateSetup
from headrace.samples.templates.load import special_tokens
from headrace.samples.templates.messages import Rendered
from headrace.samples.templates.suite import Family, SuiteTemplate, find, suite_names

__all__ = [
    "ChatTemplate",
    "Family",
    "Rendered",
    "SuiteTemplate",
    "TemplateSetup",
    "find",
    "special_tokens",
    "suite_names",
]
