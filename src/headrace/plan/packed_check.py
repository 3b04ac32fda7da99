"""The validator of packed batches: every field is checked against every other one.

Tests, ``headrace check`` and the loader's debug mode use it. Some changes turn a valid batch into another valid one, so
that only a comparison with the store could find them. These are the only changes that are not found:

- an input id that no label repeats: of the first token of a segment, or one whose label before it is -100;
- the label of the last token of a segment, if a split document continues with a token that is not in the batch;
- a supervised label that becomes -100, unless ``loss_mask`` or ``num_supervised_tokens`` is present;
- the document number of a segment of one token; and whether a pad belongs to the last document or to the pads at the
  end of the row, if the other fields allow both;
- the border of a segment, if only ``position_ids`` holds it and all rules still hold after it moves;
- a count of the whole step that is too large, which a single micro-batch does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.plan.segments import IGNORED_LABEL

_DTYPES: dict[str, type] = {
    "input_ids": np.int64, "labels": np.int64, "position_ids": np.int64, "document_ids": np.int64,
    "seq_idx": np.int32, "loss_mask": np.bool_,
}  # fmt: skip
_NEEDED = ("input_ids", "labels", "position_ids", "document_ids")

Rows = dict[str, NDArray[Any]]
Mask = NDArray[np.bool_]


def check_packed(batch: Mapping[str, Any], *, padding_idx: int | None = None, is_unshifted: bool = False) -> list[str]:
    """Return what is wrong with a packed item, with fields of (S,), or a micro-batch, with fields of (B, S).

    The batch needs ``input_ids``, ``labels``, ``position_ids`` and ``document_ids``. The fields ``loss_mask``,
    ``seq_idx``, ``seq_lens``, ``cu_seqlens``, ``max_seqlen``, ``num_supervised_tokens``, ``step_supervised_tokens`` and
    ``sample_positions`` are checked if they are present; others are ignored. Values are NumPy arrays, or anything that
    NumPy converts to arrays. ``padding_idx`` is the id that pads must have; without it, all pads of a row must have the
    same id. With ``is_unshifted`` a label is the token at the same place, and not the next one.

    Each finding names the first place, and what was found and expected there. The list is empty if nothing is wrong.
    Takes a few passes over the tokens.
    """
    wrong = list(_shapes(batch))
    if wrong:
        return wrong
    rows = {name: np.atleast_2d(batch[name]) for name in _DTYPES if name in batch}
    findings = _Findings(is_item=np.ndim(batch["input_ids"]) == 1)
    begins = rows["position_ids"] == 0
    borders_given = any(name in batch for name in ("cu_seqlens", "seq_lens", "seq_idx"))
    _check_positions(rows, findings)
    _check_documents(rows, begins, borders_given, findings)
    _check_labels(rows, begins, findings, is_unshifted=is_unshifted)
    _check_pads(rows, padding_idx, findings)
    if "seq_idx" in rows:
        expected = np.cumsum(begins, axis=1) - 1
        findings.compare("seq_idx", rows["seq_idx"], expected, "the number of its segment")
    return [*findings.found, *_borders(batch, begins), *_counts(batch, rows["labels"])]


def verify_packed(batch: Mapping[str, Any], *, padding_idx: int | None = None, is_unshifted: bool = False) -> None:
    """Raise HeadraceError with all findings of ``check_packed``, if there are any."""
    if found := check_packed(batch, padding_idx=padding_idx, is_unshifted=is_unshifted):
        raise HeadraceError("this packed batch contradicts itself: " + "; ".join(found))


class _Findings:
    """Collects findings; each is reported once, at its first place, with the number of further places."""

    def __init__(self, *, is_item: bool) -> None:
        self.found: list[str] = []
        self._is_item = is_item

    def compare(self, field: str, values: NDArray[Any], expected: NDArray[Any], what: str) -> None:
        places = np.argwhere(values != expected)
        if len(places):
            at = tuple(places[0])
            self._add(places, f"{field} is {values[at]}; {what} is {np.broadcast_to(expected, values.shape)[at]}")

    def refuse(self, field: str, values: NDArray[Any], where: Mask, why: str) -> None:
        places = np.argwhere(where)
        if len(places):
            self._add(places, f"{field} is {values[tuple(places[0])]}; {why}")

    def _add(self, places: NDArray[Any], text: str) -> None:
        row, column = places[0]
        place = f"column {column}" if self._is_item else f"row {row}, column {column}"
        more = f" (and at {len(places) - 1:,} more)" if len(places) > 1 else ""
        self.found.append(f"{place}: {text}{more}")


def _shapes(batch: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in _NEEDED if name not in batch]
    if missing:
        yield f"{', '.join(missing)} missing: a packed batch needs {', '.join(_NEEDED)}"
        return
    shape = np.shape(batch["input_ids"])
    if len(shape) not in (1, 2) or shape[-1] == 0:
        yield f"input_ids has the shape {shape}; expected (S,) of an item or (B, S) of a batch"
    for name, dtype in _DTYPES.items():
        if name in batch:
            values = np.asarray(batch[name])
            if values.shape != shape:
                yield f"{name} has the shape {values.shape}; input_ids has {shape}"
            if values.dtype != dtype:
                yield f"{name} is {values.dtype}; expected {np.dtype(dtype)}"


def _check_positions(rows: Rows, findings: _Findings) -> None:
    positions = rows["position_ids"]
    findings.compare("position_ids", positions[:, :1], np.zeros_like(positions[:, :1]), "the first of a row")
    wrong = np.zeros(positions.shape, dtype=np.bool_)
    wrong[:, 1:] = (positions[:, 1:] != 0) & (positions[:, 1:] != positions[:, :-1] + 1)
    findings.refuse("position_ids", positions, wrong, "it is 0, or one more than the one before")


def _check_documents(rows: Rows, begins: Mask, borders_given: bool, findings: _Findings) -> None:
    """A segment holds tokens of one document, then its pads; a segment of pads alone is the last of its row."""
    documents = rows["document_ids"]
    findings.refuse("document_ids", documents, documents < -1, "a document's number, or -1 at pads")
    before = np.full_like(documents, -1)
    before[:, 1:] = documents[:, :-1]
    inside = ~begins
    inside[:, 0] = False
    changed = inside & (documents != before)
    findings.refuse("document_ids", documents, changed & (documents >= 0), "a segment has only one document")
    empty_before = np.zeros_like(begins)
    # Marks every column after the first one where a segment of pads alone begins.
    empty_before[:, 1:] = np.logical_or.accumulate(begins & (documents == -1), axis=1)[:, :-1]
    findings.refuse(
        "document_ids", documents, begins & empty_before, "nothing follows the segment of pads at a row's end"
    )
    if not borders_given:
        again = begins & (documents == before) & (documents >= 0)
        again[:, 0] = False
        findings.refuse(
            "document_ids",
            documents,
            again,
            "the segment before has the same document, but no other field has a border here",
        )


def _check_labels(rows: Rows, begins: Mask, findings: _Findings, *, is_unshifted: bool) -> None:
    """A label is the next input of its segment or -100; any id at the last token of a segment; -100 at every pad."""
    labels, inputs = rows["labels"], rows["input_ids"]
    findings.refuse("input_ids", inputs, inputs < 0, "a token's id is not negative")
    findings.refuse(
        "labels", labels, (labels < 0) & (labels != IGNORED_LABEL), f"a token's id, or {IGNORED_LABEL} for no label"
    )
    real = rows["document_ids"] != -1
    expected = labels.copy()
    if is_unshifted:
        expected[labels != IGNORED_LABEL] = inputs[labels != IGNORED_LABEL]
    else:
        followed = ~begins[:, 1:] & real[:, 1:] & (labels[:, :-1] != IGNORED_LABEL)
        expected[:, :-1][followed] = inputs[:, 1:][followed]
    expected[~real] = IGNORED_LABEL
    beside = "the token beside it" if is_unshifted else "the next token of its segment"
    findings.compare("labels", labels, expected, f"{beside}, or no label at a pad,")
    if "loss_mask" in rows:
        findings.compare("loss_mask", rows["loss_mask"], labels != IGNORED_LABEL, "whether there is a label")


def _check_pads(rows: Rows, padding_idx: int | None, findings: _Findings) -> None:
    inputs = rows["input_ids"]
    pads = rows["document_ids"] == -1
    if padding_idx is None:
        first = np.take_along_axis(inputs, np.argmax(pads, axis=1)[:, None], axis=1)
        findings.compare("input_ids", inputs, np.where(pads, first, inputs), "the first pad of its row")
    else:
        findings.compare("input_ids", inputs, np.where(pads, padding_idx, inputs), "the padding")


def _borders(batch: Mapping[str, Any], begins: Mask) -> Iterator[str]:
    """Check the borders of the segments over the flattened rows, in their three forms."""
    borders = np.append(np.flatnonzero(begins), begins.size)
    lengths = np.diff(borders)
    for name, expected in (("cu_seqlens", borders), ("seq_lens", lengths)):
        if name not in batch:
            continue
        values = np.asarray(batch[name])
        if values.dtype != np.int32:
            yield f"{name} is {values.dtype}; expected int32"
        if values.shape != expected.shape:
            yield f"{name} has the shape {values.shape}; position_ids give {expected.shape}"
        elif len(wrong := np.flatnonzero(values != expected)):
            i = int(wrong[0])
            yield f"{name}[{i}] is {values[i]}; position_ids give {expected[i]}"
    if "max_seqlen" in batch:
        yield from _number("max_seqlen", batch["max_seqlen"], int(lengths.max(initial=0)), "the longest segment has")


def _counts(batch: Mapping[str, Any], labels: NDArray[Any]) -> Iterator[str]:
    supervised = int((labels != IGNORED_LABEL).sum())
    if "num_supervised_tokens" in batch:
        yield from _number("num_supervised_tokens", batch["num_supervised_tokens"], supervised, "the labels are")
    if "step_supervised_tokens" in batch:
        step = batch["step_supervised_tokens"]
        at_least = max(supervised, step) if isinstance(step, int) else supervised
        yield from _number("step_supervised_tokens", step, at_least, "the labels of this micro-batch alone are")
    if "sample_positions" in batch and (shape := np.shape(batch["sample_positions"])) != labels.shape[:1]:
        yield f"sample_positions has the shape {shape}; expected ({len(labels)},), one for each row"


def _number(name: str, value: Any, expected: int, what: str) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield f"{name} is {value!r}, {type(value).__name__}; expected a Python int, {expected}"
    elif value != expected:
        yield f"{name} is {value}; {what} {expected}"
