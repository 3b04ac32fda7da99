"""``headrace info`` and ``check`` of samples and of what ``headrace measure`` keeps: faults are found, and named."""

from __future__ import annotations

import contextlib
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
from headrace import MeasuredDataset, Packing
from headrace.datasets import MeasuredFacts, measure
from headrace.inspect import sample_checks
from headrace.preparing.shards import PartSpec, ShardOptions, ShardSource
from headrace.stores.energon import update_media
from headrace.testing.damage import other_byte
from measured_made import Grouped, Packed, numbers, opened

pytestmark = pytest.mark.usefixtures("fresh_cache")


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


Damage = Callable[[Path], object]


def write_at(name: str, offset: int, data: bytes) -> Damage:
    def damage(root: Path) -> None:
        with (root / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return damage


def edit_info(old: str, new: str) -> Damage:
    def damage(root: Path) -> None:
        path = root / ".nv-meta/.info.json"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return damage


def in_database(statement: str) -> Damage:
    def damage(root: Path) -> None:
        with contextlib.closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as database, database:
            database.execute(statement)

    return damage


def split(text: str) -> Damage:
    return lambda root: (root / ".nv-meta/split.yaml").write_text(text)


SIZE_OF_A_PART = (
    "UPDATE sample_parts SET content_byte_size = content_byte_size - 1"
    " WHERE tar_file_id = 1 AND sample_index = 2 AND part_name = 'jpg'"
)
ONE_PART_MORE = (
    "INSERT INTO sample_parts (tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)"
    " VALUES (1, 4, 'jpg', 0, 1)"
)
NO_SUCH_SAMPLE = "split_parts:\n  train: [c00.tar, c01.tar, c02.tar]\nexclude: [c01.tar/k1_9]\n"


@pytest.mark.parametrize(
    ("damage", "place", "named"),
    [
        (lambda root: os.truncate(root / "c01.tar", (root / "c01.tar").stat().st_size // 2), "c01.tar", "expected"),
        (lambda root: os.truncate(root / "c01.tar.idx", 8 * 4), "c01.tar", "4 samples"),
        (write_at("c01.tar.idx", 8, (512).to_bytes(8, "little")), "c01.tar", "byte 512 in the index"),
        (lambda root: (root / "c01.tar.idx").unlink(), "c01.tar.idx", "headrace prepare"),
        (lambda root: (root / "c01.tar").unlink(), "c01.tar", "opened"),
        (write_at("c01.tar", 1, b"~"), "c01.tar", "checksum"),
        (edit_info('"c01.tar": 4', '"c01.tar": 5'), "c01.tar", "5 samples"),
        (edit_info('"shard_counts"', '"shard_count"'), ".info.json", "'shard_counts'"),
        (
            in_database("UPDATE samples SET byte_offset = byte_offset + 512 WHERE sample_key = 'k1_2'"),
            "index.sqlite",
            "prepare the dataset again",
        ),
        (
            in_database("DELETE FROM samples WHERE sample_key = 'k1_3'"),
            "index.sqlite",
            "3 samples, but the shard has 4",
        ),
        (in_database(SIZE_OF_A_PART), "index.sqlite", "sample 2: its parts"),
        (in_database(ONE_PART_MORE), "index.sqlite", "part 'jpg' is not in the shard"),
        (split("split_parts:\n  train: [c00.tar, c09.tar]\nexclude: []\n"), "split.yaml", "'c09.tar'"),
        (split(NO_SUCH_SAMPLE), "split.yaml", "excludes 1 samples, of which 1 do not exist"),
        (split("split_parts: [1]\n"), "split.yaml", "split_parts"),
    ],
)
def test_every_fault_is_found(run: Any, folder: Path, tmp_path: Path, damage: Damage, place: str, named: str) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    damage(root)
    code, found, problems = checked(run, root)
    assert (code, found["ok"]) == (1, False)
    assert any(place in problem and named in problem for problem in problems), problems
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
    split("split_parts:\n  train: [c00.tar, c01.tar]\n  val: [c01.tar]\nexclude: []\n")(root)
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
        "parts": {"cls": 1, "jpg": 3, "json": 1, "mp4": 1, "png": 1, "txt": 2, "wav": 1},
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


def test_decode_says_what_is_kept_as_bytes_and_finds_what_is_cut(run: Any, tmp_path: Path) -> None:
    mkv = media_made.video("matroska", "libx264")
    contents = stores.mixed_contents()
    members = [("a.mkv", mkv[: len(mkv) * 2 // 3]), ("b.opus", b"no sound" * 9), ("c.heic", b"?"), ("d.mkv", mkv)]
    torn = [("e.mp4", contents["v/1.mp4"][:2000]), ("f.wav", contents["v/2.wav"][:44])]
    energon_made.write_tar(tmp_path / "x.tar", [*members, *torn])
    result = run("check", tmp_path / "x.tar", "--decode", "--workers", 1)
    assert result.exit_code == 1
    assert "its header says 1.200 s: it is cut short" in result.output
    assert (
        "decoded: mkv 1; kept as bytes, since no decoder knows them: heic 1; at fault: mkv 1, mp4 1, opus 1, wav 1"
        in result.output
    )
    energon_made.write_tar(tmp_path / "y.tar", members[2:])
    result = run("check", tmp_path / "y.tar", "--decode", "--workers", 1)
    assert (result.exit_code, "every part decoded that has a decoder" in result.output) == (0, True)


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


def test_a_crude_dataset(of_json: Any, folder: Path) -> None:
    found = of_json("info", folder / "mixed")
    assert (found["format"], found["samples"], found["shards"], found["type"]) == ("energon", 7, 2, None)
    assert found["energon_version"] == "7.4.1"
    assert found["uuid"] == (folder / "mixed/.nv-meta/index.uuid").read_text().strip()
    assert [tuple(split.values()) for split in found["splits"]] == [
        ("train", 1, 3, 0, 0),
        ("val", 1, 3, 1, 0),
        ("test", 0, 0, 0, 0),
    ]
    sizes = [len(data) for name, data in stores.mixed_contents().items() if name.endswith(".jpg")]
    [jpg] = [part for part in found["parts"] if part["name"] == "jpg"]
    assert jpg == {"name": "jpg", "samples": 4, "bytes": sum(sizes), "min": min(sizes), "max": max(sizes)}
    assert set(found["index"]) == {"samples", "sample_parts"}
    on_disk = [file for file in (folder / "mixed").rglob("*") if file.is_file()]
    unlisted = {"split.yaml", "index.uuid"}  # of the store as a whole neither is a file that it needs
    assert found["bytes"] == sum(file.stat().st_size for file in on_disk if file.name not in unlisted)


def test_a_typed_dataset_in_words(run: Any, folder: Path) -> None:
    lines = run("info", folder / "ocr").stdout.splitlines()
    assert lines[0] == str(folder / "ocr")
    assert "  format        energon, 3 shards" in lines
    assert "  sample type   megatron.energon.OCRSample (dataset.yaml)" in lines
    assert '  subflavors    {"lang": "en"}' in lines
    assert "  words_boxes  json[words_boxes]" in lines
    assert "  train        8  66.7%       2                 0                0" in lines
    assert "parts of all samples" in lines
    assert any(line.startswith("   jpg       12  100.0%") for line in lines)


@pytest.mark.parametrize(("name", "layout", "samples"), [("plain", "tar", 7), ("t.jsonl", "jsonl samples", 20)])
def test_others(run: Any, folder: Path, name: str, layout: str, samples: int) -> None:
    before = sorted(folder.rglob("*"))
    found = json.loads(run("info", folder / name, "--json").stdout)
    assert (found["format"], found["samples"], found["splits"], found["index"]) == (layout, samples, None, None)
    assert f"  samples  {samples}\n" in run("info", folder / name).stdout
    assert sorted(folder.rglob("*")) == before  # looking changes nothing: no index beside the tar


def test_a_folder_of_files_with_media_metadata(run: Any, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.jpg").write_bytes(stores.jpeg())
    (tmp_path / "files/a.txt").write_text("a")
    facts = [("a.jpg", "image", '{"width": 53, "height": 37, "format": "JPEG", "mode": "RGB"}')]
    update_media(tmp_path / "files", facts, [("EXTENSION", "jpg,png")])
    found = json.loads(run("info", tmp_path / "files", "--json").stdout)
    assert (found["format"], found["samples"]) == ("files", 1)
    assert found["media"] == {"entries": {"image": 1}, "filters": [["EXTENSION", "jpg,png"]]}
    assert "1 image (by extension: jpg,png)" in run("info", tmp_path / "files").stdout


def test_other_files_of_the_dataset(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    meta = root / ".nv-meta"
    (meta / "other.yaml").write_text("split_parts:\n  all: ['c{00..02}.tar']\nexclude: [c01.tar, c02.tar/k2_0]\n")
    (meta / "crude.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    options = ["--split-config", "other.yaml", "--dataset-config", "crude.yaml"]
    found = json.loads(run("info", root, "--json", *options).stdout)
    assert found["type"]["kind"] == "crude"
    (split,) = found["splits"]
    assert (split["name"], split["samples"], split["excluded"], split["excluded_shards"]) == ("all", 7, 1, 1)
    result = run("info", root, *options)
    assert "  sample type   crude, megatron.energon.CrudeWebdataset (crude.yaml)" in result.stdout.splitlines()


def test_a_sample_loader_is_named_and_never_run(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    (root / ".nv-meta/loader.py").write_text("raise SystemExit(99)")
    (root / ".nv-meta/dataset.yaml").write_text(
        "sample_type:\n  __module__: evil\n  __class__: Type\nsample_loader: loader.py:load\npart_filter: [jpg, json]\n"
    )
    result = run("info", root)
    assert result.exit_code == 0
    assert "loader        loader.py:load, which is code and was not run" in result.stdout
    assert "part filter   jpg, json" in result.stdout
    assert "evil.Type (dataset.yaml)" in result.stdout
    assert run("preview", root, "--num", 1).exit_code == 0
    assert run("check", root, "--decode", "--workers", 1).exit_code == 0


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers(tmp_path_factory.mktemp("cli") / "ds", 150, (3, 77))


def test_it_keeps_what_python_keeps(run: Any, of_json: Any, flawed: Path, tmp_path: Path) -> None:
    arguments = ["measure", flawed, "--encoder", "measured_made:Packed", "--set", "draw=4", "--workers", 1]
    bad = tmp_path / "bad.jsonl"
    first = run(*arguments, "--faults", bad)
    assert first.exit_code == 0
    assert first.stderr == f"{bad}: 14 bad samples\n"
    place = Path(first.stdout.splitlines()[0])
    assert place.parent == Path(os.environ["HEADRACE_CACHE"]) / "facts"
    encoder = Packed(4)
    facts = measure(opened(flawed, encoder), encoder)
    assert facts.path == place
    assert [json.loads(line)["index"] for line in bad.read_text().splitlines()] == [one.index for one in facts.faults()]
    assert len(MeasuredDataset(opened(flawed, encoder), encoder, place, form=Packing(seq_len=32))) > 10
    assert f"tokens           {facts.summary.tokens:,}, " in first.stdout
    assert "\n    2  read              DecodeError\n" in first.stdout
    again = of_json(*arguments)
    assert (again["path"], again["were_there"]) == (str(place), True)
    assert again["facts"]["outputs"] == facts.summary.outputs
    assert run("info", place).stdout == first.stdout
    assert of_json("info", place)["facts"] == again["facts"]
    other = run(*arguments[:-4], "--set", "draw=5", "--set", "most=2", "-o", tmp_path / "out", "--workers", 1)
    found = MeasuredFacts.open(other.stdout.splitlines()[0])
    assert found.path.parent == tmp_path / "out"
    assert found.summary.encoder["attributes"] == {"draw": 5, "most": 2, "failing": 0.1, "groups": 4}


def test_check_reads_every_byte(run: Any, of_json: Any, flawed: Path, tmp_path: Path) -> None:
    """Also where a bit is of the words by which facts are told from plans."""
    facts = measure(opened(flawed, Grouped(1)), Grouped(1), folder=tmp_path)
    whole = run("check", facts.path)
    assert (whole.exit_code, whole.stdout.startswith(f"{facts.path}: whole: ")) == (0, True)
    assert of_json("check", facts.path)["ok"]
    groups, kept = facts.path / "groups.npy", facts.path / "kept.json"
    header = kept.read_bytes()
    places = [header.index(word) + at for word in (b"headrace.facts", b"is_good", b"xxh3_128") for at in (0, 3)]
    flips = [(groups, groups.stat().st_size - 1), *((kept, at) for at in (0, *places, len(header) - 2))]
    for file, at in flips:
        with other_byte(file, at, file.read_bytes()[at] ^ 4):
            broken = run("check", facts.path)
            assert (broken.exit_code, broken.stdout.count("\n")) == (1, 2)
            assert broken.stdout.startswith(f"{file}: ")
            [problem] = of_json("check", facts.path, code=1)["problems"]
            assert problem["path"] == str(file)
            assert problem["message"] in broken.stdout
            assert run("info", facts.path).exit_code == 4
    shown = run("info", facts.path).stdout
    assert "  outputs  batches of  group\n" in shown
    assert '["group",3]' in shown
