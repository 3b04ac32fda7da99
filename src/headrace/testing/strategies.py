"""Hypothesis strategies for data on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

Documents = list[NDArray[Any]]


def documents(dtype: DTypeLike, *, max_documents: int = 12, max_length: int = 20) -> st.SearchStrategy[Documents]:
    """Return a strategy for lists of documents, which may be empty.

    Tokens count up through the whole store and wrap within the dtype, so a token that is read from a wrong place is a
    wrong token.
    """
    lengths = st.lists(st.integers(0, max_length), max_size=max_documents)
    return lengths.map(lambda drawn: numbered_documents(drawn, dtype))


def numbered_documents(lengths: list[int], dtype: DTypeLike) -> Documents:
    """Return documents of these lengths, whose tokens count up from 1 and wrap within the dtype."""
    # The number at which int64 wraps does not fit into int64.
    values = min(int(np.iinfo(np.dtype(dtype)).max), 2**62) + 1
    tokens = (np.arange(1, sum(lengths) + 1) % values).astype(dtype)
    return np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []
