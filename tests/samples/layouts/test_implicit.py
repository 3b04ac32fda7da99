"""The prompt that is not said: where chosen and rejected part."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import InputError
from headrace.samples.layouts.known import split_text

# Precomposed and combining letters, a family, flags, skin colours, Hangul syllables and letters, line ends, spaces.
PIECES = [*"ae\u0301\u0915\u093e👨\u200d👩🏽🇩🇪한\u1100\u1161\u11a8\r\n "]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(max_examples=cases(60, 5000), deadline=None)
@given(texts, texts, texts)
def test_the_parts_make_the_whole(shared: str, left: str, right: str) -> None:
    chosen, rejected = shared + left, shared + right
    try:
        found = split_text(chosen, rejected)
    except InputError:
        assert chosen == rejected or not chosen or not rejected
        return
    assert isinstance(found.prompt, str)
    assert isinstance(found.chosen, str)
    assert isinstance(found.rejected, str)
    assert (found.prompt + found.chosen, found.prompt + found.rejected) == (chosen, rejected)
    assert found.chosen
    assert found.rejected
    for answer in (found.chosen, found.rejected):
        if found.prompt:
            assert unicodedata.category(answer[0]) not in ("Mn", "Mc", "Me")
            assert "\u200d" not in (answer[0], found.prompt[-1])
            assert (found.prompt[-1], answer[0]) != ("\r", "\n")
            assert not "🏻" <= answer[0] <= "🏿"


@settings(max_examples=cases(40, 3000), deadline=None)
@given(st.text("ab ", max_size=6), st.text("ab ", min_size=1, max_size=4), st.text("ab ", min_size=1, max_size=4))
def test_ascii_is_cut_as_trl_cuts(shared: str, left: str, right: str) -> None:
    """The rule of TRL's extract_prompt, except that at the very beginning it would look at the last character."""
    chosen, rejected = shared + left, shared + right
    if chosen == rejected:
        return
    place = 0
    for place in range(min(len(chosen), len(rejected))):
        if chosen[place] != rejected[place]:
            place -= place > 0 and chosen[place - 1] == " "
            break
    assert split_text(chosen, rejected).prompt == chosen[:place]


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("e\u0301a", "e\u0300a", ""),
        ("xé", "xe", "x"),
        ("👨\u200d👩", "👨\u200d👧", ""),
        ("a🇩🇪", "a🇩🇰", "a"),
        ("🇩🇪🇫🇷", "🇩🇪🇫🇮", "🇩🇪"),
        ("👍🏽", "👍🏿", ""),
        ("\r\na", "\r\nb", "\r\n"),
        ("a\r\n", "a\rb", "a"),
        ("\u1100\u1161\u11a8", "\u1100\u1161\u11a9", ""),
        ("abc", "ab", "a"),
    ],
)
def test_what_a_reader_sees_as_one_is_not_cut(chosen: str, rejected: str, prompt: str) -> None:
    assert split_text(chosen, rejected).prompt == prompt
