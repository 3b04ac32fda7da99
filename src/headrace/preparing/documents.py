"""Makes documents of blocks of records: filters and tokenises them, and keeps the reason for each record left out."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.plan.keys import derive, derive_array
from headrace.preparing.backends import REFERENCE, ProvedEncoder, RefusedTextError, SpecialFinder
from headrace.preparing.columns import IntArray, Row, Rows, add_ends, keep_rows, lacks, total_lengths
from headrace.preparing.duplicates import hash_texts
from headrace.preparing.filters import Filters
from headrace.preparing.ledger import BAD, ENDED_WORKER, NO_DOCUMENTS, Tally
from headrace.preparing.run_plan import Setup
from headrace.preparing.sources import BadRecord, Block
from headrace.stores import TokenLedger

SAMPLE_ONE_IN = 2000
"""The reference tokeniser also encodes one document in this many, chosen by a hash of its place."""

BLANK = "blank"


@dataclasses.dataclass(slots=True, kw_only=True)
class Documents:
    """What became of a block. The n documents are those kept, in order."""

    rows: Rows
    """The values of each column, in its dtype, and their lengths, including end-of-document tokens and the like. The
    values of the domain column are indices into ``domains``."""
    lines: IntArray
    """(n,) line of each document, ascending; the line of a record that was split occurs several times."""
    ids: list[str] | None
    text_hashes: NDArray[np.uint64] | None
    """(n, 2) hash of each document, if duplicates are to be dropped."""
    skipped: list[tuple[int, str]]
    """Line and reason of every line of the block that is not a document, ascending."""
    bad: list[BadRecord]
    """The records among them that cannot be used."""
    tally: Tally
    """The counts of these documents, and of the records that were dropped or are bad."""
    domains: Sequence[str] = ()


class BlockEncoder:
    """Filters, tokenises and counts the records of blocks."""

    def __init__(self, setup: Setup, encoder: ProvedEncoder, finder: SpecialFinder) -> None:
        self._plan = setup.plan
        self._join = setup.plan.options.records.join
        self._with_hashes = bool(setup.num_ranges)
        self._sample_key = setup.plan.sample_key
        self._encoder = encoder
        self._finder = finder
        self._filters = Filters(setup.plan.options.filters)

    def encode(self, block: Block, file: int) -> Documents:
        """Make the documents of a block of this input file.

        Raises:
            MismatchError: the fast tokeniser differs from the reference tokeniser.
            InputError: the tokeniser makes ids that are not in its vocabulary.
        """
        columns = block.texts
        if self._join is not None:
            columns = [[self._join.join(texts) for texts in zip(*columns, strict=True)]]
        state = BlockState(block)
        special = np.any([self._finder.find(texts) for texts in columns], axis=0)
        if self._plan.options.tokens.special_tokens_in_text == "error":
            for index in np.flatnonzero(special).tolist():
                found = next(name for name in map(self._finder.which, (texts[index] for texts in columns)) if name)
                state.refuse(index, f"the text holds the special token {found!r} (see --special-tokens-in-text)")
        state.apply(self._filters, columns)
        rows = self._encode_rows(columns, state, block.places, file)
        return self._documents(columns, state, rows, int(np.count_nonzero(special)))

    def _encode_rows(self, columns: list[list[str]], state: BlockState, places: IntArray, file: int) -> Rows:
        """Encode the records that are still alive: ids and lengths for each key. Texts that fail become bad records."""
        sampled = derive_array(derive(self._sample_key, file), places) % np.uint64(SAMPLE_ONE_IN) == 0
        while True:
            alive = np.flatnonzero(state.alive)
            rows = []
            routed_before = self._encoder.num_routed
            try:
                for texts in columns:
                    chosen = _some(texts, alive)
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
        columns: list[list[str]],
        state: BlockState,
        rows: Rows,
        num_special: int,
    ) -> Documents:
        plan, vocab_size = self._plan, self._plan.tokenizer.vocab_size
        num_text = sum(len(ids) for ids, _ in rows)
        rows, dropped_tokens = self._within_limits(state, rows)
        alive = np.flatnonzero(state.alive)
        ended: list[Row] = []
        num_eod = num_bos = num_missing = 0
        for column, (ids, lengths) in zip(plan.columns, rows, strict=True):
            if len(ids) and int(ids.max()) >= vocab_size:
                raise InputError(
                    f"the tokeniser made id {int(ids.max()):,}, its vocabulary has {vocab_size:,} tokens: "
                    "this tokenizer.json contradicts itself"
                )
            num_eod += int(np.count_nonzero(lengths)) if plan.eod is not None else 0
            num_bos += int(np.count_nonzero(lacks(ids, lengths, plan.bos)))
            num_missing += int(np.count_nonzero(lacks(ids, lengths, plan.missing_bos)))
            ended.append(add_ends(ids, lengths, bos=plan.bos, eod=plan.eod, dtype=np.dtype(column.dtype)))
        tally = Tally(
            documents=msgspec.structs.replace(
                NO_DOCUMENTS,
                empty=int(np.count_nonzero(total_lengths((lengths for _, lengths in ended), len(alive)) == 0)),
                text_bytes=sum(_utf8_bytes(texts, state.refused) for texts in columns),
                with_special_tokens=num_special,
            ),
            tokens=TokenLedger(
                made=num_text + num_eod + num_bos,
                kept=sum(len(tokens) for tokens, _ in ended),
                eod=num_eod,
                bos=num_bos,
                dropped=dropped_tokens,
            ),
            missing_bos=num_missing,
            proved=state.num_proved,
            routed=state.num_routed,
        )
        hashes = hash_texts([_some(texts, alive) for texts in columns]) if self._with_hashes else None
        return state.documents(ended, alive, tally, text_hashes=hashes)

    def _within_limits(self, state: BlockState, rows: Rows) -> tuple[Rows, dict[str, int]]:
        """Drop the records that have too few or too many tokens. Also returns the dropped tokens for each reason."""
        alive = np.flatnonzero(state.alive)
        num_tokens = total_lengths((lengths for _, lengths in rows), len(alive))
        dropped: Counter[str] = Counter()
        keep = np.ones(len(alive), np.bool_)
        for row, reason in self._filters.by_length(num_tokens):
            state.drop(int(alive[row]), reason)
            dropped[reason] += int(num_tokens[row])
            keep[row] = False
        if not keep.all():
            rows = [(keep_rows(ids, lengths, keep), lengths[keep]) for ids, lengths in rows]
        return rows, dict(dropped)


class BlockState:
    """Which records of a block are still alive, and why the others are not."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.alive = np.ones(len(block.lines), np.bool_)
        self.bad = list(block.bad)
        self.refused: list[int] = []
        self.num_proved = self.num_routed = 0
        self._reasons: dict[int, str] = {}

    def apply(self, filters: Filters, columns: list[list[str]] | None = None) -> None:
        """Drop what the filters of records drop. Records on which the user's function fails are bad.

        ``columns`` are the texts as they will be tokenised, if these are not the block's.
        """
        for index, reason, message in filters.by_record(self._block, columns):
            if message:
                self.refuse(index, message)
            else:
                self.drop(index, reason)

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

    def documents(
        self,
        rows: Rows,
        owners: IntArray,
        tally: Tally,
        *,
        text_hashes: NDArray[np.uint64] | None,
        domains: Sequence[str] = (),
    ) -> Documents:
        """Return what became of the block.

        Args:
            rows: the values of the n documents that are kept.
            owners: (n,) the index of the record of each.
            tally: what only the encoder counts.
            text_hashes: see `Documents`.
            domains: see `Documents`.
        """
        block = self._block
        counted = msgspec.structs.replace(
            tally.documents,
            read=len(block.lines) + len(block.bad) + tally.split,
            kept=len(owners),
            dropped=dict(Counter((*self._reasons.values(), *map(_reason_of, block.bad)))),
            blank_lines=block.num_blank,
        )
        return Documents(
            rows=rows,
            lines=block.lines[owners],
            ids=None if block.ids is None else [block.ids[index] for index in owners.tolist()],
            text_hashes=text_hashes,
            skipped=self._skipped(),
            bad=sorted(self.bad, key=lambda record: record.line),
            tally=msgspec.structs.replace(
                tally, documents=counted, lines=block.num_lines, input_bytes=block.input_bytes
            ),
            domains=domains,
        )

    def _skipped(self) -> list[tuple[int, str]]:
        found = [(int(self._block.lines[index]), reason) for index, reason in self._reasons.items()]
        found += [(line, BLANK) for line in self._block.blank_lines.tolist()]
        found += [(record.line, _reason_of(record)) for record in self._block.bad]
        return sorted(found)


def _reason_of(record: BadRecord) -> str:
    return ENDED_WORKER if record.ended_worker else BAD


def _some(texts: list[str], rows: IntArray) -> list[str]:
    return texts if len(rows) == len(texts) else [texts[row] for row in rows]


def _utf8_bytes(texts: list[str], without: list[int]) -> int:
    total = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    return total - sum(len(texts[index].encode()) for index in without)
