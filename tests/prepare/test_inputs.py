"""Arguments -> files in a defined order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ConfigError, InputError
from headrace.prepare.inputs import find_inputs


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ["data/part-10.jsonl", "data/part-9.jsonl", "data/sub/a.jsonl", "data/readme.txt", "data/.x.jsonl"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*inputs: str) -> list[str]:
    return [file.name for file in find_inputs(inputs)]


def test_a_folder_is_searched_in_natural_order(tree: Path) -> None:
    assert names("data") == ["data/part-9.jsonl", "data/part-10.jsonl", "data/sub/a.jsonl"]
    assert names("data/") == ["data/part-9.jsonl", "data/part-10.jsonl", "data/sub/a.jsonl"]


def test_arguments_keep_their_order(tree: Path) -> None:
    assert names("data/sub", "data/part-10.jsonl") == ["data/sub/a.jsonl", "data/part-10.jsonl"]


def test_globs(tree: Path) -> None:
    assert names("data/part-*.jsonl") == ["data/part-9.jsonl", "data/part-10.jsonl"]
    assert names("data/**/*.jsonl") == names("data")
    assert names("data/s*") == ["data/sub/a.jsonl"]


def test_a_name_with_magic_characters_is_taken_literally_if_it_exists(tree: Path) -> None:
    (tree / "data/[a].jsonl").write_text("{}\n")
    assert names("data/[a].jsonl") == ["data/[a].jsonl"]


def test_size_and_time(tree: Path) -> None:
    status = (tree / "data/part-9.jsonl").stat()
    (file,) = find_inputs([Path("data/part-9.jsonl")])
    assert (file.size_bytes, file.mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert file.path == str(tree / "data/part-9.jsonl")


def test_links_are_followed_and_loops_end(tree: Path) -> None:
    (tree / "more").mkdir()
    (tree / "more/link").symlink_to(tree / "data/sub")
    (tree / "more/link/up").symlink_to(tree / "more")
    assert names("more") == ["more/link/a.jsonl"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no input"),
        (["nowhere.jsonl"], "input 'nowhere.jsonl' does not exist"),
        (["data/*.parquet"], "input 'data/*.parquet' matches no file"),
        (["data/readme.txt"], "input 'data/readme.txt': this version reads .jsonl files only"),
        (["data/*"], "input 'data/readme.txt': this version reads .jsonl files only"),
        (["data", "data/part-9.jsonl"], "data/part-9.jsonl: the same file comes from two inputs, 'data' and 'data/pa"),
        (["data/../data/sub", "data/sub/a.jsonl"], "from two inputs, 'data/../data/sub' and 'data/sub/a.jsonl'"),
        (["linked"], "input 'linked' reaches the same file twice (through a link)"),
        (["empty"], "input 'empty': no .jsonl file in this folder"),
        (["tars"], "input 'tars' is a folder of tar shards"),
        (["mixed"], "input 'mixed' holds data that this version does not read: 'b.jsonl.gz' (1 such files)"),
        (["fifo.jsonl"], "neither a regular file nor a folder"),
    ],
)
def test_refused(tree: Path, inputs: list[str], message: str) -> None:
    for folder in ("empty", "tars", "mixed", "linked"):
        (tree / folder).mkdir()
    (tree / "tars/000.tar").touch()
    (tree / "mixed/a.jsonl").touch()
    (tree / "mixed/b.jsonl.gz").touch()
    (tree / "linked/a.jsonl").touch()
    (tree / "linked/b.jsonl").symlink_to("a.jsonl")
    os.mkfifo(tree / "fifo.jsonl")
    with pytest.raises(ConfigError) as caught:
        find_inputs(inputs)
    assert message in str(caught.value)


def test_a_dangling_link_is_an_error_not_a_gap(tree: Path) -> None:
    (tree / "data/gone.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"data/gone\.jsonl: the file cannot be read: No such file"):
        find_inputs(["data"])


def test_an_unreadable_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "a.jsonl":
            raise PermissionError(13, "Permission denied")
        return real_open(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, whom no mode stops
    with pytest.raises(InputError, match=r"data/sub/a\.jsonl: the file cannot be read: Permission denied"):
        find_inputs(["data"])


def test_a_name_that_is_not_utf8(tree: Path) -> None:
    Path(os.fsdecode(b"data/\xff.jsonl")).touch()
    with pytest.raises(ConfigError, match="not UTF-8: rename it"):
        find_inputs(["data"])
