"""Prompts to generate from, one a sample, with the columns that reward functions want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from headrace.datasets.collation import Collation, Side
from headrace.datasets.dataset import Fields, Sample
from headrace.datasets.record_keys import found_key
from headrace.datasets.records import RecordDataset
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.stores import Store

_INT64 = np.dtype(np.int64)


class PromptDataset(RecordDataset):
    """Sample i is record i: a prompt, and the columns that were passed through beside it.

    Of an item (length,), of a batch (B, P), padded on the left:

    - ``input_ids`` int64, pads are ``padding_idx``; ``attention_mask`` int64, 1 at tokens; ``position_ids`` int64, from
      0 on, and from 0 again over the pads;
    - ``columns``: of an item a dict, of a batch a list of B dicts: ``ground_truth``, ``data_source``, whatever the
      records had.

    Args:
        store: an open store with the key ``prompts`` and maybe ``columns``, a JSON object in UTF-8 for each record.
        collation: how prompts come to one length.

    Raises:
        ConfigError: as `RecordDataset`.
        InputError: on reading, columns that are no JSON object; names the record.
    """

    side: Side = "left"

    def __init__(self, store: Store, collation: Collation | None = None) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        keys = {"prompts": found_key(store, None, ("prompts",), "prompts")}
        if "columns" in store.keys:
            keys["columns"] = "columns"
        super().__init__(store, Collation() if collation is None else collation, keys)

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); ``columns`` are no arrays, and not among them."""
        return dict.fromkeys(("input_ids", "attention_mask", "position_ids"), ((-1,), _INT64))

    def samples(self, addresses: IntArray) -> list[dict[str, Any]]:
        """Prompts with their columns."""
        prompts = self._keys["prompts"].values(addresses)
        columns = self._keys["columns"].values(addresses) if "columns" in self._keys else [None] * len(prompts)
        found = []
        for record, prompt, data in zip(addresses.tolist(), prompts, columns, strict=True):
            ids = self._cut(prompt, record, "the prompt").astype(np.int64)
            found.append(
                {
                    "input_ids": ids,
                    "attention_mask": np.ones_like(ids),
                    "position_ids": np.arange(len(ids)),
                    "columns": self._columns(data, record),
                }
            )
        return found

    def _columns(self, data: Any, record: int) -> dict[str, Any]:
        if data is None or not len(data):
            return {}
        try:
            return msgspec.json.decode(data.tobytes(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{self.store.path}: record {record}: its columns are no JSON object: {error}") from error

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Samples as one batch."""
        grid = self._grid([len(sample["input_ids"]) for sample in samples])
        batch: dict[str, Any] = {
            "input_ids": grid.filled([s["input_ids"] for s in samples], self.collation.padding_idx, np.int64),
            "attention_mask": grid.is_token.astype(np.int64),
            "position_ids": grid.positions(),
            "columns": [sample["columns"] for sample in samples],
        }
        return batch

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: kept tokens of each prompt."""
        return self.collation.kept(self._keys["prompts"].lengths(addresses))
