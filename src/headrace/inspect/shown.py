"""The structs of previews (samples, sequences, stretches of tokens) and of renderings (one record, step by step)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import msgspec

from headrace.datasets.loss_masks import SupervisedShare
from headrace.inspect.answers import Answer
from headrace.inspect.description import Bar, LengthFigures
from headrace.plan.packing import Packing
from headrace.stores import Dialect

Kind = Literal["seq", "sft", "dpo", "grpo", "prompt"]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive tokens that are alike: all trained or none, of one role, and of one segment."""

    begin: int
    """The number of the first token in its sequence."""

    position: int
    """The position id of the first token; the ids of the others follow it."""

    ids: tuple[int, ...]

    texts: tuple[str, ...]
    """The text of each token. If several tokens make one character, the first has the character, and the others are
    empty; if the tokens of a character are not alike, each has its bytes, as in ``\\xf0``."""

    is_trained: bool | None = None
    """None if there is no loss mask."""

    is_special: bool = False
    role: str = ""
    """The role of the turn, as special tokens name it; empty if they do not."""

    is_kept: bool = True
    """Whether the tokens are stored; those that a limit cuts off are not."""

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(self.texts)

    @property
    def end(self) -> int:
        """The number, in the sequence, of the token after the last one."""
        return self.begin + len(self.ids)


class ShownSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of tokens: a key of a document, a response, a piece of a pack."""

    name: str
    document: int
    begin: int = 0
    """For a piece of a pack, the number of its first token in the document."""

    num_tokens: int
    num_trained: int | None = None
    """None if there is no loss mask."""

    stretches: tuple[Stretch, ...]
    """The tokens; only the first ones of a long sequence."""

    reward: float | None = None

    source: str = ""
    """The input file and the line that the document comes from, if the store keeps them."""

    @property
    def num_shown(self) -> int:
        """The number of tokens in ``stretches``."""
        return sum(len(stretch.ids) for stretch in self.stretches)


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


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The histogram of the trained share of documents."""

    documents: tuple[int, ...]
    """The number of documents with no trained token; then with more than 0 and up to 10 %, 20 %, ... 100 %."""

    words: str = ""
    """Which documents were counted, if not all."""


class PackFill(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the fill of packs of all documents, and the tokens that packing loses."""

    strategy: str
    packs: int
    fill: float
    lost_tokens: int


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a whole store."""

    key: str
    """The key that lengths and tokens are counted in, which is the first one shown."""

    tokens: int

    tokens_per_document: LengthFigures | None
    histogram: tuple[Bar, ...]
    trained: SupervisedShare | None
    shares: Shares | None = None
    packs: PackFill | None


class Preview(Answer, frozen=True, kw_only=True):
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
    figures: StoreFigures | None = None


OrderKind = Literal["full", "blocks", "shards", "none"]
MAX_SAMPLES = 1000
"""The most samples that are shown at once; a page with more would be slow."""


class PreviewOptions(TypedDict, total=False):
    """What `preview` shows, and how. Options for another kind of path are refused; all are optional.

    At most one of ``samples``, ``random``, ``longest`` and ``least_trained`` may be given; without any of them, the
    first ``num`` samples are shown.

    Attributes:
        samples: the numbers of documents, packs or samples; in a metadataset, positions of the mix.
        num: how many are shown if they are not named (default: 3).
        key: of tokens, show only this key, with its loss mask; of samples, show only the sample with this key.
        random: of tokens, show ``num`` random ones, the same for the same seed and store.
        longest: of tokens, show the ``num`` longest documents.
        least_trained: of tokens, show the ``num`` documents of which the smallest share is trained.
        packing: of tokens, show packs in place of documents.
        max_tokens: the most tokens that are shown of each sequence, or of a whole pack (default: 2048).
        tokenizer: a ``tokenizer.json`` or its folder; by default the one that the manifest names.
        any_tokenizer: allow a tokeniser other than the one that the store was made with.
        ids: show ids in place of texts.
        dialect: how to read pairs of .bin and .idx.
        with_figures: count lengths and trained tokens of the whole store, which reads its index and its masks.
        max_chars: of samples, the most characters that are kept of each text (default: 2000).
        pictures: of samples, make pictures of images and videos, for pages and terminals.
        split_part: the part of an Energon dataset, or the split of a metadataset.
        split_config: the split file of an Energon dataset.
        dataset_config: the dataset file of an Energon dataset.
        order: the order of a metadataset (default: ``"full"``).
        seed: the seed of this order (default: 0).
        global_batch_size: samples per step, for a metadataset whose schedule counts in steps.
    """

    samples: Sequence[int] | None
    num: int
    key: str | None
    random: int | None
    longest: bool
    least_trained: bool
    packing: Packing | None
    max_tokens: int
    tokenizer: str | None
    any_tokenizer: bool
    ids: bool
    dialect: Dialect | None
    with_figures: bool
    max_chars: int
    pictures: bool
    split_part: str | None
    split_config: str | None
    dataset_config: str | None
    order: OrderKind
    seed: int
    global_batch_size: int | None


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


class Rendering(Answer, frozen=True, kw_only=True):
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
