"""Spans of JSON Lines: the records, lines and places that a plain loop finds, however the file is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import spans
from headrace.preparing.sources import RecordSpec, Span

SPEC = RecordSpec(fields=("text", "title"), id_field="id", whole=True)

good = st.fixed_dictionaries(
    {"text": st.text(max_size=12), "title": st.text(max_size=4), "id": st.integers() | st.text(max_size=3)},
    optional={"other": st.floats(allow_nan=True) | st.none()},
).map(lambda record: json.dumps(record, ensure_ascii=len(record) > 3).encode())
blank = st.sampled_from([b"", b" ", b"\t\r", b"\r"])
bad = st.sampled_from(
    [b"{", b"[]", b'{"text": "a"}', b'{"text": "a", "title": "b", "id": null}', b'{"text": "\xff"}', b"\xff"]
)
files = st.tuples(
    st.lists(good | good | blank | bad, max_size=12), st.booleans(), st.sampled_from([b"", b"\xef\xbb\xbf"])
).map(lambda parts: parts[2] + b"\n".join(parts[0]) + (b"\n" if parts[1] and parts[0] else b""))


def plain_loop(content: bytes) -> tuple[list[tuple[object, ...]], list[int], list[tuple[int, int]]]:
    """Records as (text, title, id, whole, line, place), blank lines, and bad ones as (line, place)."""
    records: list[tuple[object, ...]] = []
    blanks, bads = [], []
    place = 0
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
        if not text.strip():
            blanks.append(number)
        else:
            try:
                record = json.loads(text.decode())
                found = (record["text"] + "", record["title"] + "", record["id"])
                if found[2] is None:
                    raise TypeError
                records.append((*found[:2], str(found[2]), json.dumps(record), number, place))
            except (ValueError, TypeError, KeyError):
                bads.append((number, place))
        place += len(line) + 1
    return records, blanks, bads


@given(content=files, task_bytes=st.integers(1, 200), block_bytes=st.integers(1, 150))
def test_any_cut_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, task_bytes: int, block_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    records, blanks, bads = plain_loop(content)
    for size in (task_bytes, 1 << 40):
        found = spans.read(path, SPEC, task_bytes=size, block_bytes=block_bytes)
        wholes = map(json.dumps, found.records)
        columns = (*found.texts, found.ids, wholes, found.lines, found.places)
        assert list(zip(*columns, strict=True)) == records
        assert found.blank == blanks
        assert [(record.line, record.place) for record in found.bad] == bads
        assert not any(record.fatal for record in found.bad)
        assert found.input_bytes == len(content)
    assert found.xxh3_128 == xxhash.xxh3_128_hexdigest(content)


def test_one_field_and_no_id(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n{"text": "b", "id": {}}\r\n')
    found = spans.read(path)
    assert (found.texts, found.lines, found.places, found.blank) == ([["a", "b"]], [0, 2], [0, 15], [1])


def test_every_bad_record_is_told_and_nothing_else_is_lost(tmp_path: Path) -> None:
    lines = [
        b'{"text": "first"}',
        b"{",
        b"",
        b'{"text": null}',
        b'{"text": "good", "other": "\xff"}',
        b'{"body": ""}',
        b'{"text": "a\\ud800"}',
        b'{"text": NaN}',
        b'{"text": "last", "other": NaN}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    found = spans.read(path)
    assert found.texts == [["first", "last"]]
    assert found.lines == [0, 8]
    assert found.blank == [2]
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line) + 1)
    assert [(record.line, record.place) for record in found.bad] == [(at, begins[at]) for at in (1, 3, 4, 5, 6, 7)]
    starts = [
        "malformed JSON: Expecting property name",
        "field 'text' is not a string but null",
        "not UTF-8: byte 0xff at byte 27 of the line",
        "no field 'text'; its fields are: 'body'",
        "field 'text' is not Unicode text: unpaired surrogate \\ud800",
        "field 'text' is not a string but a number",
    ]
    assert [message[: len(start)] for message, start in zip(found.messages, starts, strict=True)] == starts


def test_bad_utf8_in_a_skipped_field_is_found_in_its_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "é"}\n'.encode() * 3 + b'{"text": "b", "other": "\xe9"}\n' + b'{"text": "c"}')
    found = spans.read(path)
    assert found.texts == [["é", "é", "é", "c"]]
    assert [record.line for record in found.bad] == [3]


@pytest.mark.parametrize("task_bytes", [7, 1 << 40])
def test_a_line_over_the_limit_is_one_bad_record(tmp_path: Path, task_bytes: int) -> None:
    path = tmp_path / "a.jsonl"
    long = json.dumps({"text": "x" * 500}).encode()
    path.write_bytes(b'{"text": "a"}\n' + long + b'\n\n{"text": "b"}\n')
    found = spans.read(path, task_bytes=task_bytes, block_bytes=32, max_record_bytes=100)
    assert (found.texts, found.lines, found.places, found.blank) == ([["a", "b"]], [0, 3], [0, 528], [2])
    (record,) = found.bad
    assert (record.line, record.place, record.fatal) == (1, 14, False)
    assert record.message.startswith('a line of 513 bytes; at most 100 are allowed; it begins with \'{"text": "xxx')
    assert record.message.endswith("is this JSON Lines, one object a line?")


def test_blocks_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "0123456789"}\n' * 1000)
    found = spans.read(path, block_bytes=460)
    assert len(found.texts[0]) == 1000
    assert len(found.block_sizes) == 50
    assert set(found.block_sizes) == {200}


def test_a_span_without_a_line_covers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"text": "x" * 100}).encode())
    (file,) = spans.find(path)
    found = spans.read_spans(file, [Span(0, 0, 10), Span(0, 10, 50), Span(0, 50, file.extent)])
    assert found.texts == [["x" * 100]]
