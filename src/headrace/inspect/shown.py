"""The structs of previews (samples, sequences, stretches of tokens) and of renderings (one record, step by step)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from headrace.errors import ConfigError
from headrace.inspect.answers import Report
from headrace.inspect.blocks import (
    Block,
    Legend,
    Note,
    Pairs,
    ShownSequence,
    Tabular,
    Title,
    Titled,
    Tokens,
    Verbatim,
    trained_share,
)
from headrace.inspect.description import Description, Kind
from headrace.inspect.figures import as_json, count, noted, plural
from headrace.plan import OrderKind
from headrace.plan.packing import Packing
from headrace.stores import Dialect


class ShownSample(msgspec.Struct, frozen=True, kw_only=True):
    """One document, or one pack."""

    number: int
    sequences: tuple[ShownSequence, ...]
    num_pads: int = 0
    """For a pack, the number of its pads."""

    columns: dict[str, Any] | None = None
    """For a prompt, the columns of the record that were passed through."""

    label: bool | None = None
    """For an answer in KTO data, whether it is wanted."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences, without pads."""
        return sum(sequence.num_tokens for sequence in self.sequences)


class Preview(Report, frozen=True, kw_only=True):
    """Some samples of a store, and facts about the store."""

    path: str
    format: str
    kind: Kind
    keys: tuple[str, ...]
    num_documents: int
    tokenizer: str | None
    """Where the tokeniser was read from; None if there is none, and ids stand in place of texts."""

    note: str = ""
    """What a reader should know about the texts."""

    seq_len: int | None = msgspec.field(name="max_seq_len", default=None)  # the name in JSON
    """The length of packs; None if the samples are documents."""

    num_samples: int
    """The number of documents or packs in all."""

    chosen_by: str = ""
    """How the samples were chosen; empty if they are the first ones, or were named."""

    left_out: tuple[str, ...] = ()
    """Lines about what the run that made the store dropped, and about its bad records."""

    samples: tuple[ShownSample, ...]
    figures: Description | None = None
    """What ``headrace info`` says of the whole store, for pages and ``--json``."""

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        yield Title(self.path, f"{self.kind}, {self.format}, keys {', '.join(self.keys)}")
        unit, of = ("document", "") if self.seq_len is None else ("pack", f" of {count(self.seq_len)} tokens")
        tokenizer = "" if self.tokenizer is None else f", tokeniser {self.tokenizer}"
        yield f"{count(len(self.samples))} of {plural(self.num_samples, unit)}{of}{tokenizer}"
        if self.note:
            yield Note(self.note)
        if self.figures is not None:
            yield from list(self.figures.shown())[1:]
        if any(sequence.num_trained is not None for sample in self.samples for sequence in sample.sequences):
            yield Legend()
        if self.chosen_by:
            yield f"chosen: {self.chosen_by}"
        for sample in self.samples:
            yield sample_section(self, sample)
        if self.left_out:
            yield Titled("left out", self.left_out)


def sample_section(preview: Preview, sample: ShownSample) -> Titled:
    """Return a document or a pack: its sequences, with titles if there are several, pads, and columns."""
    is_pack = preview.seq_len is not None
    blocks: list[Block] = []
    for sequence in sample.sequences:
        title = f"{sequence.name}: {sequence.words}" if len(sample.sequences) > 1 else ""
        if is_pack:
            span = f"tokens {count(sequence.begin)} to {count(sequence.begin + sequence.num_tokens)}"
            source = f" (from {sequence.source})" if sequence.source else ""
            trained = sequence.words.partition(",")[2]
            title = f"document {count(sequence.document)}{source}, {span}{trained and f',{trained}'}"
        blocks.append(Tokens(sequence, title))
    if sample.num_pads:
        blocks.append(plural(sample.num_pads, "pad"))
    blocks += [f"{name}: {as_json(value)}" for name, value in (sample.columns or {}).items()]
    return Titled(_heading(preview, sample), blocks, is_card=True, is_pair=preview.kind == "dpo")


def _heading(preview: Preview, sample: ShownSample) -> str:
    masks = [sequence.num_trained for sequence in sample.sequences if sequence.num_trained is not None]
    words = plural(sample.num_tokens, "token") + (trained_share(sum(masks), sample.num_tokens) if masks else "")
    if preview.seq_len is not None:
        pieces, pads = plural(len(sample.sequences), "document"), plural(sample.num_pads, "pad")
        return f"pack {count(sample.number)}: {pieces}, {words}, {pads}, fill {sample.num_tokens / preview.seq_len:.2%}"
    source = next((f", from {sequence.source}" for sequence in sample.sequences if sequence.source), "")
    label = {None: "", True: ", wanted", False: ", not wanted"}[sample.label]
    return f"document {count(sample.number)}: {words}{source}{label}"


MAX_SAMPLES = 1000
"""The most samples that are shown at once; a page with more would be slow."""


TokenOrder = Literal["random", "longest", "least_trained"]


class PreviewOptions(TypedDict, total=False):
    """What `preview` shows, and how. Options for another kind of path are refused; all are optional.

    Attributes:
        samples: the numbers of documents, packs or samples; in a metadataset, positions of the mix.
        num: how many are shown if they are not named (default: 3).
        order: of a metadataset, the order of its samples, by default full; of tokens, which documents are shown in
            place of the first ones.
        seed: the seed of this order (default: 0).
        key: of tokens, show only this key, with its loss mask; of samples, show only the sample with this key.
        packing: of tokens, show packs in place of documents.
        limit: the most tokens that are shown of a sequence or a pack, by default 2,048; or characters of a text, 2,000.
        tokenizer: a ``tokenizer.json`` or its folder; by default the one that the manifest names.
        any_tokenizer: allow a tokeniser other than the one that the store was made with.
        ids: show ids in place of texts.
        dialect: how to read pairs of .bin and .idx.
        with_figures: describe the whole store too, which reads its index.
        pictures: of samples, make pictures of images and videos, for pages and terminals.
        split_part: the part of an Energon dataset, or the split of a metadataset.
        split_config: the split file of an Energon dataset.
        dataset_config: the dataset file of an Energon dataset.
        global_batch_size: samples per step, for a metadataset whose schedule counts in steps.
    """

    samples: Sequence[int] | None
    num: int
    order: Literal[OrderKind, TokenOrder] | None
    seed: int
    key: str | None
    packing: Packing | None
    limit: int | None
    tokenizer: str | None
    any_tokenizer: bool
    ids: bool
    dialect: Dialect | None
    with_figures: bool
    pictures: bool
    split_part: str | None
    split_config: str | None
    dataset_config: str | None
    global_batch_size: int | None


def chosen(path: str, noun: str, total: int | None, options: PreviewOptions) -> list[int]:
    """Return the numbers of the samples that were named, or the first ones of a ``total``; None is an endless mix.

    Raises:
        ConfigError: there is no such sample, or too many were asked for.
    """
    named, num = options.get("samples"), options.get("num", 3)
    if named is None:
        if not 1 <= num <= MAX_SAMPLES:
            raise ConfigError(f"`num={num}`: from 1 to {MAX_SAMPLES:,} {noun}s are shown at once")
        return list(range(num if total is None else min(num, total)))
    for number in named:
        if total is not None and not 0 <= number < total:
            raise ConfigError(f"{path} has no {noun} {number}; it has {total:,}, counted from 0")
    return list(named)


Outcome = Literal["kept", "dropped", "bad"]


class RecordPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text or a conversation of the record, as the layout reads it."""

    name: str
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """The messages as the template gets them."""

    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] = {}
    train: tuple[bool | None, ...] = ()
    """The ``train`` flags of the messages in the record; empty if it has none."""

    reward: float | None = None
    rendered: str | None = None
    """The rendered text, if no sequence shows it."""


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive tokens of a sequence with the same evidence for being trained or not."""

    begin: int
    end: int
    """The tokens are ``[begin, end)`` of the sequence."""

    begin_bytes: int
    end_bytes: int
    """The range of bytes in the rendered text, in UTF-8."""

    message: int
    """The number of the message; -1 for text of the template."""

    role: str
    region: str
    is_trained: bool
    why: str
    is_kept: bool
    text: str


class RenderedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a record: all of it, and what is stored."""

    text: str
    """The rendered text."""

    shown: ShownSequence
    """All tokens; those that are cut off are not ``is_kept``."""

    evidence: tuple[EvidenceRow, ...]
    num_stored: int | None = None
    """The number of tokens in the store; None if nothing is stored."""

    added_before: tuple[str, ...] = ()
    added_after: tuple[str, ...] = ()
    """Tokens that are added at its ends, and are not in the text."""

    note: str = ""


class Rendering(Report, frozen=True, kw_only=True):
    """One record on its way to the store, step by step."""

    recipe: str
    type: str
    input: str
    record: int
    """The number of the record over all inputs, from 0."""

    place: str
    """The place in the input in words, such as ``line 12``."""

    layout: str
    """Empty for recipes with sections."""

    layout_why: str
    template: str
    """Where the template came from; empty if there is none."""

    source: Any
    """The record as it was read."""

    parts: tuple[RecordPart, ...]
    columns: dict[str, Any] | None = None
    outcome: Outcome
    reason: str = ""
    message: str = ""
    """Why the record is not kept."""

    sequences: tuple[RenderedSequence, ...]
    notes: dict[str, int] = msgspec.field(default_factory=dict)
    """Counts by name."""

    stored: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of values of each key in the store, over all documents of the record."""

    num_documents: int = 0

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        yield Title(f"{self.input}, {self.place}", f"record {count(self.record)}")
        pairs = [
            ("recipe", f"{self.recipe}, type {self.type}"),
            ("layout", f"{self.layout} ({self.layout_why})" if self.layout else self.layout_why),
            ("template", self.template or "none"),
        ]
        if self.outcome == "kept":
            keys = ", ".join(f"{name} {count(number)}" for name, number in self.stored.items())
            pairs.append(("stored", f"{plural(self.num_documents, 'document')}: {keys}"))
        else:
            reason = f"{self.reason}: " if self.reason else ""
            pairs.append(("dropped" if self.outcome == "dropped" else "refused", f"{reason}{self.message}"))
        if self.notes:
            pairs.append(("counted", ", ".join(f"{noted(name)} {n:,}" for name, n in self.notes.items())))
        yield Pairs(pairs)
        yield Titled("record", [Verbatim(as_json(self.source), is_made=True)])
        yield from map(_part_section, self.parts)
        if self.columns:
            yield Pairs.of(self.columns)
        yield from map(_rendered_section, self.sequences)


def _part_section(part: RecordPart) -> Titled:
    """Return a text, or a conversation as the template gets it."""
    title = f"{part.name}: {plural(len(part.messages), 'message')}" if part.messages is not None else part.name
    blocks: list[Block] = []
    for number, message in enumerate(part.messages or []):
        flag = part.train[number] if part.train else None
        told = "" if flag is None else " (train: true)" if flag else " (train: false)"
        texts = [f"{name}: {as_json(value)}" for name, value in message.items() if name not in ("role", "content")]
        if "content" in message:
            content = message["content"]
            texts.insert(0, content if isinstance(content, str) else as_json(content))
        blocks.append(Verbatim("\n".join(texts), f"{number} {message.get('role')}{told}"))
    if part.text is not None:
        blocks.append(Verbatim(part.text))
    named = (("tools", part.tools), ("template arguments", part.template_kwargs))
    blocks += [f"{name}: {as_json(value)}" for name, value in named if value]
    if part.rendered is not None:
        blocks.append(Verbatim(part.rendered, "rendered:"))
    reward = "" if part.reward is None else f", reward {part.reward:g}"
    return Titled(title + reward, blocks, is_card=True)


_MOST_CHARS = 48
"""The most characters of a text in the table of the evidence."""


def _rendered_section(sequence: RenderedSequence) -> Titled:
    """Return a sequence, remarks if it is not simply stored as a whole, and the evidence."""
    cut = sum(len(stretch.ids) for stretch in sequence.shown.stretches if not stretch.is_kept)
    added = (("before", sequence.added_before), ("after", sequence.added_after))
    remarks = [f"added {where} it: {' '.join(tokens)}" for where, tokens in added if tokens]
    remarks += [f"not stored: {plural(cut, 'token')}"] if cut else []
    remarks += [sequence.note] if sequence.note else []
    rows = [
        (
            f"{row.begin:,} to {row.end:,}",
            f"{row.begin_bytes:,} to {row.end_bytes:,}",
            str(row.message) if row.message >= 0 else "",
            row.role,
            row.region,
            ("yes" if row.is_trained else "no") + ("" if row.is_kept else ", not stored"),
            row.why,
            row.text if len(row.text) <= _MOST_CHARS else f"{row.text[: _MOST_CHARS - 4]} ...",
        )
        for row in sequence.evidence
    ]
    heads = ("tokens", "bytes", "turn", "role", "region", "trained", "why", "text")
    table = Tabular(heads, rows, left=range(len(heads)))
    shown = sequence.shown
    return Titled(f"{shown.name}: {shown.words}", [Legend(), Tokens(shown), *remarks, "", table], is_card=True)
