"""Tar shards of Energon datasets, the same bytes on every machine; imports the standard library only.

`tests/golden/make_energon.py` lets Energon prepare them, and tests compare with what it wrote.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000020000000108020000007b40e8dd0000000b49444154789c6360000300"
    "00070001b286acf40000000049454e44ae426082"
)
"""An image of 2 by 1 pixels."""

STRANGE = (
    ("__meta__/info.txt", b"meta"),
    ("a000.jpg", bytes(600)),
    ("a000.detail.json", b'{"x":1}'),
    ("a000.TXT", b"hello"),
    ("a000.icon.png", PNG),
    ("noext", b"?"),
    ("adir/a001.img1.jpg", b"one"),
    ("adir/a001.txt", b"two"),
    ("./a002.txt", b"dot"),
    ("av1.2/a003.txt", b"dots"),
    (".hidden", b"?"),
    ("adir/.hid", b"hid"),
    ("a005.", b"empty part name"),
    ("adir/__sub__/a004.txt", b"sub"),
    ("\u00e4\u00f6.txt", b"umlauts"),
    ("d/" + "n" * 150 + ".txt", b"long name"),
)
"""Members of every kind of name that Energon's rules tell apart."""

PRIMARY = {
    "shards/a.tar": STRANGE,
    **{
        f"shards/b{shard:03d}.tar": [
            (f"s{number}.{part}", f"{part} {number}".encode() * (number + 1))
            for number in range(shard * 4, shard * 4 + count)
            for part in ("txt", "cls")
        ]
        for shard, count in enumerate((4, 2, 4))
    },
}
"""Shard -> members of the dataset that is joined with others: b000 to b002 hold s0 to s3, s4 and s5, s8 to s11."""

SECONDARY = {
    "c0.tar": [(f"s{number}.cap", b"caption" * (20 - number)) for number in (11, 3, 5, 0)],
    "c1.tar": [(f"s{number}.cap", b"caption" * number) for number in (8, 1, 10, 4, 2, 9)],
}
"""The captions of the same keys in another order."""

LINES = b'\n\n{"i": 0, "text": "one"}\n\n{"i": 1}\r\n{"i": 2}\n  \n'
"""Records with blank lines before, between and behind."""


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], *, form: int = tarfile.GNU_FORMAT) -> None:
    """Write an uncompressed tar of plain files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def write_shards(root: Path, shards: dict[str, Sequence[tuple[str, bytes]]]) -> Path:
    """Write the tars of a dataset, without any index of them."""
    for name, members in shards.items():
        write_tar(root / name, members)
    return root


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write plain files by their names in a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def names_of(samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> dict[str, bytes]:
    """Return the plain files that samples, keys with their parts, consist of."""
    return {f"{key}.{part}": data for key, parts in samples for part, data in parts.items()}
