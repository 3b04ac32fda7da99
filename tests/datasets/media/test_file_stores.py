"""Files by name, for cookers: of every kind of dataset, of the sample's own, later, and in an object store."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import headrace
from energon_made import write_files, write_tar
from energon_prepared import prepare, prepared
from headrace import ConfigError, MediaDataset, StoreError
from headrace.cli import main
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.media import DecodeFileStore, FileStore, JsonlFileStore, Lazy, NoCachePool, PrimaryFileStore
from headrace.datasets.media.file_stores import SystemFileStore, WebdatasetFileStore, file_store
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.errors import DecodeError
from headrace.io import ObjectReader
from headrace.loader import Reading
from headrace.samples.media import Cooker, CrudeSample, SampleDecoder, TextSample, basic_sample_keys, cooker
from headrace.stores import EnergonStore, TarStore
from headrace.stores.energon import MediaRow, update_media
from memory_stores import MemoryBucket

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
        with pytest.raises(KeyError, match=name.partition(".")[0]):
            files[name]
    assert pickle.loads(pickle.dumps(files))["cats/0013.txt"] == (data, info)


def test_a_split_part_finds_the_members_of_all(captions: Path) -> None:
    assert file_store(EnergonStore(captions, split_part="val"))["cats/0000.txt"][0] == b"cat 0"


def test_files_of_a_folder(folder: Path, tmp_path: Path) -> None:
    for files in (file_store(f"filesystem://{folder}"), SystemFileStore(folder)):
        data, info = files["deep/one.txt"]
        assert data == b"one"
        assert (info.dataset_path, info.index, info.shard_name) == (str(folder), "deep/one.txt", str(folder))
        with pytest.raises(KeyError, match="file"):
            files["deep/two.txt"]
        for name in ("../files/two.json", str(folder / "two.json")):
            with pytest.raises(StoreError):
                files[name]
    assert repr(files) == f"<SystemFileStore {str(folder)!r}>"
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("?")
    with pytest.raises(StoreError, match="folder"):
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
    with pytest.raises(KeyError, match="metadata"):
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
    with pytest.raises(DecodeError, match=r"a.tar.*'deep/x.1.jpg'.*'jpg'"):
        files["deep/x.1.jpg"]
    with pytest.raises(DecodeError, match=r"'json.gz'"):
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
    with pytest.raises(KeyError, match=r"'cats/0002.jpg'"):
        files.get_media_metadata("cats/0002.jpg")


def test_other_stores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": [1, 2]}\n')
    with pytest.raises(ConfigError, match="dataset"):
        file_store(tmp_path / "a.jsonl")
    with pytest.raises(StoreError, match="nothing"):
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
        indices = [source.index for source in sample.__sources__]
        assert indices == [2, "cats/0002.txt", "cats/0001.jpg", 2, "deep/one.txt"]
        assert made.fingerprint == dataset.fingerprint
    (tmp_path / "notes.jsonl").write_text("".join(f'{{"note": {number * 9}}}\n' for number in range(4)))
    others = MediaDataset.open(root, cookers=[Cooker(illustrated)], aux=aux, decoder=CHW)
    assert others.fingerprint != dataset.fingerprint
    raw = MediaDataset.open(root, cookers=[Cooker(illustrated)], aux=aux, decoder=None)
    assert isinstance(raw.aux["notes"], JsonlFileStore)
    assert raw.aux["notes"]["1.json"][0] == b'{"note": 9}'
    with pytest.raises(ConfigError, match="cookers"):
        MediaDataset.open(root, aux={"scans": f"filesystem://{folder}"})
    for name in ("primary", "cache"):
        with pytest.raises(ConfigError, match=rf"{name!r}"):
            MediaDataset.open(root, cookers=[Cooker(illustrated)], aux={name: f"filesystem://{folder}"})


def test_a_fault_in_a_file_that_a_cooker_asks_for(tmp_path: Path) -> None:
    """The place is that of the file, not of the sample."""
    write_tar(tmp_path / "a" / "0.tar", [("x.txt", b"x")])
    write_tar(tmp_path / "b" / "0.tar", [("y.jpg", b"?")])
    prepare(tmp_path / "a", ["0.tar"], {"train": ["0.tar"]})

    def cook(crude: dict[str, Any], *, other: FileStore) -> Any:
        return other.get("y.jpg", crude)

    dataset = MediaDataset.open(tmp_path / "a", cookers=[Cooker(cook)], aux={"other": tmp_path / "b"}, decoder=CHW)
    with pytest.raises(DecodeError, match=r"b/0.tar.*'y.jpg'.*'jpg'"):
        dataset[0]


FILES = {f"{n % 3}/{n:03d}.{part}": f"{part} {n} ".encode() * (n % 7) for n in range(60) for part in ("txt", "cls")}


@pytest.fixture
def media_files(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "files", FILES)
    update_media(root, [MediaRow("0/000.txt", "image", '{"width":2}')], [])
    return root


def run_of(dataset: MediaDataset) -> headrace.Run:
    return headrace.Run(dataset, global_batch_size=8, samples=150, order=headrace.Order(seed=3))


def read(dataset: MediaDataset, reading: Reading | None = None) -> list[Any]:
    loader = headrace.Loader(run_of(dataset), micro_batch_size=4, reading=reading)
    return [(batch["__key__"], batch["txt"], batch["cls"]) for batch in loader]


READINGS = {"usual": None, "ahead": Reading(ahead="100MB"), "threads": Reading(num_threads=4)}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("cached", [False, True])
def test_batches_are_those_of_the_local_folder(
    bucket: MemoryBucket, media_files: Path, tmp_path: Path, name: str, cached: bool
) -> None:
    local = MediaDataset.open(media_files, decoder=None)
    cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached else None
    ours = MediaDataset.open(bucket.upload(media_files, "files"), decoder=None, cache=cache)
    assert ours.fingerprint == local.fingerprint
    assert read(ours, READINGS[name]) == read(local)
    if cache is not None:
        # All fit, and a file is a block: of two and a half epochs, the first one fetches each file that is not empty.
        assert cache.stats.fetched_blocks == sum(1 for data in FILES.values() if data)
        assert (cache.stats.hits > 0, cache.stats.bypassed_blocks) == (True, 0)


def test_which_blocks_a_run_reads(bucket: MemoryBucket, media_files: Path) -> None:
    """Each file has blocks of its own; an empty one has none."""
    for place in (str(media_files), bucket.upload(media_files, "files")):
        dataset = MediaDataset.open(place, decoder=None)
        uses = BlockUses.of_run(run_of(dataset), block_bytes=32)
        positions = np.arange(150)
        reads = uses.reads(positions)
        samples = dataset.store.read(run_of(dataset).lookup(positions).indices)
        assert int(reads.used_bytes.sum()) == sum(len(part) for sample in samples for part in sample.parts.values())


@cooker
def noted(crude: dict[str, Any], *, scans: FileStore, more: FileStore) -> TextSample:
    name = f"0/{int(crude['__key__']) * 3:03d}.txt"
    text = b"|".join((crude["txt"], scans.get(name, crude), more.get(name, crude)))
    return TextSample(**basic_sample_keys(crude), text=text.decode())


def dataset_with_files(tmp_path: Path) -> Path:
    shards = {"a.tar": [(f"{n}.txt", f"{n}".encode()) for n in range(8)]}
    prepared(tmp_path / "set", shards)
    (tmp_path / "set/.nv-meta/dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return tmp_path / "set"


@pytest.mark.parametrize("cached", [False, True])
def test_files_beside_a_dataset(bucket: MemoryBucket, media_files: Path, tmp_path: Path, cached: bool) -> None:
    """What aux names at a URL is read by the reader of the dataset: with its storage, and its cache."""
    root = dataset_with_files(tmp_path)
    text = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: ../set\n    aux:\n"
    (tmp_path / "mixes").mkdir()
    (tmp_path / "mixes/mix.yaml").write_text(f"{text}      scans: filesystem://../files\n      more: ../files\n")
    for one in (root, media_files, tmp_path / "mixes"):
        bucket.upload(one, one.name)
    outer = tmp_path / "mixes/outer.yaml"
    outer.write_text(
        f"{text}      scans: filesystem://{bucket.url}/files\n      more: {bucket.url}/files\n".replace(
            "../set", f"{bucket.url}/set"
        )
    )

    for command in ("info", "check"):
        done = CliRunner().invoke(main, [command, f"{bucket.url}/mixes/mix.yaml"])
        assert done.exit_code == 0, done.output

    (tmp_path / "mixes/wrong.yaml").write_text(f"{text}      scans: filesystem://../file\n      more: ../files\n")
    bucket.upload(tmp_path / "mixes", "mixes")
    wrong = CliRunner().invoke(main, ["check", f"{bucket.url}/mixes/wrong.yaml"])
    assert f"aux.scans: nothing is at {bucket.url}/file\n" in wrong.output
    assert (wrong.exit_code, "aux.more" in wrong.output) == (1, False)

    def texts(path: Any, reader: Any = "mmap") -> list[str]:
        cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached and reader != "mmap" else None
        options = SourceOptions(decoder=None, cookers=[Cooker(noted)], reader=reader, cache=cache)
        data = load_dataset(path).train(options=options)
        assert isinstance(data, MediaDataset)
        assert data.aux["scans"].get_media_metadata("0/000.txt").width == 2
        found = [sample.text for sample in data]
        # The eight samples of the tar, and of the files of both names the six that are not empty.
        assert cache is None or cache.stats.fetched_blocks + cache.stats.hits >= 8 + 2 * 6
        return found

    wanted = texts(tmp_path / "mixes/mix.yaml")
    assert wanted[1] == "|".join(("1", "txt 3 " * 3, "txt 3 " * 3))
    for path in (f"{bucket.url}/mixes/mix.yaml", outer):
        reader = ObjectReader()
        assert texts(path, reader) == wanted
        assert reader.stats.heads > 0
