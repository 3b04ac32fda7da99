"""Writes pictures and captions to tar shards, feeds them shuffled and decoded, and resumes exactly after a stop."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import headrace
from headrace.samples.media import CaptioningSample, SampleDecoder
from headrace.stores.tar.writer import TarWriter

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 200)}


def picture(colour: str, height: int, width: int) -> bytes:
    """A JPEG of one colour, with some noise."""
    noise = np.random.default_rng(height * width).integers(-20, 20, (height, width, 3))
    stream = io.BytesIO()
    Image.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
for shard in range(4):
    with TarWriter(folder / f"{shard:03d}.tar") as tar:
        for number in range(shard * 10, shard * 10 + 10):
            name = list(COLOURS)[number % 3]
            size = (24 + number % 5, 32)
            tar.add(f"{number:04d}", {"jpg": picture(name, *size), "txt": f"a {name} picture".encode()})

dataset = headrace.MediaDataset.open(
    folder,
    sample_type=CaptioningSample,
    field_map={"image": "jpg", "caption": "txt"},
    decoder=SampleDecoder(image_decode="chwrgb8"),
)
print(dataset[0].__key__, dataset[0].image.shape, dataset[0].caption, sep=", ")

run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), epochs=1)
loader = headrace.Loader(run, micro_batch_size=4, reading=headrace.loader.Reading(num_threads=2))
seen: list[str] = []
for batch in loader:
    print(f"{loader.position:2}: image {tuple(batch['image'].shape)}, {batch['caption'][0]!r} of {batch['__key__'][0]}")
    seen += batch["__key__"]
    if len(seen) == 20:  # stopped in the middle of a step
        break

resumed = headrace.Loader(run, micro_batch_size=2)
resumed.load_state_dict(loader.state_dict())
for batch in resumed:
    seen += batch["__key__"]
print(f"{len(seen)} samples were seen, {len(set(seen))} different ones")
