"""Rows of tables -> samples, for every format and every kind of part."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, InputError
from headrace.preparing import ErrorOptions
from headrace.preparing.shards import PartSpec, ShardOptions, ShardSource
from headrace.stores import load_manifest
from shards_made import JPG, PNG, image, inline, prepare, read_all, rows, tar_of, write_pictures, write_table

SKIP = ErrorOptions(on_error="skip")
WAV, MP4 = b"RIFF\x24\0\0\0WAVEfmt ", b"\0\0\0\x18ftypisom"
FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow")


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    with inline():
        yield


def source(*parts: str, **others: Any) -> ShardSource:
    return ShardSource(parts=tuple(map(PartSpec.parse, parts)), **others)


@pytest.mark.parametrize("kind", FORMATS)
def test_paths_columns_and_the_rest(tmp_path: Path, kind: str) -> None:
    records = rows(30)
    write_pictures(tmp_path, 30)
    write_table(tmp_path / f"t.{kind}", records)
    given = source("jpg=path:file", "txt=column:caption", "json=row", key_field="id")
    prepare(tmp_path / f"t.{kind}", tmp_path / "out", ShardOptions(source=given))
    score = str if kind in ("csv", "tsv") else float
    wanted = {
        row["id"]: {
            "jpg": image(number),
            "txt": row["caption"].encode(),
            "json": json.dumps({"score": score(row["score"])}, separators=(",", ":")).encode(),
        }
        for number, row in enumerate(records)
    }
    assert (tmp_path / "out" / "shard-000000.tar").read_bytes() == tar_of(wanted)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_bytes_and_numbers(tmp_path: Path, kind: str) -> None:
    records = [{"picture": image(number, PNG if number % 3 else JPG), "text": f"t{number}"} for number in range(25)]
    write_table(tmp_path / f"t.{kind}", records)
    prepare(
        tmp_path / f"t.{kind}", tmp_path / "out", ShardOptions(source=source("image=bytes:picture", "cls=column:text"))
    )
    wanted = {
        f"{number:09d}": {"png" if number % 3 else "jpg": row["picture"], "cls": row["text"].encode()}
        for number, row in enumerate(records)
    }
    assert read_all(tmp_path / "out") == wanted


def test_images_of_hugging_face(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    records = [
        {
            "image": {"bytes": image(number) if number != 1 else None, "path": f"pictures/{number:03d}.jpg"},
            "label": number,
        }
        for number in range(3)
    ]
    write_table(tmp_path / "t.parquet", records)
    manifest = prepare(
        tmp_path / "t.parquet", tmp_path / "out", ShardOptions(source=source("image=bytes:image", "cls=column:label"))
    )
    assert read_all(tmp_path / "out") == {
        f"{number:09d}": {"jpg": image(number), "cls": str(number).encode()} for number in range(3)
    }
    assert [entry.format for entry in manifest.inputs] == ["parquet", "files"]
    assert manifest.inputs[1].size == len(image(1))


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"image": base64.b64encode(image(1)).decode(), "caption": "x"}, ["image=bytes:image", "txt=column:caption"]),
        ({"image": "pictures/001.jpg", "text": "x"}, ["image=path:image", "txt=column:text"]),
        ({"image_path": "pictures/001.jpg", "n": 1}, ["image=path:image_path", "json=row"]),
        (
            {"file_name": "pictures/001.jpg", "caption": "x", "n": 1},
            ["image=path:file_name", "txt=column:caption", "json=row"],
        ),
        ({"text": "x"}, ["txt=column:text"]),
        (
            {"audio_filepath": "a.wav", "duration": 1.0, "text": "x"},
            ["audio=path:audio_filepath", "txt=column:text", "json=row"],
        ),
        (
            {"audio": "a.wav", "video": "b.mp4", "image": "pictures/001.jpg"},
            ["image=path:image", "audio=path:audio", "video=path:video"],
        ),
        ({"path": "a.wav", "text": "x"}, ["audio=path:path", "txt=column:text"]),
        ({"my_film": "b.mp4", "text": "x"}, ["video=path:my_film", "txt=column:text"]),
        ({"my_sound": "none.wav", "text": "x"}, ["txt=column:text", "json=row"]),
    ],
)
def test_columns_that_are_known(tmp_path: Path, row: dict[str, Any], wanted: list[str]) -> None:
    write_pictures(tmp_path, 2)
    write_sounds(tmp_path)
    write_table(tmp_path / "t.jsonl", [row])
    manifest = prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions())
    assert manifest.options["parts"] == [wanted]


def write_sounds(folder: Path) -> None:
    for name, content in {"a.wav": WAV, "b.mp4": MP4, "c.bin": WAV}.items():
        (folder / name).write_bytes(content)


def test_sound_and_video_are_named_as_what_they_are(tmp_path: Path) -> None:
    """The files of a manifest of speech were left out, and their names kept as text."""
    write_sounds(tmp_path)
    write_table(tmp_path / "t.parquet", [{"audio": {"bytes": WAV, "path": "x"}, "video": MP4}])
    write_table(tmp_path / "t.jsonl", [{"audio_filepath": sound, "text": "x"} for sound in ("a.wav", "c.bin")])
    prepare([tmp_path / "t.jsonl", tmp_path / "t.parquet"], tmp_path / "out", ShardOptions())
    assert list(read_all(tmp_path / "out").values()) == [
        {"wav": WAV, "txt": b"x"},
        {"wav": WAV, "txt": b"x"},
        {"wav": WAV, "mp4": MP4},
    ]
    write_table(tmp_path / "no.jsonl", [{"audio": "no.bin", "text": "x"}])
    (tmp_path / "no.bin").write_bytes(b"no sound")
    with pytest.raises(InputError, match=r"part 'audio' is not a sound or video of a known format; .*b'no sound'"):
        prepare(tmp_path / "no.jsonl", tmp_path / "o2", ShardOptions())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"image": ["a.jpg", "b.jpg"], "text": "x"}],
            "column 'image' holds a list of 2, as 'a.jpg', and a part is one",
        ),
        ([{"audio": "a.wav", "noise": "b.mp4"}], "column 'noise' names files, 'b.mp4', .*--part audio=path:audio"),
        ([{"one": "a.wav", "two": "b.mp4", "text": "x"}], "column 'one' names files, 'a.wav', of which no part"),
        ([{"films": ["b.mp4"], "text": "x"}], r"column 'films' names files, \['b.mp4'\]"),
        ([{"text": "x"}, {"audio": "a.wav", "text": "x"}], "t.jsonl, line 1: no column 'audio'"),
    ],
)
def test_files_that_would_be_left_out(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    write_sounds(tmp_path)
    write_table(tmp_path / "t.jsonl", rows)
    with pytest.raises((ConfigError, InputError), match=message):
        prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions())


def test_columns_that_are_not(tmp_path: Path) -> None:
    write_table(tmp_path / "web.jsonl", [{"url": "x", "caption": "y"}])
    with pytest.raises(ConfigError, match="not downloaded"):
        prepare(tmp_path / "web.jsonl", tmp_path / "out", ShardOptions())
    write_table(tmp_path / "odd.jsonl", [{"a": "x", "b": "y"}])
    with pytest.raises(ConfigError, match=r"the columns are: a, b.*--part jpg=path:COLUMN"):
        prepare(tmp_path / "odd.jsonl", tmp_path / "out", ShardOptions())
    assert not (tmp_path / "out").exists()


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "missing file": ({"file": "pictures/none.jpg"}, "cannot be read: No such file"),
    "folder": ({"file": "pictures"}, "is not a file"),
    "outside": ({"file": "../x.jpg"}, "is not below"),
    "absolute": ({"file": "/etc/passwd"}, "is not below"),
    "NUL": ({"file": "a\0b"}, "is not below"),
    "null": ({"file": None}, "column 'file' is null"),
    "number": ({"file": 5}, "must name a file, found a number"),
    "empty text": ({"caption": ""}, "part 'txt' is empty"),
    "dot in key": ({"id": "a.b"}, "--key-dots replace"),
    "no key": ({"id": None}, "must hold a string or an integer"),
    "empty key": ({"id": ""}, "the key is empty"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows(tmp_path: Path, case: str) -> None:
    changes, message = BAD_ROWS[case]
    records = rows(12)
    records[5] |= changes
    write_pictures(tmp_path, 12)
    write_table(tmp_path / "t.jsonl", records)
    given = source("jpg=path:file", "txt=column:caption", key_field="id")
    with pytest.raises(InputError, match=r"t\.jsonl, line 6: .*" + message):
        prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(source=given))
    assert not (tmp_path / "out" / "headrace.json").exists()
    manifest = prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(source=given, errors=SKIP), restart=True)
    assert list(read_all(tmp_path / "out")) == [row["id"] for row in rows(12) if row["id"] != "s5"]
    assert manifest.ledger.documents.dropped == {"bad": 1}
    assert [(entry.line, entry.unit) for entry in manifest.errors] == [(6, "line")]
    assert manifest == load_manifest(tmp_path / "out")


def test_lines_that_are_no_records(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', "", '{"text": ', '{"text": "b"}', "[]"]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    manifest = prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(errors=SKIP))
    # Bad lines count: leaving them out changes no other key.
    assert read_all(tmp_path / "out") == {"000000000": {"txt": b"a"}, "000000002": {"txt": b"b"}}
    documents = manifest.ledger.documents
    assert (documents.read, documents.kept, documents.blank_lines) == (4, 2, 1)
    with pytest.raises(InputError, match="2 bad samples, but --max-errors allows 1"):
        prepare(tmp_path / "t.jsonl", tmp_path / "o2", ShardOptions(errors=ErrorOptions(on_error="skip", max_errors=1)))
    with pytest.raises(InputError, match=r"2 bad samples of 4 \(50.00%\), but --max-errors allows 40.00%"):
        prepare(
            tmp_path / "t.jsonl", tmp_path / "o2", ShardOptions(errors=ErrorOptions(on_error="skip", max_errors=0.4))
        )


def test_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InputError, match="none of 1 samples is left: bad 1"):
        prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(errors=SKIP))
    assert not (tmp_path / "out").exists()


def test_duplicates(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", [{"k": "x", "text": "1"}, {"k": "y", "text": "2"}])
    write_table(tmp_path / "b.csv", [{"k": "z", "text": "3"}, {"k": "x", "text": "four"}])
    inputs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with pytest.raises(InputError, match=r"'x' comes twice: .*a\.csv, record 1, and .*b\.csv, record 2 \(1 such"):
        prepare(inputs, tmp_path / "out", ShardOptions(source=ShardSource(key_field="k")))
    given = ShardOptions(source=ShardSource(key_field="k", duplicates="drop"))
    manifest = prepare(inputs, tmp_path / "out", given, restart=True)
    assert read_all(tmp_path / "out") == {"x": {"txt": b"1"}, "y": {"txt": b"2"}, "z": {"txt": b"3"}}
    assert manifest.ledger.documents.dropped == {"duplicate": 1}
    assert manifest.ledger.contents is not None
    assert manifest.ledger.contents.dropped == {"duplicate": 4}


def test_parts_that_cannot_be_made(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", [{"a": b"\x00\x01", "b": [{"x": b"y"}], "c": 1.5}])

    def message(*parts: str, **others: Any) -> str:
        with pytest.raises(InputError) as caught:
            prepare(
                tmp_path / "t.parquet", tmp_path / "out", ShardOptions(source=source(*parts, **others)), restart=True
            )
        return str(caught.value)

    assert "holds bytes, which JSON cannot hold" in message("json=row")
    assert "column 'b' holds bytes" in message("json=column:b")
    assert "must hold bytes, found a number" in message("bin=bytes:c")
    assert "is not an image of a known format; its first bytes are" in message("image=bytes:a")
    write_table(tmp_path / "t.jsonl", [{"a": "no base64!"}])
    with pytest.raises(InputError, match="is not base64"):
        prepare(tmp_path / "t.jsonl", tmp_path / "o2", ShardOptions(source=source("bin=bytes:a")))


@pytest.mark.parametrize("text", ["jpg", "jpg=x", "jpg=path", "jpg=row:x", "=path:x", "a/b=path:x"])
def test_forms_of_parts(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--part"):
        prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(source=source(text)))


def test_root(tmp_path: Path) -> None:
    write_pictures(tmp_path / "media", 2)
    write_table(
        tmp_path / "t.jsonl", [{"f": "pictures/000.jpg"}, {"f": str(tmp_path / "media" / "pictures" / "001.jpg")}]
    )
    given = source("jpg=path:f", root=str(tmp_path / "media"))
    prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions(source=given))
    assert [parts["jpg"] for parts in read_all(tmp_path / "out").values()] == [image(0), image(1)]


def test_csv_as_it_comes(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfk,text\r\na,"two\r\nlines, and ""quotes"""\r\n\r\nb\r\nc,\xff\r\nd,last'
    (tmp_path / "t.csv").write_bytes(data)
    given = ShardOptions(source=source("txt=column:text", key_field="k"), errors=SKIP)
    manifest = prepare(tmp_path / "t.csv", tmp_path / "out", given)
    assert read_all(tmp_path / "out") == {"a": {"txt": b'two\r\nlines, and "quotes"'}, "d": {"txt": b"last"}}
    assert [(entry.line, entry.message) for entry in manifest.errors] == [
        (3, "1 values, and the first line names 2 columns"),
        (4, "not UTF-8"),
    ]
    assert manifest.ledger.documents.blank_lines == 1
    (tmp_path / "torn.csv").write_bytes(b'k,text\na,x\nb,"torn\n')
    with pytest.raises(InputError, match=r"record 2: .*nothing behind it can be read"):
        prepare(tmp_path / "torn.csv", tmp_path / "o2", msg_stop(given))
    for head, message in {
        b"": "must name the columns",
        b"a,a\n": "two columns are called 'a'",
        b"a,,b\n": "must name",
    }.items():
        (tmp_path / "head.csv").write_bytes(head + b"1,2\n" if head else b"")
        with pytest.raises(InputError, match=message):
            prepare(tmp_path / "head.csv", tmp_path / "o3", msg_stop(given))


def msg_stop(options: ShardOptions) -> ShardOptions:
    return ShardOptions(source=options.source)
