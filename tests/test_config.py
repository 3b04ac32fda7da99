"""Faults of plain data are told with their path, what was found, what is allowed, and the nearest name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest

from headrace.config import (
    NotNegative,
    Positive,
    below,
    check_fields,
    check_keys,
    closest,
    convert,
    describe,
    nearest,
    nearest_or_known,
    whole,
)
from headrace.errors import ConfigError


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    parse: Literal["json", "csv"] = "json"
    size: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ConfigError("13 brings bad luck")


class One(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="one"):
    value: int


class Two(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="two"):
    value: str


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inputs: tuple[Inner, ...]
    names: dict[str, str] = {}
    pair: tuple[int, str] = (0, "")
    weight: int | float = msgspec.field(name="share", default=1)
    either: One | Two | None = None
    inner: Inner | str | None = None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the value is a list of 0; expected an object"),
        ({}, "inputs is missing"),
        ({"inptus": []}, "inptus is unknown; did you mean 'inputs'?; allowed here are inputs, names, pair, share, "),
        ({"inputs": [], "xyz": 1}, "xyz is unknown; allowed here are inputs"),
        ({"inputs": 3}, "inputs is the number 3; expected a list"),
        ({"inputs": [{"parse": "jsn"}]}, "inputs[0].parse is 'jsn'; did you mean 'json'?; allowed are 'json', 'csv'"),
        ({"inputs": [{}, {"size": 0}]}, "inputs[1].size is the number 0; expected a whole number >= 1"),
        ({"inputs": [{"size": 13}]}, "inputs[0]: 13 brings bad luck"),
        ({"inputs": [{"size": "a"}]}, "inputs[0].size is the string 'a'; expected a whole number or null"),
        ({"inputs": [], "names": {"a": None}}, "names.a is null; expected a string"),
        ({"inputs": [], "pair": [1, 2]}, "pair[1] is the number 2; expected a string"),
        ({"inputs": [], "pair": [1]}, "pair is a list of 1; expected a list of length 2"),
        ({"inputs": [], "share": True}, "share is the boolean True; expected a whole number or a number"),
        ({"inputs": [], "either": {"kind": "two", "value": 3}}, "either.value is the number 3; expected a string"),
        ({"inputs": [], "either": {"kind": "three"}}, "either.kind: Invalid value 'three'"),
        ({"inputs": [], "inner": {"prase": 1}}, "inner.prase is unknown; did you mean 'parse'?"),
        ({"inputs": [], "inner": 1.5}, "inner is the number 1.5; expected a string or an object or null"),
    ],
)
def test_faults(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(value, Outer)
    assert str(caught.value).startswith(message)


def test_what_is_right() -> None:
    inner = Inner(size=3)
    found = convert({"inputs": [{"parse": "csv"}, inner], "share": 3, "either": {"kind": "one", "value": 1}}, Outer)
    assert found == Outer(inputs=(Inner(parse="csv"), inner), weight=3, either=One(1))
    assert type(found.weight) is int


def test_paths() -> None:
    for where, message in (("my.yaml: ", "my.yaml: inputs.a"), ("my.yaml: x", "my.yaml: x.inputs.a"), ("", "inputs.a")):
        with pytest.raises(ConfigError, match=rf"{message}"):
            check_keys({"a": 1}, ["b"], below(where, "inputs"))
    with pytest.raises(ConfigError, match=r"my.yaml"):
        convert(None, Outer, "my.yaml: ")


def test_names() -> None:
    assert closest("wieght", ["weight", "height"]) == "weight"
    assert closest("x", ["weight"]) is None
    assert nearest("wieght", ["weight"]) == "; did you mean 'weight'?"
    assert nearest("x", ["weight"]) == ""
    assert nearest_or_known("x", ["b", "a"]) == "; known are 'a', 'b'"
    assert nearest_or_known("x", []) == "; known are none"
    assert nearest_or_known("aa", ["aab"]) == "; did you mean 'aab'?"
    assert describe({"a": 1}) == "an object with the fields 'a'"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    size: Positive = 1
    most: NotNegative | None = None
    how: Literal["early", "late"] | None = None
    left_out: Positive | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size is the number 0; expected a whole number >= 1"),
        ({"size": 0.5}, "size is 0.5; expected a whole number"),
        ({"size": None}, "size is None; expected a whole number"),
        ({"most": -1.0}, "most is the number -1; expected a whole number >= 0"),
        ({"how": "erly"}, "how is 'erly'; did you mean 'early'?; allowed are 'early', 'late'"),
        ({"left_out": 0}, "left_out is the number 0; expected a whole number >= 1"),
    ],
)
def test_fields_of_calls_from_python(fields: dict[str, Any], message: str) -> None:
    """As those of a file: a field is checked by its type, whose range and choices are declared once."""
    with pytest.raises(ConfigError) as caught:
        Sizes(**fields)
    assert str(caught.value) == message
    made: Any = {"size": 2.0, "most": np.int64(0)}
    assert (Sizes(**made).size, type(Sizes(**made).most)) == (2, int)


def test_whole_numbers_from_a_least_one_on() -> None:
    assert (whole(1.0, "n", least=1), whole(-1, "n")) == (1, -1)
    with pytest.raises(ConfigError, match=r"^n is 0; expected a whole number >= 1$"):
        whole(0, "n", least=1)
