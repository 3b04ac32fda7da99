"""Samples of every kind of dataset, prepared and loaded by either side, and the orders in which they come."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from columned import get_savable_loader
from counts import cases
from energon_made import write_shards
from headrace import MediaDataset, StateError
from headrace.compat.energon import WorkerConfig, get_train_dataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.metadataset import load_dataset
from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon
from headrace.samples.media import Cooker, OCRSample, SampleDecoder, TextSample, basic_sample_keys
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import JoinColumn, cache_folder
from interop import energon_peer
from interop.energon_live import metadataset, our_loader, steps, take, texts, their_loader
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


Given = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    energon_peer.energon()
    folder = tmp_path_factory.mktemp("orders")
    texts(folder / "a", [25, 25, 25, 25, 7, 7, 7], val=3)
    texts(folder / "b", [7, 3, 12])
    texts(folder / "c", [40, 1, 2, 30, 5])
    return folder


def mixed(folder: Path, name: str) -> Path:
    """One dataset, or a metadataset of all."""
    part = {"subset": {"range": ["10%", "90%"]}}
    inner = {"blend": [{"weight": 3, "path": "./b"}, {"weight": 1, "path": "./c", **part}]}
    repeats = [{"path": "./a", "repetitions": 1}, {"path": "./b", "repetitions": 2.5}, {"path": "./c", **part}]
    if name == "a":
        return folder / "a"
    metadataset(folder / "inner.yaml", train=inner)
    return metadataset(
        folder / f"{name}.yaml",
        train={
            "weights": {"blend": [{"weight": 0.7, "path": "./a"}, {"weight": 2, "path": "./inner.yaml"}]},
            "repeats": {"blend_epochized": repeats},
        }[name],
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["a", "weights", "repeats"])
@pytest.mark.parametrize(
    ("world_size", "num_workers", "given"),
    [
        (1, 0, {}),
        (1, 0, {"max_samples_per_sequence": 5, "parallel_shard_iters": 4, "shuffle_buffer_size": 10}),
        (2, 0, {"max_samples_per_sequence": 3, "shuffle_over_epochs_multiplier": 2}),
        (2, 1, {"max_samples_per_sequence": 7, "parallel_shard_iters": 1, "shuffle_buffer_size": 30, "seed": 5}),
        (1, 2, {"max_samples_per_sequence": 5, "parallel_shard_iters": 2}),
        (5, 0, {"shuffle_over_epochs_multiplier": -1, "parallel_shard_iters": 3, "shuffle_buffer_size": 4}),
    ],
)
def test_training_order(folder: Path, name: str, world_size: int, num_workers: int, given: Given) -> None:
    path = mixed(folder, name)
    for rank in range(world_size):
        place = (path, rank, world_size, num_workers)
        wanted = take(their_loader(*place, batch_size=4, **given), 40)
        assert len(wanted) == 40
        ours = our_loader(*place, batch_size=4, order="energon", **given)
        assert take(ours, 40) == wanted
        ours.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("drop", "num_workers"), [(False, 0), (True, 2)])
@pytest.mark.parametrize("name", ["a", "repeats"])
def test_training_without_repeat(folder: Path, name: str, num_workers: int, drop: bool) -> None:
    """Each pass of ours begins as the first; that is all there is to compare."""
    given = {"batch_size": 4, "repeat": False, "batch_drop_last": drop, "max_samples_per_sequence": 6}
    place = (mixed(folder, name), 1, 2, num_workers)
    wanted = take(their_loader(*place, **given))
    assert wanted
    assert take(our_loader(*place, order="energon", **given)) == wanted


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (2, 0), (3, 0), (1, 2), (2, 1)])
def test_validation_order(folder: Path, world_size: int, num_workers: int, limit: int | None) -> None:
    given: Given = {"val": True, "batch_size": 2, "limit": limit}
    found = []
    for rank in range(world_size):
        place = (folder / "a", rank, world_size, num_workers)
        wanted = take(their_loader(*place, **given))
        assert take(our_loader(*place, order="energon", **given)) == wanted
        assert limit is None or len(wanted) == limit
        found += wanted
    if limit is None:
        numbers = sorted(int(text[1:]) for batch in found for text in batch)
        assert numbers == list(range(100, 121))


LENGTH = 14


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["energon", "shards", "full"])
@pytest.mark.parametrize("name", ["a", "weights", "repeats"])
def test_resumed_at_every_step(folder: Path, name: str, order: str) -> None:
    """A run that is stopped after k batches and goes on in a new loader has the batches of one that never stopped."""
    path = mixed(folder, name)
    given: Given = {"batch_size": 9, "max_samples_per_sequence": 5, "parallel_shard_iters": 4, "shuffle_buffer_size": 6}
    systems: list[Callable[[], Any]] = [lambda: our_loader(path, order=order, **given)]
    if order == "energon":
        systems.append(lambda: their_loader(path, **given))
    whole = take(systems[-1](), LENGTH + 2)
    for make in systems:
        stopped = make()
        batches = steps(iter(stopped))
        for step in range(LENGTH):
            if step % cases(4, 1) == 0:
                resumed = make()
                if step:
                    resumed.restore_state_rank(stopped.save_state_rank())
                assert take(resumed, 3) == whole[step : step + 3]
            assert next(batches) == whole[step]


def test_resumed_with_workers_and_ranks(folder: Path) -> None:
    """Energon goes on with as many workers and ranks; so do we in its order, and in ours with any."""
    given: Given = {"batch_size": 4, "max_samples_per_sequence": 5}
    for make, order in ((their_loader, {}), (our_loader, {"order": "energon"})):
        stopped = make(folder / "a", 1, 2, 2, **given, **order)
        whole = take(make(folder / "a", 1, 2, 2, **given, **order), 9)
        assert take(stopped, 5) == whole[:5]
        resumed = make(folder / "a", 1, 2, 2, **given, **order)
        resumed.restore_state_rank(stopped.save_state_rank())
        assert take(resumed, 4) == whole[5:]
    other = our_loader(folder / "a", 0, 4, 1, order="energon", **given)
    with pytest.raises(StateError, match=r"workers.*4.*1"):
        other.restore_state_rank(resumed.save_state_rank())


def test_seeds(folder: Path) -> None:
    """The same seed is the same order, another is another; of both."""
    for make in (their_loader, our_loader):
        first, again, other = (take(make(folder / "a", batch_size=10, seed=seed), 9) for seed in (1, 1, 2))
        assert first == again != other


def test_virtual_epochs_go_on(folder: Path) -> None:
    """An iteration ends after so many batches, and the next one goes on."""
    given: Given = {"batch_size": 4, "max_samples_per_sequence": 5, "virtual_epoch_length": 6}
    theirs = their_loader(folder / "a", **given)
    ours = our_loader(folder / "a", order="energon", **given)
    wanted = [take(theirs) for _ in range(3)]
    assert [len(epoch) for epoch in wanted] == [6, 6, 6]
    assert [take(ours) for _ in range(3)] == wanted
    stream = our_loader(folder / "a", **given)
    assert [text for _ in range(3) for batch in take(stream) for text in batch] == [
        text for batch in islice(our_loader(folder / "a", batch_size=4, max_samples_per_sequence=5), 18)
        for text in batch["text"]
    ]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_ranks_draw_other_sources_of_a_blend(tmp_path: Path, num_workers: int) -> None:
    """As Energon's ``test_blending_randomness`` judges: of four ranks with batches of one, no two see the same sources.

    It looks at 25 batches of three of them, with each number of workers. Ours is computed, so that it needs no Energon.
    """
    for name in "ab":
        texts(tmp_path / name, [55])
    blend = [{"weight": 1, "path": f"./{name}"} for name in "ab"]
    path = metadataset(tmp_path / "mix.yaml", train={"blend": blend})
    seen = []
    for rank in range(3):
        config = WorkerConfig(rank=rank, world_size=4, num_workers=num_workers)
        data = get_train_dataset(path, worker_config=config, batch_size=1)
        loader = get_savable_loader(data, start_method="fork")
        seen.append("".join(batch["text"][0][0] for batch in islice(loader, 25)))
        loader.close()
    assert len(set(seen)) == 3, seen
    assert all(set(one) == {"a", "b"} for one in seen), "and none is of one source"
