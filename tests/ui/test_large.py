"""A store of 10^9 documents and a run of 10^10 samples: what a page shows is looked up, so that size does not matter.

Whatever would go through all documents, or hold a number for each, would take minutes and gigabytes here.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.inspect import describe_store, views
from headrace.io import FileSum
from headrace.stores import DocumentLedger, KeyInfo, Ledger, Manifest, OutputShard, TokenLedger, save_manifest
from headrace.tracing import save_run
from ui_pages import Pages

SHARDS, DOCUMENTS, TOKENS = 1000, 10**6, 64


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shard is the same two files, and the tokens are holes that are read as zeros: 20 MB in all."""
    root = tmp_path_factory.mktemp("large")
    store = root / "store"
    store.mkdir()
    first = store / "text_document_00000"
    with Path(f"{first}.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, DOCUMENTS, DOCUMENTS + 1))
        for column in (
            np.full(DOCUMENTS, TOKENS, np.int32),
            np.arange(DOCUMENTS, dtype=np.int64) * 2 * TOKENS,
            np.arange(DOCUMENTS + 1, dtype=np.int64),
        ):
            index.write(column.tobytes())
    with Path(f"{first}.bin").open("wb") as data:
        data.truncate(2 * TOKENS * DOCUMENTS)
    sizes = {suffix: Path(f"{first}{suffix}").stat().st_size for suffix in (".bin", ".idx")}
    outputs = []
    for number in range(SHARDS):
        prefix = f"text_document_{number:05d}"
        for suffix in sizes:
            if number:
                os.link(f"{first}{suffix}", store / f"{prefix}{suffix}")
        files = tuple(
            FileSum(name=prefix + suffix, size=size, xxh3_128="0" * 32, block_bytes=1 << 40, xxh3_64=("0" * 16,))
            for suffix, size in sizes.items()
        )
        keys = {"text": KeyInfo(dtype="uint16", tokens=TOKENS * DOCUMENTS)}
        outputs.append(OutputShard(prefix=prefix, documents=DOCUMENTS, keys=keys, contiguous=True, files=files))
    documents, tokens = SHARDS * DOCUMENTS, SHARDS * DOCUMENTS * TOKENS
    ledger = Ledger(
        documents=DocumentLedger(read=documents, kept=documents), tokens=TokenLedger(made=tokens, kept=tokens)
    )
    save_manifest(store, Manifest(outputs=tuple(outputs), ledger=ledger))
    return root


def test_a_store_of_a_billion_documents(large: Path) -> None:
    found = views.outline(large / "store")
    assert isinstance(found, views.StoreOutline)
    assert (found.documents, found.tokens, found.looked_at) == (10**9, 64 * 10**9, 1 << 13)
    assert found.histogram[0].documents == 1 << 13
    pages = Pages(str(large))
    path = f"path={large}/store"
    assert "1,000,000,000" in pages.get()
    assert "of 8,192 documents in 64 places" in pages.get(f"store?{path}")
    assert "document 500,000,000</a>" in pages.get(f"documents?{path}&first=500000000")
    assert "Document 999,999,999" in pages.get(f"documents?{path}&number=999999999")
    search = views.search(large / "store", "1", first=10**9 - 2000)
    assert [one.until for one in search if isinstance(one, views.SearchProgress)][-1] == 10**9


def test_the_info_of_a_store_of_a_billion_documents(large: Path) -> None:
    found = describe_store(str(large / "store"))
    [key] = found.keys
    assert (found.documents, found.tokens, key.looked_at, key.empty_documents) == (10**9, 64 * 10**9, 1 << 13, 0)
    assert [(bar.first, bar.documents) for bar in key.histogram] == [(64, 1 << 13)]
    assert "lengths, from 8,192 documents, evenly spread" in found.lines()


def test_a_run_of_ten_billion_samples(tmp_path: Path) -> None:
    """A hundred epochs of 10^8 windows, over one file of 12.8 GB that is a hole."""
    num_documents, length = 400, 1 << 24
    with (tmp_path / "web.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, num_documents, num_documents + 1))
        index.write(np.full(num_documents, length, np.int32).tobytes())
        index.write((np.arange(num_documents, dtype=np.int64) * 2 * length).tobytes())
        index.write(np.arange(num_documents + 1, dtype=np.int64).tobytes())
    with (tmp_path / "web.bin").open("wb") as data:
        data.truncate(2 * num_documents * length)
    windows = headrace.WindowDataset(headrace.open(str(tmp_path / "web")), seq_len=TOKENS)
    run = headrace.Run(windows, global_batch_size=4096, samples=10**10)
    save_run(run.edit(10**6, global_batch_size=8192, reason="larger"), tmp_path / "run.json")
    pages = Pages(str(tmp_path))
    path = f"path={tmp_path}/run.json"
    assert "10,000,000,000 samples" in pages.get(f"run?{path}&step=1500000")
    step = pages.get(f"step?{path}&step=900000&ranks=512&micro=8")
    assert "4,096 samples on 512 ranks" in step
    text = pages.get(f"fed?{path}&position=9000000000")
    assert "Position 9,000,000,000" in text
    whole = 10**10 // len(windows)
    assert f"{whole} times before step" in text or f"{whole + 1} times before step" in text, "once in each epoch"
