"""Sample types, how samples are made of samples, and batches."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from headrace.errors import ConfigError
from headrace.samples import media
from headrace.samples.media import (
    SAMPLE_TYPES,
    Batch,
    CaptioningSample,
    CrudeSample,
    ImageSample,
    Sample,
    SourceInfo,
    TextSample,
    VQASample,
    add_sources,
    generic_batch,
    pad_stack,
    sample_type,
)
from headrace.samples.media.sample import pinned

SOURCE = SourceInfo(dataset_path="data", index=3, shard_name="a.tar", file_names=("3.jpg",))
OTHER = SourceInfo(dataset_path="more", index="k", shard_name="b.tar", file_names=("k.txt",))

# The fields of Energon 7.4.1's types beside the base fields, in order; None means no default.
THEIRS: dict[str, dict[str, Any]] = {
    "TextSample": {"text": ...},
    "ImageSample": {"image": ...},
    "CaptioningSample": {"image": ..., "caption": ...},
    "ImageClassificationSample": {"image": ..., "label": None, "label_name": None},
    "InterleavedSample": {"sequence": ...},
    "SimilarityInterleavedSample": {
        "images": ...,
        "texts": ...,
        **dict.fromkeys(("audio", "video", "similarity_matrix", "matched_text_indices")),
    },
    "VQASample": {"image": ..., "context": ..., "answers": None, "answer_weights": None},
    "MultiChoiceVQASample": {"image": ..., "context": ..., "choices": None, "correct_choice_idx": 0},
    "VidQASample": {"video": ..., "context": ..., "answers": None, "answer_weights": None},
    "OCRSample": {
        "image": ...,
        "text": ...,
        **dict.fromkeys(("block_boxes", "block_classes", "block_text", "lines_boxes", "lines_text")),
        **dict.fromkeys(("words_boxes", "words_text", "chars_boxes", "chars_text")),
    },
    "VQAOCRSample": {
        "image": ...,
        "context": ...,
        "text": ...,
        **dict.fromkeys(("answers", "answer_weights", "words_boxes", "words_text")),
    },
}


def text(value: str, key: str = "k", **base: Any) -> TextSample:
    return TextSample(__key__=key, __restore_key__=(key,), text=value, **base)


@pytest.mark.parametrize("name", THEIRS)
def test_fields_are_theirs(name: str) -> None:
    cls = getattr(media, name)
    assert SAMPLE_TYPES[name] is cls
    fields = {
        field.name: ... if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(cls)
    }
    base = {"__key__": ..., "__restore_key__": ..., "__subflavors__": None, "__sources__": None}
    assert list(fields.items()) == [*base.items(), *THEIRS[name].items()]
    assert all(field.kw_only for field in dataclasses.fields(cls))
    sample = cls(__key__="k", __restore_key__=(), **{key: 0 for key, default in THEIRS[name].items() if default is ...})
    assert not hasattr(sample, "__dict__")
    assert pickle.loads(pickle.dumps(sample)) == sample


def test_all_types_are_known() -> None:
    assert sorted(THEIRS) == sorted(SAMPLE_TYPES)
    assert set(media.__all__) <= set(dir(media))


def test_derive_from() -> None:
    base = text("a", __subflavors__={"x": 1}, __sources__=(SOURCE,))
    made = CaptioningSample.derive_from(base, image=1, caption="c")
    assert made == CaptioningSample(
        __key__="k", __restore_key__=("k",), __subflavors__={"x": 1}, __sources__=(SOURCE,), image=1, caption="c"
    )
    assert TextSample.derive_from(base, __key__="other", text="b").__key__ == "other"


def test_from_joined() -> None:
    first = text("a", "one", __subflavors__={"x": 1}, __sources__=(SOURCE,))
    second = VQASample(
        __key__="two", __restore_key__=(), __subflavors__={"x": 2}, __sources__=(OTHER,), image=1, context="q"
    )

    @sample_type
    class Joined(Sample):
        text: str
        image: Any
        context: str
        answers: Any
        answer_weights: Any

    made = Joined.from_joined(first, None, second)
    assert (made.__key__, made.__restore_key__, made.__subflavors__) == ("one", ("one",), {"x": 1})
    # Each source once: Energon counts those of the primary sample twice.
    assert made.__sources__ == (SOURCE, OTHER)
    assert (made.text, made.image, made.context) == ("a", 1, "q")
    assert TextSample.from_joined(text("a", "one"), text("b", "two")) == TextSample(
        __key__="one", __restore_key__=("one",), __sources__=(), text="b"
    )
    with pytest.raises(ConfigError, match="samples"):
        TextSample.from_joined(first, b=first)
    for missing in ((), (None, first)):
        with pytest.raises(ConfigError, match="primary"):
            TextSample.from_joined(*missing)


def test_extend() -> None:
    @sample_type
    class More(TextSample):
        extra: int

    made = More.extend(text("a", __sources__=(SOURCE,)), extra=3)
    assert (made.text, made.extra, made.__sources__) == ("a", 3, (SOURCE,))
    assert More.extend(text("a"), extra=3, text="b").text == "b"
    with pytest.raises(ConfigError, match=r"ImageSample\.extend.*TextSample"):
        ImageSample.extend(text("a"), image=1)


def test_add_sources() -> None:
    sample = text("a")
    add_sources(sample, SOURCE)
    add_sources(sample, OTHER)
    assert sample.__sources__ == (SOURCE, OTHER)
    crude = CrudeSample(__key__="k")
    add_sources(crude, SOURCE)
    add_sources(crude, OTHER)
    assert crude["__sources__"] == (SOURCE, OTHER)


def test_codecs_are_imported_when_they_are_used() -> None:
    script = (
        "import sys; from headrace.samples.media import *;"
        "mapper = SampleMapper(CaptioningSample, {'image': 'jpg,txt', 'caption': 'cls'}, decoder=SampleDecoder());"
        "mapper.make({'txt': b'a', 'cls': b'1'}, 'k'); SampleDecoder().decode('mp4', b'');"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "PIL", "simplejpeg", "av", "cbor2", "megatron"} & set(done.stdout.split())


class Pinned:
    """Stands for a tensor, which cannot be pinned without a GPU."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def new_zeros(self) -> None:
        raise AssertionError

    def pin_memory(self) -> Pinned:
        return Pinned(True)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_pin_memory() -> None:
    sample = ImageSample(
        __key__="k",
        __restore_key__=(1,),
        image=[Pinned(), (Pinned(), 3), {"a": Pinned()}, Pair(Pinned(), "x"), text("a")],
    )
    found = sample.pin_memory()
    assert type(found) is ImageSample
    one, two, three, four, five = found.image
    assert one.pinned
    assert two[0].pinned
    assert two[1] == 3
    assert three["a"].pinned
    assert isinstance(four, Pair)
    assert four.left.pinned
    assert five == text("a")


def test_what_others_make_is_pinned() -> None:
    class Encoding(UserDict[str, Any]):
        """As transformers' ``BatchEncoding``."""

    class Whole:
        def pin_memory(self) -> str:
            return "pinned"

    found = pinned({"batch": Encoding(a=Pinned()), "whole": Whole(), "type": Whole})
    assert type(found["batch"]) is Encoding
    assert found["batch"]["a"].pinned
    assert (found["whole"], found["type"]) == ("pinned", Whole)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_pad_stack(kind: str) -> None:
    arrays: list[Any] = [np.full((2, 3), 1, np.float32), np.full((4, 1), 2, np.float32)]
    if kind == "torch":
        arrays = [torch.from_numpy(array) for array in arrays]
    found = pad_stack(arrays)
    assert type(found) is type(arrays[0])
    wanted = np.zeros((2, 4, 3), np.float32)
    wanted[0, :2, :3] = 1
    wanted[1, :4, :1] = 2
    assert np.array_equal(np.asarray(found), wanted)
    assert np.array_equal(np.asarray(pad_stack(arrays[:1])), np.asarray(arrays[0])[None])
    assert pad_stack([np.array(1.0), np.array(2.0)]).tolist() == [1, 2]


def test_pad_stack_of_what_differs() -> None:
    with pytest.raises(ConfigError, match=r"float64\(2.*3"):
        pad_stack([np.zeros((2, 3)), np.zeros(2)])
    with pytest.raises(ConfigError, match="uint8"):
        pad_stack([np.zeros(2), np.zeros(2, np.uint8)])


@sample_type
class CaptionBatch(Batch):
    image: Any
    caption: Any


def captions() -> list[CaptioningSample]:
    return [
        CaptioningSample(
            __key__=f"k{size}",
            __restore_key__=(size,),
            __subflavors__={"x": 1} if size == 2 else None,
            __sources__=(SOURCE,) if size == 2 else None,
            image=torch.ones(3, size, 2),
            caption=f"c{size}",
        )
        for size in (2, 4)
    ]


def test_batch_pads_and_stacks_as_promised() -> None:
    batch = CaptionBatch.from_samples(captions())
    assert batch.image.shape == (2, 3, 4, 2)
    assert batch.image[0, :, 2:].sum() == 0
    assert batch.image.sum() == 3 * 2 * 2 + 3 * 4 * 2
    assert batch.caption == ["c2", "c4"]
    assert batch.__key__ == ["k2", "k4"]
    assert batch.__restore_key__ == [(2,), (4,)]
    assert batch.__subflavors__ == [{"x": 1}, None]
    assert batch.__sources__ == (SOURCE,)


def test_batch_of_what_is_made_already_and_derived() -> None:
    batch = CaptionBatch.from_samples(captions(), image="given")
    assert batch.image == "given"

    @sample_type
    class Ids(Batch):
        ids: Any

    derived = Ids.derive_from(batch, ids=[1])
    assert (derived.__key__, derived.ids) == (batch.__key__, [1])

    @sample_type
    class More(CaptionBatch):
        ids: Any

    assert More.extend(batch, ids=[1]).caption == ["c2", "c4"]
    assert Ids.from_samples(captions(), ids=0).__subflavors__ == [{"x": 1}, None]
    plain = Ids.from_samples([text("a"), text("b")], ids=0)
    assert (plain.__subflavors__, plain.__sources__) == (None, None)
    with pytest.raises(ConfigError, match=r"'ids'.*CaptioningSample"):
        Ids.from_samples(captions())
    with pytest.raises(ConfigError, match="samples"):
        Ids.from_samples([])


def test_fields_that_are_not_all_arrays_are_lists() -> None:
    samples = [ImageSample(__key__="k", __restore_key__=(), image=image) for image in (torch.ones(2), None)]

    @sample_type
    class Images(Batch):
        image: Any

    found = Images.from_samples(samples).image
    assert torch.equal(found[0], torch.ones(2))
    assert found[1] is None


def test_generic_batch() -> None:
    @dataclasses.dataclass
    class Plain:
        a: Any

    assert generic_batch([]) == []
    assert generic_batch(["a", "b"]) == ["a", "b"]
    found = generic_batch([{"a": np.ones(1), "b": "x"}, {"a": np.ones(2), "b": "y"}])
    assert found["a"].tolist() == [[1, 0], [1, 1]]
    assert found["b"] == ["x", "y"]
    assert generic_batch([Plain(np.ones(1)), Plain(np.zeros(1))]).a.tolist() == [[1], [0]]
    pair = generic_batch([Pair(1, np.ones(1)), Pair(2, np.ones(1))])
    assert (pair.left, pair.right.shape) == ([1, 2], (2, 1))
    with pytest.raises(ConfigError, match="differ"):
        generic_batch([{"a": 1}, {"b": 1}])


def test_a_source_can_be_rebuilt_by_trainers() -> None:
    """Lightning and Accelerate rebuild what is in a batch: they know named tuples, and refuse frozen dataclasses."""
    assert not dataclasses.is_dataclass(SOURCE)
    assert type(SOURCE)(*SOURCE) == SOURCE
    assert SOURCE._asdict() == {"dataset_path": "data", "index": 3, "shard_name": "a.tar", "file_names": ("3.jpg",)}
