"""Where Energon 7.4.1 fails on data that is right, beside ours; the numbers are those of the table in README.md."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from energon_made import write_shards
from headrace import Loader, MediaDataset, Order, Run
from headrace.cli import main
from headrace.errors import InputError
from headrace.loader import Ranks
from headrace.plan.subset import SubsetRange
from headrace.preparing.energon import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice, prepare_energon
from headrace.stores import EnergonStore
from interop import energon_peer
from media_made import encoded, pixels

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", autouse=True)
def _peer() -> None:
    energon_peer.energon()


def texts(*keys: str, size: int = 1) -> list[tuple[str, bytes]]:
    return [(f"{key}.txt", f"{key} ".encode() * size) for key in keys]


def dataset(root: Path, shards: dict[str, list[tuple[str, bytes]]], splits: dict[str, str] | None = None) -> Path:
    """Samples of text, prepared by ours."""
    parts = tuple((splits or {"train": ".*"}).items())
    choice = DatasetChoice(sample_type="TextSample", field_map={"text": "txt"})
    prepare_energon(write_shards(root, shards), options=EnergonOptions(split=SplitChoice(parts=parts), dataset=choice))
    return root


def test_9_8_without_shuffling(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set", {"0.tar": texts("a", "b", "c"), "1.tar": texts("d", "e")})
    peer = energon_peer.energon()

    def train() -> Any:
        dataset = peer.get_train_dataset(
            root,
            worker_config=peer.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            shuffle_over_epochs_multiplier=None,
        )
        return next(iter(peer.get_loader(dataset)))

    with pytest.raises(AssertionError):
        energon_peer.quietly(train)
    run = Run(MediaDataset.open(root), global_batch_size=5, order=Order(kind="none"))
    first = next(iter(Loader(run, micro_batch_size=5, ranks=Ranks())))
    assert first["__key__"] == ["a", "b", "c", "d", "e"]


def test_9_9_the_state_is_one_and_serves_any_number_of_ranks(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set", {"0.tar": texts(*"abcdefghijkl")})
    run = Run(MediaDataset.open(root), global_batch_size=4)

    def batches(num_ranks: int, state: Any = None) -> list[list[str]]:
        """Keys of the steps, each sorted, as all ranks together get them."""
        steps: list[list[str]] = [[], [], []]
        for rank in range(num_ranks):
            ranks = Ranks(rank=rank, world_size=num_ranks)
            loader = Loader(run, micro_batch_size=4 // num_ranks, ranks=ranks)
            if state is not None:
                loader.load_state_dict(state)
            for step, batch in zip(steps, loader, strict=False):
                step += batch["__key__"]
        return [sorted(step) for step in steps]

    loader = Loader(run, micro_batch_size=4, ranks=Ranks())
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))  # no pickle
    wanted = batches(1, state)
    assert wanted != batches(1)
    assert batches(2, state) == batches(4, state) == wanted


def test_9_10_media_by_glob(tmp_path: Path) -> None:
    pictures = [(f"{number}.jpg", encoded(Image.fromarray(pixels(8 + number, 9)), "JPEG")) for number in range(4)]
    shards = {"0.tar": sorted([*pictures, *texts("0", "1")])}
    split, choice = SplitChoice(ratio=(1, 0, 0)), DatasetChoice(skip=True)
    found = []
    for name, media in (
        ("glob", MediaFilter(strategy="GLOB", patterns=("*.jpg",))),
        ("extension", MediaFilter(strategy="EXTENSION")),
    ):
        root = write_shards(tmp_path / name, shards)
        prepare_energon(root, options=EnergonOptions(split=split, dataset=choice, media=media))
        found.append(energon_peer.tables(root / ".nv-meta/index.sqlite")["media_metadata"])
    assert len(found[0]) == 4
    assert found[0] == found[1]
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in (*pictures, *texts("0", "1")):
        (folder / name).write_bytes(data)
    media = MediaFilter(strategy="GLOB", patterns=("*.jpg",))
    prepare_energon(folder, options=EnergonOptions(media=media, media_only=True))
    assert sorted(energon_peer.tables(folder / ".nv-meta/index.sqlite")["media_metadata"]) == sorted(found[0])


def test_9_11_compressed_shards(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        write_shards(tmp_path / name, {"0.tar": texts("a", "b")})
        (tmp_path / name / "0.tgz").write_bytes(gzip.compress((tmp_path / name / "0.tar").read_bytes()))
        (tmp_path / name / "0.tar").unlink()
    energon_peer.prepare(tmp_path / "theirs", "--sample-type", "TextSample", "--field-map", '{"text": "txt"}')
    assert energon_peer.outcome(tmp_path / "theirs", "train") == "ReadError"
    with pytest.raises(InputError, match=r"0\.tgz.*gzip -d"):
        EnergonStore(tmp_path / "theirs", split_part="train")
    with pytest.raises(InputError, match=r"0\.tgz.*gzip -d"):
        prepare_energon(tmp_path / "ours", options=EnergonOptions(split=SplitChoice(ratio=(1, 0, 0))))


def test_9_12_a_percentage_up_to_the_end() -> None:
    assert SubsetRange.of(["80%", "end"]).bounds(10) == (8, 10)


def test_9_13_commands_on_crude_datasets(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "set", {"0.tar": texts("a", "b"), "1.tar": texts("c")})
    prepare_energon(root, options=EnergonOptions(split=SplitChoice(ratio=(1, 1, 0))))
    for command in ("info", "lint"):
        assert energon_peer.run(command, root).exit_code != 0
    for command in ("info", "check", "preview"):
        done = CliRunner().invoke(main, [command, str(root)])
        assert done.exit_code == 0, done.output
        assert "2 shards" in done.output


def test_9_15_a_broken_header(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set", {"0.tar": texts("a", "b", "c", "d")})
    data = bytearray((root / "0.tar").read_bytes())
    data[1024 + 100] ^= 1  # in the header of sample b
    (root / "0.tar").write_bytes(data)
    assert energon_peer.outcome(root, "train") == "ValueError"  # which ends the run
    dataset_ = MediaDataset.open(root)
    with pytest.raises(InputError, match=r"0\.tar: sample 1.*byte 1024: .*checksum"):
        dataset_.samples(np.arange(4))
    assert [sample.__key__ for sample in dataset_.samples(np.array([0, 2, 3]))] == ["a", "c", "d"]


def test_9_16_batches_are_stacked() -> None:
    import torch

    from headrace.samples.media import Batch, ImageSample, sample_type

    @sample_type
    class ImageBatch(Batch):
        image: Any

    samples = [ImageSample(__key__=str(size), __restore_key__=(), image=torch.ones(3, size, size)) for size in (2, 3)]
    assert tuple(ImageBatch.from_samples(samples).image.shape) == (2, 3, 3, 3)


def test_9_17_hidden_files_can_be_left_out(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("d/.hid", "d/a.txt", "d/b.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
    (tmp_path / "0.tar").write_bytes(buffer.getvalue())
    from headrace.stores import TarStore

    stores = [TarStore(tmp_path, hidden=hidden, index="memory") for hidden in (True, False)]
    assert [[sample.key for sample in store] for store in stores] == [["d/", "d/a", "d/b"], ["d/a", "d/b"]]
