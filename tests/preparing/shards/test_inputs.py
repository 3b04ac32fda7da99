"""Rows of tables, of every format, and folders of files -> samples, with every kind of part."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest

from energon_made import write_files
from headrace.errors import ConfigError, InputError, MissingExtraError
from headrace.preparing import ErrorOptions
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource, prepare_shards
from headrace.stores import load_manifest
from shards_made import JPG, PNG, image, prepare, read_all, rows, tar_of, write_pictures, write_table

pytestmark = pytest.mark.usefixtures("small_tasks")
SKIP = ErrorOptions(on_error="skip")
WAV, MP4 = b"RIFF\x24\0\0\0WAVEfmt ", b"\0\0\0\x18ftypisom"
FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow")


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
    with pytest.raises(InputError, match=r"'audio'.*b'no.*sound'"):
        prepare(tmp_path / "no.jsonl", tmp_path / "o2", ShardOptions())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"image": ["a.jpg", "b.jpg"], "text": "x"}], r"'image'.*2.*'a\.jpg'"),
        ([{"audio": "a.wav", "noise": "b.mp4"}], r"'noise'.*'b\.mp4'.*--part.audio=path:audio"),
        ([{"one": "a.wav", "two": "b.mp4", "text": "x"}], r"'one'.*'a\.wav'"),
        ([{"films": ["b.mp4"], "text": "x"}], r"'films'.*\['b\.mp4'\]"),
        ([{"text": "x"}, {"audio": "a.wav", "text": "x"}], r"t\.jsonl.*1.*'audio'"),
    ],
)
def test_files_that_would_be_left_out(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    write_sounds(tmp_path)
    write_table(tmp_path / "t.jsonl", rows)
    with pytest.raises((ConfigError, InputError), match=message):
        prepare(tmp_path / "t.jsonl", tmp_path / "out", ShardOptions())


def test_columns_that_are_not(tmp_path: Path) -> None:
    write_table(tmp_path / "web.jsonl", [{"url": "x", "caption": "y"}])
    with pytest.raises(ConfigError, match="downloaded"):
        prepare(tmp_path / "web.jsonl", tmp_path / "out", ShardOptions())
    write_table(tmp_path / "odd.jsonl", [{"a": "x", "b": "y"}])
    with pytest.raises(ConfigError, match=r"--part.*jpg=path:COLUMN"):
        prepare(tmp_path / "odd.jsonl", tmp_path / "out", ShardOptions())
    assert not (tmp_path / "out").exists()


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "missing file": ({"file": "pictures/none.jpg"}, "such"),
    "folder": ({"file": "pictures"}, "'pictures'"),
    "outside": ({"file": "../x.jpg"}, "below"),
    "absolute": ({"file": "/etc/passwd"}, "below"),
    "NUL": ({"file": "a\0b"}, "below"),
    "null": ({"file": None}, "'file'.*null"),
    "number": ({"file": 5}, "'file'.*number"),
    "empty text": ({"caption": ""}, "'txt'"),
    "dot in key": ({"id": "a.b"}, "--key-dots"),
    "no key": ({"id": None}, "'id'"),
    "empty key": ({"id": ""}, "empty"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows(tmp_path: Path, case: str) -> None:
    changes, message = BAD_ROWS[case]
    records = rows(12)
    records[5] |= changes
    write_pictures(tmp_path, 12)
    write_table(tmp_path / "t.jsonl", records)
    given = source("jpg=path:file", "txt=column:caption", key_field="id")
    with pytest.raises(InputError, match=r"t\.jsonl.*6.*" + message):
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
    with pytest.raises(InputError, match=r"2.*max_errors.*1"):
        prepare(tmp_path / "t.jsonl", tmp_path / "o2", ShardOptions(errors=ErrorOptions(on_error="skip", max_errors=1)))
    with pytest.raises(InputError, match=r"2.*4.*50.00%"):
        prepare(
            tmp_path / "t.jsonl", tmp_path / "o2", ShardOptions(errors=ErrorOptions(on_error="skip", max_errors=0.4))
        )


def test_duplicates(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", [{"k": "x", "text": "1"}, {"k": "y", "text": "2"}])
    write_table(tmp_path / "b.csv", [{"k": "z", "text": "3"}, {"k": "x", "text": "four"}])
    inputs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with pytest.raises(InputError, match=r"'x'.*a\.csv.*1"):
        prepare(inputs, tmp_path / "out", ShardOptions(source=ShardSource(key_field="k")))
    given = ShardOptions(source=ShardSource(key_field="k", duplicates="drop"))
    manifest = prepare(inputs, tmp_path / "out", given, restart=True)
    assert read_all(tmp_path / "out") == {"x": {"txt": b"1"}, "y": {"txt": b"2"}, "z": {"txt": b"3"}}
    assert manifest.ledger.documents.dropped == {"duplicate": 1}
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
    assert "must hold bytes, found the number" in message("bin=bytes:c")
    assert "is not an image of a known format; its first bytes are" in message("image=bytes:a")
    write_table(tmp_path / "t.jsonl", [{"a": "no base64!"}])
    with pytest.raises(InputError, match="base64"):
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
    with pytest.raises(InputError, match="2"):
        prepare(tmp_path / "torn.csv", tmp_path / "o2", ShardOptions(source=given.source))
    for head, message in ((b"", "empty"), (b"a,a\n", "'a'"), (b"a,,b\n", "columns")):
        (tmp_path / "head.csv").write_bytes(head + b"1,2\n" if head else b"")
        with pytest.raises(InputError, match=message):
            prepare(tmp_path / "head.csv", tmp_path / "o3", ShardOptions(source=given.source))


# Folders of files: groups, captions, dots in names, and looks at what the files hold.


def test_files_of_a_name_are_a_sample(tmp_path: Path) -> None:
    files = {
        f"{kind}/{number}.{part}": image(number) + part.encode()
        for kind in ("a", "b/c")
        for number in range(12)
        for part in ("jpg", "txt")
    }
    folder = write_files(tmp_path / "in", {**files, "top.png": b"x", ".hidden/a.jpg": b"x", "a/.cache.jpg": b"x"})
    prepare(folder, tmp_path / "out", ShardOptions())
    wanted = {
        f"{kind}/{number}": {part: files[f"{kind}/{number}.{part}"] for part in ("jpg", "txt")}
        for kind in ("a", "b/c")
        for number in range(12)
    }
    assert (tmp_path / "out" / "shard-000000.tar").read_bytes() == tar_of({**wanted, "top": {"png": b"x"}})


def test_dots_in_names(tmp_path: Path) -> None:
    files = {"a.seg.png": b"1", "a.jpg": b"2", "IMG.2020.jpg": b"3", "v1.2/x.txt": b"4"}
    folder = write_files(tmp_path / "in", files)
    with pytest.raises(InputError, match=r"1.*IMG\.2020.*--key-dots"):
        prepare(folder, tmp_path / "out", ShardOptions())
    for dots, wanted in {
        "replace": {"a": {"jpg": b"2"}, "a_seg": {"png": b"1"}, "IMG_2020": {"jpg": b"3"}, "v1.2/x": {"txt": b"4"}},
        "part": {"a": {"jpg": b"2", "seg.png": b"1"}, "IMG": {"2020.jpg": b"3"}, "v1.2/x": {"txt": b"4"}},
    }.items():
        prepare(folder, tmp_path / dots, ShardOptions(source=ShardSource(key_dots=dots)))  # type: ignore[arg-type]
        assert read_all(tmp_path / dots) == wanted
    write_files(folder, {"a_seg.txt": b"5"})
    with pytest.raises(InputError, match="'a_seg'"):
        prepare(folder, tmp_path / "o4", ShardOptions(source=ShardSource(key_dots="replace")))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_captions(tmp_path: Path, kind: str) -> None:
    folder = write_files(tmp_path / "in", {f"x/{number}.jpg": image(number) for number in range(9)})
    records: list[dict[str, Any]] = [
        {"file_name": f"x/{number}.jpg", "caption": f"c{number}", "n": str(number)} for number in range(9)
    ]
    write_table(folder / f"metadata.{kind}", records)
    manifest = prepare(folder, tmp_path / "out", ShardOptions())
    assert read_all(tmp_path / "out") == {
        f"x/{number}": {
            "jpg": image(number),
            "txt": f"c{number}".encode(),
            "json": json.dumps({"n": str(number)}, separators=(",", ":")).encode(),
        }
        for number in range(9)
    }
    assert [entry.format for entry in manifest.inputs] == ["folder", kind]
    (folder / f"metadata.{kind}").rename(tmp_path / f"c.{kind}")
    given = ShardSource(captions=str(tmp_path / f"c.{kind}"), parts=(PartSpec.parse("cls=column:n"),))
    prepare(folder, tmp_path / "o2", ShardOptions(source=given))
    assert list(read_all(tmp_path / "o2")["x/3"]) == ["jpg", "cls"]


def test_captions_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"1.jpg": b"1", "2.jpg": b"2"})

    def run(rows: list[dict[str, Any]], errors: ErrorOptions = ErrorOptions()) -> list[str]:  # noqa: B008
        write_table(tmp_path / "c.jsonl", rows)
        given = ShardSource(captions=str(tmp_path / "c.jsonl"))
        notices: list[str] = []
        options = ShardOptions(source=given, errors=errors, overwrite=True, restart=True)
        prepare_shards([folder], tmp_path / "out", options=options, on_notice=notices.append)
        return notices

    with pytest.raises(InputError, match=r"2.*captions"):
        run([{"file_name": "1.jpg", "text": "x"}])
    with pytest.raises(InputError, match=r"1.*'3\.jpg'"):
        run([{"file_name": f"{number}.jpg", "text": "x"} for number in (1, 2, 3)])
    with pytest.raises(InputError, match=r"described.*1"):
        run([{"file_name": "1.jpg", "text": "x"}] * 2)
    with pytest.raises(InputError, match="file"):
        run([{"file_name": 5, "text": "x"}])
    with pytest.raises(ConfigError, match="file_name"):
        run([{"name": "1.jpg", "text": "x"}])
    assert any("'3.jpg'" in notice for notice in run([{"file_name": f"{at}.jpg", "text": "x"} for at in (1, 3)], SKIP))
    assert read_all(tmp_path / "out") == {"1": {"jpg": b"1", "txt": b"x"}}


def test_folders_that_are_not_clear(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"1.jpg": b"1", "list.csv": b"file,text\n"})
    with pytest.raises(ConfigError, match=r"'list.csv'.*--captions.*list.csv"):
        prepare(folder, tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="extension"):
        prepare(write_files(tmp_path / "in2", {"README": b"1"}), tmp_path / "out", ShardOptions())
    (tmp_path / "in3").mkdir()
    with pytest.raises(ConfigError, match="folder"):
        prepare(tmp_path / "in3", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="exist"):
        prepare(tmp_path / "none", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="twice"):
        prepare([folder / "list.csv", folder / "list.csv"], tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="table"):
        prepare(folder / "1.jpg", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="folder"):
        prepare(folder / "list.csv", tmp_path / "out", ShardOptions(source=ShardSource(captions="x.csv")))
    assert not (tmp_path / "out").exists()


def test_a_folder_of_tables_is_these(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in (10, 9):
        write_table(tmp_path / "in" / f"p{number}.jsonl", [{"text": f"{number}"}])
    prepare(tmp_path / "in", tmp_path / "out", ShardOptions())
    assert [parts["txt"] for parts in read_all(tmp_path / "out").values()] == [b"9", b"10"]


def test_empty_files(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"1.jpg": b"", "2.jpg": b"2"})
    with pytest.raises(InputError, match="'jpg'"):
        prepare(folder, tmp_path / "out", ShardOptions())


def test_what_files_hold(tmp_path: Path) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (40, 30), (1, 2, 3)).save(file, "JPEG")
    good = file.getvalue()
    files = {
        "a.jpg": good,
        "a.json": b'{"x": 1}',
        "b.jpg": good[:-20],
        "c.jpg": b"no image",
        "d.json": b"{",
        "e.txt": b"\xff",
        "f.seg.png": good,
    }
    folder = write_files(tmp_path / "in", files)
    given = ShardSource(verify=True, key_dots="part")
    manifest = prepare(folder, tmp_path / "out", ShardOptions(source=given, errors=SKIP))
    # Headers alone are looked at: a picture that is cut short behind its header passes.
    assert list(read_all(tmp_path / "out")) == ["a", "b", "f"]
    named = ["'jpg' is an image", "'json' is not", "'txt' is not UTF-8"]
    assert [one in entry.message for one, entry in zip(named, manifest.errors, strict=True)] == [True] * 3
    prepare(folder, tmp_path / "o2", ShardOptions(source=ShardSource(key_dots="part")))
    assert len(read_all(tmp_path / "o2")) == 6


def test_pillow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.shards.options.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="install"):
        prepare(tmp_path, tmp_path / "out", ShardOptions(source=ShardSource(verify=True)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ShardOptions(output=ShardOutput(samples_per_shard=0)), "samples_per_shard"),
        (ShardOptions(output=ShardOutput(shard_bytes=0)), "shard_bytes"),
        (ShardOptions(output=ShardOutput(shuffle=-1)), "--shuffle"),
        (ShardOptions(output=ShardOutput(split_ratio=(1, 1, 1, 1))), "train"),
        (ShardOptions(output=ShardOutput(split_ratio=(0,))), "train"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample")), "both"),
        (ShardOptions(output=ShardOutput(sample_type="Captioning", field_map={"a": "b"})), "CaptioningSample"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample", field_map={"a": "b"})), "'a'"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample", field_map={"image": "b"})), "'caption'"),
        (ShardOptions(errors=ErrorOptions(max_errors=-1)), "max_errors"),
        (ShardOptions(workers=0), "workers"),
        (ShardOptions(source=ShardSource(max_record_bytes=5)), "max_record_bytes"),
        (ShardOptions(source=ShardSource(parts=(PartSpec.parse("a=row"),) * 2)), "twice"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: ShardOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path, tmp_path / "out", options)
