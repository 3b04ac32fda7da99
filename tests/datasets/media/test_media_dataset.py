"""Stores of samples as datasets: what is read, made, cooked, and what is said of faults."""

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
from headrace import ConfigError, MediaDataset, StoreError
from headrace.datasets.dataset import counted
from headrace.datasets.media import collated
from headrace.errors import DecodeError, FieldAccessError, InputError, SampleError, SkipSample
from headrace.samples.media import (
    CaptioningSample,
    Cooker,
    CrudeSample,
    SampleDecoder,
    SourceInfo,
    TextSample,
    basic_sample_keys,
    cooker,
)
from headrace.stores import EnergonStore, FilesystemStore, TarStore

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
FIELDS = {"image": "jpg", "caption": "txt,json[text]"}


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
    assert sample.__sources__ == (
        SourceInfo(
            dataset_path=str(captions),
            index=7,
            shard_name="01.tar",
            file_names=("cats/0007.jpg", "cats/0007.json"),
        ),
    )
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
    with pytest.raises(ConfigError, match=r"field 'c' of samples 'k' to 'l': .*rank"):
        collated([{"__key__": "k", "c": big}, {"__key__": "l", "c": big[0:1, None]}])
    with pytest.raises(ConfigError, match=r"'k' and 'l' of one batch differ in d: .*same fields"):
        collated([{"__key__": "k"}, {"__key__": "l", "d": 1}])


def test_crude_and_cooked(make_captions: Make, tmp_path: Path) -> None:
    root = make_captions(tmp_path / "crude", 10, "{__module__: megatron.energon, __class__: CrudeWebdataset}\n")
    crude = MediaDataset.open(root)[1]
    assert type(crude) is CrudeSample
    assert crude["txt"] == "cat 1"
    assert crude["__shard__"] == "00.tar"
    assert crude["__subflavors__"] == {}
    assert set(crude) >= {"jpg", "raw.bin", "__key__", "__restore_key__", "__sources__"}
    cooked = MediaDataset.open(root, cookers=[Cooker(shout)], subflavors={"a": 1}, part_filter=None)
    assert cooked[3] == TextSample(
        text="CAT 3",
        __key__="cats/0003",
        __restore_key__=("Webdataset", 3),
        __subflavors__={"a": 1},
        __sources__=cooked[3].__sources__,
    )
    assert "cooked by" in cooked.describe()
    with pytest.raises(
        ConfigError, match=r"SkipSample in cook_crude_sample: sample 4 of .*'cats/0004': a fixed source"
    ):
        cooked[4]
    with pytest.raises(ZeroDivisionError) as caught:
        MediaDataset.open(root, cookers=[Cooker(lambda crude: 1 // 0)])[2]
    assert "sample 2 of" in caught.value.__notes__[0]
    assert "key 'cats/0002'" in caught.value.__notes__[0]
    with pytest.raises(ConfigError, match="no cooker matches"):
        MediaDataset.open(root, cookers=[Cooker(shout, {"kind": "other"})])
    # Of typed samples the cookers of other datasets are not asked.
    with pytest.raises(
        ConfigError, match=r"are made into CaptioningSample, and the cookers .*shout are for crude samples"
    ):
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
    with pytest.raises(ConfigError, match="has no split file"):
        MediaDataset.open(lines, "val")
    with pytest.raises(StoreError, match="nothing is there"):
        MediaDataset.open(tmp_path / "gone")


def test_it_needs_samples(tmp_path: Path) -> None:
    store = headrace.stores.JsonlWriter  # any thing that is no store
    with pytest.raises(ConfigError, match="expected an open store of samples"):
        MediaDataset(store)  # type: ignore[arg-type]
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"tokens": [1, 2]}\n')
    with pytest.raises(ConfigError, match="holds tokens"):
        MediaDataset.open(tokens)
    write_tar(tmp_path / "empty.tar", [])
    with pytest.raises(ConfigError, match="has no samples"):
        MediaDataset.open(tmp_path / "empty.tar")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sample_type": TextSample}, "sample_type"),
        ({"field_map": {"image": "png"}}, "field_map"),
        ({"part_filter": ["jpg"]}, "part_filter"),
    ],
)
def test_the_file_holds_and_arguments_beside_it_are_refused(captions: Path, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"dataset.yaml: sets {named} too"):
        MediaDataset.open(captions, **options)
    # Not so of a store: its dataset.yaml is not looked at.
    assert MediaDataset(EnergonStore(captions), TextSample, {"text": "txt"})[0].text == "cat 0"


def test_options_of_pictures_in_the_file_and_the_recipe(make_captions: Make, tmp_path: Path) -> None:
    def opened(name: str, options: str) -> MediaDataset:
        typed = "sample_type: {__module__: megatron.energon, __class__: ImageSample}\nfield_map: {image: jpg}\n"
        named = f"decoder: {{__module__: megatron.energon, __class__: SampleDecoder, image_decode: rgb8{options}}}\n"
        return MediaDataset.open(make_captions(tmp_path / name, 2, typed + named))

    deep = opened("a", ", image_options: {depth: 16}")
    assert deep[0].image.dtype == np.uint16
    assert deep.recipe["decoder"]["image_options"] == {"depth": 16}
    plain, spelled = opened("b", ""), opened("c", ", image_options: {orientation: keep, alpha: drop}")
    assert np.array_equal(deep[0].image // 257, plain[0].image)
    assert "image_options" not in plain.recipe["decoder"]
    assert spelled.recipe["decoder"] == plain.recipe["decoder"]
    with pytest.raises(ConfigError, match=r"dataset\.yaml: decoder: image_options.*'apply'"):
        opened("d", ", image_options: {orientation: aply}")


def test_a_decoder_of_the_file(make_captions: Make, tmp_path: Path) -> None:
    named = "decoder: {__module__: megatron.energon, __class__: SampleDecoder, image_decode: rgb8}\n"
    typed = "sample_type: {__module__: m.e, __class__: X}\n".replace("m.e", "megatron.energon").replace(
        "X", "ImageSample"
    )
    root = make_captions(tmp_path / "a", 2, typed + "field_map: {image: jpg}\n" + named)
    assert MediaDataset.open(root)[0].image.shape == (8, 10, 3)
    for decoder in (CHW, None):
        with pytest.raises(ConfigError, match="decoder too"):
            MediaDataset.open(root, decoder=decoder)
    (root / ".nv-meta" / "dataset.yaml").write_text(typed + "field_map: {image: jpg}\nsubset: {range: [0, 1]}\n")
    with pytest.raises(ConfigError, match=r"dataset.yaml: subset says which samples are read"):
        MediaDataset.open(root)
    (root / ".nv-meta" / "dataset.yaml").write_text(typed + "field_map: {image: jpg}\n" + named.replace("rgb8", "x"))
    with pytest.raises(ConfigError, match="image_decode"):
        MediaDataset.open(root)


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
    with pytest.raises(ConfigError, match=r"sample_loader.py: cannot be read"):
        MediaDataset.open(root, trust_code=True)


NAMED = (
    "{__module__: megatron.energon, __class__: CrudeWebdataset, part_filter: {__module__: MODULE, __function__: NAME}}"
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{__module__: my.own, __class__: Factory}", "the class my.own.Factory"),
        ("{sample_type: {__module__: os, __class__: path}, field_map: {a: b}}", "os.path is in a module"),
        (NAMED.replace("MODULE", "os"), "part_filter os.NAME lies in a module that is not imported"),
    ],
)
def test_nothing_that_a_file_names_is_imported(make_captions: Make, tmp_path: Path, config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MediaDataset.open(make_captions(tmp_path / "a", 2, config + "\n"))


def test_a_trusted_reference(make_captions: Make, tmp_path: Path) -> None:
    config = NAMED.replace("MODULE", "keyword") + "\n"
    root = make_captions(tmp_path / "a", 2, config.replace("NAME", "iskeyword"))
    assert [part for part in MediaDataset.open(root, trust_code=True)[0] if part[:2] != "__"] == []
    (root / ".nv-meta" / "dataset.yaml").write_text(config)
    with pytest.raises(ConfigError, match=r"keyword.NAME cannot be imported"):
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
    with pytest.raises(
        DecodeError, match=r"broken.tar: key 'b': part 'jpg' at byte 1,536: cannot be decoded"
    ) as caught:
        dataset.samples(np.array([1]))
    error = caught.value
    assert (error.shard, error.key, error.part, error.offset) == (str(path), "b", "jpg", 1536)
    assert error.__cause__ is not None
    assert path.read_bytes()[error.offset : error.offset + 1] == b"?"
    with pytest.raises(
        FieldAccessError, match=r"broken.tar: key 'a': part 'jpg': field 'image': the sample has no part"
    ):
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

    with pytest.raises(SampleError, match=r"broken.tar: key 'a': the sample loader fails: KeyError"):
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
    lines = (
        lambda: dataset.num_tokens_per_sample,
        lambda: dataset.sample_lengths(np.arange(2)),
        lambda: counted(dataset),
    )
    for ask in lines:
        with pytest.raises(ConfigError, match="MediaDataset"):
            ask()
    assert not hasattr(dataset, "read_into")
    dataset.close()
    dataset.close()


def test_a_missing_part_is_told_with_all_that_there_are(captions: Path) -> None:
    dataset = MediaDataset.open(str(captions / "00.tar"), sample_type=TextSample, field_map={"text": "wav,cls[a]"})
    with pytest.raises(
        FieldAccessError, match=r"no part 'wav'; it has jpg, txt, raw\.bin; the sample has no part 'cls'"
    ):
        dataset[0]


def test_a_cooker_that_returns_none_says_so(make_captions: Make, tmp_path: Path) -> None:
    root = make_captions(tmp_path / "crude", 3, "{__module__: megatron.energon, __class__: CrudeWebdataset}\n")
    with pytest.raises(SampleError, match=r"0000': the cooker .*<lambda> returned None, and not a sample"):
        MediaDataset.open(root, cookers=[Cooker(lambda crude: None)])[0]
