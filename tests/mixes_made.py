"""Texts and images side by side, and metadatasets drawn over them: what the tests of mixes feed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from energon_prepared import prepared
from headrace import MediaDataset
from headrace.datasets import Concat, Dataset, Limit, Mix, Repeat
from headrace.datasets.metadataset import JoinedSource, NamedSource, SourceOptions, load_dataset
from headrace.datasets.mix import length_of
from headrace.samples.media import CaptioningSample, Cooker, SampleDecoder, basic_sample_keys
from tars_made import write_tar

COUNTS = {"photos": 23, "drawings": 9, "books": 40, "lines": 17}
"""Samples of each source: JPEGs and their captions, PNGs beside JSON, texts in tars, texts in lines."""

KINDS = {"drawings": "drawing", "books": "text", "lines": "line"}
TYPED = """sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: jpg, caption: txt}
"""
DECODER = SampleDecoder(image_decode="rgb8")


def caption(name: str, number: int) -> str:
    return f"{name} {number}" + " and so on" * (number % 4)


def picture(name: str, number: int) -> bytes:
    """A small JPEG or PNG without black, so that what is padded with zeros can be told from it."""
    height, width = 5 + number % 4, 4 + number % 7
    pixels = np.random.default_rng([len(name), number]).integers(60, 256, (height, width, 3))
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG" if name == "photos" else "PNG")
    return stream.getvalue()


def expected(name: str, number: int) -> tuple[str, np.ndarray[Any, Any]]:
    """Caption and (height, width, 3) pixels of a sample by other means; texts have no pixels."""
    if name in ("books", "lines"):
        return caption(name, number), np.zeros((0, 0, 3), np.uint8)
    return caption(name, number), np.asarray(Image.open(io.BytesIO(picture(name, number))).convert("RGB"))


def drawing(crude: dict[str, Any]) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=crude["png"], caption=crude["json"]["text"])


def text(crude: dict[str, Any]) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=np.zeros((0, 0, 3), np.uint8), caption=crude["txt"])


def line(crude: dict[str, Any]) -> CaptioningSample:
    nothing = np.zeros((0, 0, 3), np.uint8)
    return CaptioningSample(**basic_sample_keys(crude), image=nothing, caption=crude["json"]["text"])


COOKERS = [Cooker(drawing, {"kind": "drawing"}), Cooker(text, {"kind": "text"}), Cooker(line, {"kind": "line"})]


def write_sources(root: Path) -> Path:
    """The four sources: a typed Energon dataset, two of plain tars, and a ``.jsonl``."""
    shards: dict[str, list[tuple[str, bytes]]] = {}
    for shard, (begin, end) in enumerate([(0, 8), (8, 9), (9, COUNTS["photos"])]):
        shards[f"{shard}.tar"] = []
        for number in range(begin, end):
            words = caption("photos", number).encode()
            shards[f"{shard}.tar"] += [(f"{number:03d}.jpg", picture("photos", number)), (f"{number:03d}.txt", words)]
    (root / "photos").mkdir(parents=True)
    prepared(root / "photos", shards)
    (root / "photos/.nv-meta/dataset.yaml").write_text(TYPED)
    for shard, (begin, end) in enumerate([(0, 4), (4, COUNTS["drawings"])]):
        members = []
        for number in range(begin, end):
            words = json.dumps({"text": caption("drawings", number)}).encode()
            members += [(f"{number:03d}.png", picture("drawings", number)), (f"{number:03d}.json", words)]
        write_tar(root / f"drawings/{shard}.tar", members)
    for shard, (begin, end) in enumerate([(0, 13), (13, 14), (14, COUNTS["books"])]):
        write_tar(
            root / f"books/{shard}.tar",
            [(f"{number:03d}.txt", caption("books", number).encode()) for number in range(begin, end)],
        )
    records = (json.dumps({"text": caption("lines", number)}) + "\n" for number in range(COUNTS["lines"]))
    (root / "lines.jsonl").write_text("".join(records))
    return root


class Opened:
    """Opens each dataset once for all drawn trees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._plain = SourceOptions(cookers=COOKERS, decoder=DECODER)
        self._datasets: dict[str, Dataset] = {}
        self.options = SourceOptions(cookers=COOKERS, decoder=DECODER, open=self._dataset)

    def _dataset(self, source: NamedSource | JoinedSource) -> Dataset:
        assert isinstance(source, NamedSource)
        if source.path not in self._datasets:
            self._datasets[source.path] = self._plain.dataset(source)
        return self._datasets[source.path]

    def data(self, tree: dict[str, Any], global_batch_size: Any) -> Dataset | Mix:
        """The training data of a tree."""
        written = load_dataset({"splits": {"train": tree}}, path=self.root / "mix.yaml")
        return written.train(options=self.options, global_batch_size=global_batch_size)


def name_of(dataset: Dataset) -> str:
    """Which of the sources a dataset is."""
    assert isinstance(dataset, MediaDataset)
    return Path(dataset.store.path).name.partition(".")[0]


def _leaf(rng: Random, *, limits: bool) -> dict[str, Any]:
    name = rng.choice(list(COUNTS))
    entry: dict[str, Any] = {"path": "lines.jsonl" if name == "lines" else name}
    if name in KINDS:
        entry["subflavors"] = {"kind": KINDS[name]}
    ranges = [["0%", "50%"], ["30%", "100%"], [2, 7], [1, "end"]]
    if chosen := rng.choice([None, None, None, *ranges]):
        entry["subset"] = {"range": chosen}
    if limits and rng.randint(0, 7) == 0:
        entry["limit"] = rng.randint(1, 4)
    return entry


def _children(rng: Random, depth: int, *, ends: bool) -> list[dict[str, Any]]:
    each = (_tree(rng, depth - 1, ends=ends or rng.random() < 0.5) for _ in range(rng.randint(1, 3)))
    return list(each)


def _constant(rng: Random, depth: int) -> dict[str, Any]:
    """What a schedule may weigh: sources, and blends of them that have no passes."""
    if not depth or rng.random() < 0.5:
        return _leaf(rng, limits=False)
    children = [_constant(rng, depth - 1) | {"weight": rng.randint(1, 5)} for _ in range(2)]
    return {"blend": children}


def _schedule(rng: Random, depth: int, block: int, *, steps: bool) -> dict[str, Any]:
    children = [_constant(rng, depth - 1) for _ in range(rng.randint(2, 3))]
    pieces: list[dict[str, Any]] = []
    until = 0
    for at in range(rng.randint(0, 3)):
        until += rng.randint(1, 6) if steps else block * rng.randint(1, 12)
        weights = [rng.randint(0, 4) for _ in children]
        weights[rng.randrange(len(children))] += 1
        ramp = at > 0 and rng.random() < 0.5
        pieces.append({"until": f"{until} {'steps' if steps else 'samples'}", "weights": weights, "ramp": ramp})
    pieces.append({"weights": [rng.randint(1, 5) for _ in children]})
    return {"blend": children, "schedule": pieces, "block_samples": block}


def _tree(rng: Random, depth: int, *, ends: bool, root: bool = False) -> dict[str, Any]:
    """An entry of a metadataset; with ``ends`` one that has passes."""
    kinds = ["blend_epochized", "concat", "limit"] if ends else ["blend", "blocks", "schedule"]
    kind = rng.choice(kinds if root else [*kinds, "leaf"] if depth else ["leaf"])
    if kind == "leaf":
        return _leaf(rng, limits=True)
    if kind == "limit":
        return _tree(rng, depth, ends=False, root=True) | {"limit": rng.choice([8, 16, 40, 7, 23])}
    if kind == "schedule":
        return _schedule(rng, depth, rng.choice([1, 1, 4]), steps=False)
    children = _children(rng, depth, ends=ends)
    if kind == "blend_epochized":
        return {kind: [child | {"repetitions": rng.choice([1, 1, 2, 0.5, 1.75])} for child in children]}
    if kind == "concat":
        return {kind: children}
    weighed = {"blend": [child | {"weight": rng.randint(1, 9)} for child in children]}
    return weighed | ({"block_samples": rng.choice([2, 4, 8])} if kind == "blocks" else {})


@dataclass(frozen=True)
class Drawn:
    """A metadataset, what is put around its data, and the global batches."""

    tree: dict[str, Any]
    around: tuple[str, float]
    batches: list[tuple[int, int]]

    def data(self, opened: Opened) -> Dataset | Mix:
        """As a run takes it."""
        data = opened.data(self.tree, self.batches)
        name, number = self.around
        length = length_of(data)
        if name == "limit" or (name and length is None):
            data = Limit(data, max(1, round(number * (length or 20))))
        if name == "repeat":
            data = Repeat(data, 0.5 + number)
        if name == "concat":
            data = Concat({"mix": data, "more": opened.data({"path": "photos", "limit": 5}, self.batches)})
        return data


def mixes(rng: Random) -> Drawn:
    """Any metadataset over the sources, sometimes with a mix of the library around it."""
    # Steps of eights let mixes in blocks be cut in several ways.
    sizes = rng.choice([[8, 16, 24], [4, 5, 11, 16]])
    batches = [(0, rng.choice(sizes))]
    for _ in range(rng.randint(0, 2)):
        batches.append((batches[-1][0] + rng.randint(1, 4), rng.choice(sizes)))
    if rng.randint(0, 4) == 0:
        # Only the mix of the whole run counts in steps.
        return Drawn(_schedule(rng, 2, 1, steps=True), ("", 0), batches)
    tree = _tree(rng, 2, ends=rng.random() < 0.5, root=True)
    around = rng.choice(["", "", "", "repeat", "limit", "concat"])
    return Drawn(tree, (around, rng.choice([0.3, 1.0, 0.75])), batches)


def trimmed(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An image without the zeros behind it with which a batch pads it."""
    rows, columns = np.flatnonzero(image.any(axis=(1, 2))), np.flatnonzero(image.any(axis=(0, 2)))
    if not rows.size:
        return image[:0, :0]
    return image[: rows[-1] + 1, : columns[-1] + 1]


def nodes_of(data: Dataset | Mix) -> Iterator[Dataset | Mix]:
    """Every node of a mix, itself first."""
    yield data
    if isinstance(data, Mix):
        for child in data.children.values():
            yield from nodes_of(child)
