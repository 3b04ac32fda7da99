"""Write one shard of a copy and read it back, and say in manifests what all shards hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from headrace.copying.formats import FORMATS, Target
from headrace.copying.orders import CopyOrder
from headrace.copying.plan import OPTION, CopyEntry, DocumentRange, FolderPlan, ranges_from, ranges_of
from headrace.copying.rows import DocumentRows, cast
from headrace.copying.sources import CHUNK_DOCUMENTS, StoreSource
from headrace.engine.job import Tell
from headrace.errors import OutputError
from headrace.io import as_read_back, output_errors
from headrace.stores import (
    MANIFEST_NAME,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenLedger,
    encoded_manifest,
    open_keys,
)
from headrace.stores.arguments import IntArray


class MadeShard(msgspec.Struct, kw_only=True):
    """What is known of one shard that was written."""

    entries: list[OutputShard] = []
    """What the manifest lists: a shard of all keys, or one for each."""

    num_empty: int = 0
    supervised: int = 0
    """Number of ones in the masks, if the sources say which keys are masks."""

    inner_borders: int = 0
    """Number of borders between sequences within documents that the format cannot keep."""


class Copier:
    """Writes shards of a copy.

    Args:
        order: everything that decides the copy.
        sources: its sources, opened.
        tell: called after each chunk.
    """

    def __init__(self, order: CopyOrder, sources: Sequence[StoreSource], tell: Tell) -> None:
        self._order = order
        self._plan = order.plan
        self._sources = sources
        self._tell = tell
        self._format = FORMATS[order.plan.format]
        self._dtypes: dict[str, np.dtype[Any]] = {
            key: np.dtype(name).newbyteorder("<") for key, name in order.plan.dtypes.items()
        }
        self._hashers = {key: xxhash.xxh3_128() for key in self._dtypes}
        """Of the lengths of all documents of each key, as they are read from the sources."""
        self._counts = {"bytes": 0, "documents": 0, "tokens": 0}

    def write(self, place: Path, folder: FolderPlan, number: int) -> tuple[MadeShard, dict[str, int]]:
        """Write one shard of a store into a folder of its own, read all of it, and compare it with its sources.

        Returns:
            What is known of the shard, and its bytes, documents and tokens of all keys.

        Raises:
            InputError: a value does not fit into its dtype.
            StoreError: a source is damaged.
            OutputError: a file cannot be written, or what is read back differs from what was written.
        """
        made = MadeShard()
        target = self._format(place, number, len(folder.shards), self._dtypes, frozenset(self._order.modes))
        try:
            for piece in folder.shards[number]:
                self._copy(piece, target, made)
            made.entries = list(map(self._listed, target.finish(place)))
        except BaseException:
            target.discard()
            raise
        alone = msgspec.structs.replace(folder, shards=(folder.shards[number],))
        manifest = place / MANIFEST_NAME
        with output_errors(manifest, "write"):
            manifest.write_bytes(encoded_manifest(manifest_of(self._order, alone, [made], [])))
        self._check(place, alone)
        with output_errors(place, "clear"):
            manifest.unlink()
        return made, self._counts

    def _copy(self, piece: DocumentRange, target: Target, made: MadeShard) -> None:
        order, source = self._order, self._sources[piece.source]
        names = order.kinds.names[piece.source]
        for first, end, found in source.chunks(piece.first, piece.end):
            rows = {}
            total = np.zeros(end - first, np.int64)
            num_ids = np.zeros(end - first, np.int64)
            for key, dtype in self._dtypes.items():
                rows[key] = self._fitted(found[names[key]], key, dtype, source, first, made)
                self._hashers[key].update(_plain(rows[key].lengths).data)
                total += rows[key].lengths
                self._counts["bytes"] += len(rows[key].tokens) * dtype.itemsize
                if not order.has_samples or key not in order.values:
                    num_ids += rows[key].lengths
                if key in order.masks:
                    made.supervised += int(np.count_nonzero(rows[key].tokens))
            target.add(rows)
            made.num_empty += int(np.count_nonzero(num_ids == 0))
            self._counts["documents"] += end - first
            self._counts["tokens"] += int(total.sum())
            self._tell(dict(self._counts))

    def _fitted(
        self, rows: DocumentRows, key: str, dtype: np.dtype[Any], source: StoreSource, first: int, made: MadeShard
    ) -> DocumentRows:
        rows = cast(rows, dtype, f"{source.path}: key {key!r}", first)
        if not self._format.sequences:
            made.inner_borders += len(rows.sequences) - int(np.count_nonzero(rows.lengths))
        return rows if key in self._order.modes else rows._replace(modes=np.zeros(0, np.int8))

    def _listed(self, shard: OutputShard) -> OutputShard:
        """Return the entry for the manifest, which marks ids and masks as the manifests of the sources do."""
        keys = {
            key: msgspec.structs.replace(info, ids=key not in self._order.values, mask=key in self._order.masks)
            for key, info in shard.keys.items()
        }
        return msgspec.structs.replace(shard, keys=keys)

    def _check(self, place: Path, folder: FolderPlan) -> None:
        """Open the store, read all its bytes, and compare the lengths of its documents with those of the sources."""
        stores = open_keys(place, reader="pread")
        try:
            for number, (key, store) in enumerate(stores.items()):
                # A shard of the keyed format checks all its keys at once.
                if number == 0 or self._plan.format == "indexed":
                    for problem in store.check():
                        raise OutputError(
                            f"what is read back differs from what was written: {problem}; this shard is not kept"
                        )
                hasher = xxhash.xxh3_128()
                for chunk in store.length_chunks(CHUNK_DOCUMENTS):
                    hasher.update(_plain(chunk).data)
                if (hasher.digest(), store.num_documents) != (self._hashers[key].digest(), folder.num_documents):
                    raise OutputError(
                        f"{place}: key {key!r}: the documents that were written differ from those of the sources;"
                        " they are not kept. This is a defect of Headrace or of the memory: please report it"
                    )
        finally:
            for store in stores.values():
                store.close()


def options_of(order: CopyOrder, folder: FolderPlan) -> dict[str, Any]:
    """Return the options that the manifest of a store of the copy has."""
    request = order.kept
    entry = CopyEntry(
        tool=order.request.tool,
        request={**request, "part": folder.name} if folder.name else request,
        sources=order.sources,
        ranges=ranges_from(ranges_of(folder.shards)),
    )
    return {OPTION: as_read_back(entry)}


def manifest_of(
    order: CopyOrder, folder: FolderPlan, shards: Sequence[MadeShard], inputs: Sequence[InputFile]
) -> Manifest:
    """Return the manifest of a store of the copy, given its shards and the files of all sources."""
    return Manifest(
        inputs=tuple(inputs),
        options=options_of(order, folder),
        tokenizer=order.tokenizer,
        outputs=tuple(entry for shard in shards for entry in shard.entries),
        ledger=_ledger(order, folder, shards),
    )


def _ledger(order: CopyOrder, folder: FolderPlan, shards: Sequence[MadeShard]) -> Ledger:
    """Make the ledger. Tokens are all values, or only ids if a recipe made one of the sources."""
    counts = {key: 0 for key in order.plan.dtypes if not order.has_samples or key not in order.values}
    infos = (item for shard in shards for entry in shard.entries for item in entry.keys.items())
    for key, info in infos:
        if key in counts:
            counts[key] += info.tokens
    total, num_documents = sum(counts.values()), folder.num_documents
    samples = SampleLedger(
        keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
        supervised=sum(shard.supervised for shard in shards),
    )
    return Ledger(
        documents=DocumentLedger(read=num_documents, kept=num_documents, empty=sum(one.num_empty for one in shards)),
        tokens=TokenLedger(made=total, kept=total),
        samples=samples if order.has_samples else None,
    )


def _plain(chunk: IntArray) -> IntArray:
    return np.ascontiguousarray(chunk, np.int64)
