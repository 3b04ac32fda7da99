"""The store contract over the indexed format: whole, of several sequences, permuted, sharded; mapped and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
from headrace.stores import ShardedStore, Store
from headrace.testing.shards import vouch_for, write_raw, write_shard
from headrace.testing.stores import Documents, StoreContract


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


class TestMapped(StoreContract):
    def write(self, folder: Path, documents: Documents) -> Path:
        write_shard(folder / "shard", documents, self.dtype)
        return folder / "shard"

    def open(self, path: Path) -> Store:
        return stores.open(path)

    def vouch(self, path: Path) -> None:
        vouch_for(path.parent, [self.open(path)])


class TestRead(TestMapped):
    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


class TestInt32(TestMapped):
    test_check_finds_every_flipped_bit = None  # which is dear, and no other for another dtype or way of reading

    dtype = "int32"


class TestSeveralSequences(TestMapped):
    """Each document in up to three sequences, one of them empty."""

    def write(self, folder: Path, documents: Documents) -> Path:
        sizes, bounds = [], [0]
        for document in documents:
            if len(document):
                cut = len(document) // 2
                sizes += [cut, 0, len(document) - cut]
            bounds.append(len(sizes))
        ends = np.cumsum([0, *sizes]) * np.dtype(self.dtype).itemsize
        data = b"".join(document.tobytes() for document in documents)
        write_raw(folder / "shard", self.dtype, sizes, ends[:-1].tolist(), bounds, data)
        return folder / "shard"


class TestPermuted(TestMapped):
    """Sequences in another order in the .bin than in the .idx."""

    def write(self, folder: Path, documents: Documents) -> Path:
        sequences = [part for document in documents if len(document) for part in np.array_split(document, 2)]
        bounds = np.cumsum([0, *(2 * (len(document) > 0) for document in documents)]).tolist()
        pointers, data = [0] * len(sequences), b""
        for number in np.random.default_rng(len(sequences)).permutation(len(sequences)).tolist():
            pointers[number] = len(data)
            data += sequences[number].tobytes()
        write_raw(folder / "shard", self.dtype, [len(s) for s in sequences], pointers, bounds, data)
        return folder / "shard"

    def vouch(self, path: Path) -> None:
        vouch_for(path.parent, [self.open(path)], contiguous=False)


class TestPermutedRead(TestPermuted):
    test_check_finds_every_flipped_bit = None

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


class TestSharded(TestMapped):
    """Every four documents a shard, and empty shards between."""

    def write(self, folder: Path, documents: Documents) -> Path:
        parts = [documents[at : at + 4] for at in range(0, len(documents), 4)]
        for number, part in enumerate([[], *parts[:1], [], *parts[1:], []], start=7):
            write_shard(folder / f"shard-{number}", part, self.dtype)  # shard-10 comes after shard-9
        return folder

    def vouch(self, path: Path) -> None:
        vouch_for(path, self.open(path).shards)

    def open(self, path: Path) -> Store:
        store = stores.open(path)
        assert isinstance(store, ShardedStore)
        return store


class TestShardedRead(TestSharded):
    test_check_finds_every_flipped_bit = None

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")
