"""Megatron's ``GPTFIMDataset``: samples of `GPTDataset` with fill in the middle applied to their documents."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from headrace.compat.megatron.gpt import GPTDataset
from headrace.datasets.dataset import FixedWrapper, Sample
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import derive, source_key
from headrace.plan.megatron import FillInTheMiddle, KeyedDraws, fill_in_the_middle


class GPTFIMDataset(FixedWrapper):
    """Sample i is sample i of a `GPTDataset`, rearranged by fill in the middle. The fields are the same.

    The random draws of a sample are a hash of ``fim.seed``, the data and i, so they are the same in every process,
    after every resume and on any number of ranks. (In Megatron they depend on the samples that the process has read
    before.)

    Masks and positions are computed from the rearranged tokens. A sample that has become longer loses its end.

    Args:
        dataset: the dataset that the samples come from.
        fim: the options of fill in the middle.

    Raises:
        ConfigError: the dataset uses ``inter_document_masking``, whose borders would be those of the documents before
            they were rearranged.

    Example:
        >>> megatron = headrace.compat.megatron
        >>> tokens = megatron.FIMTokens(prefix=1_000, middle=1_001, suffix=1_002, pad=1_003, eod=0)
        >>> dataset = megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> filled = megatron.GPTFIMDataset(dataset, megatron.FillInTheMiddle(tokens=tokens, rate=0.5))
        >>> filled[0]["tokens"].shape
        (128,)
    """

    dataset: GPTDataset

    def __init__(self, dataset: GPTDataset, fim: FillInTheMiddle) -> None:
        if not isinstance(dataset, GPTDataset):
            raise ConfigError(f"dataset is {dataset!r}; expected a GPTDataset(prefix, ...)")
        if dataset.masks.inter_document_masking:
            raise ConfigError(
                "inter_document_masking separates documents where they were before fill in the middle moved and cut "
                "them; use reset_position_ids and reset_attention_mask instead, which go by eod"
            )
        self.dataset = dataset
        self.fim = fim
        # The key includes the data and the part of the split, so that two sources of a blend draw differently.
        self._key = source_key(fim.seed, f"{dataset.store.fingerprint} {dataset.split_part}", "fill in the middle")

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {"kind": "gpt_fim", "dataset": self.dataset.recipe, "fim": self.fim.recipe}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the addresses of the inner dataset."""
        return self.dataset.locate(indices, keys)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples, rearrange them, and write their fields into ``rows`` of ``out``."""
        if not len(addresses):
            return
        pieces = self.dataset.order.locate(addresses)
        text = self.dataset.text(pieces).astype(np.int64)
        for row, (sample, count) in enumerate(zip(addresses.tolist(), pieces.num_tokens.tolist(), strict=True)):
            # The pads that fill up a partial sample belong to no document.
            text[row, :count] = fill_in_the_middle(text[row, :count], self.fim, KeyedDraws(derive(self._key, sample)))
        self.dataset.write(text, pieces, out, rows)

    def describe(self) -> str:
        """One line: the rate, the unit between which documents are cut, and the inner dataset."""
        between = "tokens" if self.fim.codec is None else "characters"
        return f"fill in the middle of {self.fim.rate:.3g} of documents, between {between}: {self.dataset.describe()}"
