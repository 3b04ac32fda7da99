"""Megatron's ``IndexedDataset`` and ``IndexedDatasetBuilder``: read and write ``.bin``/``.idx`` pairs by sequences."""

from __future__ import annotations

import contextlib
import operator
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headrace.config import whole
from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import check_local, check_readable, path_at
from headrace.stores import OutputShard
from headrace.stores.arguments import TokenArray
from headrace.stores.indexed.layout import AS_FOUND, Dialect, Documents, IdxLayout, IndexedOptions, code_of
from headrace.stores.indexed.pairs import SUFFIXES, open_pair
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.indexed.writer import SequenceFiles, WrittenArrays
from headrace.stores.writer import CHUNK, MAX_LENGTH, checked_tokens


class SequenceIndex:
    """The arrays of an ``.idx`` as Megatron's ``IndexedDataset.index`` holds them, for code that asks for them by name.

    ``index[i]`` is the pointer, the length and the mode of sequence i; the mode is None if the dataset is not
    multimodal. The arrays are views if the file is mapped, and are read at each access otherwise.

    Example:
        >>> sequences = headrace.compat.megatron.IndexedDataset("stores/web/text_document")
        >>> sequences.index.dtype, sequences.index.sequence_count == len(sequences)
        (<class 'numpy.uint16'>, True)
    """

    def __init__(self, store: IndexedStore, *, multimodal: bool) -> None:
        self._store = store
        self._multimodal = multimodal

    @property
    def dtype(self) -> type[np.generic]:
        """The type of the tokens, such as ``numpy.int32``; Megatron has a type here, not a dtype."""
        return self._store.dtypes["tokens"].type

    @property
    def sequence_count(self) -> int:
        """The number of sequences."""
        return self._store.num_sequences

    @property
    def document_count(self) -> int:
        """The number of ``document_indices``, which is the number of documents plus 1."""
        return self._store.num_documents + 1

    @property
    def sequence_lengths(self) -> NDArray[Any]:
        """(sequences,) int32 (int64 in the oldest formats): tokens of each sequence."""
        return self._store.sequence_lengths

    @property
    def sequence_pointers(self) -> NDArray[np.int64]:
        """(sequences,) int64: the byte of the ``.bin`` where each sequence begins."""
        return self._store.sequence_pointers

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """(documents + 1,) int64: 0, then the number of sequences up to the end of each document."""
        return self._store.document_indices

    @property
    def sequence_modes(self) -> NDArray[Any] | None:
        """(sequences,) int8: the mode of each sequence; None if the dataset is not multimodal."""
        return self._store.modes if self._multimodal else None

    def __len__(self) -> int:
        return self.sequence_count

    def __getitem__(self, idx: int) -> tuple[np.int32, np.int64, np.int8 | None]:
        modes = self.sequence_modes
        return self.sequence_pointers[idx], self.sequence_lengths[idx], None if modes is None else modes[idx]


class IndexedDataset:
    """The sequences of a ``.bin``/``.idx`` pair: ``dataset[i]``, with negative indices and slices of any step.

    A document consists of zero or more sequences; ``document_indices`` holds its borders. Items are read-only arrays in
    the dtype on disk. If the file is mapped they are views, and stay valid when the dataset is closed or
    garbage-collected. With ``multimodal=True`` an item is a pair of the array and the sequence's mode, and a slice is a
    pair of a list of arrays and an array of modes. Opening costs O(1). The dataset is pickled as its path, and
    unpickling fails if the files have changed.

    Args:
        path_prefix: the path without ``.bin`` and ``.idx``, or a URL such as ``s3://bucket/web/text_document``.
        multimodal: return the modes with the items.
        mmap: map the files; False reads them.
        object_storage_config: must be None; it is for Megatron's own client. URLs are read as the environment says.
        s3_config: the old name of ``object_storage_config``.
        fast_cache_load: has no effect. In Megatron it skips the header and the checks of the ``.idx``; here opening
            costs the same for any number of sequences.
        sequences_per_dataset: the numbers of sequences and of document indices that the header must hold, from
            Megatron's ``--per-dataset-sequences-path``. Megatron believes these numbers; here they are checked.
        dtype_code: has no effect. Megatron takes the dtype from the size of the vocabulary with
            ``sequences_per_dataset``; here it is always that of the ``.idx``.
        dialect: the program that wrote the pair, as for `headrace.open`.
        documents: what counts as a document, as for `headrace.open`.

    Raises:
        StoreError: a file is missing or malformed, ``multimodal`` asks for modes and the file has none, or the file
            does not hold ``sequences_per_dataset``.
        ConfigError: ``object_storage_config`` is not None.

    Source: Megatron-Core 0.16, ``IndexedDataset``. Two things that it leaves unchecked are errors here: a ``.bin`` that
    is cut short, and `get` beyond the end of a sequence. Slices follow the pointers, as single items do.

    Example:
        >>> sequences = headrace.compat.megatron.IndexedDataset("stores/web/text_document")
        >>> len(sequences) == len(sequences.document_indices) - 1
        True
        >>> sequences[0].dtype
        dtype('uint16')
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        multimodal: bool = False,
        mmap: bool = True,
        object_storage_config: Any = None,
        s3_config: Any = None,
        fast_cache_load: bool = False,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
        *,
        dialect: Dialect | None = None,
        documents: Documents = "indices",
    ) -> None:
        check_readable(path_prefix)
        if object_storage_config is not None or s3_config is not None:
            raise ConfigError(
                f"{path_prefix}: object_storage_config is for Megatron's own client of object stores: leave it out; the"
                " URL is read as the environment says"
            )
        options = IndexedOptions(dialect=dialect, documents=documents)
        self.path_prefix = os.fspath(path_prefix)
        self.multimodal = multimodal
        self.mmap = mmap
        self._store = open_pair(self.path_prefix, using="mmap" if mmap else "pread", options=options)
        if multimodal and self._store.modes is None and len(self):
            raise StoreError(
                f"{path_prefix}.idx: has no modes, which multimodal=True asks for; it was not written as multimodal, so"
                " open it with multimodal=False"
            )
        if sequences_per_dataset is not None:
            found = [self.index.sequence_count, self.index.document_count]
            if found != list(map(operator.index, sequences_per_dataset)):
                raise StoreError(
                    f"{path_prefix}.idx: holds {found[0]:,} sequences and {found[1]:,} document indices,"
                    f" sequences_per_dataset says {list(sequences_per_dataset)}: the data have changed since that file"
                    " was made; make it again (Megatron would read other tokens)"
                )

    @property
    def index(self) -> SequenceIndex:
        """The arrays of the ``.idx`` under Megatron's names."""
        return SequenceIndex(self._store, multimodal=self.multimodal)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self._store.dtypes["tokens"]

    @property
    def sequence_lengths(self) -> NDArray[Any]:
        """(len(self),) int32 (int64 in the oldest formats): tokens of each sequence. A view if the file is mapped."""
        return self._store.sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """(documents + 1,) int64: 0, then the number of sequences up to the end of each document."""
        return self._store.document_indices

    @property
    def sequence_modes(self) -> NDArray[Any] | None:
        """(len(self),) int8 (int32 in files of 2023): the mode of each sequence; None if the file has no modes."""
        return self._store.modes

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Whether both files exist."""
        check_readable(path_prefix)
        return all(path_at(f"{os.fspath(path_prefix)}{suffix}").is_file() for suffix in SUFFIXES)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """(length,) tokens of one sequence from ``offset`` on, by default to its end; with its mode if multimodal.

        Raises:
            IndexError: there is no such sequence, or the range is not within it.
        """
        tokens = self._store.sequence(idx, offset, length)
        return (tokens, self._modes()[idx]) if self.multimodal else tokens

    def close(self) -> None:
        """Close the files. Arrays stay valid, and a later read opens the files again."""
        self._store.close()

    def __len__(self) -> int:
        return self._store.num_sequences

    def __getitem__(self, idx: int | slice) -> Any:
        if not isinstance(idx, slice):
            return self.get(idx)
        sequences = self._store.sequences(np.arange(*idx.indices(len(self))))
        return (sequences, self._modes()[idx]) if self.multimodal else sequences

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"<IndexedDataset {self.path_prefix!r}: {len(self):,} sequences, {self._store.num_documents:,} documents>"
        )

    def _modes(self) -> TokenArray:
        modes = self._store.modes
        return np.empty(0, np.int8) if modes is None else modes


_WAITING_TOKENS = 1 << 19
_MAX_WAITING = 1 << 15
"""The most tokens, and sequences or documents, that are held in lists before they are written to the files."""
_NONE = np.zeros(0, np.int64)
_NO_MODES = np.zeros(0, np.int8)


class IndexedDatasetBuilder:
    """Writes one pair of files, byte for byte as Megatron's builder of this name, in bounded memory.

    Tokens are lists, NumPy arrays or torch tensors on the CPU, of any integer type (of any number type for a
    floating-point dtype). They are copied when they are added. The files appear under their names only with `finalize`,
    both together; a builder that is dropped before leaves no files. The builder is also a context manager.

    Args:
        bin_path: the path of the ``.bin``.
        dtype: the dtype of the tokens on disk; see `headrace.stores.optimal_dtype`.
        multimodal: write a mode for each sequence.
        dialect: the readers that the pair is for. ``"fairseq"`` has uint32 and uint64, but no documents and no modes.

    Raises:
        ConfigError: readers of the dialect do not know the dtype, or the dialect is fairseq and modes are asked for.
        OutputError: the system refuses a file.

    Source: Megatron-Core 0.16, ``IndexedDatasetBuilder``. What it leaves unchecked is an error here: ids that do not
    fit the dtype, lengths that do not add up, sequences that belong to no document, and pairs that do not go together.

    Example:
        >>> builder = headrace.compat.megatron.IndexedDatasetBuilder("two.bin", dtype=np.uint16)
        >>> builder.add_document([5, 6, 7, 0], [4])
        >>> builder.add_document([8, 9, 0], [3])
        >>> builder.finalize("two.idx").documents
        2
        >>> headrace.compat.megatron.IndexedDataset("two")[1].tolist()
        [8, 9, 0]
    """

    def __init__(
        self,
        bin_path: str | os.PathLike[str],
        dtype: DTypeLike = np.int32,
        multimodal: bool = False,
        *,
        dialect: Dialect = "megatron",
    ) -> None:
        check_local(bin_path)
        IndexedOptions(dialect=dialect)  # raises ConfigError for an unknown dialect
        if multimodal and dialect == "fairseq":
            raise ConfigError(f"{bin_path}: multimodal=True and dialect='fairseq': fairseq's layout has no modes")
        self._path = Path(bin_path)
        self._dialect = dialect
        self._multimodal = multimodal
        layout = IdxLayout(code_of(dtype, dialect), 0, 0, dialect, 1 if multimodal else 0)
        self._dtype = layout.dtype
        self._files = SequenceFiles(self._path, layout)
        self._discard = weakref.finalize(self, SequenceFiles.discard, self._files)
        self._tokens: list[NDArray[Any]] = []
        self._num_waiting = 0
        self._lengths: list[int] = []
        self._modes: list[int] = []
        self._bounds: list[int] = []
        self._last_bound = 0
        self._num_sequences = 0
        self._is_open = True
        self._highest = np.iinfo(self._dtype).max if self._dtype.kind in "iu" else -1

    @property
    def num_sequences(self) -> int:
        """The number of sequences added so far."""
        return self._num_sequences

    @property
    def sequence_lengths(self) -> list[int]:
        """The tokens of each sequence added so far; read from the temporary files in O(sequences).

        Raises:
            ConfigError: the builder is finished; open the pair with `IndexedDataset`.
        """
        return self._written().lengths

    @property
    def document_indices(self) -> list[int]:
        """0, and the number of sequences up to the end of each document ended so far; cost and errors as above."""
        return [0, *self._written().bounds]

    @property
    def sequence_modes(self) -> list[int] | None:
        """The mode of each sequence added so far, None if the builder is not multimodal; cost and errors as above."""
        return self._written().modes if self._multimodal else None

    def add_item(self, tensor: ArrayLike, mode: int = 0) -> None:
        """Append one sequence to the current document, which `end_document` ends.

        Raises:
            InputError: the tokens are not numbers of the dtype's kind, or do not fit into the dtype; nothing is added.
            ConfigError: a mode is given but the builder is not multimodal, or the builder is finished.
            OutputError: the system refuses the write; the builder cannot be used any further.
        """
        self._check_open("add an item")
        tokens = self._checked_tokens(tensor)
        self._add(tokens, [len(tokens)], self._checked_modes([mode] if mode or self._multimodal else None, 1))

    def add_document(self, tensor: ArrayLike, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Append several sequences, and end the document that they and the items before them belong to.

        Args:
            tensor: the tokens of all sequences.
            lengths: tokens of each sequence; ``[]`` makes an empty document, ``[0]`` one with an empty sequence.
            modes: the mode of each sequence if multimodal, by default 0.

        Raises:
            InputError: as `add_item`, or the lengths or modes do not match the tokens; nothing is added.
            ConfigError: as `add_item`.
            OutputError: as `add_item`.
        """
        self._check_open("add a document")
        tokens = self._checked_tokens(tensor)
        counts = self._checked_lengths(lengths, len(tokens))
        self._add(tokens, counts, self._checked_modes(modes, len(counts)), [self._num_sequences + len(counts)])

    def add_documents(
        self,
        documents: Iterable[ArrayLike],
        modes: Sequence[int] | None = None,
        eod_token: int | None = None,
        chunk_size: int = 1_000_000,
    ) -> None:
        """Append documents of one sequence each.

        Args:
            documents: the tokens of each document, as an awkward array or any iterable of what `add_item` takes.
            modes: the mode of each document if multimodal, by default 0.
            eod_token: a token to append to every document, also to an empty one. (Megatron's ``preprocess_data.py``
                and `headrace prepare` leave empty documents empty.)
            chunk_size: the most documents of an awkward array that are copied at once.

        Raises:
            InputError: as `add_item`, or the number of modes differs from that of the documents. Documents before
                the faulty one, or its chunk, are added.
            ConfigError: as `add_item`, or ``chunk_size`` is below 1.
            OutputError: as `add_item`.
        """
        self._check_open("add documents")
        chunk_size = whole(chunk_size, "chunk_size", least=1)
        if modes is not None and isinstance(documents, Sized) and len(modes) != len(documents):
            raise InputError(f"{self._path}: {len(modes)} modes for {len(documents)} documents; give one for each")
        end = None if eod_token is None else self._checked_tokens([operator.index(eod_token)])
        number = 0
        for some, lengths in _documents(documents, chunk_size):
            tokens = self._checked_tokens(some)
            counts = np.array([len(tokens)]) if lengths is None else lengths
            stop = number + len(counts)
            self._add_whole(tokens, counts, None if modes is None else modes[number:stop], end)
            number = stop

    def end_document(self) -> None:
        """End the document of the items added since the previous one; without items the document is empty.

        Raises:
            ConfigError: the builder is finished.
            OutputError: as `add_item`.
        """
        self._check_open("end a document")
        self._add(np.empty(0, self._dtype), [], [], [self._num_sequences])

    def add_index(self, path_prefix: str | os.PathLike[str], *, options: IndexedOptions = AS_FOUND) -> None:
        """Append all documents of another pair, in bounded memory. Calling it for several pairs merges them.

        Tokens are written in the order of the index, so a pair with permuted pointers is put in order.

        Args:
            path_prefix: the path without ``.bin`` and ``.idx``.
            options: how to read the pair, as for `headrace.open`.

        Raises:
            StoreError: the pair is missing or malformed.
            ConfigError: the pair has another dtype, only one of the pair and this builder has modes, or sequences
                still wait for `end_document`.
            InputError: modes do not fit the format.
            OutputError: as `add_item`.
        """
        check_local(path_prefix)
        self._check_open("add an index")
        self._check_ended("add_index")
        with contextlib.closing(open_pair(path_prefix, using="pread", options=options)) as store:
            self._check_goes_with(store)
            self._flush()
            try:
                self._copy(store)
            except BaseException:
                self.discard()
                raise

    def finalize(self, idx_path: str | os.PathLike[str]) -> OutputShard:
        """Write the index, give both files their names, and return what was written.

        Raises:
            ConfigError: some sequences belong to no document; call `end_document`, then this method again.
            OutputError: the system refuses a file; then neither file exists.
        """
        check_local(idx_path)
        self._check_open("finalize")
        self._check_ended("finalize")
        self._flush()
        self._is_open = False
        self._discard.detach()
        return self._files.finish(Path(idx_path))

    def discard(self) -> None:
        """Remove what was written so far. Does nothing after `finalize`."""
        self._is_open = False
        self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _add_whole(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], modes: Sequence[int] | None, end: NDArray[Any] | None
    ) -> None:
        """Append documents of one sequence each, with the token ``end`` behind each of them."""
        if end is not None:
            tokens = np.insert(tokens.astype(self._dtype, copy=False), np.cumsum(lengths), end.astype(self._dtype))
            lengths = lengths + 1
        counts = self._checked_lengths(lengths.tolist(), len(tokens))
        ends = self._num_sequences + np.arange(1, len(counts) + 1)
        self._add(tokens, counts, self._checked_modes(modes, len(counts)), ends.tolist())

    def _written(self) -> WrittenArrays:
        self._check_open("tell what was added (open the pair with IndexedDataset)")
        self._flush()
        return self._files.arrays()

    def _add(self, tokens: NDArray[Any], lengths: list[int], modes: list[int], ends: Sequence[int] = ()) -> None:
        """Hold sequences, and documents that end after so many sequences, until there are enough to be written."""
        if len(tokens):
            self._tokens.append(tokens.astype(self._dtype))
        self._num_waiting += len(tokens)
        self._num_sequences += len(lengths)
        self._lengths += lengths
        self._modes += modes
        self._bounds += ends
        self._last_bound = ends[-1] if ends else self._last_bound
        if self._num_waiting >= _WAITING_TOKENS or max(len(self._lengths), len(self._bounds)) >= _MAX_WAITING:
            self._flush()

    def _flush(self) -> None:
        tokens = np.concatenate([np.empty(0, self._dtype), *self._tokens])
        lengths, bounds = np.array(self._lengths, np.int64), np.array(self._bounds, np.int64)
        modes = np.array(self._modes, np.int8)
        self._tokens, self._num_waiting, self._lengths, self._modes, self._bounds = [], 0, [], [], []
        try:
            self._files.add(tokens, lengths, bounds, modes)
        except BaseException:  # one of the files may hold a part of the data
            self.discard()
            raise

    def _copy(self, store: IndexedStore) -> None:
        index, num_tokens, first = store.index, store.num_tokens, self._num_sequences
        none = np.empty(0, self._dtype)
        for begin in range(0, num_tokens, _WAITING_TOKENS):
            tokens = store.fetch(begin, min(begin + _WAITING_TOKENS, num_tokens))
            self._files.add(np.ascontiguousarray(tokens), _NONE, _NONE, _NO_MODES)
        for begin in range(0, len(index.sizes), CHUNK):
            end = min(begin + CHUNK, len(index.sizes))
            modes = _NO_MODES if index.modes is None else index.modes.read(begin, end).astype(np.int8)
            self._files.add(none, index.sizes.read(begin, end), _NONE, modes)
        for begin in range(1, len(index.bounds), CHUNK):
            bounds = index.bounds.read(begin, min(begin + CHUNK, len(index.bounds))) + first
            self._files.add(none, _NONE, bounds, _NO_MODES)
        self._num_sequences += len(index.sizes)
        self._last_bound = self._num_sequences

    def _checked_tokens(self, tensor: ArrayLike) -> NDArray[Any]:
        """(n,) numbers that fit into the dtype on disk, in their own dtype."""
        try:
            array = np.asarray(tensor)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(
                f"{self._path}: tokens of type {type(tensor).__name__} cannot be made into an array: {error}"
            ) from error
        if array.ndim != 1:
            array = array.reshape(-1)
        if array.dtype.kind == "U":
            array = self._parsed(array)
        if array.dtype == self._dtype:
            return array
        # One pass instead of two: if the bits of all tokens together fit into the dtype, each token fits.
        if array.dtype.kind in "iu" and 0 <= np.bitwise_or.reduce(array) <= self._highest:
            return array
        return checked_tokens(array, self._dtype, str(self._path))

    def _parsed(self, words: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers that strings stand for, as Megatron's builder reads them."""
        try:
            return words.astype(np.int64 if self._dtype.kind in "iu" else np.float64)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{self._path}: tokens must be integers, not {words.dtype}: strings are read as numbers, and {error}"
            ) from error

    def _checked_lengths(self, lengths: Sequence[int], num_tokens: int) -> list[int]:
        counts = [operator.index(length) for length in lengths]
        if counts == [num_tokens] and num_tokens <= MAX_LENGTH:
            return counts
        if sum(counts) != num_tokens:
            raise InputError(f"{self._path}: the lengths add up to {sum(counts)} tokens, {num_tokens} were given")
        if counts and (min(counts) < 0 or max(counts) > MAX_LENGTH):
            wrong = min(counts) if min(counts) < 0 else max(counts)
            raise InputError(f"{self._path}: a sequence of {wrong} tokens; the format holds 0 to {MAX_LENGTH}")
        return counts

    def _checked_modes(self, modes: Sequence[int] | None, count: int) -> list[int]:
        if not self._multimodal:
            if modes is not None:
                raise ConfigError(
                    f"{self._path}: modes were given; construct the builder with multimodal=True to write them"
                )
            return []
        found = [0] * count if modes is None else [operator.index(mode) for mode in modes]
        if len(found) != count:
            raise InputError(f"{self._path}: {len(found)} modes for {count} sequences; give one for each")
        self._check_modes_fit(found)
        return found

    def _check_modes_fit(self, modes: list[int]) -> None:
        if modes and (min(modes) < -128 or max(modes) > 127):
            wrong = min(modes) if min(modes) < -128 else max(modes)
            raise InputError(f"{self._path}: mode {wrong} does not fit; the format holds -128 to 127")

    def _check_goes_with(self, store: IndexedStore) -> None:
        dtype = store.dtypes["tokens"]
        if dtype != self._dtype:
            raise ConfigError(
                f"{store.prefix}: has tokens of {dtype.name}, {self._path} is written in {self._dtype.name}"
            )
        modes = store.index.modes
        # Without sequences there are no modes either, and nothing tells the two kinds apart.
        if store.num_sequences and (modes is not None) != self._multimodal:
            has, way = ("modes", "multimodal=True") if modes is not None else ("no modes", "multimodal=False")
            raise ConfigError(f"{store.prefix}: has {has}, unlike {self._path}; construct the builder with {way}")
        if modes is not None:
            for begin in range(0, len(modes), CHUNK):
                self._check_modes_fit(modes.read(begin, min(begin + CHUNK, len(modes))).tolist())

    def _check_open(self, action: str) -> None:
        if not self._is_open:
            raise ConfigError(f"{self._path}: the builder was finalized or discarded; it cannot {action}")

    def _check_ended(self, action: str) -> None:
        waiting = self._num_sequences - self._last_bound
        if waiting and self._dialect != "fairseq":
            raise ConfigError(
                f"{self._path}: cannot {action}: {waiting} sequences were added since the last end_document() and"
                " belong to no document; call end_document() first"
            )


def _documents(documents: Iterable[ArrayLike], chunk_size: int) -> Iterator[tuple[ArrayLike, NDArray[np.int64] | None]]:
    """Yield the tokens of one document and None, or those of several, one after another, and the length of each."""
    if type(documents).__module__.partition(".")[0] != "awkward":
        yield from ((document, None) for document in documents)
        return
    import awkward

    jagged: Any = documents
    for begin in range(0, len(jagged), chunk_size):
        chunk = jagged[begin : begin + chunk_size]
        yield awkward.to_numpy(awkward.flatten(chunk)), awkward.to_numpy(awkward.num(chunk, axis=1)).astype(np.int64)
