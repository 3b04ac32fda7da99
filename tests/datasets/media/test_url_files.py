"""Folders of files in an object store, as datasets and beside them: reader, cache and storage are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import headrace
from energon_made import write_files
from energon_prepared import prepared
from headrace.cli import main
from headrace.datasets import MediaDataset
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.media.file_stores import FileStore
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.io import ObjectReader
from headrace.loader import Reading
from headrace.samples.media import Cooker, TextSample, basic_sample_keys, cooker
from headrace.stores.energon import MediaRow, update_media
from memory_stores import MemoryBucket

FILES = {f"{n % 3}/{n:03d}.{part}": f"{part} {n} ".encode() * (n % 7) for n in range(60) for part in ("txt", "cls")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "files", FILES)
    update_media(root, [MediaRow("0/000.txt", "image", '{"width":2}')], [])
    return root


def run_of(dataset: MediaDataset) -> headrace.Run:
    return headrace.Run(dataset, global_batch_size=8, samples=150, order=headrace.Order(seed=3))


def read(dataset: MediaDataset, reading: Reading | None = None) -> list[Any]:
    loader = headrace.Loader(run_of(dataset), micro_batch_size=4, reading=reading)
    return [(batch["__key__"], batch["txt"], batch["cls"]) for batch in loader]


READINGS = {"usual": None, "ahead": Reading(ahead="100MB"), "threads": Reading(num_threads=4)}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("cached", [False, True])
def test_batches_are_those_of_the_local_folder(
    bucket: MemoryBucket, folder: Path, tmp_path: Path, name: str, cached: bool
) -> None:
    local = MediaDataset.open(folder, decoder=None)
    cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached else None
    ours = MediaDataset.open(bucket.upload(folder, "files"), decoder=None, cache=cache)
    assert ours.fingerprint == local.fingerprint
    assert read(ours, READINGS[name]) == read(local)
    if cache is not None:
        # All fit, and a file is a block: of two and a half epochs, the first one fetches each file that is not empty.
        assert cache.stats.fetched_blocks == sum(1 for data in FILES.values() if data)
        assert (cache.stats.hits > 0, cache.stats.bypassed_blocks) == (True, 0)


def test_which_blocks_a_run_reads(bucket: MemoryBucket, folder: Path) -> None:
    """Each file has blocks of its own; an empty one has none."""
    for place in (str(folder), bucket.upload(folder, "files")):
        dataset = MediaDataset.open(place, decoder=None)
        uses = BlockUses.of_run(run_of(dataset), block_bytes=32)
        positions = np.arange(150)
        reads = uses.reads(positions)
        samples = dataset.store.read(run_of(dataset).lookup(positions).indices)
        assert int(reads.used_bytes.sum()) == sum(len(part) for sample in samples for part in sample.parts.values())


@cooker
def noted(crude: dict[str, Any], *, scans: FileStore, more: FileStore) -> TextSample:
    name = f"0/{int(crude['__key__']) * 3:03d}.txt"
    text = b"|".join((crude["txt"], scans.get(name, crude), more.get(name, crude)))
    return TextSample(**basic_sample_keys(crude), text=text.decode())


def dataset_with_files(tmp_path: Path) -> Path:
    shards = {"a.tar": [(f"{n}.txt", f"{n}".encode()) for n in range(8)]}
    prepared(tmp_path / "set", shards)
    (tmp_path / "set/.nv-meta/dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return tmp_path / "set"


@pytest.mark.parametrize("cached", [False, True])
def test_files_beside_a_dataset(bucket: MemoryBucket, folder: Path, tmp_path: Path, cached: bool) -> None:
    """What aux names at a URL is read by the reader of the dataset: with its storage, and its cache."""
    root = dataset_with_files(tmp_path)
    text = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: ../set\n    aux:\n"
    (tmp_path / "mixes").mkdir()
    (tmp_path / "mixes/mix.yaml").write_text(f"{text}      scans: filesystem://../files\n      more: ../files\n")
    for one in (root, folder, tmp_path / "mixes"):
        bucket.upload(one, one.name)
    outer = tmp_path / "mixes/outer.yaml"
    outer.write_text(
        f"{text}      scans: filesystem://{bucket.url}/files\n      more: {bucket.url}/files\n".replace(
            "../set", f"{bucket.url}/set"
        )
    )

    for command in ("info", "check"):
        done = CliRunner().invoke(main, [command, f"{bucket.url}/mixes/mix.yaml"])
        assert done.exit_code == 0, done.output

    (tmp_path / "mixes/wrong.yaml").write_text(f"{text}      scans: filesystem://../file\n      more: ../files\n")
    bucket.upload(tmp_path / "mixes", "mixes")
    wrong = CliRunner().invoke(main, ["check", f"{bucket.url}/mixes/wrong.yaml"])
    assert f"aux.scans: nothing is at {bucket.url}/file\n" in wrong.output
    assert (wrong.exit_code, "aux.more" in wrong.output) == (1, False)

    def texts(path: Any, reader: Any = "mmap") -> list[str]:
        cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached and reader != "mmap" else None
        options = SourceOptions(decoder=None, cookers=[Cooker(noted)], reader=reader, cache=cache)
        data = load_dataset(path).train(options=options)
        assert isinstance(data, MediaDataset)
        assert data.aux["scans"].get_media_metadata("0/000.txt").width == 2
        found = [sample.text for sample in data]
        # The eight samples of the tar, and of the files of both names the six that are not empty.
        assert cache is None or cache.stats.fetched_blocks + cache.stats.hits >= 8 + 2 * 6
        return found

    wanted = texts(tmp_path / "mixes/mix.yaml")
    assert wanted[1] == "|".join(("1", "txt 3 " * 3, "txt 3 " * 3))
    for path in (f"{bucket.url}/mixes/mix.yaml", outer):
        reader = ObjectReader()
        assert texts(path, reader) == wanted
        assert reader.stats.heads > 0
