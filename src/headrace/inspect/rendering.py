"""Renderings: one record of a recipe on its way to the store, as a `Rendering`.

The record is read from the inputs and goes through the maker that a run of the recipe would use: layout, messages,
rendered text, tokens, which of them are trained and why, and what is kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.errors import ConfigError, HeadraceError, InputError
from headrace.inspect.answers import OnProgress, unseen
from headrace.inspect.blocks import ShownSequence
from headrace.inspect.figures import count
from headrace.inspect.shown import EvidenceRow, Outcome, RecordPart, RenderedSequence, Rendering
from headrace.inspect.token_texts import TokenGroup, divided, runs
from headrace.preparing import read_recipe
from headrace.preparing.recipes import find_template, find_tokenizer, with_inputs
from headrace.preparing.record_encoder import find_end_names, make_maker
from headrace.preparing.run_plan import RecipeSetup
from headrace.preparing.sources import RecordSpec, Span, counted_from, find_inputs, open_span, record_noun
from headrace.samples import Conversation, Group, Prompt
from headrace.samples.layouts import NUM_RECORDS, Sample
from headrace.samples.maker import Explained, MadeDocuments, SampleMaker
from headrace.samples.masking import DroppedError, TokenEvidence
from headrace.samples.masking.results import SUPERVISION_CUT
from headrace.samples.recipe import LengthSpec, Recipe, resolve_layout, with_now
from headrace.samples.recipe.recipe import lengths_key
from headrace.samples.templates import ChatTemplate


def parts_of(sample: Sample | None) -> tuple[RecordPart, ...]:
    """Return the texts and conversations of a record; none for a record that is read field by field."""
    if isinstance(sample, Conversation):
        return (_part("messages", sample),)
    values = msgspec.structs.asdict(sample) if isinstance(sample, msgspec.Struct) else {}
    parts = [_part(name, value) for name, value in values.items() if isinstance(value, str | Conversation)]
    if isinstance(sample, Group):
        responses = zip(sample.responses, sample.rewards, strict=True)
        parts += [_part(f"response {number}", text, reward) for number, (text, reward) in enumerate(responses)]
    return tuple(parts)


def columns_of(sample: object) -> dict[str, Any] | None:
    """Return the columns that are passed through with a prompt; for a record read field by field, all fields."""
    if isinstance(sample, Prompt):
        return sample.columns
    return dict(sample) if isinstance(sample, Mapping) else None


def _part(name: str, value: Conversation | str, reward: float | None = None) -> RecordPart:
    if isinstance(value, str):
        return RecordPart(name=name, text=value, reward=reward)
    return RecordPart(
        name=name,
        messages=value.messages,
        tools=value.tools,
        template_kwargs=value.template_kwargs,
        train=value.train,
        reward=reward,
    )


class OpenedMaker(NamedTuple):
    """A maker, with its tokeniser and its template."""

    maker: SampleMaker
    tokenizer: Tokenizer
    template: ChatTemplate | None


def open_maker(recipe: Recipe, source: int, tokenizer: str | None = None) -> OpenedMaker:
    """Return the maker for an input of a recipe whose layouts are known.

    Args:
        recipe: the recipe.
        source: the number of the input.
        tokenizer: the tokeniser, if the recipe names none.

    Raises:
        ConfigError: there is no tokeniser, the tokeniser or the template cannot be read, or the maker refuses the
            recipe.
    """
    loaded, folder = find_tokenizer(recipe, tokenizer)
    recipe, setup = find_template(recipe, folder, {})
    names = find_end_names(loaded.known, folder, setup)
    making = RecipeSetup(
        recipe=msgspec.json.encode(recipe),
        sources=(source,),
        template=None if setup is None else msgspec.json.encode(setup),
        special_tokens=names.tokens,
        before_text=loaded.known.before_text,
        generation_ends=names.generation_ends,
    )
    return OpenedMaker(
        make_maker(making, loaded.file, source=source),
        loaded.file.encoder(),
        None if setup is None else ChatTemplate(setup),
    )


TELL_EVERY = 1 << 10


class FoundRecord(NamedTuple):
    """A record, its place, and the first records of its input, by which the layout is recognised."""

    record: Any
    source: int
    """The number of the input in the recipe."""

    input: str
    place: str
    first: list[Any]


def find_record(recipe: Recipe, number: int, on_progress: OnProgress = unseen) -> FoundRecord:
    """Find record ``number``, counted from 0 over all inputs in order. Bad records count, blank lines do not.

    This reads the inputs up to the record.

    Raises:
        ConfigError: there is no such record, or no such file.
        InputError: the record cannot be read.
    """
    if number < 0:
        raise ConfigError(f"`record={number}`: records are counted from 0")
    reached = 0
    for source, spec in enumerate(recipe.inputs):
        first: list[Any] = []
        found: FoundRecord | None = None
        paths = [spec.paths] if isinstance(spec.paths, str) else list(spec.paths)
        for name, place, record in _records(paths):
            if reached == number:
                if isinstance(record, InputError):
                    raise InputError(f"{name}, {place}: {record}")
                found = FoundRecord(record, source, name, place, first)
            if not isinstance(record, InputError) and len(first) < NUM_RECORDS:
                first.append(record)
            reached += 1
            if reached % TELL_EVERY == 0:
                on_progress("reading", text=f"{count(reached)} records", speeds={"records": reached})
            if found is not None and len(first) >= NUM_RECORDS:
                break
        if found is not None:
            return found
    raise ConfigError(f"`record={number}`: the inputs have only {reached:,} records, counted from 0")


def _records(paths: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield file, place in words, and the record, or an InputError if it cannot be read."""
    spec = RecordSpec(fields=(), whole=True)
    for file in find_inputs(paths, spec=spec):
        unit = record_noun(file.format, spec.sample_by)
        for block in open_span(file, Span(0, 0, file.extent), spec).blocks():
            found: dict[int, Any] = dict(zip(block.lines.tolist(), block.records or [], strict=True))
            found |= {entry.line: InputError(entry.message) for entry in block.bad}
            for line in sorted(found):
                yield file.name, f"{unit} {line + counted_from(unit):,}", found[line]


_MOST_ADDED = 2
"""The most tokens that may be added at either end of a sequence."""


class KeptTokens(NamedTuple):
    """Which tokens of a sequence are stored, and the ids that are added before and after them."""

    is_kept: NDArray[np.bool_]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def kept_tokens(
    whole: NDArray[Any], stored: NDArray[Any], *, from_end: bool, borders: Collection[int] = ()
) -> KeptTokens | None:
    """Find which of the tokens ``whole`` are ``stored``; None if the stored ones are other tokens.

    What is stored is one stretch of the tokens or, if exchanges were removed from the middle, a beginning and an end.
    Up to two tokens at either end may have been added.

    Args:
        whole: all tokens of the sequence.
        stored: the tokens in the store.
        from_end: if there are several such stretches, choose the last one.
        borders: where messages begin; exchanges are removed there.
    """
    size = len(stored)
    for before in range(min(_MOST_ADDED, size) + 1):
        for after in range(min(_MOST_ADDED, size - before) + 1):
            core = stored[before : size - after]
            place = _find(core, whole, from_end=from_end)
            if place is not None:
                is_kept = np.zeros(len(whole), np.bool_)
                is_kept[place : place + len(core)] = True
                return KeptTokens(is_kept, tuple(stored[:before].tolist()), tuple(stored[size - after :].tolist()))
    for before in range(min(_MOST_ADDED, size) + 1):
        core = stored[before:]
        if len(core) > len(whole):
            continue
        begin = _num_equal(core, whole[: len(core)])
        end = _num_equal(core[::-1], whole[::-1][: len(core)])
        if begin + end >= len(core):
            # If messages have equal texts, several places are possible.
            places = range(len(core) - end, begin + 1)
            place = next((place for place in places if place in borders), places[0])
            is_kept = np.zeros(len(whole), np.bool_)
            is_kept[:place] = True
            is_kept[len(whole) - (len(core) - place) :] = True
            return KeptTokens(is_kept, tuple(stored[:before].tolist()))
    return None


def _num_equal(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Return how many values are equal, from the beginning on."""
    return int(np.argmin(np.append(one == other, False)))


def _find(part: NDArray[Any], whole: NDArray[Any], *, from_end: bool) -> int | None:
    """Return where the values of an array stand in another one, or None."""
    places = np.arange(max(0, len(whole) - len(part) + 1))
    for at, value in enumerate(part):
        places = places[whole[places + at] == value]
    return int(places[-1 if from_end else 0]) if len(places) else None


Rows = dict[str, list[NDArray[Any]]]
_RESPONSES = "responses"


def rendered_sequences(
    explained: Sequence[Explained], stored: Rows, tokenizer: Tokenizer, length: LengthSpec
) -> tuple[RenderedSequence, ...]:
    """Return the sequences that the record becomes, each with the tokens that are ``stored``."""
    special = frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    cut_at_begin = length.truncate in ("keep_end", "keep_last_turns") and length.first_tokens is None
    wanted = Counter(one.key for one in explained)
    taken: Counter[str] = Counter()
    found = []
    for one in explained:
        number = taken[one.key]
        taken[one.key] += 1
        rows = stored.get(one.key, [])
        row = rows[number] if len(rows) == wanted[one.key] else None
        kept = None
        if row is not None:
            from_end = cut_at_begin or one.key == _RESPONSES
            kept = kept_tokens(one.sample.ids, row, from_end=from_end, borders=_message_begins(one))
        if kept is not None and one.key == _RESPONSES:
            # The prompt before a response is stored under a key of its own.
            kept.is_kept[: int(np.argmax(kept.is_kept))] = True
        name = one.key if wanted[one.key] == 1 else f"{one.key.removesuffix('s')} {number}"
        found.append(_rendered(one, name, special, tokenizer, row, kept))
    return tuple(found)


def _message_begins(one: Explained) -> set[int]:
    if one.sample.evidence is None:
        return set()
    return {begin for begin, _ in runs(one.sample.evidence.messages.tolist())}


def stored_rows(maker: SampleMaker, made: MadeDocuments) -> Rows:
    """Return the stored sequences of each key of ids, in the order of the record."""
    names = {key.name: key.stored for key in maker.keys}
    found = {}
    for key in maker.keys:
        if key.kind != "ids" or not len(made):
            continue
        values, lengths = made.arrays[key.stored]
        if lengths_key(key.name) in names:
            lengths = made.arrays[names[lengths_key(key.name)]].values
        found[key.name] = np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
    return found


def first_or_last(rows: Rows, length: LengthSpec) -> Rows:
    """Return the rows as the length limits cut them, even if no trained token is left."""

    def cut(row: NDArray[Any]) -> NDArray[Any]:
        row = row[: length.first_tokens]
        if length.max_tokens is None or len(row) <= length.max_tokens:
            return row
        return row[-length.max_tokens :] if length.truncate == "keep_end" else row[: length.max_tokens]

    return {key: list(map(cut, some)) for key, some in rows.items()}


def _rendered(
    one: Explained,
    name: str,
    special: frozenset[int],
    tokenizer: Tokenizer,
    stored: NDArray[Any] | None,
    kept: KeptTokens | None,
) -> RenderedSequence:
    evidence = one.sample.evidence
    if evidence is None:
        raise HeadraceError("there is no evidence. This is a defect of Headrace: please report it.")
    tokens = list(evidence.tokens(one.sample))
    is_kept = [True] * len(tokens) if kept is None else kept.is_kept.tolist()
    facts = [
        (token.message, token.role, token.region, token.is_trained, token.why, keep)
        for token, keep in zip(tokens, is_kept, strict=True)
    ]
    ids = [token.id for token in tokens]
    is_special = [number in special for number in ids]
    stretches = divided(
        ids,
        _groups(one.text.encode(), tokens),
        alike=list(zip(facts, is_special, strict=True)),
        position=range(len(ids)),
        is_trained=[token.is_trained for token in tokens],
        is_special=is_special,
        role=[token.role for token in tokens],
        is_kept=is_kept,
    )
    texts = [text for stretch in stretches for text in stretch.texts]
    rows = tuple(
        _row(begin, tokens[begin:end], is_kept=is_kept[begin], text="".join(texts[begin:end]))
        for begin, end in runs(facts)
    )
    note = ""
    if stored is not None and kept is None:
        note = f"{len(stored):,} tokens are stored; since they were encoded anew, it is not shown which ones"
    return RenderedSequence(
        text=one.text,
        shown=ShownSequence(
            name=name,
            document=0,
            num_tokens=len(tokens),
            num_trained=one.sample.num_supervised,
            stretches=stretches,
        ),
        evidence=rows,
        num_stored=None if stored is None else len(stored),
        added_before=() if kept is None else _names(tokenizer, kept.before),
        added_after=() if kept is None else _names(tokenizer, kept.after),
        note=note,
    )


def _names(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(tokenizer.id_to_token(number) or str(number) for number in ids)


def _row(begin: int, tokens: Sequence[TokenEvidence], *, is_kept: bool, text: str) -> EvidenceRow:
    first = tokens[0]
    return EvidenceRow(
        begin=begin,
        end=begin + len(tokens),
        begin_bytes=first.begin_bytes,
        end_bytes=max(token.end_bytes for token in tokens),
        message=first.message,
        role=first.role,
        region=first.region.name.lower().replace("_", " "),
        is_trained=first.is_trained,
        why=first.words,
        is_kept=is_kept,
        text=text,
    )


def _groups(data: bytes, tokens: Sequence[TokenEvidence]) -> list[TokenGroup]:
    """Group the tokens of a text so that each group ends where a character does.

    Bytes that belong to no token are added to the group before them.
    """
    found: list[TokenGroup] = []
    begin = reached = 0
    for place, token in enumerate(tokens):
        reached = max(reached, token.end_bytes)
        is_last = place + 1 == len(tokens)
        until = len(data) if is_last else tokens[place + 1].begin_bytes
        is_inside = until < reached or (until < len(data) and data[until] & 0xC0 == 0x80)
        if is_inside and not is_last:
            continue
        own = tokens[begin : place + 1]
        first = own[0].begin_bytes if found else 0
        alone = (data[one.begin_bytes : one.end_bytes].decode(errors="backslashreplace") for one in own)
        text = data[first:until].decode(errors="backslashreplace")
        found.append(TokenGroup(begin, place + 1, text, tuple(alone) if len(own) > 1 else ()))
        begin = place + 1
    return found


def render(
    recipe: str | os.PathLike[str],
    record: int,
    *,
    input_path: str | None = None,
    tokenizer: str | None = None,
    now: str | None = None,
    on_progress: OnProgress = unseen,
) -> Rendering:
    """Return one record of a recipe on its way to the store: layout, messages, text, tokens and mask, and the evidence.

    A record that the recipe drops or refuses is shown as far as it gets, with the reason.

    Args:
        recipe: the path of the recipe, in YAML or JSON.
        record: the number of the record, counted from 0 over all inputs.
        input_path: a file to read in place of the recipe's only input.
        tokenizer: the tokeniser, if the recipe names none.
        now: the time that the template gets, in ISO 8601; by default the current time.
        on_progress: called now and then with the records that are read.

    Raises:
        ConfigError: the recipe is wrong, or there is no such record.
        InputError: the record is not JSON.

    Example:
        >>> from pathlib import Path
        >>> from headrace import inspect
        >>> text = "{type: sft, inputs: chats.jsonl, template: chatml, tokenizer: chat-tokenizer}"
        >>> _ = Path("chats.yaml").write_text(text)
        >>> rendering = inspect.render("chats.yaml", 3)
        >>> rendering.place, rendering.outcome, rendering.stored
        ('line 4', 'kept', {'tokens': 10, 'loss_mask': 10, 'num_supervised': 1})
    """
    path = os.fspath(recipe)
    loaded = read_recipe(recipe)
    if now is not None:
        loaded = with_now(loaded, now, path)
    loaded = with_inputs(loaded, [] if input_path is None else [input_path])
    found = find_record(loaded, record, on_progress)
    loaded, layout, why = _with_layout(loaded, found)
    maker, encoder, template = open_maker(loaded, found.source, tokenizer)
    sample, explained = _explained(maker, found.record)
    made = maker.make([found.record])
    parts = parts_of(sample)
    if not explained and template is not None:
        parts = tuple(_with_text(part, template, loaded) for part in parts)
    outcome, reason, message = _outcome(made)
    rows = stored_rows(maker, made)
    if reason == SUPERVISION_CUT:
        # Nothing is stored since the cut leaves no trained token, so the reader has to see what it would leave.
        unlimited = open_maker(msgspec.structs.replace(loaded, length=LengthSpec()), found.source, tokenizer).maker
        rows = first_or_last(stored_rows(unlimited, unlimited.make([found.record])), loaded.length)
    return Rendering(
        recipe=path,
        type=loaded.type,
        input=found.input,
        record=record,
        place=found.place,
        layout=layout,
        layout_why=why,
        template="" if template is None else template.source,
        source=found.record,
        parts=parts,
        columns=columns_of(sample),
        outcome=outcome,
        reason=reason,
        message=message,
        sequences=rendered_sequences(explained, rows, encoder, loaded.length),
        notes=made.counts.notes,
        stored={key: len(ragged.values) for key, ragged in made.arrays.items() if len(made)},
        num_documents=len(made),
    )


def _with_layout(recipe: Recipe, found: FoundRecord) -> tuple[Recipe, str, str]:
    """Return the recipe with the layout of a record's input, the layout, and how it is known."""
    if recipe.by_sections:
        return recipe, "", "the recipe has sections, which are read field by field"
    recipe, recognised = resolve_layout(recipe, found.first, source=found.source)
    why = "the recipe says so" if recognised is None else recognised.why
    if recognised is not None and recognised.alternatives:
        why += f"; {', '.join(recognised.alternatives)} would fit too"
    return recipe, recipe.inputs[found.source].layout, why


def _explained(maker: SampleMaker, record: Any) -> tuple[Sample | None, list[Explained]]:
    """Return the sample and its explanation, as far as they can be made; making the record meets the error again."""
    sample = None
    try:
        sample = maker.sample(record)
        return sample, maker.explain(record)
    except (InputError, DroppedError):
        return sample, []


def _outcome(made: MadeDocuments) -> tuple[Outcome, str, str]:
    if made.bad:
        return "bad", "", made.bad[0].message
    if made.dropped:
        return "dropped", made.dropped[0].reason, made.dropped[0].message
    return "kept", "", ""


def _with_text(part: RecordPart, template: ChatTemplate, recipe: Recipe) -> RecordPart:
    """Add the rendered text to a part, since no sequence shows it if the record was refused later."""
    if part.messages is None:
        return part
    kwargs = {**(recipe.template.kwargs if recipe.template is not None else {}), **part.template_kwargs}
    conversation = Conversation(messages=part.messages, tools=part.tools, template_kwargs=kwargs)
    try:
        return msgspec.structs.replace(part, rendered=template.render_conversation(conversation).text)
    except InputError:
        return part
