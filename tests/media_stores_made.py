"""Stores of media as the commands meet them: typed, mixed, hostile; every layout, small."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

import energon_made
import media_made
from energon_prepared import prepared

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m \u202e &amp; \"'"
BOXES = {
    "words_boxes": [[2, 3, 20, 10], [30, 20, 15, 5, 0.9]],
    "words_text": ["Hello", EVIL],
    "lines_boxes": [[1, 1, 50, 12]],
    "text": "Hello",
}
OCR_YAML = """\
sample_type:
  __module__: megatron.energon
  __class__: OCRSample
field_map:
  image: jpg
  text: json[caption]
  words_boxes: json[words_boxes]
  words_text: json[words_text]
subflavors:
  lang: en
"""

Members = list[tuple[str, bytes]]


def jpeg(width: int = 53, height: int = 37, seed: int = 0) -> bytes:
    return media_made.encoded(Image.fromarray(media_made.pixels(height, width, seed)), "JPEG")


def mixed_members() -> tuple[Members, Members]:
    """Two shards: pictures, boxes and text; video, sound, numbers, and parts that cannot be decoded."""
    first = [
        ("cats/0001.jpg", jpeg()),
        ("cats/0001.txt", f"a cat {EVIL}".encode()),
        ("cats/0002.jpg", jpeg(1300, 60)),
        ("cats/0002.txt", "eine Kätzchen 猫\nzwei".encode()),
        ("ocr/1.jpg", jpeg()),
        ("ocr/1.json", json.dumps(BOXES).encode()),
    ]
    second = [
        ("v/1.mp4", media_made.video("mp4", "libx264", sound="aac")),
        ("v/2.wav", media_made.sound("wav", "pcm_s16le")),
        ("b/1.png", media_made.images()["alpha.png"]),
        ("b/1.cls", b"17"),
        ("b/1.bin", bytes(range(256))),
        ("b/2.jpg", jpeg()[:900]),
        ("b/2.json", b"{bad"),
        ("b/2.pkl", b"\x80"),
        ("b/2.cap", b"plain caption"),
    ]
    return first, second


def mixed_contents() -> dict[str, bytes]:
    """Name of the member -> its bytes."""
    return {name: data for members in mixed_members() for name, data in members}


def mixed(root: Path) -> Path:
    """A crude dataset of Energon's: train, val without its bad sample, and an empty test."""
    first, second = mixed_members()
    shards = {"s/a000.tar": first, "s/a001.tar": second}
    splits: dict[str, list[str]] = {"train": ["s/a000.tar"], "val": ["s/a001.tar"], "test": []}
    return prepared(root, shards, splits, exclude=["s/a001.tar/b/2"])


def ocr(root: Path, *, per_shard: int = 4) -> Path:
    """A typed dataset of three shards, the last of which is val."""
    shards = {}
    for shard in range(3):
        members: Members = []
        for number in range(per_shard):
            facts = {"caption": f"number {shard} {number}", "words_boxes": [[5, 5, 40, 20]], "words_text": ["w"]}
            name = f"k{shard}_{number}"
            members += [(f"{name}.jpg", jpeg(seed=shard * 10 + number)), (f"{name}.json", json.dumps(facts).encode())]
        shards[f"c{shard:02d}.tar"] = members
    prepared(root, shards, {"train": ["c00.tar", "c01.tar"], "val": ["c02.tar"]})
    (root / ".nv-meta" / "dataset.yaml").write_text(OCR_YAML)
    return root


def plain(root: Path) -> Path:
    """One tar, without any index."""
    first, second = mixed_members()
    energon_made.write_tar(root / "x-000.tar", first + second)
    return root


def lines(root: Path, count: int = 20) -> Path:
    path = root / "t.jsonl"
    path.write_text("".join(json.dumps({"i": number, "text": f"text {number}"}) + "\n" for number in range(count)))
    return path
