"""Facts of media, in tars and in folders of plain files. The values are those that Energon 7.4.1 gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import media_made
from energon_made import PNG, write_files, write_tar
from headrace.errors import ConfigError, InputError
from headrace.preparing.energon import EnergonOptions, EnergonReport, MediaFilter, SplitChoice, prepare_energon
from headrace.stores.energon import EnergonStore, FilesystemStore, SqliteIndex

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
def folder(tmp_path: Path) -> Path:
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
def test_a_folder_of_files(folder: Path, wanted: MediaFilter, facts: dict[str, Any]) -> None:
    report = prepare(folder, media=wanted, media_only=True)
    assert (report.kind, report.media) == ("media", len(facts))
    assert [path.name for path in (folder / ".nv-meta").iterdir()] == ["index.sqlite"]
    index = SqliteIndex(folder / ".nv-meta/index.sqlite")
    assert {row.entry: index.media_metadata(row.entry) for row in index.media()} == facts
    assert index.media_filters() == [(wanted.strategy, ",".join(wanted.patterns))]
    with FilesystemStore(folder) as store:
        assert store.part("a/image.PNG") == PNG


def test_processes_and_a_second_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.energon.media.FILES_A_TASK", 2)
    prepare(folder, media=MediaFilter(strategy="EXTENSION"), media_only=True, workers=2)
    (folder / "sound.wav").unlink()
    prepare(folder, media=MediaFilter(strategy="HEADER"), media_only=True)
    index = SqliteIndex(folder / ".nv-meta/index.sqlite")
    assert {row.entry: index.media_metadata(row.entry) for row in index.media()} == BY_HEADER
    assert len(index.media_filters()) == 2


@pytest.mark.parametrize(("strategy", "facts"), [("EXTENSION", FACTS), ("HEADER", BY_HEADER)])
def test_tars(tmp_path: Path, strategy: Any, facts: dict[str, Any]) -> None:
    write_tar(tmp_path / "d/s.tar", list(FILES.items()))
    root = tmp_path / "d"
    options = {"media": MediaFilter(strategy=strategy), "duplicates": "keep", "split": SplitChoice(ratio=(1,))}
    report = prepare(root, **options)
    store = EnergonStore(root)
    assert store.index is not None
    found = {row.entry: store.index.media_metadata(row.entry) for row in store.index.media()}
    assert found == facts
    assert report.media == len(facts)


def test_what_is_not_possible(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file is chosen as a medium"):
        prepare(folder, media=MediaFilter(strategy="GLOB", patterns=("*.tiff",)), media_only=True)
    write_tar(folder / "s.tar", [("a.png", PNG)])
    with pytest.raises(ConfigError, match="holds tars"):
        prepare(folder, media=MediaFilter(strategy="HEADER"), media_only=True)
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="a folder of tars or of files"):
        prepare(tmp_path / "x.jsonl", media=MediaFilter(strategy="HEADER"))
    with pytest.raises(ConfigError, match="only a folder of tars can be split"):
        prepare(tmp_path / "x.jsonl", split=SplitChoice(ratio=(1,)))
