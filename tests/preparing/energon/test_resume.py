"""Runs that are killed, or meet a full disk, at each change that they make on disk: the next one ends as it should."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import killing
from counts import PATIENCE_S, cases
from energon_made import write_tar
from faults import Changes, watched
from headrace.errors import OutputError, StoreError
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.stores.energon import EnergonStore


def prepare(root: Path) -> None:
    prepare_energon(root, options=EnergonOptions(split=SplitChoice(ratio=(1, 1)), workers=1))


def content(root: Path) -> dict[str, bytes]:
    """All files, without the times within them; nothing else is left."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    found[".nv-meta/headrace.json"] = re.sub(
        rb'"mtime_ns": \d+|"xxh3_128": "\w+"', b"", found[".nv-meta/headrace.json"]
    )
    return found


def fresh(root: Path) -> None:
    for shard in (0, 1, 2):
        write_tar(root / f"s{shard}.tar", [(f"k{shard}{number}.txt", b"t" * 700) for number in range(3)])


def grown(root: Path) -> None:
    """A dataset of before, with a shard that changed, one that is gone, and one that comes before all."""
    fresh(root)
    prepare(root)
    write_tar(root / "s1.tar", [(f"k1{number}.txt", b"t" * 20) for number in range(5)])
    (root / "s2.tar").unlink()
    write_tar(root / "a.tar", [("a.txt", b"a")])


def samples(root: Path) -> list[tuple[str, bytes]] | None:
    """What a reader sees; None where it is told that there is no dataset."""
    if not (root / ".nv-meta/.info.json").exists():
        with pytest.raises(StoreError, match="headrace prepare"):
            EnergonStore(root)
        return None
    store = EnergonStore(root)
    found = [(sample.key, sample.parts["txt"]) for sample in store.read(range(len(store)))]
    assert [store.find(key) for key, _ in found] == list(range(len(found)))
    return found


@pytest.mark.parametrize("begin", [fresh, grown])
def test_killed_at_every_change(tmp_path: Path, begin: Callable[[Path], None]) -> None:
    whole = tmp_path / "whole"
    begin(whole)
    start = shutil.copytree(whole, tmp_path / "start", copy_function=shutil.copy2)
    prepare(whole)
    wanted, seen = content(whole), samples(whole)
    moment = 0
    is_done = False
    while not is_done:
        root = shutil.copytree(start, tmp_path / "now", copy_function=shutil.copy2)
        is_done = killing.run(lambda root=root: prepare(root), moment=moment)  # type: ignore[misc]
        info = root / ".nv-meta/.info.json"
        # Until the first file is removed there is the dataset of before, whose shards have changed under it.
        if not info.exists() or info.read_bytes() == wanted[".nv-meta/.info.json"]:
            assert samples(root) == (seen if info.exists() else None), moment
        else:
            for path in [*start.glob(".nv-meta/*"), *start.glob("*.idx")]:
                assert (root / path.relative_to(start)).read_bytes() == path.read_bytes(), (moment, path)
        prepare(root)
        assert content(root) == wanted, moment
        shutil.rmtree(root)
        moment += cases(4, 1)
    assert moment > 20


@pytest.mark.parametrize("begin", [fresh, grown])
def test_a_full_disk(tmp_path: Path, begin: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    whole = tmp_path / "whole"
    begin(whole)
    start = shutil.copytree(whole, tmp_path / "start", copy_function=shutil.copy2)
    kinds: list[str] = []
    with watched(Changes(lambda count, kind, half: kinds.append(kind))):
        prepare(whole)
    wanted = content(whole)
    for moment, kind in enumerate(kinds):
        if kind not in ("write", "create"):
            continue
        root = shutil.copytree(start, tmp_path / "now", copy_function=shutil.copy2)

        def refuse(count: int, kind: str, half: Callable[[], object], moment: int = moment) -> None:
            if count >= moment and kind in ("write", "create"):
                raise OSError(28, "No space left on device")

        with watched(Changes(refuse)), pytest.raises(OutputError, match="No space left"):
            prepare(root)
        prepare(root)
        assert content(root) == wanted, moment
        shutil.rmtree(root)


@pytest.mark.soak
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    """A real one, with workers, at any moment."""
    for shard in range(24):
        write_tar(tmp_path / f"d/s{shard:02d}.tar", [(f"k{shard}_{number}.txt", b"t") for number in range(200)])
    whole = shutil.copytree(tmp_path / "d", tmp_path / "whole", copy_function=shutil.copy2)
    prepare(whole)
    code = (
        "import headrace.preparing.energon.run as run; run.WORKER_BYTES = 1\n"
        "from pathlib import Path; from headrace.preparing.energon import *\n"
        f"prepare_energon({str(tmp_path / 'd')!r}, options=EnergonOptions(split=SplitChoice(ratio=(1, 1)), workers=2))"
    )
    for delay in (0.05, 0.2):
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        while not (tmp_path / "d/.nv-meta/.headrace/scans").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(delay)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # A worker ends when it finds its parent gone.
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not alive
    prepare(tmp_path / "d")
    assert content(tmp_path / "d") == content(whole)


def test_what_is_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.preparing.energon import scanning

    fresh(tmp_path)
    names: list[str] = []
    real = scanning.scan_shard

    def scan(path: Path, **options: Any) -> Any:
        names.append(path.name)
        if path.name == "s2.tar" and len(names) == 3:
            raise KeyboardInterrupt
        return real(path, **options)

    monkeypatch.setattr(scanning, "scan_shard", scan)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path)
    write_tar(tmp_path / "s0.tar", [("other.txt", b"")])
    notices: list[str] = []
    options = EnergonOptions(split=SplitChoice(ratio=(1,)), workers=1)
    prepare_energon(tmp_path, options=options, on_notice=notices.append)
    assert names == ["s0.tar", "s1.tar", "s2.tar", "s0.tar", "s2.tar"]
    assert notices[0] == "continuing the unfinished run in this folder: 1 shards are read"
    assert EnergonStore(tmp_path).key(0) == "other"
    for name in ("s0.tar", "s1.tar"):
        os.utime(tmp_path / name)
    prepare_energon(tmp_path, options=EnergonOptions(workers=1))
    assert names[5:] == ["s0.tar", "s1.tar"]
