"""The prompt that is not said: where chosen and rejected part."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import InputError
from headrace.samples.layouts.known import split_text

texts = st.text("ae\u0301\U0001f600 \n", max_size=8)


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


@settings(max_examples=cases(40, 3000), deadline=None)
@given(
    st.text("ab\u0301 ", max_size=6),
    st.text("ab\u0301 ", min_size=1, max_size=4),
    st.text("ab\u0301 ", min_size=1, max_size=4),
)
def test_a_text_is_cut_as_trl_cuts(shared: str, left: str, right: str) -> None:
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
