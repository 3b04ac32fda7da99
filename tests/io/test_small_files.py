"""Where a file of settings or of a run is expected, a FIFO, a device or a huge file is refused, and never opened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import HeadraceError
from headrace.compat.megatron.caches import read_description
from headrace.datasets.metadataset import load_dataset
from headrace.encoders.faults import read_fault_report
from headrace.engine.planning import load_plan
from headrace.io import map_npy, read_small, reader
from headrace.io.paths import MAX_SMALL_BYTES
from headrace.loader import load_recipe
from headrace.preparing import read_recipe
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.stores import load_manifest
from headrace.stores.energon.config_file import read_config
from headrace.tracing import read_run_file, read_state


@pytest.fixture(autouse=True)
def _nobody_waits() -> Iterator[None]:
    """A call that waits for a writer is interrupted."""

    def ended(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the call waits for ever")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def place(kind: str, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a character device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(30 << 30)
    return path


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "run": ("run.json", read_run_file),
    "state": ("state.json", read_state),
    "recipe of a run": ("recipe.json", load_recipe),
    "recipe": ("recipe.yaml", read_recipe),
    "metadataset": ("mix.yaml", read_config),
    "opened metadataset": ("mix.yaml", load_dataset),
    "manifest": ("headrace.json", lambda path: load_manifest(path.parent)),
    "tokenizer": ("tokenizer.json", load_tokenizer),
    "faults": ("faults.jsonl", lambda path: read_fault_report([path])),
    "plan": ("plan.json", lambda path: load_plan(path.parent)),
    "megatron": (f"{0:032}-GPTDataset-train-description.txt", lambda path: read_description(str(path))),
}


@pytest.mark.parametrize("kind", ["a FIFO", "a character device", f"at most {MAX_SMALL_BYTES:,}"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_small_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    file, read = READERS[name]
    path = place(kind, tmp_path / "folder" / file)
    with pytest.raises(HeadraceError, match=kind):
        read(path)


@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
def test_readers_open_regular_files_only(tmp_path: Path, kind: str) -> None:
    path = place(kind, tmp_path / "x.bin")
    for name in ("mmap", "pread"):
        with pytest.raises(headrace.StoreError, match=kind):
            reader(name).read(str(path), 0, 1)
    with pytest.raises(OSError, match=kind):
        map_npy(path)
    with pytest.raises(OSError, match=kind):
        read_small(path)


def test_small_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    (tmp_path / "link").symlink_to("x")
    assert read_small(tmp_path / "link") == b"content"
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        read_small(tmp_path)


def test_torn_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100))
    assert np.array_equal(map_npy(path), np.arange(100))
    assert not map_npy(path).flags.writeable
    whole = path.read_bytes()
    for size in (0, 5, 9, 60, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"numpy\.save"):
            map_npy(path)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"numpy\.save"):
        map_npy(path)
    np.save(path, np.zeros((2, 3), order="F"))
    with pytest.raises(ValueError, match="numbers in C order"):
        map_npy(path)
    np.save(path, np.arange(100))
    for shape in (b"(10,), } ", b"(9999999999999999999,), }"):
        torn = path.read_bytes().replace(b"(100,), }".ljust(len(shape)), shape, 1)
        (tmp_path / "b.npy").write_bytes(torn)
        with pytest.raises(ValueError, match=r"takes|numpy\.save"):
            map_npy(tmp_path / "b.npy")
