"""Where every document and every token of a run went; the sums must balance."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class DocumentLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents: ``read == kept + sum(dropped.values())``.

    Attributes:
        read: documents found in the inputs.
        kept: those in the outputs.
        dropped: those left out, by reason.
        empty: those of the kept that have no tokens.
        blank_lines: lines of the inputs that hold nothing, and so no document.
        text_bytes: bytes of UTF-8 text in the documents read.
        with_special_tokens: those of the read whose text holds the name of a special token.
    """

    read: int
    kept: int
    dropped: dict[str, int] = {}
    empty: int = 0
    blank_lines: int = 0
    text_bytes: int = 0
    with_special_tokens: int = 0


class TokenLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of all keys: ``made == kept + sum(dropped.values()) + sum(truncated.values())``.

    Attributes:
        made: tokens that the texts became, with ``eod`` and ``bos``.
        kept: those in the outputs.
        eod: those of the made that were added to end a document.
        bos: those of the made that were added to begin one.
        dropped: those of documents that were left out, by reason.
        truncated: those cut off documents that were kept, by reason.
    """

    made: int
    kept: int
    eod: int = 0
    bos: int = 0
    dropped: dict[str, int] = {}
    truncated: dict[str, int] = {}


class SampleLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is counted besides where a recipe makes the documents. Its tokens are ids: masks, rewards and the like of
    the store are not among them.

    Attributes:
        records: records read whole: kept, or dropped by a reason. One that was split is one record, and several
            documents.
        keys: `TokenLedger` of each key of ids, which balances by itself.
        supervised: trained tokens in all masks of the store.
        notes: what was counted and no more: ``straddling_tokens``, ``truncated_records`` and the like.
    """

    records: int = 0
    keys: dict[str, TokenLedger] = {}
    supervised: int = 0
    notes: dict[str, int] = {}


class ContentLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of the parts of samples in tars, without headers and padding: ``read == kept + sum(dropped.values())``.

    Attributes:
        read: bytes of all parts that were found in the inputs.
        kept: those in the outputs.
        dropped: those of samples that were left out, by reason; of a bad sample the parts found before what is bad.
    """

    read: int
    kept: int
    dropped: dict[str, int] = {}


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where everything went; it must balance."""

    documents: DocumentLedger
    tokens: TokenLedger
    samples: SampleLedger | None = None
    contents: ContentLedger | None = None

    def faults(self) -> Iterator[str]:
        """What does not add up, in words."""
        documents, tokens = self.documents, self.tokens
        dropped = sum(documents.dropped.values())
        if documents.read != documents.kept + dropped:
            yield f"no balance: {documents.read} documents read, but {documents.kept} kept and {dropped} dropped"
        yield from _unbalanced(tokens, "tokens")
        if self.samples is not None:
            yield from self._samples_faults(self.samples)
        if self.contents is not None:
            yield from _content_faults(self.contents)
        if min([*_numbers(documents), *documents.dropped.values()]) < 0:
            yield "the ledger has a negative count"
        if documents.empty > documents.kept or documents.with_special_tokens > documents.read:
            yield "the ledger counts more empty documents than it kept, or more with special tokens than it read"
        if tokens.eod + tokens.bos > tokens.made:
            yield f"the ledger counts {tokens.eod + tokens.bos} added tokens, more than the {tokens.made} made"

    def _samples_faults(self, samples: SampleLedger) -> Iterator[str]:
        for key, tokens in samples.keys.items():
            yield from _unbalanced(tokens, f"tokens of {key!r}")
        for name in ("made", "kept"):
            by_key = sum(getattr(tokens, name) for tokens in samples.keys.values())
            if by_key != getattr(self.tokens, name):
                yield f"no balance: {getattr(self.tokens, name)} tokens {name}, but {by_key} in the keys"
        if min([samples.records, samples.supervised, *samples.notes.values()]) < 0:
            yield "the ledger has a negative count"


def _content_faults(contents: ContentLedger) -> Iterator[str]:
    dropped = sum(contents.dropped.values())
    if contents.read != contents.kept + dropped:
        yield f"no balance: {contents.read} bytes read, but {contents.kept} kept and {dropped} dropped"
    if min([*_numbers(contents), *contents.dropped.values()]) < 0:
        yield "the ledger has a negative count"


def _unbalanced(tokens: TokenLedger, what: str) -> Iterator[str]:
    dropped, truncated = sum(tokens.dropped.values()), sum(tokens.truncated.values())
    if tokens.made != tokens.kept + dropped + truncated:
        yield (
            f"no balance: {tokens.made} {what} made, but {tokens.kept} kept, {dropped} dropped and {truncated}"
            " truncated"
        )
    if min([*_numbers(tokens), *tokens.dropped.values(), *tokens.truncated.values()]) < 0:
        yield "the ledger has a negative count"


def _numbers(ledger: msgspec.Struct) -> list[int]:
    return [value for value in msgspec.structs.astuple(ledger) if isinstance(value, int)]
