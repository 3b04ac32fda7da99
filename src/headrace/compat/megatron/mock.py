"""Megatron's ``MockGPTDataset``: samples without files, to try out or measure a training run.

`MockStore` computes the documents of Megatron's mock data when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.compat.megatron.gpt import GPTDataset
from headrace.errors import ConfigError
from headrace.stores.arguments import by_keys, check_range, document_number, positions, read_only
from headrace.stores.store import MAIN, IntArray, KeyList, Problem, Store, TokenArray

_SEED = 0
"""The seed of the lengths; Megatron has no option for it."""


class MockStore(Store):
    """Documents that count ``1, 2, 3, ...`` modulo ``vocab_size`` and end with ``eod``; their lengths are drawn.

    Lengths, including the ``eod``, are 1 to ``max_length - 1``, drawn from NumPy's ``default_rng(0)`` as in Megatron's
    ``MockGPTLowLevelDataset``. The constructor draws them, which takes about 1 ms for the default of 100,000 documents,
    and keeps 8 bytes for each.

    Raises:
        ConfigError: a number is out of range.

    Example:
        >>> store = headrace.compat.megatron.MockStore(vocab_size=50_257, eod=50_256)
        >>> len(store)
        100000
        >>> store.document(0)[:3].tolist()
        [1, 2, 3]
    """

    format = "mock"

    def __init__(self, *, vocab_size: int, eod: int, num_documents: int = 100_000, max_length: int = 4096) -> None:
        if vocab_size < 1 or num_documents < 0 or max_length < 2 or not 0 <= eod < 1 << 31 or vocab_size > 1 << 31:
            raise ConfigError(
                "vocab_size is 1 to 2^31, num_documents at least 0, max_length at least 2 and eod 0 to 2^31 - 1, "
                f"found {vocab_size}, {num_documents}, {max_length} and {eod}"
            )
        self.path = "mock data"
        self._options = {
            "vocab_size": vocab_size, "eod": eod, "num_documents": num_documents, "max_length": max_length
        }  # fmt: skip
        self._vocab_size, self._eod = vocab_size, eod
        lengths = np.random.default_rng(_SEED).integers(1, max_length, num_documents, dtype=np.int32)
        self._ends = np.zeros(num_documents + 1, dtype=np.int64)
        np.cumsum(lengths, out=self._ends[1:])

    @property
    def keys(self) -> tuple[str, ...]:
        """The one key, that of the tokens."""
        return (MAIN,)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Tokens are int32."""
        return {MAIN: np.dtype(np.int32)}

    @property
    def files(self) -> tuple[Path, ...]:
        """Always empty: the documents are computed."""
        return ()

    @property
    def num_documents(self) -> int:
        """The number that was given to the constructor."""
        return len(self._ends) - 1

    @property
    def num_tokens(self) -> int:
        """About ``num_documents * max_length / 2``."""
        return int(self._ends[-1])

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens of each document, with its ``eod``."""
        return np.diff(self._ends)

    @cached_property
    def fingerprint(self) -> str:
        """The xxh3_128 hash of the vocabulary size, the ``eod`` and the lengths."""
        hasher = xxhash.xxh3_128(repr((self.format, self._vocab_size, self._eod)).encode())
        hasher.update(self._ends.astype("<i8").tobytes())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """(length,) int32 tokens of one document."""
        number = document_number(index, self.num_documents)
        begin, end = self._ends[number : number + 2].tolist()
        return self.fetch(begin, end, keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """(end - begin,) int32 tokens of the stream; costs some microseconds, and 5 ns a token."""
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda _: read_only(self._tokens(begin, end)), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) int32 tokens."""
        begins = positions(begins, max(0, self.num_tokens - length + 1), "begins")
        rows = np.empty((len(begins), length), dtype=np.int32)
        for row, begin in zip(rows, begins.tolist(), strict=True):
            row[:] = self._tokens(begin, begin + length)
        return rows

    def find_documents(self, begins: IntArray) -> IntArray:
        """(n,) int64: the document of each token, by a binary search in the ends of the documents."""
        found: IntArray = np.searchsorted(self._ends, positions(begins, self.num_tokens, "begins"), side="right") - 1
        return found

    def document_begins(self, documents: IntArray) -> IntArray:
        """(n,) int64: the first token of each document; O(1) each."""
        return self._ends[positions(documents, self.num_documents + 1, "documents")]

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Report the first document with an id outside of ``vocab_size``; nothing else can be wrong."""
        if vocab_size is None or not self.num_documents:
            return
        highest = np.maximum(np.minimum(self.lengths - 1, self._vocab_size - 1), self._eod)
        wrong = np.flatnonzero(highest >= vocab_size)
        if len(wrong):
            message = f"has id {highest[wrong[0]]}, allowed are 0 to {vocab_size - 1}; so have {len(wrong) - 1} others"
            yield Problem(path=self.path, place=f"document {wrong[0]}", message=message)

    def close(self) -> None:
        """Do nothing: there are no open files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._options, self.fingerprint)

    def _tokens(self, begin: int, end: int) -> TokenArray:
        """(end - begin,) int32: numbers that count from 1 in each document, and the ``eod`` at its end."""
        if begin == end:
            return np.empty(0, dtype=np.int32)
        first, last = (np.searchsorted(self._ends, [begin, end - 1], side="right") - 1).tolist()
        borders = self._ends[first : last + 2]
        within = np.diff(borders.clip(begin, end))
        tokens = (np.arange(begin + 1, end + 1) - np.repeat(borders[:-1], within)) % self._vocab_size
        ends = borders[1:]
        tokens[ends[ends <= end] - begin - 1] = self._eod
        return tokens.astype(np.int32)


def _again(options: dict[str, int], fingerprint: str) -> MockStore:
    store = MockStore(**options)
    if store.fingerprint != fingerprint:
        raise ConfigError(
            "the mock data differ from those of the process that sent them: the two use different versions of NumPy"
        )
    return store


class MockGPTDataset(GPTDataset):
    """Sample i is sample i of Megatron's ``MockGPTDataset``, a `GPTDataset` over 100,000 made-up documents.

    The documents count 1, 2, 3, ... and end with ``eod`` (`MockStore`). They are computed when they are read.

    Args:
        vocab_size: the size of the vocabulary of Megatron's tokeniser; the count begins again at 0 when it reaches it.
        eod: the id that ends each document.
        split: as for `GPTDataset`. Megatron always uses ``"1,1,1"`` for mock data, whatever its option says.
        **options: all other arguments of `GPTDataset`, such as ``sequence_length``.

    Raises:
        ConfigError: as for `GPTDataset`.

    Example:
        >>> mock = headrace.compat.megatron.MockGPTDataset(vocab_size=50_257, eod=50_256, sequence_length=1_024)
        >>> mock[0]["tokens"][:5].tolist()
        [117, 118, 119, 120, 121]
    """

    def __init__(self, *, vocab_size: int, eod: int, split: str = "1,1,1", **options: Any) -> None:
        super().__init__(MockStore(vocab_size=vocab_size, eod=eod), split=split, **options)

    def describe(self) -> str:
        """One line: the description of the `GPTDataset`, marked as mock data."""
        return f"mock data in {super().describe()}"
