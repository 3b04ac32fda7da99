"""Datasets of captions, small and always the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from energon_prepared import prepared
from media_made import encoded, pixels

TYPED = """sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: jpg, caption: "txt,json[text]"}
subflavors: {kind: captions, from: file}
"""
CRUDE = "{__module__: megatron.energon, __class__: CrudeWebdataset, subflavors: {kind: crude}}\n"

Make = Callable[..., Path]


def picture(number: int) -> bytes:
    return encoded(Image.fromarray(pixels(8 + number % 3, 10 + number % 4, seed=number)), "JPEG")


def members(numbers: range) -> list[tuple[str, bytes]]:
    """Of each sample an image, a caption (of every fourth as JSON), and a part that no field needs."""
    found = []
    for number in numbers:
        key = f"cats/{number:04d}"
        text = f"cat {number}"
        caption = ("json", json.dumps({"text": text}).encode()) if number % 4 == 3 else ("txt", text.encode())
        found += [(f"{key}.jpg", picture(number)), (f"{key}.{caption[0]}", caption[1]), (f"{key}.raw.bin", b"?" * 700)]
    return found


@pytest.fixture(scope="session")
def make_captions() -> Make:
    """Writes a dataset of some samples in shards of five, the last one of the part ``val``."""

    def make(root: Path, count: int = 23, config: str | None = TYPED) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        shards = {f"{first // 5:02d}.tar": members(range(first, min(first + 5, count))) for first in range(0, count, 5)}
        names = list(shards)
        splits = {"train": names[:-1], "val": names[-1:]} if len(names) > 1 else {"train": names}
        prepared(root, shards, splits)
        if config is not None:
            (root / ".nv-meta" / "dataset.yaml").write_text(config)
        return root

    return make


@pytest.fixture(scope="session")
def captions(make_captions: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 samples to train on and 3 of ``val``."""
    return make_captions(tmp_path_factory.mktemp("captions") / "cats")
