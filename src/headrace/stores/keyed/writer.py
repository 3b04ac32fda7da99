"""Writes the keyed format: the bytes that AstrAI's own writer would, in memory that does not grow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import AtomicFile, check_local, output_errors
from headrace.stores.keyed.layout import (
    META_NAME,
    KeyLayout,
    check_key,
    key_dtype,
    meta_entry,
    parse_bounds,
    parse_meta,
)
from headrace.stores.token_file import CHUNK, LengthChunks, checked_lengths, checked_tokens
from headrace.stores.writer import Writer
from headrace.stores.written import WriterState, WrittenShard

MAX_DOCUMENTS: Final = 1_000_000
"""In a shard that is written. ``meta.json`` lists them all, and is read and parsed whole."""


class KeyedWriter(Writer):
    """Writes one shard: a folder with ``<key>.bin`` for each key, and ``meta.json`` with their offsets.

    Args:
        folder: made if it is not there; its parent must be.
        dtypes: dtype of each key; the first key is the main one.
        offsets: the keys that get offsets; all by default. A key without is one array for whoever reads the file
            alone. Such a shard cannot be continued after a kill.
        values: the keys that hold no ids of a vocabulary but masks, lengths, rewards; for the manifest.
        state: continue from here; the writer is then resumable.
        resumable: leave the temporary files, so that a killed writer can be continued; see `Writer`.

    Raises:
        ConfigError: no keys, a name that cannot be a file's, a dtype that the format does not have, or ``offsets``
            of a writer that is to be resumable.
        StateError: the state is another writer's.
        StoreError: the temporary files are not what the state says.
        OutputError: the system refuses a file.
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
        if not dtypes:
            raise ConfigError(f"{self._folder}: dtypes names no key; a keyed store has at least one")
        for key in dtypes:
            check_key(key)
        for name, given in (("offsets", offsets or ()), ("values", values)):
            for key in given:
                if key not in dtypes:
                    raise ConfigError(
                        f"{self._folder}: {name} names {key!r}; the keys are {', '.join(map(repr, dtypes))}"
                    )
        self._with_offsets = tuple(key for key in dtypes if offsets is None or key in offsets)
        if offsets is not None and (resumable or state is not None):
            raise ConfigError(f"{self._folder}: a writer with offsets= writes a shard at once; it is not resumable")
        wanted = {key: key_dtype(dtype) for key, dtype in dtypes.items()}
        self._is_made = not self._folder.exists()
        with output_errors(self._folder, "make the folder"):
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
        """The folder."""
        return str(self._folder)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Dtype of each key on disk."""
        return dict(self._dtypes)

    def add_documents(self, tokens: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Append documents; the more at once, the faster.

        Args:
            tokens: for each key (sum of its lengths,) values, the documents one after another.
            lengths: for each key with offsets (n,) values of each document, in ``[0, 2^31)``; n is the same for all.

        Raises:
            ConfigError: the writer is no longer open, or the shard would have over `MAX_DOCUMENTS`.
            InputError: other keys than the writer's, values of another kind or that do not fit into the dtype, or
                lengths that do not fit the values. Nothing of this call is written then.
            OutputError: the system refuses the write; the writer is of no further use.
        """
        self._check_open("add documents")
        for name, given, due in (("tokens", tokens, tuple(self._files)), ("lengths", lengths, self._with_offsets)):
            if given.keys() != set(due):
                raise InputError(
                    f"{self._folder}: {name} were given for the keys {', '.join(map(repr, given))}, the writer has"
                    f" {', '.join(map(repr, due))}"
                )
        checked = {}
        for key, dtype in self._dtypes.items():
            whole = np.array([len(tokens[key])], np.int64)
            counts = checked_lengths(lengths.get(key, whole), len(tokens[key]))
            checked[key] = checked_tokens(tokens[key], dtype, f"{self._folder}: key {key!r}"), counts
        numbers = {key: len(checked[key][1]) for key in self._with_offsets}
        if len(set(numbers.values())) > 1:
            found = ", ".join(f"{number} for {key!r}" for key, number in numbers.items())
            raise InputError(f"{self._folder}: different numbers of documents: {found}")
        if self.num_documents + max(numbers.values(), default=0) > MAX_DOCUMENTS:
            raise ConfigError(
                f"{self._folder}: a shard of the keyed format holds at most {MAX_DOCUMENTS:,} documents, since its"
                f" {META_NAME} lists them all; write more and smaller shards, or the indexed format"
            )
        for key, (data, counts) in checked.items():
            self._files[key].add(data, counts)

    @property
    def num_documents(self) -> int:
        """Documents added so far; without offsets all is one."""
        if self._with_offsets:
            return self._files[self._with_offsets[0]].num_documents
        return int(next(iter(self._files.values())).num_tokens > 0)

    def finish(self) -> WrittenShard:
        """Write ``meta.json``, bring all files to the disk and give them their names; ``meta.json`` comes last.

        Raises:
            ConfigError: the writer is no longer open.
            OutputError: the system refuses; nothing that opens as a store is left behind.
        """
        shard = super().finish()
        self._is_made = False
        return shard

    def discard(self) -> None:
        """Remove the temporary files, and the folder if the writer made it. Nothing happens after `finish`."""
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
            raise StoreError(f"{path}: not of this writer, it does not name the key {key!r}: begin anew")
        lengths = np.diff(parse_bounds(str(path), data, key))
        for begin in range(0, len(lengths), CHUNK):
            yield lengths[begin : begin + CHUNK]
