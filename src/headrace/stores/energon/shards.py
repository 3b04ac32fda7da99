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


class DatasetShards(TarShards):
    """Reads samples as `TarShards` does, also of shards that are no tars.

    A shard that is no tar is a store of tokens: a ``.jsonl``, a ``.h5``, a ``.bin`` with ``.idx``. Document i is the
    sample with the key ``"i"``, which has a part ``<key>.npy`` for each key of the store: its tokens as the bytes of an
    ``.npy`` file. Each shard is named once. The arguments are those of `TarShards`.

    Raises:
        InputError: a shard is compressed; the message says how to unpack it.
    """

    def __init__(self, root: AnyPath, names: Sequence[str], counts: IntArray, **how: Any) -> None:
        super().__init__(root, names, counts, **how)
        for name in names:
            if name.endswith(SUFFIXES):  # Energon's prepare accepts such shards, but its reader does not
                check_uncompressed(str(root / name))
        self.is_tar = np.array([name.endswith(".tar") for name in names], np.bool_)
        self.are_tars = bool(self.is_tar.all())
        self._stores: dict[int, Store] = {}

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files of all shards, in order; each tar is followed by its index."""
        found: list[AnyPath] = []
        for shard, is_tar in enumerate(self.is_tar.tolist()):
            tar = self._place_of(shard)
            found += [tar, index_path(tar)] if is_tar else self._store(shard).files
        return tuple(found)

    def read(self, shards: IntArray, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples in the order of the arguments."""
        if self.are_tars:
            return super().read(shards, indices, parts)
        slots = np.flatnonzero(self.is_tar[shards])
        of_tars = iter(super().read(shards[slots], indices[slots], parts))
        return [
            next(of_tars) if self.is_tar[shard] else self._document(shard, index, parts)
            for shard, index in zip(shards.tolist(), indices.tolist(), strict=True)
        ]

    def key(self, shard: int, index: int) -> str:
        """Return the key of a sample."""
        return super().key(shard, index) if self.is_tar[shard] else self._document(shard, index, ()).key

    def keys(self, shard: int) -> list[str]:
        """Return the keys of a shard; for a tar, this is a pass over its headers."""
        return super().keys(shard) if self.is_tar[shard] else list(map(str, range(int(self.counts[shard]))))

    def places(self, shard: int, index: int) -> dict[str, PartPlace]:
        """Return where the parts of a sample lie; empty for a document, whose parts are made when they are read."""
        return super().places(shard, index) if self.is_tar[shard] else {}

    def facts(self, shard: int) -> tuple[Any, ...]:
        """Return facts that identify the content of a shard, for a fingerprint. O(1)."""
        if not self.is_tar[shard]:
            return (self._store(shard).fingerprint,)
        offsets = self.offsets(shard)
        middle = len(offsets) // 2
        size = self._place_of(shard).stat().st_size
        return size, len(offsets), int(offsets[0]), int(offsets[middle]), int(offsets[-1])

    def check(self, shard: int) -> Iterator[Problem]:
        """Read a shard and yield what is wrong."""
        try:
            yield from super().check(shard) if self.is_tar[shard] else self._store(shard).check()
        except HeadraceError as error:
            if self.is_tar[shard]:
                raise
            yield Problem.of(str(self._place_of(shard)), error)

    def close(self) -> None:
        """Close all shards."""
        super().close()
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def _place_of(self, shard: int) -> AnyPath:
        return self.reader.path_at(self.path(shard))

    def _document(self, shard: int, index: int, parts: Collection[str] | None) -> RawSample:
        store = self._store(shard)
        wanted = [key for key in store.keys if parts is None or f"{key}.npy" in parts]
        content = {f"{key}.npy": _npy(tokens) for key, tokens in store.document(index, wanted).items()}
        return RawSample(str(index), self.names[shard], index, content)

    def _store(self, shard: int) -> Store:
        """Return the store of a shard of tokens.

        Raises:
            StoreError: the store cannot be opened, or has another number of documents.
        """
        store = self._stores.get(shard)
        if store is None:
            where = self._place_of(shard)
            try:
                store = token_store(str(where), Opening(reader=self.reader))
            except StoreAwayError:
                raise
            except StoreError as error:
                raise StoreError(f"{error} ({INFO_NAME} lists this shard)") from None
            if len(store) != self.counts[shard]:
                found = len(store)
                store.close()
                raise StoreError(
                    f"{where}: has {found:,} documents, but the info file lists {self.counts[shard]:,}; prepare the"
                    " dataset again"
                )
            self._stores[shard] = store
        return store


def _npy(tokens: TokenArray) -> bytes:
    out = io.BytesIO()
    array: np.ndarray[Any, Any] = np.asarray(tokens)
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()
