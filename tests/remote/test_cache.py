"""The cache of a node in front of an object store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corpora
import headrace
import servers
from headrace.datasets.block_uses import BlockUses
from headrace.io import ObjectReader

pytestmark = pytest.mark.remote


def test_each_block_is_one_get_and_a_second_epoch_needs_none(
    weed: servers.Bucket, folder_key: str, tmp_path: Path
) -> None:
    corpus = corpora.make(tmp_path / "web", 3, 400, max_length=200)
    url = f"{weed.upload(tmp_path / 'web', folder_key)}/shard-0"
    cache = headrace.Cache(tmp_path / "cache", limit="1MB", block=4096)
    inner = ObjectReader(weed.storage)
    store = headrace.open(url, reader=cache.reader(inner))
    run = headrace.Run(headrace.WindowDataset(store, seq_len=64), global_batch_size=16, epochs=2)
    uses = BlockUses.of_run(run, block_bytes=4096)
    half = (run.length or 0) // 2
    loader = headrace.Loader(run, micro_batch_size=16)
    plain = headrace.Run(headrace.WindowDataset(corpus.store, seq_len=64), global_batch_size=16, epochs=2)
    gets = None
    for batch, expected in zip(loader, headrace.Loader(plain, micro_batch_size=16), strict=True):
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        if gets is None and loader.position >= half:
            gets = inner.stats.gets
    assert inner.stats.gets == gets
    assert cache.stats.fetched_blocks >= uses.table.num_blocks
    assert cache.stats.evicted_blocks == 0
    again = headrace.Cache(tmp_path / "cache", limit="1MB", block=4096)
    other = ObjectReader(weed.storage)
    twin = headrace.open(url, reader=again.reader(other))
    assert twin.fetch(0, 500).tolist() == corpus.store.fetch(0, 500).tolist()
    assert again.stats.fetched_blocks == 0
