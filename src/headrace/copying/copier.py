"""Carry out a plan: copy documents from sources to shards, write the manifests, and check the result.

The progress and the report of a copy are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

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
from headrace.copying.rows import DocumentRows, cast
from headrace.copying.sources import CHUNK_DOCUMENTS, StoreSource
from headrace.errors import OutputError, StoreError
from headrace.io import as_read_back, output_errors
from headrace.stores import (
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


class _Made(msgspec.Struct):
    """What is known of one folder while it is written."""

    shards: list[OutputShard] = []
    num_empty: int = 0
    supervised: int = 0
    """Number of ones in the masks, if the sources say which keys are masks."""
    lengths: dict[str, str] = {}
    """For each key the hash of the lengths of all documents, as they were read from the sources."""


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
        self, output: Path, *, tool: str, request: dict[str, Any], tokenizer: TokenizerInfo | None
    ) -> tuple[list[Manifest], list[InputFile]]:
        """Write all stores below a folder, and check them.

        Returns:
            The manifests of the stores, and the files of the sources.

        Raises:
            InputError: a value does not fit into its dtype.
            StoreError: a source is damaged, or does not match its manifest.
            OutputError: a file cannot be written, or what is read back differs from what was written.
        """
        made = [self._write(output / folder.name, folder) for folder in self._plan.folders]
        inputs = [file for source in self._sources for file in source.inputs()]
        self._documents = self._tokens = 0
        manifests = []
        for folder, written in zip(self._plan.folders, made, strict=True):
            place = output / folder.name
            entry = self._entry_of(folder, tool, request)
            ledger = self._ledger(folder, written)
            manifests.append(save_manifest(place, _manifest(written, entry, inputs, tokenizer, ledger)))
            self._check(place, folder, written)
        return manifests, inputs

    def find_made(
        self, output: Path, *, tool: str, request: dict[str, Any]
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
            except StoreError:
                return None
            if manifest.options != _options(self._entry_of(folder, tool, request)) or not manifest.is_complete(place):
                return None
            manifests.append(manifest)
        inputs = [file for source in self._sources for file in source.inputs()]
        return (manifests, inputs) if all(list(manifest.inputs) == inputs for manifest in manifests) else None

    def _entry_of(self, folder: FolderPlan, tool: str, request: dict[str, Any]) -> CopyEntry:
        return CopyEntry(
            tool=tool,
            request={**request, "part": folder.name} if folder.name else request,
            sources=tuple(_entry(source) for source in self._sources),
            ranges=ranges_from(ranges_of(folder.shards)),
        )

    def _write(self, place: Path, folder: FolderPlan) -> _Made:
        with output_errors(place, "make the folder"):
            place.mkdir(exist_ok=True)
        made = _Made()
        hashers = {key: xxhash.xxh3_128() for key in self._dtypes}
        for number, pieces in enumerate(folder.shards):
            target = self._format(place, number, len(folder.shards), self._dtypes, self._modes)
            try:
                for piece in pieces:
                    self._copy(piece, target, made, hashers)
                made.shards += map(self._listed, target.finish(place))
            except BaseException:
                target.discard()
                raise
        made.lengths = {key: hasher.hexdigest() for key, hasher in hashers.items()}
        return made

    def _copy(self, piece: DocumentRange, target: Target, made: _Made, hashers: dict[str, xxhash.xxh3_128]) -> None:
        source, names = self._sources[piece.source], self._names[piece.source]
        for first, end, found in source.chunks(piece.first, piece.end):
            rows = {}
            total = np.zeros(end - first, np.int64)
            num_ids = np.zeros(end - first, np.int64)
            for key, dtype in self._dtypes.items():
                rows[key] = self._fitted(found[names[key]], key, dtype, source, first)
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
        self, rows: DocumentRows, key: str, dtype: np.dtype[Any], source: StoreSource, first: int
    ) -> DocumentRows:
        rows = cast(rows, dtype, f"{source.path}: key {key!r}", first)
        if not self._format.sequences:
            self.inner_borders += len(rows.sequences) - int(np.count_nonzero(rows.lengths))
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
        for shard in made.shards:
            for key, info in shard.keys.items():
                if key in counts:
                    counts[key] += info.tokens
        total, num_documents = sum(counts.values()), folder.num_documents
        samples = SampleLedger(
            keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()}, supervised=made.supervised
        )
        return Ledger(
            documents=DocumentLedger(read=num_documents, kept=num_documents, empty=made.num_empty),
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
            self._count("check", folder.num_documents, sum(shard.tokens for shard in made.shards))
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
        outputs=tuple(made.shards),
        ledger=ledger,
    )


def _plain(chunk: IntArray) -> IntArray:
    return np.ascontiguousarray(chunk, np.int64)
