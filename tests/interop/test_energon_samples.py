"""Samples of every kind of dataset: prepared by either side and loaded by either side, their fields are the same."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_made import write_shards
from headrace import MediaDataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.metadataset import load_dataset
from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon
from headrace.samples.media import Cooker, OCRSample, SampleDecoder, TextSample, basic_sample_keys
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import JoinColumn, cache_folder
from interop import energon_peer
from media_made import encoded, pixels

pytestmark = pytest.mark.interop

TRAIN = SplitChoice(parts=(("train", ".*"),))
MAPS = {
    "CaptioningSample": {"image": "jpg", "caption": "txt,json[caption]"},
    "ImageClassificationSample": {"image": "jpg", "label": "cls", "label_name": "txt,json[caption]"},
    "ImageSample": {"image": "jpg"},
    "TextSample": {"text": "json[caption],txt"},
    "VQASample": {"image": "jpg", "context": "json[questions][0]", "answers": "json[answers]"},
    "MultiChoiceVQASample": {
        "image": "jpg",
        "context": "json[questions][1]",
        "choices": "json[answers]",
        "correct_choice_idx": "cls",
    },
    "OCRSample": {
        "image": "jpg",
        "text": "json[questions][0]",
        "block_text": "json[answers]",
        "words_text": "json[answers]",
        "words_boxes": "boxes.npy",
    },
    "InterleavedSample": {"sequence": "json[answers]"},
    "SimilarityInterleavedSample": {"images": "json[empty]", "texts": "json[answers]", "audio": "cls"},
}


@pytest.fixture(scope="module", autouse=True)
def _peer() -> None:
    energon_peer.energon()


def members(numbers: Sequence[int], *, folder: str = "d/") -> list[tuple[str, bytes]]:
    """An image, text, a class, boxes; every third sample has its caption in JSON alone."""
    found = []
    for number in numbers:
        key = f"{folder}{number:03d}"
        record: dict[str, Any] = {"questions": [f"what is {number}?", "why?"], "answers": ["a", "ä", str(number)]}
        record |= {"empty": []} | ({"caption": f"in json {number}"} if number % 3 == 0 else {})
        picture = Image.fromarray(pixels(20 + number, 30, seed=number))
        found += [(f"{key}.jpg", encoded(picture, "JPEG")), (f"{key}.json", json.dumps(record).encode())]
        found += [(f"{key}.cls", str(number % 3).encode()), (f"{key}.boxes.npy", boxes(number))]
        if number % 3:
            found.append((f"{key}.txt", f"a caption {number}".encode()))
    return found


def boxes(number: int) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.full((2, 4), number, np.float32))
    return stream.getvalue()


SHARDS = {f"{'' if shard else 'deep/er/'}{shard}.tar": members(range(shard * 4, shard * 4 + 4)) for shard in range(3)}


def ours(path: Path, part: str = "train", **options: Any) -> list[dict[str, Any]]:
    """All samples as Headrace gives them, the last ones first, brought into order."""
    dataset = MediaDataset.open(path, part, **options)
    order = np.arange(len(dataset))[::-1]
    return [energon_peer.fields(sample) for sample in dataset.samples(order)][::-1]


def theirs(path: Path, part: str = "train", **options: Any) -> list[dict[str, Any]]:
    peer = energon_peer.energon()
    given = {"decoder": peer.SampleDecoder(), **options}
    return [energon_peer.fields(sample) for sample in energon_peer.load(path, part, **given)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", MAPS)
def test_typed(tmp_path: Path, kind: str) -> None:
    mine, other = (write_shards(tmp_path / name, SHARDS) for name in ("ours", "theirs"))
    dataset = DatasetChoice(sample_type=kind, field_map=MAPS[kind])
    prepare_energon(mine, options=EnergonOptions(split=TRAIN, dataset=dataset))
    energon_peer.prepare(other, "--sample-type", kind, "--field-map", json.dumps(MAPS[kind]))
    wanted = theirs(other)
    assert len(wanted) == 12
    assert set(MAPS[kind]) <= set(wanted[0])
    for root in (mine, other):
        assert ours(root) == wanted
        assert theirs(root) == wanted


def plain_dataset(root: Path, *, legacy: bool = False) -> Path:
    """Captions prepared by ours, three shards in one part."""
    write_shards(root, SHARDS)
    dataset = DatasetChoice(sample_type="CaptioningSample", field_map=MAPS["CaptioningSample"])
    prepare_energon(root, options=EnergonOptions(split=TRAIN, dataset=dataset))
    if legacy:  # as before 7.0
        info = json.loads((root / ".nv-meta/.info.json").read_text())
        lines = [f"  {name}: {count}\n" for name, count in info["shard_counts"].items()]
        (root / ".nv-meta/.info.yaml").write_text("shard_counts:\n" + "".join(lines))
        (root / ".nv-meta/.info.json").unlink()
    return root


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["split.json", "other.yaml"])
@pytest.mark.parametrize("legacy", [False, True])
def test_excluded_samples_and_other_names(tmp_path: Path, name: str, legacy: bool) -> None:
    root = plain_dataset(tmp_path / "set", legacy=legacy)
    content = {
        "split_parts": {"train": ["{1..2}.tar", "deep/er/0.tar"], "val": ["2.tar", "2.tar"]},
        "exclude": ["1.tar/d/005", "deep/er/0.tar/d/00{1,3}", "no.tar"],
    }
    (root / ".nv-meta/split.yaml").unlink()
    (root / ".nv-meta" / name).write_text(json.dumps(content))
    options = {} if name == "split.json" else {"split_config": name}
    keys = [sample["__key__"] for sample in ours(root, **options)]
    assert keys == [f"d/{number:03d}" for number in (4, 6, 7, 8, 9, 10, 11, 0, 2)]
    for part in ("train", "val"):
        assert ours(root, part, **options) == theirs(root, part, **options)


def cooked(base: Callable[..., Any], make: Any) -> Any:
    """The same cooker for either side: of what it cooks it uses a part that the decoder has made an object."""

    def cook(sample: Any) -> Any:
        return make(**base(sample), text=f"{sample['json']['questions'][0]} {sample['cls']} {sorted(sample)}")

    return cook


def test_crude_with_a_cooker(tmp_path: Path) -> None:
    peer = energon_peer.energon()
    mine, other = (write_shards(tmp_path / name, SHARDS) for name in ("ours", "theirs"))
    prepare_energon(mine, options=EnergonOptions(split=TRAIN))
    energon_peer.prepare(other, "--sample-type", "CrudeWebdataset")
    files = [(root / ".nv-meta/dataset.yaml").read_text() for root in (mine, other)]
    assert files[0].split() == files[1].split()
    cook = peer.stateless(cooked(peer.basic_sample_keys, peer.TextSample))
    wanted = theirs(other, cookers=[cook])
    own = [Cooker(cooked(basic_sample_keys, TextSample))]
    assert len(wanted) == 12
    for root in (mine, other):
        assert theirs(root, cookers=[cook]) == wanted
        assert ours(root, cookers=own) == wanted


@pytest.mark.parametrize("kind", ["shards", "files"])
def test_auxiliary_files(tmp_path: Path, kind: str) -> None:
    peer = energon_peer.energon()
    names = [(f"{number:03d}.note.txt", f"note {number}".encode()) for number in range(12)]
    aux = tmp_path / "notes"
    if kind == "shards":
        prepare_energon(write_shards(aux, {"n.tar": names}), options=EnergonOptions(split=TRAIN))
    else:
        aux.mkdir()
        for name, data in names:
            (aux / name).write_bytes(data)
    root = write_shards(tmp_path / "set", SHARDS)
    prepare_energon(root, options=EnergonOptions(split=TRAIN))
    place = "./notes" if kind == "shards" else "filesystem://notes"
    (tmp_path / "meta.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: ./set\n"
        f"    aux:\n      notes: {place}\n"
    )

    def cook(base: Callable[..., Any], make: Any) -> Any:
        def cook_one(sample: Any, notes: Any) -> Any:
            note = notes.get(f"{sample['__key__'].removeprefix('d/')}.note.txt", sample)
            return make(**base(sample), text=f"{sample['cls']}: {note}")

        return cook_one

    wanted = theirs(tmp_path / "meta.yaml", cookers=[peer.stateless(cook(peer.basic_sample_keys, peer.TextSample))])
    cooker = Cooker(cook(basic_sample_keys, TextSample))
    given: Any = aux if kind == "shards" else f"filesystem://{aux}"
    assert ours(root, cookers=[cooker], aux={"notes": given}) == wanted
    assert {sample["text"][3:] for sample in wanted} == {f"note {number}" for number in range(12)}


JOIN = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: ./first
      - {path: ./second, nonmatch: skip}
    joiner:
      __module__: megatron.energon
      __class__: OCRSample
"""


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_a_join(tmp_path: Path, by: str) -> None:
    texts = [(f"d/{number:03d}.txt", f"text {number}".encode()) for number in (7, 3, 11, 0, 5, 99)]
    second = {"a.tar": texts[:2], "b.tar": texts[2:]}
    for name, shards, kind, field in (
        ("first", SHARDS, "ImageSample", "image"),
        ("second", second, "TextSample", "text"),
    ):
        root = write_shards(tmp_path / name, shards)
        dataset = DatasetChoice(sample_type=kind, field_map={field: "jpg" if field == "image" else "txt"})
        prepare_energon(root, options=EnergonOptions(split=TRAIN, dataset=dataset))
    meta = tmp_path / "meta.yaml"
    meta.write_text(JOIN)
    if by == "ours":
        assert [join.rows for join in load_dataset(meta).prepare().values()] == [5]
    else:
        done = energon_peer.run("prepare", meta)
        assert done.exit_code == 0, (done.output, done.exception)
    columns = [
        JoinColumn(store=EnergonStore(tmp_path / "first", split_part="train")),
        JoinColumn(store=EnergonStore(tmp_path / "second", split_part="train"), nonmatch="skip"),
    ]
    store = JoinedStore(columns, cache_folder(meta))
    dataset = JoinedMediaDataset(store, OCRSample, decoder=SampleDecoder())
    found = [energon_peer.fields(sample) for sample in dataset.samples(np.arange(len(dataset)))]
    assert found == theirs(meta)
    assert sorted(sample["text"] for sample in found) == sorted(f"text {number}" for number in (7, 3, 11, 0, 5))
