"""Where samples lie in files, against the bytes there; and which blocks are read at which positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corpora
import headrace
import records_made
import tars_made
from headrace.datasets import Dataset
from headrace.datasets.block_uses import BlockUses
from headrace.stores import CombinedStore, Store


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpus:
    return corpora.make(tmp_path_factory.mktemp("tokens"), 5, 160, num_shards=3)


def keyed(folder: Path) -> Store:
    return records_made.store(folder, records_made.sft(3, 60), "keyed")


def bytes_of(dataset: Dataset, indices: np.ndarray, part: int = 0) -> list[bytes]:
    """The bytes that the ranges of samples name, read from the files."""
    found = dataset.extents(dataset.locate(indices))[part]
    whole = [b""] * len(indices)
    for row, file, begin, end in zip(*(one.tolist() for one in found[1:]), strict=True):
        reader, name = found.store.data_file(file)
        assert name == found.store.data_files[file]
        assert reader.size(name) == found.store.data_sizes()[file]
        with Path(name).open("rb") as stream:
            stream.seek(begin)
            whole[row] += stream.read(end - begin)
    return whole


def test_windows_lie_where_they_say(tokens: corpora.Corpus) -> None:
    dataset = headrace.WindowDataset(tokens.store, seq_len=50)
    indices = np.arange(len(dataset))
    for index, data in zip(indices.tolist(), bytes_of(dataset, indices), strict=True):
        assert np.frombuffer(data, np.uint16).tolist() == tokens.tokens[index * 50 : index * 50 + 51].tolist()


def test_masks_and_records_lie_where_they_say(tmp_path: Path) -> None:
    store = keyed(tmp_path / "keyed")
    windows = headrace.WindowDataset(store, seq_len=20)
    sample = windows[3]
    [ids], [mask] = (bytes_of(windows, np.array([3]), part) for part in range(2))
    assert np.frombuffer(ids, np.uint16).tolist() == [*sample["input_ids"].tolist(), int(store.fetch(80, 81)[0])]
    assert np.frombuffer(mask, np.bool_).tolist() == (sample["labels"] != -100).tolist()
    records = headrace.SFTDataset(store, headrace.datasets.Collation())
    for part, key in enumerate(("tokens", "loss_mask")):
        (data,) = bytes_of(records, np.array([7]), part)
        assert data == store.document(7, key).tobytes()


def test_packs_lie_where_they_say(tokens: corpora.Corpus) -> None:
    dataset = headrace.PackedSequenceDataset(tokens.store, headrace.Packing(seq_len=64, strategy="best_fit_split"))
    indices = np.arange(len(dataset))
    for index, data in zip(indices.tolist(), bytes_of(dataset, indices), strict=True):
        sample = dataset[index]
        ids = sample["input_ids"][sample["document_ids"] >= 0]
        assert set(ids.tolist()) <= set(np.frombuffer(data, np.uint16).tolist())
        assert len(ids) <= len(data) // 2


def test_tars_lie_where_they_say(tmp_path: Path) -> None:
    for shard in range(2):
        samples = [(f"{shard}{number:02}", {"txt": b"%d " % number * 300}) for number in range(12)]
        tars_made.write_tar(tmp_path / f"{shard}.tar", tars_made.members_of(samples))
    dataset = headrace.MediaDataset.open(tmp_path)
    whole = bytes_of(dataset, np.arange(24))
    for index, data in enumerate(whole):
        assert dataset.store[index].parts["txt"] in data
    assert sum(map(len, whole)) <= sum(file.stat().st_size for file in tmp_path.glob("*.tar"))
    run = headrace.Run(dataset, global_batch_size=4, epochs=2, order=headrace.Order(kind="shards", seed=1))
    uses = BlockUses.of_run(run, block_bytes=4096)
    reads = uses.reads(np.arange(48))
    assert int(reads.used_bytes.sum()) == 2 * sum(map(len, whole))
    assert np.unique(reads.blocks).tolist() == list(range(uses.table.num_blocks))


def datasets(tokens: corpora.Corpus, folder: Path) -> dict[str, Dataset | headrace.Blend]:
    windows = headrace.WindowDataset(tokens.store, seq_len=30)
    packs = headrace.PackedSequenceDataset(tokens.store, headrace.Packing(seq_len=64, strategy="best_fit_split"))
    store = keyed(folder / "keyed")
    masked = headrace.WindowDataset(store, seq_len=10)
    one = headrace.WindowDataset(CombinedStore({"tokens": tokens.store}, "one"), seq_len=30, stride=11)
    return {
        "windows": windows,
        "overlapping": headrace.WindowDataset(tokens.store, seq_len=30, stride=7),
        "phases": headrace.WindowDataset(tokens.store, seq_len=30, phase=True),
        "packs": packs,
        "records": headrace.SFTDataset(store, headrace.datasets.Collation()),
        "masked windows": masked,
        "a blend": headrace.Blend({"a": windows, "b": one}, weights={"a": 3, "b": 1}),
        "seeded": headrace.MapDataset(
            headrace.WindowDataset(tokens.store, seq_len=30, phase=True), lambda sample, _: sample, seeded=True
        ),
    }


NAMES = ["windows", "overlapping", "phases", "packs", "records", "masked windows", "a blend", "seeded"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["full", "blocks", "shards"])
def test_reads_are_the_blocks_of_the_samples(tokens: corpora.Corpus, tmp_path: Path, name: str, kind: str) -> None:
    data = datasets(tokens, tmp_path)[name]
    order = headrace.Order(kind=kind, seed=2, block_samples=8)  # type: ignore[arg-type]
    check(headrace.Run(data, global_batch_size=16, order=order, samples=400))


def test_edited_runs_are_followed_too(tokens: corpora.Corpus, tmp_path: Path) -> None:
    run = headrace.Run(datasets(tokens, tmp_path)["a blend"], global_batch_size=16, samples=320)
    check(run.edit(9, weights={"a": 1, "b": 2}).skip(range(12, 14), then="defer"))


def check(run: headrace.Run) -> None:
    """Compare the blocks of some positions with the ranges that each of their samples has by itself."""
    uses = BlockUses.of_run(run, block_bytes=128)
    positions = np.arange(0, run.length or 0, 3)
    reads = uses.reads(positions)
    lookup = run.lookup(positions)
    expected: dict[tuple[int, int], int] = {}
    for row, (source, index, key) in enumerate(zip(lookup.sources.tolist(), lookup.indices, lookup.keys, strict=True)):
        dataset = run.datasets[source]
        keys = np.array([key]) if run.is_keyed(source) else None
        for part in dataset.extents(dataset.locate(np.array([index]), keys)):
            for file, begin, end in zip(part.files.tolist(), part.begins.tolist(), part.ends.tolist(), strict=True):
                first = int(uses.table.firsts[uses.files.index(part.store.data_files[file])])
                for block in range(begin // 128, -(-end // 128) if end > begin else 0):
                    used = min(end, (block + 1) * 128) - max(begin, block * 128)
                    expected[row, first + block] = expected.get((row, first + block), 0) + used
    found = zip(reads.rows.tolist(), reads.blocks.tolist(), strict=True)
    assert dict(zip(found, reads.used_bytes.tolist(), strict=True)) == expected
    assert expected


def test_the_home_of_a_sample_holds_most_of_it(tokens: corpora.Corpus) -> None:
    run = headrace.Run(headrace.WindowDataset(tokens.store, seq_len=30), global_batch_size=16, samples=100)
    uses = BlockUses.of_run(run, block_bytes=128)
    homes = uses.homes(np.arange(100))
    reads = uses.reads(np.arange(100))
    for row, home in enumerate(homes.tolist()):
        mine = reads.rows == row
        used = dict(zip(reads.blocks[mine].tolist(), reads.used_bytes[mine].tolist(), strict=True))
        assert used[home] == max(used.values())
