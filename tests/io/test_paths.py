"""Names and sizes, as people write them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError, StoreError
from headrace.io import expand_braces, natural_key, parse_size, safe_relative

names = st.text(st.sampled_from("a0129_.ä٣B"), max_size=8)


def test_numbers_count() -> None:
    # a01 and a1 are equal as numbers, so their bytes decide.
    wanted = ["a", "a01", "a1", "a2", "a10", "a10b2", "a10b10", "b", "ä"]
    backwards = wanted[::-1]
    assert sorted(backwards, key=natural_key) == wanted


@given(names, names)
def test_names_that_differ_have_different_keys(left: str, right: str) -> None:
    assert (natural_key(left) == natural_key(right)) == (left == right)


def test_only_ascii_digits_count_and_text_is_bytes() -> None:
    assert natural_key("a٣") > natural_key("a9")  # an Arabic 3 is text
    name = os.fsdecode(b"shard-\xff-2")
    assert natural_key(name) < natural_key(os.fsdecode(b"shard-\xff-10"))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("plain", ["plain"]),
        ("s-{8..10}", ["s-8", "s-9", "s-10"]),
        ("s-{08..10}.tar", ["s-08.tar", "s-09.tar", "s-10.tar"]),
        ("s-{098..101}", ["s-098", "s-099", "s-100", "s-101"]),
        ("s-{5..5}", ["s-5"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("{a,}x", ["ax", "x"]),
        ("{plain}{}", ["{plain}{}"]),
    ],
)
def test_expand_braces(pattern: str, wanted: list[str]) -> None:
    assert expand_braces(pattern) == wanted


@pytest.mark.parametrize(
    "pattern", ["open{0..1", "{0..1000000}", "{0..999}{0..999}{0..1}", "{0..99999999999999999999}"]
)
def test_expand_refuses(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"match|1,000,000"):
        expand_braces(pattern)
    assert len(expand_braces("{1..1000000}")) == 1_000_000


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\\b", "a\0b", "..", "."])
def test_names_that_would_leave_their_folder(name: str) -> None:
    with pytest.raises(StoreError, match="leave"):
        safe_relative(name)


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a", "a..", "a b/ä"])
def test_plain_names(name: str) -> None:
    assert safe_relative(name) == name


def test_sizes() -> None:
    sizes = {"1": 1, "500MB": 500_000_000, "1GiB": 1 << 30, "1.5 kb": 1500, "2TB": 2 * 10**12, "7B": 7, 8: 8}
    assert {text: parse_size(text, "limit") for text in sizes} == sizes


@pytest.mark.parametrize("text", ["0", "-1", "x", "1XB", "nan", "inf", "", 0])
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"500MB.*1GiB"):
        parse_size(text, "limit")
