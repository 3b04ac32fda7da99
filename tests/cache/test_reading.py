"""Files read through a cache: the bytes, the counts, several processes, and files that change."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import headrace
from children import results_of
from headrace.cache import Cache, CachedReader, CacheStats, check_cache, clear_cache, describe_cache
from headrace.cache.transaction import CacheBlock, block_name
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.io import FilePool, MmapReader, PreadReader, Reader
from headrace.io.readers import reading_for
from headrace.testing.readers import ReaderContract


class TestCachedReader(ReaderContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("cache")

    def make(self, pool: FilePool) -> Reader:
        return Cache(self.folder / "cache", limit="1MB", block=512).reader(PreadReader(pool=pool))


@pytest.fixture
def data(tmp_path: Path) -> np.ndarray:
    values = np.random.default_rng(3).integers(0, 256, 10_000, dtype=np.uint8)
    (tmp_path / "data.bin").write_bytes(values.tobytes())
    return values


def test_each_block_is_fetched_once_and_counted(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=1000)
    reader = cache.reader("pread")
    path = str(tmp_path / "data.bin")
    offsets, lengths = np.array([1500, 100, 9500]), np.array([1200, 50, 500])
    found = reader.read_ranges(path, offsets, lengths)
    assert found.tobytes() == b"".join(
        data[at : at + size].tobytes() for at, size in zip(offsets, lengths, strict=True)
    )
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.fetched_bytes, stats.read_bytes) == (4, 0, 4000, 1750)
    reader.read_ranges(path, offsets, lengths)
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.fetched_bytes) == (4, 4, 4000)
    other = Cache(tmp_path / "cache", limit="1MB", block=1000)
    assert (other.reader("pread").read(path, 0, 10_000) == data).all()
    assert (other.stats.fetched_blocks, other.stats.hits) == (6, 4)


def test_what_is_not_kept_is_fetched_as_far_as_it_is_read(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit=2000, block=1000)
    reader = cache.reader("pread")
    for offset in range(0, 10_000, 500):
        assert (reader.read(str(tmp_path / "data.bin"), offset, 10) == data[offset : offset + 10]).all()
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.bypassed_blocks) == (2, 2, 16)
    assert stats.fetched_bytes == 2 * 1000 + 16 * 10


def test_a_node_keeps_the_blocks_that_it_is_the_home_of(tmp_path: Path, data: np.ndarray) -> None:
    """Also in a worker, whose cache is a copy; and it makes room for them if the number of nodes changes."""
    path = str(tmp_path / "data.bin")
    cache = Cache(tmp_path / "cache", limit=4000, block=1000)
    cache.keep_homes([path], [5], num_nodes=3, node=1)
    copy = pickle.loads(pickle.dumps(cache.reader("pread")))
    for reader in (cache.reader("pread"), copy):
        assert (reader.read(path, 0, 10_000) == data).all()
    # Blocks 5 to 14, of which 7, 10 and 13 have their home here.
    assert (cache.stats.fetched_blocks, cache.stats.bypassed_blocks) == (3, 7)
    assert (copy.cache.stats.fetched_blocks, copy.cache.stats.hits) == (0, 3)
    copy.cache.store.use_none()
    cache.keep_homes([path], [5], num_nodes=2, node=0)
    assert (cache.reader("pread").read(path, 0, 10_000) == data).all()
    # 6, 8, 10, 12 and 14; 10 is there.
    assert cache.stats.evicted_blocks == 3
    assert describe_cache(cache.folder).blocks == 4


@pytest.mark.parametrize("through", ["loader", "step"])
def test_flipped_bits_never_become_tokens(tmp_path: Path, through: str) -> None:
    """Neither of a block, nor of the index: blocks are fetched anew and counted, and a run goes on without an index."""
    with headrace.stores.IndexedWriter(str(tmp_path / "web"), dtype="int32") as writer:
        writer.add_documents(np.arange(5001, dtype=np.int32), np.array([100, 1900, 3001]))
        writer.finish()

    def steps() -> tuple[list[list[int]], CacheStats]:
        cache = Cache(tmp_path / "cache", limit="10MB", block="1KiB")
        dataset = headrace.WindowDataset(headrace.open(tmp_path / "web", cache=cache), seq_len=25)
        run = headrace.Run(dataset, global_batch_size=20, samples=200, order=headrace.Order(seed=1))
        if through == "step":
            found = [run.step(step)["input_ids"] for step in range(10)]
        else:
            found = [batch["input_ids"].numpy() for batch in headrace.Loader(run, micro_batch_size=20)]
        return [batch[:, 0].tolist() for batch in found], cache.stats

    expected, _ = steps()
    blocks = [file for file in (tmp_path / "cache" / "blocks").rglob("*") if file.is_file()]
    for block in blocks:
        status = block.stat()
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 8
        block.write_bytes(data)
        os.utime(block, ns=(status.st_atime_ns, status.st_mtime_ns))
    found, stats = steps()
    assert found == expected
    assert stats.torn_blocks == len(blocks)
    again, stats = steps()
    assert (again, stats.torn_blocks, stats.fetched_bytes) == (expected, 0, 0)
    for file in (tmp_path / "cache").glob("index.sqlite*"):
        file.unlink()
    (tmp_path / "cache" / "index.sqlite").write_bytes(b"damaged" * 1000)
    found, stats = steps()
    assert (found, stats.hits) == (expected, 0)
    assert stats.bypassed_blocks
    checked = CliRunner().invoke(main, ["cache", "info", str(tmp_path / "cache")])
    assert checked.exit_code
    assert "index.sqlite: the index of the cache cannot be used" in checked.output


def test_a_changed_file_is_another_file(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=1000)
    path = tmp_path / "data.bin"
    assert cache.reader("pread").read(str(path), 0, 10).tobytes() == data[:10].tobytes()
    path.write_bytes(bytes(10_000))
    os.utime(path, ns=(1, 1))
    fresh = Cache(tmp_path / "cache", limit="1MB", block=1000)
    assert fresh.reader("pread").read(str(path), 0, 10).tobytes() == bytes(10)


def test_stores_read_the_same_through_a_cache(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 40, 100)
    with headrace.stores.IndexedWriter(str(tmp_path / "web"), dtype="uint16") as writer:
        writer.add_documents(rng.integers(0, 999, int(lengths.sum())).astype(np.uint16), lengths)
        writer.finish()
    cache = Cache(tmp_path / "cache", limit="1MB", block=256)
    plain = headrace.open(tmp_path / "web")
    cached = headrace.open(tmp_path / "web", reader=cache.reader("pread"))
    assert cached.fingerprint == plain.fingerprint
    for number in range(len(plain)):
        assert cached.document(number).tolist() == plain.document(number).tolist()
    copy = pickle.loads(pickle.dumps(cached))
    assert copy.document(5).tolist() == plain.document(5).tolist()


def _read_all(folder: str, order: list[int]) -> tuple[bytes, CacheStats]:
    cache = Cache(Path(folder) / "cache", limit="1MB", block=100)
    reader = cache.reader("pread")
    values = np.concatenate([reader.read(f"{folder}/data.bin", at * 50, 50) for at in order])
    return values.tobytes(), cache.stats


def test_processes_that_read_at_once_fetch_each_block_once(tmp_path: Path, data: np.ndarray) -> None:
    orders = [np.random.default_rng(seed).permutation(200).tolist() for seed in range(4)]
    results = results_of(_read_all, [(str(tmp_path), order) for order in orders])
    expected = {b"".join(data[at * 50 : at * 50 + 50].tobytes() for at in order) for order in orders}
    assert {values for values, _ in results} == expected
    assert sum(stats.fetched_blocks for _, stats in results) == 100
    assert sum(stats.bypassed_blocks for _, stats in results) == 0
    assert sum(stats.fetched_bytes for _, stats in results) == len(data)


def test_what_is_not_allowed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="limit 10 has no room for a block"):
        Cache(tmp_path, limit=10, block=100)
    cache = Cache(tmp_path / "cache", limit="1MB", block=100)
    for inner in (MmapReader(), CachedReader(cache, PreadReader())):
        with pytest.raises(ConfigError, match="cannot be read through a cache"):
            cache.reader(inner)
    with pytest.raises(ConfigError, match="there is no cache here"):
        describe_cache(tmp_path / "elsewhere")


def test_commands(tmp_path: Path, data: np.ndarray) -> None:
    folder = tmp_path / "cache"
    cache = Cache(folder, limit="1MB", block=1000)
    cache.reader("pread").read(str(tmp_path / "data.bin"), 0, 3000)
    told = CliRunner().invoke(main, ["cache", "info", str(folder)])
    assert told.exit_code == 0, told.output
    assert "3 blocks, 3.00 kB" in told.output
    assert CliRunner().invoke(main, ["cache", "verify", str(folder)]).exit_code == 0
    next((folder / "blocks").glob("*/*")).write_bytes(b"x")
    wrong = CliRunner().invoke(main, ["cache", "verify", str(folder)])
    assert wrong.exit_code == 1
    assert "damaged" in wrong.output
    assert CliRunner().invoke(main, ["cache", "verify", str(folder)]).exit_code == 0
    assert "2 blocks removed" in CliRunner().invoke(main, ["cache", "clear", str(folder)]).output
    assert describe_cache(folder).blocks == 0
    assert check_cache(folder) == []
    assert clear_cache(folder) == 0
    missing = CliRunner().invoke(main, ["cache", "info", str(tmp_path)])
    assert missing.exit_code == 2


def test_a_wait_that_takes_too_long_says_for_what(
    tmp_path: Path, data: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.cache.reading.WAIT_S", 0.01)
    path = str(tmp_path / "data.bin")
    cache, other = (Cache(tmp_path / "cache", limit="1MB", block=1000) for _ in range(2))
    reader = cache.reader("pread")
    assert other.store.claim([CacheBlock(block_name(reader.identity(path), 2), 1000, "web")]) == ["ours"]
    with caplog.at_level(logging.WARNING, "headrace"), reading_for(lambda: "samples of step 3 on rank 1 of 2"):
        assert (reader.read(path, 2100, 50) == data[2100:2150]).all()
    [line] = caplog.messages
    assert line.startswith(f"{path}: byte 2000: another process has fetched this block for 0 s")
    assert line.endswith(" for samples of step 3 on rank 1 of 2")
    assert cache.stats.bypassed_blocks == 1
