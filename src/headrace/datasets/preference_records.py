"""Pairs of a chosen and a rejected answer, one a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.collation import Collation, Grid
from headrace.datasets.dataset import Counts, Fields, Sample
from headrace.datasets.record_keys import found_key
from headrace.datasets.records import RecordDataset, check_parallel, supervised_labels
from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store

ANSWERS = ("chosen", "rejected")
_INT64 = np.dtype(np.int64)


class PreferenceDataset(RecordDataset):
    """Sample i is record i: prompt and answer of the chosen one, and of the rejected one.

    Of an item each is (length,) int64; of a batch (B, L), L the longest of all chosen and rejected ones:

    =====================  ========================  ==========================================================
    ``layout="apart"``     ``layout="stacked"``
    =====================  ========================  ==========================================================
    chosen_input_ids       input_ids (2B, L)         tokens; pads are ``padding_idx``. Stacked, the chosen ones first
    rejected_input_ids
    chosen_attention_mask  attention_mask (2B, L)    1 at tokens
    rejected_attention_..
    chosen_labels          completion_mask (2B, L)   labels: -100 at the prompt and at pads; the mask: 1 where the
    rejected_labels                                  token itself is trained on, as TRL's collator gives it
    =====================  ========================  ==========================================================

    ``labels`` as in `SFTDataset`: ``"next"`` beside the token before, ``"same"`` beside the token itself. Items are
    apart in either layout. A batch has besides ``num_supervised_tokens``, an int, over both answers.

    Args:
        store: an open store with the keys ``chosen``, ``chosen_mask``, ``rejected`` and ``rejected_mask``.
        collation: how records come to one length; each answer is cut for itself.
        labels: what a label stands beside.
        layout: of batches.

    Raises:
        ConfigError: as `RecordDataset`; an unknown value.
        InputError: on reading, a mask of another length than the tokens, or with other values than 0 and 1; a rejected
            answer that is too long.
    """

    def __init__(
        self,
        store: Store,
        collation: Collation | None = None,
        *,
        labels: Literal["next", "same"] = "next",
        layout: Literal["apart", "stacked"] = "apart",
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        if labels not in ("next", "same"):
            raise ConfigError(f"labels is {labels!r}; allowed are 'next', 'same'")
        if layout not in ("apart", "stacked"):
            raise ConfigError(f"layout is {layout!r}; allowed are 'apart', 'stacked'")
        names = [name for answer in ANSWERS for name in (answer, f"{answer}_mask")]
        keys = {name: found_key(store, None, (name,), f"{name} of preferences") for name in names}
        super().__init__(store, Collation() if collation is None else collation, keys)
        self.labels = labels
        self.layout = layout

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); stacked, a sample has two rows, the chosen one among the first B."""
        if self.layout == "stacked":
            return dict.fromkeys(("input_ids", "attention_mask", "completion_mask"), ((2, -1), _INT64))
        names = ("input_ids", "labels", "attention_mask")
        return {f"{answer}_{name}": ((-1,), _INT64) for answer in ANSWERS for name in names}

    @property
    def is_counted(self) -> bool:
        """True."""
        return True

    @property
    def is_masked(self) -> bool:
        """True."""
        return True

    def _options(self) -> dict[str, Any]:
        return {"labels": self.labels, "layout": self.layout}

    def samples(self, addresses: IntArray) -> list[dict[str, Any]]:
        """Records, with ``input_ids``, ``labels`` and ``attention_mask`` of each answer."""
        found: list[dict[str, Any]] = [{} for _ in addresses]
        for answer in ANSWERS:
            whole = self._keys[answer].values(addresses)
            marks = self._keys[f"{answer}_mask"].values(addresses)
            check_parallel(self.store, addresses, whole, marks, repr(f"{answer}_mask"))
            pieces = [self._cut(piece, int(i), f"the {answer} one") for piece, i in zip(whole, addresses, strict=True)]
            lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
            ids = np.concatenate([np.empty(0, np.int64), *pieces])
            kept = np.concatenate([np.empty(0, np.uint8), *map(self.collation.cut, marks)])
            labels = supervised_labels(ids, kept, lengths, shifted=self.labels == "next")
            ends = np.cumsum(lengths)
            for sample, begin, end in zip(found, (ends - lengths).tolist(), ends.tolist(), strict=True):
                sample[f"{answer}_input_ids"] = ids[begin:end]
                sample[f"{answer}_labels"] = labels[begin:end]
                sample[f"{answer}_attention_mask"] = np.ones(end - begin, dtype=np.int64)
        return found

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Samples with ``input_ids`` and ``labels`` of each answer as one batch."""
        rows = {
            name: [sample[f"{answer}_{name}"] for answer in ANSWERS for sample in samples]
            for name in ("input_ids", "labels")
        }
        grid = self._grid(list(map(len, rows["input_ids"])))
        ids = grid.filled(rows["input_ids"], self.collation.padding_idx, np.int64)
        labels = grid.filled(rows["labels"], IGNORED_LABEL, np.int64)
        attention = grid.is_token.astype(np.int64)
        batch: dict[str, Any] = {}
        if self.layout == "stacked":
            batch = {"input_ids": ids, "attention_mask": attention, "completion_mask": self._completions(labels, grid)}
        else:
            for half, answer in ((slice(len(samples)), "chosen"), (slice(len(samples), None), "rejected")):
                batch[f"{answer}_input_ids"] = ids[half]
                batch[f"{answer}_labels"] = labels[half]
                batch[f"{answer}_attention_mask"] = attention[half]
        batch["num_supervised_tokens"] = int(np.count_nonzero(labels != IGNORED_LABEL))
        return batch

    def _completions(self, labels: IntArray, grid: Grid) -> IntArray:
        """(2B, L) int64: 1 at the tokens that are trained on themselves."""
        mask: NDArray[np.bool_] = labels != IGNORED_LABEL
        if self.labels == "next" and mask.shape[1]:
            # No label stands beside the last token of a row, so that nothing falls out.
            mask = np.roll(mask, 1, axis=1)
        completions: IntArray = (mask & grid.is_token).astype(np.int64)
        return completions

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: kept tokens of the longer answer."""
        chosen, rejected = (self.collation.kept(self._keys[answer].lengths(addresses)) for answer in ANSWERS)
        return np.maximum(chosen, rejected)

    def _token_counts(self, addresses: IntArray) -> IntArray:
        chosen, rejected = (self.collation.kept(self._keys[answer].lengths(addresses)) for answer in ANSWERS)
        return chosen + rejected

    def count(self, addresses: IntArray) -> Counts:
        """Tokens and labels of both answers; the masks are read. Pads are a batch's, and none are counted here."""
        supervised = np.zeros(len(addresses), dtype=np.int64)
        for answer in ANSWERS:
            for row, marks in enumerate(self._keys[f"{answer}_mask"].values(addresses)):
                supervised[row] += np.count_nonzero(self.collation.cut(marks)[1:])
        kept = self._token_counts(addresses)
        return Counts(kept, supervised, np.zeros_like(kept), np.full_like(kept, len(ANSWERS)))
