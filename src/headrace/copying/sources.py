"""The stores that are copied: opened with all their keys, counted, read in chunks, and hashed on the way.

Reads files, and hashes what is read of them in order: whoever reads all of a file gets its sums for free.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.copying.formats import CopyOptions, SortBy
from headrace.copying.json_object import JsonObjectStore, is_json_object
from headrace.copying.rows import DocumentRows, lengths_of, read_rows, shards_of
from headrace.errors import StoreError
from headrace.io import FileHasher, FileSum, PreadReader, natural_key
from headrace.io.readers import ByteArray
from headrace.stores import MANIFEST_NAME, IndexedStore, InputFile, KeyInfo, Manifest, Store, check_file, open_keys
from headrace.stores.arguments import IntArray
from headrace.stores.indexed.pairs import SUFFIXES
from headrace.stores.manifest import find_manifest
from headrace.stores.written import META_NAME

_READ_BYTES = 1 << 20


class HashingReader(PreadReader):
    """A reader that takes the bytes of every file into a hasher as long as they come in order. For one thread.

    A range that goes on behind the bytes that were hashed is taken, any other is only read. What was not read in order
    by the end is read for `sum`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hashers: dict[str, FileHasher] = {}

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """As every reader."""
        data = super().read_ranges(path, offsets, lengths, out)
        if len(offsets) == 1 and int(offsets[0]) == self._hasher(path).size:
            self._hasher(path).update(data.data)
        return data

    def sum(self, path: Path) -> FileSum:
        """Size and hashes of a whole file; what of it was not read in order is read now.

        Raises:
            StoreError: it cannot be read, or was changed since it was opened.
        """
        hasher, size = self._hasher(str(path)), self.size(str(path))
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(hasher.size)
                while hasher.size < size and (data := file.read(_READ_BYTES)):
                    hasher.update(data)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        if hasher.size != size:
            raise StoreError(f"{path}: changed while it was in use: {size} bytes at first, now {hasher.size}")
        return hasher.sum(path.name)

    def _hasher(self, path: str) -> FileHasher:
        return self._hashers.setdefault(path, FileHasher())


CHUNK_DOCUMENTS = 1 << 14
CHUNK_TOKENS = 1 << 20
"""A chunk has at most so many of either, but at least one document."""


class StoreSource:
    """One store with all its keys, for one pass from its begin to its end.

    Args:
        path: as for `headrace.open`; or a file of one JSON object, as AstrAI first wrote stores.
        options: how pairs are understood.

    Raises:
        StoreError: nothing is there, it is malformed, or its keys have different numbers of documents.
    """

    def __init__(self, path: str, options: CopyOptions) -> None:
        self.path = path
        self._reader = HashingReader()
        found = find_manifest(path)
        self.folder: Path | None = None if found is None else found[0]
        self.manifest: Manifest | None = None if found is None else found[1]
        # A dialect speaks of pairs; keyed stores may be among the sources, too.
        understood = CopyOptions() if _is_keyed(Path(path), self.manifest) else options
        self.documents, self.dialect = understood.documents, understood.dialect or ""
        self.keys: dict[str, Store]
        if is_json_object(path, self._reader):
            whole = JsonObjectStore(path, using=self._reader)
            self.keys = {key: whole.with_main(key) for key in whole.keys}
        else:
            self.keys = open_keys(path, reader=self._reader, dialect=understood.dialect, documents=understood.documents)
        counts = {key: store.num_documents for key, store in self.keys.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key!r} has {count:,}" for key, count in counts.items())
            raise StoreError(f"{path}: keys of different numbers of documents cannot stay side by side: {listed}")
        self.num_documents = next(iter(counts.values()))

    @property
    def format(self) -> str:
        """``"indexed"`` for every kind of pair, else the name of the format."""
        return "indexed" if isinstance(self._shards[0], IndexedStore) else self._shards[0].format

    @property
    def files(self) -> list[Path]:
        """All its files, each once."""
        return list(dict.fromkeys(file for store in self.keys.values() for file in store.files))

    @property
    def shard_borders(self) -> list[int]:
        """Where its shards begin, but for the first, in documents."""
        return [int(end) for end in np.cumsum([shard.num_documents for shard in self._shards])[:-1]]

    @property
    def keys_of_values(self) -> frozenset[str]:
        """Those that the manifest says hold no ids of a vocabulary."""
        return self._said(lambda info: not info.ids)

    @property
    def keys_of_masks(self) -> frozenset[str]:
        """Those that the manifest says are 1 where a token is trained."""
        return self._said(lambda info: info.mask)

    @property
    def has_samples(self) -> bool:
        """Whether the manifest counts ids as tokens, and no other values: so it is where a recipe made the store."""
        return self.manifest is not None and self.manifest.ledger.samples is not None

    @property
    def keys_with_modes(self) -> frozenset[str]:
        """Those whose sequences have modes."""
        return frozenset(key for key, store in self.keys.items() if any(map(_has_modes, shards_of(store))))

    @property
    def keys_without_modes(self) -> frozenset[str]:
        """Those that have sequences without modes; an empty store may be of either kind."""
        return frozenset(key for key, store in self.keys.items() if any(map(_lacks_modes, shards_of(store))))

    @property
    def has_inner_borders(self) -> bool:
        """Whether sequences are not documents one to one: some have several, or none. O(shards)."""
        shards = [shard for store in self.keys.values() for shard in shards_of(store)]
        return any(isinstance(shard, IndexedStore) and shard.num_sequences != shard.num_documents for shard in shards)

    def num_tokens(self, first: int, end: int) -> dict[str, int]:
        """Tokens of the documents ``first`` to ``end``, by key."""
        borders = np.array([first, end])
        return {key: int(np.diff(store.document_begins(borders))[0]) for key, store in self.keys.items()}

    def lengths(self, first: int, end: int) -> Iterator[IntArray]:
        """Tokens of the documents, all keys together, a chunk at a time."""
        for begin in range(first, end, CHUNK_DOCUMENTS):
            yield self._lengths(begin, min(begin + CHUNK_DOCUMENTS, end))

    def chunks(self, first: int, end: int) -> Iterator[tuple[int, int, dict[str, DocumentRows]]]:
        """The documents ``first`` to ``end`` in order: (first, end, rows of each key) of every chunk."""
        while first < end:
            ends = np.cumsum(self._lengths(first, min(first + CHUNK_DOCUMENTS, end)))
            until = first + max(1, int(np.searchsorted(ends, CHUNK_TOKENS, side="right")))
            yield first, until, {key: read_rows(store, first, until) for key, store in self.keys.items()}
            first = until

    def inputs(self) -> list[InputFile]:
        """Its files with size and hash; what of them was not read so far is read now.

        Raises:
            StoreError: a file is not what the source's manifest lists, or was changed meanwhile.
        """
        listed = self._listed()
        found = []
        for file in self.files:
            sums = self._reader.sum(file)
            wanted = listed.get(file.resolve())
            if wanted is not None and (wanted.size, wanted.xxh3_128) != (sums.size, sums.xxh3_128):
                faults = [str(problem) for problem in check_file(file, wanted)] or [f"{file}: was changed meanwhile"]
                raise StoreError(
                    f"{faults[0]}; nothing was written: the source is not what its {MANIFEST_NAME} says (headrace check"
                    f" {self.path})"
                )
            found.append(InputFile(path=str(file), format=self.format, size=sums.size, xxh3_128=sums.xxh3_128))
        return found

    def close(self) -> None:
        """Let go of the files."""
        for store in self.keys.values():
            store.close()

    @property
    def _shards(self) -> tuple[Store, ...]:
        return shards_of(next(iter(self.keys.values())))

    def _said(self, asks: Callable[[KeyInfo], bool]) -> frozenset[str]:
        shards = () if self.manifest is None else self.manifest.outputs
        return frozenset(key for shard in shards for key, info in shard.keys.items() if asks(info))

    def _lengths(self, first: int, end: int) -> IntArray:
        lengths: IntArray = np.sum([lengths_of(store, first, end) for store in self.keys.values()], axis=0)
        return lengths

    def _listed(self) -> dict[Path, FileSum]:
        found: dict[Path, FileSum] = {}
        if self.folder is None or self.manifest is None:
            return found
        for shard in self.manifest.outputs:
            place = self.folder / shard.prefix
            inside = place if shard.format == "keyed" else place.parent
            found |= {(inside / file.name).resolve(): file for file in shard.files}
        return found


@contextlib.contextmanager
def open_sources(paths: Sequence[str], options: CopyOptions) -> Iterator[list[StoreSource]]:
    """Open stores, and close them at the end.

    Raises:
        StoreError: as `StoreSource`.
        ConfigError: options for pairs, and there are none.
    """
    with contextlib.ExitStack() as stack:
        sources = []
        for path in paths:
            source = StoreSource(path, options)
            stack.callback(source.close)
            sources.append(source)
        yield sources


def expand(paths: Sequence[str | os.PathLike[str]], sort_by: SortBy) -> tuple[list[str], list[str]]:
    """The paths of all sources in their order, and what a user should know of that order.

    A folder of bare pairs (no ``headrace.json``) stands for its pairs, in the natural order in which `headrace.open`
    reads them; ``name`` sorts all paths by their characters, as Megatron's ``tools/merge_datasets.py`` does.
    """
    found: list[str] = []
    notes = []
    for given in paths:
        path = os.fspath(given)
        stems = _bare_pairs(Path(path))
        if not stems:
            found.append(path)
            continue
        natural = sorted(stems, key=natural_key)
        found += [str(Path(path) / stem) for stem in natural]
        if sort_by == "given" and natural != stems:
            at = next(number for number, stem in enumerate(stems) if stem != natural[number])
            notes.append(
                f"{path}: pairs are merged in natural order, in which headrace.open reads them ({natural[at]!r} before"
                f" {stems[at]!r}); Megatron's tool sorts by name: --sort-by name"
            )
    if sort_by == "name":
        found.sort()
    elif sort_by == "natural":
        found.sort(key=natural_key)
    return found, notes


def _bare_pairs(folder: Path) -> list[str]:
    """The stems of the pairs in a folder that holds pairs and no word of what they are, by name."""
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists() or (folder / META_NAME).exists():
        return []
    if all(Path(f"{folder}{suffix}").is_file() for suffix in SUFFIXES):  # Megatron's cache: the pair is meant
        return []
    files = [file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")]
    return sorted({file.stem for file in files})


def _is_keyed(place: Path, manifest: Manifest | None) -> bool:
    if manifest is not None:
        return all(shard.format == "keyed" for shard in manifest.outputs)
    return place.name == META_NAME or (place / META_NAME).exists()


def _has_modes(shard: Store) -> bool:
    return isinstance(shard, IndexedStore) and shard.index.modes is not None


def _lacks_modes(shard: Store) -> bool:
    num_sequences = shard.num_sequences if isinstance(shard, IndexedStore) else shard.num_documents
    return not _has_modes(shard) and num_sequences > 0
