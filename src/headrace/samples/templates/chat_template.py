"""A conversation -> its whole text, as ``apply_chat_template(tokenize=False)`` of Hugging Face gives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Conversation
from headrace.samples.templates.compiled import CompiledTemplate, TemplateSetup
from headrace.samples.templates.limited import LimitedTemplate
from headrace.samples.templates.load import load_setup
from headrace.samples.templates.messages import Rendered, cut_at_mark, mark_final, plain, plain_dicts, plain_messages
from headrace.samples.templates.suite import find

_RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))
"""What a record's template arguments cannot be called; ``documents`` they may."""


class ChatTemplate:
    """A compiled chat template.

    Made by :meth:`load` from a tokeniser's folder, a file or our suite, or from a :class:`TemplateSetup`, which another
    process can be given. Compiling takes some milliseconds, rendering some tens of microseconds a conversation. A
    template that is not of our suite is rendered in a process of its own, which takes a tenth of a second to start and
    has bounds of time and memory; what exceeds them is a :class:`ConfigError`.

    Raises :class:`ConfigError` where the template cannot be read as one.
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
        """The template of a tokeniser's folder, of a ``.jinja`` file, or of our suite (``"chatml"``).

        ``name``        which of several in a folder; without it the default, and ``tool_use`` where there are tools
        ``tokenizer``   the folder whose special tokens are used; for a file, the one it lies in; for our suite, none
        ``now``         the time for templates that print the date; the current time where it is not given

        In a folder, ``chat_template.jinja`` and ``additional_chat_templates/*.jinja`` win over
        ``tokenizer_config.json`` and that over ``chat_template.json``, as in transformers 5. ``source``
        says which file it was.

        Raises :class:`ConfigError` where there is no such template, :class:`InputError` for a file that cannot be read.
        """
        setup = load_setup(path, name=name, tokenizer=tokenizer)
        return cls(msgspec.structs.replace(setup, now=now))

    @classmethod
    def from_text(
        cls, text: str, *, special_tokens: Mapping[str, str] | None = None, now: datetime | None = None
    ) -> ChatTemplate:
        """A template from its Jinja source."""
        return cls(TemplateSetup(text=text, special_tokens=dict(special_tokens or {}), now=now))

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[TemplateSetup]]:
        return ChatTemplate, (self.setup,)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.source!r}, name={self.name!r}, has_generation={self.has_generation})"

    @property
    def name(self) -> str:
        """The name of the template."""
        return self.setup.name

    @property
    def source(self) -> str:
        """The file that the template came from, or ``suite:NAME``."""
        return self.setup.source

    @property
    def special_tokens(self) -> dict[str, str]:
        """``bos_token``, ``eos_token``, ... as the template sees them."""
        return self.setup.special_tokens

    @property
    def end_of_turn(self) -> str | None:
        """The text that ends an assistant's turn, where it is known: for templates of our suite."""
        return self.setup.end_of_turn

    @property
    def now(self) -> datetime | None:
        """The time that ``strftime_now`` gives; None where the template does not ask for it and none was given."""
        return self.setup.now

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides the text: see :class:`TemplateSetup`."""
        return self.setup.fingerprint

    @property
    def has_generation(self) -> bool:
        """Whether the template has ``{% generation %}`` blocks (the default one, if there are two)."""
        return self._default.has_generation

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
        """The whole text of the conversation, and where its generation blocks stand.

        ``tools`` are JSON schemas; ``template_kwargs`` reach the template by their names and win over special tokens.
        ``continue_final_message`` ends the text with the last message's content (or the field named), without what
        closes the turn.

        Raises :class:`InputError` where the template refuses the conversation or fails on it; the message names the
        template, the line and the reason.
        """
        if template_kwargs:
            _check_names(template_kwargs)
        if add_generation_prompt and continue_final_message:
            raise ConfigError(
                "add_generation_prompt begins a new message, continue_final_message goes on with the last: choose one"
            )
        template = self._default if tools is None or self._tool_use is None else self._tool_use
        variables = _variables(messages, tools, documents, template_kwargs, prompt=add_generation_prompt)
        if not continue_final_message:
            return template.render(variables)
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        final = mark_final(variables["messages"], field, template.text)
        text = cut_at_mark(template.render(variables).text, final)
        # The spans would have to be cut as well; a message that goes on is no training example, and nobody asks.
        return Rendered(text=text, has_generation=template.has_generation)

    def render_ahead(self, conversations: Iterable[Conversation], *, prompts: bool = True) -> None:
        """Render what will be asked for of these conversations, many at a time, where a request costs something.

        That is of templates that are not of our suite: they are rendered in a process of their own. It changes no
        result. What is not asked for before the next call is forgotten. ``prompts``: masks are asked for, which may
        need what stands before every turn.
        """
        wanted: dict[int, list[dict[str, Any]]] = {}
        for conversation in conversations:
            kwargs, tools, messages = conversation.template_kwargs, conversation.tools, conversation.messages
            template = self._default if tools is None or self._tool_use is None else self._tool_use
            if isinstance(template, CompiledTemplate):
                return
            counts = [(len(messages), False)]
            if prompts and template.except_roles is None:
                # Its source does not show where messages begin: every turn is compared with what a model sees.
                asked = (number for number, message in enumerate(messages) if message.get("role") == "assistant")
                counts += [(number, True) for number in asked if number]
            with contextlib.suppress(InputError):  # for whoever asks for it
                _check_names(kwargs)
                wanted.setdefault(id(template), []).extend(
                    _variables(messages[:count], tools, None, kwargs, prompt=prompt) for count, prompt in counts
                )
        for limited in (self._default, self._tool_use):
            if isinstance(limited, LimitedTemplate):
                limited.ahead(wanted.get(id(limited), []))

    def render_conversation(self, conversation: Conversation, *, add_generation_prompt: bool = False) -> Rendered:
        """:meth:`render` with the conversation's own tools and template arguments."""
        _check_names(conversation.template_kwargs)
        return self.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=add_generation_prompt,
            **conversation.template_kwargs,
        )

    def render_many(
        self, conversations: Iterable[Conversation], *, add_generation_prompt: bool = False
    ) -> list[Rendered | InputError]:
        """The text of each conversation; in the place of one that the template refuses stands the error, not raised."""
        results: list[Rendered | InputError] = []
        conversations = list(conversations)
        if not add_generation_prompt:
            self.render_ahead(conversations, prompts=False)
        for conversation in conversations:
            try:
                results.append(self.render_conversation(conversation, add_generation_prompt=add_generation_prompt))
            except InputError as error:
                results.append(error)
        return results


def _compiled(setup: TemplateSetup, text: str, name: str) -> CompiledTemplate | LimitedTemplate:
    """A text of our suite is rendered in this process, any other one by the helper, which has bounds."""
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
    """What a template sees: new plain values, in one order, so that equal ones are written as equal bytes."""
    variables: dict[str, Any] = plain(kwargs) if kwargs else {}
    variables["messages"] = plain_messages(messages)
    variables["tools"] = plain_dicts(tools, "tools")
    variables["documents"] = plain_dicts(documents, "documents")
    variables["add_generation_prompt"] = prompt
    return variables


def _check_names(template_kwargs: Mapping[str, Any]) -> None:
    taken = _RESERVED & template_kwargs.keys()
    if taken:
        raise InputError(
            f"the template arguments hold {', '.join(sorted(taken))}, which stand for the record itself and cannot be "
            "given that way: rename or remove them"
        )
