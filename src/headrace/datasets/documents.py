"""The documents of a store, one a sample, as tokens and labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import index
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.dataset import Sample
from headrace.datasets.loss_masks import AUTO, shown_mask, used_mask
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store


class DocumentDataset:
    """Sample i is document i of a store, as torchtune's datasets give theirs; made for `PackedDataset`.

    - ``tokens``: (length,) int64;
    - ``labels``: (length,) int64, the tokens themselves, and -100 where the store's loss mask is 0. They
      are not shifted: the training step does that, as torchtune's recipes do.

    Documents are of any length, so they cannot be stacked into the arrays of one shape that a `headrace.Dataset`
    fills: this is a map-style dataset of its own, and no source of a run.

    A sample costs one read of the store; ``lengths`` O(documents) time and memory at each use, nothing is kept.

    Args:
        store: an open store of any layout.
        loss_mask_key: a key of the store parallel to its main one, 1 where a token is trained on and 0 elsewhere:
            ``"auto"`` the loss mask that the store has, if it has one; None trains on every token.

    Raises:
        ConfigError: not a store, or the store has no such key, or the key is not parallel to the main one.
        InputError: on reading, a loss mask with other values than 0 and 1; names the documents.
    """

    def __init__(self, store: Store, *, loss_mask_key: str | None = AUTO) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        self.store = store
        self.loss_mask_key = used_mask(store, loss_mask_key)

    def __len__(self) -> int:
        return self.store.num_documents

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: tokens of each document."""
        return self.store.lengths

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "documents", "store": self.store.fingerprint, "loss_mask_key": self.loss_mask_key}

    @cached_property
    def fingerprint(self) -> str:
        """128 bits in hex over ``recipe``."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.recipe, order="sorted"))

    def describe(self) -> str:
        """One line."""
        return f"documents of {self.store.path}{shown_mask(self.store, self.loss_mask_key)}"

    def __getitem__(self, index_: int) -> Sample:
        number = index(index_)
        if not -len(self) <= number < len(self):
            raise IndexError(f"document {index_} of a dataset of {len(self):,}")
        number %= len(self)
        tokens, labels, _ = self.joined(number, number + 1)
        return {"tokens": tokens, "labels": labels}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at ``indices``; documents that follow one another are read as one."""
        wanted = np.asarray(indices, dtype=np.int64)
        if not wanted.size:
            return []
        if int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self):
            raise IndexError(f"documents {wanted.min()} .. {wanted.max()} of a dataset of {len(self):,}")
        wanted %= len(self)
        samples: list[Sample] = []
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
            tokens, labels, lengths = self.joined(int(run[0]), int(run[-1]) + 1)
            cuts = np.cumsum(lengths)[:-1]
            pairs = zip(np.split(tokens, cuts), np.split(labels, cuts), strict=True)
            samples.extend({"tokens": some, "labels": theirs} for some, theirs in pairs)
        return samples

    def joined(
        self, first: int, stop: int, begin: int = 0, end: int | None = None
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Documents ``first`` .. ``stop - 1`` one after another: tokens, labels, and (stop - first,) int64 lengths.

        Of the tokens and labels only ``[begin, end)`` is read and returned, of the lengths all. One read of the store.
        """
        begins = self.store.document_begins(np.arange(first, stop + 1))
        base = int(begins[0])
        from_, to = base + begin, int(begins[-1]) if end is None else base + end
        tokens = self.store.fetch(from_, to).astype(np.int64)
        labels = tokens.copy()
        if self.loss_mask_key is not None:
            labels[~self._loss_mask(self.loss_mask_key, from_, to, first, stop)] = IGNORED_LABEL
        return tokens, labels, np.diff(begins)

    def _loss_mask(self, key: str, begin: int, end: int, first: int, stop: int) -> NDArray[np.bool_]:
        values = self.store.fetch(begin, end, key)
        is_one: NDArray[np.bool_] = values == 1
        others = values[~is_one]
        if others.any():
            raise InputError(
                f"{self.store.path}: documents {first} to {stop - 1}: the key {key!r} holds"
                f" {others[others != 0][0]}; a loss mask holds 0 and 1"
            )
        return is_one

    def __repr__(self) -> str:
        return f"<DocumentDataset: {len(self):,} samples, {self.describe()}>"
