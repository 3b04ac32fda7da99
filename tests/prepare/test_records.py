"""One line -> one text, and what is said of a line that holds none."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.prepare.records import BadRecordError, RecordReader

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(text=st.text(), extra=st.dictionaries(st.text().filter(lambda name: name != "text"), json_values, max_size=3))
def test_reads_what_json_reads(text: str, extra: dict[str, object]) -> None:
    record = {**extra, "text": text}
    for ensure_ascii in (True, False):
        line = json.dumps(record, ensure_ascii=ensure_ascii).encode()
        assert RecordReader("text").read(line) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text":"a"}\r', "a"),
        (b'  {"text" : "a"}  ', "a"),
        (b'{"te\\u0078t":"a"}', "a"),
        (b'{"text":"a","text":"b"}', "b"),
        (b'{"text":"a","score":NaN,"more":[Infinity,-Infinity]}', "a"),
        (b'{"text":"a","other":"\\ud800"}', "a"),
        (b'{"text":"\\ud83d\\ude00\\u0000"}', "\U0001f600\0"),
    ],
)
def test_accepts(line: bytes, text: str) -> None:
    assert RecordReader("text").read(line) == text == json.loads(line)["text"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "malformed JSON: Expecting ',' delimiter: line 1 column 13"),
        (b'{"text": "a"} {"text": "b"}', "malformed JSON: Extra data"),
        (b'{"text": "a",}', "malformed JSON"),
        (b'{"text": "a\\q"}', r"malformed JSON: Invalid \escape"),
        (b'{"text": "a", "n": 01}', "malformed JSON"),
        (b'{"text": "a\tb"}', "malformed JSON: Invalid control character"),
        (b"hello", "found 'hello'"),
        (b"\0\0", "malformed JSON"),
        (b'["a"]', "not a JSON object but an array; found '[\"a\"]'"),
        (b'"a"', "not a JSON object but a string"),
        (b"3", "not a JSON object but a number"),
        (b"null", "not a JSON object but null"),
        (b'{"body": "a", "id": 1}', "no field 'text'; its fields are: 'body', 'id' (choose with --text-field)"),
        (b"{}", "no field 'text'; its fields are: none"),
        (b'{"text": 5}', "field 'text' is not a string but a number"),
        (b'{"text": true}', "field 'text' is not a string but a boolean"),
        (b'{"text": null}', "field 'text' is not a string but null"),
        (b'{"text": ["a"]}', "field 'text' is not a string but an array"),
        (b'{"text": {}}', "field 'text' is not a string but an object"),
        (b'{"text": "ab\\ud800"}', "unpaired surrogate \\ud800 at character 2"),
        (b'{"text": "a\xff"}', "not UTF-8: byte 0xff at byte 11 of the line; found near it"),
        (b"\x1f\x8b\x08\x00\xff", "looks compressed with gzip"),
        (b"\xff\xfe{\0", "looks like UTF-16"),
    ],
)
def test_refuses(line: bytes, message: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        RecordReader("text").read(line)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_refuses_bottomless_nesting() -> None:
    depth = sys.getrecursionlimit() * 20
    with pytest.raises(BadRecordError, match="nested too deeply"):
        RecordReader("text").read(b'{"text":"a","x":' + b"[" * depth + b"]" * depth + b"}")


def test_another_field() -> None:
    assert RecordReader("the text").read(b'{"text": 1, "the text": "a"}') == "a"
