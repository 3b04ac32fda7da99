"""Files by name, for cookers: of every kind of dataset, of the sample's own, and later."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_made import write_tar
from energon_prepared import prepare
from headrace import ConfigError, MediaDataset, StoreError
from headrace.datasets.media import (
    DecodeFileStore,
    FileStore,
    JsonlFileStore,
    Lazy,
    NoCachePool,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    file_store,
)
from headrace.errors import DecodeError
from headrace.samples.media import Cooker, CrudeSample, SampleDecoder, TextSample, basic_sample_keys, cooker
from headrace.stores import EnergonStore, TarStore
from headrace.stores.energon import MediaRow, update_media

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
CONFIG = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "one.txt").write_text("one")
    (files / "two.json").write_text('{"two": 2}')
    return files


@pytest.mark.parametrize("kind", ["energon", "without parts", "tars"])
def test_members_of_shards(captions: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = TarStore(str(captions / "{00..04}.tar")) if kind == "tars" else EnergonStore(captions)
    if kind == "without parts":
        store.index = None
    files = file_store(store)
    assert isinstance(files, WebdatasetFileStore)
    data, info = files["cats/0013.txt"]
    assert data == b"cat 13"
    assert (info.dataset_path, info.index, info.shard_name) == (store.path, "cats/0013.txt", "02.tar")
    assert info.file_names == ("cats/0013.txt",)
    assert files.get_path() == store.path
    assert files.fingerprint == store.fingerprint
    for name in ("cats/0099.txt", "cats/0013.png", "noext"):
        with pytest.raises(KeyError, match=r"no (sample|part)|is not the name of a part|has no part"):
            files[name]
    assert pickle.loads(pickle.dumps(files))["cats/0013.txt"] == (data, info)


def test_a_split_part_finds_the_members_of_all(captions: Path) -> None:
    assert file_store(EnergonStore(captions, split_part="val"))["cats/0000.txt"][0] == b"cat 0"


def test_files_of_a_folder(folder: Path, tmp_path: Path) -> None:
    for files in (file_store(f"filesystem://{folder}"), SystemFileStore(folder)):
        data, info = files["deep/one.txt"]
        assert data == b"one"
        assert (info.dataset_path, info.index, info.shard_name) == (str(folder), "deep/one.txt", str(folder))
        with pytest.raises(KeyError, match="no file"):
            files["deep/two.txt"]
        for name in ("../files/two.json", str(folder / "two.json")):
            with pytest.raises(StoreError):
                files[name]
    assert repr(files) == f"<SystemFileStore {str(folder)!r}>"
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("?")
    with pytest.raises(StoreError, match="leads out of its folder"):
        files["link.txt"]


def test_records_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 0}\n{"x": [1]}\n')
    files = file_store(tmp_path / "a.jsonl")
    assert isinstance(files, JsonlFileStore)
    data, info = files["1.json"]
    assert data == b'{"x": [1]}'
    assert (info.index, info.shard_name, info.file_names) == (1, "a.jsonl", ("1.json",))
    assert DecodeFileStore(files, decoder=CHW)["1.json"] == ({"x": [1]}, info)
    for name in ("1", "2.json", "x.json"):
        with pytest.raises(KeyError):
            files[name]
    with pytest.raises(KeyError, match="no media metadata"):
        files.get_media_metadata("1.json")
    assert files.fingerprint == pickle.loads(pickle.dumps(files)).fingerprint


def test_decoded_and_primary(captions: Path) -> None:
    decoded = DecodeFileStore(file_store(captions), decoder=CHW)
    image, _ = decoded["cats/0002.jpg"]
    assert image.shape == (3, 10, 12)
    primary = PrimaryFileStore(decoded, "cats/0002")
    assert np.array_equal(primary[".jpg"][0], image)
    assert primary["cats/0001.txt"][0] == "cat 1"
    crude = CrudeSample({"__sources__": None})
    assert primary.get(".txt", crude) == "cat 2"
    assert primary.get("cats/0001.txt", crude) == "cat 1"
    assert primary.get("cats/0001.txt") == "cat 1"
    assert [source.index for source in crude["__sources__"]] == ["cats/0002.txt", "cats/0001.txt"]


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("deep/x.1.jpg", b"?"), ("deep/x.json.gz", b"?"), ("deep/x.none", b"?")])
    files = DecodeFileStore(file_store(tmp_path / "a.tar"), decoder=CHW)
    with pytest.raises(DecodeError, match=r"a.tar: key 'deep/x.1.jpg': part 'jpg': cannot be decoded"):
        files["deep/x.1.jpg"]
    with pytest.raises(DecodeError, match=r"part 'json.gz'"):
        files["deep/x.json.gz"]
    assert files["deep/x.none"][0] == b"?"


def test_media_metadata(make_captions: Make, tmp_path: Path, folder: Path) -> None:
    root = make_captions(tmp_path / "a", 3)
    files = PrimaryFileStore(DecodeFileStore(file_store(root), decoder=CHW), "cats/0001")
    with pytest.raises(StoreError, match="media_metadata"):
        files.get_media_metadata(".jpg")
    with pytest.raises(StoreError, match="missing"):
        file_store(f"filesystem://{folder}").get_media_metadata("two.json")
    update_media(root, [MediaRow("cats/0001.jpg", "image", '{"width": 11, "height": 9}')], [("EXTENSION", None)])
    files = PrimaryFileStore(DecodeFileStore(file_store(root), decoder=CHW), "cats/0001")
    assert files.get_media_metadata(".jpg") == {"type": "image", "width": 11, "height": 9}
    with pytest.raises(KeyError, match=r"no media metadata of 'cats/0002.jpg'"):
        files.get_media_metadata("cats/0002.jpg")


def test_other_stores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": [1, 2]}\n')
    with pytest.raises(ConfigError, match="is not a dataset of files"):
        file_store(tmp_path / "a.jsonl")
    with pytest.raises(StoreError, match="nothing is there"):
        file_store(tmp_path / "gone")


class Counting(FileStore):
    """Says how often it was read."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner
        self.reads = 0

    def __getitem__(self, name: str) -> Any:
        self.reads += 1
        return self.inner[name]

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        return self.inner.get_media_metadata(name)


def test_lazy_files(captions: Path) -> None:
    pool, files = NoCachePool(), Counting(file_store(captions))
    one, two, same = (pool.get_lazy(files, f"cats/{number}.txt") for number in ("0001", "0002", "0001"))
    assert files.reads == 0
    assert {one: 1, two: 2}[same] == 1
    assert one != two
    crude = CrudeSample({"__sources__": None})
    assert [one.get(crude), one.get(crude), one.get()] == [b"cat 1"] * 3
    assert files.reads == 1
    assert [source.index for source in crude["__sources__"]] == ["cats/0001.txt"] * 2
    made = pool.to_cache([1, 2], "numbers")
    assert made.get(crude) == [1, 2]
    assert len(crude["__sources__"]) == 2
    assert made != pool.to_cache([1, 2], "numbers")
    assert repr(one) == "<Lazy 'cats/0001.txt'>"
    assert pool.get(files, "cats/0002.txt") == b"cat 2"
    pool.close()


@cooker(need_primary=True, need_cache=True)
def illustrated(
    crude: dict[str, Any], *, primary: PrimaryFileStore, cache: NoCachePool, notes: FileStore, scans: FileStore
) -> TextSample:
    """Text of the sample itself, of the one before, and of two other datasets."""
    number = int(crude["__key__"].rpartition("/")[2])
    before: Lazy = cache.get_lazy(primary, f"cats/{max(number - 1, 0):04d}.jpg")
    words = (
        primary.get(".txt", crude),
        str(before.get(crude).shape),
        str(notes.get(f"{number}.json", crude)["note"]),
        scans.get("deep/one.txt", crude),
    )
    return TextSample(**basic_sample_keys(crude), text="|".join(words))


def test_a_cooker_with_everything(make_captions: Make, tmp_path: Path, folder: Path) -> None:
    root = make_captions(tmp_path / "crude", 3, CONFIG)
    (tmp_path / "notes.jsonl").write_text("".join(f'{{"note": {number * 7}}}\n' for number in range(3)))
    aux = {"notes": tmp_path / "notes.jsonl", "scans": f"filesystem://{folder}"}
    dataset = MediaDataset.open(root, part_filter=None, cookers=[Cooker(illustrated)], aux=aux, decoder=CHW)
    for made in (dataset, pickle.loads(pickle.dumps(dataset))):
        sample = made[2]
        assert sample.text == "cat 2|(3, 9, 11)|14|one"
        assert [source.index for source in sample.__sources__] == [
            2,
            "cats/0002.txt",
            "cats/0001.jpg",
            2,
            "deep/one.txt",
        ]
        assert made.fingerprint == dataset.fingerprint
    (tmp_path / "notes.jsonl").write_text("".join(f'{{"note": {number * 9}}}\n' for number in range(4)))
    others = MediaDataset.open(root, cookers=[Cooker(illustrated)], aux=aux, decoder=CHW)
    assert others.fingerprint != dataset.fingerprint
    raw = MediaDataset.open(root, cookers=[Cooker(illustrated)], aux=aux, decoder=None)
    assert isinstance(raw.aux["notes"], JsonlFileStore)
    assert raw.aux["notes"]["1.json"][0] == b'{"note": 9}'


def test_aux_where_it_makes_no_sense(make_captions: Make, tmp_path: Path, folder: Path) -> None:
    root = make_captions(tmp_path / "crude", 3, CONFIG)
    with pytest.raises(ConfigError, match="aux is for cookers"):
        MediaDataset.open(root, aux={"scans": f"filesystem://{folder}"})
    for name in ("primary", "cache"):
        with pytest.raises(ConfigError, match=f"named {name!r}"):
            MediaDataset.open(root, cookers=[Cooker(illustrated)], aux={name: f"filesystem://{folder}"})


def test_a_fault_in_a_file_that_a_cooker_asks_for(tmp_path: Path) -> None:
    """The place is that of the file, not of the sample."""
    write_tar(tmp_path / "a" / "0.tar", [("x.txt", b"x")])
    write_tar(tmp_path / "b" / "0.tar", [("y.jpg", b"?")])
    prepare(tmp_path / "a", ["0.tar"], {"train": ["0.tar"]})

    def cook(crude: dict[str, Any], *, other: FileStore) -> Any:
        return other.get("y.jpg", crude)

    dataset = MediaDataset.open(tmp_path / "a", cookers=[Cooker(cook)], aux={"other": tmp_path / "b"}, decoder=CHW)
    with pytest.raises(DecodeError, match=r"b/0.tar: key 'y.jpg': part 'jpg': cannot be decoded"):
        dataset[0]
