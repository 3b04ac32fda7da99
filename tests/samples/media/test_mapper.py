"""Raw parts become samples: only what is needed is decoded, each part once, and faults say where they are."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings, strategies as st

import media_made
from counts import cases
from headrace.errors import ConfigError, DecodeError, FieldAccessError, InputError, SampleError, SkipSample
from headrace.samples.media import (
    SAMPLE_TYPES,
    CaptioningSample,
    Cooker,
    CrudeSample,
    ImageClassificationSample,
    SampleDecoder,
    SampleMapper,
    SourceInfo,
    TextSample,
    VQASample,
    basic_sample_keys,
    choose_cooker,
    cooker,
    load_function,
    pad_stack,
    resolve_sample_type,
)
from headrace.samples.media.mapper import (
    Option,
    access,
    first_that_works,
    parse_field,
    parse_field_map,
    parts_of,
    sources_of,
)
from media_made import FORMS, KINDS, as_array, image

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


# Field maps: what they name, which option works, and what is said where none does.


NAMES = st.text(st.characters(blacklist_characters="[],", blacklist_categories=("Cs", "Z", "Cc")), min_size=1)
OPTIONS = st.builds(Option, NAMES, st.lists(NAMES, max_size=4).map(tuple))


@pytest.mark.parametrize(
    ("description", "options"),
    [
        ("jpg, png", [("jpg", ()), ("png", ())]),
        ("txt,seg.json[a b][-1],cls", [("txt", ()), ("seg.json", ("a b", "-1")), ("cls", ())]),
    ],
)
def test_descriptions(description: str, options: list[Any]) -> None:
    assert list(parse_field(description)) == [Option(*option) for option in options]


@given(st.lists(OPTIONS, min_size=1, max_size=4))
def test_what_is_written_is_read(options: list[Option]) -> None:
    assert parse_field(",".join(map(str, options))) == tuple(options)


@pytest.mark.parametrize(
    ("description", "column"),
    [("", 1), ("jpg,", 5), ("json[", 1), ("json]", 1), ("json[]", 1), ("[a]", 1), ("txt,json[a]b", 5), ("a[b[c]]", 1)],
)
def test_descriptions_that_cannot_be_read(description: str, column: int) -> None:
    with pytest.raises(ConfigError, match=rf"{column}.*part\[key\]\[0\]"):
        parse_field_map({"caption": description})
    with pytest.raises(ConfigError, match="3"):
        parse_field_map({"label": 3})  # type: ignore[dict-item]


def test_parts_and_sources() -> None:
    found = parse_field_map({"image": "jpg,png", "label": "json[a]", "name": "json[b],__key__", "text": "png"})
    assert parts_of(found) == ("jpg", "png", "json")
    assert sources_of(found) == {"image": ("jpg", "png"), "label": ("json",), "name": ("json",), "text": ("png",)}


@given(st.lists(st.integers(0, 3), max_size=5), st.integers())
def test_steps_lead_where_python_does(path: list[int], leaf: int) -> None:
    value: Any = leaf
    steps: list[str] = []
    for number in reversed(path):
        if number % 2:
            value = {"before": 0, f"k{number}": value}
            steps.insert(0, f"k{number}")
        else:
            value = [*range(number), value]
            steps.insert(0, str(number))
    assert access(value, Option("json", tuple(steps)), "f") == leaf


def works(description: str, sample: dict[str, Any]) -> Any:
    return first_that_works(parse_field(description), "f", sample.__getitem__)


SAMPLE = {"json": {"a": [1, {"b": None}], "n": 3, "": 7}, "txt": "hello", "detail.json": [[5]]}


@pytest.mark.parametrize(
    ("description", "value"),
    [
        ("txt", "hello"),
        ("json[a][0]", 1),
        ("json[a][-1][b]", None),
        ("json[a][-2]", 1),
        ("detail.json[0][0]", 5),
        ("png,txt", "hello"),
        ("json[x],txt", "hello"),
        ("json[a][7],txt", "hello"),
        ("json[a][b],txt", "hello"),
        ("json[n][0],txt", "hello"),
        ("txt[0],json[n]", 3),
        ("txt,json[n]", "hello"),
        ("json[a][1][b],txt", None),
    ],
)
def test_the_first_option_that_works(description: str, value: Any) -> None:
    assert works(description, SAMPLE) == value


@pytest.mark.parametrize(
    ("description", "named"),
    [
        ("png", "'png'.*'f'.*'png'"),
        ("json[x]", r"'json'.*'f'.*\[x\].*'a', 'n', ''"),
        ("json[a][7]", r"\[7\].*json\[a\].*2"),
        ("json[a][b]", r"\[b\].*json\[a\].*list"),
        ("json[n][0]", r"\[0\].*json\[n\].*int"),
        ("txt[0]", r"\[0\].*txt.*str"),
        ("png,json[x]", r"'f'.*'png,json\[x\]'.*'png'.*\[x\].*json"),
    ],
)
def test_what_does_not_work(description: str, named: str) -> None:
    with pytest.raises(FieldAccessError, match=named):
        works(description, SAMPLE)


# Names in a ``dataset.yaml`` are looked up, never imported, unless they are trusted.


@pytest.mark.parametrize("module", ["megatron.energon", "megatron.energon.flavors", "headrace.samples.media"])
@pytest.mark.parametrize("name", [*SAMPLE_TYPES, "CrudeSample"])
def test_types_by_name(module: str, name: str) -> None:
    assert resolve_sample_type(module, name).__name__ == name
    assert "megatron.energon" not in sys.modules


@pytest.mark.parametrize(
    ("name", "wanted"), [("CaptioningWebdataset", CaptioningSample), ("CrudeWebdataset", CrudeSample)]
)
def test_older_dataset_classes(name: str, wanted: type) -> None:
    assert resolve_sample_type("megatron.energon.flavors.captioning", name) is wanted


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"'CaptionSample'.*VQAOCRSample.*'CaptioningSample'"):
        resolve_sample_type("megatron.energon", "CaptionSample")


def test_other_modules_are_imported_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_types.py").write_text(
        "from headrace.samples.media import Sample, sample_type\n"
        "@sample_type\nclass Mine(Sample):\n    x: int\n"
        "class Other: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"their_types\.Mine.*trust_code=True"):
        resolve_sample_type("their_types", "Mine")
    assert "their_types" not in sys.modules
    # A name that only begins like Energon's is another module.
    with pytest.raises(ConfigError, match="imported"):
        resolve_sample_type("megatron.energonize", "CaptioningSample")
    mine = resolve_sample_type("their_types", "Mine", trust_code=True)
    assert mine(__key__="k", __restore_key__=(), x=1).x == 1  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="sample"):
        resolve_sample_type("their_types", "Other", trust_code=True)
    for module, name in (("their_types", "Nothing"), ("no_such_module", "Mine")):
        with pytest.raises(ConfigError, match="imported"):
            resolve_sample_type(module, name, trust_code=True)
    del sys.modules["their_types"]


def test_functions_of_the_dataset() -> None:
    asked: list[str] = []

    def read(file: str) -> str:
        asked.append(file)
        return "LIMIT = 3\ndef sample_loader(sample):\n    return {'text': sample['txt'] + str(LIMIT)}\n"

    with pytest.raises(ConfigError, match=r"sample_loader.*sample_loader\.py"):
        load_function("sample_loader.py:sample_loader", "sample_loader", read, trust_code=False)
    assert asked == []
    function = load_function("sample_loader.py", "sample_loader", read, trust_code=True)
    assert function({"txt": "a"}) == {"text": "a3"}
    assert asked == ["sample_loader.py"]
    with pytest.raises(ConfigError, match=r"'other'.*sample_loader"):
        load_function("sample_loader.py:other", "sample_loader", read, trust_code=True)
    for source in ("def", "import no_such_module", "1 + 'a'", "nothing"):
        with pytest.raises(ConfigError, match=r"a\.py"):
            load_function("a.py", "f", lambda _, source=source: source, trust_code=True)  # type: ignore[misc]


# The cooker of a dataset is the first whose subflavors it has, and gets what it asked for.


SOURCE = SourceInfo(dataset_path="d", index=0, shard_name="a.tar", file_names=("k.txt",))
CRUDE = CrudeSample(
    __key__="k", __restore_key__=(1,), __subflavors__=None, __sources__=(SOURCE,), __shard__="a", txt="hi"
)


def cook_text(crude: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(crude), text=crude["txt"])


@cooker
def plain(crude: dict[str, Any], **given: Any) -> Any:
    """Says what it is given."""
    return crude["txt"], given


@cooker(need_primary=True, need_cache=True)
def wanting(crude: dict[str, Any], **given: Any) -> Any:
    return crude["txt"], given


def test_cooking() -> None:
    assert Cooker(cook_text)(CRUDE) == TextSample(__key__="k", __restore_key__=(1,), __sources__=(SOURCE,), text="hi")
    assert basic_sample_keys({"__key__": "k", "txt": 1}) == {"__key__": "k"}
    added = basic_sample_keys({"__key__": "k", "__sources__": None}, (SOURCE,))
    assert added == {"__key__": "k", "__sources__": (SOURCE,)}
    assert basic_sample_keys(CRUDE, (SOURCE,))["__sources__"] == (SOURCE, SOURCE)


def test_what_a_cooker_is_given() -> None:
    assert (Cooker(plain).need_primary, Cooker(plain).need_cache) == (False, False)
    assert (Cooker(wanting).need_primary, Cooker(wanting).need_cache) == (True, True)
    assert Cooker(plain)(CRUDE, primary=1, cache=2, aux={"media": 3}) == ("hi", {"media": 3})
    assert Cooker(wanting)(CRUDE, primary=1, cache=2) == ("hi", {"primary": 1, "cache": 2})
    assert (plain.__name__, plain.__doc__) == ("plain", "Says what it is given.")
    with pytest.raises(ConfigError, match="primary="):
        Cooker(wanting)(CRUDE, cache=2)
    with pytest.raises(ConfigError, match="cache="):
        Cooker(wanting)(CRUDE, primary=2)
    with pytest.raises(ConfigError, match="'cache'"):
        Cooker(plain)(CRUDE, aux={"cache": 3})


@pytest.mark.parametrize(
    ("asked", "there", "matches"),
    [
        (None, None, True),
        (None, {"a": 1}, True),
        ({}, None, True),
        ({"a": 1}, None, False),
        ({"a": 1}, {}, False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
    ],
)
def test_subflavors(asked: dict[str, Any] | None, there: dict[str, Any] | None, matches: bool) -> None:
    assert Cooker(cook_text, has_subflavors=asked).is_match(there) is matches


def test_the_first_that_matches() -> None:
    cookers = [Cooker(plain, {"kind": "a"}), Cooker(cook_text, {"kind": "b"}), Cooker(wanting)]
    assert choose_cooker(cookers, {"kind": "b"}, "data").cook is cook_text
    assert choose_cooker(cookers, {"kind": "c"}, "data").cook is wanting
    assert choose_cooker(cookers, None, "data").cook is wanting
    with pytest.raises(ConfigError, match=r"my/data.*'c'.*plain.*'a'.*cook_text.*'b'"):
        choose_cooker(cookers[:2], {"kind": "c"}, "my/data")
    for some in (cookers[:2], []):
        with pytest.raises(ConfigError, match="my/data"):
            choose_cooker(some, None, "my/data")


# Decoded images are stacked in memory of their own, or in memory that is given.


@settings(max_examples=cases(12, 500), deadline=None)
@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2)), min_size=1, max_size=8),
    st.sampled_from(["auto", "pillow"]),
)
def test_stacks_are_the_same_wherever_they_lie(form: str, chosen: list[tuple[str, int]], jpeg: Any) -> None:
    decoder = SampleDecoder(image_decode=form, jpeg=jpeg)
    rows = [decoder.decode("jpg", image(*one)) for one in chosen]
    taken: list[Any] = []

    def allocate(num_bytes: int) -> Any:
        taken.append(np.full(num_bytes + 3, 0xA5, np.uint8))
        return taken[-1]

    own, given_ = pad_stack(rows), pad_stack(rows, allocate)
    assert type(own) is type(given_) is type(rows[0])
    assert own.dtype == given_.dtype == rows[0].dtype
    assert np.array_equal(as_array(own), as_array(given_))
    for stack in (own, given_):
        for row, found in zip(rows, stack, strict=True):
            inside = found[tuple(map(slice, row.shape))]
            assert np.array_equal(as_array(inside), as_array(row))
            assert as_array(found).sum() == pytest.approx(as_array(row).sum()), "zeros beside it"
    [memory] = taken
    assert np.shares_memory(as_array(given_), memory)
    # What was stacked is nobody else's.
    before = as_array(rows[0]).copy()
    own[...] = given_[...] = 0
    assert np.array_equal(as_array(rows[0]), before)


def test_tensors_that_numpy_does_not_have_are_stacked() -> None:
    rows = [torch.ones(size, dtype=torch.bfloat16) for size in (2, 3)]
    assert torch.equal(pad_stack(rows), torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bfloat16))
    assert torch.equal(pad_stack([torch.ones(2, requires_grad=True)]), torch.ones(1, 2))


def test_what_simplejpeg_refuses_is_pillows() -> None:
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(image("damaged", 0), "RGB")
