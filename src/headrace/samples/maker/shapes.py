"""The shapes of the training types: which sequences a sample makes, and under which keys they are stored.

Types seq and sft store a text or a conversation as one document, dpo a chosen and a rejected answer to one prompt,
prompt a prompt alone, and grpo a prompt with earlier responses and their rewards. A recipe may also describe its
samples field by field (`sections`, `sources`): one key, or one key for each source.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import describe
from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Completion, Conversation, Group, Message, Preference, Prompt, Text
from headrace.samples.layouts import Sample, assistant, join, user, with_messages
from headrace.samples.layouts.fields import Fields, check_text, has_null, has_null_property, wrong
from headrace.samples.layouts.turns import InputSpec, MessageReader, arguments_of, unread_flags, untrained
from headrace.samples.maker.contents import Contents
from headrace.samples.maker.sequences import Asked, Ends, EndTokens, MadeSequence, RecordCounts, joined, plain
from headrace.samples.masking.marking import Marked, Marker, decide
from headrace.samples.masking.pieces import Region, Why
from headrace.samples.masking.results import (
    CONTINUED_PROMPTS,
    NULL_FIELDS,
    PROMPT_MISMATCH,
    QUOTED_ARGUMENTS,
    DroppedError,
)
from headrace.samples.recipe.recipe import Recipe, Section, Source, lengths_key, mask_key
from headrace.samples.templates.chat_template import ChatTemplate

S = TypeVar("S")

Document = dict[str, NDArray[Any] | int]
"""The values of each key, by our own names; a number for keys that hold one value for each document."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """The objects that the shapes share: the recipe, end tokens, the template, its marker, the check of contents."""

    recipe: Recipe
    ends: EndTokens
    template: ChatTemplate | None
    marker: Marker | None
    contents: Contents

    def mark(self, conversations: Sequence[Conversation], tally: RecordCounts) -> list[list[Marked]]:
        """Return the marked texts of each conversation of a record; see `Marker.mark`.

        Raises:
            InputError: If the template or a policy refuses the conversation.
            DroppedError: If a policy drops it.
        """
        if self.marker is None:
            raise ConfigError(_NO_TEMPLATE)
        tally.note_unread(sum(len(unread_flags(one)) for one in conversations))
        is_header = self.recipe.header == "train"
        found = self.marker.mark(list(map(self.with_kwargs, conversations)), with_all=tally.with_all or is_header)
        tally.note(self.marker.counts)
        for conversation, texts in zip(conversations, found, strict=True):
            tally.note(questionable(conversation, [marked.text for marked in texts]))
        return [list(map(_with_header, texts)) for texts in found] if is_header else found

    def text(self, conversation: Conversation, tally: RecordCounts, *, is_prompt: bool) -> str:
        """Return the text of a conversation, or of a prompt for an answer, which must hold every message.

        A prompt that ends with the beginning of an answer is continued there, as in TRL.

        Raises:
            InputError: If the template refuses the conversation or leaves a message out.
            DroppedError: If a policy drops it.
        """
        conversation = self.with_kwargs(conversation)
        if self.marker is not None:
            self.marker.check_written(conversation)
            tally.note(self.marker.counts)
        if self.template is None:
            raise ConfigError(_NO_TEMPLATE)
        continues = is_prompt and any(map(_is_begun, conversation.messages[-1:]))
        if continues:
            tally.notes[CONTINUED_PROMPTS] += 1
        rendered = self.template.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=is_prompt and not continues,
            continue_final_message=continues,
            **conversation.template_kwargs,
        )
        tally.note(questionable(conversation, [rendered.text]))
        return rendered.text

    def render_ahead(self, conversations: Iterable[Conversation]) -> None:
        """Render together what will be asked for next; see `ChatTemplate.render_ahead`."""
        if self.template is not None:
            marker = None if self.recipe.type in ("seq", "prompt") else self.marker
            wanted = map(self.with_kwargs, conversations)
            self.template.render_ahead((one, marker is not None and not marker.shows_turns(one)) for one in wanted)

    def with_kwargs(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the recipe's template arguments; its own take precedence."""
        kwargs = self.recipe.template.kwargs if self.recipe.template is not None else {}
        if not kwargs:
            return conversation
        return msgspec.structs.replace(conversation, template_kwargs={**kwargs, **conversation.template_kwargs})

    @functools.cached_property
    def answer_ends(self) -> Ends:
        """The end tokens of a text whose last part is trained."""
        return self.text_ends(is_trained=True)

    def text_ends(self, *, is_trained: bool) -> Ends:
        """Return the end tokens of a text that no template wrote."""
        after = self.ends.eos if self.recipe.appends_eos else np.zeros(0, np.uint32)
        return self.ends.begin(is_text=True)._replace(after=after, is_trained=is_trained)

    @functools.cached_property
    def chat_ends(self) -> Ends:
        """The end tokens of a text that a template wrote."""
        return self.ends.begin(is_text=False)


def _is_begun(message: Message) -> bool:
    """Return whether a message, the last one of a prompt, is the beginning of an answer."""
    content = message.get("content")
    return (
        message["role"] == "assistant" and not message.get("tool_calls") and isinstance(content, str) and content != ""
    )


def questionable(conversation: Conversation, texts: Sequence[str]) -> dict[str, int]:
    """Count the calls whose arguments the texts show as JSON within JSON, and the messages and tools with nulls."""
    quoted = nulls = 0
    for message in conversation.messages:
        if len(message) > 2:
            nulls += any(map(has_null, message.values()))
            for arguments in arguments_of(message):
                if isinstance(arguments, str):
                    forms = {json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)}
                    quoted += any(form in text for text in texts for form in forms)
    nulls += has_null_property(conversation.tools)
    return {QUOTED_ARGUMENTS: quoted, NULL_FIELDS: nulls} if quoted or nulls else {}


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

    def wholes(self, sample: S) -> Sequence[Conversation]:
        """Return the conversations that `ask` renders as they are, as far as they are known before."""
        return ()

    @abstractmethod
    def documents(self, sample: S, found: Sequence[MadeSequence]) -> list[Document]:
        """Return the documents of a sample, made from its sequences in the order in which `ask` returned them.

        Raises:
            InputError: If a value cannot be stored.
        """

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
    return msgspec.structs.replace(marked, pieces=pieces)


def unflagged(conversation: Conversation) -> Conversation:
    """Return the conversation with every message flagged as not trained."""
    return msgspec.structs.replace(conversation, train=(False,) * len(conversation.messages), train_spans=())


def with_answer(prompt: Conversation, answer: Conversation) -> Conversation:
    """Join prompt and answer to one conversation in which only the answer may be trained."""
    return join(unflagged(prompt), answer)


def as_chat(sample: Sample) -> Sample:
    """Return the sample with messages in place of strings."""
    if isinstance(sample, Conversation | Text):
        return sample
    answers = [name for name in ("completion", "chosen", "rejected") if hasattr(sample, name)]
    made: dict[str, Any] = {name: _answered(getattr(sample, name)) for name in answers}
    made["prompt"] = None if sample.prompt is None else _asked(sample.prompt)
    if isinstance(sample, Prompt):
        made["columns"] = with_messages(sample.columns, made["prompt"])
    if isinstance(sample, Group):
        made["responses"] = list(map(_answered, sample.responses))
    return msgspec.structs.replace(sample, **made)


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
            if isinstance(sample, Conversation):
                tally.note_unread(len(untrained(sample)))
            text = self.tools.text(conversation, tally, is_prompt=False)
            return [Asked("tokens", plain((text, True)), self.tools.chat_ends)]
        roles = roles_of(conversation) if tally.with_all else ()
        ends = self.tools.chat_ends
        [texts] = self.tools.mark([conversation], tally)
        return [Asked("tokens", marked, ends, is_checked, roles=roles) for marked in texts]

    def wholes(self, sample: Single) -> Sequence[Conversation]:
        """See `Shape.wholes`."""
        conversation = self._conversation(sample)
        return () if conversation is None else (conversation,)

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
        asked: list[Asked] = []
        sides: dict[str, Conversation] = {}
        prompt = sample.prompt or ""
        for key, answer in (("chosen", sample.chosen), ("rejected", sample.rejected)):
            if isinstance(prompt, str) and isinstance(answer, str):
                asked.append(pair_text(self.tools, key, prompt, answer))
            elif isinstance(prompt, str) or isinstance(answer, str):
                raise InputError(f"prompt and {key} must both be strings, or both messages")
            else:
                sides[key] = with_answer(prompt, answer)
        for key, texts in zip(sides, self.tools.mark(list(sides.values()), tally) if sides else [], strict=True):
            if len(texts) > 1:
                raise InputError(
                    f"{key} has several turns that the template writes differently when more follow, and a pair cannot "
                    "be split: move all but the last one to the prompt, or choose `mask: {unstable: drop}`"
                )
            asked.append(Asked(key, texts[0], self.tools.chat_ends, is_checked=True, roles=roles_of(sides[key])))
        return asked

    def wholes(self, sample: Preference) -> Sequence[Conversation]:
        """See `Shape.wholes`."""
        prompt, answers = sample.prompt, (sample.chosen, sample.rejected)
        if not isinstance(prompt, Conversation):
            return ()
        return [with_answer(prompt, answer) for answer in answers if isinstance(answer, Conversation)]

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


class PromptShape(Shape[Prompt]):
    """Stores ``prompts``, up to where the answer begins, and ``columns``, the other fields as the bytes of JSON."""

    def ask(self, sample: Prompt, tally: RecordCounts) -> list[Asked]:
        """Return the prompt as one sequence."""
        return [prompt_asked(self.tools, sample.prompt, tally)]

    def wholes(self, sample: Prompt) -> Sequence[Conversation]:
        """See `Shape.wholes`."""
        return (sample.prompt,) if isinstance(sample.prompt, Conversation) else ()

    def documents(self, sample: Prompt, found: Sequence[MadeSequence]) -> list[Document]:
        """Return one document with the prompt and the columns."""
        return [{"prompts": found[0].ids, "columns": columns_bytes(sample.columns)}]


class GroupShape(Shape[Group]):
    """Stores ``prompts``, ``responses`` one after another, their ``masks`` and ``response_lengths``, and ``rewards``.

    Prompt and response are encoded as one text and separated where the response begins. A response of one message that
    is only a text is what the model wrote, and follows the prompt as it is. The template renders all others. The prompt
    has the arguments of the template with which the template writes such responses, if there are any.
    """

    def ask(self, sample: Group, tally: RecordCounts) -> list[Asked]:
        """Return the prompt and then each response as a sequence."""
        prompt = sample.prompt
        if isinstance(prompt, str):
            asked = prompt_asked(self.tools, prompt, tally)
            return [asked, *(self._text(prompt, one) for one in sample.responses)]
        responses = [one for one in sample.responses if not isinstance(one, str)]
        if len(responses) < len(sample.responses):
            raise InputError(_MIXED)
        wholes = [with_answer(prompt, one) for one in responses]
        try:
            found = self.tools.mark(wholes, tally)
        except (DroppedError, InputError):
            if not all(map(self._is_sampled, responses)):
                raise
            found = []
        kwargs = prompt.template_kwargs | dict(found[0][0].switch if found else ())
        prompt = msgspec.structs.replace(prompt, template_kwargs=kwargs)
        noted = RecordCounts()
        asked = prompt_asked(self.tools, prompt, noted)
        # Each response that was marked has counted the prompt's other notes.
        tally.note({name: count for name, count in noted.notes.items() if not found or name == CONTINUED_PROMPTS})
        before = asked.marked.text
        return [
            asked,
            *(
                self._sampled(whole, before, tally)
                if self._is_sampled(one)
                else self._response(whole, found[number], before, tally)
                for number, (whole, one) in enumerate(zip(wholes, responses, strict=True))
            ),
        ]

    def _is_sampled(self, response: Conversation | str) -> bool:
        """Return whether a response is a text that a model wrote as it stands, which no template may rewrite."""
        if isinstance(response, str) or response.train or response.train_spans:
            return isinstance(response, str)
        [first, *others] = response.messages
        is_text = not others and len(first) == 2 and first["role"] == "assistant" and isinstance(first["content"], str)
        return is_text and first["content"].strip() != "" and self.tools.recipe.ends.response_end == "turn"

    def wholes(self, sample: Group) -> Sequence[Conversation]:
        """See `Shape.wholes`."""
        prompt = sample.prompt
        if not isinstance(prompt, Conversation):
            return ()
        return [prompt, *(with_answer(prompt, one) for one in sample.responses if isinstance(one, Conversation))]

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

    def _text(self, prompt: str, response: Conversation | str) -> Asked:
        if not isinstance(response, str):
            raise InputError(_MIXED)
        ends = Ends(after=self.tools.answer_ends.after, is_trained=True)
        text = plain((prompt, False), (response, True))
        return Asked("responses", text, ends, begin=len(prompt), roles=("prompt", "answer"), may_be_empty=True)

    def _sampled(self, whole: Conversation, before: str, tally: RecordCounts) -> Asked:
        marker = self.tools.marker
        marked = None if marker is None else marker.mark_sampled(before, self.tools.with_kwargs(whole))
        if marked is None:  # nobody knows how the template ends a turn
            return self._response(whole, self.tools.mark([whole], tally)[0], before, tally)
        return Asked("responses", marked, is_checked=True, begin=len(before), roles=roles_of(whole))

    def _response(self, whole: Conversation, texts: list[Marked], before: str, tally: RecordCounts) -> Asked:
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
            end = _end_of_turn(marked, len(whole.messages) - 1)
        return Asked("responses", marked, is_checked=True, begin=len(before), end=end, roles=roles_of(whole))


_MIXED = "prompt and responses must all be strings, or all messages"


def prompt_asked(tools: Tools, prompt: Conversation | str, tally: RecordCounts) -> Asked:
    """Return the sequence of a prompt; for a conversation it ends where the assistant's answer begins."""
    if isinstance(prompt, str):
        text, ends = prompt, tools.text_ends(is_trained=False)
    else:
        text, ends = tools.text(prompt, tally, is_prompt=True), tools.chat_ends
    return Asked("prompts", plain((text, False)), ends._replace(after=np.zeros(0, np.uint32)))


def _end_of_turn(marked: Marked, message: int) -> int | None:
    """Return the position after the token that ends the turn of a message, or None."""
    ends = [piece.end for piece in marked.pieces if piece.region == Region.END_OF_TURN and piece.message == message]
    return ends[-1] if ends else None


Record = Mapping[str, Any]


class SectionsShape(Shape[Record]):
    """Makes documents from the fields of a record; the record itself is the sample.

    A field that is missing, null or blank adds no text. A record without any text is dropped as ``empty``; with several
    keys, a record that lacks one of them is dropped as ``no_KEY``.
    """

    def __init__(self, tools: Tools, spec: InputSpec | None) -> None:
        super().__init__(tools)
        options = spec or InputSpec()
        self._fields = Fields("sections", options.fields)
        self._reader = MessageReader(options)
        self._sources = tools.recipe.sources or {"tokens": Source(sections=tools.recipe.sections)}

    def ask(self, sample: Record, tally: RecordCounts) -> list[Asked]:
        """Return the sequences of a record; see `Shape.ask`."""
        asked: list[Asked] = []
        for key, source in self._sources.items():
            if source.is_value:
                self._numbers(sample, source.sections[0])
            elif source.list_field:
                asked += self._listed(sample, key, source.sections[0], tally)
            elif source.sections:
                asked += self._sequence(sample, key, source.sections, tally)
        return asked

    def documents(self, sample: Record, found: Sequence[MadeSequence]) -> list[Document]:
        """Return the document of a record, or several if a template splits it; see `Shape.documents`."""
        recipe = self.tools.recipe
        if recipe.sections:
            return [single_document(recipe, one) for one in found]
        document: Document = {}
        for key, source in recipe.sources.items():
            own = [one for one in found if one.key == key]
            if source.is_value:
                document[key] = np.array(self._numbers(sample, source.sections[0]), np.float64)
            elif source.sections:
                document[key] = np.concatenate([one.ids for one in own])
                document[mask_key(key, source)] = np.concatenate([one.mask for one in own])
                if source.list_field:
                    document[lengths_key(key)] = np.array([len(one.ids) for one in own], np.int32)
        return [document]

    def _sequence(self, record: Record, key: str, sections: Sequence[Section], tally: RecordCounts) -> list[Asked]:
        parts: list[tuple[Section, list[Marked]]] = []
        for section in sections:
            texts = self._texts(record, section, tally)
            if texts:
                parts.append((section, texts))
        if not parts:
            if self.tools.recipe.sections:
                raise DroppedError("empty", "none of the fields of its sections holds text")
            raise DroppedError(f"no_{key}", f"none of the fields of {key!r} holds text")
        ends = self._ends(parts)
        is_checked = any(section.action != "mask" for section in sections) and self.tools.recipe.type != "seq"
        if len(parts) == 1 and not self.tools.recipe.sources:
            return [Asked(key, text, ends, is_checked) for text in parts[0][1]]
        if any(len(texts) > 1 for _, texts in parts):
            raise InputError(
                f"{key}: the template writes some turns differently when more follow, and only a document with one key "
                "and without other sections can be split: choose `mask: {unstable: drop}` or `last_turn`"
            )
        return [Asked(key, joined([texts[0] for _, texts in parts]), ends, is_checked)]

    def _texts(self, record: Record, section: Section, tally: RecordCounts) -> list[Marked]:
        """Return the texts of one section: none if the field is empty, several if a conversation is split."""
        value = self._fields.get(record, section.field)
        if value is None or (isinstance(value, str) and not value.strip() and not section.template):
            return []
        return self._marked(value, section, self._fields.name(section.field), tally)

    def _marked(self, value: Any, section: Section, place: str, tally: RecordCounts) -> list[Marked]:
        """Return the texts of a value: one of a string or a number, several if a conversation is split."""
        if section.template:
            return self._rendered(value, section, place, tally)
        if isinstance(value, bool | int | float):
            value = str(value)
        if not isinstance(value, str):
            raise wrong(place, value, "a string, or messages with `template: true`")
        name = self._fields.name(section.field)
        return [plain((self.tools.contents.take(check_text(value, place), tally, name), section.action == "train"))]

    def _rendered(self, value: Any, section: Section, place: str, tally: RecordCounts) -> list[Marked]:
        conversation = self._reader.read(value, place)
        if not conversation.messages:
            return []
        if section.action != "mask":
            tally.note_unread(len(unread_flags(conversation)))
        [texts] = self.tools.mark([self._flagged(self.tools.contents.take(conversation, tally), section)], tally)
        return texts

    def _flagged(self, conversation: Conversation, section: Section) -> Conversation:
        """Return the conversation with a flag for each message; a message's own flag takes precedence."""
        own = conversation.train or (None,) * len(conversation.messages)
        flags = []
        for message, flag in zip(conversation.messages, own, strict=True):
            if flag is None:
                flag = (
                    self.tools.recipe.trains(message["role"])
                    if section.action == "$role"
                    else section.action == "train"
                )
            flags.append(flag)
        return msgspec.structs.replace(conversation, train=tuple(flags))

    def _listed(self, record: Record, key: str, section: Section, tally: RecordCounts) -> list[Asked]:
        value = self._fields.get(record, section.field)
        if value is None or value == []:
            raise DroppedError(f"no_{key}", f"field {self._fields.name(section.field)!r} holds no list")
        if not isinstance(value, list | tuple):
            raise self._fields.wrong(section.field, value, "a list, since the source is a list_field")
        asked = []
        for number, entry in enumerate(value):
            place = f"{self._fields.name(section.field)}[{number}]"
            texts = self._marked(entry, section, place, tally)
            if len(texts) != 1:
                raise InputError(
                    f"{place} is {describe(entry)}, which makes {len(texts)} texts; it must be messages that make "
                    "exactly one"
                )
            if section.template:
                asked.append(Asked(key, texts[0], self.tools.chat_ends, section.action != "mask"))
            else:
                asked.append(Asked(key, texts[0], self._with_eos(Ends(), section), may_be_empty=True))
        return asked

    def _numbers(self, record: Record, section: Section) -> list[float]:
        value = self._fields.get(record, section.field)
        if value is None:
            raise DroppedError(f"no_{section.field}", f"field {self._fields.name(section.field)!r} holds no number")
        numbers = list(value) if isinstance(value, list | tuple) else [value]
        for number in numbers:
            if not isinstance(number, bool | int | float):
                raise self._fields.wrong(section.field, number, "a number, or a list of numbers")
        return numbers

    def _ends(self, parts: Sequence[tuple[Section, list[Marked]]]) -> Ends:
        """Return the tokeniser's tokens around a text if a section asks for them, else BOS before a template's text."""
        last = parts[-1][0]
        first = parts[0][0]
        asks = [
            section.add_special_tokens
            if section.add_special_tokens is not None
            else section is first and not section.template
            for section, _ in parts
        ]
        is_chat = any(section.template for section, _ in parts)
        is_left = self.tools.ends.when == "known" and not is_chat
        ends = Ends() if is_left else self.tools.ends.begin(is_text=any(asks) and not is_chat)
        if any(asks):
            before, after = self.tools.ends.around
            if len(before):
                ends = Ends(before)
            ends = ends._replace(after=after, is_trained=last.action == "train")
        return self._with_eos(ends, last)

    def _with_eos(self, ends: Ends, last: Section) -> Ends:
        if not self.tools.recipe.appends_eos or last.template:
            return ends
        return ends._replace(after=self.tools.ends.eos, is_trained=last.action == "train")
