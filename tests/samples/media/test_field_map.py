"""Field maps: what they name, which option works, and what is said where none does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError, FieldAccessError
from headrace.samples.media.mapper import (
    Option,
    access,
    first_that_works,
    parse_field,
    parse_field_map,
    parts_of,
    sources_of,
)

NAMES = st.text(st.characters(blacklist_characters="[],", blacklist_categories=("Cs", "Z", "Cc")), min_size=1)
OPTIONS = st.builds(Option, NAMES, st.lists(NAMES, max_size=4).map(tuple))


@pytest.mark.parametrize(
    ("description", "options"),
    [
        ("jpg, png", [("jpg", ()), ("png", ())]),
        ("txt,seg.json[a b][-1],cls", [("txt", ()), ("seg.json", ("a b", "-1")), ("cls", ())]),
    ],
)
def test_descriptions(description: str, options: list[Any]) -> None:
    assert list(parse_field(description)) == [Option(*option) for option in options]


@given(st.lists(OPTIONS, min_size=1, max_size=4))
def test_what_is_written_is_read(options: list[Option]) -> None:
    assert parse_field(",".join(map(str, options))) == tuple(options)


@pytest.mark.parametrize(
    ("description", "column"),
    [("", 1), ("jpg,", 5), ("json[", 1), ("json]", 1), ("json[]", 1), ("[a]", 1), ("txt,json[a]b", 5), ("a[b[c]]", 1)],
)
def test_descriptions_that_cannot_be_read(description: str, column: int) -> None:
    with pytest.raises(ConfigError, match=rf"{column}.*part\[key\]\[0\]"):
        parse_field_map({"caption": description})
    with pytest.raises(ConfigError, match="3"):
        parse_field_map({"label": 3})  # type: ignore[dict-item]


def test_parts_and_sources() -> None:
    found = parse_field_map({"image": "jpg,png", "label": "json[a]", "name": "json[b],__key__", "text": "png"})
    assert parts_of(found) == ("jpg", "png", "json")
    assert sources_of(found) == {"image": ("jpg", "png"), "label": ("json",), "name": ("json",), "text": ("png",)}


@given(st.lists(st.integers(0, 3), max_size=5), st.integers())
def test_steps_lead_where_python_does(path: list[int], leaf: int) -> None:
    value: Any = leaf
    steps: list[str] = []
    for number in reversed(path):
        if number % 2:
            value = {"before": 0, f"k{number}": value}
            steps.insert(0, f"k{number}")
        else:
            value = [*range(number), value]
            steps.insert(0, str(number))
    assert access(value, Option("json", tuple(steps)), "f") == leaf


def works(description: str, sample: dict[str, Any]) -> Any:
    return first_that_works(parse_field(description), "f", sample.__getitem__)


SAMPLE = {"json": {"a": [1, {"b": None}], "n": 3, "": 7}, "txt": "hello", "detail.json": [[5]]}


@pytest.mark.parametrize(
    ("description", "value"),
    [
        ("txt", "hello"),
        ("json[a][0]", 1),
        ("json[a][-1][b]", None),
        ("json[a][-2]", 1),
        ("detail.json[0][0]", 5),
        ("png,txt", "hello"),
        ("json[x],txt", "hello"),
        ("json[a][7],txt", "hello"),
        ("json[a][b],txt", "hello"),
        ("json[n][0],txt", "hello"),
        ("txt[0],json[n]", 3),
        ("txt,json[n]", "hello"),
        ("json[a][1][b],txt", None),
    ],
)
def test_the_first_option_that_works(description: str, value: Any) -> None:
    assert works(description, SAMPLE) == value


@pytest.mark.parametrize(
    ("description", "named"),
    [
        ("png", "'png'.*'f'.*'png'"),
        ("json[x]", r"'json'.*'f'.*\[x\].*'a', 'n', ''"),
        ("json[a][7]", r"\[7\].*json\[a\].*2"),
        ("json[a][b]", r"\[b\].*json\[a\].*list"),
        ("json[n][0]", r"\[0\].*json\[n\].*int"),
        ("txt[0]", r"\[0\].*txt.*str"),
        ("png,json[x]", r"'f'.*'png,json\[x\]'.*'png'.*\[x\].*json"),
    ],
)
def test_what_does_not_work(description: str, named: str) -> None:
    with pytest.raises(FieldAccessError, match=named):
        works(description, SAMPLE)
