"""Decoded images are stacked in memory of their own, or in memory that is given."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from counts import cases
from headrace.samples.media import SampleDecoder, pad_stack
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


def as_array(made: Any) -> Any:
    return made.numpy() if isinstance(made, torch.Tensor) else made


@settings(max_examples=cases(24, 500), deadline=None)
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
