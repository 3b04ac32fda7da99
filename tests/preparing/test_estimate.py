"""A dry run beside the run that it speaks of; and what a run may take of the disk and of the memory."""

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

from headrace.errors import ConfigError, InputError
from headrace.preparing import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    TokenOptions,
    estimate,
)
from headrace.preparing.backends import MismatchError, ProvedEncoder
from headrace.preparing.run import most_characters
from headrace.preparing.sources import SourceFile
from headrace.stores import Manifest
from shards_made import write_table

pytestmark = pytest.mark.usefixtures("warm_workers")
REFERENCE = TokenOptions(backend="tokenizers")


@pytest.fixture(scope="module")
def texts(sources: list[str]) -> list[str]:
    """Of 0 to 2,000 characters, 3 MB in all."""
    return [text[at : at + at // 2 % 2000] for text in sources for at in range(0, len(text), 1500)]


def write(folder: Path, kind: str, texts: list[str]) -> Path:
    """The texts as one file of this kind; what ends in .txt holds the same words as lines."""
    path = folder / f"in.{kind}"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if kind == "txt":
        path.write_text("".join(" ".join(text.split()) + "\n\n" for text in texts if text.strip()))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(lines))
    elif kind in ("parquet", "arrow"):
        write_table(path, [{"text": text} for text in texts])
    else:
        path.write_bytes(lines)
    return path


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def both(kit: Any, path: Path, options: PrepareOptions, out: Path) -> tuple[Estimate, Manifest]:
    before = sorted(path.parent.rglob("*"))
    found = estimate([path], tokenizer=kit.tokenizer, options=options)
    assert sorted(path.parent.rglob("*")) == before
    return found, kit.prepare([path], out, options=options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("jsonl", PrepareOptions(tokens=REFERENCE)),
        ("jsonl.gz", PrepareOptions(tokens=TokenOptions(append_eod=True, bos=1))),
        ("jsonl.zst", PrepareOptions(tokens=REFERENCE, output=OutputOptions(shard_tokens=9000))),
        ("parquet", PrepareOptions(tokens=REFERENCE, output=OutputOptions(format="keyed"))),
        ("arrow", PrepareOptions(tokens=REFERENCE, filters=FilterSpec(min_tokens=100, max_chars=1500))),
        ("txt", PrepareOptions(tokens=REFERENCE, records=RecordOptions(sample_by="paragraph"))),
    ],
)
@pytest.mark.sampled(1)
def test_a_small_input_is_read_whole(
    kit: Any, texts: list[str], tmp_path: Path, kind: str, options: PrepareOptions
) -> None:
    path = write(tmp_path, kind, texts[:300])
    found, manifest = both(kit, path, options, tmp_path / "out")
    documents, tokens = manifest.ledger.documents, manifest.ledger.tokens
    assert found.is_exact
    assert (found.documents, found.sampled_documents) == (documents.kept, documents.kept)
    assert found.tokens == tokens.kept
    assert found.dropped == documents.dropped
    assert found.dtype == "uint16"
    assert (found.backend, found.fallback) == (manifest.backend.name, "")
    assert found.sampled_bytes == pytest.approx(found.input_bytes, rel=0.01)
    # All but the manifest and some headers grows with the documents.
    growing = (".bin", ".idx", "meta.json", "order.npy")
    output_bytes = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.name.endswith(growing))
    # Empty documents take 12 bytes less; numbers as text are longer and shorter.
    slack = 4 * documents.kept if options.output.format == "keyed" else 12 * documents.empty
    assert abs(found.output_bytes - output_bytes) <= 200 + slack


@pytest.mark.parametrize(
    ("kind", "sample_by"),
    [
        ("jsonl", "document"),
        ("jsonl.gz", "document"),
        ("jsonl.zst", "document"),
        ("parquet", "document"),
        ("arrow", "document"),
        ("txt", "line"),
        ("txt", "paragraph"),
    ],
)
@pytest.mark.sampled(1)
def test_a_sample_tells_of_the_whole(
    kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sample_by: Any
) -> None:
    monkeypatch.setattr("headrace.preparing.api.SAMPLE_BYTES", 800_000)
    path = write(tmp_path, kind, texts)
    options = PrepareOptions(
        tokens=REFERENCE,
        records=RecordOptions(sample_by=sample_by),
        workers=1,
        task_bytes=100_000,
    )
    found, manifest = both(kit, path, options, tmp_path / "out")
    assert not found.is_exact
    assert 0.1 < found.sampled_bytes / found.input_bytes < 0.5
    assert found.sampled_documents < 0.5 * found.documents
    documents, tokens = manifest.ledger.documents.kept, manifest.ledger.tokens.kept
    assert found.tokens == pytest.approx(tokens, rel=0.15)
    assert found.documents == pytest.approx(documents, rel=0.2)
    assert found.output_bytes == pytest.approx(size_of(tmp_path / "out"), rel=0.15)


def test_files_are_read_in_their_order(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of the first file are what is seen; a file that was read whole counts with all of its bytes."""
    monkeypatch.setattr("headrace.preparing.api.SAMPLE_BYTES", 300_000)
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for path in paths:
        kit.write(path, [{"text": "a b " * 25}] * 2000)
    found = estimate(paths, tokenizer=kit.tokenizer, options=PrepareOptions(tokens=REFERENCE))
    assert not found.is_exact
    assert paths[0].stat().st_size < found.sampled_bytes < sum(path.stat().st_size for path in paths[:3])
    assert found.documents == pytest.approx(8000, rel=0.01)


def test_bytes_of_a_compressed_file_count_where_they_are_used(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader takes 256 KiB of a file at a time, and of these 100 MB of text may come."""
    monkeypatch.setattr("headrace.preparing.api.SAMPLE_BYTES", 1 << 20)
    lines = b"".join(json.dumps({"text": f"same text {number}" * 30}).encode() + b"\n" for number in range(8000))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    assert len(lines) > 30 * (tmp_path / "in.jsonl.gz").stat().st_size
    found = estimate(
        [tmp_path / "in.jsonl.gz"], tokenizer=kit.tokenizer, options=PrepareOptions(tokens=REFERENCE, workers=1)
    )
    assert not found.is_exact
    assert found.documents == pytest.approx(8000, rel=0.1)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_no_records(kit: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"1.*records"):
        estimate([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer)


def test_bad_arguments(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "in.jsonl", [{"text": "a"}])
    with pytest.raises(ConfigError, match="standard"):
        estimate([tmp_path / "in.jsonl", "-"], tokenizer=kit.tokenizer)
    with pytest.raises(ConfigError, match=r"workers.*0"):
        estimate([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=PrepareOptions(workers=0))
    with pytest.raises(ConfigError, match="exist"):
        estimate([tmp_path / "in.jsonl"], tokenizer=tmp_path / "none")


def test_a_library_that_differs_in_the_sample(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastokens")

    encode = ProvedEncoder.encode

    def differ(self: ProvedEncoder, texts: Any, sampled: Any) -> Any:
        if self.name != "tokenizers":
            raise MismatchError(0, "fastokens differs from tokenizers: 'a'")
        return encode(self, texts, sampled)

    monkeypatch.setattr(ProvedEncoder, "encode", differ)
    kit.write(tmp_path / "in.jsonl", [{"text": "some text"}])
    options = PrepareOptions(tokens=TokenOptions(backend="fastokens"))
    found = estimate([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=options)
    assert (found.backend, found.fallback) == ("tokenizers", "fastokens differs from tokenizers: 'a'")
    assert found.documents == 1


def test_a_file_that_cannot_be_read_is_counted_where_it_is_skipped(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "a.jsonl", [{"text": "some words"}] * 50)
    (tmp_path / "b.jsonl.gz").touch()
    options = PrepareOptions(tokens=REFERENCE)
    with pytest.raises(InputError, match=r"b\.jsonl\.gz"):
        estimate([tmp_path], tokenizer=kit.tokenizer, options=options)
    options = PrepareOptions(tokens=REFERENCE, errors=ErrorOptions(on_error="skip"))
    found = estimate([tmp_path], tokenizer=kit.tokenizer, options=options)
    assert found.documents == 50


# What a run may take of the disk and of the memory.


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


def many_texts(sources: list[str], size: int) -> Iterator[str]:
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
    file = kit.write(tmp_path / "in.jsonl", ({"text": text} for text in many_texts(sources, 42_000_000)))
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
    with repeated(look, 0.005):
        kit.prepare([file], output, tokens=TokenOptions(append_eod=True), workers=4)
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
    text = "".join(many_texts(sources, 90_000_000 if "gz" in what else 16_000_000))
    if "gz" in what:
        lines = (json.dumps({"text": text[at : at + 3000]}) + "\n" for at in range(0, len(text), 3000))
        (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), 1))
    else:
        # Behind the documents that the run's own process proves: it is the worker's memory that is asked for.
        kit.write(tmp_path / "in.jsonl", [*([{"text": "short"}] * 1000), {"text": text}])
    (file,) = tmp_path.iterdir()
    del text
    peaks: dict[int, int] = {}
    with repeated(watch_workers(peaks), 0.02):
        kit.prepare([file], tmp_path / "out", workers=1)
    assert 50_000_000 < max(peaks.values()) < MAX_WORKER_BYTES, f"{max(peaks.values()):,} bytes"
