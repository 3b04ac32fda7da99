"""Compressed files: what Python's own readers find; of torn and damaged ones everything before the damage."""

from __future__ import annotations

import gzip
import io
import json
import random
import zlib
from pathlib import Path

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import spans
from headrace.preparing.sources.streams import DamagedStreamError, Decompressed, GzipStream, HashedFile, ZstdStream

LINES = [json.dumps({"text": f"{number} " + random.Random(number).randbytes(12).hex()}) for number in range(400)]
CONTENT = ("\n".join(LINES) + "\n").encode()
SKIPPABLE = b"\x5f\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


def zstd(data: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    made: bytes = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(data)
    return made


def stream(kind: str, data: bytes) -> Decompressed:
    file = HashedFile(io.BytesIO(data))
    return GzipStream(file) if kind == "gz" else ZstdStream(file, "f")


def drain(opened: Decompressed, size: int) -> tuple[bytes, str]:
    """All bytes, and the damage in words."""
    pieces = []
    try:
        while piece := opened.read(size):
            assert len(piece) <= size or isinstance(opened, ZstdStream)
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
    content = bytes(50_000_000)
    data = gzip.compress(content) if kind == "gz" else zstd(content)
    opened = stream(kind, data)
    assert len(data) < 60_000
    assert max(len(opened.read(1000)) for _ in range(20)) <= (1000 if kind == "gz" else 1 << 17)


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
            assert damage.startswith(
                f"the {word} data is incomplete: the file ends at byte {end:,}, in the middle of it"
            )
        if kind == "gz":
            member = 0 if end < len(first) else len(first)
            assert len(found) >= max(end - member - 40, 0) + len(content) * bool(member)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_follows_the_data(kind: str) -> None:
    data = gzip.compress(CONTENT) if kind == "gz" else zstd(CONTENT)
    found, damage = drain(stream(kind, data + b"garbage"), 1 << 20)
    assert found == CONTENT
    word = "gzip" if kind == "gz" else "zstd"
    assert damage == (
        f"what follows the compressed data at byte {len(data):,} of the file is not {word}: it begins with "
        "b'garbage'. Was something appended to the file? All of it from there on is lost."
    )


def test_zero_bytes_are_garbage_after_zstd_and_before_gzip() -> None:
    assert drain(stream("zst", zstd(b"a") + bytes(9)), 10)[1]
    found, damage = drain(stream("gz", bytes(9) + gzip.compress(b"a")), 10)
    assert found == b""
    assert "is not gzip" in damage


def test_gzip_gives_all_before_a_damaged_byte() -> None:
    data = bytearray(gzip.compress(CONTENT))
    for place in range(30, len(data) - 8, 97):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        plain = zlib.decompressobj(wbits=31)
        wanted = b""
        try:
            for at in range(len(damaged)):
                wanted += plain.decompress(damaged[at : at + 1])
        except zlib.error:
            pass
        found, damage = drain(stream("gz", bytes(damaged)), 1 << 20)
        assert found == wanted
        assert damage.startswith("the gzip data is damaged at about byte ")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_checksum_that_does_not_match(kind: str) -> None:
    data = bytearray(gzip.compress(CONTENT) if kind == "gz" else zstd(CONTENT))
    data[-6 if kind == "gz" else -1] ^= 1
    found, damage = drain(stream(kind, bytes(data)), 1 << 20)
    assert CONTENT.startswith(found)
    assert found == CONTENT or kind == "zst"
    assert "is damaged at about byte" in damage
    assert "What was read before may be wrong too" in damage


def test_a_zstd_window_that_is_too_large() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(CONTENT) + compressor.flush()
    assert drain(stream("zst", data), 10) == (
        b"",
        (
            "the zstd frame needs a window of 268,435,456 bytes in memory; at most 134,217,728 are allowed. "
            "Compress it again without --long or --ultra."
        ),
    )


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_records_of_a_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    made = gzip.compress(CONTENT) if ending == ".gz" else zstd(CONTENT)
    path.write_bytes(made)
    found = spans.read(path, task_bytes=1, block_bytes=1000)
    assert found.texts == [[json.loads(line)["text"] for line in LINES]]
    assert found.lines == list(range(len(LINES)))
    assert found.places == [sum(len(line) + 1 for line in LINES[:number]) for number in range(len(LINES))]
    assert found.input_bytes == len(made)
    assert found.xxh3_128 == xxhash.xxh3_128_hexdigest(made)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["torn", "garbage", "open"])
def test_damage_is_one_fatal_record_and_every_whole_line_is_there(tmp_path: Path, ending: str, damage: str) -> None:
    content = CONTENT if damage == "torn" else CONTENT[:-1]  # the last line has no newline
    make = gzip.compress if ending == ".gz" else zstd
    whole = make(content)
    content_bytes = {
        "torn": whole[: len(whole) // 2],
        "garbage": whole + b"xyz",
        "open": whole + make(b'\n{"text": "a"}')[:-3],
    }[damage]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(content_bytes)
    found = spans.read(path, block_bytes=700)
    count = len(found.texts[0])
    assert found.texts[0] == [json.loads(line)["text"] for line in LINES[:count]]
    if damage != "torn":
        # The newline of the last line is in the second frame, whose only block is torn.
        assert count == len(LINES) - (damage == "open" and ending == ".zst")
    elif ending == ".gz":
        assert 150 < count < 250
    (record,) = found.bad
    assert record.fatal
    assert record.line == count == found.num_lines - 1
    assert record.place == sum(len(line) + 1 for line in LINES[:count]) - (damage == "garbage")
    assert found.input_bytes == len(content_bytes)
    assert found.xxh3_128 == xxhash.xxh3_128_hexdigest(content_bytes)


def test_the_hash_of_a_damaged_file_is_that_of_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    content = gzip.compress(CONTENT) + b"x" * 1_000_000
    path.write_bytes(content)
    found = spans.read(path)
    assert found.xxh3_128 == xxhash.xxh3_128_hexdigest(content)
    assert found.input_bytes == len(content)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_an_archive_of_nothing(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(gzip.compress(b"") if ending == ".gz" else zstd(b""))
    found = spans.read(path)
    assert (found.num_lines, found.bad) == (0, [])
