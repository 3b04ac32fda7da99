"""What a run may take of the disk and of the memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from headrace.preparing import TextOptions, TokenOptions, prepare_text
from headrace.preparing.backends.first_documents import most_characters
from headrace.preparing.sources import SourceFile

MAX_WORKER_BYTES = 400_000_000
PEAK_OF_OUTPUT = 1.1


@pytest.mark.parametrize(
    ("text_bytes", "characters"),
    [
        ([], 65_536),
        ([1_000], 65_536),
        ([4_000_000, 6_000_000], 90_000),
        ([1_000_000_000], 9_000_000),
        ([1_864_135_111], 16_777_215),
        ([1_864_135_112], 16_777_216),
        ([10**12, 10**12], 16_777_216),
    ],
)
def test_the_proof_of_the_first_documents(text_bytes: list[int], characters: int) -> None:
    """0.9 % of the text, at least 64 KiB of it and at most 16 MiB."""
    files = [cast("SourceFile", types.SimpleNamespace(text_bytes=size)) for size in text_bytes]
    assert most_characters(files) == characters


@contextlib.contextmanager
def repeated(action: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Done again and again beside what is within."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(interval_s):
            action()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def folder_bytes(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            total += folder_bytes(Path(entry.path)) if entry.is_dir() else entry.stat().st_size
    return total


def texts(sources: list[str], size: int) -> Iterator[str]:
    """Documents of 1 to 3 kB, all different, of this many characters together."""
    rng = np.random.default_rng(1)
    number = 0
    while size > 0:
        source = sources[number % len(sources)]
        length = int(rng.integers(1000, 3000))
        begin = int(rng.integers(0, max(len(source) - length, 1)))
        text = f"{number} {source[begin : begin + length]}"
        size -= len(text)
        number += 1
        yield text


@pytest.mark.soak
def test_the_disk_of_a_run(kit: Any, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 1.1 times the output, at any moment."""
    file = kit.write(tmp_path / "in.jsonl", ({"text": text} for text in texts(sources, 42_000_000)))
    output = tmp_path / "out"
    peak = 0

    def look() -> None:
        nonlocal peak
        with contextlib.suppress(FileNotFoundError):
            peak = max(peak, folder_bytes(output))

    real_unlink = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".piece":  # there is most just before something goes
            look()
        real_unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    options = TextOptions(tokens=TokenOptions(append_eod=True), workers=4)
    with repeated(look, 0.005):
        prepare_text([file], output, tokenizer=kit.tokenizer, options=options)
    final = folder_bytes(output)
    assert final > 30_000_000
    assert peak >= final
    assert peak <= PEAK_OF_OUTPUT * final, f"{peak:,} bytes for an output of {final:,}: {peak / final:.3f}"


def watch_workers(peaks: dict[int, int]) -> Callable[[], None]:
    """Keeps the largest resident size of each child."""

    def look() -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                if "headrace.preparing.worker" not in " ".join(child.cmdline()):
                    continue  # before it runs our program, it has the memory of this process
                status = Path(f"/proc/{child.pid}/status").read_text()
                line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0")
                peaks[child.pid] = max(peaks.get(child.pid, 0), int(line.split()[1]) * 1024)

    return look


@pytest.mark.soak
@pytest.mark.parametrize("what", ["a document of 16 MB", "a gz file of several pieces"])
def test_the_memory_of_a_worker(kit: Any, sources: list[str], tmp_path: Path, what: str) -> None:
    text = "".join(texts(sources, 90_000_000 if "gz" in what else 16_000_000))
    if "gz" in what:
        lines = (json.dumps({"text": text[at : at + 3000]}) + "\n" for at in range(0, len(text), 3000))
        (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), 1))
    else:
        # Behind the documents that the run's own process proves: it is the worker's memory that is asked for.
        kit.write(tmp_path / "in.jsonl", [*([{"text": "short"}] * 1000), {"text": text}])
    (file,) = tmp_path.iterdir()
    del text
    peaks: dict[int, int] = {}
    options = TextOptions(workers=1)
    with repeated(watch_workers(peaks), 0.02):
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert 50_000_000 < max(peaks.values()) < MAX_WORKER_BYTES, f"{max(peaks.values()):,} bytes"
