"""Where samples lie in files, against the bytes there; and at which positions a block is read, against a scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corpora
import headrace
import tars_made
from headrace.datasets import Dataset
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError
from headrace.stores import CombinedStore, KeyedWriter, Store


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpus:
    return corpora.make(tmp_path_factory.mktemp("tokens"), 5, 160, num_shards=3)


def keyed(folder: Path, num_records: int = 60) -> Store:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 40, num_records)
    total = int(lengths.sum())
    with KeyedWriter(str(folder), dtypes={"sequence": "int32", "loss_mask": "bool"}) as writer:
        values = {"sequence": rng.integers(0, 99, total).astype(np.int32), "loss_mask": rng.random(total) < 0.7}
        writer.add_documents(values, dict.fromkeys(values, lengths))
        writer.finish()
    return headrace.open(str(folder))


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
    assert np.frombuffer(bytes_of(windows, np.array([3]))[0], np.int32).tolist() == [
        *sample["input_ids"].tolist(),
        int(store.fetch(80, 81)[0]),
    ]
    mask = np.frombuffer(bytes_of(windows, np.array([3]), part=1)[0], np.bool_)
    assert mask.tolist() == (sample["labels"] != -100).tolist()
    records = headrace.SFTDataset(store, headrace.datasets.Collation())
    for part, key in enumerate(("sequence", "loss_mask")):
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
    assert uses.can_find
    found = uses.positions(np.arange(uses.table.num_blocks), begin=0, end=48)
    reads = uses.reads(np.arange(48))
    pairs = sorted(zip(reads.blocks.tolist(), reads.rows.tolist(), strict=True))
    assert list(zip(found.rows.tolist(), found.positions.tolist(), strict=True)) == pairs


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
def test_positions_of_blocks_are_those_that_read_them(
    tokens: corpora.Corpus, tmp_path: Path, name: str, kind: str
) -> None:
    data = datasets(tokens, tmp_path)[name]
    order = headrace.Order(kind=kind, seed=2, block_samples=8)  # type: ignore[arg-type]
    run = headrace.Run(data, global_batch_size=16, order=order, samples=400)
    uses = BlockUses.of_run(run, block_bytes=128)
    positions = np.arange(run.length)
    reads = uses.reads(positions)
    blocks = np.arange(0, uses.table.num_blocks, 5, dtype=np.int64)
    found = uses.positions(blocks, begin=30, end=370)
    mine = np.isin(reads.blocks, blocks) & (reads.rows >= 30) & (reads.rows < 370)
    expected = sorted(
        zip(*(one[mine].tolist() for one in (reads.blocks, reads.rows, reads.used_bytes, reads.epochs)), strict=True)
    )
    columns = (blocks[found.rows], found.positions, found.used_bytes, found.epochs)
    assert list(zip(*(one.tolist() for one in columns), strict=True)) == expected
    assert expected


def test_edited_runs_are_followed_too(tokens: corpora.Corpus, tmp_path: Path) -> None:
    run = headrace.Run(datasets(tokens, tmp_path)["a blend"], global_batch_size=16, samples=320)
    run = run.edit(9, weights={"a": 1, "b": 2}).skip(range(12, 14), then="defer")
    uses = BlockUses.of_run(run, block_bytes=128)
    assert uses.can_find
    reads = uses.reads(np.arange(320))
    blocks = np.arange(0, uses.table.num_blocks, 40, dtype=np.int64)
    found = uses.positions(blocks, begin=0, end=320)
    mine = np.isin(reads.blocks, blocks)
    expected = sorted(zip(reads.blocks[mine].tolist(), reads.rows[mine].tolist(), strict=True))
    assert list(zip(blocks[found.rows].tolist(), found.positions.tolist(), strict=True)) == expected


def test_the_home_of_a_sample_holds_most_of_it(tokens: corpora.Corpus) -> None:
    run = headrace.Run(headrace.WindowDataset(tokens.store, seq_len=30), global_batch_size=16, samples=100)
    uses = BlockUses.of_run(run, block_bytes=128)
    homes = uses.homes(np.arange(100))
    reads = uses.reads(np.arange(100))
    for row, home in enumerate(homes.tolist()):
        mine = reads.rows == row
        used = dict(zip(reads.blocks[mine].tolist(), reads.used_bytes[mine].tolist(), strict=True))
        assert used[home] == max(used.values())


def test_what_is_not_known_is_said(tokens: corpora.Corpus, tmp_path: Path) -> None:
    packing = headrace.Packing(seq_len=64, strategy="best_fit_split", repack=True)
    run = headrace.Run(headrace.PackedSequenceDataset(tokens.store, packing), global_batch_size=4, samples=40)
    uses = BlockUses.of_run(run, block_bytes=128)
    assert len(uses.reads(np.arange(40)).rows) > 40
    with pytest.raises(ConfigError, match="made of others in each epoch"):
        uses.positions(np.arange(3, dtype=np.int64), begin=0, end=40)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"tokens": [1, 2, 3]}\n' * 50)
    store = headrace.open(str(lines))
    dataset = headrace.WindowDataset(store, seq_len=4)
    with pytest.raises(ConfigError, match=r"which bytes of a store of the format .* lies in"):
        BlockUses.of_run(headrace.Run(dataset, global_batch_size=4, samples=8), block_bytes=128)
