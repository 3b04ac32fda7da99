"""The face that every store of tokens shares, whatever its layout on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, overload

import msgspec
import numpy as np

from headrace.stores.arguments import MAIN, IntArray, KeyList, TokenArray, check_ranges

__all__ = ["MAIN", "IntArray", "KeyList", "Problem", "Store", "TokenArray"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault found by ``check``: which file, where in it, and what is wrong.

    ``place`` names the spot as exactly as the check can (``"byte 1048576"``, ``"document 17"``), or is empty.
    """

    path: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.place}: {self.message}" if self.place else f"{self.path}: {self.message}"


class Store(ABC):
    """Documents of tokens on disk, addressed by document or as one stream of tokens.

    The *token stream* of a key is its documents one after another, in the order of their numbers.
    Opening a store costs O(1) a shard: header, sizes and end entries are validated, documents are not read.
    Arrays that a store returns are read-only and stay valid after it is closed or collected.
    """

    format: ClassVar[str]
    """Name of the layout, as ``headrace info`` prints it."""

    path: str
    """What was opened, as the user wrote it."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """Names of the token streams; the first is the main one, which is also known as ``"tokens"``."""

    @property
    @abstractmethod
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key on disk."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """All files of the store."""

    @property
    @abstractmethod
    def num_documents(self) -> int:
        """Number of documents, empty ones included. O(1)."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens in the stream."""

    @property
    @abstractmethod
    def lengths(self) -> IntArray:
        """(num_documents,) int64: tokens of each document. O(num_documents) time and memory at each call."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that tells this content from another, wherever the files lie. O(1) a shard."""

    @overload
    def document(self, index: int) -> TokenArray: ...
    @overload
    def document(self, index: int, keys: str | None) -> TokenArray: ...
    @overload
    def document(self, index: int, keys: KeyList) -> dict[str, TokenArray]: ...
    @abstractmethod
    def document(self, index: int, keys: str | KeyList | None = None) -> TokenArray | dict[str, TokenArray]:
        """(length,) tokens of one document; negative indices count from the end, out of range is an IndexError.

        Without ``keys`` those of the main key; an array for one key, a dict for several.
        """

    @overload
    def fetch(self, begin: int, end: int, keys: str | None = None) -> TokenArray: ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyList) -> dict[str, TokenArray]: ...
    @abstractmethod
    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> TokenArray | dict[str, TokenArray]:
        """(end - begin,) tokens of the stream: an array for one key, a dict for several.

        Raises:
            IndexError: unless ``0 <= begin <= end <= num_tokens``.
        """

    @abstractmethod
    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) tokens in the dtype on disk: for each row the stream from ``begins[row]`` on.

        A fresh, writable array. This is the read path of training: one call a batch.
        """

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """(num_tokens,) the whole stream without a copy, read-only; None where the store cannot give it so. O(1)."""
        return None

    def pieces(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[TokenArray]:
        """Of each range of the stream its (lengths[i],) tokens from ``begins[i]`` on, in order; views where it can.

        Raises:
            IndexError: a range that is not within the stream.
            ConfigError: a key that the store does not have, or that is not parallel to the main one.
        """
        return [np.asarray(buffer) for buffer in self.buffers(begins, lengths, key)]

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """The same as buffers of that dtype, which are made and joined in two thirds of the time of arrays.

        The read path of packed samples: about 0.1 us a range where the store is mapped. Raises as ``pieces``.
        """
        ends = (begins + lengths).tolist()
        stream = self.stream_view(key)
        if stream is None:
            return [self.fetch(begin, end, key).data for begin, end in zip(begins.tolist(), ends, strict=True)]
        check_ranges(begins, lengths, len(stream))
        view = stream.data
        return [view[begin:end] for begin, end in zip(begins.tolist(), ends, strict=True)]

    def document_buffers(self, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[memoryview]:
        """Of each document its (lengths[i],) tokens from ``begins[i]`` on, as buffers; all (n,) int64.

        Raises:
            IndexError: no such document; a range that is not within the stream.
        """
        return self.buffers(self.document_begins(documents) + begins, lengths)

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """The lengths of all documents, int64, so many at a time: what ``lengths`` gives, in bounded memory."""
        for first in range(0, self.num_documents, num_documents):
            end = min(first + num_documents, self.num_documents)
            yield np.diff(self.document_begins(np.arange(first, end + 1)))

    @abstractmethod
    def find_documents(self, begins: IntArray) -> IntArray:
        """(n,) int64: the number of the document that holds each token of the stream. O(log documents) each."""

    @abstractmethod
    def document_begins(self, documents: IntArray) -> IntArray:
        """(n,) int64: where each document begins in the token stream; ``num_documents`` itself gives ``num_tokens``."""

    @abstractmethod
    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Read everything and yield what is wrong, with ``vocab_size`` also ids outside ``[0, vocab_size)``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files. Arrays handed out stay valid."""

    def __len__(self) -> int:
        return self.num_documents

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format} store {self.path!r}: {self.num_documents:,} documents, {self.num_tokens:,} tokens>"
