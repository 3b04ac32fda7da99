"""Megatron's ``GPTFIMDataset``: samples of `GPTDataset` whose documents are rearranged to fill in the middle."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from headrace.compat.megatron.gpt import GPTDataset
from headrace.datasets.dataset import Dataset, Fields, Origins, Sample
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import derive, source_key
from headrace.plan.megatron import FillInTheMiddle, KeyedDraws, fill_in_the_middle


class GPTFIMDataset(Dataset):
    """Sample i is sample i of a `GPTDataset`, with fill in the middle done to its tokens; the fields are the same.

    What is drawn for a sample is a hash of ``fim.seed``, the data and i: it is the same in every process, after every
    resume and on any number of ranks. (In Megatron it depends on the samples that the process has read before.)

    Masks and positions are made of the rearranged tokens. A sample that has become longer loses its end.

    Args:
        dataset: where the samples are from.
        fim: what is done to them.

    Raises:
        ConfigError: with ``inter_document_masking``, whose borders are those of the documents as they were.
    """

    def __init__(self, dataset: GPTDataset, fim: FillInTheMiddle) -> None:
        if not isinstance(dataset, GPTDataset):
            raise ConfigError(f"dataset is {dataset!r}; expected a GPTDataset(prefix, ...)")
        if dataset.masks.inter_document_masking:
            raise ConfigError(
                "inter_document_masking keeps documents apart where they were before fill in the middle moved and cut "
                "them: use reset_position_ids and reset_attention_mask, which go by eod"
            )
        self.dataset = dataset
        self.fim = fim
        # The data and its part are in it: two sources of a blend do not draw alike.
        self._key = source_key(fim.seed, f"{dataset.store.fingerprint} {dataset.split_part}", "fill in the middle")

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def fields(self) -> Fields:
        """Those of the dataset."""
        return self.dataset.fields

    @property
    def constants(self) -> Sample:
        """Those of the dataset."""
        return self.dataset.constants

    @property
    def num_tokens_per_sample(self) -> float:
        """That of the dataset."""
        return self.dataset.num_tokens_per_sample

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "gpt_fim", "dataset": self.dataset.recipe, "fim": self.fim.recipe}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: as of the dataset."""
        return self.dataset.locate(indices, keys)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples, rearrange them, and make their fields in ``rows`` of ``out``."""
        if not len(addresses):
            return
        pieces = self.dataset.order.locate(addresses)
        text = self.dataset.text(pieces).astype(np.int64)
        for row, (sample, count) in enumerate(zip(addresses.tolist(), pieces.num_tokens.tolist(), strict=True)):
            # What a partial sample is filled up with is no part of any document.
            text[row, :count] = fill_in_the_middle(text[row, :count], self.fim, KeyedDraws(derive(self._key, sample)))
        self.dataset.write(text, pieces, out, rows)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset: what is rearranged stays in its sample."""
        return self.dataset.origins(addresses)

    def describe(self) -> str:
        """One line."""
        between = "tokens" if self.fim.codec is None else "characters"
        return f"fill in the middle of {self.fim.rate:.3g} of documents, between {between}: {self.dataset.describe()}"
