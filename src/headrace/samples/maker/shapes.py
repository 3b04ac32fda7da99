"""The training types: which sequences each makes of a sample, and under which keys they are stored.

Types seq and sft: a record is a document, of text or of a conversation.

Type dpo: a chosen and a rejected answer to one prompt.

Types prompt and grpo: what is to be answered; what was answered before, with its rewards.
"""

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
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt, Text
from headrace.samples.layouts import Sample, assistant, join, user
from headrace.samples.maker.ends import Ends, EndTokens
from headrace.samples.maker.sequences import Asked, MadeSequence, Tally, plain
from headrace.samples.masking.marking import Marked, Marker, decide
from headrace.samples.masking.options import RendersAhead, Template
from headrace.samples.masking.pieces import Region, Why
from headrace.samples.masking.results import PROMPT_MISMATCH
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
    def documents(self, sample: S, found: Sequence[MadeSequence]) -> list[Document]:
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


Single = Text | Conversation | Completion


class SingleShape(Shape[Single]):
    """``tokens``; for sft also ``loss_mask`` and ``num_supervised``, for KTO ``label``."""

    def ask(self, sample: Single, tally: Tally) -> list[Asked]:
        """See `Shape.ask`. A conversation that an unstable template splits is several documents."""
        is_checked = self.tools.recipe.type == "sft"
        if isinstance(sample, Text):
            return [Asked("tokens", plain((sample.text, True)), self.tools.answer_ends, is_checked)]
        if isinstance(sample, Completion) and isinstance(sample.prompt, str) and isinstance(sample.completion, str):
            return [pair_text(self.tools, "tokens", sample.prompt, sample.completion, is_checked=is_checked)]
        conversation = self.dialogue(sample)
        if conversation is None:
            raise TypeError(f"{type(sample).__name__} is no sample of type {self.tools.recipe.type}")
        if not is_checked:  # nobody asks for a mask, so none has to be proved
            text = self.tools.whole_text(conversation, tally)
            return [Asked("tokens", plain((text, True)), self.tools.chat_ends)]
        roles = roles_of(conversation) if tally.with_all else ()
        ends = self.tools.chat_ends
        return [
            Asked("tokens", marked, ends, is_checked, roles=roles) for marked in self.tools.mark(conversation, tally)
        ]

    def documents(self, sample: Single, found: Sequence[MadeSequence]) -> list[Document]:
        """See `Shape.documents`."""
        documents = []
        for one in found:
            document: Document = {"tokens": one.ids}
            if self.tools.recipe.type == "sft":
                document["loss_mask"] = one.mask
                document["num_supervised"] = one.num_supervised
            if self.tools.recipe.output.position_ids != "none":
                document["position_ids"] = np.arange(len(one.ids), dtype=np.int64)
            if isinstance(sample, Completion) and sample.label is not None:
                document["label"] = int(sample.label)
            documents.append(document)
        return documents

    def dialogue(self, sample: Single) -> Conversation | None:
        """See `Shape.dialogue`."""
        if isinstance(sample, Completion):
            if isinstance(sample.prompt, str) or isinstance(sample.completion, str):
                return None
            return with_answer(sample.prompt, sample.completion)
        return sample if isinstance(sample, Conversation) else None

    def conversations(self, sample: Single) -> list[Conversation]:
        """See `Shape.conversations`."""
        dialogue = self.dialogue(sample)
        return [] if dialogue is None else [dialogue]

    def with_dialogue(self, sample: Single, conversation: Conversation) -> Single:
        """See `Shape.with_dialogue`."""
        if isinstance(sample, Completion):
            empty = msgspec.structs.replace(conversation, messages=[], train=(), train_spans=())
            return Completion(prompt=empty, completion=conversation, label=sample.label)
        return conversation


class PairShape(Shape[Preference]):
    """``chosen``, ``chosen_mask``, ``rejected``, ``rejected_mask``: each the prompt and an answer, which is trained."""

    def ask(self, sample: Preference, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
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
                    f"{key} has several turns that the template writes otherwise when more follow: a pair cannot be "
                    "split; leave all but the last in the prompt, or choose `mask: {unstable: drop}`"
                )
            roles = roles_of(prompt, answer)
            asked.append(Asked(key, texts[0], self.tools.chat_ends, is_checked=True, roles=roles))
        return asked

    def documents(self, sample: Preference, found: Sequence[MadeSequence]) -> list[Document]:
        """See `Shape.documents`."""
        document: Document = {}
        for one in found:
            document |= {one.key: one.ids, f"{one.key}_mask": one.mask}
        return [document]

    def dialogue(self, sample: Preference) -> Conversation | None:
        """See `Shape.dialogue`. Both answers keep the same prompt."""
        return sample.prompt if isinstance(sample.prompt, Conversation) else None

    def conversations(self, sample: Preference) -> list[Conversation]:
        """See `Shape.conversations`."""
        prompt = sample.prompt or ""
        if isinstance(prompt, str):
            return []
        answers = (sample.chosen, sample.rejected)
        return [with_answer(prompt, answer) for answer in answers if isinstance(answer, Conversation)]

    def with_dialogue(self, sample: Preference, conversation: Conversation) -> Preference:
        """See `Shape.with_dialogue`."""
        return Preference(prompt=conversation, chosen=sample.chosen, rejected=sample.rejected)


class PromptShape(Shape[Prompt]):
    """``prompts``, up to where the answer begins, and ``columns``, the record's other fields as the bytes of JSON."""

    def ask(self, sample: Prompt, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
        return [prompt_asked(self.tools, sample.prompt, tally)]

    def documents(self, sample: Prompt, found: Sequence[MadeSequence]) -> list[Document]:
        """See `Shape.documents`."""
        return [{"prompts": found[0].ids, "columns": columns_bytes(sample.columns)}]


class GroupShape(Shape[Group]):
    """``prompts``; ``responses``, one after another, their ``masks`` and ``response_lengths``; ``rewards``.

    Prompt and response are encoded as one text, and parted where the response begins.
    """

    def ask(self, sample: Group, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
        prompt = prompt_asked(self.tools, sample.prompt, Tally())  # counted with each response
        return [prompt, *(self._response(sample.prompt, prompt.marked.text, one, tally) for one in sample.responses)]

    def conversations(self, sample: Group) -> list[Conversation]:
        """See `Shape.conversations`."""
        prompt = sample.prompt
        if isinstance(prompt, str):
            return []
        return [with_answer(prompt, one) for one in sample.responses if isinstance(one, Conversation)]

    def documents(self, sample: Group, found: Sequence[MadeSequence]) -> list[Document]:
        """See `Shape.documents`."""
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

    def _response(self, prompt: Conversation | str, before: str, response: Conversation | str, tally: Tally) -> Asked:
        if isinstance(prompt, str) and isinstance(response, str):
            ends = self.tools.answer_ends._replace(before=np.zeros(0, np.uint32))
            text = plain((prompt, False), (response, True))
            return Asked("responses", text, ends, begin=len(prompt), roles=("prompt", "answer"), may_be_empty=True)
        if isinstance(prompt, str) or isinstance(response, str):
            raise InputError("prompt and responses must all be strings, or all messages")
        texts = self.tools.mark(with_answer(prompt, response), tally)
        if len(texts) > 1:
            raise InputError("a response has several turns that the template writes otherwise when more follow")
        marked = texts[0]
        if not marked.text.startswith(before):
            decide(
                "drop" if self.tools.recipe.mask.on_prompt_mismatch == "drop" else "error",
                PROMPT_MISMATCH,
                "the text of prompt and response does not begin with that of the prompt and the template's generation "
                "prompt, so that it cannot be said where the response begins; choose `mask: {on_prompt_mismatch: "
                "drop}`, or give the template the arguments that belong together",
                tally.notes,
            )
        end = None
        if self.tools.recipe.ends.response_end == "turn":
            end = _end_of_turn(marked, len(prompt.messages) + len(response.messages) - 1)
        roles = roles_of(prompt, response)
        return Asked("responses", marked, is_checked=True, begin=len(before), end=end, roles=roles)


def prompt_asked(tools: Tools, prompt: Conversation | str, tally: Tally) -> Asked:
    """The sequence of a prompt; that of a conversation ends where the assistant's answer begins."""
    if isinstance(prompt, str):
        text, ends = prompt, tools.text_ends(is_trained=False)
    else:
        text, ends = tools.prompt_text(prompt, tally), tools.chat_ends
    return Asked("prompts", plain((text, False)), ends._replace(after=np.zeros(0, np.uint32)))


def _end_of_turn(marked: Marked, message: int) -> int | None:
    """Behind the token that ends the turn of a message; None where there is none."""
    ends = [piece.end for piece in marked.pieces if piece.region == Region.END_OF_TURN and piece.message == message]
    return ends[-1] if ends else None
