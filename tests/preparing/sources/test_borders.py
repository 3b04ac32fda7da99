"""Compressed files that are cut at their frames: the records are those of the text, whatever the frames and cuts."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, strategies as st

import faults
import spans
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.kinds import finish_job, open_job
from headrace.preparing import OutputOptions, PrepareOptions, RecordOptions, TokenOptions, plan
from headrace.preparing.sources import Block, RecordSpec, SourceFile, Span, open_span, plan_tasks
from headrace.preparing.sources.borders import with_borders
from headrace.stores.provenance import Provenance

END_OF_BGZIP = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
SKIPPABLE = b"\x5f\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


def bgzip(data: bytes, *, before: bytes = b"") -> bytes:
    """One block, perhaps with another extra field before that of its size."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    extra = before + b"BC" + struct.pack("<HH", 2, 12 + len(before) + 6 + len(body) + 8 - 1)
    head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff" + struct.pack("<H", len(extra)) + extra
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def zstd(data: bytes, *, checksum: bool = False, size: bool = True) -> bytes:
    made: bytes = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(data)
    return made


WRITERS: dict[str, Callable[[bytes], bytes]] = {
    "bgzip": bgzip,
    "bgzip, other fields": lambda data: bgzip(data, before=b"XX\x03\x00abc"),
    "zstd": zstd,
    "zstd, checksums": lambda data: zstd(data, checksum=True),
    "zstd, no sizes": lambda data: zstd(data, size=False),
    "zstd, skippable frames": lambda data: SKIPPABLE + zstd(data),
}


def ending(writer: str) -> str:
    return ".gz" if writer.startswith("bgzip") else ".zst"


def framed(content: bytes, frame_bytes: Sequence[int], writer: str) -> bytes:
    """Frames of these sizes of text, again and again; some are empty."""
    write = WRITERS[writer]
    made, at, number = [], 0, 0
    while at < len(content) or not made:
        size = frame_bytes[number % len(frame_bytes)]
        made.append(write(content[at : at + size]))
        at, number = at + size, number + 1
    return b"".join(made) + (END_OF_BGZIP if writer.startswith("bgzip") else b"")


def cut(path: Path, spec: RecordSpec, task_bytes: int) -> tuple[SourceFile, list[Span]]:
    """The file, and its spans."""
    files = with_borders(spans.find(path, spec), task_bytes=task_bytes, sample_by=spec.sample_by)
    tasks = plan_tasks(files, task_bytes=task_bytes, max_spans=1)
    return files[0], [span for task in tasks for span in task.spans]


LINES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"\r", b"\xef\xbb\xbfa", b"x" * 300, b"\xff", "Ålesund 漢字".encode()]),
)


@given(
    lines=st.lists(LINES, max_size=40),
    end=st.sampled_from([b"", b"\n", b"\n\n"]),
    frame_bytes=st.lists(st.integers(0, 90), min_size=1, max_size=5).filter(any),
    writer=st.sampled_from(sorted(WRITERS)),
    task_bytes=st.sampled_from([1, 200, 1000, 4000]),
    options=st.sampled_from([{}, {"block_bytes": 50}, {"block_bytes": 50, "max_record_bytes": 100}]),
)
@example([b"a" * 9, b"b" * 9, b"c" * 9], b"\n", [10], "zstd", 1, {})  # lines begin where frames do
@example([b"a" * 500, b"b"], b"\n", [10], "bgzip", 1, {})  # a line over many spans
@example([], b"", [10], "zstd", 1, {})
def test_the_records_are_those_of_the_text(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    end: bytes,
    frame_bytes: list[int],
    writer: str,
    task_bytes: int,
    options: dict[str, int],
) -> None:
    content = b"\n".join(lines) + end
    folder, spec = tmp_path_factory.mktemp("cut"), RecordSpec(sample_by="line")
    (folder / "plain.txt").write_bytes(content)
    path = folder / f"a.txt{ending(writer)}"
    path.write_bytes(framed(content, frame_bytes, writer))
    plain = spans.read(folder / "plain.txt", spec, **options)
    file, parts = cut(path, spec, task_bytes)
    found = spans.read_spans(file, parts, spec, **options)
    assert found.texts == plain.texts
    assert found.lines == plain.lines
    assert found.blank == plain.blank
    assert [(record.line, record.message) for record in found.bad] == [
        (record.line, record.message) for record in plain.bad
    ]
    if len(parts) == 1:
        assert found.places == plain.places
    assert found.input_bytes <= path.stat().st_size


@pytest.mark.parametrize("writer", WRITERS)
def test_the_parts_are_of_nearly_equal_size(tmp_path: Path, writer: str) -> None:
    content = b"".join(random.Random(number).randbytes(40).hex().encode() + b"\n" for number in range(4000))
    path = tmp_path / f"a.txt{ending(writer)}"
    path.write_bytes(framed(content, [1000], writer))
    size = path.stat().st_size
    file, parts = cut(path, RecordSpec(sample_by="line"), -(-size * 4 // 10))
    assert len(parts) == 10
    assert (parts[0].begin, parts[-1].end) == (0, size)
    frame = size // (len(content) // 1000)
    assert max(part.end - part.begin for part in parts) - min(part.end - part.begin for part in parts) < 2.2 * frame
    whole, parts = cut(path, RecordSpec(sample_by="line"), size * 4)
    assert (whole.borders, len(parts)) == ((), 1)
    assert file.borders


@pytest.mark.parametrize(
    "make",
    [
        lambda content: (".gz", zlib.compress(content, wbits=31)),
        lambda content: (".gz", zlib.compress(content[:99], wbits=31) + zlib.compress(content[99:], wbits=31)),
        lambda content: (".zst", zstd(content)),
    ],
)
def test_files_that_stay_whole(tmp_path: Path, make: Any) -> None:
    """Other writers of gzip, and a single frame."""
    end, data = make(b"some words\n" * 1000)
    (tmp_path / f"a.txt{end}").write_bytes(data)
    file, parts = cut(tmp_path / f"a.txt{end}", RecordSpec(sample_by="line"), 1)
    assert file.borders == ()
    assert parts == [Span(0, 0, len(data))]


@pytest.mark.parametrize("sample_by", ["document", "paragraph"])
def test_texts_that_are_no_lines_stay_whole(tmp_path: Path, sample_by: Any) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(framed(b"some words\n" * 1000, [99], "zstd"))
    assert cut(path, RecordSpec(sample_by=sample_by), 1)[0].borders == ()


def test_a_file_with_a_small_share_of_the_text_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(framed(b"{}\n" * 1000, [99], "zstd"))
    (tmp_path / "b.jsonl").write_bytes(b"{}\n" * 10_000_000)
    files = spans.find([tmp_path / "a.jsonl.zst", tmp_path / "b.jsonl"], RecordSpec(fields=(), whole=True))
    assert all(not file.borders for file in with_borders(files, task_bytes=1, sample_by="line"))


def blocks(file: SourceFile, parts: Sequence[Span]) -> tuple[list[str], list[tuple[int, str]]]:
    """The texts, and line and message of each bad record, lines counted from the beginning of the file."""
    texts: list[str] = []
    bad: list[tuple[int, str]] = []
    num_lines = 0
    for part in parts:
        found: list[Block] = list(open_span(file, part, RecordSpec(sample_by="line"), block_bytes=500).blocks())
        texts += [text for block in found for text in block.texts[0]]
        bad += [(record.line + num_lines, record.message) for block in found for record in block.bad]
        num_lines += sum(block.num_lines for block in found)
    return texts, bad


CONTENT = [f"{number} {random.Random(number).randbytes(20).hex()}" for number in range(300)]


@pytest.mark.parametrize("writer", WRITERS)
@given(data=st.data())
def test_damage_is_told_of_as_in_a_whole_file(
    tmp_path_factory: pytest.TempPathFactory, writer: str, data: st.DataObject
) -> None:
    """The first damage is the same record with the same message. Only what lies behind the next border is read, too."""
    whole = framed("".join(line + "\n" for line in CONTENT).encode(), [400, 1000, 77], writer)
    kind = data.draw(st.sampled_from(["torn", "garbage", "a byte"]))
    at = data.draw(st.integers(30, len(whole) - 1))
    damaged = {
        "torn": whole[:at],
        "garbage": whole + b"xyz",
        "a byte": whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
    }[kind]
    path = tmp_path_factory.mktemp("damage") / f"a.txt{ending(writer)}"
    path.write_bytes(damaged)
    file, parts = cut(path, RecordSpec(sample_by="line"), data.draw(st.sampled_from([1, 6000])))
    found, bad = blocks(file, parts)
    wanted, wanted_bad = blocks(file, [Span(0, 0, file.extent)])
    if kind != "a byte" or not wanted_bad:
        assert (found, bad) == (wanted, wanted_bad)
        return
    assert found[: len(wanted)] == wanted
    assert bad[0] == wanted_bad[0]
    behind = found[len(wanted) :]
    assert behind == CONTENT[len(CONTENT) - len(behind) :] or any(text not in CONTENT for text in wanted + behind)


def test_a_size_that_lies(tmp_path: Path) -> None:
    """The reader of the part before notices that no frame begins where the sizes say."""
    inner = bgzip(b"inner\n")
    block = bgzip(b"a\n")
    path = tmp_path / "a.txt.gz"
    path.write_bytes(block + inner)
    file = spans.find(path, RecordSpec(sample_by="line"))[0]
    _, bad = blocks(file, [Span(0, 0, 7)])
    assert bad == [
        (1, "no frame begins at byte 7 of the file, although the sizes of the frames before say so"),
    ]


@pytest.mark.parametrize("program", ["pzstd", "zstd"])
def test_files_of_the_programs(tmp_path: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    content = b"".join(random.Random(number).randbytes(600).hex().encode() + b"\n" for number in range(6000))
    (tmp_path / "a").write_bytes(content)
    path = tmp_path / "a.txt.zst"
    more = ["-p", "4"] if program == "pzstd" else []
    made = [
        subprocess.run([program, "-1", "-c", *more, str(tmp_path / "a")], capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    path.write_bytes(b"".join(made))
    spec = RecordSpec(sample_by="line")
    file, parts = cut(path, spec, 1 << 20)
    assert len(parts) >= 2
    assert spans.read_spans(file, parts, spec).texts == [(content + content).decode().splitlines()]


@pytest.mark.parametrize("writer", ["bgzip", "zstd", "zstd, no sizes"])
def test_a_run_writes_the_bytes_of_the_plain_text(kit: Any, tmp_path: Path, writer: str) -> None:
    words = random.Random(2)
    records = [{"id": number, "text": "word " * words.randrange(30)} for number in range(600)]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.jsonl").write_bytes(content)
    (tmp_path / "cut").mkdir()
    path = tmp_path / "cut" / f"a.jsonl{ending(writer)}"
    path.write_bytes(framed(content, [3000], writer))
    options = PrepareOptions(
        tokens=TokenOptions(append_eod=True, backend="tokenizers"),
        task_bytes=4000,
        workers=2,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(shard_tokens=3000),
    )
    with faults.small_run():
        wanted = kit.prepare([tmp_path / "plain"], tmp_path / "wanted", options=options)
        made = kit.prepare([tmp_path / "cut"], tmp_path / "made", options=options)
        plan([tmp_path / "cut"], tmp_path / "job", tokenizer=kit.tokenizer, options=options)
        job = open_job(tmp_path / "job")
        phase = job.phase()
        assert phase.num_tasks > 5
        finish_job(tmp_path / "job", LocalExecutor(workers=2), Show())
    assert faults.content(tmp_path / "job") == faults.content(tmp_path / "made")
    files, wanted_files = faults.content(tmp_path / "made"), faults.content(tmp_path / "wanted")
    assert files.keys() == wanted_files.keys()
    parts = {"headrace.json", "provenance/spans.npy", "provenance/skipped.npy"}  # these show the tasks
    assert {name for name in files if files[name] != wanted_files[name]} <= parts
    assert made.ledger == wanted.ledger
    origins, wanted_origins = (Provenance(tmp_path / name / "provenance") for name in ("made", "wanted"))
    every = np.arange(made.ledger.documents.kept)
    assert [found.tolist() for found in origins.locate(every)] == [
        found.tolist() for found in wanted_origins.locate(every)
    ]
    assert made.inputs[0].size == path.stat().st_size


def test_a_frame_that_claims_to_hold_too_much(tmp_path: Path) -> None:
    header = io.BytesIO()
    header.write(b"\x28\xb5\x2f\xfd\xe0" + (1 << 62).to_bytes(8, "little") + b"\x01\x00\x00")
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd(b"a\n" * 50) + header.getvalue() + zstd(b"b\n" * 50))
    file, parts = cut(path, RecordSpec(sample_by="line"), 1)
    texts, bad = blocks(file, parts)
    assert texts == ["a"] * 50 + ["b"] * 49, "the line at the border is lost with the frame before"
    assert len(bad) == 1
