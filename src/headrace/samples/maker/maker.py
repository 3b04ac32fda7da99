"""`SampleMaker`: makes arrays by key from records, as a recipe describes them."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from headrace.config import describe
from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.samples.conversation import Conversation
from headrace.samples.layouts import EachLayout, Layout, Sample, make_layout
from headrace.samples.layouts.fields import Fields, NullFields, check_text
from headrace.samples.layouts.turns import AUTO, EACH, InputSpec, unread_of_record
from headrace.samples.maker.block import MadeDocuments, SampleBlock
from headrace.samples.maker.contents import Contents, check_media
from headrace.samples.maker.noticing import conversations_of, notices
from headrace.samples.maker.sequences import Asked, EndTokens, MadeSequence, RecordCounts, Sequencer, alike, whole
from headrace.samples.maker.shapes import (
    GroupShape,
    PairShape,
    PromptShape,
    SectionsShape,
    Shape,
    SingleShape,
    Tools,
    as_chat,
)
from headrace.samples.masking.marking import Marker
from headrace.samples.masking.options import TextEncoder
from headrace.samples.masking.results import DROPPED_NULL_ARGUMENTS, TOO_LONG, DroppedError, EncodedText
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe.recipe import MAKES, Recipe, StoreKey, store_keys
from headrace.samples.templates.chat_template import ChatTemplate
from headrace.samples.tokenizer import TokenizerFile

DEFAULT_DOMAIN = "__default__"
"""The domain of a record without a usable value of ``domain_key``, as in AstrAI."""

MAX_DOMAIN_CHARS = 100
_HEAD_ROLES = ("system", "developer")
T = TypeVar("T")

_SHAPES: dict[str, Any] = {
    "seq": SingleShape,
    "sft": SingleShape,
    "dpo": PairShape,
    "grpo": GroupShape,
    "prompt": PromptShape,
}


class Explained(NamedTuple):
    """One sequence of a record, to be shown to people."""

    key: str
    text: str
    """The rendered text."""

    sample: EncodedText
    """The tokens with their evidence: ``sample.evidence.tokens(sample)``."""


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A record whose sequences are not encoded yet."""

    number: int
    sample: Any
    asked: list[Asked]
    tally: RecordCounts
    domain: str


class SampleMaker:
    """Makes the samples of one recipe, one input and one tokeniser.

    It is deterministic, and a record never changes what becomes of another, so records may be divided into blocks in
    any way. A maker holds compiled templates and a tokeniser: pass its arguments, not the maker itself, to another
    process.

    Args:
        recipe: The recipe, with the layout of the input filled in; see `resolve_layout`.
        tokenizer: A ``tokenizer.json``, or its bytes.
        template: The chat template; None if no record is a conversation.
        encoder: A faster encoder that returns the same ids as `tokenizers`; None uses `tokenizers`.
        special_tokens: ``bos_token`` and ``eos_token``, if there is no template that names them.
        before_text: The ids with which the tokeniser begins a text; None: those that its post-processor adds.
        generation_ends: Tokens at which the model's ``generation_config.json`` ends a generated text.
        source: The number of the input in the recipe.

    Attributes:
        keys: The keys that are stored, the main key first.

    Raises:
        ConfigError: If the layout is not known, a token is not known, or a dtype is too narrow for the vocabulary.

    Example:
        >>> from pathlib import Path
        >>> from headrace.samples.maker import SampleMaker
        >>> from headrace.samples.recipe import make_recipe
        >>> inputs = {"paths": "pairs.jsonl", "layout": "completion"}
        >>> recipe = make_recipe({"type": "sft", "inputs": inputs, "ends": {"append_eos": False}})
        >>> maker = SampleMaker(recipe, Path("tokenizer.json").read_bytes())
        >>> made = maker.make([{"prompt": "word1 word2", "completion": " word3"}])
        >>> made.arrays["tokens"].values.tolist(), made.arrays["loss_mask"].values.tolist()
        ([3, 4, 5], [0, 0, 1])
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: TokenizerFile | bytes,
        *,
        template: ChatTemplate | None = None,
        encoder: TextEncoder | None = None,
        special_tokens: Mapping[str, str] | None = None,
        before_text: Sequence[int] | None = None,
        generation_ends: Sequence[str] = (),
        source: int = 0,
    ) -> None:
        spec = recipe.inputs[source] if recipe.inputs else None
        self._spec: InputSpec | None = spec
        self.recipe = recipe
        self.keys: tuple[StoreKey, ...] = store_keys(recipe)
        file = TokenizerFile.of(tokenizer)
        spans = SpanEncoder(file, encoder)
        self._number_keys = [key for key in self.keys if key.kind in ("reward", "value")]
        # Most recipes have no such limits, and then no record pays for the check.
        filters = recipe.filters
        self._limits_chars = filters.min_chars is not None or filters.max_chars is not None
        self._limits_tokens = filters.min_tokens is not None or filters.max_tokens is not None
        self.dtypes = {key.name: key.resolve(file.num_ids) for key in self.keys}
        tokens = dict(special_tokens or {}) | (dict(template.special_tokens) if template is not None else {})
        known_ends = (tokens.get("eos_token"), recipe.ends.eos)
        self._contents = Contents(recipe, spans, template)
        marker = (
            Marker(template, recipe.mask, spans.special_texts, known_ends, generation_ends)
            if template is not None
            else None
        )
        tools = Tools(
            recipe=recipe,
            ends=EndTokens(file, tokens, bos=recipe.ends.bos, eos=recipe.ends.eos, before_text=before_text),
            template=template,
            marker=marker,
            contents=self._contents,
        )
        bos = tokens.get("bos_token")
        self._sequencer = Sequencer(
            spans, recipe.mask, recipe.length, spans.tokenizer.token_to_id(bos) if bos is not None else None
        )
        self._layout: Layout | EachLayout | None = None
        self._shape: Shape[Any]
        if recipe.by_sections:
            self._shape = SectionsShape(tools, spec)
        else:
            if spec is None or spec.layout == AUTO:
                raise ConfigError(
                    f"inputs[{source}].layout is not known: resolve_layout recognises it from the first records"
                )
            is_each = spec.layout == EACH
            self._layout = EachLayout(spec, MAKES[recipe.type]) if is_each else make_layout(spec.layout, spec)
            self._shape = _SHAPES[recipe.type](tools)

    def make(self, records: Sequence[Any]) -> MadeDocuments:
        """Return the documents of these records, after a check that all counts balance.

        Raises:
            RenderLimitError: If the template exceeds its bounds of time or memory; names the number of the record.
            HeadraceError: If the counts do not balance.
        """
        block = SampleBlock(len(records))
        tallies = [RecordCounts() for _ in records]
        samples = _each(range(len(records)), lambda at: self._checked(records[at], tallies[at]), block)
        self._shape.tools.render_ahead(itertools.chain.from_iterable(map(self._shape.wholes, samples.values())))
        asked = _each(samples, lambda at: self._ask(at, records[at], samples[at], tallies[at]), block)
        waiting = asked.values()
        # All records are encoded together; if that fails, one by one, to find the bad one.
        try:
            encoded = self._sequencer.encode([asked for entry in waiting for asked in entry.asked])
        except InputError:
            encoded = []
        place = 0
        for entry in waiting:
            own = encoded[place : place + len(entry.asked)] if encoded else None
            place += len(entry.asked)
            self._finish(entry, own, block)
        block.note_special(tallies)
        return block.result(self.keys, self.dtypes, with_domains=self.recipe.output.domain_key is not None)

    def explain(self, record: Any) -> list[Explained]:
        """Return the sequences of one record with rendered text, tokens, mask, and the evidence for each token.

        The sequences are not cut and have no added end tokens; `make` returns what is stored.

        Raises:
            InputError: If the record is bad.
            DroppedError: If a policy drops the record.
        """
        tally = RecordCounts(with_all=True)
        asked = self._asked(self._checked(record, tally), tally)
        return [Explained(one.key, one.marked.text, self._sequencer.explain(one)) for one in asked]

    def notices(self, records: Sequence[Any]) -> list[str]:
        """Return notices about what the template may write differently from what was meant, and what helps."""
        template = self._shape.tools.template
        samples, found = [], []
        for number, record in enumerate(records):
            with contextlib.suppress(InputError):
                sample = self.sample(record)
                samples.append(sample)
                found += [
                    f"record {number} has {name!r}: {record[name]!r}, which is not followed: flags are read in "
                    "messages. If it says that the record is not trained, leave such records out, as with `--filter`. "
                    "All such records are counted as unread_flags"
                    for name in self._unread(record, sample)
                ]
        if template is None or self._layout is None:
            return found[:1]
        drops_nulls = self._spec is not None and self._spec.drop_nulls
        trains_all = self.recipe.type == "seq"
        return [*found[:1], *notices(samples, template, trains_all=trains_all, drops_nulls=drops_nulls)]

    def has_chats(self, records: Sequence[Any]) -> bool:
        """Return whether one of these records is a conversation, or has one in a field."""
        if self._layout is None:
            sections = [*self.recipe.sections, *(one for key in self.recipe.sources.values() for one in key.sections)]
            return any(section.template for section in sections)
        for record in records:
            with contextlib.suppress(InputError):
                if next(conversations_of(self.sample(record)), None) is not None:
                    return True
        return False

    def _unread(self, record: Mapping[str, Any], sample: Any) -> list[str]:
        """Return the fields of a record that seem to say that it is not trained as usual; see `unread_of_record`."""
        if self.recipe.type == "prompt":  # nothing is trained, and all fields are kept
            return []
        return unread_of_record(record, is_conversation=isinstance(sample, Conversation))

    def sample(self, record: Any, tally: RecordCounts | None = None) -> Any:
        """Return the sample that the layout reads in a record; with sections, the record itself.

        ``tally`` counts arguments that are left out.

        Raises:
            InputError: If the record is not of the layout.
        """
        if type(record) is not dict and not isinstance(record, Mapping):
            raise InputError(f"the record is {describe(record)}; it must be an object")
        if self._spec is not None and self._spec.drop_nulls:
            tools = Fields("", self._spec.fields).parsed(record, "tools", list) if self._layout is not None else None
            nulls = NullFields(tools)
            record = nulls.without(record)
            if tally is not None:
                tally.note({DROPPED_NULL_ARGUMENTS: nulls.num_arguments} if nulls.num_arguments else {})
        if self._layout is None:
            return record
        sample: Sample = self._layout.convert(record)
        check_media(record, sample, {} if self._spec is None else self._spec.fields)
        return as_chat(sample) if self.recipe.strings == "chat" else sample

    def _checked(self, record: Any, tally: RecordCounts) -> Any:
        sample = self.sample(record, tally)
        # With sections, the shape knows which fields are texts.
        return sample if self._layout is None else self._contents.take(sample, tally)

    def _asked(self, sample: Any, tally: RecordCounts) -> list[Asked]:
        asked = self._shape.ask(sample, tally)
        return list(map(self._contents.restored, asked)) if tally.has_stand_ins else asked

    def _ask(self, number: int, record: Any, sample: Any, tally: RecordCounts) -> _Waiting:
        domain = self._domain(record)
        tally.note_unread(len(self._unread(record, sample)))
        asked = self._asked(sample, tally)
        for one in asked:
            check_text(one.marked.text, "the text")
        if self._limits_chars:
            num_chars = sum(len(one.marked.text) - one.begin for one in asked)
            filters = self.recipe.filters
            _check_range(num_chars, filters.min_chars, filters.max_chars, "chars", "characters")
        return _Waiting(number, sample, asked, tally, domain)

    def _finish(self, record: _Waiting, encoded: list[EncodedText] | None, block: SampleBlock) -> None:
        """Finish one record and add it to the block; ``encoded`` None: its texts are not encoded yet."""
        made: list[MadeSequence] = []
        try:
            if encoded is None:
                encoded = self._sequencer.encode(record.asked)
            try:
                made = self._finished(record.asked, encoded, record.tally)
            except DroppedError:
                # The ledger counts its tokens as made and dropped.
                made = [whole(asked.key, row) for asked, row in zip(record.asked, encoded, strict=True)]
                raise
            if self._limits_tokens:
                num_tokens = sum(one.num_made for one in made)
                filters = self.recipe.filters
                _check_range(num_tokens, filters.min_tokens, filters.max_tokens, "tokens", "tokens")
            kept = self._cut(record.sample, made, record.tally)
            stored = [one for one in kept if not one.dropped]
            if record.tally.notes.get("split_records"):
                record.tally.notes["split_tokens"] += sum(one.num_made for one in stored[:-1])
            documents = self._shape.documents(record.sample, stored)
            self._check_numbers(documents)
            _check_sides(stored)
        except (DroppedError, InputError) as error:
            block.drop_record(record.number, error, made)
        else:
            block.take(record.number, made, kept, documents, record.tally, record.domain)

    def _finished(
        self, asked: Sequence[Asked], encoded: Sequence[EncodedText], tally: RecordCounts
    ) -> list[MadeSequence]:
        return [self._sequencer.finish(one, row, tally) for one, row in zip(asked, encoded, strict=True)]

    def _cut(self, sample: Any, sequences: list[MadeSequence], tally: RecordCounts) -> list[MadeSequence]:
        limit = self.recipe.length.max_tokens
        if limit is not None and self._sequencer.by_turns and any(len(one.ids) > limit for one in sequences):
            return self._shortened(sample, sequences, limit, tally)
        if tally.notes.get("split_records"):
            kept = self._cut_each(sequences, tally)
        else:
            if self.recipe.type == "dpo" and self.recipe.length.truncate == "keep_end" and not self.recipe.by_sections:
                sequences = alike(sequences, self.recipe.length.max_tokens)
            kept = [self._sequencer.cut(one) for one in sequences]
        if any(one.num_truncated for one in kept):
            tally.notes["truncated_records"] += 1
        return kept

    def _cut_each(self, sequences: Sequence[MadeSequence], tally: RecordCounts) -> list[MadeSequence]:
        """Cut the samples of a record that was split, each by itself: one that is too long drops no other."""
        kept: list[MadeSequence] = []
        for one in sequences:
            try:
                kept.append(self._sequencer.cut(one))
            except DroppedError as error:
                kept.append(msgspec.structs.replace(one, dropped=error.reason))
                if all(other.dropped for other in kept) and len(kept) == len(sequences):
                    raise
        tally.notes["dropped_samples"] += sum(1 for one in kept if one.dropped)
        return kept

    def _shortened(
        self, sample: Any, sequences: list[MadeSequence], limit: int, tally: RecordCounts
    ) -> list[MadeSequence]:
        """Keep the most exchanges that fit and render them again."""
        fitting: tuple[list[MadeSequence], RecordCounts] | None = None
        dialogue = self._shape.dialogue(sample)
        if dialogue is not None:
            conversation, replaced = dialogue

            def made(shorter: Conversation) -> tuple[list[MadeSequence], RecordCounts] | None:
                trial = RecordCounts(has_stand_ins=tally.has_stand_ins)
                asked = self._asked(replaced(shorter), trial)
                found = self._finished(asked, self._sequencer.encode(asked), trial)
                return (found, trial) if all(len(one.ids) <= limit for one in found) else None

            first = self.recipe.length.truncate == "keep_first_turns"
            fitting = most_exchanges(conversation, made, first=first)
        if fitting is None:
            longest = max(len(one.ids) for one in sequences)
            raise DroppedError(
                TOO_LONG,
                f"it has {longest:,} tokens, length.max_tokens is {limit:,}, and not even one of its exchanges fits",
            )
        kept, trial = fitting
        tally.notes, tally.added = trial.notes, trial.added
        tally.notes["shortened_records"] += 1
        missing = Counter({one.key: 0 for one in sequences})
        for one in sequences:
            missing[one.key] += one.num_made
        for one in kept:
            missing[one.key] -= one.num_made
        # The tokens that a key lost altogether are counted with the first of its sequences.
        return [msgspec.structs.replace(one, num_truncated=missing.pop(one.key, 0)) for one in kept]

    def _check_numbers(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Refuse numbers that the dtype of their key would change.

        Raises:
            InputError: If there is such a number.
        """
        for key in self._number_keys:
            dtype = self.dtypes[key.name]
            for document in documents:
                values = document[key.name]
                with np.errstate(over="ignore", invalid="ignore"):
                    stored = values.astype(dtype)
                is_right = np.isfinite(values) & (np.isfinite(stored) if dtype.kind == "f" else stored == values)
                if not is_right.all():
                    wrong = values[~is_right][0]
                    raise InputError(
                        f"{key.stored!r} has the value {wrong}, which {dtype} cannot hold: correct it, or choose "
                        f"another dtype with `output: {{dtypes: {{{key.stored}: float64}}}}`"
                    )

    def _domain(self, record: Any) -> str:
        key = self.recipe.output.domain_key
        if key is None:
            return DEFAULT_DOMAIN
        value = record.get(key) if isinstance(record, Mapping) else None
        if not isinstance(value, str):
            return DEFAULT_DOMAIN
        is_plain = value.isprintable() and not set(value) & set('/\\:*?"<>|') and value.strip(" .") == value
        if not value or not is_plain or len(value) > MAX_DOMAIN_CHARS:
            raise InputError(
                f"field {key!r} is {describe(value)}, which cannot name a folder: allowed are 1 to {MAX_DOMAIN_CHARS} "
                'printable characters without / \\ : * ? " < > |, with no dot or space at either end'
            )
        return value


def _each(numbers: Iterable[int], make: Callable[[int], T], block: SampleBlock) -> dict[int, T]:
    """Return what is made of each record, by its number; records that are dropped or bad are left to the block.

    Raises:
        RenderLimitError: If the template exceeds its bounds of time or memory; names the number of the record.
    """
    found = {}
    for number in numbers:
        try:
            found[number] = make(number)
        except RenderLimitError as error:
            raise error.at(number) from None
        except (DroppedError, InputError) as error:
            block.drop_record(number, error)
    return found


def most_exchanges(conversation: Conversation, make: Callable[[Conversation], T | None], *, first: bool) -> T | None:
    """Return what ``make`` returns for the most exchanges that fit, or None if not even one does.

    ``make`` is called with the conversation shortened to its first or last exchanges, a logarithmic number of times,
    and returns None if the result is too long.
    """
    best: T | None = None
    low, high = 0, len(exchanges(conversation)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        made = make(shortened(conversation, middle, first=first))
        if made is None:
            high = middle - 1
        else:
            low, best = middle, made
    return best


def exchanges(conversation: Conversation) -> list[int]:
    """Return the messages at which an exchange begins: user messages that do not follow another user message.

    Messages before the first of them are the head, which is kept; but if they hold an answer, it is an exchange too.
    """
    roles = [message.get("role") for message in conversation.messages]
    head = next((number for number, role in enumerate(roles) if role not in _HEAD_ROLES), len(roles))
    begins = [
        number for number, role in enumerate(roles) if role == "user" and (number == 0 or roles[number - 1] != role)
    ]
    return begins if not begins or begins[0] <= head or head == len(roles) else [head, *begins]


def shortened(conversation: Conversation, kept: int, *, first: bool) -> Conversation:
    """Return the head of a conversation and its ``kept`` first or last exchanges."""
    begins = [*exchanges(conversation), len(conversation.messages)]
    head = range(begins[0])
    rest = range(begins[0], begins[kept]) if first else range(begins[len(begins) - 1 - kept], begins[-1])
    chosen = [*head, *rest]
    return msgspec.structs.replace(
        conversation,
        messages=[conversation.messages[number] for number in chosen],
        train=tuple(conversation.train[number] for number in chosen) if conversation.train else (),
        train_spans=tuple(conversation.train_spans[number] for number in chosen) if conversation.train_spans else (),
    )


def _check_sides(sequences: Sequence[MadeSequence]) -> None:
    """Refuse a pair whose sides became the same tokens: its loss would be log 2, and its gradient 0.

    Raises:
        InputError: If they are the same.
    """
    sides = [one.ids for one in sequences if one.key in ("chosen", "rejected")]
    if len(sides) == 2 and np.array_equal(sides[0], sides[1]):
        raise InputError(
            f"chosen and rejected become the same {len(sides[0]):,} tokens, so there is nothing to prefer: what "
            "differs in the record is cut off, or the template does not write it"
        )


def _check_range(found: int, low: int | None, high: int | None, unit: str, words: str) -> None:
    if low is not None and found < low:
        raise DroppedError(f"min_{unit}", f"it has {found:,} {words}; at least {low:,} are required")
    if high is not None and found > high:
        raise DroppedError(f"max_{unit}", f"it has {found:,} {words}; at most {high:,} are allowed")
