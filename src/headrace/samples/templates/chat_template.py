"""`ChatTemplate` renders a conversation to its whole text, like Hugging Face's ``apply_chat_template``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Conversation
from headrace.samples.templates.limited import LimitedTemplate
from headrace.samples.templates.load import load_setup
from headrace.samples.templates.messages import (
    Rendered,
    TemplateSetup,
    cut_at_mark,
    mark_final,
    plain,
    plain_dicts,
    plain_messages,
)
from headrace.samples.templates.sandbox import CompiledTemplate
from headrace.samples.templates.suite import find

_RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))
"""Names that a record's template arguments cannot have; ``documents`` is allowed."""


class ChatTemplate:
    """A compiled chat template.

    Make one with :meth:`load` from a tokeniser's folder, a file or our suite, or from a :class:`TemplateSetup`, which
    can be passed to another process. Compiling takes some milliseconds, rendering some tens of microseconds for each
    conversation. A template that is not of our suite is rendered in a separate process, which takes a tenth of a second
    to start and has bounds of time and memory; exceeding one is a :class:`ConfigError`.

    Raises:
        ConfigError: If the template cannot be compiled.

    Example:
        >>> from headrace.samples.templates import ChatTemplate
        >>> template = ChatTemplate.load("chatml-generation")
        >>> rendered = template.render([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])
        >>> [rendered.text[begin:end] for begin, end in rendered.generation_spans]
        ['Hello!<|im_end|>']
    """

    def __init__(self, setup: TemplateSetup) -> None:
        if setup.now is None and setup.asks_for_time:
            setup = msgspec.structs.replace(setup, now=datetime.now())
        self.setup = setup
        self._default = _compiled(setup, setup.text, setup.name)
        self._tool_use = None if setup.tool_use is None else _compiled(setup, setup.tool_use, "tool_use")

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        name: str | None = None,
        tokenizer: str | PathLike[str] | None = None,
        now: datetime | None = None,
    ) -> ChatTemplate:
        """Load the template of a tokeniser's folder, of a ``.jinja`` file, or of our suite (``"chatml"``).

        In a folder, ``chat_template.jinja`` and ``additional_chat_templates/*.jinja`` win over
        ``tokenizer_config.json``, and that over ``chat_template.json``, as in transformers 5. ``source`` says which
        file was used.

        Args:
            path: A folder, a file, or a name of the suite.
            name: Which template of a folder; None is the default one, and ``tool_use`` if there are tools.
            tokenizer: The folder whose special tokens are used; None is the folder that holds the file, or the family's
                tokens for a template of our suite.
            now: The time for templates that print the date; None is the current time.

        Raises:
            ConfigError: If there is no such template.
            InputError: If a file cannot be read.
        """
        setup = load_setup(path, name=name, tokenizer=tokenizer)
        return cls(msgspec.structs.replace(setup, now=now))

    @classmethod
    def from_text(
        cls, text: str, *, special_tokens: Mapping[str, str] | None = None, now: datetime | None = None
    ) -> ChatTemplate:
        """Make a template from its Jinja source."""
        return cls(TemplateSetup(text=text, special_tokens=dict(special_tokens or {}), now=now))

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[TemplateSetup]]:
        return ChatTemplate, (self.setup,)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.source!r}, name={self.setup.name!r}, has_generation={self.has_generation})"

    @property
    def source(self) -> str:
        """The file from which the template was loaded, or ``suite:NAME``."""
        return self.setup.source

    @property
    def special_tokens(self) -> dict[str, str]:
        """``bos_token``, ``eos_token``, ... as the template sees them."""
        return self.setup.special_tokens

    @property
    def end_of_turn(self) -> str | None:
        """The text that ends an assistant's turn, if it is known: for templates of our suite."""
        return self.setup.end_of_turn

    @property
    def has_generation(self) -> bool:
        """Whether the template has ``{% generation %}`` blocks (the default one, if there are two)."""
        return self._default.has_generation

    @property
    def arguments(self) -> tuple[tuple[str, Any], ...]:
        """Names and values of further arguments that may change the text, as the sources show them."""
        both = [*self._default.arguments, *(self._tool_use.arguments if self._tool_use is not None else ())]
        return tuple(one for one in both if one[0] not in self.special_tokens and one[0] not in _RESERVED)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """Render the whole text of the conversation, with the positions of its generation blocks.

        Args:
            messages: The messages, at least one.
            tools: JSON schemas of tools.
            documents: Documents as dicts.
            add_generation_prompt: End the text with the beginning of an assistant's turn.
            continue_final_message: End the text with the last message's content (or the named field), without the end
                of the turn.
            template_kwargs: Further variables of the template; they win over special tokens.

        Raises:
            InputError: If the template refuses the conversation or fails on it; the message names the template, the
                line and the reason.
            ConfigError: If both ``add_generation_prompt`` and ``continue_final_message`` are set.
            RenderLimitError: If rendering exceeds its bounds of time or memory.
        """
        if template_kwargs:
            _check_names(template_kwargs)
        if add_generation_prompt and continue_final_message:
            raise ConfigError(
                "add_generation_prompt begins a new message, continue_final_message continues the last: choose one"
            )
        template = self._template_for(tools)
        variables = _variables(messages, tools, documents, template_kwargs, prompt=add_generation_prompt)
        if not continue_final_message:
            return _rendered(template, variables)
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        final = mark_final(variables["messages"], field, template.text)
        text = cut_at_mark(_rendered(template, variables).text, final)
        # Generation spans are left out: a message that is to be continued is not a training example.
        return Rendered(text=text, has_generation=template.has_generation)

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> CompiledTemplate | LimitedTemplate:
        return self._default if tools is None or self._tool_use is None else self._tool_use

    def render_ahead(self, wanted: Iterable[tuple[Conversation, bool]]) -> None:
        """Render conversations together, which `render` will be asked for next: that takes less time.

        Each comes with whether it will also be asked for the text before each answer, with and without the generation
        prompt, and for the text up to its end. What became of them is kept until this is called again. Errors are left
        to `render`.
        """
        by_template: dict[LimitedTemplate, list[tuple[Conversation, bool]]] = {}
        for one in wanted:
            template = self._template_for(one[0].tools)
            if isinstance(template, LimitedTemplate):
                by_template.setdefault(template, []).append(one)
        for template, own in by_template.items():
            template.render_ahead(_variables_of(own))

    def render_conversation(self, conversation: Conversation, *, add_generation_prompt: bool = False) -> Rendered:
        """Render a conversation with its own tools and template arguments; see :meth:`render`."""
        _check_names(conversation.template_kwargs)
        return self.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=add_generation_prompt,
            **conversation.template_kwargs,
        )


def _compiled(setup: TemplateSetup, text: str, name: str) -> CompiledTemplate | LimitedTemplate:
    """Compile a text of our suite for this process, any other for the helper process, which has bounds."""
    ours = find(setup.name)
    return (CompiledTemplate if ours is not None and ours.text == text else LimitedTemplate)(setup, text, name)


def _variables(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    documents: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    *,
    prompt: bool,
) -> dict[str, Any]:
    """Return what a template sees: new plain values in a fixed order, so that equal values give equal bytes."""
    variables: dict[str, Any] = plain(kwargs) if kwargs else {}
    variables["messages"] = plain_messages(messages)
    variables["tools"] = plain_dicts(tools, "tools")
    variables["documents"] = plain_dicts(documents, "documents")
    variables["add_generation_prompt"] = prompt
    return variables


def _variables_of(wanted: Iterable[tuple[Conversation, bool]]) -> Iterator[dict[str, Any]]:
    for one, with_turns in wanted:
        with contextlib.suppress(InputError):
            whole = _variables(one.messages, one.tools, None, one.template_kwargs, prompt=False)
            yield whole
            for number, message in enumerate(whole["messages"] if with_turns else ()):
                if number and message.get("role") == "assistant":
                    before, after = ({**whole, "messages": whole["messages"][: number + i]} for i in (0, 1))
                    yield from (before, {**before, "add_generation_prompt": True}, after)


def _rendered(template: CompiledTemplate | LimitedTemplate, variables: dict[str, Any]) -> Rendered:
    """Render as transformers does, but for a template that would write the word None, or null, for a null content.

    Such a template, and one that fails on null, sees no content in its place.
    """
    messages = variables["messages"]
    if all(message.get("content", "") is not None for message in messages):
        return template.render(variables)
    with contextlib.suppress(InputError):
        rendered = template.render(variables)
        words = [word for word in ("None", "null") if word in rendered.text]
        if not words:
            return rendered
        empty = [{**one, "content": ""} if one.get("content", "") is None else one for one in messages]
        other = template.render({**variables, "messages": empty})
        # Calls may be written only beside a content that is null, and have these words in their arguments.
        called = [one for one in map(_present, messages) if "content" not in one]
        more = f"{called}{json.dumps(called, default=str)}"
        if all(rendered.text.count(word) <= other.text.count(word) + more.count(word) for word in words):
            return rendered
    return template.render({**variables, "messages": list(map(_present, messages))})


def _present(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


def _check_names(template_kwargs: Mapping[str, Any]) -> None:
    taken = _RESERVED & template_kwargs.keys()
    if taken:
        raise InputError(
            f"the template arguments hold {', '.join(sorted(taken))}, which are reserved for the record itself: rename "
            "or remove them"
        )
