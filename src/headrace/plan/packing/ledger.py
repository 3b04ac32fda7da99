"""Where every document and token of a source went when it was packed."""

from __future__ import annotations

import msgspec

from headrace.errors import HeadraceError


class PackingLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of one source that always balance.

    ``raw_documents = empty + whole + split + truncated + dropped`` documents, and
    ``raw_tokens = packed + split_remainder + truncated + dropped`` tokens.
    """

    raw_documents: int
    empty_documents: int
    whole_documents: int
    """Packed whole."""
    split_documents: int
    """Cut into pieces, all of which are packed."""
    truncated_documents: int
    """Packed without the tokens that ``truncated_tokens`` counts."""
    dropped_documents: int
    """Not packed at all."""

    raw_tokens: int
    packed_tokens: int
    """In packs, but for the following."""
    split_remainder_tokens: int
    """In packs: the last pieces of documents that were split."""
    truncated_tokens: int
    """Cut off and in no pack."""
    dropped_tokens: int
    """Of dropped documents."""

    num_packs: int
    pad_tokens: int
    """What fills the packs up."""

    @property
    def num_tokens(self) -> int:
        """Tokens in packs."""
        return self.packed_tokens + self.split_remainder_tokens

    @property
    def lost_tokens(self) -> int:
        """Tokens in no pack."""
        return self.truncated_tokens + self.dropped_tokens

    @property
    def lost_share(self) -> float:
        """Share of the raw tokens that is in no pack."""
        return self.lost_tokens / self.raw_tokens if self.raw_tokens else 0.0

    @property
    def fill(self) -> float:
        """Share of the places in packs that hold tokens."""
        return self.num_tokens / max(1, self.num_tokens + self.pad_tokens)

    def verify(self) -> None:
        """Raise HeadraceError unless the books balance: a fault of Headrace itself."""
        documents = (
            self.empty_documents
            + self.whole_documents
            + self.split_documents
            + self.truncated_documents
            + self.dropped_documents
        )
        tokens = self.packed_tokens + self.split_remainder_tokens + self.truncated_tokens + self.dropped_tokens
        if (documents, tokens) != (self.raw_documents, self.raw_tokens):
            raise HeadraceError(
                f"the plan of packs does not balance: {documents:,} documents and {tokens:,} tokens are accounted for, "
                f"the source has {self.raw_documents:,} and {self.raw_tokens:,}; please report this"
            )
