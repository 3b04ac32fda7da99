"""The shapes of the training types: which sequences a sample makes, and under which keys they are stored.

Types seq and sft store a text or a conversation as one document, dpo a chosen and a rejected answer to one prompt,
prompt a prompt alone, and grpo a prompt with earlier responses and their rewards.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt, Text
from headrace.samples.layouts import Sample, assistant, join, user
from headrace.samples.maker.ends import Ends, EndTokens
from headrace.samples.maker.sequences import Asked, MadeSequence, RecordCounts, plain
from headrace.samples.masking.marking import Marked, Marker, decide
from headrace.samples.masking.options import RendersAhead, Template
from headrace.samples.masking.pieces import Region, Why
from headrace.samples.masking.results import PROMPT_MISMATCH
from headrace.samples.recipe.recipe import Recipe

S = TypeVar("S")

Document = dict[str, NDArray[Any] | int]
"""The values of each key, by our own names; a number for keys that hold one value for each document."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """The objects that the shapes share: the recipe, the end tokens, the template and its marker."""

    recipe: Recipe
    ends: EndTokens
    template: Template | None
    marker: Marker | None

    def mark(self, conversation: Conversation, tally: RecordCounts) -> list[Marked]:
        """Return the marked texts of a conversation; see `Marker.mark`.

        Raises:
            InputError: If the template or a policy refuses the conversation.
            DroppedError: If a policy drops it.
        """
        if self.marker is None:
            raise ConfigError(_NO_TEMPLATE)
        is_header = self.recipe.header == "train"
        texts = self.marker.mark(self.with_kwargs(conversation), with_all=tally.with_all or is_header)
        if self.marker.counts:
            for note, number in self.marker.counts.items():
                tally.notes[note] += number
        return [_with_header(marked) for marked in texts] if is_header else texts

    def whole_text(self, conversation: Conversation, tally: RecordCounts) -> str:
        """Return the text of a conversation, after a check that it holds every message.

        Raises:
            InputError: If the template refuses the conversation or leaves a message out.
            DroppedError: If a policy drops it.
        """
        self._check_written(conversation, tally)
        return self._rendered(conversation, add_generation_prompt=False)

    def prompt_text(self, conversation: Conversation, tally: RecordCounts) -> str:
        """Return the text of a conversation and of the generation prompt, after a check that it holds every message.

        Raises:
            InputError: If the template refuses the conversation or leaves a message out.
            DroppedError: If a policy drops it.
        """
        self._check_written(conversation, tally)
        return self._rendered(conversation, add_generation_prompt=True)

    def with_kwargs(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the recipe's template arguments; its own take precedence."""
        kwargs = self.recipe.template.kwargs if self.recipe.template is not None else {}
        if not kwargs:
            return conversation
        return msgspec.structs.replace(conversation, template_kwargs={**kwargs, **conversation.template_kwargs})

    def _check_written(self, conversation: Conversation, tally: RecordCounts) -> None:
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
        """The end tokens of a text whose last part is trained."""
        return self.text_ends(is_trained=True)

    def text_ends(self, *, is_trained: bool) -> Ends:
        """Return the end tokens of a text that no template wrote."""
        before = self.ends.wanted_bos(self.recipe.ends.prepend_bos)
        after = self.ends.eos if self.recipe.appends_eos else np.zeros(0, np.uint32)
        return Ends(before, after, is_trained)

    @functools.cached_property
    def chat_ends(self) -> Ends:
        """The end tokens of a text that a template wrote."""
        return Ends(before=self.ends.wanted_bos(self.recipe.ends.prepend_bos), usual=self.ends.usual_bos)


_NO_TEMPLATE = (
    "the records are conversations, but there is no chat template: set `template` to a tokeniser's folder that has "
    "one, a .jinja file, or the name of one of ours, such as chatml"
)


class Shape(ABC, Generic[S]):
    """The base class: how one training type makes sequences and documents from a sample."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abstractmethod
    def ask(self, sample: S, tally: RecordCounts) -> list[Asked]:
        """Return the sequences of a sample.

        Raises:
            InputError: If the sample cannot be used.
            DroppedError: If a policy drops it.
        """

    @abstractmethod
    def documents(self, sample: S, found: Sequence[MadeSequence]) -> list[Document]:
        """Return the documents of a sample, made from its sequences in the order in which `ask` returned them.

        Raises:
            InputError: If a value cannot be stored.
        """

    def render_ahead(self, samples: Iterable[S]) -> None:
        """Let the template render the conversations of many samples together, if that costs less."""
        template: object = self.tools.template
        if not isinstance(template, RendersAhead):
            return
        conversations = [self.tools.with_kwargs(one) for sample in samples for one in self.conversations(sample)]
        template.render_ahead(conversations, prompts=self.tools.recipe.type != "seq")

    def conversations(self, sample: S) -> list[Conversation]:
        """Return the conversations that `ask` will render, as far as they are known in advance."""
        return []

    def dialogue(self, sample: S) -> tuple[Conversation, Callable[[Conversation], S]] | None:
        """Return the conversation from which exchanges may be removed if the sample is too long, or None.

        With it comes a function that returns the sample with another conversation in its place.
        """
        return None


def _with_header(marked: Marked) -> Marked:
    """Return the text with the headers of trained turns trained too.

    Raises:
        InputError: If the header of a trained turn is not found.
    """
    trained = {piece.message for piece in marked.pieces if piece.is_trained and piece.message >= 0}
    headers = {piece.message for piece in marked.pieces if piece.region == Region.HEADER}
    if not trained <= headers:
        raise InputError(
            f"the header of message {min(trained - headers)} cannot be found in the text, but `header: train` needs it"
        )
    pieces = [
        msgspec.structs.replace(piece, is_trained=True, why=Why.ROLE)
        if piece.region == Region.HEADER and piece.message in trained
        else piece
        for piece in marked.pieces
    ]
    return Marked(marked.text, pieces, marked.ends, marked.is_partly_trained)


def unflagged(conversation: Conversation) -> Conversation:
    """Return the conversation with every message flagged as not trained."""
    return msgspec.structs.replace(conversation, train=(False,) * len(conversation.messages), train_spans=())


def with_answer(prompt: Conversation, answer: Conversation) -> Conversation:
    """Join prompt and answer to one conversation in which only the answer may be trained."""
    return join(unflagged(prompt), answer)


def as_chat(sample: Sample) -> Sample:
    """Return the sample with messages in place of strings."""
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
    """Join a prompt and its answer, both text, to one sequence in which the answer and its end token are trained."""
    text = plain((prompt, False), (answer, True))
    return Asked(key, text, tools.answer_ends, is_checked, roles=("prompt", "answer"))


def roles_of(*conversations: Conversation) -> tuple[str, ...]:
    """Return the roles of all messages of these conversations."""
    return tuple(str(message["role"]) for conversation in conversations for message in conversation.messages)


def columns_bytes(columns: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return the columns as the bytes of a JSON object.

    Raises:
        InputError: If a column cannot be written as JSON.
    """
    try:
        return np.frombuffer(msgspec.json.encode(columns), np.uint8)
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise InputError(f"the columns beside the prompt cannot be stored as JSON: {error}") from None


Single = Text | Conversation | Completion


def single_document(recipe: Recipe, found: MadeSequence) -> Document:
    """Return the document of one sequence, for types that store one key."""
    document: Document = {"tokens": found.ids}
    if recipe.type == "sft":
        document |= {"loss_mask": found.mask, "num_supervised": found.num_supervised}
    if recipe.output.position_ids != "none":
        document["position_ids"] = np.arange(len(found.ids), dtype=np.int64)
    return document


class SingleShape(Shape[Single]):
    """Stores ``tokens``; for sft also ``loss_mask`` and ``num_supervised``, for KTO ``label``."""

    def ask(self, sample: Single, tally: RecordCounts) -> list[Asked]:
        """Return the sequence of the sample, or several if an unstable template splits the conversation."""
        is_checked = self.tools.recipe.type == "sft"
        if isinstance(sample, Text):
            return [Asked("tokens", plain((sample.text, True)), self.tools.answer_ends, is_checked)]
        if isinstance(sample, Completion) and isinstance(sample.prompt, str) and isinstance(sample.completion, str):
            return [pair_text(self.tools, "tokens", sample.prompt, sample.completion, is_checked=is_checked)]
        conversation = self._conversation(sample)
        if conversation is None:
            raise TypeError(f"{type(sample).__name__} is not a sample of type {self.tools.recipe.type}")
        if not is_checked:  # type seq stores no mask, so none has to be proved
            text = self.tools.whole_text(conversation, tally)
            return [Asked("tokens", plain((text, True)), self.tools.chat_ends)]
        roles = roles_of(conversation) if tally.with_all else ()
        ends = self.tools.chat_ends
        return [
            Asked("tokens", marked, ends, is_checked, roles=roles) for marked in self.tools.mark(conversation, tally)
        ]

    def documents(self, sample: Single, found: Sequence[MadeSequence]) -> list[Document]:
        """Return one document for each sequence."""
        documents = [single_document(self.tools.recipe, one) for one in found]
        if isinstance(sample, Completion) and sample.label is not None:
            for document in documents:
                document["label"] = int(sample.label)
        return documents

    @staticmethod
    def _conversation(sample: Single) -> Conversation | None:
        """Return the conversation, or prompt and completion as one conversation; None for text."""
        if isinstance(sample, Completion):
            if isinstance(sample.prompt, str) or isinstance(sample.completion, str):
                return None
            return with_answer(sample.prompt, sample.completion)
        return sample if isinstance(sample, Conversation) else None

    def conversations(self, sample: Single) -> list[Conversation]:
        """Return the conversation, if the sample is one."""
        conversation = self._conversation(sample)
        return [] if conversation is None else [conversation]

    def dialogue(self, sample: Single) -> tuple[Conversation, Callable[[Conversation], Single]] | None:
        """Return the conversation, if the sample is one; a shorter one of a completion becomes the completion."""
        conversation = self._conversation(sample)

        def replaced(shorter: Conversation) -> Single:
            if not isinstance(sample, Completion):
                return shorter
            empty = msgspec.structs.replace(shorter, messages=[], train=(), train_spans=())
            return Completion(prompt=empty, completion=shorter, label=sample.label)

        return None if conversation is None else (conversation, replaced)


class PairShape(Shape[Preference]):
    """Stores ``chosen``, ``chosen_mask``, ``rejected``, ``rejected_mask``: the prompt with each answer.

    The answers are trained, the prompt is not.
    """

    def ask(self, sample: Preference, tally: RecordCounts) -> list[Asked]:
        """Return two sequences: the prompt with the chosen answer, and with the rejected one."""
        asked = []
        for key, answer in (("chosen", sample.chosen), ("rejected", sample.rejected)):
            prompt = sample.prompt or ""
            if isinstance(prompt, str) and isinstance(answer, str):
                asked.append(pair_text(self.tools, key, prompt, answer))
                continue
            if isinstance(prompt, str) or isinstance(answer, str):
                raise InputError(f"prompt and {key} must both be strings, or both messages")
            texts = self.tools.mark(with_answer(prompt, answer), tally)
            if len(texts) > 1:
                raise InputError(
                    f"{key} has several turns that the template writes differently when more follow, and a pair cannot "
                    "be split: move all but the last one to the prompt, or choose `mask: {unstable: drop}`"
                )
            roles = roles_of(prompt, answer)
            asked.append(Asked(key, texts[0], self.tools.chat_ends, is_checked=True, roles=roles))
        return asked

    def documents(self, sample: Preference, found: Sequence[MadeSequence]) -> list[Document]:
        """Return one document with both sequences and their masks."""
        document: Document = {}
        for one in found:
            document |= {one.key: one.ids, f"{one.key}_mask": one.mask}
        return [document]

    def dialogue(self, sample: Preference) -> tuple[Conversation, Callable[[Conversation], Preference]] | None:
        """Return the prompt, since both answers keep the same one."""
        if not isinstance(sample.prompt, Conversation):
            return None
        return sample.prompt, lambda prompt: msgspec.structs.replace(sample, prompt=prompt)

    def conversations(self, sample: Preference) -> list[Conversation]:
        """Return the prompt with each answer, if they are messages."""
        prompt = sample.prompt or ""
        if isinstance(prompt, str):
            return []
        answers = (sample.chosen, sample.rejected)
        return [with_answer(prompt, answer) for answer in answers if isinstance(answer, Conversation)]


class PromptShape(Shape[Prompt]):
    """Stores ``prompts``, up to where the answer begins, and ``columns``, the other fields as the bytes of JSON."""

    def ask(self, sample: Prompt, tally: RecordCounts) -> list[Asked]:
        """Return the prompt as one sequence."""
        return [prompt_asked(self.tools, sample.prompt, tally)]

    def documents(self, sample: Prompt, found: Sequence[MadeSequence]) -> list[Document]:
        """Return one document with the prompt and the columns."""
        return [{"prompts": found[0].ids, "columns": columns_bytes(sample.columns)}]


class GroupShape(Shape[Group]):
    """Stores ``prompts``, ``responses`` one after another, their ``masks`` and ``response_lengths``, and ``rewards``.

    Prompt and response are encoded as one text and separated where the response begins.
    """

    def ask(self, sample: Group, tally: RecordCounts) -> list[Asked]:
        """Return the prompt and then each response as a sequence."""
        prompt = prompt_asked(
            self.tools, sample.prompt, RecordCounts()
        )  # each response counts the prompt's notes again
        return [prompt, *(self._response(sample.prompt, prompt.marked.text, one, tally) for one in sample.responses)]

    def conversations(self, sample: Group) -> list[Conversation]:
        """Return the prompt with each response, if they are messages."""
        prompt = sample.prompt
        if isinstance(prompt, str):
            return []
        return [with_answer(prompt, one) for one in sample.responses if isinstance(one, Conversation)]

    def documents(self, sample: Group, found: Sequence[MadeSequence]) -> list[Document]:
        """Return one document with the prompt, all responses and their rewards."""
        prompt, *responses = found
        return [
            {
                "prompts": prompt.ids,
                "responses": np.concatenate([one.ids for one in responses]),
                "masks": np.concatenate([one.mask for one in responses]),
                "response_lengths": np.array([len(one.ids) for one in responses], np.int32),
                "rewards": np.array(sample.rewards, np.float64),
            }
        ]

    def _response(
        self, prompt: Conversation | str, before: str, response: Conversation | str, tally: RecordCounts
    ) -> Asked:
        if isinstance(prompt, str) and isinstance(response, str):
            ends = self.tools.answer_ends._replace(before=np.zeros(0, np.uint32))
            text = plain((prompt, False), (response, True))
            return Asked("responses", text, ends, begin=len(prompt), roles=("prompt", "answer"), may_be_empty=True)
        if isinstance(prompt, str) or isinstance(response, str):
            raise InputError("prompt and responses must all be strings, or all messages")
        texts = self.tools.mark(with_answer(prompt, response), tally)
        if len(texts) > 1:
            raise InputError(
                "a response has several turns that the template writes differently when more follow, and a response "
                "cannot be split: choose `mask: {unstable: drop}`"
            )
        marked = texts[0]
        if not marked.text.startswith(before):
            decide(
                "drop" if self.tools.recipe.mask.on_prompt_mismatch == "drop" else "error",
                PROMPT_MISMATCH,
                "the text of prompt and response does not begin with that of the prompt and the template's generation "
                "prompt, so it is not known where the response begins; choose `mask: {on_prompt_mismatch: drop}`, or "
                "set template arguments that suit the responses",
                tally.notes,
            )
        end = None
        if self.tools.recipe.ends.response_end == "turn":
            end = _end_of_turn(marked, len(prompt.messages) + len(response.messages) - 1)
        roles = roles_of(prompt, response)
        return Asked("responses", marked, is_checked=True, begin=len(before), end=end, roles=roles)


def prompt_asked(tools: Tools, prompt: Conversation | str, tally: RecordCounts) -> Asked:
    """Return the sequence of a prompt; for a conversation it ends where the assistant's answer begins."""
    if isinstance(prompt, str):
        text, ends = prompt, tools.text_ends(is_trained=False)
    else:
        text, ends = tools.prompt_text(prompt, tally), tools.chat_ends
    return Asked("prompts", plain((text, False)), ends._replace(after=np.zeros(0, np.uint32)))


def _end_of_turn(marked: Marked, message: int) -> int | None:
    """Return the position after the token that ends the turn of a message, or None."""
    ends = [piece.end for piece in marked.pieces if piece.region == Region.END_OF_TURN and piece.message == message]
    return ends[-1] if ends else None
