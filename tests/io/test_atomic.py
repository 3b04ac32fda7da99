"""Files that appear whole or not at all, and files that are created once: by many, with a lost reply, after a kill."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.errors import OutputError
from headrace.io import AtomicFile, atomic_write, commit, create_once, file_sum, read_once


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_has_the_name_before_the_commit(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "f") as file:
        file.write(b"12")
        file.write(np.array([3, 4], "<u2").data)
        file.write(np.zeros(0, "<u2").data)
        assert file.size == 6
        (name,) = names(tmp_path)
        assert name.startswith(".f.")
        assert name.endswith(".tmp")
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"12\x03\0\x04\0"
    assert file.sum == file_sum(tmp_path / "f")


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def stop_while_writing() -> None:
        with AtomicFile(tmp_path / "f") as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_while_writing()
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_the_modes_are_those_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "f", b"")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (done.append("rename"), rename(path, to)))
    file = AtomicFile(tmp_path / "f")
    file.write(b"1")
    file.commit()
    assert done == [str(file.temporary), "rename", str(tmp_path)]


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "close"])
def test_a_refusal_names_path_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "rename" else os, call, refuse)
        with pytest.raises(OutputError, match=rf"{tmp_path}/f.*{os.strerror(errno.EIO)}"):
            atomic_write(tmp_path / "f", b"data")
    assert names(tmp_path) == []
    with pytest.raises(OutputError, match="nothing/f"):
        AtomicFile(tmp_path / "nothing" / "f")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
    atomic_write(tmp_path / "f", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".f.partial").write_bytes(b"left by a process that was killed")
    with AtomicFile(tmp_path / "f", resumable=True) as file:
        file.write(b"new")
        assert names(tmp_path) == [".f.partial"]
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


class TestGroup:
    """Files ``a`` then ``b``; a store is whole where both are there and of one age."""

    def stage(self, folder: Path, content: bytes) -> list[AtomicFile]:
        files = [AtomicFile(folder / "a"), AtomicFile(folder / "b")]
        for file in files:
            file.write(content)
        return files

    def test_a_group_that_is_refused_half_way_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = self.stage(tmp_path, b"1")
        (tmp_path / "b").mkdir()  # which no rename of a file replaces
        monkeypatch.setattr("headrace.io.atomic._remove_old", lambda _: None)
        with pytest.raises(OutputError, match="rename"):
            commit(files)
        assert names(tmp_path) == ["b"]

    @pytest.mark.parametrize("moment", range(12))
    @pytest.mark.parametrize("has_old", [False, True])
    def test_killed_or_refused_at_any_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, has_old: bool
    ) -> None:
        if has_old:
            commit(self.stage(tmp_path, b"old"))
        files = self.stage(tmp_path, b"new")
        calls = 0

        def counted(whole):
            def call(*args, **kwargs):
                nonlocal calls
                # What a reader sees now: both only if of one age.
                if (tmp_path / "b").exists():
                    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
                calls += 1
                if calls == moment + 1:
                    raise OSError(errno.EIO, "injected")
                return whole(*args, **kwargs)

            return call

        for owner, name in ((os, "fsync"), (os, "close"), (Path, "rename"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            commit(files)
        except OutputError:
            pass
        finally:
            monkeypatch.undo()
        if (tmp_path / "b").exists():
            assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert not list(tmp_path.glob(".*")) or calls > moment  # only an unlink that was refused leaves one


@pytest.fixture(params=["links", "EPERM", "EOPNOTSUPP"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "links":
        return True

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(getattr(errno, request.param), "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    return False


def test_one_of_many_succeeds(links: bool, tmp_path: Path) -> None:
    path = tmp_path / "receipt"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: create_once(path, b"%d" % number), range(24)))
    assert read_once(path) == b"%d" % found.index(True)
    assert found.count(True) == 1
    assert names(tmp_path) == ["receipt"]
    assert not create_once(path, b"too late")


PROGRAM = """
import os, sys
from pathlib import Path
from headrace.io import create_once
if sys.argv[2] == "no links":
    def refuse(*args, **options):
        raise OSError(1, "no hard links here")
    os.link = refuse
sys.stdin.read()
print([number for number in range(200) if create_once(Path(f"{number}"), sys.argv[1].encode())])
"""


def test_processes_that_create_the_same_files(links: bool, tmp_path: Path) -> None:
    writers = ["a", "b", "c"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, name, "links" if links else "no links"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        for name in writers
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    created = [eval(process.stdout.read()) for process in started if process.stdout is not None]
    assert [process.wait() for process in started] == [0, 0, 0]
    for process in started:
        assert process.stdout is not None
        process.stdout.close()
    assert sorted(number for numbers in created for number in numbers) == list(range(200))
    for name, numbers in zip(writers, created, strict=True):
        assert all(read_once(tmp_path / str(number)) == name.encode() for number in numbers)
    assert len(names(tmp_path)) == 200


def test_a_link_whose_reply_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def repeated(*args: Any, **options: Any) -> None:
        link(*args, **options)
        link(*args, **options)

    monkeypatch.setattr(os, "link", repeated)
    assert create_once(tmp_path / "receipt", b"ours")
    assert not create_once(tmp_path / "receipt", b"another's")
    assert read_once(tmp_path / "receipt") == b"ours"


@given(content=st.binary(max_size=60), data=st.data())
def test_a_torn_file_is_void(content: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("torn")
    path = folder / "receipt"
    assert create_once(path, content)
    assert read_once(path) == content
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert read_once(path) is None


@pytest.mark.parametrize("content", [b"", b"half"])
def test_a_torn_file_is_replaced(content: bytes, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.io.once._TORN_AFTER_S", 0.03)
    path = tmp_path / "receipt"
    path.write_bytes(content)
    assert create_once(path, b"whole")
    assert read_once(path) == b"whole"
    assert names(tmp_path) == ["receipt"]


def test_a_slow_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links a file is seen while it is written; what grows is not taken for torn."""
    whole = tmp_path / "whole"
    create_once(whole, b"from a slow disk")
    data = whole.read_bytes()
    path = tmp_path / "receipt"
    rest = iter(data)
    monkeypatch.setattr("headrace.io.once._TORN_AFTER_S", 0.0)
    # If the file were taken away, what the writer still writes would go to no name.
    with path.open("wb", buffering=0) as writer:
        monkeypatch.setattr("time.sleep", lambda _: writer.write(bytes([next(rest)])))
        assert not create_once(path, b"another's")
    assert read_once(path) == b"from a slow disk"


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match="space"):
        create_once(tmp_path / "receipt", b"content")
    assert names(tmp_path) == []
    assert read_once(tmp_path / "receipt") is None
