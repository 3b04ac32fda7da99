from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import OutputError
from headrace.io import AtomicFile, FileHasher, atomic_write, commit, file_sum, hash_file, partial_path


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


def test_an_old_file_is_replaced_at_once(tmp_path: Path) -> None:
    atomic_write(tmp_path / "f", b"old")
    atomic_write(tmp_path / "f", b"new")
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


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


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "close"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_refusal_names_path_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    path = tmp_path / "f"

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "rename" else os, call, refuse)
        with pytest.raises(OutputError) as caught:
            atomic_write(path, b"data")
    assert str(path) in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert names(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nothing/f: cannot create: No such file"):
        AtomicFile(tmp_path / "nothing" / "f")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
    atomic_write(tmp_path / "f", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"0123456789"


class TestResumable:
    def test_it_goes_on_where_its_hasher_is(self, tmp_path: Path) -> None:
        file = AtomicFile(tmp_path / "f", resumable=True)
        file.write(b"0123456789")
        file.flush()
        file.close()
        assert names(tmp_path) == [".f.partial"]
        assert file.temporary == partial_path(tmp_path / "f")
        again = AtomicFile(tmp_path / "f", written=hash_file(file.temporary, size=4))
        assert (again.size, names(tmp_path)) == (4, [".f.partial"])
        again.write(b"abc")
        assert list(again.pieces(2)) == [b"01", b"23", b"ab", b"c"]
        again.commit()
        assert (tmp_path / "f").read_bytes() == b"0123abc"
        assert again.sum == file_sum(tmp_path / "f")
        assert names(tmp_path) == ["f"]

    def test_a_new_one_begins_anew(self, tmp_path: Path) -> None:
        partial_path(tmp_path / "f").write_bytes(b"left by a process that was killed")
        atomic = AtomicFile(tmp_path / "f", resumable=True)
        assert list(atomic.pieces(10)) == []
        atomic.write(b"new")
        atomic.commit()
        assert (tmp_path / "f").read_bytes() == b"new"

    def test_nothing_to_go_on_from(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="f: cannot continue: No such file"):
            AtomicFile(tmp_path / "f", written=FileHasher())
        assert names(tmp_path) == []

    def test_a_temporary_file_that_is_cut_while_in_use(self, tmp_path: Path) -> None:
        with AtomicFile(tmp_path / "f", resumable=True) as file:
            file.write(b"0123")
            os.truncate(file.temporary, 2)
            with pytest.raises(
                OutputError, match=r"f: the temporary file .*\.f\.partial was cut short while it was in use"
            ):
                list(file.pieces(3))

    @pytest.mark.parametrize("call", ["ftruncate", "lseek"])
    def test_a_refusal_leaves_no_open_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        path = partial_path(tmp_path / "f")
        path.touch()

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(OutputError, match="f: cannot continue: Input/output error"):
            AtomicFile(tmp_path / "f", written=FileHasher())
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        assert path.exists()

    def test_a_group_that_is_refused_keeps_all_but_the_last_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = ""

        def refuse(path: Path) -> None:
            if path.name == refused:
                raise OutputError("refused")

        for refused, left in (("a", ["a", ".b.partial"]), ("b", ["a"])):  # noqa: B007
            files = [AtomicFile(tmp_path / name, resumable=True) for name in ("a", "b")]
            with monkeypatch.context() as patch:
                patch.setattr("headrace.io.atomic.sync_folder", refuse)
                with pytest.raises(OutputError, match="refused"):
                    commit(files, resumable=True)
            assert names(tmp_path) == sorted(left)
            for name in names(tmp_path):
                (tmp_path / name).unlink()


class TestGroup:
    """Files ``a`` then ``b``; a store is whole where both are there and of one age."""

    def stage(self, folder: Path, content: bytes) -> list[AtomicFile]:
        files = [AtomicFile(folder / "a"), AtomicFile(folder / "b")]
        for file in files:
            file.write(content)
        return files

    def test_the_last_name_comes_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        whole = Path.rename
        monkeypatch.setattr(Path, "rename", lambda path, to: (seen.append(to.name), whole(path, to)))
        commit(self.stage(tmp_path, b"1"))
        assert seen == ["a", "b"]
        assert names(tmp_path) == ["a", "b"]

    def test_a_group_that_is_refused_half_way_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = self.stage(tmp_path, b"1")
        (tmp_path / "b").mkdir()  # which no rename of a file replaces
        monkeypatch.setattr("headrace.io.atomic._remove_old", lambda _: None)
        with pytest.raises(OutputError, match=r"b: cannot rename"):
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


_WRITE_FOREVER = """
import sys
from headrace.io import AtomicFile
with AtomicFile(sys.argv[1]) as file:
    file.write(b"x" * 1000)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_sigkill_leaves_no_file_of_the_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITE_FOREVER, str(tmp_path / "f")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == []


_OVER_THE_LIMIT = """
import resource, signal, sys
from headrace.errors import OutputError
from headrace.io import atomic_write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    atomic_write(sys.argv[1], b"x" * 5000)
except OutputError as error:
    print(error)
"""


def test_a_real_refusal_in_the_middle_of_a_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OVER_THE_LIMIT, str(tmp_path / "f")], capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == f"{tmp_path / 'f'}: cannot write: File too large"
    assert names(tmp_path) == []
