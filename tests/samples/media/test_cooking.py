"""The cooker of a dataset is the first whose subflavors it has, and gets what it asked for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.samples.media import Cooker, CrudeSample, SourceInfo, TextSample, basic_sample_keys, choose_cooker, cooker

SOURCE = SourceInfo(dataset_path="d", index=0, shard_name="a.tar", file_names=("k.txt",))
CRUDE = CrudeSample(
    __key__="k", __restore_key__=(1,), __subflavors__=None, __sources__=(SOURCE,), __shard__="a", txt="hi"
)


def cook_text(crude: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(crude), text=crude["txt"])


@cooker
def plain(crude: dict[str, Any], **given: Any) -> Any:
    """Says what it is given."""
    return crude["txt"], given


@cooker(need_primary=True, need_cache=True)
def wanting(crude: dict[str, Any], **given: Any) -> Any:
    return crude["txt"], given


def test_cooking() -> None:
    assert Cooker(cook_text)(CRUDE) == TextSample(__key__="k", __restore_key__=(1,), __sources__=(SOURCE,), text="hi")
    assert basic_sample_keys({"__key__": "k", "txt": 1}) == {"__key__": "k"}
    added = basic_sample_keys({"__key__": "k", "__sources__": None}, (SOURCE,))
    assert added == {"__key__": "k", "__sources__": (SOURCE,)}
    assert basic_sample_keys(CRUDE, (SOURCE,))["__sources__"] == (SOURCE, SOURCE)


def test_what_a_cooker_is_given() -> None:
    assert (Cooker(plain).need_primary, Cooker(plain).need_cache) == (False, False)
    assert (Cooker(wanting).need_primary, Cooker(wanting).need_cache) == (True, True)
    assert Cooker(plain)(CRUDE, primary=1, cache=2, aux={"media": 3}) == ("hi", {"media": 3})
    assert Cooker(wanting)(CRUDE, primary=1, cache=2) == ("hi", {"primary": 1, "cache": 2})
    assert (plain.__name__, plain.__doc__) == ("plain", "Says what it is given.")
    with pytest.raises(ConfigError, match="primary="):
        Cooker(wanting)(CRUDE, cache=2)
    with pytest.raises(ConfigError, match="cache="):
        Cooker(wanting)(CRUDE, primary=2)
    with pytest.raises(ConfigError, match="'cache'"):
        Cooker(plain)(CRUDE, aux={"cache": 3})


@pytest.mark.parametrize(
    ("asked", "there", "matches"),
    [
        (None, None, True),
        (None, {"a": 1}, True),
        ({}, None, True),
        ({"a": 1}, None, False),
        ({"a": 1}, {}, False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
    ],
)
def test_subflavors(asked: dict[str, Any] | None, there: dict[str, Any] | None, matches: bool) -> None:
    assert Cooker(cook_text, has_subflavors=asked).is_match(there) is matches


def test_the_first_that_matches() -> None:
    cookers = [Cooker(plain, {"kind": "a"}), Cooker(cook_text, {"kind": "b"}), Cooker(wanting)]
    assert choose_cooker(cookers, {"kind": "b"}, "data").cook is cook_text
    assert choose_cooker(cookers, {"kind": "c"}, "data").cook is wanting
    assert choose_cooker(cookers, None, "data").cook is wanting
    with pytest.raises(ConfigError, match=r"my/data.*'c'.*plain.*'a'.*cook_text.*'b'"):
        choose_cooker(cookers[:2], {"kind": "c"}, "my/data")
    for some in (cookers[:2], []):
        with pytest.raises(ConfigError, match="my/data"):
            choose_cooker(some, None, "my/data")
