"""Where a dry run looks, and what it makes of what it finds: held against sums over everything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.prepare.places import choose_places, scale_up
from headrace.prepare.sources import SourceFile, Span


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
    found = choose_places(files, key=key, num_points=num_points, place_bytes=place_bytes)
    assert found.is_whole == (sum(one.text_bytes for one in files) <= num_points * place_bytes)
    spans = [(place.span.file, place.span.begin, place.span.end) for place in found.places]
    assert spans == sorted(set(spans))
    if found.is_whole:
        assert spans == [(number, 0, one.extent) for number, one in enumerate(files) if one.extent]
        assert [place.weight for place in found.places] == [one.size_bytes for one in files if one.extent]
        assert all(place.num_blocks is None for place in found.places)
        return
    assert sum(place.weight for place in found.places) == num_points
    for place in found.places:
        one = files[place.span.file]
        assert 0 <= place.span.begin < place.span.end <= one.extent
        if one.can_split:
            assert place.num_blocks is None
            assert place.span_bytes == place.span.end - place.span.begin <= place_bytes
            assert place.span.begin % place_bytes == 0
        else:
            assert place.num_blocks == place.weight
            assert place.span_bytes == (one.size_bytes // one.extent if one.unit_bytes else one.size_bytes)
            assert not one.unit_bytes or place.span.end == place.span.begin + 1


def test_every_stretch_has_its_point() -> None:
    """No period of the input can hide, and no part of it is left out."""
    files = [file(640_000), file(320_000, "jsonl.gz"), file(320_000, "parquet", units=32)]
    chosen: set[int] = set()
    for key in range(40):
        found = choose_places(files, key=key, num_points=128, place_bytes=100)
        plain = [place.span for place in found.places if place.span.file == 0]
        assert [span.begin // 10_000 for span in plain] == list(range(64))
        chosen |= {span.begin % 10_000 // 100 for span in plain}
        assert [place.weight for place in found.places if place.span.file == 1] == [32]
        units = [place.span.begin for place in found.places if place.span.file == 2 for _ in range(int(place.weight))]
        assert units == list(range(32))
    assert chosen == set(range(100))


def test_a_byte_belongs_to_its_own_file() -> None:
    files = [file(0), *[file(1)] * 20, file(0)]
    for key in range(20):
        found = choose_places(files, key=key, num_points=10, place_bytes=1)
        assert [(place.span.file - 1) // 2 for place in found.places] == list(range(10))


def test_points_do_not_depend_on_the_size_of_the_input() -> None:
    files = [file(10**18), file(10**18, "jsonl.zst")]
    found = choose_places(files, key=1, num_points=64, place_bytes=1 << 17)
    assert len(found.places) == 33
    assert found.places[-1].span == Span(1, 0, 10**18)


@pytest.mark.parametrize("kinds", [["jsonl"], ["jsonl", "jsonl.gz", "jsonl"], ["jsonl.gz"] * 300])
def test_an_estimate_is_right_on_average(kinds: list[str]) -> None:
    """Lines of a byte each, more or less dense in tokens; the interval holds the truth as often as it says."""
    draw = np.random.default_rng(5)
    sizes = draw.integers(2_000, 40_000, len(kinds))
    densities = [np.repeat(draw.gamma(2.0, 1.0, size // 50 + 1), 50)[:size] for size in sizes]
    files = [file(int(size), kind) for size, kind in zip(sizes, kinds, strict=True)]
    truth = sum(float(density.sum()) for density in densities)
    if set(kinds) == {"jsonl.gz"}:  # seen from its beginning alone
        densities = [np.full(len(density), density.mean()) for density in densities]
    total = int(sizes.sum())
    values, within = [], 0
    for key in range(200):
        rows = []
        for place in choose_places(files, key=key, num_points=32, place_bytes=40).places:
            density, span = densities[place.span.file], place.span
            part = density[span.begin : span.end]
            size = place.span_bytes if place.num_blocks is None else len(part)
            rows.append((len(part) * place.weight / size, float(part.sum()) * place.weight / size))
        found = scale_up(
            np.array([row[1] for row in rows]), np.array([row[0] for row in rows]), total_size=total, is_whole=False
        )
        values.append(found.value)
        within += abs(found.value - truth) <= 2 * found.error
    assert math.isclose(np.mean(values), truth, rel_tol=0.02)
    assert within >= 180


@given(
    rows=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 1e6)), min_size=2, max_size=20),
    scale=st.integers(1, 1000),
)
def test_scale_up(rows: list[tuple[float, float]], scale: int) -> None:
    values, sizes = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    found = scale_up(values, sizes, total_size=scale, is_whole=False)
    assert math.isclose(found.value, math.fsum(values) / math.fsum(sizes) * scale, rel_tol=1e-9, abs_tol=1e-9)
    exact = scale_up(sizes * 3, sizes, total_size=scale, is_whole=False)
    assert exact.error <= 1e-6 * exact.value
    whole = scale_up(values, sizes, total_size=scale, is_whole=True)
    assert (whole.value, whole.error) == (float(values.sum()), 0.0)


def test_the_worked_example() -> None:
    def array(*values: Any) -> Any:
        return np.array(values, np.float64)

    found = scale_up(array(2, 4, 6), array(1, 1, 2), total_size=40, is_whole=False)
    assert (found.value, round(found.error, 1)) == (120.0, 17.3)
    assert scale_up(array(2), array(1), total_size=40, is_whole=False) == (80.0, 40.0)
    assert scale_up(array(), array(), total_size=40, is_whole=False) == (0.0, 0.0)


def test_an_empty_input_has_no_places() -> None:
    assert choose_places([file(0)], key=0, num_points=1, place_bytes=1).places == []
