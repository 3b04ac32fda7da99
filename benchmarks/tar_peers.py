"""The peers that `tar.py` measures: the readers of Energon and webdataset, and the codec alone.

Each engine reads the folder of a dataset and yields samples without end, epoch after epoch. Energon and webdataset run
in this process, without workers and batches, which is their cheapest way. Energon in order is its validation dataset.
Energon shuffled is its training order with a slice for each sample, which is as random as it can be. `by name` is
Energon's random access, which needs no loader. webdataset shuffles shards, and samples in a buffer of 1,000, which is
the closest it has to a shuffled order.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from headrace.stores import EnergonStore
from headrace.stores.tar.store import keep_freed_memory

warnings.simplefilter("ignore")


BATCH = 64
"""The number of samples that Headrace reads in one call."""


def import_energon() -> None:
    """The set-up of every engine of Energon."""
    import megatron.energon  # noqa: F401


def energon_in_order(folder: Path) -> Iterator[Any]:
    from megatron.energon import get_loader, get_val_dataset

    dataset = get_val_dataset(
        folder, split_part="train", worker_config=_workers(), batch_size=None, task_encoder=_raw_encoder()
    )
    for _ in count():
        yield from get_loader(dataset)


def energon_shuffled(folder: Path) -> Iterator[Any]:
    from megatron.energon import get_loader, get_train_dataset

    yield from get_loader(
        get_train_dataset(
            folder,
            worker_config=_workers(),
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=1,
            task_encoder=_raw_encoder(),
        )
    )


def energon_by_name(folder: Path) -> Iterator[Any]:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader

    store = EnergonStore(folder)
    keys = [store.key(number) for number in range(len(store))]
    # All files are kept open.
    reader = SqliteITarEntryReader(EPath(folder), itar_cache_size=len(store.shards))
    rng = np.random.default_rng(2)
    while True:
        for number in rng.permutation(len(keys)).tolist():
            yield reader[keys[number]]


def energon_decoded(folder: Path) -> Iterator[Any]:
    from megatron.energon import DefaultTaskEncoder, SampleDecoder, get_loader, get_val_dataset

    class Encoder(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="torchrgb")

    dataset = get_val_dataset(
        folder, split_part="train", worker_config=_workers(), batch_size=None, task_encoder=Encoder(),
        dataset_config="captions.yaml",
    )  # fmt: skip
    for _ in count():
        yield from get_loader(dataset)


def webdataset_in_order(folder: Path) -> Iterator[Any]:
    import webdataset

    for _ in count():
        yield from webdataset.WebDataset(_tars(folder), shardshuffle=False)


def webdataset_shuffled(folder: Path) -> Iterator[Any]:
    import webdataset

    for _ in count():
        yield from webdataset.WebDataset(_tars(folder), shardshuffle=100, seed=1).shuffle(1000)


def webdataset_decoded(folder: Path) -> Iterator[Any]:
    import webdataset

    for _ in count():
        yield from webdataset.WebDataset(_tars(folder), shardshuffle=False).decode("torchrgb").to_tuple("jpg", "txt")


def pread_in_order(folder: Path) -> Iterator[Any]:
    """Read the bytes of each sample with headers and padding, in calls and memory of the same size as Headrace's."""
    keep_freed_memory()
    spans = []
    for tar in _tars(folder):
        descriptor = os.open(tar, os.O_RDONLY)
        offsets = np.fromfile(f"{tar}.idx", "<i8")
        spans += [
            (descriptor, size, at) for at, size in zip(offsets[:-1].tolist(), np.diff(offsets).tolist(), strict=True)
        ]
    while True:
        for first in range(0, len(spans), BATCH):
            yield from [os.pread(descriptor, size, at) for descriptor, size, at in spans[first : first + BATCH]]


def codec(folder: Path) -> Iterator[Any]:
    """Decode images in memory one after another into arrays; a reader adds the cost of reading and mapping."""
    import simplejpeg

    images = [sample.parts["jpg"] for sample in EnergonStore(folder).read(np.arange(200), ["jpg"])]
    while True:
        for image in images:
            yield simplejpeg.decode_jpeg(image, "RGB")


ENGINES = {
    "pread": pread_in_order,
    "Energon, in order": energon_in_order,
    "Energon, shuffled": energon_shuffled,
    "Energon, by name": energon_by_name,
    "webdataset, in order": webdataset_in_order,
    "webdataset, shuffled": webdataset_shuffled,
    "codec alone": codec,
    "Energon, decoded": energon_decoded,
    "webdataset, decoded": webdataset_decoded,
}


def _tars(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tar")))


def _workers() -> Any:
    from megatron.energon import WorkerConfig

    return WorkerConfig(rank=0, world_size=1, num_workers=0)


def _raw_encoder() -> Any:
    """Samples as they are: nothing is decoded, and the cooker returns its input."""
    from megatron.energon import Cooker, DefaultTaskEncoder, TextSample, basic_sample_keys, stateless

    @stateless
    def cook(sample: Any) -> Any:
        return TextSample(**basic_sample_keys(sample), text=sample["txt"])

    class Encoder(DefaultTaskEncoder):
        decoder = None
        cookers = [Cooker(cook)]  # noqa: RUF012 - as Energon's users write it

    return Encoder()
