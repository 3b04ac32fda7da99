"""Carry out a plan: copy documents from sources to shards, write the manifests, and check the result.

The progress and the report of a copy are here too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import xxhash

from headrace.copying.formats import FORMATS, CopyKinds, Target
from headrace.copying.plan import (
    OPTION,
    CopyEntry,
    CopyPlan,
    DocumentRange,
    FolderPlan,
    SourceEntry,
    ranges_from,
    ranges_of,
)
from headrace.copying.rows import DocumentRows, cast, lengths_of
from headrace.copying.sources import CHUNK_DOCUMENTS, StoreSource
from headrace.errors import OutputError, StoreAwayError, StoreError
from headrace.io import AnyPath, as_read_back, output_errors
from headrace.stores import (
    MANIFEST_NAME,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenizerInfo,
    TokenLedger,
    load_manifest,
    open_keys,
    save_manifest,
)
from headrace.stores.arguments import IntArray


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy is. The check of the result counts the same documents again, store by store."""

    phase: Literal["copy", "check"]
    documents: int
    total_documents: int
    tokens: int
    """Tokens of all keys."""


class CopiedStore(msgspec.Struct, frozen=True, kw_only=True):
    """One store that was written."""

    name: str
    """Name of its folder below the destination; empty for the destination itself."""

    path: str
    documents: int
    tokens: int
    """Tokens of all keys."""

    num_shards: int
    bytes: int
    """Size of the shards; in a dry run only that of the tokens."""

    shards: tuple[OutputShard, ...]
    """The shards that were written; empty in a dry run."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `merge`, `convert` or `split` wrote, or would write."""

    tool: str
    output: str
    is_dry_run: bool
    format: str
    keys: dict[str, str]
    """Dtype of each key on disk."""

    documents: int
    tokens: int
    sources: tuple[str, ...]
    """Paths of the sources, in the order in which they were copied."""

    stores: tuple[CopiedStore, ...]
    inputs: tuple[InputFile, ...]
    """The files of the sources with their hashes; empty in a dry run."""

    warnings: tuple[str, ...]
    """Notes about what was not kept, and about what may be unexpected."""


class MadeShard(msgspec.Struct, kw_only=True):
    """What is known of one shard that was written."""

    entries: list[OutputShard] = []
    """What the manifest lists: a shard of all keys, or one for each."""

    num_empty: int = 0
    supervised: int = 0
    """Number of ones in the masks, if the sources say which keys are masks."""

    inner_borders: int = 0
    """See `Copier`."""


class _Made(msgspec.Struct):
    """What is known of one folder that was written."""

    shards: list[MadeShard]
    lengths: dict[str, str]
    """For each key the hash of the lengths of all documents, as they were read from the sources."""

    @property
    def entries(self) -> list[OutputShard]:
        """What the manifest lists."""
        return [entry for shard in self.shards for entry in shard.entries]


Hashers = dict[str, xxhash.xxh3_128]
"""For each key the hash of the lengths of all documents so far."""

FindShard = Callable[[int, Path], MadeShard]
"""Puts a shard that other processes have written, by its number among those of all folders, into a folder."""


class Uploads(Protocol):
    """Where shards go that do not stay on this host, by their numbers among those of all folders."""

    def made(self, number: int) -> MadeShard | None:
        """Return what is known of a shard that is there; None if it is not."""

    def folder(self) -> AbstractContextManager[Path]:
        """A folder for one shard."""

    def send(self, number: int, store: str, place: Path, shard: MadeShard) -> None:
        """Take a shard of a store from its folder."""

    def finish(self, manifests: dict[str, Manifest]) -> list[Manifest]:
        """Take the manifests of the stores, by their names; return them with their hashes."""


class Copier:
    """One copy.

    Args:
        plan: which documents are written where.
        kinds: the names of the keys in each source.
        sources: the sources, opened and not yet read.
        modes: the keys whose sequences are written with modes.
        on_progress: called after each chunk.

    Attributes:
        inner_borders: number of borders between sequences within documents that the format cannot keep; counted while
            copying.
    """

    def __init__(
        self,
        plan: CopyPlan,
        kinds: CopyKinds,
        sources: Sequence[StoreSource],
        *,
        modes: frozenset[str],
        on_progress: Callable[[CopyProgress], None],
    ) -> None:
        self._plan = plan
        self._names = kinds.names
        self._sources = sources
        self._modes = modes
        named = [
            (key, name, source) for source, of in zip(sources, kinds.names, strict=True) for key, name in of.items()
        ]
        self._values = {key for key, name, source in named if name in source.keys_of_values}
        self._masks = {key for key, name, source in named if name in source.keys_of_masks}
        self._has_samples = any(source.has_samples for source in sources)
        self._on_progress = on_progress
        self._format = FORMATS[plan.format]
        self._dtypes: dict[str, np.dtype[Any]] = {
            key: np.dtype(name).newbyteorder("<") for key, name in plan.dtypes.items()
        }
        self._total = sum(folder.num_documents for folder in plan.folders)
        self._documents = self._tokens = 0
        self.inner_borders = 0

    def run(
        self,
        output: Path,
        *,
        tool: str,
        request: dict[str, Any],
        tokenizer: TokenizerInfo | None,
        find: FindShard | None,
        known: Mapping[str, InputFile],
    ) -> tuple[list[Manifest], list[InputFile]]:
        """Write all stores below a folder, and check them.

        Args:
            output: the folder.
            tool: name of the tool.
            request: its options, for the manifests.
            tokenizer: the tokeniser of all sources.
            find: finds the shards, if other processes have written them.
            known: files of the sources that other processes have read, by their paths.

        Returns:
            The manifests of the stores, and the files of the sources.

        Raises:
            InputError: a value does not fit into its dtype.
            StoreError: a source is damaged, or does not match its manifest.
            OutputError: a file cannot be written, or what is read back differs from what was written.
        """
        numbers = itertools.count()
        made = [self._write(output / folder.name, folder, numbers, find) for folder in self._plan.folders]
        inputs = [file for source in self._sources for file in source.inputs(known)]
        self._documents = self._tokens = 0
        manifests = []
        for folder, written in zip(self._plan.folders, made, strict=True):
            place = output / folder.name
            entry = self._entry_of(folder, tool, request)
            ledger = self._ledger(folder, written)
            manifests.append(save_manifest(place, _manifest(written, entry, inputs, tokenizer, ledger)))
            self._check(place, folder, written)
            self._count("check", folder.num_documents, sum(shard.tokens for shard in written.entries))
        return manifests, inputs

    def run_uploaded(
        self,
        uploads: Uploads,
        *,
        tool: str,
        request: dict[str, Any],
        tokenizer: TokenizerInfo | None,
        known: Mapping[str, InputFile],
    ) -> tuple[list[Manifest], list[InputFile]]:
        """Write the shards of all stores that are not there yet, one at a time, and check each before it is taken.

        Returns and raises what `run` does.
        """
        numbers = itertools.count()
        made = []
        for folder in self._plan.folders:
            shards = []
            for number in range(len(folder.shards)):
                index = next(numbers)
                shard = uploads.made(index)
                if shard is None:
                    with uploads.folder() as place:
                        shard = self.write_alone(place, folder, number)
                        uploads.send(index, folder.name, place, shard)
                else:
                    self._count("copy", sum(piece.num_documents for piece in folder.shards[number]), 0)
                self.inner_borders += shard.inner_borders
                shards.append(shard)
            made.append(_Made(shards, {}))
        inputs = [file for source in self._sources for file in source.inputs(known)]
        manifests = {}
        for folder, written in zip(self._plan.folders, made, strict=True):
            entry = self._entry_of(folder, tool, request)
            manifests[folder.name] = _manifest(written, entry, inputs, tokenizer, self._ledger(folder, written))
        return uploads.finish(manifests), inputs

    def write_alone(self, place: Path, folder: FolderPlan, number: int) -> MadeShard:
        """Write one shard of a folder into a folder of its own, and check it there as a store.

        Raises:
            StoreError, OutputError: see `run`.
        """
        hashers = {key: xxhash.xxh3_128() for key in self._dtypes}
        shard = self.write_shard(place, folder, number, hashers)
        alone = msgspec.structs.replace(folder, shards=(folder.shards[number],))
        made = _Made([shard], {key: hasher.hexdigest() for key, hasher in hashers.items()})
        entry = self._entry_of(alone, "", {})
        save_manifest(place, _manifest(made, entry, [], None, self._ledger(alone, made)))
        self._check(place, alone, made)
        with output_errors(place, "clear"):
            (place / MANIFEST_NAME).unlink()
        return shard

    def find_made(
        self, output: AnyPath, *, tool: str, request: dict[str, Any], known: Mapping[str, InputFile]
    ) -> tuple[list[Manifest], list[InputFile]] | None:
        """Return what `run` returns if the output exists, is complete and has the same sources and options; else None.

        If everything else is equal, all sources are read.

        Raises:
            StoreError: as for `run`.
        """
        manifests = []
        for folder in self._plan.folders:
            place = output / folder.name
            try:
                manifest = load_manifest(place)
            except StoreAwayError:
                raise
            except StoreError:
                return None
            if manifest.options != _options(self._entry_of(folder, tool, request)) or not manifest.is_complete(place):
                return None
            manifests.append(manifest)
        inputs = [file for source in self._sources for file in source.inputs(known)]
        return (manifests, inputs) if all(list(manifest.inputs) == inputs for manifest in manifests) else None

    def _entry_of(self, folder: FolderPlan, tool: str, request: dict[str, Any]) -> CopyEntry:
        return CopyEntry(
            tool=tool,
            request={**request, "part": folder.name} if folder.name else request,
            sources=tuple(_entry(source) for source in self._sources),
            ranges=ranges_from(ranges_of(folder.shards)),
        )

    def _write(self, place: Path, folder: FolderPlan, numbers: Iterator[int], find: FindShard | None) -> _Made:
        with output_errors(place, "make the folder"):
            place.mkdir(exist_ok=True)
        shards = []
        hashers = {key: xxhash.xxh3_128() for key in self._dtypes}
        for number in range(len(folder.shards)):
            if find is None:
                shard = self.write_shard(place, folder, number, hashers)
            else:
                shard = find(next(numbers), place)
                self._add_found(folder, number, hashers)
            self.inner_borders += shard.inner_borders
            shards.append(shard)
        return _Made(shards, {key: hasher.hexdigest() for key, hasher in hashers.items()})

    def write_shard(self, place: Path, folder: FolderPlan, number: int, hashers: Hashers) -> MadeShard:
        """Write one shard of a store into the folder ``place``.

        Raises:
            InputError: a value does not fit into its dtype.
            StoreError: a source is damaged.
            OutputError: a file cannot be written.
        """
        made = MadeShard()
        target = self._format(place, number, len(folder.shards), self._dtypes, self._modes)
        try:
            for piece in folder.shards[number]:
                self._copy(piece, target, made, hashers)
            made.entries = list(map(self._listed, target.finish(place)))
        except BaseException:
            target.discard()
            raise
        return made

    def _add_found(self, folder: FolderPlan, number: int, hashers: Hashers) -> None:
        """Hash the lengths of a shard that another process has written, as its sources have them."""
        for piece in folder.shards[number]:
            source, names = self._sources[piece.source], self._names[piece.source]
            for first in range(piece.first, piece.end, CHUNK_DOCUMENTS):
                end = min(first + CHUNK_DOCUMENTS, piece.end)
                tokens = 0
                for key, hasher in hashers.items():
                    lengths = lengths_of(source.keys[names[key]], first, end)
                    hasher.update(_plain(lengths).data)
                    tokens += int(lengths.sum())
                self._count("copy", end - first, tokens)

    def _copy(self, piece: DocumentRange, target: Target, made: MadeShard, hashers: Hashers) -> None:
        source, names = self._sources[piece.source], self._names[piece.source]
        for first, end, found in source.chunks(piece.first, piece.end):
            rows = {}
            total = np.zeros(end - first, np.int64)
            num_ids = np.zeros(end - first, np.int64)
            for key, dtype in self._dtypes.items():
                rows[key] = self._fitted(found[names[key]], key, dtype, source, first, made)
                hashers[key].update(_plain(rows[key].lengths).data)
                total += rows[key].lengths
                if not self._has_samples or key not in self._values:
                    num_ids += rows[key].lengths
                if key in self._masks:
                    made.supervised += int(np.count_nonzero(rows[key].tokens))
            target.add(rows)
            made.num_empty += int(np.count_nonzero(num_ids == 0))
            self._count("copy", end - first, int(total.sum()))

    def _fitted(
        self, rows: DocumentRows, key: str, dtype: np.dtype[Any], source: StoreSource, first: int, made: MadeShard
    ) -> DocumentRows:
        rows = cast(rows, dtype, f"{source.path}: key {key!r}", first)
        if not self._format.sequences:
            made.inner_borders += len(rows.sequences) - int(np.count_nonzero(rows.lengths))
        return rows if key in self._modes else rows._replace(modes=np.zeros(0, np.int8))

    def _listed(self, shard: OutputShard) -> OutputShard:
        """Return the entry for the manifest, which marks ids and masks as the manifests of the sources do."""
        keys = {
            key: msgspec.structs.replace(info, ids=key not in self._values, mask=key in self._masks)
            for key, info in shard.keys.items()
        }
        return msgspec.structs.replace(shard, keys=keys)

    def _ledger(self, folder: FolderPlan, made: _Made) -> Ledger:
        """Make the ledger. Tokens are all values, or only ids if a recipe made one of the sources."""
        counts = {key: 0 for key in self._dtypes if not self._has_samples or key not in self._values}
        for shard in made.entries:
            for key, info in shard.keys.items():
                if key in counts:
                    counts[key] += info.tokens
        total, num_documents = sum(counts.values()), folder.num_documents
        samples = SampleLedger(
            keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
            supervised=sum(shard.supervised for shard in made.shards),
        )
        return Ledger(
            documents=DocumentLedger(
                read=num_documents, kept=num_documents, empty=sum(shard.num_empty for shard in made.shards)
            ),
            tokens=TokenLedger(made=total, kept=total),
            samples=samples if self._has_samples else None,
        )

    def _check(self, place: Path, folder: FolderPlan, made: _Made) -> None:
        """Open the store, read all its bytes, and compare the lengths of its documents with those of the sources."""
        stores = open_keys(place, reader="pread")
        try:
            for number, (key, store) in enumerate(stores.items()):
                # A shard of the keyed format checks all its keys at once.
                if number == 0 or self._plan.format == "indexed":
                    for problem in store.check():
                        raise OutputError(
                            f"what is read back differs from what was written: {problem}; nothing is kept"
                        )
                hasher = xxhash.xxh3_128()
                for chunk in store.length_chunks(CHUNK_DOCUMENTS):
                    hasher.update(_plain(chunk).data)
                if (hasher.hexdigest(), store.num_documents) != (made.lengths[key], folder.num_documents):
                    raise OutputError(
                        f"{place}: key {key!r}: the documents that were written differ from those of the sources;"
                        " nothing is kept. This is a defect of Headrace or of the memory: please report it"
                    )
        finally:
            for store in stores.values():
                store.close()

    def _count(self, phase: Literal["copy", "check"], documents: int, tokens: int) -> None:
        self._documents += documents
        self._tokens += tokens
        self._on_progress(
            CopyProgress(phase=phase, documents=self._documents, total_documents=self._total, tokens=self._tokens)
        )


def _entry(source: StoreSource) -> SourceEntry:
    return SourceEntry(
        path=source.path, documents=source.documents, dialect=source.dialect, num_documents=source.num_documents
    )


def _options(entry: CopyEntry) -> dict[str, Any]:
    return {OPTION: as_read_back(entry)}


def _manifest(
    made: _Made,
    entry: CopyEntry,
    inputs: Sequence[InputFile],
    tokenizer: TokenizerInfo | None,
    ledger: Ledger,
) -> Manifest:
    return Manifest(
        inputs=tuple(inputs),
        options=_options(entry),
        tokenizer=tokenizer,
        outputs=tuple(made.entries),
        ledger=ledger,
    )


def _plain(chunk: IntArray) -> IntArray:
    return np.ascontiguousarray(chunk, np.int64)
