"""A piece: what a task leaves on disk for the parent to take into the output, and then to delete.

    arrays one after another, each begun at a multiple of 8 bytes
    footer      msgpack: what the piece is, its counts, names and dtypes of the arrays
    16 bytes    uint64 size of the footer, uint64 xxh3_64 of all bytes before it

A piece is renamed into place once it is written, and its hash says whether it is whole: after a killed run, pieces
that are whole need not be made again. It is not synced: after a loss of power the hash tells.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import OutputError
from headrace.prepare.sample_counts import SampleCounts

_ALIGN = 8
_NUMBER = struct.Struct("<Q")
_TAIL_BYTES = 2 * _NUMBER.size


class SpanResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a piece took of one span. Lines count from the first line of the piece in this span.

    Every line is kept, or it is in the piece's ``skipped`` arrays; one that was split is kept several times.
    """

    file: int
    begin: int
    """What was read of the file, in the unit of its extent; given where the piece ends the span, else both are 0."""
    end: int
    lines: int
    blank_lines: int
    bad: int
    documents: int
    """Records that were read whole: kept, or dropped by a filter."""
    kept: int
    skipped: int
    text_bytes: int
    """UTF-8 bytes of the texts of ``documents``."""
    input_bytes: int
    """Bytes of the file that were read for it, for progress."""
    xxh3_128: str
    """Of the whole file where the span is all of it, else empty."""
    split: int = 0
    """Documents beyond one a record, of records that became several; ``documents`` counts them as well."""


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the documents of a piece. All tokens that were made are kept, or dropped by a reason."""

    text: int = 0
    eod: int = 0
    bos: int = 0
    dropped: dict[str, int] = {}
    truncated: dict[str, int] = {}


class PieceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a piece is and holds."""

    turn: int
    piece: int
    is_last: bool
    next_span: int = 0
    """Where the next piece of the task begins, see `messages.Cursor`."""
    next_lines: int = 0
    spans: tuple[SpanResult, ...] = ()
    tokens: TokenCounts = TokenCounts()
    num_documents: int = 0
    num_empty: int = 0
    num_special: int = 0
    """Documents read in which the text of an added token occurs."""
    num_proved: int = 0
    """Documents that the truth encoded as well."""
    num_routed: int = 0
    """Texts that the truth encoded alone."""
    dropped: dict[str, int] = {}
    """Documents that a filter dropped, by reason."""
    errors: tuple[tuple[int, int, str], ...] = ()
    """Bad records that were skipped: number of the span in ``spans``, line, message."""
    reasons: tuple[str, ...] = ()
    """What the codes in the array ``skipped_reasons`` mean."""
    domains: tuple[str, ...] = ()
    """What the numbers in the column of domains mean."""
    samples: SampleCounts | None = None
    """What is counted where a recipe makes the documents; its sums are those of ``tokens``."""


class _Array(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _Footer(msgspec.Struct, frozen=True):
    info: PieceInfo
    arrays: tuple[_Array, ...]


class Piece(msgspec.Struct, frozen=True):
    """A piece that was read back; ``arrays`` are views of one buffer."""

    info: PieceInfo
    arrays: dict[str, NDArray[Any]]
    size_bytes: int


def add_counts(sums: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts by reason to others."""
    for name, number in more.items():
        sums[name] = sums.get(name, 0) + number


def piece_path(folder: str | Path, turn: int, piece: int) -> Path:
    """Where a piece lies."""
    return Path(folder) / f"{turn}.{piece}.piece"


def write_piece(folder: str | Path, info: PieceInfo, arrays: Mapping[str, Iterable[NDArray[Any]]]) -> None:
    """Write a piece; each array is given as the blocks that it is made of, of one dtype.

    Raises:
        OutputError: the disk refuses.
    """
    path = piece_path(folder, info.turn, info.piece)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    hasher = xxhash.xxh3_64()
    described = []
    try:
        with temporary.open("wb", buffering=0) as file:

            def write(data: bytes | memoryview) -> None:
                hasher.update(data)
                view = memoryview(data)
                while len(view):
                    view = view[file.write(view) :]

            for name, blocks in arrays.items():
                entry, num_bytes = _Array(name, "", ()), 0
                for block in blocks:
                    if block.size:
                        write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
                    rows = (entry.shape[0] if entry.shape else 0) + len(block)
                    entry = _Array(name, block.dtype.str, (rows, *block.shape[1:]))
                    num_bytes += block.nbytes
                if entry.dtype:
                    described.append(entry)
                    write(bytes(-num_bytes % _ALIGN))
            footer = msgspec.msgpack.encode(_Footer(info, tuple(described)))
            write(footer)
            write(_NUMBER.pack(len(footer)))
            write(_NUMBER.pack(hasher.intdigest()))
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: a temporary piece cannot be written: {error.strerror or error}") from error


def read_piece(path: Path) -> Piece:
    """A piece, verified.

    Raises:
        OutputError: it is missing, torn or damaged.
    """
    try:
        # Mapped, not read: it is hashed, and then written from where it lies.
        data = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise OutputError(f"{path}: a temporary piece cannot be read back: {error.strerror or error}") from error
    if data.size < _TAIL_BYTES:
        raise OutputError(f"{path}: a temporary piece is torn: it has {data.size} bytes")
    body = data[:-_TAIL_BYTES]
    footer_size, digest = (_NUMBER.unpack(data[at : at + 8].tobytes())[0] for at in (data.size - 16, data.size - 8))
    if xxhash.xxh3_64_intdigest(data[:-8].data) != digest:
        raise OutputError(f"{path}: a temporary piece is damaged: its hash is not that of its content")
    footer = msgspec.msgpack.decode(body[body.size - footer_size :].data, type=_Footer)
    arrays = {}
    offset = 0
    for entry in footer.arrays:
        dtype = np.dtype(entry.dtype)
        num_bytes = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
        arrays[entry.name] = body[offset : offset + num_bytes].view(dtype).reshape(entry.shape)
        offset += num_bytes + -num_bytes % _ALIGN
    return Piece(footer.info, arrays, data.size)
