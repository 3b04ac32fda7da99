"""The contract of stores over what `headrace.stores.open` opens, and over the same documents in several shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import headrace.stores as stores
from headrace.stores import ShardedStore, Store
from headrace.testing.stores import Documents, StoreContract


class OpenedContract(StoreContract):
    options: ClassVar[dict[str, Any]] = {}

    def open(self, path: Path) -> Store:
        return stores.open(path, **self.options)


class ShardedContract(OpenedContract):
    """Every four documents a shard, and empty shards between. Their numbers are of one digit, and then of two."""

    def write(self, folder: Path, documents: Documents) -> Path:
        (folder / "data").mkdir(exist_ok=True)
        parts = [documents[at : at + 4] for at in range(0, len(documents), 4)]
        for number, part in enumerate([*parts[:1], [], *parts[1:], []], start=8):
            self.write_shard(folder / "data", number, part)
        return folder / "data"

    def write_shard(self, folder: Path, number: int, documents: Documents) -> None:
        raise NotImplementedError

    def open(self, path: Path) -> Store:
        store = super().open(path)
        assert isinstance(store, ShardedStore)
        return store
