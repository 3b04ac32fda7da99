"""What a blend draws and refuses, and how its text is read."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.plan.megatron import (
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    check_draws,
    normalised_weights,
    parse_blend,
)


def test_sizes_of_both_eras() -> None:
    shares = normalised_weights([3, 7])
    assert blend_sizes(shares, 1000) == ([302, 704], 1000)
    # ceil(1000 * 0.3 * 1.005) and ceil(1000 * 0.7 * 1.005), and the blend is their sum.
    assert blend_sizes(shares, 1000, era="before_2025_02") == ([302, 704], 1006)
    assert blend_sizes(shares, 1001) == ([303, 705], 1002)
    assert blend_sizes(shares, 1001, era="before_2025_02") == ([302, 705], 1007)
    assert blend_sizes(shares, 1000, surplus=0.5).num_samples == [450, 1050]
    with pytest.raises(ConfigError, match="before_2025_02"):
        blend_sizes(shares, 1000, era="legacy")  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_none(weight: float) -> None:
    for refused in (normalised_weights, lambda weights: build_blending_indices(weights, 5)):
        with pytest.raises(ConfigError, match=rf"1.*{weight}"):
            refused([1.0, weight])
    with pytest.raises(ConfigError, match=rf"'B'.*{weight}"):
        parse_blend(f"1 A {weight} B")


def test_sizes_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"2.*0.*samples"):
        build_exhaustive_blending_indices([3, 1, 0])
    with pytest.raises(ConfigError, match=r"1.*32,766.*32,767"):
        build_blending_indices([1.0] * 32767, 1)
    with pytest.raises(ConfigError, match=r"1.*32,766.*0"):
        build_exhaustive_blending_indices([])
    with pytest.raises(ConfigError, match=r"size.*-1"):
        build_blending_indices([1.0], -1)
    datasets, _ = build_blending_indices([1 / 32766] * 32766, 40)
    assert datasets.tolist() == list(range(40))


def test_over_draw_names_the_dataset() -> None:
    datasets, _ = build_blending_indices([0.25, 0.5, 0.25], 1000)
    draws = np.bincount(datasets).tolist()
    assert sum(draws) == 1000
    check_draws(datasets, draws)
    draws[1] -= 1
    with pytest.raises(ConfigError, match=rf"{draws[1] + 1}.*1.*web.*{draws[1]}"):
        check_draws(datasets, draws, ["books", "web", "code"])
    draws[2] = 0
    with pytest.raises(ConfigError, match=r"dataset.*1.*1"):
        check_draws(datasets, draws)
    with pytest.raises(ConfigError, match=r"dataset.*2"):
        check_draws(datasets, [1000, 1000])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.3 A 0.7 B]", (["A", "B"], [0.3, 0.7])),
        ("0.3 A 0.7 B", (["A", "B"], [0.3, 0.7])),
        (["0.3", "A", "0.7", " B "], (["A", "B"], [0.3, 0.7])),
        (" [ 30 a/b 70 c ] ", (["a/b", "c"], [30.0, 70.0])),
        ("A", (["A"], None)),
        ("A B", (["A", "B"], None)),
        ("A B C", (["A", "B", "C"], None)),
        (["1e2", "x y"], (["x y"], [100.0])),
        ("7", (["7"], None)),
    ],
)
def test_text(text: str | list[str], expected: tuple[list[str], list[float] | None]) -> None:
    assert parse_blend(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("[]", "prefixes"),
        (["A", ""], "prefixes"),
        ("0.3 A B", "0.*'0.3'.*3"),
        ("A 0.3 B 0.7 C", "1.*'0.3'"),
        ("0.3 A B C", "2.*'B'"),
        ("A B 0.7 C", "0.*'A'"),
    ],
)
def test_text_that_is_none(text: str | list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_blend(text)
