"""Sizes in bytes, as people write them."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.io import parse_size


def test_sizes() -> None:
    sizes = {"1": 1, "500MB": 500_000_000, "1GiB": 1 << 30, "1.5 kb": 1500, "2TB": 2 * 10**12, "7B": 7, 8: 8}
    assert {text: parse_size(text, "limit") for text in sizes} == sizes


@pytest.mark.parametrize("text", ["0", "-1", "x", "1XB", "nan", "inf", "", 0])
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"^limit .*500MB or 1GiB"):
        parse_size(text, "limit")
