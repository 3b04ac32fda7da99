"""Writes the keyed format with the same bytes as AstrAI's own writer, in constant memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, StoreError
from headrace.io import AtomicFile, check_local, output_errors
from headrace.stores.keyed.layout import META_NAME, KeyLayout, meta_entry, parse_bounds, parse_meta
from headrace.stores.token_file import CHUNK, LengthChunks
from headrace.stores.writer import Writer, checked_documents, checked_keys
from headrace.stores.written import WriterState, WrittenShard

MAX_DOCUMENTS: Final = 1_000_000
"""The most documents in a shard that is written: ``meta.json`` lists all of them, and is read and parsed as a whole."""


class KeyedWriter(Writer):
    """Writes one shard: a folder with ``<key>.bin`` for each key, and ``meta.json`` with their offsets.

    Args:
        folder: folder of the shard; it is created if it does not exist, but its parent must exist.
        dtypes: dtype of each key; the first key is the main one.
        offsets: the keys that get offsets; all by default. In the file, a key without offsets is a single array. A
            shard with such keys cannot be continued after a kill.
        values: keys whose values are not ids of a vocabulary but masks, lengths or rewards; a manifest records this.
        state: the state to continue from; the writer is then resumable.
        resumable: keep the temporary files, so that a killed writer can be continued; see `Writer`.

    Raises:
        ConfigError: there are no keys, a name cannot be a file name, the format does not have a dtype, or ``offsets``
            is set for a resumable writer.
        StateError: the state belongs to another writer.
        StoreError: the temporary files differ from what the state says.
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
        state: WriterState | None = None,
        resumable: bool = False,
    ) -> None:
        check_local(folder)
        self._folder = Path(folder)
        wanted = checked_keys(self._folder, dtypes, offsets=offsets or (), values=values)
        self._with_offsets = tuple(key for key in dtypes if offsets is None or key in offsets)
        if offsets is not None and (resumable or state is not None):
            raise ConfigError(
                f"{self._folder}: a writer with offsets= is not resumable; leave out offsets= or resumable="
            )
        self._is_made = not self._folder.exists()
        with output_errors(self._folder, "create the folder"):
            self._folder.mkdir(exist_ok=True)
        try:
            super().__init__(
                {key: self._folder / f"{key}.bin" for key in wanted},
                wanted,
                self._folder / META_NAME,
                state=state,
                resumable=resumable,
                values=values,
            )
        except BaseException:
            self._remove_folder()
            raise

    @property
    def prefix(self) -> str:
        """The folder of the shard."""
        return str(self._folder)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key on disk."""
        return dict(self._dtypes)

    def add_documents(self, tokens: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Append documents. It is faster to add many at once.

        Args:
            tokens: for each key the (sum of its lengths,) values of the documents, one after another.
            lengths: for each key with offsets the (n,) lengths of the documents, in ``[0, 2^31)``; n is the same for
                all.

        Raises:
            ConfigError: the writer is no longer open, or the shard would have more than `MAX_DOCUMENTS`.
            InputError: the keys differ from the writer's, values are of another kind or do not fit into the dtype, or
                the lengths do not add up to the number of values. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        self._check_open("add documents")
        checked = checked_documents(self._folder, self._dtypes, tokens, lengths, self._with_offsets)
        if self.num_documents + max((len(checked[key][1]) for key in self._with_offsets), default=0) > MAX_DOCUMENTS:
            raise ConfigError(
                f"{self._folder}: a shard of the keyed format holds at most {MAX_DOCUMENTS:,} documents, since its"
                f" {META_NAME} lists all of them; write more and smaller shards, or the indexed format"
            )
        for key, (data, counts) in checked.items():
            self._files[key].add(data, counts)

    @property
    def num_documents(self) -> int:
        """Number of documents added so far; without offsets, all values are one document."""
        if self._with_offsets:
            return self._files[self._with_offsets[0]].num_documents
        return int(next(iter(self._files.values())).num_tokens > 0)

    def finish(self) -> WrittenShard:
        """Write ``meta.json``, bring all files to the disk and give them their final names, ``meta.json`` last.

        Raises:
            ConfigError: the writer is no longer open.
            OutputError: the system reports an error; nothing that opens as a store is left behind.
        """
        shard = super().finish()
        self._is_made = False
        return shard

    def discard(self) -> None:
        """Remove the temporary files, and the folder if the writer created it. After `finish` this does nothing."""
        is_open = self._is_open
        super().discard()
        if is_open:
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._is_made:
            with contextlib.suppress(OSError):  # it is not empty
                self._folder.rmdir()

    def _write_index(self, index: AtomicFile) -> None:
        for number, (key, file) in enumerate(self._files.items()):
            head = meta_entry(KeyLayout(key, file.dtype, file.num_tokens, None))
            index.write((b", " if number else b"{") + head)
            if key not in self._with_offsets:
                index.write(b"}")
                continue
            index.write(b', "offsets": [0')
            begin = 0
            for lengths in file.chunks():
                ends = np.cumsum(lengths, dtype=np.int64) + begin
                index.write("".join([f", {end}" for end in ends.tolist()]).encode())
                begin = int(ends[-1])
            index.write(b"]}")
        index.write(b"}")

    def _lengths_in(self, key: str) -> LengthChunks:
        path = self._folder / META_NAME
        data = path.read_bytes()
        if key not in parse_meta(str(path), data):
            raise StoreError(f"{path}: belongs to another writer, since it does not name the key {key!r}: start again")
        lengths = np.diff(parse_bounds(str(path), data, key))
        for begin in range(0, len(lengths), CHUNK):
            yield lengths[begin : begin + CHUNK]
