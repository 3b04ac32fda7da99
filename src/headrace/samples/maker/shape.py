"""What all training types have in common: a sample -> the sequences that it asks for -> the keys of its documents."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt
from headrace.samples.layouts import Sample, assistant, join, user
from headrace.samples.maker.ends import Ends, EndTokens
from headrace.samples.maker.sequences import Asked, Found, Tally, plain
from headrace.samples.masking.faces import RendersAhead, Template
from headrace.samples.masking.marking import Marked, Marker
from headrace.samples.masking.pieces import Region, Why
from headrace.samples.recipe.recipe import Recipe

S = TypeVar("S")

Document = dict[str, NDArray[Any] | int]
"""The values of each key, by our own names; a number where there is one for each document."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """What the making of sequences needs."""

    recipe: Recipe
    ends: EndTokens
    template: Template | None
    marker: Marker | None

    def mark(self, conversation: Conversation, tally: Tally) -> list[Marked]:
        """The texts of a conversation, see `Marker.mark`.

        Raises:
            InputError: the template refuses it, or a policy does.
            DroppedError: a policy drops it.
        """
        if self.marker is None:
            raise ConfigError(_NO_TEMPLATE)
        is_header = self.recipe.header == "train"
        texts = self.marker.mark(self.with_kwargs(conversation), with_all=tally.with_all or is_header)
        if self.marker.counts:
            for note, number in self.marker.counts.items():
                tally.notes[note] += number
        return [_with_header(marked) for marked in texts] if is_header else texts

    def whole_text(self, conversation: Conversation, tally: Tally) -> str:
        """The text of a conversation, which holds all that it says.

        Raises:
            InputError: the template refuses it, or leaves a message out.
            DroppedError: a policy drops it.
        """
        self._check_written(conversation, tally)
        return self._rendered(conversation, add_generation_prompt=False)

    def prompt_text(self, conversation: Conversation, tally: Tally) -> str:
        """The text of a conversation, which holds all that it says, and of what comes before the answer to it.

        Raises:
            InputError: the template refuses it, or leaves a message out.
            DroppedError: a policy drops it.
        """
        self._check_written(conversation, tally)
        return self._rendered(conversation, add_generation_prompt=True)

    def with_kwargs(self, conversation: Conversation) -> Conversation:
        """The conversation with the recipe's arguments of the template, under its own."""
        kwargs = self.recipe.template.kwargs if self.recipe.template is not None else {}
        if not kwargs:
            return conversation
        return msgspec.structs.replace(conversation, template_kwargs={**kwargs, **conversation.template_kwargs})

    def _check_written(self, conversation: Conversation, tally: Tally) -> None:
        if self.marker is not None:
            self.marker.check_written(self.with_kwargs(conversation))
            for note, number in self.marker.counts.items():
                tally.notes[note] += number

    def _rendered(self, conversation: Conversation, *, add_generation_prompt: bool) -> str:
        if self.template is None:
            raise ConfigError(_NO_TEMPLATE)
        conversation = self.with_kwargs(conversation)
        rendered = self.template.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=add_generation_prompt,
            **conversation.template_kwargs,
        )
        return rendered.text

    @functools.cached_property
    def answer_ends(self) -> Ends:
        """The ends of a sequence that is text, and ends in what is trained."""
        return self.text_ends(is_trained=True)

    def text_ends(self, *, is_trained: bool) -> Ends:
        """The ends of a sequence that is text."""
        before = self.ends.wanted_bos(self.recipe.ends.prepend_bos)
        after = self.ends.eos if self.recipe.appends_eos else np.zeros(0, np.uint32)
        return Ends(before, after, is_trained)

    @functools.cached_property
    def chat_ends(self) -> Ends:
        """The ends of a sequence that a template wrote."""
        return Ends(before=self.ends.wanted_bos(self.recipe.ends.prepend_bos), usual=self.ends.usual_bos)


_NO_TEMPLATE = (
    "the records are conversations, and there is no chat template: say `template` with a tokeniser's folder that has "
    "one, a .jinja file, or the name of one of ours, such as chatml"
)


class Shape(ABC, Generic[S]):
    """One training type."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abstractmethod
    def ask(self, sample: S, tally: Tally) -> list[Asked]:
        """The sequences of a sample.

        Raises:
            InputError: it cannot be used.
            DroppedError: a policy drops it.
        """

    @abstractmethod
    def documents(self, sample: S, found: Sequence[Found]) -> list[Document]:
        """The documents of a sample, from its sequences, in the order in which they were asked for.

        Raises:
            InputError: a value cannot be stored.
        """

    def render_ahead(self, samples: Iterable[S]) -> None:
        """Have the template render the conversations of many samples together, where that costs less."""
        template: object = self.tools.template
        if not isinstance(template, RendersAhead):
            return
        conversations = [self.tools.with_kwargs(one) for sample in samples for one in self.conversations(sample)]
        template.render_ahead(conversations, prompts=self.tools.recipe.type != "seq")

    def conversations(self, sample: S) -> list[Conversation]:
        """The conversations that `ask` has rendered, as far as they are known before."""
        return []

    def dialogue(self, sample: S) -> Conversation | None:
        """The conversation of which exchanges may be taken away where the sample is too long; None: there is none."""
        return None

    def with_dialogue(self, sample: S, conversation: Conversation) -> S:
        """The sample with another such conversation."""
        raise InputError("it has no exchanges that could be taken away")


def _with_header(marked: Marked) -> Marked:
    """The text with the headers of trained turns trained.

    Raises:
        InputError: one of them cannot be found.
    """
    trained = {piece.message for piece in marked.pieces if piece.is_trained and piece.message >= 0}
    headers = {piece.message for piece in marked.pieces if piece.region == Region.HEADER}
    if not trained <= headers:
        raise InputError(
            f"the header of message {min(trained - headers)} cannot be found in the text, and `header: train` needs it"
        )
    pieces = [
        msgspec.structs.replace(piece, is_trained=True, why=Why.ROLE)
        if piece.region == Region.HEADER and piece.message in trained
        else piece
        for piece in marked.pieces
    ]
    return Marked(marked.text, pieces, marked.ends, marked.is_partly_trained)


def unflagged(conversation: Conversation) -> Conversation:
    """The conversation, none of whose messages is trained."""
    return msgspec.structs.replace(conversation, train=(False,) * len(conversation.messages), train_spans=())


def with_answer(prompt: Conversation, answer: Conversation) -> Conversation:
    """Both as one conversation, of which the answer may be trained."""
    return join(unflagged(prompt), answer)


def as_chat(sample: Sample) -> Sample:
    """The sample with messages in place of strings."""
    if isinstance(sample, Completion):
        return msgspec.structs.replace(sample, prompt=_asked(sample.prompt), completion=_answered(sample.completion))
    if isinstance(sample, Preference):
        prompt = None if sample.prompt is None else _asked(sample.prompt)
        return Preference(prompt=prompt, chosen=_answered(sample.chosen), rejected=_answered(sample.rejected))
    if isinstance(sample, Prompt):
        return Prompt(prompt=_asked(sample.prompt), columns=sample.columns)
    if isinstance(sample, Group):
        responses: list[Conversation | str] = [_answered(response) for response in sample.responses]
        return Group(prompt=_asked(sample.prompt), responses=responses, rewards=sample.rewards)
    return sample


def _asked(prompt: Conversation | str) -> Conversation:
    return user(prompt) if isinstance(prompt, str) else prompt


def _answered(answer: Conversation | str) -> Conversation:
    return assistant(answer) if isinstance(answer, str) else answer


def pair_text(tools: Tools, key: str, prompt: str, answer: str, *, is_checked: bool = True) -> Asked:
    """A prompt and its answer, both text, as one sequence; the answer is trained, and the token that ends it."""
    text = plain((prompt, False), (answer, True))
    return Asked(key, text, tools.answer_ends, is_checked, roles=("prompt", "answer"))


def roles_of(*conversations: Conversation) -> tuple[str, ...]:
    """The roles of all messages of some conversations."""
    return tuple(str(message["role"]) for conversation in conversations for message in conversation.messages)


def columns_bytes(columns: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Columns as the bytes of a JSON object.

    Raises:
        InputError: one of them cannot be written as JSON.
    """
    try:
        return np.frombuffer(msgspec.json.encode(columns), np.uint8)
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise InputError(f"the columns beside the prompt cannot be kept as JSON: {error}") from None
