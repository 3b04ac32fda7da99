"""Compressed files: what Python's own readers find; of torn and damaged ones everything before the damage."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
import zstandard
from hypothesis import example, given, strategies as st

import spans
from headrace.preparing.sources.streams import (
    FEED_BYTES,
    HEAD_OF_LINE_BYTES,
    CountedFile,
    DamagedStreamError,
    Decompressed,
    GzipStream,
    Lines,
    ZstdStream,
    go_to_first_line,
    read_blocks,
    split_lines,
)

LINES = [json.dumps({"text": f"{number} " + random.Random(number).randbytes(12).hex()}) for number in range(400)]
CONTENT = ("\n".join(LINES) + "\n").encode()
SKIPPABLE = b"\x5f\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


def zstd(data: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    made: bytes = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(data)
    return made


def stream(kind: str, data: bytes) -> Decompressed:
    file = CountedFile(io.BytesIO(data), is_hashed=True)
    return GzipStream(file) if kind == "gz" else ZstdStream(file, "f")


def read_from(content: bytes, begin: int, end: int, block_bytes: int, limit: int) -> Iterator[Lines]:
    file = io.BytesIO(content)
    first = go_to_first_line(file, begin, end, block_bytes=block_bytes)
    return read_blocks(file, first, end, block_bytes=block_bytes, max_line_bytes=limit)


def drain(opened: Decompressed, size: int) -> tuple[bytes, str]:
    """All bytes, and the damage in words."""
    pieces = []
    try:
        while piece := opened.read(size):
            assert len(piece) <= size
            pieces.append(piece)
        opened.finish()
    except DamagedStreamError as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), ""


@given(
    parts=st.lists(st.tuples(st.binary(max_size=300), st.integers(1, 2000)), min_size=1, max_size=4),
    size=st.integers(1, 5000),
    padding=st.integers(0, 600),
    level=st.sampled_from([0, 1, 9]),
)
@example(parts=[(b"", 1)], size=1, padding=0, level=1)
def test_gzip_members_are_read_in_full(parts: list[tuple[bytes, int]], size: int, padding: int, level: int) -> None:
    data = b"".join(gzip.compress(part * times, level) for part, times in parts) + bytes(padding)
    assert drain(stream("gz", data), size) == (gzip.decompress(data), "")


@given(
    parts=st.lists(st.tuples(st.binary(max_size=300), st.integers(1, 2000)), min_size=1, max_size=4),
    size=st.integers(1, 5000),
    options=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_zstd_frames_are_read_in_full(parts: list[tuple[bytes, int]], size: int, options: list[bool]) -> None:
    made = [zstd(part * times, checksum=options[0], size=options[1]) for part, times in parts]
    data = (SKIPPABLE if options[2] else b"").join([b"", *made, b""])
    assert drain(stream("zst", data), size) == (b"".join(part * times for part, times in parts), "")


def test_zstd_blocks_that_were_flushed() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    data = b"".join(
        compressor.compress(line.encode()) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in LINES
    )
    data += compressor.flush()
    assert drain(stream("zst", data), 100) == ("".join(LINES).encode(), "")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_memory_does_not_follow_the_ratio(kind: str) -> None:
    content = bytes(20_000_000 if kind == "gz" else 300_000_000)
    data = gzip.compress(content) if kind == "gz" else zstd(content)
    opened = stream(kind, data)
    assert len(data) < 60_000
    tracemalloc.start()
    sizes = {len(opened.read(1000)) for _ in range(20)}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == {1000}
    assert peak < (16 << 20 if kind == "gz" else 130 << 20)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_torn_anywhere(kind: str) -> None:
    # Incompressible, so that bytes of the file and of the text correspond.
    content = random.Random(1).randbytes(3000)
    first = gzip.compress(content) if kind == "gz" else zstd(content)
    data = first + first
    word = "gzip" if kind == "gz" else "zstd"
    for end in range(1, len(data)):
        found, damage = drain(stream(kind, data[:end]), 700)
        assert (content + content).startswith(found)
        if end == len(first):
            assert (found, damage) == (content, "")
        elif end == len(first) + 1 or (end < len(first) + 4 and kind == "zst" and end > len(first)) or end < 4:
            assert damage  # too short to tell from garbage
        else:
            assert damage.startswith(f"the {word} data is incomplete: the file ends at byte {end:,}")
        if kind == "gz":
            member = 0 if end < len(first) else len(first)
            assert len(found) >= max(end - member - 40, 0) + len(content) * bool(member)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_follows_the_data(kind: str) -> None:
    data = gzip.compress(CONTENT) if kind == "gz" else zstd(CONTENT)
    found, damage = drain(stream(kind, data + b"garbage"), 1 << 20)
    assert found == CONTENT
    assert f"at byte {len(data):,} of the file" in damage
    assert "b'garbage'" in damage


def test_zero_bytes_are_garbage_after_zstd_and_before_gzip() -> None:
    assert drain(stream("zst", zstd(b"a") + bytes(9)), 10)[1]
    found, damage = drain(stream("gz", bytes(9) + gzip.compress(b"a")), 10)
    assert found == b""
    assert "is not gzip" in damage


def test_gzip_gives_nearly_all_before_a_damaged_byte() -> None:
    data = bytearray(gzip.compress(CONTENT))
    for place in range(30, len(data) - 8, 97):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        plain = zlib.decompressobj(wbits=31)
        wanted = b""
        read = 0
        try:
            for read in range(len(damaged)):
                wanted += plain.decompress(damaged[read : read + 1])
        except zlib.error:
            pass
        found, damage = drain(stream("gz", bytes(damaged)), 1 << 20)
        assert wanted.startswith(found)
        assert len(found) >= len(zlib.decompressobj(wbits=31).decompress(damaged[: read // FEED_BYTES * FEED_BYTES]))
        assert damage.startswith("the gzip data is damaged at about byte ")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_checksum_that_does_not_match(kind: str) -> None:
    data = bytearray(gzip.compress(CONTENT) if kind == "gz" else zstd(CONTENT))
    data[-6 if kind == "gz" else -1] ^= 1
    found, damage = drain(stream(kind, bytes(data)), 1 << 20)
    assert CONTENT.startswith(found)
    assert "is damaged at about byte" in damage
    assert "What was read before may be wrong too" in damage


def test_a_zstd_window_that_is_too_large() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(CONTENT) + compressor.flush()
    found, damage = drain(stream("zst", data), 10)
    assert found == b""
    assert "268,435,456 bytes in memory; at most 134,217,728" in damage


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["torn", "garbage", "open"])
def test_damage_is_one_fatal_record_and_every_whole_line_is_there(tmp_path: Path, ending: str, damage: str) -> None:
    content = CONTENT if damage == "torn" else CONTENT[:-1]  # the last line has no newline
    make = gzip.compress if ending == ".gz" else zstd
    whole = make(content)
    content_bytes = {
        "torn": whole[: len(whole) // 2],
        "garbage": whole + b"xyz" * 400_000,
        "open": whole + make(b'\n{"text": "a"}')[:-3],
    }[damage]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(content_bytes)
    found = spans.read(path, block_bytes=700)
    count = len(found.texts[0])
    assert found.texts[0] == [json.loads(line)["text"] for line in LINES[:count]]
    if damage != "torn":
        assert count == len(LINES)
    elif ending == ".gz":
        assert 150 < count < 250
    (record,) = found.bad
    assert record.fatal
    assert record.line == count == found.num_lines - 1
    assert record.place == sum(len(line) + 1 for line in LINES[:count]) - (damage == "garbage")
    assert found.input_bytes == len(content_bytes)
    assert found.xxh3_128 == xxhash.xxh3_128_hexdigest(content_bytes)


# Blocks of whole lines: each line once, wherever the spans and the blocks are cut.


def test_a_long_line_is_read_in_linear_time() -> None:
    content = b"x" * 1_000_000 + b"\n" + b"y"

    class Counting(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            return super().read(size)

    file = Counting(content)
    blocks = list(read_blocks(file, 0, 10, block_bytes=16, max_line_bytes=2_000_000))
    assert blocks == [Lines(0, content[:-1], 1_000_001)]
    assert file.reads < 25


@given(
    lengths=st.lists(st.integers(0, 70), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    block_bytes=st.integers(1, 30),
    ends_open=st.booleans(),
)
@example(lengths=[30, 0, 30], cuts=[], block_bytes=3, ends_open=False)
@example(lengths=[30], cuts=[], block_bytes=30, ends_open=False)
@example(lengths=[29], cuts=[], block_bytes=30, ends_open=False)
def test_each_line_once_and_those_over_the_limit_are_told_apart(
    lengths: list[int], cuts: list[int], block_bytes: int, ends_open: bool
) -> None:
    lines = [bytes([97 + number % 26]) * length + b"\n" for number, length in enumerate(lengths)]
    if ends_open and lines:
        lines[-1] = lines[-1][:-1]
    content = b"".join(lines)
    begins = list(itertools.accumulate(map(len, lines), initial=0))[:-1]
    limit = 30
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    found = []
    reached = 0
    for begin, end in itertools.pairwise(edges):
        for block in read_from(content, begin, end, block_bytes, limit):
            assert block.offset == reached
            reached += block.size
            # Only lines that begin in the span: one that begins behind it is the next span's.
            assert all(begin <= start < end for start in begins if block.offset <= start < reached)
            if block.is_too_long:
                found.append((block.data[:1], block.size))
                assert content[block.offset :].startswith(block.data)
            else:
                assert block.data == content[block.offset : reached]
                assert block.data.endswith(b"\n") or reached == len(content)
    assert reached == len(content)
    assert found == [(line[:1], len(line)) for line in lines if len(line) > limit]


def test_of_a_line_over_the_limit_the_beginning_is_kept() -> None:
    content = b"a\n" + b"x" * 5000 + b"\nb\n"
    blocks = list(read_blocks(io.BytesIO(content), 0, len(content), block_bytes=64, max_line_bytes=1000))
    assert blocks == [
        Lines(0, b"a\n", 2),
        Lines(2, b"x" * HEAD_OF_LINE_BYTES, 5001, is_too_long=True),
        Lines(5003, b"b\n", 2),
    ]


def test_split_lines() -> None:
    lines, begins = split_lines(Lines(0, b"\xef\xbb\xbfa\n\nbc", 8))
    assert (lines, begins.tolist()) == ([b"a", b"", b"bc"], [0, 5, 6])
    lines, begins = split_lines(Lines(7, b"\xef\xbb\xbf\n", 4))
    assert (lines, begins.tolist()) == ([b"\xef\xbb\xbf"], [7])
