"""Writes the golden files of the dialects of ``.bin`` and ``.idx`` whose tools are no packages that can be installed.

    python tests/golden/make_indexed_dialects.py tests/golden/indexed_dialects

Nothing of Headrace is used: the bytes are packed one field after another as the layouts are described (fairseq
``03e53783``, Megatron-LM ``622a44b518`` and before ``34ac1ad05e``, GPT-NeoX ``ea7aefd8``, Aleph-Alpha/scaling
``737f8558``). All hold the sequences [1, 2, 3], [4, 5], [], [6].
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

SEQUENCES = [[1, 2, 3], [4, 5], [], [6]]
BOUNDS = [0, 2, 2, 3, 4]


def mmidx(code: int, item: int, *, bounds: list[int] | None, modes: bytes = b"") -> bytes:
    """``MMIDIDX``; without bounds as fairseq writes it."""
    sizes = [len(sequence) for sequence in SEQUENCES]
    pointers = [item * sum(sizes[:number]) for number in range(len(sizes))]
    idx = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, code, len(sizes))
    idx += b"" if bounds is None else struct.pack("<Q", len(bounds))
    idx += struct.pack("<4i", *sizes) + struct.pack("<4q", *pointers)
    return idx + struct.pack(f"<{len(bounds or [])}q", *(bounds or [])) + modes


def tntidx(code: int, item: int, *, bounds: list[int] | None) -> bytes:
    """``TNTIDX``; without bounds as fairseq writes it."""
    sizes = [len(sequence) for sequence in SEQUENCES]
    idx = b"TNTIDX\x00\x00" + struct.pack("<QQQQQ", 1, code, item, len(sizes), len(sizes))
    idx += b"" if bounds is None else struct.pack("<Q", len(bounds))
    idx += struct.pack("<5q", 0, 1, 2, 3, 4) + struct.pack("<5q", 0, 3, 5, 5, 6) + struct.pack("<4q", *sizes)
    return idx + struct.pack(f"<{len(bounds or [])}q", *(bounds or []))


def make(folder: Path) -> None:
    """Write all files."""
    tokens = [token for sequence in SEQUENCES for token in sequence]

    def write(name: str, letter: str, idx: bytes, add: int = 0) -> None:
        stored = [token + add for token in tokens]
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(stored)}{letter}", *stored))
        (folder / f"{name}.idx").write_bytes(idx)

    folder.mkdir(parents=True, exist_ok=True)
    write("fairseq-uint32", "I", mmidx(9, 4, bounds=None))
    write("fairseq-uint64", "Q", mmidx(10, 8, bounds=None))
    write("neox-float32", "f", mmidx(6, 4, bounds=BOUNDS))
    write("neox-float64", "d", mmidx(7, 8, bounds=BOUNDS))
    write("neox-merged", "H", mmidx(8, 2, bounds=[0]))
    write("modes-int8", "i", mmidx(4, 4, bounds=BOUNDS, modes=struct.pack("<4b", 0, 1, 0, -1)))
    write("modes-int32", "i", mmidx(4, 4, bounds=BOUNDS, modes=struct.pack("<4i", 0, 1, 0, -1)))
    write("tnt-fairseq", "i", tntidx(4, 4, bounds=None), add=1)
    write("tnt-megatron", "i", tntidx(4, 4, bounds=BOUNDS))
    write("aleph-alpha", "i", struct.pack("<8q", 0, 3, 3, 2, 5, 0, 5, 1))
    meta = {"dtype": "int32", "index_dtype": "int64", "document_count": len(SEQUENCES)}
    (folder / "aleph-alpha.meta.json").write_text(json.dumps(meta))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
