"""The sequences of a record with their evidence, beside what is stored of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.cli.views.kept_tokens import Kept, kept_tokens
from headrace.cli.views.shown import ShownSequence, Stretch
from headrace.cli.views.steps import EvidenceRow, RenderedSequence
from headrace.cli.views.stretches import runs
from headrace.cli.views.token_texts import Group, texts_of
from headrace.errors import HeadraceError
from headrace.samples.maker import Explained, Made, SampleMaker
from headrace.samples.masking import TokenEvidence
from headrace.samples.recipe import LengthSpec
from headrace.samples.recipe.recipe import lengths_key

Rows = dict[str, list[NDArray[Any]]]
_RESPONSES = "responses"


def rendered_sequences(
    explained: Sequence[Explained], stored: Rows, tokenizer: Tokenizer, length: LengthSpec
) -> tuple[RenderedSequence, ...]:
    """One for each that the record asks for, with which of its tokens are ``stored``."""
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
            # What stands before a response is its prompt, which has a key of its own.
            kept.is_kept[: int(np.argmax(kept.is_kept))] = True
        name = one.key if wanted[one.key] == 1 else f"{one.key.removesuffix('s')} {number}"
        found.append(_rendered(one, name, special, tokenizer, row, kept))
    return tuple(found)


def _message_begins(one: Explained) -> set[int]:
    if one.sample.evidence is None:
        return set()
    return {begin for begin, _ in runs(one.sample.evidence.messages.tolist())}


def stored_rows(maker: SampleMaker, made: Made) -> Rows:
    """By key of ids, by our names, the sequences that are stored, in the order in which they were asked for."""
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
    """The rows as their limits cut them, whatever that leaves."""

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
    kept: Kept | None,
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
    alike = [(fact, token.id in special) for fact, token in zip(facts, tokens, strict=True)]
    texts = texts_of(_groups(one.text.encode(), tokens), alike)
    stretches = tuple(
        Stretch(
            begin=begin,
            position=begin,
            ids=tuple(token.id for token in tokens[begin:end]),
            texts=tuple(texts[begin:end]),
            is_trained=tokens[begin].is_trained,
            is_special=tokens[begin].id in special,
            role=tokens[begin].role,
            is_kept=is_kept[begin],
        )
        for begin, end in runs(alike)
    )
    rows = tuple(
        _row(begin, tokens[begin:end], is_kept=is_kept[begin], text="".join(texts[begin:end]))
        for begin, end in runs(facts)
    )
    note = ""
    if stored is not None and kept is None:
        note = f"it was encoded anew, so that it is not shown which tokens are stored: {len(stored):,} are"
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


def _groups(data: bytes, tokens: Sequence[TokenEvidence]) -> list[Group]:
    """The tokens of a text; a group ends where a character does. Bytes of no token are with the one before them."""
    found: list[Group] = []
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
        found.append(Group(begin, place + 1, text, tuple(alone) if len(own) > 1 else ()))
        begin = place + 1
    return found
