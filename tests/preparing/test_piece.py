"""Pieces come back as they were written, or are told to be torn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OutputError
from headrace.preparing.piece import PieceInfo, SpanResult, piece_path, read_piece, write_piece
from headrace.preparing.tally import Tally
from headrace.stores import DocumentLedger, SampleLedger, TokenLedger

DTYPES = st.sampled_from(["<u2", "<i4", "<u8", "<i8", "|u1"])
SPAN = SpanResult(
    file=3, begin=5, end=9, lines=4, blank_lines=1, bad=1, documents=2, kept=1, skipped=3, xxh3_128="abc"
)  # fmt: skip
INFO = PieceInfo(
    task_index=7,
    piece=2,
    is_last=False,
    next_span=1,
    next_lines=12,
    spans=(SPAN, SPAN),
    tally=Tally(
        documents=DocumentLedger(read=4, kept=2, dropped={"min_tokens": 1}),
        tokens=TokenLedger(made=11, kept=10, eod=2, dropped={"min_tokens": 1}),
        samples=SampleLedger(records=3, keys={"ids": TokenLedger(made=11, kept=10)}, notes={"split_records": 1}),
        proved=7,
    ),
    errors=((1, 3, "malformed"),),
    reasons=("", "bad"),
)


@st.composite
def blocks(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    """Blocks of one array: of one dtype and width."""
    dtype = np.dtype(draw(DTYPES))
    width = draw(st.sampled_from([None, 2]))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = [length if width is None else (length, width) for length in lengths]
    return [rng.integers(0, 200, shape).astype(dtype) for shape in shapes]


@settings(deadline=None)
@given(arrays=st.dictionaries(st.text("abc.", min_size=1), blocks(), max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, list[np.ndarray[Any, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("piece")
    write_piece(folder, INFO, arrays)
    (path,) = folder.iterdir()
    assert path == piece_path(folder, 7, 2)
    piece = read_piece(path)
    assert piece.info == INFO
    assert piece.size_bytes == path.stat().st_size
    assert piece.arrays.keys() == arrays.keys()
    for name, parts in arrays.items():
        whole = np.concatenate(parts)
        assert piece.arrays[name].dtype == whole.dtype
        np.testing.assert_array_equal(piece.arrays[name], whole)


def test_an_array_that_is_not_contiguous(tmp_path: Path) -> None:
    write_piece(tmp_path, INFO, {"rows": [np.arange(20).reshape(4, 5)[:, ::2]]})
    assert read_piece(piece_path(tmp_path, 7, 2)).arrays["rows"].tolist() == [[r, r + 2, r + 4] for r in (0, 5, 10, 15)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_piece(tmp_path, INFO, {"a": [np.arange(5, dtype=np.uint16)], "b": [np.arange(3), np.arange(2)]})
    return piece_path(tmp_path, 7, 2)


def test_a_piece_that_was_cut(written: Path) -> None:
    data = written.read_bytes()
    for size in range(len(data)):
        written.write_bytes(data[:size])
        with pytest.raises(OutputError, match=r"7\.2\.piece: a temporary piece is (incomplete|damaged)"):
            read_piece(written)


def test_a_piece_with_one_other_byte(written: Path) -> None:
    data = written.read_bytes()
    for at in range(len(data)):
        written.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(OutputError, match=r"7\.2\.piece: a temporary piece is damaged: its hash"):
            read_piece(written)


def test_a_piece_of_zeros(written: Path) -> None:
    """What some file systems leave after a loss of power."""
    for size in (16, 100):
        written.write_bytes(bytes(size))
        with pytest.raises(OutputError, match="is damaged"):
            read_piece(written)


def test_a_piece_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"1\.0\.piece: a temporary piece cannot be read back: No such file"):
        read_piece(piece_path(tmp_path, 1, 0))


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    def fail() -> Any:
        yield np.arange(3)
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"7\.2\.piece: a temporary piece cannot be written: No space left"):
        write_piece(tmp_path, INFO, {"a": fail()})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match=r"a temporary piece cannot be written: No such file"):
        write_piece(tmp_path / "none", INFO, {})
