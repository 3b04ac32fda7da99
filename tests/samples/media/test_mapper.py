"""Raw parts become samples: only what is needed is decoded, each part once, and faults say where they are."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import media_made
from headrace.errors import ConfigError, DecodeError, FieldAccessError, InputError, SampleError, SkipSample
from headrace.samples.media import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    SampleDecoder,
    SampleMapper,
    SourceInfo,
    TextSample,
    VQASample,
)

SOURCES = (SourceInfo(dataset_path="d", index=0, shard_name="a.tar", file_names=("k.txt",)),)
DECODER = SampleDecoder()


class Counting(SampleDecoder):
    """Counts what it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def decoder_of(self, part: str) -> Any:
        inner = super().decoder_of(part)

        def decode(data: bytes) -> Any:
            self.calls.append(part)
            return inner(data)

        return decode


def test_a_caption() -> None:
    mapper = SampleMapper(CaptioningSample, {"image": "jpg", "caption": "txt"}, decoder=DECODER)
    assert mapper.parts == ("jpg", "txt")
    assert mapper.wants("jpg")
    assert not mapper.wants("png")
    raw = {"txt": b"a cat", "jpg": media_made.images()["s0.JPEG"], "other": b""}
    found = mapper.make(raw, "k", restore_key=("r", 1), subflavors={"x": 1}, sources=SOURCES)
    assert torch.equal(found.image, DECODER.decode("jpg", raw["jpg"]))
    assert found.caption == "a cat"
    assert (found.__key__, found.__restore_key__, found.__subflavors__) == ("k", ("r", 1), {"x": 1})
    assert found.__sources__ == SOURCES


def test_bytes_without_a_decoder() -> None:
    mapper = SampleMapper(CaptioningSample, {"image": "jpg", "caption": "json,txt"})
    found = mapper.make({"jpg": b"a", "txt": b"b"}, "k")
    assert (found.__key__, found.__restore_key__, found.image, found.caption) == ("k", (), b"a", b"b")


def test_a_shared_part_is_decoded_once_and_an_unused_one_never() -> None:
    decoder = Counting()
    mapper = SampleMapper(VQASample, {"image": "bin", "context": "json[q],txt", "answers": "json[a]"}, decoder=decoder)
    assert mapper.parts == ("bin", "json", "txt")
    found = mapper.make({"bin": b"x", "json": b'{"q": "why", "a": ["b"]}', "txt": b"\xff"}, "k")
    assert (found.image, found.context, found.answers) == (b"x", "why", ["b"])
    assert sorted(decoder.calls) == ["bin", "json"]
    decoder.calls.clear()
    mapper = SampleMapper(CaptioningSample, {"image": "json", "caption": "json[t]"}, decoder=decoder)
    assert mapper.make({"json": b'{"t": "a"}'}, "k").image == {"t": "a"}
    assert decoder.calls == ["json"]


def test_facts_of_the_sample_as_fields() -> None:
    mapper = SampleMapper(TextSample, {"text": "__key__"}, decoder=DECODER)
    assert mapper.parts == ()
    assert mapper.make({}, "the/key").text == "the/key"
    mapper = SampleMapper(TextSample, {"text": "txt", "__key__": "json[id]"}, decoder=DECODER)
    found = mapper.make({"txt": b"a", "json": b'{"id": "own"}'}, "k")
    assert (found.__key__, found.text) == ("own", "a")
    mapper = SampleMapper(TextSample, {"text": "json", "__key__": "txt"}, decoder=DECODER)
    assert mapper.make({"txt": b"own", "json": b"1"}, "k").__key__ == "own"


def test_missing_and_broken_parts() -> None:
    mapper = SampleMapper(ImageClassificationSample, {"image": "bin", "label": "cls,json[l]"}, decoder=DECODER)
    with pytest.raises(FieldAccessError, match=r"'bin'.*'image'"):
        mapper.make({"cls": b"1"}, "k")
    with pytest.raises(FieldAccessError, match=r"'cls,json\[l\]'.*'cls'"):
        mapper.make({"bin": b"1"}, "k")
    # A part that is there and broken is a fault; the next option is for parts that are not there.
    with pytest.raises(DecodeError, match=r"'cls'.*ValueError") as raised:
        mapper.make({"bin": b"1", "cls": b"x", "json": b'{"l": 3}'}, "k")
    assert isinstance(raised.value.__cause__, ValueError)
    plain = SampleMapper(TextSample, {"text": "txt"}, decoder=DECODER)
    with pytest.raises(DecodeError, match="'txt'"):
        plain.make({"txt": b"\xff"}, "k")


def test_the_place_of_a_fault() -> None:
    mapper = SampleMapper(TextSample, {"text": "json[t]"}, decoder=DECODER)
    with pytest.raises(DecodeError) as raised:
        mapper.make({"json": b"{"}, "k")
    placed = raised.value.at(shard="shards/7.tar", key="cats/1", offset=1_048_576)
    assert str(placed).startswith("shards/7.tar: key 'cats/1': part 'json' at byte 1,048,576: ")
    assert placed.__cause__ is raised.value.__cause__
    assert (placed.part, placed.shard, placed.key, placed.offset) == ("json", "shards/7.tar", "cats/1", 1_048_576)
    assert str(placed.at(shard="other.tar", key="x", offset=0)) == str(placed)
    assert isinstance(placed, InputError)
    assert placed.exit_code == 3
    for error in (placed, FieldAccessError(None, "why", shard="s", key="k", offset=3), SampleError("p", "why")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    assert str(FieldAccessError(None, "why", shard="s", key="k", offset=3)) == "s: key 'k' at byte 3: why"


def test_crude_samples() -> None:
    mapper = SampleMapper(decoder=DECODER)
    assert mapper.parts is None
    assert mapper.wants("anything")
    found = mapper.make({"txt": b"a", "cls": b"1", "x": b"y"}, "k", sources=SOURCES, shard="a.tar", subflavors={"s": 1})
    assert type(found) is CrudeSample
    assert found == {
        "txt": "a",
        "cls": 1,
        "x": b"y",
        "__key__": "k",
        "__shard__": "a.tar",
        "__restore_key__": (),
        "__subflavors__": {"s": 1},
        "__sources__": SOURCES,
    }
    assert SampleMapper().make({"txt": b"a"}, "k")["txt"] == b"a"

    class Own(CrudeSample):
        pass

    assert type(SampleMapper(Own).make({}, "k")) is Own


def test_part_filters() -> None:
    by_name = SampleMapper(part_filter=["txt"], decoder=DECODER)
    assert by_name.parts == ("txt",)
    assert "cls" not in by_name.make({"txt": b"a", "cls": b"broken"}, "k")
    by_function = SampleMapper(part_filter=lambda part: part.startswith("t"), decoder=DECODER)
    assert by_function.parts is None
    assert by_function.wants("txt")
    assert not by_function.wants("cls")
    assert "cls" not in by_function.make({"txt": b"a", "cls": b"broken"}, "k")


def test_sample_loaders() -> None:
    def loader(sample: dict[str, Any]) -> dict[str, Any]:
        return {"text": sample["txt"] + sample["__key__"], "__restore_key__": "ignored"}

    mapper = SampleMapper(TextSample, sample_loader=loader, part_filter=["txt"], decoder=DECODER)
    found = mapper.make({"txt": b"a"}, "k", restore_key=(1,), sources=SOURCES)
    assert found == TextSample(__key__="k", __restore_key__=(1,), __sources__=SOURCES, text="ak")
    named = SampleMapper(TextSample, sample_loader=lambda _: {"text": "a", "__key__": "own"}).make({}, "k")
    assert named.__key__ == "own"
    crude = SampleMapper(sample_loader=lambda sample: {"a": sample["x"]}).make({"x": b"1"}, "k")
    assert (crude["a"], crude["__key__"], "x" in crude) == (b"1", "k", False)
    with pytest.raises(SampleError, match="TextSample"):
        SampleMapper(TextSample, sample_loader=lambda _: {"caption": "a"}).make({}, "k")
    with pytest.raises(SampleError, match="TextSample"):
        SampleMapper(TextSample, sample_loader=lambda _: {"text": "a", "note": "b"}).make({}, "k")
    with pytest.raises(SampleError, match="ValueError"):
        SampleMapper(TextSample, sample_loader=lambda _: None).make({}, "k")  # type: ignore[arg-type, return-value]
    with pytest.raises(SampleError, match=r"KeyError.*'txt'"):
        mapper.make({"jpg": b""}, "k")


@pytest.mark.parametrize("error", [SkipSample("no"), NameError("x"), FieldAccessError(None, "own")])
def test_loaders_skip_and_programming_errors_pass(error: Exception) -> None:
    def loader(sample: dict[str, Any]) -> dict[str, Any]:
        raise error

    with pytest.raises(type(error)) as raised:
        SampleMapper(TextSample, sample_loader=loader).make({}, "k")
    assert raised.value is error


MAP = {"image": "jpg", "caption": "txt"}
TEXT = {"text": "txt"}


@pytest.mark.parametrize(
    ("sample_type", "options", "named"),
    [
        (CaptioningSample, {"field_map": {"imag": "jpg", "caption": "txt"}}, "'imag'.*'image'"),
        (CaptioningSample, {"field_map": {"image": "jpg"}}, "'caption'"),
        (CaptioningSample, {"field_map": MAP | {"__sources__": "x"}}, "'__sources__'"),
        (CaptioningSample, {}, "neither"),
        (TextSample, {"field_map": TEXT, "sample_loader": dict}, "both"),
        (TextSample, {"field_map": TEXT, "part_filter": ["txt"]}, "filter"),
        (TextSample, {"field_map": {"text": "txt["}}, "1"),
        (CrudeSample, {"field_map": TEXT}, "fields"),
        (int, {"field_map": TEXT}, "int"),
    ],
)
def test_maps_that_do_not_fit(sample_type: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SampleMapper(sample_type, **options)
