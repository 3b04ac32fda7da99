"""Joins as datasets: columns made as their own files say, put together by a type or a function."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_prepared import prepared
from headrace import ConfigError, MediaDataset, StoreError
from headrace.datasets.media import JoinedMediaDataset
from headrace.errors import DecodeError
from headrace.samples.media import CaptioningSample, SampleDecoder, TextSample
from headrace.samples.media.sample import Sample, sample_type
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import JoinColumn, write_join

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
TEXT = "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'json[text]'}\n"


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
    (root / ".nv-meta" / "dataset.yaml").write_text(TEXT)
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
    with pytest.raises(ConfigError, match=r"have no fields that .*Told could join"):
        JoinedMediaDataset(joined, Told, columns=[pictures, crude])
    other = MediaDataset.open(pair / "stories")
    for columns in ([pictures], [pictures, other]):
        with pytest.raises(ConfigError, match="a dataset for each of the 2 stores"):
            JoinedMediaDataset(joined, Told, columns=columns)


def test_faults(pair: Path) -> None:
    dataset = JoinedMediaDataset(store(pair), Told, decoder=CHW)
    with pytest.raises(DecodeError, match=r"stories/s.tar: key 'cats/0006': part 'json' at byte ([\d,]+):") as caught:
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
    with pytest.raises(ConfigError, match="have names; name all"):
        JoinedMediaDataset(store(pair, names=("pictures", None)), Told)
    with pytest.raises(ConfigError, match="expected a JoinedStore"):
        JoinedMediaDataset(EnergonStore(pair / "stories"), Told)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="joiner is 'Told'"):
        JoinedMediaDataset(store(pair), "Told")  # type: ignore[arg-type]
    with pytest.raises((ConfigError, StoreError)):
        MediaDataset(store(pair), Told, {"image": "0.jpg", "caption": "0.txt"}, aux={"x": store(pair)})
