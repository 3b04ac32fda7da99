"""Packed batches made in the plainest way, token by token, and drawn at random; and read back the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

IGNORE = -100
Batch = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A document, or a piece of one that was cut: ``after`` is then the document's next token, else None.

    ``trained[i]``: whether the source wants token i to be learnt as a label; ``after`` is learnt if there is one.
    ``pads`` follow the tokens within the segment.
    """

    document: int
    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    after: int | None = None
    pads: int = 0

    def labels(self) -> list[int]:
        labels = [
            token if trained else IGNORE for token, trained in zip(self.tokens[1:], self.trained[1:], strict=True)
        ]
        return [*labels, IGNORE if self.after is None else self.after]


Rows = Sequence[Sequence[Piece]]


def make(rows: Rows, seq_len: int, *, padding_idx: int = 0, step_tokens: int | None = None) -> Batch:
    """A micro-batch of the native face, every field of it; ``step_tokens`` are its own unless given."""
    fields: dict[str, list[list[int]]] = {
        name: [] for name in ("input_ids", "labels", "position_ids", "document_ids", "seq_idx")
    }
    lengths: list[int] = []
    for pieces in rows:
        row: dict[str, list[int]] = {name: [] for name in fields}
        for number, piece in enumerate(pieces):
            row["input_ids"] += [*piece.tokens, *[padding_idx] * piece.pads]
            row["labels"] += [*piece.labels(), *[IGNORE] * piece.pads]
            row["position_ids"] += range(len(piece.tokens) + piece.pads)
            row["document_ids"] += [*[piece.document] * len(piece.tokens), *[-1] * piece.pads]
            row["seq_idx"] += [number] * (len(piece.tokens) + piece.pads)
            lengths.append(len(piece.tokens) + piece.pads)
        if left := seq_len - len(row["input_ids"]):
            row["input_ids"] += [padding_idx] * left
            row["labels"] += [IGNORE] * left
            row["position_ids"] += range(left)
            row["document_ids"] += [-1] * left
            row["seq_idx"] += [len(pieces)] * left
            lengths.append(left)
        for name, values in row.items():
            assert len(values) == seq_len
            fields[name].append(values)
    batch: Batch = {
        name: np.array(values, dtype=np.int32 if name == "seq_idx" else np.int64).reshape(len(rows), seq_len)
        for name, values in fields.items()
    }
    batch["loss_mask"] = batch["labels"] != IGNORE
    batch["seq_lens"] = np.array(lengths, dtype=np.int32)
    batch["cu_seqlens"] = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    batch["max_seqlen"] = max(lengths, default=0)
    batch["num_supervised_tokens"] = int(batch["loss_mask"].sum())
    batch["step_supervised_tokens"] = batch["num_supervised_tokens"] if step_tokens is None else step_tokens
    batch["sample_positions"] = np.arange(len(rows), dtype=np.int64)
    return batch


def item(pieces: Sequence[Piece], seq_len: int, *, padding_idx: int = 0) -> Batch:
    """The same of one row, each field (S,), without the counts of a step."""
    batch = make([pieces], seq_len, padding_idx=padding_idx)
    for name in ("num_supervised_tokens", "step_supervised_tokens", "sample_positions"):
        del batch[name]
    return {name: value[0] if getattr(value, "ndim", 0) == 2 else value for name, value in batch.items()}


def read_back(batch: Batch) -> list[list[Piece]]:
    """The pieces that a batch seems to hold; for one that is wrong, just any: ``make`` then gives another batch."""
    rows = []
    for r in range(len(batch["input_ids"])):
        inputs, labels, positions, documents = (
            batch[name][r].tolist() for name in ("input_ids", "labels", "position_ids", "document_ids")
        )
        pieces: list[Piece] = []
        begins = [c for c, position in enumerate(positions) if c == 0 or position == 0]
        for begin, end in zip(begins, [*begins[1:], len(positions)], strict=True):
            real = [c for c in range(begin, end) if documents[c] != -1]
            if real:
                last = labels[real[-1]]
                pieces.append(
                    Piece(
                        document=documents[begin],
                        tokens=tuple(inputs[c] for c in real),
                        trained=(False, *(labels[c] != IGNORE for c in real[:-1])),
                        after=None if last == IGNORE else last,
                        pads=end - begin - len(real),
                    )
                )
        rows.append(pieces)
    return rows


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same, the fields of the first in the second."""
    return all(
        np.array_equal(value, other[name]) if isinstance(value, np.ndarray) else value == other[name]
        for name, value in one.items()
    )


@st.composite
def drawn_rows(
    draw: st.DrawFn, *, seq_len: int, multiple: int = 1, vocabulary: int = 9, max_rows: int = 3
) -> list[list[Piece]]:
    """Rows of pieces that fit; their numbers are small, so that equal tokens, lengths of 1 and full rows come up."""
    rows = []
    # In no order; drawn as one number, for drawing a permutation takes longer than all the rest.
    documents = iter(np.random.default_rng(draw(st.integers(0, 99))).permutation(max_rows * seq_len).tolist())
    for _ in range(draw(st.integers(1, max_rows))):
        pieces = []
        left = seq_len
        while left and (length := draw(st.integers(0, min(left, 7 * multiple)))):
            pads = -length % multiple
            pieces.append(
                Piece(
                    document=next(documents),
                    tokens=tuple(draw(st.lists(st.integers(0, vocabulary - 1), min_size=length, max_size=length))),
                    trained=tuple(draw(st.lists(st.booleans(), min_size=length, max_size=length))),
                    after=draw(st.none() | st.integers(0, vocabulary - 1)),
                    pads=pads,
                )
            )
            left -= length + pads
        rows.append(pieces)
    return rows
