"""Writes the keyed format with the same bytes as AstrAI's own writer, in constant memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError
from headrace.io import AtomicFile, FileSum, output_errors
from headrace.stores.keyed.layout import META_NAME, KeyLayout, meta_entry
from headrace.stores.writer import CheckedDocuments, KeysWriter, TokenFile, commit_shard

MAX_DOCUMENTS: Final = 1_000_000
"""The most documents in a shard that is written: ``meta.json`` lists all of them, and is read and parsed as a whole."""


class KeyedWriter(KeysWriter):
    """Writes one shard: a folder with ``<key>.bin`` for each key, and ``meta.json`` with their offsets.

    Args:
        folder: folder of the shard; it is created if it does not exist, but its parent must exist.
        dtypes: dtype of each key; the first key is the main one.
        offsets: the keys that get offsets; all by default. In the file, a key without offsets is a single array.
        values: keys whose values are not ids of a vocabulary but masks, lengths or rewards; a manifest records this.

    Raises:
        ConfigError: there are no keys, a name cannot be a file name, or the format does not have a dtype.
        OutputError: the system reports an error.

    Example:
        >>> with headrace.stores.KeyedWriter("keyed", dtypes={"sequence": "int32"}) as writer:
        ...     writer.add_documents({"sequence": np.array([5, 6, 7])}, {"sequence": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> headrace.open("keyed").document(1).tolist()
        [6, 7]
    """

    format = "keyed"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        dtypes: Mapping[str, DTypeLike],
        offsets: Collection[str] | None = None,
        values: Collection[str] = (),
    ) -> None:
        super().__init__(folder, dtypes, values, offsets=offsets)
        self._files: dict[str, TokenFile] = {}
        self._is_made = not self._path.exists()
        with output_errors(self._path, "create the folder"):
            self._path.mkdir(exist_ok=True)
        try:
            for key, dtype in self._dtypes.items():
                self._files[key] = TokenFile(self._path / f"{key}.bin", dtype)
        except BaseException:
            self.discard()
            raise

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key on disk."""
        return dict(self._dtypes)

    @property
    def num_documents(self) -> int:
        """Number of documents added so far; without offsets, all values are one document."""
        if self._with_offsets:
            return self._num_documents[self._with_offsets[0]]
        return int(next(iter(self._num_tokens.values())) > 0)

    def _write(self, documents: CheckedDocuments) -> None:
        if self.num_documents + max((len(documents[key][1]) for key in self._with_offsets), default=0) > MAX_DOCUMENTS:
            raise ConfigError(
                f"{self._path}: a shard of the keyed format holds at most {MAX_DOCUMENTS:,} documents, since its"
                f" {META_NAME} lists all of them; write more and smaller shards, or the indexed format"
            )
        for key, (data, counts) in documents.items():
            self._files[key].add(data, counts)

    def _commit(self) -> tuple[FileSum, ...]:
        return commit_shard(self._files.values(), self._path / META_NAME, self._write_index)

    def _remove(self) -> None:
        for file in self._files.values():
            file.discard()
        if self._is_made:
            with contextlib.suppress(OSError):  # it is not empty
                self._path.rmdir()

    def _write_index(self, index: AtomicFile) -> None:
        for number, (key, file) in enumerate(self._files.items()):
            head = meta_entry(KeyLayout(key, file.dtype, file.num_tokens, None))
            index.write((b", " if number else b"{") + head)
            if key not in self._with_offsets:
                index.write(b"}")
                continue
            index.write(b', "offsets": [0')
            begin = 0
            for lengths in file.lengths.chunks():
                ends = np.cumsum(lengths, dtype=np.int64) + begin
                index.write("".join([f", {end}" for end in ends.tolist()]).encode())
                begin = int(ends[-1])
            index.write(b"]}")
        index.write(b"}")
