"""Megatron's ``MockGPTDataset``: samples without files, to try a training run or to measure one."""

from __future__ import annotations

from typing import Any

from headrace.datasets.gpt import GPTDataset
from headrace.datasets.gpt_mock_store import MockStore


class MockGPTDataset(GPTDataset):
    """Sample i is sample i of Megatron's ``MockGPTDataset``: those of `GPTDataset` over 100,000 made-up documents.

    The documents count 1, 2, 3, ... and end with ``eod`` (`MockStore`). They are computed when they are read.

    Args:
        vocab_size: of Megatron's tokeniser: larger numbers begin again at 0.
        eod: the id that ends each document.
        split: as of `GPTDataset`; Megatron takes ``"1,1,1"`` for mock data, whatever it is told.
        **options: every other one of `GPTDataset`, ``sequence_length`` among them.

    Raises:
        ConfigError: as of `GPTDataset`.
    """

    def __init__(self, *, vocab_size: int, eod: int, split: str = "1,1,1", **options: Any) -> None:
        super().__init__(MockStore(vocab_size=vocab_size, eod=eod), split=split, **options)

    def describe(self) -> str:
        """One line."""
        return f"mock data in {super().describe()}"
