"""`SFTDataset`: conversations, or other records with a loss mask, one in each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from headrace.datasets.counts import CountedDataset, Counts
from headrace.datasets.dataset import Fields, Sample, Traits
from headrace.datasets.loss_masks import check_labels, check_store, shown_mask
from headrace.datasets.records import Collation, RecordDataset, RecordKey, check_parallel, found_key, supervised_labels
from headrace.datasets.sample_watch import SampleWatch
from headrace.plan import IntArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store

TOKEN_KEYS = ("tokens", "sequence", "text")
_INT64 = np.dtype(np.int64)


class SFTDataset(RecordDataset, CountedDataset):
    """Sample i is record i: its tokens, and labels where its loss mask is 1.

    An item has arrays of shape (length,), a batch of shape (B, L):

    - ``input_ids`` int64; pads are ``padding_idx``;
    - ``labels`` int64, -100 at tokens that are not trained on and at pads. With ``labels="next"`` the label at a place
      is the next token, as in windows and packs; with ``"same"`` it is the token at its own place, for models and
      trainers that shift labels themselves, such as those of Hugging Face. The first token of a record is never a
      label;
    - ``attention_mask`` int64, 1 at tokens;
    - ``position_ids`` int64, from 0 on, and from 0 again over the pads;
    - ``loss_mask`` bool, where the label is not -100.

    A batch also has ``num_supervised_tokens``, an int: the number of labels that are not -100.

    If the store has the key ``num_supervised``, one number for each record, tokens are counted by it, and masks are
    read only for records that are cut.

    Args:
        store: an open store with the keys ``tokens`` (or ``sequence``, or its main key) and ``loss_mask``.
        collation: how records are brought to one length; by default padded on the right to the longest of the batch.
        labels: ``"next"`` or ``"same"``, see above.
        tokens_key: the key of the tokens, if it is another one.
        loss_mask_key: the key that is 1 at tokens to train on; None trains on all tokens.

    Raises:
        ConfigError: as `RecordDataset`; an unknown value of ``labels``.
        InputError: while reading, if a mask has another length than the tokens, or other values than 0 and 1.

    Example:
        >>> dataset = headrace.SFTDataset(headrace.open("stores/chats"), labels="same")
        >>> sorted(dataset[0])
        ['attention_mask', 'input_ids', 'labels', 'loss_mask', 'position_ids']
        >>> batch = dataset.collate([dataset[0], dataset[1]])
        >>> batch["num_supervised_tokens"] == int((batch["labels"] != -100).sum())
        True
    """

    def __init__(
        self,
        store: Store,
        collation: Collation | None = None,
        *,
        labels: Literal["next", "same"] = "next",
        tokens_key: str | None = None,
        loss_mask_key: str | None = "loss_mask",
    ) -> None:
        check_store(store)
        check_labels(labels)
        tokens = found_key(store, tokens_key, (*TOKEN_KEYS, store.keys[0]), "the tokens")
        keys = {"tokens": tokens}
        if loss_mask_key is not None:
            keys["loss_mask"] = found_key(
                store, loss_mask_key, (), "the loss mask (loss_mask_key=None trains on all tokens)"
            )
        super().__init__(store, Collation() if collation is None else collation, keys)
        self.labels = labels
        self._counted = RecordKey(store, "num_supervised") if "num_supervised" in store.keys else None

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); -1 is the width of the batch."""
        names = dict.fromkeys(("input_ids", "labels", "attention_mask", "position_ids"), _INT64)
        return {name: ((-1,), dtype) for name, dtype in {**names, "loss_mask": np.dtype(np.bool_)}.items()}

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(is_ragged=True, is_counted=True, is_masked="loss_mask" in self._keys)

    def _options(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return the records at some addresses, unpadded."""
        pieces, marks = self._read(addresses)
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        ids = np.concatenate([np.empty(0, np.int64), *pieces])
        labels = supervised_labels(ids, marks, lengths, shifted=self.labels == "next")
        ends = np.cumsum(lengths)
        columns = {
            "input_ids": ids,
            "labels": labels,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(ids)) - np.repeat(ends - lengths, lengths),
            "loss_mask": labels != IGNORED_LABEL,
        }
        spans = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [{name: values[begin:end] for name, values in columns.items()} for begin, end in spans]

    def _read(self, records: IntArray) -> tuple[list[Any], Any]:
        """Return the kept tokens of each record, and the marks of all records one after another."""
        whole = self._keys["tokens"].values(records)
        pieces = [self._cut(piece, int(record), "the sequence") for piece, record in zip(whole, records, strict=True)]
        if "loss_mask" not in self._keys:
            return pieces, np.ones(sum(map(len, pieces)), dtype=bool)
        marks = self._keys["loss_mask"].values(records)
        check_parallel(self.store, records, whole, marks, repr(self._keys["loss_mask"].key))
        return pieces, np.concatenate([np.empty(0, np.uint8), *map(self.collation.cut, marks)])

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return samples, each with ``input_ids`` and ``labels``, as one batch."""
        grid = self._grid([len(sample["input_ids"]) for sample in samples])
        labels = grid.filled([sample["labels"] for sample in samples], IGNORED_LABEL, np.int64)
        batch: dict[str, Any] = {
            "input_ids": grid.filled([s["input_ids"] for s in samples], self.collation.padding_idx, np.int64),
            "labels": labels,
            "attention_mask": grid.is_token.astype(np.int64),
            "position_ids": grid.positions(),
            "loss_mask": labels != IGNORED_LABEL,
        }
        batch["num_supervised_tokens"] = int(np.count_nonzero(batch["loss_mask"]))
        return batch

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens that are kept of each record."""
        return self.collation.kept(self._keys["tokens"].lengths(addresses))

    def describe(self) -> str:
        """Describe store, longest length, labels and mask in one line."""
        mask = self._keys["loss_mask"].key if "loss_mask" in self._keys else None
        labels = ", labels not shifted" if self.labels == "same" else ""
        return f"{super().describe()}{labels}{shown_mask(self.store, mask)}"

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens and labels of each record. Pads belong to batches and are not counted here."""
        whole = self._keys["tokens"].lengths(addresses)
        kept = self.collation.kept(whole)
        supervised = np.maximum(kept - 1, 0)
        if "loss_mask" in self._keys:
            is_cut = kept < whole
            # num_supervised holds the count for whole records, including their first token, which nothing predicts.
            known = ~is_cut & (whole > 0) if self._counted is not None else np.zeros(len(addresses), dtype=bool)
            if self._counted is not None and known.any():
                firsts = self._keys["loss_mask"].first_values(addresses[known]) != 0
                supervised[known] = self._counted.first_values(addresses[known]) - firsts
            masks = self._keys["loss_mask"].values(addresses[~known])
            supervised[~known] = [np.count_nonzero(self.collation.cut(marks)[1:]) for marks in masks]
        return Counts(kept, supervised, np.zeros_like(kept), np.ones_like(kept))
