"""Folders of files -> samples: groups, captions, dots in names, and looks at what the files hold."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, InputError, MissingExtraError
from headrace.preparing import ErrorOptions
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource
from shards_made import image, inline, prepare, read_all, tar_of, write_table

SKIP = ErrorOptions(on_error="skip")


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    with inline():
        yield


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_files_of_a_name_are_a_sample(tmp_path: Path) -> None:
    files = {
        f"{kind}/{number}.{part}": image(number) + part.encode()
        for kind in ("a", "b/c")
        for number in range(12)
        for part in ("jpg", "txt")
    }
    folder = write(tmp_path / "in", {**files, "top.png": b"x", ".hidden/a.jpg": b"x", "a/.cache.jpg": b"x"})
    prepare(folder, tmp_path / "out", ShardOptions())
    wanted = {
        f"{kind}/{number}": {part: files[f"{kind}/{number}.{part}"] for part in ("jpg", "txt")}
        for kind in ("a", "b/c")
        for number in range(12)
    }
    assert (tmp_path / "out" / "shard-000000.tar").read_bytes() == tar_of({**wanted, "top": {"png": b"x"}})


def test_dots_in_names(tmp_path: Path) -> None:
    files = {"a.seg.png": b"1", "a.jpg": b"2", "IMG.2020.jpg": b"3", "v1.2/x.txt": b"4"}
    folder = write(tmp_path / "in", files)
    with pytest.raises(InputError, match=r"in, sample 1: IMG\.2020: .*--key-dots replace"):
        prepare(folder, tmp_path / "out", ShardOptions())
    for dots, wanted in {
        "replace": {"a": {"jpg": b"2"}, "a_seg": {"png": b"1"}, "IMG_2020": {"jpg": b"3"}, "v1.2/x": {"txt": b"4"}},
        "part": {"a": {"jpg": b"2", "seg.png": b"1"}, "IMG": {"2020.jpg": b"3"}, "v1.2/x": {"txt": b"4"}},
    }.items():
        prepare(folder, tmp_path / dots, ShardOptions(source=ShardSource(key_dots=dots)))  # type: ignore[arg-type]
        assert read_all(tmp_path / dots) == wanted
    write(folder, {"a_seg.txt": b"5"})
    with pytest.raises(InputError, match="'a_seg' comes twice"):
        prepare(folder, tmp_path / "o4", ShardOptions(source=ShardSource(key_dots="replace")))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_captions(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "in", {f"x/{number}.jpg": image(number) for number in range(9)})
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
    folder = write(tmp_path / "in", {"1.jpg": b"1", "2.jpg": b"2"})

    def run(rows: list[dict[str, Any]], errors: ErrorOptions = ErrorOptions()) -> list[str]:  # noqa: B008
        write_table(tmp_path / "c.jsonl", rows)
        given = ShardSource(captions=str(tmp_path / "c.jsonl"))
        notices: list[str] = []
        from headrace.preparing.shards import prepare_shards

        prepare_shards(
            [folder],
            tmp_path / "out",
            options=ShardOptions(source=given, errors=errors, overwrite=True, restart=True),
            on_notice=notices.append,
        )
        return notices

    with pytest.raises(InputError, match=r"in, sample 2: 2: no row of the captions names it"):
        run([{"file_name": "1.jpg", "text": "x"}])
    with pytest.raises(InputError, match=r"1 rows name files that are not in .*'3\.jpg'"):
        run([{"file_name": f"{number}.jpg", "text": "x"} for number in (1, 2, 3)])
    with pytest.raises(InputError, match="is already described by line 1"):
        run([{"file_name": "1.jpg", "text": "x"}] * 2)
    with pytest.raises(InputError, match="must name a file"):
        run([{"file_name": 5, "text": "x"}])
    with pytest.raises(ConfigError, match="call it file_name"):
        run([{"name": "1.jpg", "text": "x"}])
    assert any("'3.jpg'" in notice for notice in run([{"file_name": f"{at}.jpg", "text": "x"} for at in (1, 3)], SKIP))
    assert read_all(tmp_path / "out") == {"1": {"jpg": b"1", "txt": b"x"}}


def test_folders_that_are_not_clear(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"1.jpg": b"1", "list.csv": b"file,text\n"})
    with pytest.raises(ConfigError, match=r"holds a table \('list.csv'.*--captions list.csv"):
        prepare(folder, tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="no file has an extension"):
        prepare(write(tmp_path / "in2", {"README": b"1"}), tmp_path / "out", ShardOptions())
    (tmp_path / "in3").mkdir()
    with pytest.raises(ConfigError, match="the folder holds no files to read"):
        prepare(tmp_path / "in3", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="does not exist"):
        prepare(tmp_path / "none", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="named twice"):
        prepare([folder / "list.csv", folder / "list.csv"], tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="is not a table by its name"):
        prepare(folder / "1.jpg", tmp_path / "out", ShardOptions())
    with pytest.raises(ConfigError, match="no input is a folder of files"):
        prepare(folder / "list.csv", tmp_path / "out", ShardOptions(source=ShardSource(captions="x.csv")))
    assert not (tmp_path / "out").exists()


def test_a_folder_of_tables_is_these(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in (10, 9):
        write_table(tmp_path / "in" / f"p{number}.jsonl", [{"text": f"{number}"}])
    prepare(tmp_path / "in", tmp_path / "out", ShardOptions())
    assert [parts["txt"] for parts in read_all(tmp_path / "out").values()] == [b"9", b"10"]


def test_empty_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"1.jpg": b"", "2.jpg": b"2"})
    with pytest.raises(InputError, match="part 'jpg' is empty"):
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
    folder = write(tmp_path / "in", files)
    given = ShardSource(verify=True, key_dots="part")
    manifest = prepare(folder, tmp_path / "out", ShardOptions(source=given, errors=SKIP))
    # Headers alone are looked at: a picture that is cut short behind its header passes.
    assert list(read_all(tmp_path / "out")) == ["a", "b", "f"]
    words = [entry.message.partition(": ")[2] for entry in manifest.errors]
    assert [word.split("part")[1][:15] for word in words] == [" 'jpg' is an im", " 'json' is not ", " 'txt' is not U"]
    prepare(folder, tmp_path / "o2", ShardOptions(source=ShardSource(key_dots="part")))
    assert len(read_all(tmp_path / "o2")) == 6


def test_pillow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.shards.run.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install"):
        prepare(tmp_path, tmp_path / "out", ShardOptions(source=ShardSource(verify=True)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ShardOptions(output=ShardOutput(samples_per_shard=0)), "samples_per_shard is 0"),
        (ShardOptions(output=ShardOutput(shard_bytes=0)), "shard_bytes is 0"),
        (ShardOptions(output=ShardOutput(shuffle=-1)), "seed of --shuffle"),
        (ShardOptions(output=ShardOutput(split_ratio=(1, 1, 1, 1))), "train, val and test"),
        (ShardOptions(output=ShardOutput(split_ratio=(0,))), "train, val and test"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample")), "give both"),
        (ShardOptions(output=ShardOutput(sample_type="Captioning", field_map={"a": "b"})), "CaptioningSample"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample", field_map={"a": "b"})), "no field 'a'"),
        (ShardOptions(output=ShardOutput(sample_type="CaptioningSample", field_map={"image": "b"})), "no 'caption'"),
        (ShardOptions(errors=ErrorOptions(max_errors=-1)), "max_errors"),
        (ShardOptions(workers=0), "workers is 0"),
        (ShardOptions(source=ShardSource(max_record_bytes=5)), "max_record_bytes"),
        (ShardOptions(source=ShardSource(parts=(PartSpec.parse("a=row"),) * 2)), "named twice"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: ShardOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path, tmp_path / "out", options)
