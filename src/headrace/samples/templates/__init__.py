"""Chat templates render a conversation to its whole text, as Hugging Face does, in a sandbox with bounds.

    folder, file, suite -- load --> TemplateSetup (text, special tokens, time: enough to make it in another process)
                                      -> ChatTemplate, compiled once
                                         sandbox: the environment; does the template write one message after another?
                                         limited: templates that are not of our suite run in a process with bounds
    Conversation -- messages --> plain dicts -- sandbox ---> Rendered (text, generation spans, begins of messages)

    template = ChatTemplate.load("path/of/a/tokeniser")       # or "chat_template.jinja", or "qwen3-generation"
    template.render(messages, tools=tools).text

``suite_names()`` lists the templates that come with Headrace; ``find(name)`` describes one of them. The only files read
are those of a tokeniser's folder and of the suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.samples.templates.chat_template import ChatTemplate
    from headrace.samples.templates.load import special_tokens
    from headrace.samples.templates.messages import Rendered, TemplateSetup
    from headrace.samples.templates.suite import Family, SuiteTemplate, find, suite_names
else:
    # The process that renders starts faster without what only loads templates.
    _HOMES = homes(
        {
            f"{__name__}.chat_template": "ChatTemplate",
            f"{__name__}.load": "special_tokens",
            f"{__name__}.messages": "Rendered TemplateSetup",
            f"{__name__}.suite": "Family SuiteTemplate find suite_names",
        }
    )
    __getattr__, __dir__ = lazily(__name__, _HOMES)

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
