"""What Energon itself wrote for the shards of `energon_made`. We write the same."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import media_made
from energon_made import LINES, PNG, PRIMARY, SECONDARY, write_files, write_shards, write_tar
from headrace.datasets.metadataset import load_dataset
from headrace.errors import ConfigError, InputError
from headrace.preparing.energon import EnergonOptions, EnergonReport, MediaFilter, SplitChoice, prepare_energon
from headrace.preparing.energon.merging import assign_parts, bring_up_to_date
from headrace.preparing.energon.scanning import find_shards
from headrace.stores.energon import EnergonStore, FilesystemStore, SqliteIndex, read_splits

GOLDEN = Path(__file__).parents[2] / "golden/energon"
SHARDS = {"primary": PRIMARY, "secondary": SECONDARY}


def rows(root: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as base:
        names = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
        found = {name: base.execute(f"select * from {name}").fetchall() for name in names if "sequence" not in name}
        found["media_filters"] = [row[:3] for row in found.get("media_filters", [])]
        assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["primary", "secondary"])
def test_every_file_is_the_same(tmp_path: Path, name: str) -> None:
    root = write_shards(tmp_path, SHARDS[name])
    wanted = json.loads((GOLDEN / name / ".nv-meta/index.json").read_bytes())
    media = MediaFilter(strategy="EXTENSION") if "media_metadata" in wanted["rows"] else None
    parts = tuple(
        (part, "(" + "|".join(shards) + ")$") for part, shards in read_splits(GOLDEN / name).parts.items() if shards
    )
    report = prepare_energon(root, options=EnergonOptions(split=SplitChoice(parts=parts), media=media, workers=1))
    for path in (GOLDEN / name).rglob("*.tar.idx"):
        assert (root / path.relative_to(GOLDEN / name)).read_bytes() == path.read_bytes()
    assert (root / ".nv-meta/.info.json").read_bytes() == (GOLDEN / name / ".nv-meta/.info.json").read_bytes()
    found = rows(root)
    assert {table: sorted(found[table]) for table in wanted["rows"]} == {
        table: sorted(value) for table, value in wanted["rows"].items()
    }
    assert report.samples == len(wanted["rows"]["samples"])


def test_lines(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_bytes(LINES)
    report = prepare_energon(tmp_path / "lines.jsonl")
    assert (report.kind, report.samples) == ("jsonl", 3)
    assert (tmp_path / "lines.jsonl.idx").read_bytes() == (GOLDEN / "lines.jsonl.idx").read_bytes()


def test_join(tmp_path: Path) -> None:
    for name, shards in SHARDS.items():
        root = write_shards(tmp_path / name, shards)
        shutil.copytree(GOLDEN / name / ".nv-meta", root / ".nv-meta", dirs_exist_ok=True)
        prepare_energon(root, options=EnergonOptions())
        shutil.copy(GOLDEN / name / ".nv-meta/index.uuid", root / ".nv-meta/index.uuid")
    shutil.copy(GOLDEN / "join.yaml", tmp_path)
    cache = tmp_path / "join.yaml.cache"
    cache.mkdir()
    (cache / "join_index_0.bin").write_bytes(b"of a join that is no more")
    (join,) = load_dataset(tmp_path / "join.yaml").prepare().values()
    wanted = {path.name: path.read_bytes() for path in (GOLDEN / "join.yaml.cache").iterdir()}
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == wanted
    assert wanted.keys() == {join.path.name}


# Which shard is of which part, as Energon has it.


NAMES = [f"s{number:02d}.tar" for number in range(12)]


@pytest.mark.parametrize(
    ("count", "ratio", "sizes"),
    [
        (3, (8, 1, 1), [2, 0, 1]),
        (12, (8, 1, 1), [9, 1, 2]),
        (10, (0.5, 0.2, 0.3), [5, 2, 3]),
        (7, (1,), [7, 0, 0]),
        (7, (1, 1), [3, 4, 0]),
        (1, (0, 0, 1), [0, 0, 1]),
    ],
)
def test_a_ratio(count: int, ratio: tuple[float, ...], sizes: list[int]) -> None:
    parts = assign_parts(NAMES[:count], SplitChoice(ratio=ratio))
    assert list(parts) == ["train", "val", "test"]
    assert [len(listed) for listed in parts.values()] == sizes
    assert [name for listed in parts.values() for name in listed] == NAMES[:count]


def test_shuffled_as_energon_does() -> None:
    parts = assign_parts(NAMES, SplitChoice(ratio=(1, 1, 0), shuffle=True))
    order = [7, 5, 2, 8, 9, 6, 11, 3, 4, 0, 1, 10]
    assert parts == {
        "train": [NAMES[at] for at in order[:6]],
        "val": [NAMES[at] for at in order[6:]],
        "test": [],
    }


def test_patterns(tmp_path: Path) -> None:
    names = ["train/a0.tar", "train/a1.tar", "val/a0.tar", "old/train/a0.tar"]
    choice = SplitChoice(parts=(("train", "train/{a0,a1}"), ("val", r"val/a\d"), ("train", ".*0"), ("none", "x")))
    assert assign_parts(names, choice) == {
        "train": ["train/a0.tar", "train/a1.tar", "val/a0.tar", "old/train/a0.tar"],
        "val": ["val/a0.tar"],
        "none": [],
    }
    for name in names:
        write_tar(tmp_path / name, [(f"{name[:-4]}.txt", b"")])
    notices: list[str] = []
    options = EnergonOptions(split=SplitChoice(parts=(("val", "val/"),)))
    prepare_energon(tmp_path, options=options, on_notice=notices.append)
    assert read_splits(tmp_path).parts == {"val": ("val/a0.tar",)}
    assert any("3 shards are in no part of the split: old/train/a0.tar, train/a0.tar" in notice for notice in notices)


@given(
    st.lists(st.sampled_from(NAMES), unique=True).map(sorted),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from(NAMES))),
)
def test_brought_up_to_date(names: list[str], before: dict[str, list[str]]) -> None:
    known = {name for listed in before.values() for name in listed}
    new = [name for name in names if name not in known]
    after = bring_up_to_date(before, names, new, SplitChoice())
    target = next(iter(before), "train")
    for part, listed in before.items():
        kept = [name for name in listed if name in names]
        assert after[part] == kept + (new if part == target else [])
    assert list(after)[: len(before)] == list(before)
    assert bring_up_to_date(after, names, [], SplitChoice()) == after


def test_the_order_of_shards(tmp_path: Path) -> None:
    """As Energon sorts what it finds: by folders and names, not as strings."""
    names = [
        "b.tar",
        "a/x.tar",
        "a-b.tar",
        ".h/y.tar",
        ".z.tar",
        "a.tar",
        "A.tar",
        "s10.tar",
        "s9.tar",
        "a/.nv-meta/q.tar",
    ]
    for name in names:
        write_tar(tmp_path / name, [])
    (tmp_path / "dir.tar").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = find_shards(tmp_path, None, refuse_compressed=True, on_notice=print)
    wanted = ["A.tar", "a/x.tar", "a-b.tar", "a.tar", "b.tar", "link/x.tar", "s10.tar", "s9.tar"]
    assert [tar.name for tar in found] == wanted
    found = find_shards(tmp_path, "x", refuse_compressed=True, on_notice=print)
    assert [tar.name for tar in found] == [name for name in wanted if "x" not in name]


# Facts of media, in tars and in folders of plain files.


FILES = media_made.files()
FACTS = {
    "a/image.PNG": {"type": "image", "width": 2, "height": 1, "format": "PNG", "mode": "RGB"},
    "a/grey.jpg": {"type": "image", "width": 53, "height": 37, "format": "JPEG", "mode": "L"},
    "video.mp4": {
        "type": "av",
        "video_duration": 1.2,
        "video_num_frames": 30,
        "video_fps": 25.0,
        "video_width": 64,
        "video_height": 48,
    },
    "sound.wav": {
        "type": "av",
        "audio_duration": 0.5,
        "audio_channels": 2,
        "audio_sample_rate": 16000,
        "audio_num_samples": 8000,
    },
}
BY_HEADER = {**FACTS, "named.bin": FACTS["a/image.PNG"]}


@pytest.fixture
def media_folder(tmp_path: Path) -> Path:
    return write_files(tmp_path, FILES)


def prepare(root: Path, **options: Any) -> EnergonReport:
    return prepare_energon(root, options=EnergonOptions(**{"workers": 1, **options}))


@pytest.mark.parametrize(
    ("wanted", "facts"),
    [
        (MediaFilter(strategy="EXTENSION"), FACTS),
        (MediaFilter(strategy="HEADER"), BY_HEADER),
        (MediaFilter(strategy="GLOB", patterns=("*.mp4", "A/*")), {k: v for k, v in FACTS.items() if k != "sound.wav"}),
        (MediaFilter(strategy="GLOB", patterns=("named.*",)), {"named.bin": FACTS["a/image.PNG"]}),
    ],
)
def test_a_folder_of_files(media_folder: Path, wanted: MediaFilter, facts: dict[str, Any]) -> None:
    report = prepare(media_folder, media=wanted, media_only=True)
    assert (report.kind, report.media) == ("media", len(facts))
    assert [path.name for path in (media_folder / ".nv-meta").iterdir()] == ["index.sqlite"]
    index = SqliteIndex(media_folder / ".nv-meta/index.sqlite")
    assert {row.entry: index.media_metadata(row.entry) for row in index.media()} == facts
    assert index.media_filters() == [(wanted.strategy, ",".join(wanted.patterns))]
    with FilesystemStore(media_folder) as store:
        assert store.part("a/image.PNG") == PNG


def test_processes_and_a_second_run(media_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.energon.plan.TASK_FILES", 2)
    prepare(media_folder, media=MediaFilter(strategy="EXTENSION"), media_only=True, workers=2)
    (media_folder / "sound.wav").unlink()
    prepare(media_folder, media=MediaFilter(strategy="HEADER"), media_only=True)
    index = SqliteIndex(media_folder / ".nv-meta/index.sqlite")
    assert {row.entry: index.media_metadata(row.entry) for row in index.media()} == BY_HEADER
    assert len(index.media_filters()) == 2


@pytest.mark.parametrize(("strategy", "facts"), [("EXTENSION", FACTS), ("HEADER", BY_HEADER)])
def test_media_in_tars(tmp_path: Path, strategy: Any, facts: dict[str, Any]) -> None:
    write_tar(tmp_path / "d/s.tar", list(FILES.items()))
    root = tmp_path / "d"
    options = {"media": MediaFilter(strategy=strategy), "duplicates": "keep", "split": SplitChoice(ratio=(1,))}
    report = prepare(root, **options)
    store = EnergonStore(root)
    found = {row.entry: store.index.media_metadata(row.entry) for row in store.index.media()}
    assert found == facts
    assert report.media == len(facts)


def test_what_is_not_possible(media_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="medium"):
        prepare(media_folder, media=MediaFilter(strategy="GLOB", patterns=("*.tiff",)), media_only=True)
    write_tar(media_folder / "s.tar", [("a.png", PNG)])
    with pytest.raises(ConfigError, match="holds"):
        prepare(media_folder, media=MediaFilter(strategy="HEADER"), media_only=True)
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="folder"):
        prepare(tmp_path / "x.jsonl", media=MediaFilter(strategy="HEADER"))
    with pytest.raises(ConfigError, match="folder"):
        prepare(tmp_path / "x.jsonl", split=SplitChoice(ratio=(1,)))
