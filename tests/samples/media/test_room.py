"""Pictures that are decoded into the memory of their batch are those decoded one by one and stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.datasets.media import collated
from headrace.samples.media import SampleDecoder, SampleMapper
from headrace.samples.media.batch import Room
from headrace.samples.media.sample import Sample, sample_type
from media_made import FORMS, KINDS, as_array, image


@sample_type
class Pictures(Sample):
    image: Any
    again: Any
    other: Any
    text: str


def samples(chosen: list[tuple[str, int]], room: Room | None = None, **options: Any) -> list[Pictures]:
    fields = {"image": "jpg", "again": "jpg", "other": "seg.jpg,gone.jpg", "text": "txt"}
    mapper = SampleMapper(Pictures, fields, decoder=SampleDecoder(**options))
    return [
        mapper.make({"jpg": image(*one), "seg.jpg": image("colour", row), "txt": b"a"}, f"{row}", room=room)
        for row, one in enumerate(chosen)
    ]


@settings(max_examples=cases(24, 500), deadline=None)
@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(0, 1),
    st.sampled_from(["auto", "pillow"]),
)
def test_batches_are_those_of_pictures_one_by_one(
    form: str, chosen: list[tuple[str, int]], more: int, jpeg: Any
) -> None:
    taken: list[Any] = []

    def allocate(num_bytes: int) -> Any:
        taken.append(np.full(num_bytes + 64, 0xA5, np.uint8))
        return taken[-1]

    options = {"image_decode": form, "jpeg": jpeg}
    wanted = collated(samples(chosen, **options))
    room = Room(allocate, len(chosen) + more)
    rows, stacks = room.taken(samples(chosen, room, **options))
    found = collated(rows) | stacks
    assert list(found) == list(wanted)
    pictures = ("image", "again", "other")
    for name in pictures:
        assert as_array(found[name]).dtype == as_array(wanted[name]).dtype
        assert np.array_equal(as_array(found[name]), as_array(wanted[name]))
    assert found["text"] == wanted["text"]
    # No column shares memory with another one, and what lies in the room was not copied.
    for name in pictures:
        as_array(found[name])[...] = 0
        for other in pictures[pictures.index(name) + 1 :]:
            assert np.array_equal(as_array(found[other]), as_array(wanted[other]))
    assert all(any(np.shares_memory(stack, memory) for memory in taken) for stack in stacks.values())
    if not more and {kind for kind, _ in chosen} <= {"colour", "grey", "png"}:
        assert sorted(stacks) == ["image", "other"]


def test_pictures_that_need_too_much_lie_in_memory_of_their_own() -> None:
    room = Room(lambda num_bytes: np.empty(num_bytes, np.uint8), 3, 3 * 17 * 19 * 3)
    assert sorted(room.taken(samples([("colour", 0)] * 3, room, image_decode="rgb8"))[1]) == ["image", "other"]
    room = Room(pytest.fail, 3, 3 * 17 * 19 * 3 - 1)
    rows, stacks = room.taken(samples([("colour", 0)] * 3, room, image_decode="rgb8"))
    assert not stacks
    assert collated(rows)["image"].shape == (3, 17, 19, 3)


def test_a_decoder_of_the_users_gets_bytes_alone() -> None:
    class Own(SampleDecoder):
        def decoder_of(self, part: str) -> Any:
            return len

    room = Room(lambda num_bytes: np.empty(num_bytes, np.uint8), 1)
    mapper = SampleMapper(Pictures, dict.fromkeys(("image", "again", "other", "text"), "jpg"), decoder=Own())
    sample = mapper.make({"jpg": b"123"}, "a", room=room)
    assert (sample.image, sample.other) == (3, 3)
    assert room.taken([sample])[1] == {}
