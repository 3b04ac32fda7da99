"""Images decoded beside each other are those decoded one by one, stacked with or without a copy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from counts import cases
from headrace.samples.media import SampleDecoder, pad_stack
from headrace.samples.media.batch import BatchBlocks
from headrace.samples.media.decoding.images import IMAGE_FORMS
from media_made import encoded, pixels

FORMS = sorted(name for name, form in IMAGE_FORMS.items() if form.kind != "pil")
KINDS = ["colour", "grey", "tall", "png", "damaged"]


@functools.cache
def image(kind: str, seed: int) -> bytes:
    height, width = (24, 19) if kind == "tall" else (17, 19)
    made = Image.fromarray(pixels(height, width, seed=seed))
    if kind == "grey":
        made = made.convert("L")
    data = encoded(made, "PNG" if kind == "png" else "JPEG")
    # Bytes that belong to nothing: simplejpeg refuses them, and Pillow passes over them.
    return data[:-2] + bytes(2) + data[-2:] if kind == "damaged" else data


def fresh(num_bytes: int) -> Any:
    return np.full(num_bytes, 0xA5, np.uint8)


def noted() -> tuple[list[Any], Callable[[int], Any]]:
    """Memory that has been taken, and the function that takes it."""
    taken: list[Any] = []

    def allocate(num_bytes: int) -> Any:
        taken.append(fresh(num_bytes))
        return taken[-1]

    return taken, allocate


def as_array(made: Any) -> Any:
    return made.numpy() if isinstance(made, torch.Tensor) else made


def stacked(blocks: BatchBlocks, rows: list[Any]) -> Any:
    """Return rows as a batch holds them."""
    whole = blocks.stacked(rows)
    return pad_stack(rows) if whole is None else whole


@settings(max_examples=cases(24, 500), deadline=None)
@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2)), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), max_size=2),
    st.sampled_from(["auto", "pillow"]),
)
def test_stacks_are_those_of_images_one_by_one(
    form: str, chosen: list[tuple[str, int]], cuts: list[int], jpeg: Any
) -> None:
    decoder = SampleDecoder(image_decode=form, jpeg=jpeg)
    alone = [decoder.decode("jpg", image(*one)) for one in chosen]
    borders = sorted({0, len(chosen), *(min(cut, len(chosen)) for cut in cuts)})
    blocks = BatchBlocks(fresh, len(chosen))
    into = decoder.into(blocks)
    beside = [into.decode("jpg", image(*one)) for one in chosen]
    stacks = [stacked(blocks, beside[a:b]) for a, b in itertools.pairwise(borders)]
    for stack, (a, b) in zip(stacks, itertools.pairwise(borders), strict=True):
        wanted = pad_stack(alone[a:b])
        assert type(stack) is type(wanted)
        assert stack.dtype == wanted.dtype
        assert np.array_equal(as_array(stack), as_array(wanted))
    # What was stacked is nobody else's.
    for stack in stacks:
        stack[...] = 0
    assert all(not as_array(stack).any() for stack in stacks)


@pytest.mark.parametrize("form", ["rgb8", "chwrgb", "torchrgb8", "torchrgb"])
def test_rows_in_order_are_stacked_where_they_are(form: str) -> None:
    taken, allocate = noted()
    blocks = BatchBlocks(allocate, 6)
    decoder = SampleDecoder(image_decode=form).into(blocks)
    made = [decoder.decode("jpg", image("colour", seed)) for seed in range(6)]
    first, second = stacked(blocks, made[:4]), stacked(blocks, made[4:])
    whole = blocks.joined([first, second])
    assert blocks.joined([second, first]) is None
    assert blocks.joined([first, stacked(blocks, [decoder.decode("jpg", image("colour", 0))])]) is None
    assert len(taken) == 2  # the seventh image begins another block
    for one in (first, second, whole):
        assert np.shares_memory(as_array(one), taken[0])
    assert np.array_equal(as_array(whole), np.concatenate([as_array(first), as_array(second)]))


def test_what_simplejpeg_refuses_is_pillows() -> None:
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(image("damaged", 0), "RGB")


def test_rows_are_handed_out_once() -> None:
    blocks = BatchBlocks(fresh, 3)
    decoder = SampleDecoder(image_decode="rgb8").into(blocks)
    made = [decoder.decode("jpg", image("colour", seed)) for seed in range(3)]
    once, again, backwards = stacked(blocks, made), stacked(blocks, made), stacked(blocks, made[::-1])
    kept = again.copy()
    once[:] = 0
    assert np.array_equal(again, kept)
    assert np.array_equal(backwards, kept[::-1])


def test_parts_have_blocks_of_their_own() -> None:
    taken, allocate = noted()
    # By their content, and with names that say nothing.
    blocks = BatchBlocks(allocate, 2)
    decoder = SampleDecoder(image_decode="rgb8", guess_content=True).into(blocks)
    made = [[decoder.decode(part, image("colour", seed)) for part in ("left", "right")] for seed in range(2)]
    stacks = [stacked(blocks, [row[column] for row in made]) for column in range(2)]
    assert len(taken) == 2
    assert all(np.shares_memory(stack, memory) for stack, memory in zip(stacks, taken, strict=True))


def test_without_blocks_arrays_are_their_own() -> None:
    decoder = SampleDecoder(image_decode="rgb8")
    into = decoder.into(BatchBlocks(fresh, 2))
    inside = [into.decode("jpg", image("colour", seed)) for seed in range(2)]
    assert not inside[0].flags.owndata
    stack = pad_stack(inside)
    assert not np.shares_memory(stack, inside[0])
    assert decoder.decode("jpg", image("colour", 0)).flags.owndata
