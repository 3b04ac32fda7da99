"""Fixed-length windows over the token stream of a store."""

from __future__ import annotations

from functools import cached_property
from operator import index
from typing import Any, Literal

import numpy as np

from headrace.datasets.dataset import Dataset, Fields, Sample
from headrace.datasets.trace_origins import Origins, window_origins, windows_over
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray, derive_array
from headrace.stores import Store

_INT64 = np.dtype(np.int64)


class WindowDataset(Dataset):
    """Sample i is the ``window_tokens`` tokens from ``i * stride`` on, with the next token of each as its label.

    Fields, each (window_tokens,) int64:

    - ``input_ids``: tokens ``[i * stride, i * stride + window_tokens)`` of the stream, documents one after another;
    - ``labels``: the same, one token later;
    - ``position_ids``: 0 .. window_tokens - 1, or from 0 again at each document with ``position_ids="restart"``;
    - ``document_ids``: with ``document_ids=True``, the store's number of the document that each input token is of.

    With ``phase=True`` each epoch cuts the stream at another offset, drawn in [0, stride), so that the borders of
    the windows do not always fall on the same tokens. Every epoch has the same number of samples, at most one less
    than without.

    No index is built: any sample is found by arithmetic. The tail of the stream too short for a window is not read
    (with ``phase`` it is another tail each epoch).

    Raises:
        ConfigError: a size is below 1, or the store has fewer than ``window_tokens + 1`` tokens.
    """

    def __init__(
        self,
        store: Store,
        *,
        window_tokens: int,
        stride: int | None = None,
        phase: bool = False,
        document_ids: bool = False,
        position_ids: Literal["continue", "restart"] = "continue",
    ) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        window_tokens = index(window_tokens)
        stride = window_tokens if stride is None else index(stride)
        if window_tokens < 1 or stride < 1:
            raise ConfigError(f"window_tokens and stride are at least 1, found {window_tokens} and {stride}")
        if position_ids not in ("continue", "restart"):
            raise ConfigError(f"position_ids is {position_ids!r}; allowed are 'continue', 'restart'")
        slack = store.num_tokens - (window_tokens + 1)
        if slack < 0:
            raise ConfigError(
                f"{store.path} has {store.num_tokens:,} tokens; a window of {window_tokens:,} and the label of its "
                f"last token need {window_tokens + 1:,}: use a shorter window or more data"
            )
        self.store = store
        self.window_tokens = window_tokens
        self.stride = stride
        self.phase = phase
        self._document_ids = document_ids
        self._restart = position_ids == "restart"
        # Every phase below `stride` must leave room for the last window; where none fits so, the phase is shorter.
        room = slack - (stride - 1) if phase else slack
        self._num_samples: int = max(0, room) // stride + 1
        self._num_phases = min(stride, slack - (self._num_samples - 1) * stride + 1)
        self._positions = np.arange(window_tokens, dtype=np.int64)

    def __len__(self) -> int:
        return self._num_samples

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype)."""
        names = ["input_ids", "labels"] + ["document_ids"] * self._document_ids + ["position_ids"] * self._restart
        return dict.fromkeys(names, ((self.window_tokens,), _INT64))

    @property
    def constants(self) -> Sample:
        """The ``position_ids``, unless they restart at documents."""
        return {} if self._restart else {"position_ids": self._positions}

    @property
    def num_tokens_per_sample(self) -> float:
        """The window: each of its tokens is predicted from."""
        return float(self.window_tokens)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {
            "kind": "windows",
            "store": self.store.fingerprint,
            "num_tokens": self.store.num_tokens,
            "window_tokens": self.window_tokens,
            "stride": self.stride,
            "phase": self.phase,
            "document_ids": self._document_ids,
            "position_ids": "restart" if self._restart else "continue",
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: where each window begins in the token stream."""
        begins = indices * self.stride
        if self.phase and keys is not None:
            draws = derive_array(keys, np.zeros(1, dtype=np.int64))
            begins += (draws % np.uint64(self._num_phases)).astype(np.int64)
        return begins

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the windows that begin at ``addresses`` into ``rows`` of ``out``."""
        tokens = self.store.gather(addresses, self.window_tokens + 1)
        out["input_ids"][rows] = tokens[:, :-1]
        out["labels"][rows] = tokens[:, 1:]
        if not (self._restart or self._document_ids):
            return
        documents, columns, lengths = self._segments(addresses)
        shape = (len(addresses), self.window_tokens)
        if self._restart:
            out["position_ids"][rows] = self._positions - np.repeat(columns, lengths).reshape(shape)
        if self._document_ids:
            out["document_ids"][rows] = np.repeat(documents, lengths).reshape(shape)

    def _segments(self, begins: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The windows cut at documents: (segments,) int64 document, first column and length of each, window by window.

        Example: windows of 5 tokens at 0 and 4 over documents of 3, 0 and 6 tokens are the segments
        (0, 0, 3) (1, 3, 0) (2, 3, 2) and (2, 0, 5).
        """
        first = self.store.find_documents(begins)
        counts = self.store.find_documents(begins + (self.window_tokens - 1)) - first + 1
        ends = np.cumsum(counts)
        rows = np.repeat(np.arange(len(begins)), counts)
        documents = np.arange(len(rows)) - np.repeat(ends - counts, counts) + first[rows]
        columns = np.maximum(self.store.document_begins(documents) - begins[rows], 0)
        # Each segment ends where the next of its window begins, the last one of a window at the window's end.
        stops = np.append(columns[1:], 0)
        stops[ends - 1] = self.window_tokens
        return documents, columns, stops - columns

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The documents that the input tokens are of."""
        return window_origins(self.store, addresses, self.window_tokens)

    def holders(self, document: int) -> IntArray:
        """The windows over a document, under any phase."""
        phases = self._num_phases if self.phase else 1
        size = self.window_tokens
        return windows_over(self.store, document, stride=self.stride, length=size, phases=phases, num_samples=len(self))

    def describe(self) -> str:
        """One line."""
        cut = "" if self.stride == self.window_tokens else f" every {self.stride:,}"
        phase = ", another phase each epoch" if self.phase else ""
        return f"windows of {self.window_tokens:,} tokens{cut}{phase} over {self.store.num_tokens:,} tokens"
