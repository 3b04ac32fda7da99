"""Mixes texts and captioned pictures: a metadataset, and a cooker for each kind that makes samples of one type."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from headrace.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset
from headrace.samples.media import CaptioningSample, Cooker, SampleDecoder, basic_sample_keys
from headrace.stores.tar.writer import TarWriter

NO_PICTURE = np.zeros((0, 0, 3), np.uint8)
MIX = """
splits:
  train:
    blend:
      - {weight: 3, path: texts.jsonl, subflavors: {kind: text}}
      - {weight: 1, path: "pictures-{000..001}.tar", subflavors: {kind: picture}}
"""


def cook_text(crude: dict[str, Any]) -> CaptioningSample:
    """Make a sample whose picture has no pixels; a batch pads it."""
    return CaptioningSample(**basic_sample_keys(crude), image=NO_PICTURE, caption=crude["json"]["text"])


def cook_picture(crude: dict[str, Any]) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=crude["png"], caption=f"<image> {crude['txt']}")


if __name__ == "__main__":  # worker processes may import this file
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    (folder / "mix.yaml").write_text(MIX)
    lines = [json.dumps({"text": f"text {number}"}) for number in range(90)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    for shard in range(2):
        with TarWriter(folder / f"pictures-{shard:03d}.tar") as tar:
            for number in range(shard * 15, shard * 15 + 15):
                stream = io.BytesIO()
                Image.fromarray(np.full((8, 8 + number, 3), number, np.uint8)).save(stream, "PNG")
                tar.add(f"{number:04d}", {"png": stream.getvalue(), "txt": f"picture {number}".encode()})
    dataset = get_train_dataset(
        folder / "mix.yaml",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        batch_size=8,
        decoder=SampleDecoder(image_decode="rgb8"),
        cookers=[Cooker(cook_text, {"kind": "text"}), Cooker(cook_picture, {"kind": "picture"})],
    )
    for step, batch in zip(range(3), get_savable_loader(dataset), strict=False):
        pictures = sum(caption.startswith("<image>") for caption in batch.caption)
        print(f"step {step}: {pictures} pictures of 8, {tuple(batch.image.shape)}, {batch.caption[:3]}")
