"""Text files as documents, paragraphs and lines."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spans
from headrace.preparing.sources import RecordSpec, SampleBy

contents = st.tuples(
    st.lists(st.sampled_from(["a", "bé", " ", "\n", "\n", "\n\n", "\r\n", "\r\n", "\r", "\t", "x y"]), max_size=30),
    st.booleans(),
).map(lambda parts: ("\ufeff" if parts[1] else "") + "".join(parts[0]))


def spec(sample_by: SampleBy, **more: bool) -> RecordSpec:
    return RecordSpec(sample_by=sample_by, **more)


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
    found = spans.read(path, spec(sample_by), block_bytes=8, max_record_bytes=20)
    assert found.texts == [texts]
    assert [(record.line, record.place, record.fatal) for record in found.bad] == [(*at, False) for at in bad]
    assert found.messages[0].startswith(message)


def test_many_short_lines_over_the_limit_are_one_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n\n" + b"x\n" * 30 + b"\nlast")
    found = spans.read(path, spec("paragraph"), block_bytes=8, max_record_bytes=20)
    assert found.texts == [["first", "last"]]
    assert found.lines == [0, 2]
    assert found.messages[0].startswith("a paragraph of 60 bytes; at most 20 are allowed; it begins with 'x\\nx\\n")


def test_a_paragraph_of_just_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789\n012345678\n")
    for sample_by, limit in (("paragraph", 21), ("document", 21)):
        assert spans.read(path, spec(sample_by), max_record_bytes=limit).bad == []  # type: ignore[arg-type]
        assert len(spans.read(path, spec(sample_by), max_record_bytes=limit - 1).bad) == 1  # type: ignore[arg-type]


def test_what_looks_like_utf16(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("text".encode("utf-16"))
    assert "it looks like UTF-16: convert it to UTF-8" in spans.read(path).messages[0]


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


@pytest.mark.parametrize(
    ("sample_by", "texts"), [("document", ["a\r\nb\r"]), ("paragraph", ["a\r\nb\r"]), ("line", ["a", "b\r"])]
)
def test_only_before_a_newline_a_return_ends_a_line(tmp_path: Path, sample_by: SampleBy, texts: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\r\nb\r")
    assert spans.read(path, spec(sample_by)).texts == [texts]


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("sample_by", "texts"),
    [
        ("document", ["one\r\nmore\r\n\r\ntwo\r\n\r\n \r\nthree\0nul"]),
        ("paragraph", ["one\r\nmore", "two", "three\0nul"]),
        ("line", ["one", "more", "two", "three\0nul"]),
    ],
)
def test_crlf_stays_what_it_is(tmp_path: Path, sample_by: SampleBy, texts: list[str], block_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\nmore\r\n\r\ntwo\r\n\r\n \r\nthree\0nul")
    assert spans.read(path, spec(sample_by), block_bytes=block_bytes).texts == [texts]


@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
def test_what_ends_lines_elsewhere_is_text(tmp_path: Path, sample_by: SampleBy) -> None:
    text = "a\rb\fc\vd\x1ce\x85f\u2028g\u2029h\r"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert spans.read(path, spec(sample_by)).texts == [[text]]
