"""Stores of samples as datasets, and joins of them: what is read, made, cooked and joined, and what is said of it."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from energon_made import write_tar
from energon_prepared import prepared
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Run, StoreError
from headrace.datasets.dataset import counted
from headrace.datasets.media import JoinedMediaDataset, collated
from headrace.encoders import CaptioningSample, Cooker, SampleDecoder
from headrace.errors import DecodeError, FieldAccessError, InputError, SampleError, SkipSample
from headrace.loader import Ranks, Reading
from headrace.plan import Bucketing, Shards, order_quality
from headrace.samples.media import CrudeSample, SourceInfo, TextSample, basic_sample_keys, cooker
from headrace.samples.media.sample import Sample, sample_type
from headrace.stores import EnergonStore, FilesystemStore, JoinedStore, TarStore
from headrace.stores.energon import JoinColumn, write_join
from media_texts import TEXT, shards

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
FIELDS = {"image": "jpg", "caption": "txt,json[text]"}
CRUDE = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"
TYPED = "{sample_type: {__module__: megatron.energon, __class__: TextSample}, field_map: {text: txt}}\n"


@cooker
def shout(crude: dict[str, Any]) -> TextSample:
    """Cooks the captions of the crude datasets."""
    text = crude["txt"] if "txt" in crude else crude["json"]["text"]
    if text == "cat 4":
        raise SkipSample("four is left out")
    return TextSample(**basic_sample_keys(crude), text=text.upper())


def test_a_dataset_of_energon_as_its_file_says(captions: Path) -> None:
    train = MediaDataset.open(captions)
    assert len(train) == 20
    assert train.shard_bounds.tolist() == [0, 5, 10, 15, 20]
    sample = train[7]
    assert type(sample) is CaptioningSample
    assert sample.caption == "cat 7"  # by the second option of the map
    assert tuple(sample.image.shape) == (3, 9, 13)
    assert str(sample.image.dtype) == "torch.float32"
    assert sample.__key__ == "cats/0007"
    assert sample.__restore_key__ == ("Webdataset", 7)
    assert sample.__subflavors__ == {"kind": "captions", "from": "file"}
    names = ("cats/0007.jpg", "cats/0007.json")
    assert sample.__sources__ == (SourceInfo(str(captions), 7, "01.tar", names),)
    val = MediaDataset.open(captions, "val", subflavors={"from": "here"}, decoder=CHW)
    assert [one.caption for one in val.samples(np.arange(3))] == ["cat 20", "cat 21", "cat 22"]
    assert val[-1].__subflavors__ == {"kind": "captions", "from": "here"}
    assert val[-1].__restore_key__ == ("Webdataset", 2)
    assert val[-1].image.dtype == np.uint8
    assert "CaptioningSample samples of" in repr(val)


def test_a_batch_is_its_samples_in_any_order(captions: Path) -> None:
    dataset = MediaDataset.open(captions, decoder=CHW)
    order = np.random.default_rng(0).integers(0, 20, 40)
    together = dataset.samples(order)
    for number, sample in zip(order.tolist(), together, strict=True):
        assert sample.caption == f"cat {number}"
        assert np.array_equal(sample.image, dataset[number].image)
    assert [one.caption for one in dataset.__getitems__([-1, 3])] == ["cat 19", "cat 3"]
    with pytest.raises(IndexError, match="20"):
        dataset[20]
    # A sample may be changed and changes no other.
    together[0].__subflavors__["new"] = 1
    assert "new" not in dataset[0].__subflavors__


def test_only_the_parts_needed_are_read(captions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EnergonStore(captions, split_part="train")
    asked: list[Any] = []
    read = EnergonStore.read

    def spied(self: EnergonStore, indices: Any, parts: Any = None) -> Any:
        asked.append((len(indices), parts))
        return read(self, indices, parts)

    monkeypatch.setattr(EnergonStore, "read", spied)
    MediaDataset.of(store).samples(np.arange(6))
    MediaDataset(store).samples(np.arange(2))
    MediaDataset(store, part_filter=["txt"]).samples(np.arange(2))
    assert asked == [(6, ("jpg", "txt", "json")), (2, None), (2, ("txt",))]


def test_collate(captions: Path) -> None:
    dataset = MediaDataset.open(captions, decoder=CHW)
    batch = dataset.read(np.array([0, 1, 2]))
    assert batch["image"].shape == (3, 3, 10, 12)
    assert np.array_equal(batch["image"][1, :, :9, :11], dataset[1].image)
    assert not batch["image"][0, :, 8:].any()
    assert batch["caption"] == ["cat 0", "cat 1", "cat 2"]
    assert batch["__key__"] == ["cats/0000", "cats/0001", "cats/0002"]
    assert [source.index for (source,) in batch["__sources__"]] == [0, 1, 2]
    torch_batch = MediaDataset.open(captions).read(np.array([0, 1, 2]))
    assert tuple(torch_batch["image"].shape) == (3, 3, 10, 12)
    assert dataset.collate([]).keys() == batch.keys()
    assert set(map(str, dataset.collate([]).values())) == {"[]"}


def test_collate_lists_what_cannot_be_stacked() -> None:
    big = np.array([1, 2], ">i4")
    found = collated([{"a": np.array(["x"]), "b": None, "c": big}, {"a": np.array(["yz"]), "b": big, "c": big}])
    assert [type(value) for value in found.values()] == [list, list, np.ndarray]
    assert found["c"].dtype == np.dtype("=i4")
    assert found["c"].tolist() == [[1, 2], [1, 2]]
    mixed = collated([{"a": np.array(["x"]), "b": torch.ones(2)}, {"a": np.ones(1), "b": None}])
    assert [type(value) for value in mixed.values()] == [list, list]
    with pytest.raises(ConfigError, match=r"'c'.*'k'.*'l'"):
        collated([{"__key__": "k", "c": big}, {"__key__": "l", "c": big[0:1, None]}])
    with pytest.raises(ConfigError, match=r"'k'.*'l'"):
        collated([{"__key__": "k"}, {"__key__": "l", "d": 1}])


def test_crude_and_cooked(make_captions: Make, tmp_path: Path) -> None:
    root = make_captions(tmp_path / "crude", 10, CRUDE)
    crude = MediaDataset.open(root)[1]
    assert type(crude) is CrudeSample
    assert crude["txt"] == "cat 1"
    assert crude["__shard__"] == "00.tar"
    assert crude["__subflavors__"] == {}
    assert set(crude) >= {"jpg", "raw.bin", "__key__", "__restore_key__", "__sources__"}
    cooked = MediaDataset.open(root, cookers=[Cooker(shout)], subflavors={"a": 1}, part_filter=None)
    three = cooked[3]
    assert (type(three), three.text, three.__key__) == (TextSample, "CAT 3", "cats/0003")
    assert (three.__restore_key__, three.__subflavors__) == (("Webdataset", 3), {"a": 1})
    assert "cooked by" in cooked.describe()
    with pytest.raises(ConfigError, match=r"SkipSample.*cook_crude_sample.*4"):
        cooked[4]
    with pytest.raises(ZeroDivisionError) as caught:
        MediaDataset.open(root, cookers=[Cooker(lambda crude: 1 // 0)])[2]
    assert "sample 2 of" in caught.value.__notes__[0]
    assert "key 'cats/0002'" in caught.value.__notes__[0]
    with pytest.raises(SampleError, match="0000'"):
        MediaDataset.open(root, cookers=[Cooker(lambda crude: None)])[0]
    with pytest.raises(ConfigError, match="matches"):
        MediaDataset.open(root, cookers=[Cooker(shout, {"kind": "other"})])
    # Of typed samples the cookers of other datasets are not asked.
    with pytest.raises(ConfigError, match="CaptioningSample"):
        MediaDataset(cooked.store, CaptioningSample, FIELDS, cookers=[Cooker(shout)])


def test_lines_tars_and_files_without_a_dataset_yaml(captions: Path, tmp_path: Path) -> None:
    lines = tmp_path / "chats.jsonl"
    lines.write_text('{"text": "one"}\n{"text": "two"}\n')
    crude = MediaDataset.open(lines)[1]
    assert crude["json"] == {"text": "two"}
    assert crude["__subflavors__"] is None
    assert crude["__sources__"][0].file_names == ("1.json",)
    assert crude["__shard__"] == crude["__sources__"][0].shard_name == "chats.jsonl"
    typed = MediaDataset.open(lines, sample_type=TextSample, field_map={"text": "json[text]"})
    assert [typed[0].text, typed[0].__key__] == ["one", "0"]
    tars = MediaDataset.open(str(captions / "{00..03}.tar"), sample_type=CaptioningSample, field_map=FIELDS)
    assert isinstance(tars.store, TarStore)
    assert tars[7].caption == "cat 7"
    part = MediaDataset.open(str(captions / "00.tar"), sample_type=TextSample, field_map={"text": "wav,cls[a]"})
    with pytest.raises(FieldAccessError, match=r"'wav'.*raw\.bin.*'cls'"):
        part[0]
    (tmp_path / "tokens.jsonl").write_text('{"tokens": [1, 2]}\n')
    write_tar(tmp_path / "empty.tar", [])
    train = {"tokens.jsonl": "tokens", "empty.tar": "samples"}
    for name, named in {"chats.jsonl": "split", **train}.items():
        with pytest.raises(ConfigError, match=named):
            MediaDataset.open(tmp_path / name, "train" if name in train else "val")
    with pytest.raises(StoreError, match="nothing"):
        MediaDataset.open(tmp_path / "gone")
    with pytest.raises(ConfigError, match="expected"):
        MediaDataset(headrace.stores.JsonlWriter)  # type: ignore[arg-type]


def test_options_of_pictures_in_the_file_and_the_recipe(make_captions: Make, tmp_path: Path) -> None:
    def opened(name: str, options: str) -> MediaDataset:
        return MediaDataset.open(make_captions(tmp_path / name, 2, IMAGES + RGB8.replace("}", options + "}")))

    deep = opened("a", ", image_options: {depth: 16}")
    assert deep[0].image.dtype == np.uint16
    assert deep.recipe["decoder"]["image_options"] == {"depth": 16}
    plain, spelled = opened("b", ""), opened("c", ", image_options: {orientation: keep, alpha: drop}")
    assert plain[0].image.shape == (8, 10, 3)
    assert np.array_equal(deep[0].image // 257, plain[0].image)
    assert "image_options" not in plain.recipe["decoder"]
    assert spelled.recipe["decoder"] == plain.recipe["decoder"]


LOADER = """import json
open("ran", "w").close()
def sample_loader(parts):
    return {"__key__": "k/" + parts["__key__"], "text": parts.get("txt", "none")}
def part_filter(part):
    return part == "txt"
"""


def test_code_of_the_dataset_runs_only_if_trusted(
    make_captions: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = (
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
        "sample_loader: sample_loader.py:sample_loader\npart_filter: sample_loader.py\n"
    )
    root = make_captions(tmp_path / "loaded", 4, config)
    (root / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    with pytest.raises(ConfigError, match="trust_code=True"):
        MediaDataset.open(root)
    assert not (tmp_path / "ran").exists()
    trusted = MediaDataset.open(root, trust_code=True)
    again = pickle.loads(pickle.dumps(trusted))
    for dataset in (trusted, again):
        assert [sample.text for sample in dataset.samples(np.arange(4))] == ["cat 0", "cat 1", "cat 2", "none"]
        assert dataset[0].__key__ == "k/cats/0000"
        assert dataset[0].__sources__[0].file_names == ("cats/0000.txt",)
    assert again.fingerprint == trusted.fingerprint
    assert trusted.recipe["sample_loader"] == "sample_loader.py:sample_loader"
    assert trusted.recipe["part_filter"] == "sample_loader.py"
    (root / ".nv-meta" / "sample_loader.py").unlink()
    with pytest.raises(ConfigError, match=r"sample_loader.py"):
        MediaDataset.open(root, trust_code=True)


NAMED = (
    "{__module__: megatron.energon, __class__: CrudeWebdataset, part_filter: {__module__: MODULE, __function__: NAME}}"
)
IMAGES = "sample_type: {__module__: megatron.energon, __class__: ImageSample}\nfield_map: {image: jpg}\n"
RGB8 = "decoder: {__module__: megatron.energon, __class__: SampleDecoder, image_decode: rgb8}\n"


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ("{__module__: my.own, __class__: Factory}", {}, r"my\.own\.Factory"),
        ("{sample_type: {__module__: os, __class__: path}, field_map: {a: b}}", {}, r"os\.path"),
        (NAMED.replace("MODULE", "os"), {}, r"part_filter.*os\.NAME"),
        (TYPED, {"sample_type": TextSample}, r"dataset.yaml.*sample_type"),
        (TYPED, {"field_map": {"image": "png"}}, r"dataset.yaml.*field_map"),
        (TYPED, {"part_filter": ["jpg"]}, r"dataset.yaml.*part_filter"),
        (IMAGES + RGB8, {"decoder": CHW}, "decoder"),
        (IMAGES + RGB8, {"decoder": None}, "decoder"),
        (IMAGES + RGB8.replace("rgb8", "x"), {}, "image_decode"),
        (IMAGES + RGB8.replace("}", ", image_options: {orientation: aply}}"), {}, r"dataset\.yaml.*'apply'"),
        (IMAGES + "subset: {range: [0, 1]}\n", {}, r"dataset\.yaml"),
    ],
)
def test_what_is_refused_of_a_file_or_beside_it(
    make_captions: Make, tmp_path: Path, config: str, options: Any, named: str
) -> None:
    root = make_captions(tmp_path / "a", 2, config + "\n")
    with pytest.raises(ConfigError, match=named):
        MediaDataset.open(root, **options)
    # Not so of a store: its dataset.yaml is not looked at.
    assert MediaDataset(EnergonStore(root), TextSample, {"text": "txt"})[0].text == "cat 0"


def test_a_trusted_reference(make_captions: Make, tmp_path: Path) -> None:
    config = NAMED.replace("MODULE", "keyword") + "\n"
    root = make_captions(tmp_path / "a", 2, config.replace("NAME", "iskeyword"))
    assert [part for part in MediaDataset.open(root, trust_code=True)[0] if part[:2] != "__"] == []
    (root / ".nv-meta" / "dataset.yaml").write_text(config)
    with pytest.raises(ConfigError, match=r"keyword.NAME"):
        MediaDataset.open(root, trust_code=True)


def broken(tmp_path: Path, **parts: bytes) -> Path:
    sound = {"jpg": b"?", "txt": b"sound"}
    members = [("a.txt", b"first"), *((f"b.{part}", data) for part, data in {**sound, **parts}.items())]
    write_tar(tmp_path / "broken.tar", members)
    return tmp_path / "broken.tar"


def test_a_broken_part_is_named_with_its_place(tmp_path: Path) -> None:
    path = broken(tmp_path)
    dataset = MediaDataset(TarStore(path), CaptioningSample, FIELDS)
    # Headers and contents take a block each: the content of b.jpg is the fourth.
    with pytest.raises(DecodeError, match=r"broken.tar.*'b'.*'jpg'") as caught:
        dataset.samples(np.array([1]))
    error = caught.value
    assert (error.shard, error.key, error.part, error.offset) == (str(path), "b", "jpg", 1536)
    assert error.__cause__ is not None
    assert path.read_bytes()[error.offset : error.offset + 1] == b"?"
    with pytest.raises(FieldAccessError, match=r"broken.tar.*'a'.*'jpg'"):
        dataset[0]
    only_text = MediaDataset(TarStore(path), TextSample, {"text": "txt"})
    assert [sample.text for sample in only_text.samples(np.arange(2))] == ["first", "sound"]


def test_a_broken_file_of_a_folder_is_named(tmp_path: Path) -> None:
    for name, data in {"a.aaa": b"first", "a.jpg": b"?", "a.txt": b"text"}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DecodeError) as caught:
        MediaDataset(FilesystemStore(tmp_path), CaptioningSample, FIELDS)[0]
    assert (caught.value.shard, caught.value.offset) == (str(tmp_path / "a.jpg"), 0)


def test_a_loader_that_fails_and_a_file_that_was_cut(tmp_path: Path) -> None:
    path = broken(tmp_path)

    def load(parts: dict[str, Any]) -> dict[str, Any]:
        return {"text": parts["nothing"]}

    with pytest.raises(SampleError, match=r"broken.tar.*'a'.*KeyError"):
        MediaDataset(TarStore(path), TextSample, sample_loader=load, part_filter=["txt"])[0]
    dataset = MediaDataset(TarStore(path), TextSample, {"text": "txt"})
    with path.open("r+b") as file:
        file.truncate(700)
    with pytest.raises((StoreError, InputError), match=r"broken.tar"):
        dataset[1]


def test_recipe_and_pickle(captions: Path, make_captions: Make, tmp_path: Path) -> None:
    dataset = MediaDataset.open(captions, decoder=CHW)
    json.dumps(dataset.recipe)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert np.array_equal(again[5].image, dataset[5].image)
    copied = make_captions(tmp_path / "copy")
    same = [
        MediaDataset.open(copied, decoder=CHW),
        MediaDataset.open(captions, decoder=SampleDecoder(image_decode="chwrgb8", max_pixels=10**9, jpeg="pillow")),
    ]
    others = [
        MediaDataset.open(captions, "val", decoder=CHW),
        MediaDataset.open(captions, decoder=SampleDecoder(image_decode="chwl8")),
        MediaDataset.open(captions, decoder=None),
        MediaDataset.open(captions, decoder=CHW, subflavors={"x": 1}),
        MediaDataset(dataset.store, decoder=CHW),
        MediaDataset(dataset.store, decoder=CHW, cookers=[Cooker(shout)]),
        MediaDataset(dataset.store, decoder=CHW, part_filter=["txt"]),
        MediaDataset(dataset.store, CaptioningSample, {"image": "jpg", "caption": "txt"}, decoder=CHW),
    ]
    assert {one.fingerprint for one in same} == {dataset.fingerprint}
    # Functions count by their names, which are the same in every process.
    cooked = MediaDataset(dataset.store, cookers=[Cooker(shout)], part_filter=functools.partial(str.startswith, "txt"))
    names = [cooked.recipe[name] for name in ("sample_type", "cooker", "part_filter", "sample_loader")]
    assert names == ["headrace:CrudeSample", f"{__name__}.shout", "functools.partial", None]
    assert len({dataset.fingerprint, *(one.fingerprint for one in others)}) == 1 + len(others)


def test_what_it_has_no_answer_to(captions: Path) -> None:
    dataset = MediaDataset.open(captions)
    lengths = lambda: dataset.sample_lengths(np.arange(2))  # noqa: E731
    for ask in (lambda: dataset.num_tokens_per_sample, lengths, lambda: counted(dataset)):
        with pytest.raises(ConfigError, match="MediaDataset"):
            ask()
    assert not hasattr(dataset, "read_into")
    dataset.close()
    dataset.close()


STORIES = "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'json[text]'}\n"


@sample_type
class Told(Sample):
    """A caption and a longer text, which may be missing."""

    image: Any
    caption: str
    text: str | None = None


@sample_type
class Named(Sample):
    """The same by the names of the columns."""

    both: tuple[str, str | None]

    @classmethod
    def from_joined(cls, *samples: Any, **named: Any) -> Named:
        pictures, stories = named["pictures"], named["stories"]
        return cls.derive_from(pictures, both=(pictures.caption, None if stories is None else stories.text))


def told(pictures: CaptioningSample, stories: TextSample | None) -> dict[str, Any]:
    return {"__key__": pictures.__key__, "text": "none" if stories is None else stories.text.upper()}


@pytest.fixture
def pair(make_captions: Make, tmp_path: Path) -> Path:
    """20 pictures; stories of the even ones, in reverse, one of them broken."""
    make_captions(tmp_path / "pictures", 20)
    stories = [
        (f"cats/{number:04d}.json", b"?" if number == 6 else f'{{"text": "story {number}"}}'.encode())
        for number in range(18, -1, -2)
    ]
    root = prepared(tmp_path / "stories", {"s.tar": stories})
    (root / ".nv-meta" / "dataset.yaml").write_text(STORIES)
    return tmp_path


def store(root: Path, nonmatch: Any = "none", names: tuple[str | None, str | None] = (None, None)) -> JoinedStore:
    columns = [
        JoinColumn(store=EnergonStore(root / "pictures", split_part="train"), name=names[0]),
        JoinColumn(store=EnergonStore(root / "stories", split_part="train"), nonmatch=nonmatch, name=names[1]),
    ]
    write_join(root / "cache", columns)
    return JoinedStore(columns, root / "cache")


def test_a_type_joins(pair: Path) -> None:
    dataset = JoinedMediaDataset(store(pair), Told, decoder=CHW)
    assert len(dataset) == 15
    four, five = dataset.samples(np.array([4, 5]))
    assert type(four) is Told
    assert (four.caption, four.text, four.image.shape) == ("cat 4", "story 4", (3, 9, 10))
    assert (five.caption, five.text) == ("cat 5", None)
    assert four.__key__ == "cats/0004"
    assert four.__restore_key__ == ("JoinedWebdatasetFactory", "Webdataset", 4)
    assert four.__subflavors__ == {"kind": "captions", "from": "file"}
    assert [(one.shard_name, one.index, one.file_names) for one in four.__sources__] == [
        ("00.tar", 4, ("cats/0004.jpg", "cats/0004.txt")),
        ("s.tar", 4, ("cats/0004.json",)),
    ]
    assert dataset.collate([]).keys() == dataset.collate([four]).keys()
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert again[4].text == "story 4"
    assert "joined by" in dataset.describe()


def test_names_and_functions(pair: Path) -> None:
    named = JoinedMediaDataset(store(pair, names=("pictures", "stories")), Named, decoder=CHW)
    assert [named[number].both for number in (0, 1)] == [("cat 0", "story 0"), ("cat 1", None)]
    function = JoinedMediaDataset(store(pair), told, decoder=CHW)
    assert function.read(np.array([2, 3]))["text"] == ["STORY 2", "none"]
    assert function[3]["__restore_key__"] == ("JoinedWebdatasetFactory", "Webdataset", 3)
    only = JoinedMediaDataset(store(pair, "skip"), Told, decoder=CHW)
    assert [sample.text for sample in only.__getitems__([0, 1, -1])] == ["story 0", "story 2", "story 14"]
    assert len({named.fingerprint, function.fingerprint, only.fingerprint}) == 3


def test_columns_of_ones_own(pair: Path) -> None:
    joined = store(pair)
    pictures = MediaDataset.of(joined.columns[0].store, decoder=None)
    crude = MediaDataset(joined.columns[1].store, part_filter=["json"])

    def joiner(picture: CaptioningSample, story: dict[str, Any] | None) -> CaptioningSample:
        return CaptioningSample.derive_from(picture, image=picture.image[:2], caption=str(story and story["json"]))

    dataset = JoinedMediaDataset(joined, joiner, columns=[pictures, crude])
    assert (dataset[2].image, dataset[2].caption) == (b"\xff\xd8", "{'text': 'story 2'}")
    with pytest.raises(ConfigError, match="fields"):
        JoinedMediaDataset(joined, Told, columns=[pictures, crude])
    other = MediaDataset.open(pair / "stories")
    for columns in ([pictures], [pictures, other]):
        with pytest.raises(ConfigError, match=r"dataset.*2"):
            JoinedMediaDataset(joined, Told, columns=columns)


def test_faults(pair: Path) -> None:
    dataset = JoinedMediaDataset(store(pair), Told, decoder=CHW)
    with pytest.raises(DecodeError, match=r"stories/s.tar.*'cats/0006'.*'json'") as caught:
        dataset[6]
    assert caught.value.offset is not None
    with (pair / "stories" / "s.tar").open("rb") as file:
        file.seek(caught.value.offset)
        assert file.read(2) == b"?\0"

    def failing(*samples: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as failed:
        JoinedMediaDataset(store(pair), failing, decoder=CHW)[1]
    assert "row 1 of" in failed.value.__notes__[0]
    with pytest.raises(ConfigError, match="names"):
        JoinedMediaDataset(store(pair, names=("pictures", None)), Told)
    with pytest.raises(ConfigError, match="JoinedStore"):
        JoinedMediaDataset(EnergonStore(pair / "stories"), Told)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'Told'"):
        JoinedMediaDataset(store(pair), "Told")  # type: ignore[arg-type]
    with pytest.raises((ConfigError, StoreError)):
        MediaDataset(store(pair), Told, {"image": "0.jpg", "caption": "0.txt"}, aux={"x": store(pair)})


def test_the_figures_of_an_order_for_shards_are_those_of_the_largest_source(tmp_path: Path) -> None:
    counts = tuple(range(20, 36))
    many = MediaDataset.open(shards(tmp_path / "many", counts), **TEXT)
    few = MediaDataset.open(shards(tmp_path / "few", (5, 5)), **TEXT)
    blend = Blend({"few": few, "many": many}, weights={"few": 1, "many": 1})
    order = Order(kind="shards", seed=3, max_samples_per_sequence=8, parallel_shard_iters=16)
    for data, path in ((many, ""), (blend, "many")):
        said = Run(data, global_batch_size=32, order=order).describe()
        found = order_quality(order, len(many), Shards.of_counts(list(counts)), batch_samples=32, path=path)
        assert (f"mixing of {path}, the largest" if path else "mixing:") in said
        for figure in (f"{found.same_shard_pairs:.2f} times", "(16) has", f"{found.displacement:.0%} of"):
            assert figure in said
        assert f"{found.mean_run_samples:.1f} neighbours" in said
    assert "mixing" not in Run(blend, global_batch_size=8, order=Order()).describe()


READINGS = [Reading(num_threads=0), Reading(num_threads=1), Reading(num_threads=3), Reading(num_workers=2)]


@cooker
def caption(crude: dict[str, Any]) -> CaptioningSample:
    """Cooks the crude one of the two sources."""
    text = crude["txt"] if "txt" in crude else crude["json"]["text"]
    return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=f"cooked {text}")


@pytest.fixture(scope="module")
def sources(captions: Path, make_captions: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaDataset]:
    root = make_captions(tmp_path_factory.mktemp("cooked") / "cats", 13, CRUDE)
    return {
        "typed": MediaDataset.open(captions, decoder=CHW),
        "cooked": MediaDataset.open(root, None, decoder=CHW, cookers=[Cooker(caption)]),
    }


def expected(run: Run, positions: list[int]) -> dict[str, Any]:
    """A micro-batch by the slow way: samples one by one, collated."""
    found = [run.lookup(np.array([position])) for position in positions]
    samples = [run.datasets[int(one.sources[0])][int(one.indices[0])] for one in found]
    return run.datasets[0].collate(samples)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[name], value) if isinstance(value, np.ndarray | torch.Tensor) else found[name] == value
        for name, value in wanted.items()
    )


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
def test_every_micro_batch_is_its_samples_collated(sources: dict[str, MediaDataset], reading: Reading) -> None:
    blend = Blend(sources, weights={"typed": 2, "cooked": 1}, end="samples", num_samples=50)
    run = Run(blend, global_batch_size=6, order=Order(seed=3))
    plain = Run(MediaDataset.open(sources["typed"].store.path), global_batch_size=4)
    batch = next(iter(Loader(plain, micro_batch_size=4, reading=reading)))
    positions = batch.pop("sample_positions").tolist()
    assert batch["image"].dtype == torch.float32, "tensors of decoders are handed on"
    assert same(batch, expected(plain, positions))
    seen: list[int] = []
    texts: set[str] = set()
    for rank in range(2):
        for batch in Loader(run, micro_batch_size=2, ranks=Ranks(rank, 2), reading=reading):
            positions = batch.pop("sample_positions").tolist()
            seen += positions
            texts.update(batch["caption"])
            assert isinstance(batch["image"], torch.Tensor | list)
            assert isinstance(batch["image"], torch.Tensor) == bool(positions)
            assert same(batch, expected(run, positions))
    assert sorted(seen) == list(range(50))
    assert texts == {f"cat {number}" for number in range(20)} | {f"cooked cat {number}" for number in range(13)}


def test_what_does_not_go_with_media(sources: dict[str, MediaDataset], captions: Path) -> None:
    blend = Blend(sources, weights={"typed": 1, "cooked": 1}, unit="tokens")
    with pytest.raises(ConfigError, match="unit='samples'"):
        Run(blend, global_batch_size=2)
    bucketed = Run(sources["typed"], global_batch_size=4, bucketing=Bucketing(window_steps=2), epochs=1)
    with pytest.raises(ConfigError, match="bucketing"):
        bucketed.positions(0), bucketed.step(0)
    crude = MediaDataset(sources["cooked"].store, decoder=CHW, part_filter=["txt"])
    mixed = Run(Blend({"a": sources["typed"], "b": crude}, weights={"a": 1, "b": 1}), global_batch_size=4)
    with pytest.raises(ConfigError, match="samples"):
        next(iter(Loader(mixed, micro_batch_size=4)))
