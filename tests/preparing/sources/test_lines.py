"""Files of lines: text as documents, paragraphs and lines; and JSON Lines."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import pytest
import xxhash
from hypothesis import example, given, strategies as st

import spans
from headrace.errors import InputError
from headrace.preparing.sources import RecordSpec, SampleBy
from headrace.preparing.sources.json import DECODE_ERRORS, BadRecordError, RecordReader

CRLF = "\ufeffone\r\nmore\r\n\r\ntwo\r\n\r\n \r\nthree\0nul"
ELSEWHERE = "x\fc\vd\x1ce\x85f\u2028g\u2029h\0i"
"""What ends a line in other programs is text here."""

contents = st.tuples(
    st.lists(st.sampled_from(["a", "bé", " ", "\n", "\n", "\n\n", "\r\n", "\r\n", "\r", "\t", ELSEWHERE]), max_size=30),
    st.booleans(),
).map(lambda parts: ("\ufeff" if parts[1] else "") + "".join(parts[0]))


def spec(sample_by: SampleBy, max_record_bytes: int = 1 << 20, **more: bool) -> RecordSpec:
    return RecordSpec(sample_by=sample_by, max_record_bytes=max_record_bytes, **more)


def write(folder: pytest.TempPathFactory, content: str) -> Path:
    path = folder.getbasetemp() / "any.txt"
    path.write_bytes(content.encode())
    return path


def pieces(content: str, separator: str) -> list[tuple[str, int]]:
    """Text between the separators, and the byte where each begins."""
    found, begin = [], 0
    for match in [*re.finditer(separator, content), None]:
        end = match.start() if match else len(content)
        found.append((content[begin:end], len(content[:begin].encode())))
        begin = match.end() if match else end
    return found


@given(content=contents, task_bytes=st.integers(1, 40), block_bytes=st.integers(1, 30))
@example(content="a\r\nb\r", task_bytes=40, block_bytes=30)
@example(content="a\rb\r", task_bytes=40, block_bytes=30)
@example(content=CRLF, task_bytes=40, block_bytes=7)
def test_lines(tmp_path_factory: pytest.TempPathFactory, content: str, task_bytes: int, block_bytes: int) -> None:
    path = write(tmp_path_factory, content)
    lines = pieces(content, "\n")
    if not lines[-1][0]:
        lines.pop()
    wanted = []
    for number, (line, place) in enumerate(lines):
        text = line.removeprefix("\ufeff") if number == 0 else line
        if text.strip():
            has_newline = number + 1 < len(lines) or content.endswith("\n")
            wanted.append((text.removesuffix("\r") if has_newline else text, number, place))
    for size in (task_bytes, 1 << 40):
        found = spans.read(path, spec("line"), task_bytes=size, block_bytes=block_bytes)
        assert list(zip(found.texts[0], found.lines, found.places, strict=True)) == wanted
        assert found.num_lines == len(lines)
        assert found.input_bytes == len(content.encode())


@given(content=contents, block_bytes=st.integers(1, 30))
@example(content="a\r\nb\r", block_bytes=30)
@example(content="a\rb\r", block_bytes=30)
@example(content=CRLF, block_bytes=7)
def test_paragraphs(tmp_path_factory: pytest.TempPathFactory, content: str, block_bytes: int) -> None:
    path = write(tmp_path_factory, content)
    lines = pieces(content, "\n")
    wanted: list[tuple[str, int]] = []
    is_open = False
    for number, (line, place) in enumerate(lines):
        text = line.removeprefix("\ufeff") if number == 0 else line
        text += "\n" if number + 1 < len(lines) else ""
        if not text.strip():
            is_open = False
        elif is_open:
            wanted[-1] = (wanted[-1][0] + text, wanted[-1][1])
        else:
            wanted.append((text, place))
            is_open = True
    wanted = [(re.sub(r"\r?\n\Z", "", text), place) for text, place in wanted]
    found = spans.read(path, spec("paragraph"), task_bytes=1, block_bytes=block_bytes)
    assert list(zip(found.texts[0], found.places, strict=True)) == wanted
    assert found.lines == list(range(len(wanted)))
    assert found.blank == []


@given(content=contents, block_bytes=st.integers(1, 30))
@example(content=CRLF, block_bytes=7)
def test_documents(tmp_path_factory: pytest.TempPathFactory, content: str, block_bytes: int) -> None:
    path = write(tmp_path_factory, content)
    found = spans.read(path, spec("document"), task_bytes=1, block_bytes=block_bytes)
    text = content.removeprefix("\ufeff")
    assert found.texts == [[text] if text.strip() else []]
    assert found.places == found.lines == [0] * len(found.texts[0])
    assert found.blank == ([0] if content and not text.strip() else [])


@pytest.mark.parametrize(
    ("sample_by", "texts", "bad", "message"),
    [
        ("line", ["a", "c", "d"], [(1, 2)], "not UTF-8: byte 0xff at byte 1 of the line; found near it 'b�'"),
        ("paragraph", ["d"], [(0, 0)], "not UTF-8: byte 0xff at byte 3 of the paragraph; found near it 'a\\nb�\\nc'"),
        ("document", [], [(0, 0)], "not UTF-8: byte 0xff at byte 3 of the document"),
    ],
)
def test_bad_utf8(
    tmp_path: Path, sample_by: SampleBy, texts: list[str], bad: list[tuple[int, int]], message: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\xff\nc\n\nd\n")
    found = spans.read(path, spec(sample_by))
    assert found.texts == [texts]
    assert [(record.line, record.place) for record in found.bad] == bad
    assert found.messages[0].startswith(message)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("sample_by", "texts", "bad", "message"),
    [
        ("line", ["a", "b"], [(1, 2)], "a line of 51 bytes; at most 20 are allowed; it begins with 'xxx"),
        ("paragraph", ["b"], [(0, 0)], "a paragraph of 53 bytes; at most 20 are allowed; it begins with 'a"),
        ("document", [], [(0, 0)], "a document of 56 bytes; at most 20 are allowed; it begins with 'a"),
    ],
)
def test_records_over_the_limit(
    tmp_path: Path, ending: str, sample_by: SampleBy, texts: list[str], bad: list[tuple[int, int]], message: str
) -> None:
    path = tmp_path / f"a.txt{ending}"
    content = b"a\n" + b"x" * 50 + b"\n\nb\n"
    path.write_bytes(gzip.compress(content) if ending else content)
    found = spans.read(path, spec(sample_by, 20), block_bytes=8)
    assert found.texts == [texts]
    assert [(record.line, record.place, record.fatal) for record in found.bad] == [(*at, False) for at in bad]
    assert found.messages[0].startswith(message)


def test_many_short_lines_over_the_limit_are_one_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n\n" + b"x\n" * 30 + b"\nlast")
    found = spans.read(path, spec("paragraph", 20), block_bytes=8)
    assert found.texts == [["first", "last"]]
    assert found.lines == [0, 2]
    assert found.messages[0].startswith("a paragraph of 60 bytes; at most 20 are allowed; it begins with 'x\\nx\\n")


def test_a_paragraph_of_just_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789\n012345678\n")
    for sample_by, limit in (("paragraph", 21), ("document", 21)):
        assert spans.read(path, spec(sample_by, limit)).bad == []  # type: ignore[arg-type]
        assert len(spans.read(path, spec(sample_by, limit - 1)).bad) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
def test_whole_records(tmp_path: Path, sample_by: SampleBy) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a")
    assert spans.read(path, spec(sample_by, whole=True)).records == [{"text": "a"}]


@pytest.mark.parametrize(("sample_by", "before"), [("document", []), ("paragraph", ["a"]), ("line", ["a"])])
def test_torn_archives(tmp_path: Path, sample_by: SampleBy, before: list[str]) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\n\n" + bytes(range(33, 120)) * 50)[:-9])
    found = spans.read(path, spec(sample_by))
    assert found.texts == [before]
    assert [record.fatal for record in found.bad] == [True]
    assert found.messages[0].startswith("the gzip data is incomplete")


def test_a_large_file_by_paragraphs_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\n" * 3000)
    found = spans.read(path, spec("paragraph"), block_bytes=900)
    assert found.texts == [["one\ntwo"] * 3000]
    assert len(found.block_sizes) >= 29
    assert found.input_bytes == 27_000


# Spans of JSON Lines: the records, lines and places that a plain loop finds, however the file is cut.


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
@example(content=b"", task_bytes=1, block_bytes=1)
@example(content=json.dumps({"text": "x" * 100, "title": "", "id": 1}).encode(), task_bytes=10, block_bytes=150)
def test_any_cut_of_json_lines_gives_the_same(
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
    named = ["malformed", "null", "0xff at byte 27", "'body'", "\\ud800", "the number"]
    assert [one for one, message in zip(named, found.messages, strict=True) if one not in message] == []


# One line -> one text, and what is said of a line that holds none.


def take(line: bytes, spec: RecordSpec = spans.SPEC) -> tuple[list[str], str | None, object]:
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
        (b'{"text": "a", "n": 01}', "malformed JSON"),
        (b"hello", "found 'hello'"),
        (b'["a"]', "not a JSON object but a list of 1; found '[\"a\"]'"),
        (b'"a"', "not a JSON object but the string 'a'"),
        (b'{"body": "a", "id": 1}', "no field 'text'; its fields are: 'body', 'id' (choose with --field)"),
        (b"{}", "no field 'text'; its fields are: none"),
        (b'{"text": 5}', "field 'text' is not a string but the number 5"),
        (b'{"text": true}', "field 'text' is not a string but the boolean True"),
        (b'{"text": null}', "field 'text' is not a string but null"),
        (b'{"text": ["a"]}', "field 'text' is not a string but a list of 1"),
        (b'{"text": {}}', "field 'text' is not a string but an object with the fields none"),
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
    with pytest.raises(BadRecordError, match="deeply"):
        read(b'{"text":"a","x":' + b"[" * depth + b"]" * depth + b"}")


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
        (b'{"text": "a", "id": true}', "id field 'id' is neither a string nor an integer but the boolean True"),
        (b'{"text": "a", "id": 1.5}', "id field 'id' is neither a string nor an integer but the number 1.5"),
        (b'{"text": "a", "id": 1.0}', "id field 'id' is neither a string nor an integer but the number 1.0"),
        (b'{"text": "a", "id": "\\ud800"}', "field 'id' is not Unicode text: unpaired surrogate"),
        (b'{"text": "a", "id": ' + b"1" * 5000 + b"}", "Exceeds the limit (4300 digits)"),
    ],
)
def test_bad_ids(line: bytes, message: str, whole: bool) -> None:
    with pytest.raises(BadRecordError) as caught:
        take(line, RecordSpec(id_field="id", whole=whole))
    assert message in str(caught.value)


@given(record=st.dictionaries(st.text(), json_values, max_size=3), text=st.text())
def test_texts_and_whole_records_are_what_json_reads(record: dict[str, object], text: str) -> None:
    line = json.dumps({**record, "text": text}).encode()
    texts, _, whole = take(line, WHOLE)
    assert texts == [text] == [read(line)]
    assert read(json.dumps({**record, "text": text}, ensure_ascii=False).encode()) == text
    assert json.dumps(whole) == json.dumps(json.loads(line))


def test_a_strict_decoder_sees_the_fields_that_are_skipped() -> None:
    line = b'{"text": "a", "other": "\xe9"}'
    assert RecordReader(spans.SPEC).decode(line) is not None
    with pytest.raises(UnicodeDecodeError):
        RecordReader(spans.SPEC).decode_strictly(line)
    with pytest.raises(BadRecordError, match=r"UTF-8.*0xe9.*24"):
        RecordReader(spans.SPEC).decode_slowly(line)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_csv(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    rows = ["\ufeffn,text,more", '1,"a,b\n""c""",x', "", "2,é,", "3,y", '4,,"\r\n"']
    path.write_text("\n".join(rows).replace("a,b", "a;b").replace(",", "," if ending == "csv" else "\t"), newline="")
    read = spans.read(path, RecordSpec(fields=("text", "more"), id_field="n"), block_bytes=8)
    assert (read.texts, read.ids) == ([['a;b\n"c"', "é", ""], ["x", "", "\r\n"]], ["1", "2", "4"])
    assert (read.lines, read.blank, read.num_lines, read.input_bytes) == ([0, 2, 4], [1], 5, path.stat().st_size)
    assert [(bad.line, bad.fatal) for bad in read.bad] == [(3, False)]
    assert "2 values, and the first line names 3 columns" in read.messages[0]
    assert len(read.block_sizes) > 1
    path.write_text('text\n"open')
    assert [(bad.line, bad.fatal) for bad in spans.read(path).bad] == [(0, True)]
    with pytest.raises(InputError, match="no column 'txt'; did you mean 'text'"):
        spans.read(path, RecordSpec(fields=("txt",)))
