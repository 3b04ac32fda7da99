"""The folder of the output: claimed by one run, replaced only when asked, never half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InputError, OutputError
from headrace.prepare import TextOptions, prepare_text
from headrace.prepare.output_folder import WORK_NAME, OutputFolder

OVERWRITE = TextOptions(overwrite=True, workers=1)


@pytest.fixture
def output(kit: Any, tmp_path: Path) -> Path:
    kit.write(tmp_path / "old.jsonl", [{"text": "old"}])
    kit.write(tmp_path / "new.jsonl", [{"text": "new, and longer"}])
    prepare_text([tmp_path / "old.jsonl"], tmp_path / "deep/er/out", tokenizer=kit.tokenizer)
    return tmp_path / "deep/er/out"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_earlier_output_is_refused(kit: Any, output: Path, tmp_path: Path) -> None:
    before = content(output)
    with pytest.raises(OutputError, match="holds the output of an earlier run; --overwrite replaces it"):
        prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer)
    assert content(output) == before


def test_overwrite_replaces_our_files_and_no_others(kit: Any, output: Path, tmp_path: Path) -> None:
    (output / "notes.txt").write_text("mine")
    prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer, options=OVERWRITE)
    assert (output / "notes.txt").read_text() == "mine"
    (output / "notes.txt").unlink()
    assert kit.output(output) == kit.plain_loop([tmp_path / "new.jsonl"])


def test_a_failed_overwrite_leaves_the_old_output(kit: Any, output: Path, tmp_path: Path) -> None:
    before = content(output)
    (tmp_path / "new.jsonl").write_text("broken")
    with pytest.raises(InputError, match="line 1"):
        prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer, options=OVERWRITE)
    assert content(output) == before


def test_overwrite_works_on_a_damaged_manifest(kit: Any, output: Path, tmp_path: Path) -> None:
    (output / "headrace.json").write_text("{}")
    prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer, options=OVERWRITE)
    assert kit.output(output) == kit.plain_loop([tmp_path / "new.jsonl"])


def test_files_of_another_program_are_not_overwritten(kit: Any, output: Path, tmp_path: Path) -> None:
    (output / "headrace.json").unlink()
    before = content(output)
    with pytest.raises(OutputError, match=r"text_document\.bin was not written by headrace prepare"):
        prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer, options=OVERWRITE)
    assert content(output) == before


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_old_and_new_never_mix(
    kit: Any, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    real_rename = Path.rename
    left = moves

    def rename(self: Path, target: Path) -> Path:
        nonlocal left
        if Path(target).parent == output:
            # Whatever happens now, no index is there to open the folder by.
            assert not (output / "text_document.idx").exists()
            if left == 0:
                raise OSError(5, "Input/output error")
            left -= 1
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match="cannot replace the output in: Input/output error"):
        prepare_text([tmp_path / "new.jsonl"], output, tokenizer=kit.tokenizer, options=OVERWRITE)
    assert list(output.iterdir()) == []


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with OutputFolder(tmp_path / "out", overwrite=False):
        with (
            pytest.raises(OutputError, match="another headrace prepare is writing to this folder"),
            OutputFolder(tmp_path / "out", overwrite=True),
        ):
            pass
        assert (tmp_path / "out" / WORK_NAME / "lock").exists()
    assert not (tmp_path / "out").exists()


def test_folders_are_removed_only_if_made_here(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "there", tmp_path / "not/there"):
        with OutputFolder(path, overwrite=False):
            assert path.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with (
            pytest.raises(OutputError, match="cannot use as the output folder"),
            OutputFolder(path, overwrite=False),
        ):
            pass
