"""The stores that are copied: opened with all their keys, read in chunks, and hashed while they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from headrace.copying.formats import CopyOptions, SortBy
from headrace.copying.rows import DocumentRows, read_rows, shards_of
from headrace.errors import StoreError
from headrace.io import (
    AnyPath,
    FileHasher,
    FileSum,
    Reader,
    folder_of,
    natural_key,
    path_at,
    path_in,
    reader,
    reader_at,
)
from headrace.io.readers import ByteArray, OpenFile
from headrace.stores import MANIFEST_NAME, IndexedStore, InputFile, KeyInfo, Manifest, Store, check_file, open_keys
from headrace.stores.arguments import IntArray
from headrace.stores.indexed.pairs import SUFFIXES
from headrace.stores.manifest import find_manifest
from headrace.stores.token_layouts import PAIRS, Opening
from headrace.stores.written import META_NAME

_READ_BYTES = 8 << 20


class Hashing:
    """Hashes files as long as their bytes are read in order, in the place of a reader's cache. For one thread.

    A range is hashed if it begins where the hashed bytes end; any other range is only read. `sum` reads the bytes that
    were not hashed by then.
    """

    def __init__(self) -> None:
        self._hashers: dict[str, FileHasher] = {}

    def use(self, path: str) -> None:
        """Prepare for reads of a file, which takes nothing."""

    def fill(
        self, using: Reader, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray
    ) -> None:
        """Read ranges of a file, and hash a single range that continues the hashed bytes."""
        using._fill(file, path, offsets, lengths, out)
        if len(offsets) == 1 and int(offsets[0]) == self._hasher(path).size:
            self._hasher(path).update(out.data)

    def sum(self, using: Reader, path: AnyPath) -> FileSum:
        """Return size and hashes of a whole file. Bytes that were not hashed yet are read now.

        Raises:
            StoreError: the file cannot be read, or has changed since it was opened.
        """
        hasher, size = self._hasher(str(path)), using.size(str(path))
        while hasher.size < size:
            hasher.update(using.direct.read(str(path), hasher.size, min(_READ_BYTES, size - hasher.size)).data)
        return hasher.sum(path.name)

    def _hasher(self, path: str) -> FileHasher:
        return self._hashers.setdefault(path, FileHasher())


CHUNK_DOCUMENTS = 1 << 14
CHUNK_TOKENS = 1 << 20
"""Maximum documents and tokens of a chunk; it has at least one document."""


class StoreSource:
    """One store with all its keys, for one pass from beginning to end.

    Args:
        path: a path as for `headrace.open`.
        options: how pairs are interpreted.
        folder: the folder that a relative path is in; empty for the current one.
        using: how the store of a URL is reached.

    Raises:
        StoreError: there is no store, it is malformed, or its keys have different numbers of documents.
    """

    def __init__(self, path: str, options: CopyOptions, folder: str = "", using: str | Reader = "mmap") -> None:
        self.path = path
        place = path_in(folder, path, using)
        self._hashing = Hashing()
        self._reader = reader(reader_at(place, "pread")).through(self._hashing)
        self._folder = folder and folder_of(path) and folder
        path = str(place)
        found = find_manifest(self._reader.path_at(path))
        self.folder: AnyPath | None = None if found is None else found[0]
        self.manifest: Manifest | None = None if found is None else found[1]
        # The dialect applies to pairs; keyed stores may be among the sources too.
        self.options = CopyOptions() if _is_keyed(self._reader.path_at(path), self.manifest) else options
        self.keys: dict[str, Store] = open_keys(path, reader=self._reader, **self.options.opening)
        counts = {key: store.num_documents for key, store in self.keys.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key!r} has {count:,}" for key, count in counts.items())
            raise StoreError(
                f"{path}: the keys have different numbers of documents, so they cannot be copied together: {listed}"
            )
        self.num_documents = next(iter(counts.values()))

    @property
    def format(self) -> str:
        """``"indexed"`` for every dialect of pairs, otherwise the name of the format."""
        return "indexed" if isinstance(self._shards[0], IndexedStore) else self._shards[0].format

    @property
    def files(self) -> list[AnyPath]:
        """All files of the store, each once."""
        return list(dict.fromkeys(file for store in self.keys.values() for file in store.files))

    @property
    def shard_borders(self) -> list[int]:
        """The first document of each shard, except the first shard."""
        return [int(end) for end in np.cumsum([shard.num_documents for shard in self._shards])[:-1]]

    @property
    def has_samples(self) -> bool:
        """Whether a recipe made the store. Its manifest then counts only ids as tokens, and no other values."""
        return self.manifest is not None and self.manifest.ledger.samples is not None

    def has_modes(self, key: str) -> set[bool]:
        """Return whether the sequences in shards of a key have modes; a shard without sequences fits either kind."""
        found = set[bool]()
        for shard in shards_of(self.keys[key]):
            has_modes = isinstance(shard, IndexedStore) and shard.index.modes is not None
            if has_modes or (shard.num_sequences if isinstance(shard, IndexedStore) else shard.num_documents):
                found.add(has_modes)
        return found

    @property
    def has_inner_borders(self) -> bool:
        """Whether some document has several sequences, or none. O(shards)."""
        shards = [shard for store in self.keys.values() for shard in shards_of(store)]
        return any(isinstance(shard, IndexedStore) and shard.num_sequences != shard.num_documents for shard in shards)

    def num_tokens(self, first: int, end: int) -> dict[str, int]:
        """Return for each key the number of tokens in the documents ``[first, end)``."""
        borders = np.array([first, end])
        return {key: int(np.diff(store.document_begins(borders))[0]) for key, store in self.keys.items()}

    def lengths(self, first: int, end: int) -> Iterator[IntArray]:
        """Yield the numbers of tokens in the documents, summed over all keys, in chunks."""
        for begin in range(first, end, CHUNK_DOCUMENTS):
            yield self._lengths(begin, min(begin + CHUNK_DOCUMENTS, end))

    def chunks(self, first: int, end: int) -> Iterator[tuple[int, int, dict[str, DocumentRows]]]:
        """Yield the documents ``[first, end)`` in chunks, each as (first, end, rows of each key)."""
        while first < end:
            ends = np.cumsum(self._lengths(first, min(first + CHUNK_DOCUMENTS, end)))
            until = first + max(1, int(np.searchsorted(ends, CHUNK_TOKENS, side="right")))
            yield first, until, {key: read_rows(store, first, until) for key, store in self.keys.items()}
            first = until

    def files_by_shard(self) -> Iterator[tuple[int, int, tuple[AnyPath, ...]]]:
        """Yield for each shard of each key its first document, the document after its last, and its files."""
        for store in self.keys.values():
            first = 0
            for shard in shards_of(store):
                yield first, first + shard.num_documents, shard.files
                first += shard.num_documents

    def path_of(self, file: AnyPath) -> str:
        """Return the path of a file as it was passed to the copy: relative if that of the source is."""
        return str(file).removeprefix(f"{self._folder}/") if self._folder else str(file)

    def input(self, file: AnyPath) -> InputFile:
        """Return a file of the store with its size and hash. Bytes that were not read yet are read now.

        Raises:
            StoreError: the file does not match the manifest of the source, or changed while it was read.
        """
        found = self._hashing.sum(self._reader, file)
        wanted = self._listed.get(file.resolve())
        if wanted is not None and (wanted.size, wanted.xxh3_128) != (found.size, found.xxh3_128):
            faults = [str(problem) for problem in check_file(file, wanted)] or [
                f"{file}: the file changed while it was read"
            ]
            raise StoreError(
                f"{faults[0]}; nothing was written, because the source does not match its {MANIFEST_NAME}: run"
                f" headrace check {self.path}"
            )
        return InputFile(path=self.path_of(file), format=self.format, size=found.size, xxh3_128=found.xxh3_128)

    def close(self) -> None:
        """Close the files."""
        for store in self.keys.values():
            store.close()

    @property
    def _shards(self) -> tuple[Store, ...]:
        return shards_of(next(iter(self.keys.values())))

    def keys_where(self, matches: Callable[[KeyInfo], bool]) -> frozenset[str]:
        """Return the keys of which the manifest says something."""
        shards = () if self.manifest is None else self.manifest.outputs
        return frozenset(key for shard in shards for key, info in shard.keys.items() if matches(info))

    def _lengths(self, first: int, end: int) -> IntArray:
        borders = np.arange(first, end + 1)
        lengths: IntArray = np.sum([np.diff(store.document_begins(borders)) for store in self.keys.values()], axis=0)
        return lengths

    @cached_property
    def _listed(self) -> dict[AnyPath, FileSum]:
        """The files that the manifest of the source lists."""
        if self.folder is None or self.manifest is None:
            return {}
        return {(self.folder / name).resolve(): file for name, file in self.manifest.files().items()}


@contextlib.contextmanager
def open_sources(
    paths: Sequence[str], options: CopyOptions, folder: str = "", using: str | Reader = "mmap"
) -> Iterator[list[StoreSource]]:
    """Open stores, and close them at the end. Relative paths are in ``folder``; ``using`` is for URLs.

    Raises:
        StoreError: as for `StoreSource`.
        ConfigError: options for pairs are given, and a source holds no pairs.
    """
    with contextlib.ExitStack() as stack:
        sources = []
        for path in paths:
            source = StoreSource(path, options, folder, using)
            stack.callback(source.close)
            sources.append(source)
        yield sources


def expand(
    paths: Sequence[str | os.PathLike[str]], sort_by: SortBy, using: str | Reader = "mmap"
) -> tuple[list[str], list[str]]:
    """Return the paths of all sources in their order, and notes for the user about that order.

    A folder of pairs without a ``headrace.json`` stands for its pairs, in the natural order in which `headrace.open`
    reads them. ``name`` sorts all paths by their characters, as Megatron's ``tools/merge_datasets.py`` does.
    """
    found: list[str] = []
    notes = []
    for given in paths:
        path = os.fspath(given)
        folder = path_at(path, using)
        stems = _bare_pairs(folder)
        if not stems:
            found.append(path)
            continue
        natural = sorted(stems, key=natural_key)
        found += [str(folder / stem) for stem in natural]
        if sort_by == "given" and natural != stems:
            at = next(number for number, stem in enumerate(stems) if stem != natural[number])
            notes.append(
                f"{path}: pairs are merged in natural order, as headrace.open reads them ({natural[at]!r} before"
                f" {stems[at]!r}); to sort by name as Megatron's tool does, use --order name"
            )
    if sort_by == "name":
        found.sort()
    elif sort_by == "natural":
        found.sort(key=natural_key)
    return found, notes


def _bare_pairs(folder: AnyPath) -> list[str]:
    """Return the sorted stems of the pairs in a folder that has no manifest and no ``meta.json``."""
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists() or (folder / META_NAME).exists():
        return []
    beside = [f"{folder}{suffix}" for suffix in SUFFIXES]
    if all(
        (Path(one) if isinstance(folder, Path) else folder.at(one)).is_file() for one in beside
    ):  # The folder is the cache of Megatron beside a pair of this name; the pair is meant.
        return []
    return sorted(pair.name for pair in PAIRS.find(folder, Opening()))


def _is_keyed(place: AnyPath, manifest: Manifest | None) -> bool:
    if manifest is not None:
        return all(shard.format == "keyed" for shard in manifest.outputs)
    return place.name == META_NAME or (place / META_NAME).exists()
