"""Makes documents of blocks of records: filters and tokenises them, and keeps the reason for each record left out.

`SampleCounts` are the sums that runs of a recipe keep in addition: tokens of each key, trained tokens, and notes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.plan.keys import derive, derive_array
from headrace.preparing.backends import REFERENCE, ProvedEncoder, RefusedTextError, SpecialFinder
from headrace.preparing.columns import IntArray, add_ends, keep_rows, total_lengths
from headrace.preparing.filters import Filters, hash_texts
from headrace.preparing.messages import Setup
from headrace.preparing.sources import BadRecord, Block
from headrace.stores import SampleLedger, TokenLedger


class KeySums(msgspec.Struct, kw_only=True):
    """Tokens of one key of ids: ``made == kept + truncated + sum(dropped.values())``."""

    made: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: dict[str, int] = {}


class SampleCounts(msgspec.Struct, kw_only=True):
    """Sums over all records except bad ones."""

    records: int = 0
    """Records that were read whole: those kept, and those dropped for a reason."""

    keys: dict[str, KeySums] = {}
    """Sums for each key of ids, by its name in the store."""

    supervised: int = 0
    """Trained tokens in the documents that were kept."""

    notes: dict[str, int] = {}
    """``straddling_tokens``, ``split_records``, ``truncated_records`` and the like."""

    def add(self, more: SampleCounts) -> None:
        """Add the sums of other records."""
        self.records += more.records
        self.supervised += more.supervised
        for note, number in more.notes.items():
            self.notes[note] = self.notes.get(note, 0) + number
        for key, theirs in more.keys.items():
            ours = self.keys.setdefault(key, KeySums())
            ours.made += theirs.made
            ours.kept += theirs.kept
            ours.truncated += theirs.truncated
            for reason, number in theirs.dropped.items():
                ours.dropped[reason] = ours.dropped.get(reason, 0) + number

    def drop(self, reason: str, tokens: Mapping[str, int], supervised: int) -> None:
        """Count documents as dropped that were counted as kept.

        ``tokens`` is the number of their tokens in each key, ``supervised`` the number of trained ones.
        """
        self.supervised -= supervised
        for key, number in tokens.items():
            sums = self.keys[key]
            sums.kept -= number
            sums.dropped[reason] = sums.dropped.get(reason, 0) + number

    def ledger(self) -> SampleLedger:
        """The counts as the manifest lists them."""
        return SampleLedger(
            records=self.records,
            keys={
                key: TokenLedger(
                    made=sums.made,
                    kept=sums.kept,
                    dropped={reason: number for reason, number in sorted(sums.dropped.items()) if number},
                    truncated={LENGTH: sums.truncated} if sums.truncated else {},
                )
                for key, sums in self.keys.items()
            },
            supervised=self.supervised,
            notes={note: number for note, number in sorted(self.notes.items()) if number},
        )


LENGTH = "length"
"""The reason under which tokens that were cut off documents are counted."""

SAMPLE_ONE_IN = 2000
"""The reference tokeniser also encodes one document in this many, chosen by a hash of its place."""

BLANK, BAD = "blank", "bad"


@dataclasses.dataclass(slots=True, kw_only=True)
class Documents:
    """What became of a block. The n documents are those kept, in order."""

    tokens: list[NDArray[Any]]
    """The values of each column, in its dtype; those of the domain column are indices into ``domains``."""
    lengths: list[IntArray]
    """(n,) for each column the length of each document, including end-of-document tokens and the like."""
    lines: IntArray
    """(n,) line of each document, ascending; the line of a record that was split occurs several times."""
    places: IntArray
    """(n,) place of each document, see `Block.places`."""
    ids: list[str] | None
    text_hashes: NDArray[np.uint64] | None
    """(n, 2) hash of each document, if duplicates are to be dropped."""
    skipped: list[tuple[int, str]]
    """Line and reason of every line of the block that is not a document, ascending."""
    bad: list[BadRecord]
    """The records among them that cannot be used."""
    num_read: int
    """Records kept or dropped by a filter; a record that was split counts once for each of its documents."""
    text_bytes: int
    num_special: int
    num_proved: int
    num_routed: int
    text_tokens: int
    """Tokens of all texts that were encoded, also of those dropped afterwards."""
    eod_tokens: int
    bos_tokens: int
    dropped_documents: dict[str, int]
    dropped_tokens: dict[str, int]
    truncated_tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    num_split: int = 0
    """Documents beyond the first of each record."""
    domains: list[str] = dataclasses.field(default_factory=list)
    samples: SampleCounts | None = None


class Encoder(Protocol):
    """Makes documents of blocks: `BlockEncoder` for texts, `RecordEncoder` for recipes."""

    def encode(self, block: Block, file: int) -> Documents:
        """Make the documents of a block of this input file."""


class BlockEncoder:
    """Filters, tokenises and counts the records of blocks."""

    def __init__(self, setup: Setup, encoder: ProvedEncoder, finder: SpecialFinder) -> None:
        self._setup = setup
        self._encoding = setup.encoding
        self._encoder = encoder
        self._finder = finder
        self._filters = Filters(setup.filters)
        self._dtype: np.dtype[Any] = np.dtype(setup.encoding.dtype)

    def encode(self, block: Block, file: int) -> Documents:
        """Make the documents of a block of this input file.

        Raises:
            MismatchError: the fast tokeniser differs from the reference tokeniser.
            InputError: the tokeniser makes ids that are not in its vocabulary.
        """
        columns = block.texts
        if self._setup.join is not None:
            columns = [[self._setup.join.join(texts) for texts in zip(*columns, strict=True)]]
        count = len(block.lines)
        state = BlockState(block, count)
        special = self._finder.find(columns[0]) if count else np.zeros(0, np.bool_)
        for texts in columns[1:]:
            special = special | self._finder.find(texts)
        if self._encoding.special == "error":
            for index in np.flatnonzero(special).tolist():
                found = next(name for name in map(self._finder.which, (texts[index] for texts in columns)) if name)
                state.refuse(index, f"the text holds the special token {found!r} (see --special-tokens-in-text)")
        for index, reason in self._filters.by_record(block, columns):
            state.drop(index, reason)
        for index, message in self._filters.failures:
            state.refuse(index, message)
        rows = self._encode_rows(columns, state, block.places, file)
        return self._documents(block, columns, state, rows, int(np.count_nonzero(special)))

    def _encode_rows(
        self, columns: list[list[str]], state: BlockState, places: IntArray, file: int
    ) -> list[tuple[NDArray[np.uint32], IntArray]]:
        """Encode the records that are still alive: ids and lengths for each key. Texts that fail become bad records."""
        sampled = derive_array(derive(self._setup.sample_key, file), places) % np.uint64(SAMPLE_ONE_IN) == 0
        while True:
            alive = np.flatnonzero(state.alive)
            rows = []
            routed_before = self._encoder.num_routed
            try:
                for texts in columns:
                    chosen = texts if len(alive) == len(texts) else [texts[index] for index in alive]
                    encoded = self._encoder.encode(chosen, sampled[alive])
                    rows.append((encoded.ids, encoded.lengths))
            except RefusedTextError as error:
                text = chosen[error.index]
                state.refuse(int(alive[error.index]), f"the tokeniser refuses the text: {error}; found {text[:60]!r}")
                continue
            state.num_proved = int(np.count_nonzero(sampled[alive])) if self._encoder.name != REFERENCE else 0
            state.num_routed = self._encoder.num_routed - routed_before
            return rows

    def _documents(
        self,
        block: Block,
        columns: list[list[str]],
        state: BlockState,
        rows: list[tuple[NDArray[np.uint32], IntArray]],
        num_special: int,
    ) -> Documents:
        encoding = self._encoding
        text_tokens = sum(len(ids) for ids, _ in rows)
        dropped_tokens: dict[str, int] = {}
        alive = np.flatnonzero(state.alive)
        num_tokens = total_lengths(rows)
        dropped_rows = []
        for row, reason in self._filters.by_length(num_tokens):
            state.drop(int(alive[row]), reason)
            dropped_tokens[reason] = dropped_tokens.get(reason, 0) + int(num_tokens[row])
            dropped_rows.append(row)
        if dropped_rows:
            keep = np.ones(len(alive), np.bool_)
            keep[dropped_rows] = False
            rows = [(keep_rows(ids, lengths, keep), lengths[keep]) for ids, lengths in rows]
            alive = alive[keep]
        tokens, lengths_of = [], []
        num_full = 0
        for ids, lengths in rows:
            if len(ids) and int(ids.max()) >= encoding.vocab_size:
                raise InputError(
                    f"the tokeniser made id {int(ids.max()):,}, its vocabulary has {encoding.vocab_size:,} tokens: "
                    "this tokenizer.json contradicts itself"
                )
            num_full += int(np.count_nonzero(lengths))
            made, longer = add_ends(ids, lengths, bos=encoding.bos, eod=encoding.eod, dtype=self._dtype)
            tokens.append(made)
            lengths_of.append(longer)
        is_whole = len(alive) == len(block.lines)
        return Documents(
            tokens=tokens,
            lengths=lengths_of,
            lines=block.lines[alive],
            places=block.places[alive],
            ids=None if block.ids is None else block.ids if is_whole else [block.ids[index] for index in alive],
            text_hashes=self._text_hashes(columns, alive) if self._setup.with_text_hashes else None,
            skipped=state.skipped(),
            bad=sorted(state.bad, key=lambda record: record.line),
            num_read=len(block.lines) - state.num_refused,
            text_bytes=sum(_utf8_bytes(texts, state.refused) for texts in columns),
            num_special=num_special,
            num_proved=state.num_proved,
            num_routed=state.num_routed,
            text_tokens=text_tokens,
            eod_tokens=num_full if encoding.eod is not None else 0,
            bos_tokens=num_full if encoding.bos is not None else 0,
            dropped_documents=state.dropped_counts(),
            dropped_tokens=dropped_tokens,
        )

    def _text_hashes(self, columns: list[list[str]], alive: IntArray) -> NDArray[np.uint64]:
        if len(alive) < len(columns[0]):
            columns = [[texts[index] for index in alive] for texts in columns]
        return hash_texts(columns)


class BlockState:
    """Which records of a block are still alive, and why the others are not."""

    def __init__(self, block: Block, count: int) -> None:
        self._block = block
        self.alive = np.ones(count, np.bool_)
        self.bad = list(block.bad)
        self.refused: list[int] = []
        self.num_proved = self.num_routed = 0
        self._reasons: dict[int, str] = {}

    @property
    def num_refused(self) -> int:
        """Records that were read but turned out bad afterwards."""
        return len(self.refused)

    def drop(self, index: int, reason: str) -> None:
        """Drop this record for a reason; only the first reason counts."""
        if self.alive[index]:
            self.alive[index] = False
            self._reasons[index] = reason

    def refuse(self, index: int, message: str) -> None:
        """Mark this record as bad, unless it was dropped before."""
        if self.alive[index]:
            self.drop(index, BAD)
            self.refused.append(index)
            self.bad.append(BadRecord(int(self._block.lines[index]), int(self._block.places[index]), message))

    def skipped(self) -> list[tuple[int, str]]:
        """Line and reason of every line that is not a document, ascending."""
        found = [(int(self._block.lines[index]), reason) for index, reason in self._reasons.items()]
        found += [(line, BLANK) for line in self._block.blank_lines.tolist()]
        found += [(record.line, BAD) for record in self._block.bad]
        return sorted(found)

    def dropped_counts(self) -> dict[str, int]:
        """The number of records that filters dropped, for each reason."""
        counts: dict[str, int] = {}
        for reason in self._reasons.values():
            if reason != BAD:
                counts[reason] = counts.get(reason, 0) + 1
        return counts


def _utf8_bytes(texts: list[str], without: list[int]) -> int:
    total = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    return total - sum(len(texts[index].encode()) for index in without)
