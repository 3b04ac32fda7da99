"""Files that are created once: by many at a time, with a lost reply, without hard links, and after a kill."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OutputError
from headrace.io import create_once, read_once


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "links":
        return True

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

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


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("content", [b"", b"half"])
def test_a_torn_file_is_replaced(
    content: bytes, has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
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
    with pytest.raises(OutputError, match="No space left"):
        create_once(tmp_path / "receipt", b"content")
    assert names(tmp_path) == []
    assert read_once(tmp_path / "receipt") is None
