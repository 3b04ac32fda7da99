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

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
