"""Writes what the commands of the README need, if you have nothing at hand: `data`, `images` and `tokenizer.json`.

    python examples/trial.py trial && cd trial

The texts are files of Python's standard library. Needs the extra `image`, with which the pictures are drawn.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
from pathlib import Path

import corpus
import numpy as np
from PIL import Image

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 200)}


def make(folder: Path) -> None:
    """Write 40 texts in two files, a tokeniser of 1,000 ids, and 30 pictures with their captions."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text(encoding="utf-8") for path in sorted(library.glob("[a-h]*.py"))[:40]]
    (folder / "data").mkdir(parents=True)
    for part in range(2):
        lines = (json.dumps({"text": text}) + "\n" for text in texts[part::2])
        (folder / "data" / f"part-{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    corpus.train_tokenizer(texts[:16]).save(str(folder / "tokenizer.json"))
    (folder / "images").mkdir()
    draw = np.random.default_rng(0)
    for number in range(30):
        name = list(COLOURS)[number % 3]
        pixels = np.array(COLOURS[name]) + draw.integers(-20, 20, (48 + number, 64, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{number:03}.jpg")
        (folder / "images" / f"{number:03}.txt").write_text(f"a {name} picture", encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="headrace-example-"))
    make(folder)
    print(f"{folder}: data, images and tokenizer.json")
