"""The structs that previews hold: samples with their sequences and stretches of tokens, and one record step by step."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.datasets.loss_masks import SupervisedShare
from headrace.inspect.description import Bar, LengthFigures

Kind = Literal["seq", "sft", "dpo", "grpo", "prompt"]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in a row that are alike: all trained or none, of one role, of one segment."""

    begin: int
    """The first token, counted in its sequence."""

    position: int
    """The position id of the first token; those of the others count on."""

    ids: tuple[int, ...]

    texts: tuple[str, ...]
    """What each token stands for. Where several make one character, the first of them has it, and the others nothing;
    where they are not alike, each has its bytes as ``\\xf0``."""

    is_trained: bool | None = None
    """None: there is no loss mask."""

    is_special: bool = False
    role: str = ""
    """Whose turn it is, as the special tokens tell it; empty where they do not."""

    is_kept: bool = True
    """Whether the tokens are stored; those that a limit cuts off are not."""

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(self.texts)

    @property
    def end(self) -> int:
        """Behind the last token, counted in the sequence."""
        return self.begin + len(self.ids)


class ShownSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of tokens: a key of a document, a response, a piece of a pack."""

    name: str
    document: int
    begin: int = 0
    """Of a piece: its first token, counted in the document."""

    num_tokens: int
    num_trained: int | None = None
    """None: there is no loss mask."""

    stretches: tuple[Stretch, ...]
    """Of its first tokens, if it is long."""

    reward: float | None = None

    source: str = ""
    """The input file and the line that the document comes from, where the store keeps that."""

    @property
    def num_shown(self) -> int:
        """Tokens that are in ``stretches``."""
        return sum(len(stretch.ids) for stretch in self.stretches)


class ShownSample(msgspec.Struct, frozen=True, kw_only=True):
    """One document, or one pack."""

    number: int
    sequences: tuple[ShownSequence, ...]
    num_pads: int = 0
    """Of a pack."""

    columns: dict[str, Any] | None = None
    """Of a prompt: what was passed through."""

    label: bool | None = None
    """Of an answer for KTO: whether it is wanted."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(sequence.num_tokens for sequence in self.sequences)


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Documents by the share of their tokens that is trained."""

    documents: tuple[int, ...]
    """Of none; of more than 0 and up to 10 %, 20 %, ... 100 %."""

    words: str = ""
    """Which were looked at, where it is not all."""


class PackFill(msgspec.Struct, frozen=True, kw_only=True):
    """What packing makes of all documents."""

    strategy: str
    packs: int
    fill: float
    lost_tokens: int


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the whole store."""

    key: str
    """That lengths and tokens are of: the first one."""

    tokens: int

    tokens_per_document: LengthFigures | None
    histogram: tuple[Bar, ...]
    trained: SupervisedShare | None
    shares: Shares | None = None
    packs: PackFill | None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Some samples of a store, for people to look at."""

    path: str
    format: str
    kind: Kind
    keys: tuple[str, ...]
    num_documents: int
    tokenizer: str | None
    """Where it was read from; None: there is none, and ids stand in place of texts."""

    note: str = ""
    """What a reader should know about the texts."""

    seq_len: int | None = msgspec.field(name="max_seq_len", default=None)  # the name in JSON
    """Of packs; None: the samples are documents."""

    num_samples: int
    """Documents or packs that there are."""

    chosen_by: str = ""
    """How those that are shown were chosen; empty for the first ones, and those that were named."""

    left_out: tuple[str, ...] = ()
    """What the run that made the store dropped, and its bad records, in lines."""

    samples: tuple[ShownSample, ...]
    figures: StoreFigures | None = None


Outcome = Literal["kept", "dropped", "bad"]


class RecordPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text or a conversation of the record, as the layout reads it."""

    name: str
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """As the template sees them."""

    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] = {}
    train: tuple[bool | None, ...] = ()
    """What the record itself says of each message; empty where it says nothing."""

    reward: float | None = None
    rendered: str | None = None
    """Its text, where no sequence shows it."""


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in a row for which all of this is the same."""

    begin: int
    end: int
    """``[begin, end)`` of the sequence's tokens."""

    begin_bytes: int
    end_bytes: int
    """Of the rendered text in UTF-8."""

    message: int
    """Number of the message; -1 for text of the template."""

    role: str
    region: str
    is_trained: bool
    why: str
    is_kept: bool
    text: str


class RenderedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence: the whole of it, and what is stored."""

    text: str
    """As it was rendered."""

    shown: ShownSequence
    """Its tokens, whole; those that are cut off are not ``is_kept``."""

    evidence: tuple[EvidenceRow, ...]
    num_stored: int | None = None
    """Tokens in the store; None: nothing is stored."""

    added_before: tuple[str, ...] = ()
    added_after: tuple[str, ...] = ()
    """Tokens that are put at its ends, which the text does not have."""

    note: str = ""


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """One record, step by step."""

    recipe: str
    type: str
    input: str
    record: int
    """Counted over the records of the input, from 0."""

    place: str
    """In words: ``line 12``."""

    layout: str
    """Empty for recipes with sections."""

    layout_why: str
    template: str
    """Where it came from; empty: none."""

    source: Any
    """The record as it was read."""

    parts: tuple[RecordPart, ...]
    columns: dict[str, Any] | None = None
    outcome: Outcome
    reason: str = ""
    message: str = ""
    """Why it is not kept."""

    sequences: tuple[RenderedSequence, ...]
    notes: dict[str, int] = {}
    """What was counted, by name."""

    stored: dict[str, int] = {}
    """Values of each key in the store; of several documents together."""

    num_documents: int = 0
