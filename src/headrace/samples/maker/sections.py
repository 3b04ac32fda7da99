"""Samples that a recipe describes field by field (`sections`, `sources`): one key, or one key for each source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.layouts.fields import Fields, check_text
from headrace.samples.layouts.turns import LayoutOptions, MessageReader
from headrace.samples.maker.ends import Ends
from headrace.samples.maker.sequences import Asked, MadeSequence, RecordCounts, joined, plain
from headrace.samples.maker.shapes import Document, Shape, Tools, single_document
from headrace.samples.masking.marking import Marked
from headrace.samples.masking.results import DroppedError
from headrace.samples.recipe.recipe import InputSpec, Section, Source, lengths_key, mask_key

Record = Mapping[str, Any]


class SectionsShape(Shape[Record]):
    """Makes documents from the fields of a record; the record itself is the sample.

    A field that is missing, null or blank adds no text. A record without any text is dropped as ``empty``; with several
    keys, a record that lacks one of them is dropped as ``no_KEY``.
    """

    def __init__(self, tools: Tools, spec: InputSpec | None) -> None:
        super().__init__(tools)
        options = spec.options if spec is not None else LayoutOptions()
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
        if len(parts) == 1:
            texts = parts[0][1]
            if len(texts) > 1 and self.tools.recipe.sources:
                raise InputError(
                    f"{key}: the template writes some turns differently when more follow, and only a document with one "
                    "key can be split: choose `mask: {unstable: drop}` or `last_turn`"
                )
            return [Asked(key, text, ends, is_checked) for text in texts]
        if any(len(texts) > 1 for _, texts in parts):
            raise InputError(
                f"{key}: the template writes some turns differently when more follow, and a conversation beside other "
                "sections cannot be split: choose `mask: {unstable: drop}` or `last_turn`"
            )
        return [Asked(key, joined([texts[0] for _, texts in parts]), ends, is_checked)]

    def _texts(self, record: Record, section: Section, tally: RecordCounts) -> list[Marked]:
        """Return the texts of one section: none if the field is empty, several if a conversation is split."""
        value = self._fields.get(record, section.field)
        if value is None:
            return []
        if section.template:
            return self._rendered(value, section, self._fields.name(section.field), tally)
        if isinstance(value, bool | int | float):
            value = str(value)
        if not isinstance(value, str):
            raise self._fields.wrong(section.field, value, "a string, or messages with `template: true`")
        if not value.strip():
            return []
        return [plain((check_text(value, self._fields.name(section.field)), section.action == "train"))]

    def _rendered(self, value: Any, section: Section, place: str, tally: RecordCounts) -> list[Marked]:
        conversation = self._reader.read(value, place)
        if not conversation.messages:
            return []
        return self.tools.mark(self._flagged(conversation, section), tally)

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
            if section.template:
                texts = self._rendered(entry, section, place, tally)
                if len(texts) != 1:
                    raise InputError(
                        f"{place} is {describe(entry)}, which makes {len(texts)} texts; it must be messages that make "
                        "exactly one"
                    )
                asked.append(Asked(key, texts[0], self.tools.chat_ends, section.action != "mask"))
                continue
            if not isinstance(entry, str | bool | int | float):
                raise InputError(
                    f"{place} is {describe(entry)}; allowed is a string, or messages with `template: true`"
                )
            text = plain((check_text(str(entry), place), section.action == "train"))
            asked.append(Asked(key, text, self._with_eos(Ends(), section), may_be_empty=True))
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
        ends = self.tools.chat_ends if any(section.template for section, _ in parts) else Ends()
        if any(asks):
            before, after = self.tools.ends.around
            ends = Ends(before if len(before) else ends.before, after, last.action == "train")
        return self._with_eos(ends, last)

    def _with_eos(self, ends: Ends, last: Section) -> Ends:
        if not self.tools.recipe.appends_eos or last.template:
            return ends
        return ends._replace(after=self.tools.ends.eos, is_trained=last.action == "train")
