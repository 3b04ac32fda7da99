"""``headrace check`` of tar shards, Energon's datasets and JSON lines: every kind of fault is found, and named."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import energon_made
import media_made
import media_stores_made as stores
import shards_made
from energon_prepared import prepared as prepare_dataset
from headrace.inspect import sample_checks
from headrace.preparing.shards import PartSpec, ShardOptions, ShardSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("media")
    stores.mixed(root / "mixed")
    stores.ocr(root / "ocr")
    stores.plain(root / "plain")
    stores.lines(root)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def checked(run: Any, *arguments: Any) -> tuple[int, dict[str, Any], list[str]]:
    """Exit code, all that was found, and the faults in words."""
    result = run("check", *arguments, "--json")
    found = json.loads(result.stdout)
    problems = [f"{one['path']}: {one['place']}: {one['message']}" for one in found.get("problems", ())]
    return result.exit_code, found, problems


@pytest.mark.parametrize(
    ("name", "samples", "shards"), [("mixed", 7, 2), ("ocr", 12, 3), ("plain", 7, 1), ("t.jsonl", 20, 1)]
)
def test_whole(run: Any, folder: Path, name: str, samples: int, shards: int) -> None:
    before = sorted(folder.rglob("*"))
    code, found, problems = checked(run, folder / name)
    assert (code, found["ok"], problems, found["notes"]) == (0, True, [], [])
    assert (found["samples"], found["shards"], found["hashed"], found["decoded"]) == (samples, shards, False, None)
    said = run("check", folder / name).stdout
    assert said.startswith(f"{folder / name}: whole: {samples} samples in {shards} shard")
    assert "(no headrace.json has hashes of the bytes)" in said
    assert sorted(folder.rglob("*")) == before


def _cut_tar(root: Path) -> None:
    os.truncate(root / "c01.tar", (root / "c01.tar").stat().st_size // 2)


def _cut_index(root: Path) -> None:
    os.truncate(root / "c01.tar.idx", 8 * 4)


def _wrong_index(root: Path) -> None:
    with (root / "c01.tar.idx").open("r+b") as file:
        file.seek(8)
        file.write((512).to_bytes(8, "little"))


def _no_index(root: Path) -> None:
    (root / "c01.tar.idx").unlink()


def _no_tar(root: Path) -> None:
    (root / "c01.tar").unlink()


def _flip_header(root: Path) -> None:
    with (root / "c01.tar").open("r+b") as file:
        file.seek(1)
        file.write(b"~")


def _wrong_count(root: Path) -> None:
    _edit(root / ".nv-meta/.info.json", '"c01.tar": 4', '"c01.tar": 5')


def _unknown_key(root: Path) -> None:
    _edit(root / ".nv-meta/.info.json", '"shard_counts"', '"shard_count"')


def _sqlite(root: Path) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as database:
        database.execute("UPDATE samples SET byte_offset = byte_offset + 512 WHERE sample_key = 'k1_2'")
    database.close()


def _sqlite_less(root: Path) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as database:
        database.execute("DELETE FROM samples WHERE sample_key = 'k1_3'")
    database.close()


def _sqlite_part(root: Path) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as database:
        found = "WHERE tar_file_id = 1 AND sample_index = 2 AND part_name = 'jpg'"
        database.execute(f"UPDATE sample_parts SET content_byte_size = content_byte_size - 1 {found}")
    database.close()


def _sqlite_more_parts(root: Path) -> None:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as database:
        names = "tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size"
        database.execute(f"INSERT INTO sample_parts ({names}) VALUES (1, 4, 'jpg', 0, 1)")
    database.close()


def _unknown_shard(root: Path) -> None:
    _split(root, "split_parts:\n  train: [c00.tar, c09.tar]\nexclude: []\n")


def _nothing_excluded(root: Path) -> None:
    _split(root, "split_parts:\n  train: [c00.tar, c01.tar, c02.tar]\nexclude: [c01.tar/k1_9]\n")


def _bad_split(root: Path) -> None:
    _split(root, "split_parts: [1]\n")


def _split(root: Path, text: str) -> None:
    (root / ".nv-meta/split.yaml").write_text(text)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("damage", "place", "said"),
    [
        (_cut_tar, "c01.tar", "expected"),
        (_cut_index, "c01.tar", "4 samples were expected"),
        (_wrong_index, "c01.tar", "byte 512 in the index"),
        (_no_index, "c01.tar.idx", "make it with headrace prepare"),
        (_no_tar, "c01.tar", "cannot be opened"),
        (_flip_header, "c01.tar", "checksum"),
        (_wrong_count, "c01.tar", "5 samples were expected"),
        (_unknown_key, ".info.json", "did you mean 'shard_counts'"),
        (_sqlite, "index.sqlite", "prepare the dataset again"),
        (_sqlite_less, "index.sqlite", "has 3 samples, but the shard has 4"),
        (_sqlite_part, "index.sqlite", "sample 2: its parts"),
        (_sqlite_more_parts, "index.sqlite", "part 'jpg' is not in the shard"),
        (_unknown_shard, "split.yaml", "shard 'c09.tar' is not in"),
        (_nothing_excluded, "split.yaml", "excludes 1 samples, of which 1 do not exist"),
        (_bad_split, "split.yaml", "split_parts"),
    ],
)
def test_every_fault_is_found(
    run: Any, folder: Path, tmp_path: Path, damage: Callable[[Path], None], place: str, said: str
) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    damage(root)
    code, found, problems = checked(run, root)
    assert (code, found["ok"]) == (1, False)
    assert any(place in problem and said in problem for problem in problems), problems
    assert run("check", root, "-q").stdout.count("\n") == len(problems)
    assert f"{len(problems)} fault" in run("check", root).stdout


def test_a_key_in_two_shards(run: Any, tmp_path: Path) -> None:
    shards = {"a.tar": [("x.txt", b"1"), ("y.txt", b"2")], "b.tar": [("y.txt", b"3"), ("z.txt", b"4")]}
    root = energon_made.write_shards(tmp_path / "plain", shards)
    code, _, (problem,) = checked(run, root)
    assert (code, "key 'y' occurs 2 times: a.tar sample 1, b.tar sample 0" in problem) == (1, True)
    # Energon refuses to prepare such shards; a dataset of before 7.3 may have them.
    (tmp_path / "old").mkdir()
    other = {**shards, "b.tar": [("w.txt", b"3"), ("z.txt", b"4")]}
    old = prepare_dataset(tmp_path / "old", other)
    energon_made.write_shards(old, {"b.tar": shards["b.tar"]})
    (old / ".nv-meta/index.sqlite").unlink()
    code, _, (problem,) = checked(run, old)
    assert (code, "key 'y': occurs 2 times: a.tar sample 1, b.tar sample 0" in problem) == (1, True)


def test_a_damaged_tar_without_index_is_checked_as_far_as_it_goes(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "plain", tmp_path / "plain"))
    tar = root / "x-000.tar"
    os.truncate(tar, tar.read_bytes().index(b"ocr/1.jpg") + 700)
    code, found, problems = checked(run, root, "--decode", "--workers", 1)
    assert (code, found["samples"], found["decoded"]["samples"]) == (1, 1, 1)  # where the second one ends is not known
    assert any("x-000.tar: byte" in problem for problem in problems)
    assert run("preview", root).exit_code == 3  # and is refused elsewhere


def test_a_record_that_is_none(run: Any, tmp_path: Path) -> None:
    path = stores.lines(tmp_path)
    path.write_text(path.read_text() + "{bad\n")
    code, _, problems = checked(run, path)
    assert (code, any("21" in problem for problem in problems)) == (1, True)


def test_what_may_be_an_oversight_is_a_note(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    _split(root, "split_parts:\n  train: [c00.tar, c01.tar]\n  val: [c01.tar]\nexclude: []\n")
    energon_made.write_tar(root / "new/c03.tar", [("x.txt", b"1")])
    code, found, _ = checked(run, root)
    assert code == 0
    assert found["notes"] == [
        "not in the info file: new/c03.tar; headrace prepare adds new shards",
        "in more than one part of the split: c01.tar",
        "in no part of the split: c02.tar",
    ]
    assert "note: in no part of the split: c02.tar\n" in run("check", root).stdout
    (root / ".nv-meta/split.yaml").unlink()
    assert checked(run, root)[1]["notes"][1].startswith("there is no split file")


def test_decode_names_shard_key_part_and_byte(run: Any, folder: Path) -> None:
    contents = stores.mixed_contents()
    data = (folder / "plain/x-000.tar").read_bytes()
    code, found, problems = checked(run, folder / "plain", "--decode", "--workers", 1)
    assert code == 1
    jpg = data.index(contents["b/2.jpg"] + bytes(10))
    assert problems[0].startswith(f"{folder}/plain/x-000.tar: sample 6, key 'b/2', part 'jpg', byte {jpg}: cannot be ")
    byte = data.index(b"{bad")
    assert problems[1].startswith(f"{folder}/plain/x-000.tar: sample 6, key 'b/2', part 'json', byte {byte}: is not JS")
    assert "part 'pkl'" in problems[2]
    assert "refused" in problems[2]
    assert len(problems) == 3
    assert found["decoded"] == {
        "samples": 7,
        "faulty_samples": 1,
        "parts": {
            "cls": 1,
            "jpg": 3,
            "json": 1,
            "mp4": 1,
            "png": 1,
            "txt": 2,
            "wav": 1,
        },
        "kept_parts": {"bin": 1, "cap": 1},
        "faulty_parts": {"jpg": 1, "json": 1, "pkl": 1},
        "bad": [{"shard": "x-000.tar", "index": 6, "key": "b/2", "reason": problems[0].split(f"byte {jpg}: ")[1]}],
    }
    assert "at fault: jpg 1, json 1, pkl 1" in run("check", folder / "plain", "--decode", "--workers", 1).stdout


def test_decode_passes_over_what_the_split_excludes(run: Any, folder: Path) -> None:
    code, found, _ = checked(run, folder / "mixed", "--decode", "--workers", 1)
    assert (code, found["samples"], found["decoded"]["samples"]) == (0, 7, 6)
    code, found, _ = checked(run, folder / "mixed", "--decode", "--workers", 1, "--split-part", "val")
    assert (code, found["samples"], found["decoded"]["samples"]) == (0, 3, 3)


def test_decode_of_typed_samples_makes_their_fields(run: Any, tmp_path: Path) -> None:
    root = stores.ocr(tmp_path / "ocr")
    members = [("a.jpg", stores.jpeg()), ("a.json", b'{"caption": "x"}'), ("a.mp4", b"not looked at")]
    shards = {"c00.tar": members, "c01.tar": [("b.json", b"{}")]}
    prepare_dataset(root, shards)
    code, found, problems = checked(run, root, "--decode", "--workers", 1)
    assert code == 1
    places = [problem.partition("key ")[2].partition(":")[0] for problem in problems]
    byte = (root / "c00.tar").read_bytes().index(b'{"caption')
    assert places == [f"'a', part 'json', byte {byte}", "'b', part 'jpg'"]
    assert "words_boxes" in problems[0]
    assert "has no part 'jpg'" in problems[1]
    assert found["decoded"]["parts"] == {"jpg": 1, "json": 2}


def test_a_broken_video_and_an_empty_sound(run: Any, tmp_path: Path) -> None:
    contents = stores.mixed_contents()
    mp4, wav = contents["v/1.mp4"], contents["v/2.wav"]
    energon_made.write_tar(tmp_path / "x.tar", [("a.mp4", mp4[:2000]), ("b.wav", wav[:44]), ("c.wav", wav)])
    code, found, _ = checked(run, tmp_path, "--decode", "--workers", 1)
    assert (code, found["decoded"]["parts"]) == (1, {"wav": 1})
    assert found["decoded"]["faulty_parts"] == {"mp4": 1, "wav": 1}


def test_decode_says_what_is_kept_as_bytes_and_finds_what_is_cut(run: Any, tmp_path: Path) -> None:
    mkv = media_made.video("matroska", "libx264")
    members = [("a.mkv", mkv[: len(mkv) * 2 // 3]), ("b.opus", b"no sound" * 9), ("c.heic", b"?"), ("d.mkv", mkv)]
    energon_made.write_tar(tmp_path / "x.tar", members)
    result = run("check", tmp_path / "x.tar", "--decode", "--workers", 1)
    assert result.exit_code == 1
    assert "its header says 1.200 s: it is cut short" in result.output
    assert (
        "decoded: mkv 1; kept as bytes, since no decoder knows them: heic 1; at fault: mkv 1, opus 1" in result.output
    )
    energon_made.write_tar(tmp_path / "y.tar", members[2:])
    result = run("check", tmp_path / "y.tar", "--decode", "--workers", 1)
    assert (result.exit_code, "every part decoded that has a decoder" in result.output) == (0, True)


def test_any_number_of_workers_finds_the_same(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_checks, "TASK_SAMPLES", 3)
    members = [(f"{number:02d}.json", b"{}" if number % 5 else b"{bad") for number in range(20)]
    energon_made.write_tar(tmp_path / "x.tar", members)
    one = checked(run, tmp_path, "--decode", "--workers", 1)
    two = checked(run, tmp_path, "--decode", "--workers", 2)
    assert [key.partition("key ")[2][:4] for key in one[2]] == ["'00'", "'05'", "'10'", "'15'"]
    assert one[2] == two[2]
    assert one[1]["decoded"] == two[1]["decoded"]


def test_more_faults_than_anybody_reads(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_checks, "MAX_NAMED", 5)
    energon_made.write_tar(tmp_path / "x.tar", [(f"{number:02d}.json", b"{bad") for number in range(20)])
    _, _, problems = checked(run, tmp_path, "--decode", "--workers", 1)
    assert len(problems) == 6
    assert problems[-1].endswith(": 15 more faulty parts")


def test_bytes_that_a_manifest_vouches_for(run: Any, tmp_path: Path) -> None:
    records = shards_made.rows(30)
    shards_made.write_pictures(tmp_path, 30)
    shards_made.write_table(tmp_path / "a.jsonl", records)
    parts = tuple(map(PartSpec.parse, ("jpg=path:file", "txt=column:caption")))
    root = tmp_path / "out"
    with shards_made.inline():
        shards_made.prepare_shards(
            [tmp_path / "a.jsonl"], root, options=ShardOptions(source=ShardSource(parts=parts, key_field="id"))
        )
    code, found, _ = checked(run, root)
    assert (code, found["hashed"], found["samples"]) == (0, True, 30)
    assert "every header read, hashed" in run("check", root).stdout
    (tar,) = root.rglob("*.tar")
    data = tar.read_bytes()
    at = data.index(b"caption 7 ")
    tar.write_bytes(data[:at] + b"C" + data[at + 1 :])
    code, _, problems = checked(run, root)
    assert (code, any("the bytes were changed" in problem for problem in problems)) == (1, True)


def test_wrong_questions(run: Any, folder: Path, prepared: Path, tmp_path: Path) -> None:
    assert run("check", tmp_path / "none.tar").exit_code == 4
    assert run("check", folder / "mixed", "--split-part", "vall").exit_code == 2
    assert run("check", folder / "mixed", "--workers", 2).exit_code == 2
    assert run("check", folder / "mixed", "--decode", "--workers", 0).exit_code == 2
    assert run("check", folder / "mixed", "--pack", 100).exit_code == 2
    result = run("check", prepared, "--decode")
    assert (result.exit_code, "--decode is for samples" in result.stderr) == (2, True)
