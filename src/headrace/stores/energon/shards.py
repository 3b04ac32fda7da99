"""The shards of a dataset, each of which is a tar or a store of documents of tokens."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.errors import HeadraceError, StoreAwayError, StoreError
from headrace.io import AnyPath
from headrace.stores.arguments import IntArray, TokenArray
from headrace.stores.energon.config_file import INFO_NAME
from headrace.stores.store import PartPlace, Problem, RawSample, Store
from headrace.stores.tar.index import index_path
from headrace.stores.tar.members import SUFFIXES, check_uncompressed
from headrace.stores.tar.store import TarShards
from headrace.stores.token_layouts import Opening, token_store


class DatasetShards:
    """Reads samples by shard and number in the shard. A shard is opened when it is first read.

    A shard that is no tar is a store of tokens: a ``.jsonl``, a ``.h5``, a ``.bin`` with ``.idx``. Document i is the
    sample with the key ``"i"``, which has a part ``<key>.npy`` for each key of the store: its tokens as the bytes of an
    ``.npy`` file.

    Args:
        root: the folder to which the names are relative.
        names: names of the shards, each once.
        counts: (shards,) int64, the number of samples in each shard.
        tars: reads the shards that are tars; it has all shards, so that both kinds share their numbers.

    Raises:
        InputError: a shard is compressed; the message says how to unpack it.
    """

    def __init__(self, root: AnyPath, names: Sequence[str], counts: IntArray, tars: TarShards) -> None:
        for name in names:
            if name.endswith(SUFFIXES):  # Energon's prepare accepts such shards, but its reader does not
                check_uncompressed(str(root / name))
        self._root = root
        self._names = names
        self._counts = counts
        self.is_tar = np.array([name.endswith(".tar") for name in names], np.bool_)
        self._all_tars = bool(self.is_tar.all())
        self.tars = tars
        self._stores: dict[int, Store] = {}

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files of all shards, in order; each tar is followed by its index."""
        found: list[AnyPath] = []
        for shard, name in enumerate(self._names):
            if self.is_tar[shard]:
                found += [self._root / name, index_path(self._root / name)]
            else:
                found += self._store(shard).files
        return tuple(found)

    def read(self, shards: IntArray, indices: IntArray, parts: Collection[str] | None) -> list[RawSample]:
        """Return the samples ``indices`` of ``shards``, in this order; see `SampleStore.read`."""
        if self._all_tars:
            return self.tars.read(shards, indices, parts)
        slots = np.flatnonzero(self.is_tar[shards])
        of_tars = iter(self.tars.read(shards[slots], indices[slots], parts))
        return [
            next(of_tars) if self.is_tar[shard] else self._document(shard, index, parts)
            for shard, index in zip(shards.tolist(), indices.tolist(), strict=True)
        ]

    def key(self, shard: int, index: int) -> str:
        """Return the key of a sample."""
        if self.is_tar[shard]:
            return self.tars.key(shard, index)
        return self._document(shard, index, ()).key

    def keys(self, shard: int) -> list[str]:
        """Return the keys of a shard; for a tar, this is a pass over its headers."""
        return self.tars.keys(shard) if self.is_tar[shard] else list(map(str, range(int(self._counts[shard]))))

    def places(self, shard: int, index: int) -> dict[str, PartPlace]:
        """Return where the parts of a sample lie; empty for a document, whose parts are made when they are read."""
        return self.tars.places(shard, index) if self.is_tar[shard] else {}

    def offsets(self, shard: int) -> IntArray:
        """Return the index of a tar, (samples + 1,) int64."""
        return self.tars.offsets(shard)

    def facts(self, shard: int) -> tuple[Any, ...]:
        """Return facts that identify the content of a shard, for a fingerprint. O(1)."""
        if not self.is_tar[shard]:
            return (self._store(shard).fingerprint,)
        offsets = self.tars.offsets(shard)
        middle = len(offsets) // 2
        size = (self._root / self._names[shard]).stat().st_size
        return size, len(offsets), int(offsets[0]), int(offsets[middle]), int(offsets[-1])

    def check(self, shard: int) -> Iterator[Problem]:
        """Read a shard and yield what is wrong."""
        try:
            yield from self.tars.check(shard) if self.is_tar[shard] else self._store(shard).check()
        except HeadraceError as error:
            if self.is_tar[shard]:
                raise
            yield Problem.of(str(self._root / self._names[shard]), error)

    def close(self) -> None:
        """Close all shards."""
        self.tars.close()
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def _document(self, shard: int, index: int, parts: Collection[str] | None) -> RawSample:
        store = self._store(shard)
        wanted = [key for key in store.keys if parts is None or f"{key}.npy" in parts]
        content = {f"{key}.npy": _npy(tokens) for key, tokens in store.document(index, wanted).items()}
        return RawSample(str(index), self._names[shard], index, content)

    def _store(self, shard: int) -> Store:
        """Return the store of a shard of tokens.

        Raises:
            StoreError: the store cannot be opened, or has another number of documents.
        """
        store = self._stores.get(shard)
        if store is None:
            where = self._root / self._names[shard]
            try:
                store = token_store(str(where), Opening(reader=self.tars.reader))
            except StoreAwayError:
                raise
            except StoreError as error:
                raise StoreError(f"{error} ({INFO_NAME} lists this shard)") from None
            if len(store) != self._counts[shard]:
                found = len(store)
                store.close()
                raise StoreError(
                    f"{where}: has {found:,} documents, but the info file lists {self._counts[shard]:,}; prepare the"
                    " dataset again"
                )
            self._stores[shard] = store
        return store


def _npy(tokens: TokenArray) -> bytes:
    out = io.BytesIO()
    array: np.ndarray[Any, Any] = np.asarray(tokens)
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()
