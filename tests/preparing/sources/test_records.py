"""One line -> one text, and what is said of a line that holds none."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.sources import RecordSpec
from headrace.preparing.sources.json import DECODE_ERRORS, BadRecordError, RecordReader

SPEC = RecordSpec()


def take(line: bytes, spec: RecordSpec = SPEC) -> tuple[list[str], str | None, object]:
    """As the parser of blocks does: texts, id and whole record of a line."""
    reader = RecordReader(spec)
    try:
        record = reader.decode(line)
    except DECODE_ERRORS:
        record = reader.decode_slowly(line)
    ids, wholes = reader.ids([record]), reader.wholes([record])
    return [texts[0] for texts in reader.texts([record])], ids[0] if ids else None, wholes[0] if wholes else None


def read(line: bytes) -> str:
    return take(line)[0][0]


WHOLE = RecordSpec(fields=("text",), whole=True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(text=st.text(), extra=st.dictionaries(st.text().filter(lambda name: name != "text"), json_values, max_size=3))
def test_reads_what_json_reads(text: str, extra: dict[str, object]) -> None:
    record = {**extra, "text": text}
    for ensure_ascii in (True, False):
        line = json.dumps(record, ensure_ascii=ensure_ascii).encode()
        assert read(line) == text


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
    assert read(line) == text == json.loads(line)["text"]


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
        read(line)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_refuses_bottomless_nesting() -> None:
    depth = sys.getrecursionlimit() * 20
    with pytest.raises(BadRecordError, match="nested too deeply"):
        read(b'{"text":"a","x":' + b"[" * depth + b"]" * depth + b"}")


def test_another_field() -> None:
    assert take(b'{"text": 1, "the text": "a"}', RecordSpec(fields=("the text",)))[0] == ["a"]


def test_several_fields_and_the_id_among_them() -> None:
    spec = RecordSpec(fields=("title", "body"), id_field="title")
    assert take(b'{"body": "b", "title": "t", "more": 1}', spec) == (["t", "b"], "t", None)
    spec = RecordSpec(fields=("body", "title", "body"))
    assert take(b'{"body": "b", "title": "t"}', spec) == (["b", "t", "b"], None, None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'"x1"', "x1"),
        (b'""', ""),
        (b"0", "0"),
        (b"-7", "-7"),
        (b"18446744073709551616", "18446744073709551616"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_ids(value: bytes, wanted: str, whole: bool) -> None:
    spec = RecordSpec(id_field="id", whole=whole)
    line = b'{"text": "a", "id": ' + value + b"}"
    assert take(line, spec) == (["a"], wanted, json.loads(line) if whole else None)
    assert RecordReader(spec).ids([RecordReader(spec).decode_slowly(line)]) == [wanted]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"}', "no field 'id'; its fields are: 'text' (choose with --id-field)"),
        (b'{"text": "a", "id": null}', "id field 'id' is neither a string nor an integer but null"),
        (b'{"text": "a", "id": true}', "id field 'id' is neither a string nor an integer but a boolean"),
        (b'{"text": "a", "id": 1.5}', "id field 'id' is neither a string nor an integer but a number"),
        (b'{"text": "a", "id": 1.0}', "id field 'id' is neither a string nor an integer but a number"),
        (b'{"text": "a", "id": "\\ud800"}', "field 'id' is not Unicode text: unpaired surrogate"),
        (b'{"text": "a", "id": ' + b"1" * 5000 + b"}", "Exceeds the limit (4300 digits)"),
    ],
)
def test_bad_ids(line: bytes, message: str, whole: bool) -> None:
    with pytest.raises(BadRecordError) as caught:
        take(line, RecordSpec(id_field="id", whole=whole))
    assert message in str(caught.value)


def test_a_record_that_lacks_one_of_several_fields() -> None:
    with pytest.raises(BadRecordError, match=r"no field 'body'; its fields are: 'title' \(choose with --field\)"):
        take(b'{"title": "t"}', RecordSpec(fields=("title", "body")))


@given(record=st.dictionaries(st.text(), json_values, max_size=3), text=st.text())
def test_whole_records_are_what_json_reads(record: dict[str, object], text: str) -> None:
    line = json.dumps({**record, "text": text}).encode()
    texts, _, whole = take(line, WHOLE)
    assert texts == [text]
    assert json.dumps(whole) == json.dumps(json.loads(line))


@pytest.mark.parametrize("line", [b"7", b"null", b'"text"', b'["text"]', b"true"])
def test_whole_records_that_are_no_objects(line: bytes) -> None:
    with pytest.raises(BadRecordError, match="not a JSON object but"):
        take(line, WHOLE)


def test_a_strict_decoder_sees_the_fields_that_are_skipped() -> None:
    line = b'{"text": "a", "other": "\xe9"}'
    assert RecordReader(SPEC).decode(line) is not None
    with pytest.raises(UnicodeDecodeError):
        RecordReader(SPEC).decode_strictly(line)
    with pytest.raises(BadRecordError, match="not UTF-8: byte 0xe9 at byte 24 of the line"):
        RecordReader(SPEC).decode_slowly(line)
