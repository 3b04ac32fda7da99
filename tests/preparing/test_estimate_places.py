"""Where a dry run looks, held against sums over everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.estimate import choose_places
from headrace.preparing.sources import SourceFile, Span


def file(size: int, kind: str = "jsonl", units: int = 0) -> SourceFile:
    return SourceFile(
        name="",
        path="",
        format=kind,  # type: ignore[arg-type]
        size_bytes=size,
        mtime_ns=0,
        extent=units or size,
        unit_bytes=(1000,) * units,
        can_split=kind == "jsonl",
    )


FILES = st.lists(
    st.one_of(
        st.builds(file, st.integers(0, 5000)),
        st.builds(file, st.integers(0, 5000), st.just("jsonl.gz")),
        st.builds(file, st.integers(1, 5000), st.just("parquet"), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=6,
)


@given(files=FILES, key=st.integers(0, 2**64 - 1), num_points=st.integers(1, 20), place_bytes=st.integers(1, 700))
def test_places(files: list[SourceFile], key: int, num_points: int, place_bytes: int) -> None:
    places, is_whole = choose_places(files, key=key, num_points=num_points, place_bytes=place_bytes)
    assert is_whole == (sum(one.text_bytes for one in files) <= num_points * place_bytes)
    spans = [(place.span.file, place.span.begin, place.span.end) for place in places]
    assert spans == sorted(set(spans))
    if is_whole:
        assert spans == [(number, 0, one.extent) for number, one in enumerate(files) if one.extent]
        assert [place.weight for place in places] == [one.extent for one in files if one.extent]
        assert not any(place.from_begin for place in places)
        return
    assert sum(place.weight for place in places) == num_points
    for place in places:
        one = files[place.span.file]
        assert 0 <= place.span.begin < place.span.end <= one.extent
        assert place.from_begin != one.can_split
        if one.can_split:
            assert place.span.end - place.span.begin <= place_bytes
            assert place.span.begin % place_bytes == 0
        else:
            assert place.span.end - place.span.begin == (1 if one.unit_bytes else one.extent)


def test_every_stretch_has_its_point() -> None:
    """No period of the input can hide, and no part of it is left out."""
    files = [file(640_000), file(320_000, "jsonl.gz"), file(320_000, "parquet", units=32)]
    chosen: set[int] = set()
    for key in range(40):
        places, _ = choose_places(files, key=key, num_points=128, place_bytes=100)
        plain = [place.span for place in places if place.span.file == 0]
        assert [span.begin // 10_000 for span in plain] == list(range(64))
        chosen |= {span.begin % 10_000 // 100 for span in plain}
        assert [place.weight for place in places if place.span.file == 1] == [32]
        units = [place.span.begin for place in places if place.span.file == 2 for _ in range(int(place.weight))]
        assert units == list(range(32))
    assert chosen == set(range(100))


def test_a_byte_belongs_to_its_own_file() -> None:
    files = [file(0), *[file(1)] * 20, file(0)]
    for key in range(20):
        places, _ = choose_places(files, key=key, num_points=10, place_bytes=1)
        assert [(place.span.file - 1) // 2 for place in places] == list(range(10))


def test_points_do_not_depend_on_the_size_of_the_input() -> None:
    files = [file(10**18), file(10**18, "jsonl.zst")]
    places, _ = choose_places(files, key=1, num_points=64, place_bytes=1 << 17)
    assert len(places) == 33
    assert places[-1].span == Span(1, 0, 10**18)


@pytest.mark.parametrize("kinds", [["jsonl"], ["jsonl", "jsonl.gz", "jsonl"], ["jsonl.gz"] * 300])
def test_an_estimate_is_right_on_average(kinds: list[str]) -> None:
    """Lines of a byte each, more or less dense in tokens."""
    draw = np.random.default_rng(5)
    sizes = draw.integers(2_000, 40_000, len(kinds))
    densities = [np.repeat(draw.gamma(2.0, 1.0, size // 50 + 1), 50)[:size] for size in sizes]
    files = [file(int(size), kind) for size, kind in zip(sizes, kinds, strict=True)]
    reference = sum(float(density.sum()) for density in densities)
    if set(kinds) == {"jsonl.gz"}:  # seen from its beginning alone
        densities = [np.full(len(density), density.mean()) for density in densities]
    total = int(sizes.sum())
    values = []
    for key in range(200):
        sums = np.zeros(2)
        for place in choose_places(files, key=key, num_points=32, place_bytes=40)[0]:
            density, span = densities[place.span.file], place.span
            part = density[span.begin : span.end]
            sums += place.weight / len(part) * np.array([len(part), part.sum()])
        values.append(sums[1] / sums[0] * total)
    assert math.isclose(np.mean(values), reference, rel_tol=0.02)


def test_an_empty_input_has_no_places() -> None:
    assert choose_places([file(0)], key=0, num_points=1, place_bytes=1) == ([], True)
