"""What all readers share: files that cannot be opened or change, and what a person calls a record's place."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import spans
from headrace.errors import InputError
from headrace.preparing.sources import SampleBy, SourceFile, Span, open_span, record_noun
from headrace.preparing.sources.source_file import Format


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("grow", "the file changed during the run: its size went from"),
        ("touch", "the file changed during the run: its modification time has changed"),
        ("vanish", "the file cannot be read: No such file"),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_files_that_change(tmp_path: Path, name: str, change: str, message: str, is_open: bool) -> None:
    path = tmp_path / name
    content = b'{"text": "a"}\n' * 1000
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (file,) = spans.find(path)
    blocks = open_span(file, Span(0, 0, file.extent), spans.SPEC, block_bytes=1000).blocks()
    if is_open:
        next(blocks)
    if change == "grow":
        with path.open("ab") as stream:
            stream.write(b"x")
    elif change == "touch":
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns + 1))
    else:
        path.unlink()
        if is_open:  # what is open stays
            assert len(list(blocks)) > 5
            return
    with pytest.raises(InputError) as caught:
        list(blocks)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_only_whole_files_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 10)
    (file,) = spans.find(path)
    reader = open_span(file, Span(0, 0, 70), spans.SPEC)
    list(reader.blocks())
    assert reader.xxh3_128 == ""


def test_source_files_travel_as_msgpack(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    (file,) = spans.find(path)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(file), type=SourceFile) == file


@pytest.mark.parametrize(
    ("kind", "sample_by", "noun"),
    [
        ("jsonl", "document", "line"),
        ("jsonl.zst", "line", "line"),
        ("parquet", "document", "row"),
        ("arrow", "document", "row"),
        ("txt", "document", "document"),
        ("txt.gz", "paragraph", "paragraph"),
        ("txt", "line", "line"),
    ],
)
def test_nouns(kind: Format, sample_by: SampleBy, noun: str) -> None:
    assert record_noun(kind, sample_by) == noun


def test_plain_lines_need_neither_pyarrow_nor_zstandard(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n')
    code = (
        "import sys; from headrace.preparing.sources import *; spec = RecordSpec(); "
        f"file, = find_inputs([{str(path)!r}], spec=spec); "
        "blocks = list(open_span(file, Span(0, 0, file.extent), spec).blocks()); "
        "print(blocks[0].texts, *({'pyarrow', 'zstandard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[['a']]\n"
